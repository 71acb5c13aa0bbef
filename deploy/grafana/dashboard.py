"""Generates the dashboard: `python deploy/grafana/dashboard.py` writes `dashboards/strandline.json`.

Replication comes first, since that is what an operator loses sleep over: is every partition led, is every replica in sync,
can one more fault be borne. Then who decides (the controllers), then what flows, how long it takes, and what the nodes are
made of. Each panel says in its description what it means and what a bad picture looks like.

Built with Grafana's own SDK (`pip install -e '.[dev]'`); a test makes the file again and compares. The names of metrics are
Kafka's (docs/metrics.md); another test holds every name here against the catalogue, and a third asks a live cluster each
of these questions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from panels import SOURCE, YELLOW, Query, each, heat, lines, mean, number, of_cluster, of_nodes, per_minute, quantile, rate

TARGET = Path(__file__).parent / "dashboards" / "strandline.json"

REPLICA = "kafka_server_replicamanager_"
CONTROL = "kafka_controller_kafkacontroller_"
TOPICS = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"
ALL_TOPICS = 'topic=""'
"""Kafka's series without the label counts all topics, those that were deleted included."""
EACH_TOPIC = 'topic!=""'


def at_a_glance() -> list[Any]:
    return [
        number(
            "Offline partitions",
            "Partitions without a leader: nobody can write to them or read from them. Anything but 0 is an outage.",
            f"max({of_cluster(f'{CONTROL}offlinepartitionscount')})",
        ),
        number(
            "Under min ISR",
            "Partitions with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
            f"sum({of_cluster(f'{REPLICA}underminisrpartitioncount')})",
        ),
        number(
            "Under-replicated",
            "Partitions with a replica out of sync: one spare less. Not 0 while a broker restarts and catches up.",
            f"sum({of_cluster(f'{REPLICA}underreplicatedpartitions')})",
            bad_colour=YELLOW,
        ),
        number(
            "At min ISR",
            "Partitions that will refuse acks=all when one more replica falls out.",
            f"sum({of_cluster(f'{REPLICA}atminisrpartitioncount')})",
            bad_colour=YELLOW,
        ),
        number(
            "Active controllers",
            "One, always. 0: no fail-over and no change until a majority of the controllers agrees.",
            f"sum({of_cluster(f'{CONTROL}activecontrollercount')})",
            good=1,
        ),
        number(
            "Fenced brokers",
            "Registered brokers that the controller does not hear, or that have not caught up with the metadata yet.",
            f"max({of_cluster(f'{CONTROL}fencedbrokercount')})",
            bad_colour=YELLOW,
        ),
        number(
            "Nodes down",
            "Processes that do not answer Prometheus.",
            "count({}) - sum({})".format(*[of_cluster("up", 'job=~"strandline-.*"')] * 2),
        ),
        number(
            "Possible loss",
            "Events in the shown time that may have cost acknowledged records; the alert's description says what to do.",
            f"sum(increase({of_cluster('strandline_loss_possible_total')}[$__range]))",
        ),
    ]


def replication() -> list[Any]:
    return [
        lines(
            "Under-replicated partitions, by leader",
            "All leaders at once: a broker is gone. One leader: it, or the way to it, is slow.",
            Query(each(f"{REPLICA}underreplicatedpartitions")),
            stacked=True,
        ),
        lines(
            "Changes of ISRs",
            "A fault makes the ISR shrink once and grow once. Both all the time: a follower at the edge of "
            "replica.lag.time.max.ms, or a node that stalls. Refused: a leader proposed with an old view; it asks again.",
            Query(per_minute(f"{REPLICA}isrshrinks_total"), "shrinks"),
            Query(per_minute(f"{REPLICA}isrexpands_total"), "expands"),
            Query(per_minute(f"{REPLICA}failedisrupdates_total"), "refused"),
            unit="opm",
        ),
        lines(
            "Leaders per broker",
            "They should be about equal. After a restart a broker leads nothing until `strandline elect`.",
            Query(each(f"{REPLICA}leadercount")),
            stacked=True,
        ),
        lines(
            "Lag of the slowest replica, by follower",
            "Records behind the leader's high watermark. It rises when a broker was away and falls while it catches up.",
            Query(f"max by (instance) ({of_nodes('kafka_server_replicafetchermanager_maxlag')})"),
        ),
        lines(
            "Replicas that lag most",
            "The ten worst, each on its follower.",
            Query(
                f"topk(10, sum by (instance, topic, partition) ({of_nodes('kafka_server_fetcherlagmetrics_consumerlag')}))",
                "{{topic}}-{{partition}} on {{instance}}",
            ),
        ),
        lines(
            "Replication traffic",
            "What followers fetch. In and out are equal but for the moment.",
            Query(rate(f"{TOPICS}replicationbytesin_total", ALL_TOPICS), "{{instance}} in"),
            Query(rate(f"{TOPICS}replicationbytesout_total", ALL_TOPICS), "{{instance}} out"),
            unit="Bps",
        ),
        lines(
            "Fail-over",
            "Controller: from a broker's broken connection to the commit of new leaders for all partitions that it led. Broker: "
            "from the metadata that arrived to the last leader made of it. Clients notice both, one after the other.",
            Query(quantile(0.5, "strandline_failover_seconds"), "controller, median"),
            Query(quantile(0.99, "strandline_failover_seconds"), "controller, 99 %"),
            Query(quantile(0.5, "strandline_leader_takeover_seconds"), "broker, median"),
            Query(quantile(0.99, "strandline_leader_takeover_seconds"), "broker, 99 %"),
            unit="s",
        ),
        lines(
            "Leaders elected",
            "Each moves the writes of a partition to another broker. Many without a broker going: somebody balances, or a "
            "broker is fenced again and again.",
            Query(per_minute("strandline_elections_total"), "elections"),
            Query(per_minute("strandline_fenced_brokers_total"), "brokers fenced"),
            unit="opm",
        ),
        lines(
            "Logs cut back",
            "After a change of leader, followers cut off what was never committed. Offsets cut without such a change are a bug.",
            Query(per_minute("strandline_truncations_total"), "times"),
            Query(per_minute("strandline_truncated_records_total"), "offsets"),
            unit="opm",
        ),
    ]


def controllers() -> list[Any]:
    return [
        lines(
            "Who is active",
            "One line at 1. It changes when the active controller dies, stops or loses the majority.",
            Query(each(f"{CONTROL}activecontrollercount")),
        ),
        lines(
            "Epoch of the quorum",
            "It grows by one with each election that is begun. A staircase: elections that come to nothing.",
            Query(f"max by (instance) ({of_nodes('kafka_server_raft_metrics_current_epoch')})"),
        ),
        lines(
            "Elections",
            "Stood for: a controller missed its leader. Leaders heard of: what came of it.",
            Query(per_minute("strandline_raft_candidacies_total"), "stood for"),
            Query(per_minute("strandline_raft_leader_changes_total"), "leaders heard of, by all nodes"),
            unit="opm",
        ),
        lines(
            "Time to commit",
            "From an append on the active controller to the fsync of a majority: every fail-over and every change of an ISR "
            "takes at least so long.",
            Query(quantile(0.5, "strandline_raft_commit_seconds"), "median"),
            Query(quantile(0.99, "strandline_raft_commit_seconds"), "99 %"),
            Query(quantile(0.99, "strandline_raft_leaderless_seconds"), "without a leader, 99 %"),
            unit="s",
        ),
        lines(
            "Behind the active controller",
            "Entries of the metadata log that a controller (voter) or a broker (observer) does not have yet.",
            Query(f"max by (replica) ({of_nodes('strandline_raft_replica_lag')})", "node {{replica}}"),
        ),
        lines(
            "Metadata that brokers have not acted on",
            "A broker that stays behind does not know its leaders; one that is far behind is not ready.",
            Query(each("strandline_metadata_lag")),
        ),
        lines(
            "Since the last heartbeat",
            "Of each broker, as the active controller sees it. At broker.session.timeout.ms the broker is fenced.",
            Query(f"max by (broker) ({of_nodes(f'{CONTROL}timesincelastheartbeatreceivedms')})", "broker {{broker}}"),
            unit="ms",
        ),
        lines(
            "Brokers",
            "As the controllers have them; fenced ones lead nothing.",
            Query(f"max({of_cluster(f'{CONTROL}activebrokercount')})", "active"),
            Query(f"max({of_cluster(f'{CONTROL}fencedbrokercount')})", "fenced"),
            Query(f"max({of_cluster(f'{CONTROL}controlledshutdownbrokercount')})", "leaving in order"),
        ),
        lines(
            "Topics and partitions",
            "A partition that another than its preferred replica leads is an imbalance; `strandline elect` puts it right.",
            Query(f"max({of_cluster(f'{CONTROL}globaltopiccount')})", "topics"),
            Query(f"max({of_cluster(f'{CONTROL}globalpartitioncount')})", "partitions"),
            Query(f"max({of_cluster(f'{CONTROL}preferredreplicaimbalancecount')})", "not led by the preferred replica"),
        ),
    ]


def traffic() -> list[Any]:
    return [
        lines(
            "Records in",
            "Appended by producers, by leader.",
            Query(rate(f"{TOPICS}messagesin_total", ALL_TOPICS)),
            unit="rowsps",
            stacked=True,
        ),
        lines(
            "Bytes in",
            "Appended by producers, by leader. With three replicas the network carries twice as much again.",
            Query(rate(f"{TOPICS}bytesin_total", ALL_TOPICS)),
            unit="Bps",
            stacked=True,
        ),
        lines(
            "Bytes out",
            "Sent to consumers; what followers fetch is in the traffic of replication.",
            Query(rate(f"{TOPICS}bytesout_total", ALL_TOPICS)),
            unit="Bps",
            stacked=True,
        ),
        lines(
            "Busiest topics",
            "The ten that most is written to.",
            Query(f"topk(10, {rate(f'{TOPICS}bytesin_total', EACH_TOPIC, by='topic')})", "{{topic}}"),
            unit="Bps",
        ),
        lines(
            "Requests",
            "By API. FetchFollower is replication.",
            Query(rate(f"{REQUESTS}requests_total", 'request!="Fetch"', by="request"), "{{request}}"),
            unit="reqps",
        ),
        lines(
            "Failed produces and fetches",
            "Each partition of a request counts. Some are normal for a moment when a leader moves: clients look for the new one.",
            Query(rate(f"{TOPICS}failedproducerequests_total", ALL_TOPICS), "produce, {{instance}}"),
            Query(rate(f"{TOPICS}failedfetchrequests_total", ALL_TOPICS), "fetch, {{instance}}"),
            unit="reqps",
        ),
    ]


def request_times() -> list[Any]:
    return [
        heat(
            "Produce",
            "From a request's last byte to its answer; with acks=all the time until the ISR has it is in it.",
            f"{REQUESTS}totaltimems",
            'request="Produce"',
            unit="ms",
        ),
        heat(
            "Fetch of a consumer",
            "A fetch waits for records up to fetch.max.wait.ms: bright at the top is an idle topic, not a slow broker.",
            f"{REQUESTS}totaltimems",
            'request="FetchConsumer"',
            unit="ms",
        ),
        heat(
            "Fetch of a follower",
            "Waits for records, too (replica.fetch.wait.max.ms).",
            f"{REQUESTS}totaltimems",
            'request="FetchFollower"',
            unit="ms",
        ),
        lines(
            "Produce, by leader",
            "Where one leader is slower than the others, look at its disk, its loop and its followers.",
            Query(quantile(0.5, f"{REQUESTS}totaltimems", 'request="Produce"', by="instance"), "{{instance}}, median"),
            Query(quantile(0.99, f"{REQUESTS}totaltimems", 'request="Produce"', by="instance"), "{{instance}}, 99 %"),
            unit="ms",
        ),
        lines(
            "Waiting for the handler, 99 %",
            "From a request's last byte to its handler. It grows when the loop is busy.",
            Query(quantile(0.99, f"{REQUESTS}requestqueuetimems", 'request!="Fetch"', by="instance")),
            unit="ms",
        ),
        lines(
            "Handler's own time, by API",
            "How long the handler had the loop for itself; nothing else runs meanwhile.",
            Query(mean(f"{REQUESTS}localtimems", by="request"), "{{request}}"),
            unit="ms",
        ),
    ]


def waiting() -> list[Any]:
    return [
        lines(
            "Purgatory",
            "Requests that are parked: produces until they are replicated, fetches until there is something to read.",
            Query(
                each("kafka_server_delayedoperationpurgatory_purgatorysize", by="instance, delayedOperation"),
                "{{delayedOperation}}, {{instance}}",
            ),
        ),
        lines(
            "Time ran out",
            "Produces that were not replicated in time (the client gets an error), and fetches with nothing to read (normal).",
            Query(rate("kafka_server_delayedproducemetrics_expires_total"), "produce, {{instance}}"),
            Query(rate("kafka_server_delayedfetchmetrics_expires_total"), "fetch, {{instance}}"),
            unit="ops",
        ),
        lines(
            "Requests in flight",
            "Requests that are not answered yet, parked ones included.",
            Query(each("strandline_requests_in_flight")),
        ),
    ]


def disk() -> list[Any]:
    return [
        lines(
            "Free room",
            "A full disk takes the log directory offline, and the broker with it.",
            Query(f"{each('strandline_log_dir_free_bytes')} / {each('strandline_log_dir_total_bytes')}"),
            unit="percentunit",
        ),
        lines(
            "Used by logs",
            "Retention deletes old segments; the active one of each log stays.",
            Query(each("strandline_log_dir_used_bytes")),
            unit="bytes",
            stacked=True,
        ),
        lines(
            "Log directories offline",
            "A disk refused a write, an fsync or a read; the broker serves nothing from it until it is started again.",
            Query(each("kafka_log_logmanager_offlinelogdirectorycount")),
        ),
        lines(
            "Flushes",
            "fsync of a log. Brokers do it when a segment is full, controllers for every change.",
            Query(rate("kafka_log_logflushstats_logflushrateandtimems_count")),
            unit="ops",
        ),
        lines(
            "Time of a flush, 99 %",
            "Slow fsyncs delay every decision of the controllers.",
            Query(quantile(0.99, "kafka_log_logflushstats_logflushrateandtimems", by="instance")),
            unit="ms",
        ),
        lines(
            "Damaged places in logs",
            "Found by checksum. A follower fetches such a part anew; a leader refuses it.",
            Query(each("strandline_corrupt_ranges_total")),
        ),
    ]


def nodes() -> list[Any]:
    return [
        lines(
            "Event loop: late by, 99 %",
            "Everything that a node does waits for its loop. Half a second is on the way to being taken for dead.",
            Query(quantile(0.99, "strandline_event_loop_lag_seconds", by="instance")),
            unit="s",
        ),
        lines(
            "CPU",
            "A node uses one core and no more: at 100 % it is at its end.",
            Query(rate("process_cpu_seconds_total")),
            unit="percentunit",
        ),
        lines(
            "Memory",
            "In RAM; the page cache, which does most for reads, is not in it.",
            Query(each("process_resident_memory_bytes")),
            unit="bytes",
        ),
        lines(
            "Connections",
            "Open ones, by listener: other brokers, followers of the metadata, and clients.",
            Query(
                each("kafka_server_socket_server_metrics_connection_count", by="instance, listener"), "{{instance}} {{listener}}"
            ),
        ),
        lines(
            "New connections",
            "Many per second: a client that opens one for each request.",
            Query(rate("kafka_server_socket_server_metrics_connection_creation_total")),
            unit="cps",
        ),
        lines(
            "Bad peers",
            "Connections that broke the protocol or its limits. The log says who, at most once a minute.",
            Query(rate("strandline_bad_peers_total", by="instance, action"), "{{instance}} {{action}}"),
            unit="cps",
        ),
        lines(
            "Open files",
            "Two for each segment, and the connections.",
            Query(each("process_open_fds")),
        ),
        lines(
            "Uptime",
            "A saw: a node that restarts again and again.",
            Query(each("strandline_uptime_seconds")),
            unit="s",
        ),
        lines(
            "Trouble of ours",
            "Metadata that a broker failed to act on, and parts of a scrape that are missing: bugs, please report them.",
            Query(each("kafka_server_broker_metadata_metrics_metadata_apply_error_count"), "{{instance}}, metadata"),
            Query(each("strandline_scrape_errors_total"), "{{instance}}, scrape"),
        ),
    ]


def build() -> models.Dashboard:
    page = (
        grafana.Dashboard("Strandline")
        .uid("strandline")
        .description("Replication first: who leads, who is in sync, who is behind; then what it rests on.")
        .tags(["strandline", "kafka"])
        .readonly()
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(grafana.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_values("cluster", "Cluster", 'label_values(up{job=~"strandline-.*"}, cluster)'))
        .with_variable(
            _values("instance", "Nodes", 'label_values(up{cluster="$cluster",job=~"strandline-.*"}, instance)', several=True)
        )
    )
    for title, panels in (
        ("Replication", [*at_a_glance(), *replication()]),
        ("Controllers", controllers()),
        ("Traffic", traffic()),
        ("Request times", request_times()),
        ("Waiting", waiting()),
        ("Disk", disk()),
        ("Nodes", nodes()),
    ):
        page.with_row(grafana.Row(title))
        for panel in panels:
            page.with_panel(panel)
    dashboard = page.build()
    for number_, panel_ in enumerate(dashboard.panels or [], 1):
        panel_.id_val = number_
    return dashboard


def _values(name: str, label: str, query: str, *, several: bool = False) -> grafana.QueryVariable:
    variable = (
        grafana.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(several)
    )
    return variable.include_all(True).current(models.VariableOption(text="All", value="$__all")) if several else variable


def render() -> str:
    return JSONEncoder(sort_keys=True, indent=2).encode(build()) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
