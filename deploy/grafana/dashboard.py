"""Generates the dashboard: `python deploy/grafana/dashboard.py` writes `dashboards/strandline.json`.

Replication comes first, because it is what an operator must know first: whether every partition has a leader, whether every
replica is in sync, and whether the cluster survives one more fault. Then come the controllers, the traffic, the groups and their
lag, the request times and the nodes. The description of each panel says what it means and what a problem looks like.

The file is built with Grafana's own SDK (`pip install -e '.[dev]'`). A test generates it again and compares. The metrics have
Kafka's names (docs/metrics.md): another test compares every name with the catalogue, and a third sends every query to a
Prometheus of a live cluster.
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
COORDINATOR = "kafka_server_group_coordinator_metrics_"
ALL_TOPICS = 'topic=""'
"""Selects the series without the topic label: as in Kafka, it counts all topics, deleted ones included."""
EACH_TOPIC = 'topic!=""'


def at_a_glance() -> list[Any]:
    return [
        number(
            "Offline partitions",
            "Partitions without a leader: clients can neither write to them nor read from them. Any value above 0 is an outage.",
            f"max({of_cluster(f'{CONTROL}offlinepartitionscount')})",
        ),
        number(
            "Under min ISR",
            "Partitions with fewer in-sync replicas than min.insync.replicas: they reject acks=all.",
            f"sum({of_cluster(f'{REPLICA}underminisrpartitioncount')})",
        ),
        number(
            "Under-replicated",
            "Partitions with a replica out of sync. The value is above 0 while a broker restarts and catches up.",
            f"sum({of_cluster(f'{REPLICA}underreplicatedpartitions')})",
            bad_colour=YELLOW,
        ),
        number(
            "At min ISR",
            "Partitions that will reject acks=all if one more replica leaves the ISR.",
            f"sum({of_cluster(f'{REPLICA}atminisrpartitioncount')})",
            bad_colour=YELLOW,
        ),
        number(
            "Active controllers",
            "Always 1 in a healthy cluster. At 0 neither fail-over nor metadata change is possible until controllers elect one.",
            f"sum({of_cluster(f'{CONTROL}activecontrollercount')})",
            good=1,
        ),
        number(
            "Fenced brokers",
            "Registered brokers whose heartbeats are missing, or that have not caught up with the metadata yet.",
            f"max({of_cluster(f'{CONTROL}fencedbrokercount')})",
            bad_colour=YELLOW,
        ),
        number(
            "Nodes down",
            "Processes that do not respond to Prometheus.",
            "count({}) - sum({})".format(*[of_cluster("up", 'job=~"strandline-.*"')] * 2),
        ),
        number(
            "Possible loss",
            "Events in the displayed time that may have lost acknowledged records. The alert's description says what to do.",
            f"sum(increase({of_cluster('strandline_loss_possible_total')}[$__range]))",
        ),
    ]


def replication() -> list[Any]:
    return [
        lines(
            "Under-replicated partitions, by leader",
            "If all leaders count some, a broker is down. If one leader does, that leader or the network to it is slow.",
            Query(each(f"{REPLICA}underreplicatedpartitions")),
            stacked=True,
        ),
        lines(
            "Changes of ISRs",
            "A fault shrinks an ISR once and grows it once. Repeated changes mean a follower that lags by about "
            "replica.lag.time.max.ms, or a node that stalls. Rejected: a leader proposed a change of an old ISR; it retries.",
            Query(per_minute(f"{REPLICA}isrshrinks_total"), "shrinks"),
            Query(per_minute(f"{REPLICA}isrexpands_total"), "expands"),
            Query(per_minute(f"{REPLICA}failedisrupdates_total"), "rejected"),
            unit="opm",
        ),
        lines(
            "Leaders per broker",
            "The numbers should be about equal. A restarted broker leads again about ten seconds after it is back in sync "
            "(`auto.leader.rebalance.enable`).",
            Query(each(f"{REPLICA}leadercount")),
            stacked=True,
        ),
        lines(
            "Lag of the slowest replica, by follower",
            "Records behind the leader's high watermark. The lag is high after a broker was down, and falls while it catches up.",
            Query(f"max by (instance) ({of_nodes('kafka_server_replicafetchermanager_maxlag')})"),
        ),
        lines(
            "Replicas that lag most",
            "The ten replicas with the largest lag, with their followers.",
            Query(
                f"topk(10, sum by (instance, topic, partition) ({of_nodes('kafka_server_fetcherlagmetrics_consumerlag')}))",
                "{{topic}}-{{partition}} on {{instance}}",
            ),
        ),
        lines(
            "Replication traffic",
            "Bytes that followers fetch. In and out are equal except for short delays.",
            Query(rate(f"{TOPICS}replicationbytesin_total", ALL_TOPICS), "{{instance}} in"),
            Query(rate(f"{TOPICS}replicationbytesout_total", ALL_TOPICS), "{{instance}} out"),
            unit="Bps",
        ),
        lines(
            "Fail-over",
            "Controller: from a broker's broken connection to the commit of new leaders for all partitions that it led. Broker: "
            "from the arrival of metadata until the last new leader is ready. Clients wait for the sum of both.",
            Query(quantile(0.5, "strandline_failover_seconds"), "controller, median"),
            Query(quantile(0.99, "strandline_failover_seconds"), "controller, 99 %"),
            Query(quantile(0.5, "strandline_leader_takeover_seconds"), "broker, median"),
            Query(quantile(0.99, "strandline_leader_takeover_seconds"), "broker, 99 %"),
            unit="s",
        ),
        lines(
            "Leaders elected",
            "Each election moves the writes of a partition to another broker. If there are many and no broker stops, an operator "
            "balances leaders, or a broker is fenced repeatedly.",
            Query(per_minute("strandline_elections_total"), "elections"),
            Query(per_minute("strandline_fenced_brokers_total"), "brokers fenced"),
            unit="opm",
        ),
        lines(
            "Truncated logs",
            "After a change of leader, followers truncate uncommitted records. A truncation without such a change is a bug.",
            Query(per_minute("strandline_truncations_total"), "times"),
            Query(per_minute("strandline_truncated_records_total"), "offsets"),
            unit="opm",
        ),
    ]


def controllers() -> list[Any]:
    return [
        lines(
            "Active controller",
            "One line is at 1. Another takes over when the active controller dies, stops or loses the majority.",
            Query(each(f"{CONTROL}activecontrollercount")),
        ),
        lines(
            "Quorum epoch",
            "The epoch increases by one with each election. If it rises step by step, elections fail repeatedly.",
            Query(f"max by (instance) ({of_nodes('kafka_server_raft_metrics_current_epoch')})"),
        ),
        lines(
            "Elections",
            "Candidacies: a controller missed its leader. Leaders learned: the results, counted by each node that learns one.",
            Query(per_minute("strandline_raft_candidacies_total"), "candidacies"),
            Query(per_minute("strandline_raft_leader_changes_total"), "leaders learned, by all nodes"),
            unit="opm",
        ),
        lines(
            "Time to commit",
            "From an append on the active controller to the fsync of a majority. Every fail-over and every ISR change takes "
            "at least this long.",
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
            "Metadata that brokers have not applied",
            "Committed records. A broker that stays behind does not know the current leaders.",
            Query(each("strandline_metadata_lag")),
        ),
        lines(
            "Time since the last heartbeat",
            "Per broker, measured by the active controller. At broker.session.timeout.ms it fences the broker.",
            Query(f"max by (broker) ({of_nodes(f'{CONTROL}timesincelastheartbeatreceivedms')})", "broker {{broker}}"),
            unit="ms",
        ),
        lines(
            "Brokers",
            "The controllers' view. A fenced broker leads no partition.",
            Query(f"max({of_cluster(f'{CONTROL}activebrokercount')})", "active"),
            Query(f"max({of_cluster(f'{CONTROL}fencedbrokercount')})", "fenced"),
            Query(f"max({of_cluster(f'{CONTROL}controlledshutdownbrokercount')})", "in controlled shutdown"),
        ),
        lines(
            "Topics and partitions",
            "Partitions that are not led by their preferred replica are an imbalance. It ends by itself about ten seconds after "
            "the brokers are back in sync; `strandline elect --preferred --all` ends it at once.",
            Query(f"max({of_cluster(f'{CONTROL}globaltopiccount')})", "topics"),
            Query(f"max({of_cluster(f'{CONTROL}globalpartitioncount')})", "partitions"),
            Query(f"max({of_cluster(f'{CONTROL}preferredreplicaimbalancecount')})", "not led by the preferred replica"),
        ),
    ]


def traffic() -> list[Any]:
    return [
        lines(
            "Records in",
            "Records from producers, by leader.",
            Query(rate(f"{TOPICS}messagesin_total", ALL_TOPICS)),
            unit="rowsps",
            stacked=True,
        ),
        lines(
            "Bytes in",
            "Bytes from producers, by leader. With three replicas, replication sends each byte twice more.",
            Query(rate(f"{TOPICS}bytesin_total", ALL_TOPICS)),
            unit="Bps",
            stacked=True,
        ),
        lines(
            "Bytes out",
            "Bytes sent to consumers. Replication traffic has its own panel.",
            Query(rate(f"{TOPICS}bytesout_total", ALL_TOPICS)),
            unit="Bps",
            stacked=True,
        ),
        lines(
            "Busiest topics",
            "The ten topics with the most bytes in.",
            Query(f"topk(10, {rate(f'{TOPICS}bytesin_total', EACH_TOPIC, by='topic')})", "{{topic}}"),
            unit="Bps",
        ),
        lines(
            "Requests",
            "Requests per second by API. FetchFollower is replication.",
            Query(rate(f"{REQUESTS}requests_total", 'request!="Fetch"', by="request"), "{{request}}"),
            unit="reqps",
        ),
        lines(
            "Failed produces and fetches",
            "Counted per partition. A few are normal when a leader moves: the clients then look for the new one.",
            Query(rate(f"{TOPICS}failedproducerequests_total", ALL_TOPICS), "produce, {{instance}}"),
            Query(rate(f"{TOPICS}failedfetchrequests_total", ALL_TOPICS), "fetch, {{instance}}"),
            unit="reqps",
        ),
    ]


def request_times() -> list[Any]:
    return [
        heat(
            "Produce",
            "From a request's last byte to its response. With acks=all this includes the wait for the in-sync replicas.",
            f"{REQUESTS}totaltimems",
            'request="Produce"',
            unit="ms",
        ),
        heat(
            "Fetch of a consumer",
            "A fetch waits for records up to fetch.max.wait.ms: many long fetches mean an idle topic, not a slow broker.",
            f"{REQUESTS}totaltimems",
            'request="FetchConsumer"',
            unit="ms",
        ),
        heat(
            "Fetch of a follower",
            "A follower's fetch also waits for records, up to replica.fetch.wait.max.ms.",
            f"{REQUESTS}totaltimems",
            'request="FetchFollower"',
            unit="ms",
        ),
        lines(
            "Produce, by leader",
            "If one leader is slower than the others, check its disk, its event loop and its followers.",
            Query(quantile(0.5, f"{REQUESTS}totaltimems", 'request="Produce"', by="instance"), "{{instance}}, median"),
            Query(quantile(0.99, f"{REQUESTS}totaltimems", 'request="Produce"', by="instance"), "{{instance}}, 99 %"),
            unit="ms",
        ),
        lines(
            "Wait for the handler, 99 %",
            "From a request's last byte until its handler starts. The wait grows when the event loop is busy.",
            Query(quantile(0.99, f"{REQUESTS}requestqueuetimems", 'request!="Fetch"', by="instance")),
            unit="ms",
        ),
        lines(
            "Handler's own time, by API",
            "Time that the handler occupies the event loop; nothing else runs meanwhile.",
            Query(mean(f"{REQUESTS}localtimems", by="request"), "{{request}}"),
            unit="ms",
        ),
    ]


def waiting() -> list[Any]:
    return [
        lines(
            "Purgatory",
            "Parked requests: produces until their records are replicated, fetches until there are records to read.",
            Query(
                each("kafka_server_delayedoperationpurgatory_purgatorysize", by="instance, delayedOperation"),
                "{{delayedOperation}}, {{instance}}",
            ),
        ),
        lines(
            "Expired requests",
            "Produces that were not replicated in time (the client gets an error), and fetches without records (normal).",
            Query(rate("kafka_server_delayedproducemetrics_expires_total"), "produce, {{instance}}"),
            Query(rate("kafka_server_delayedfetchmetrics_expires_total"), "fetch, {{instance}}"),
            unit="ops",
        ),
        lines(
            "Requests in flight",
            "Requests without a response yet, parked ones included.",
            Query(each("strandline_requests_in_flight")),
        ),
    ]


def groups() -> list[Any]:
    lag_records, lag_seconds = of_nodes("strandline_group_lag_records"), of_nodes("strandline_group_lag_seconds")
    return [
        lines(
            "Lag, seconds",
            "Age of the oldest record that a group has not read, by its timestamp: the ten latest groups and topics. A straight "
            "line upwards means that the group does not read at all.",
            Query(f"topk(10, max by (group, topic) ({lag_seconds}))", "{{group}}, {{topic}}"),
            unit="s",
        ),
        lines(
            "Lag, records",
            "Records that a group has not read, over all partitions of a topic: the ten largest.",
            Query(f"topk(10, sum by (group, topic) ({lag_records}))", "{{group}}, {{topic}}"),
        ),
        lines(
            "Lag that is not measured",
            "Unknown: the leader of the partition does not answer. Omitted: smaller lags above group.lag.max.series. Age: "
            "seconds since a broker has measured; much more than group.lag.interval.ms means very many offsets.",
            Query(each("strandline_group_lag_unknown"), "unknown, {{instance}}"),
            Query(each("strandline_group_lag_omitted"), "omitted, {{instance}}"),
            Query(each("strandline_group_lag_age_seconds"), "age, {{instance}}"),
        ),
        lines(
            "Groups",
            "Groups of the newer protocol by state, and all groups of the classic one. One that stays in Reconciling has a "
            "member that does not give up its partitions.",
            Query(each(f"{COORDINATOR}consumer_group_count", by="state"), "{{state}}"),
            Query(each(f"{COORDINATOR}group_count", 'protocol="classic"', by="protocol"), "{{protocol}}"),
        ),
        lines(
            "Rebalances per minute",
            "Members that join and leave all the time: a handler that takes longer than its session, or a deployment that loops.",
            Query(per_minute(f"{COORDINATOR}consumer_group_rebalance_count"), "newer protocol"),
            Query(per_minute(f"{COORDINATOR}group_completed_rebalance_count"), "classic protocol"),
        ),
        lines(
            "Offsets",
            "Committed offsets, and deleted ones by their cause.",
            Query(rate(f"{COORDINATOR}offset_commit_count"), "committed, {{instance}}"),
            Query(rate(f"{COORDINATOR}offset_expiration_count"), "expired, {{instance}}"),
            Query(rate(f"{COORDINATOR}offset_deletion_count"), "deleted, {{instance}}"),
            unit="ops",
        ),
        lines(
            "Partitions of __consumer_offsets",
            "A coordinator leads partitions of this topic. While it loads one, the groups of that partition wait; if a load "
            "fails, they have no coordinator.",
            Query(each(f"{COORDINATOR}num_partitions", 'state!="active"', by="instance, state"), "{{state}}, {{instance}}"),
            Query(each(f"{COORDINATOR}num_partitions", 'state="active"'), "active, {{instance}}"),
        ),
        lines(
            "Load time, 99 %",
            "From the leadership of a partition of __consumer_offsets until its groups are served.",
            Query(quantile(0.99, "strandline_group_load_seconds", by="instance")),
            unit="s",
        ),
        lines(
            "Time of a change, 99 %",
            "Commits and heartbeats that change something: the append here, and the wait for the replicas.",
            Query(quantile(0.99, "strandline_group_append_seconds", by="instance"), "append, {{instance}}"),
            Query(quantile(0.99, "strandline_group_commit_wait_seconds", by="instance"), "replicas, {{instance}}"),
            unit="s",
        ),
    ]


def transactions() -> list[Any]:
    return [
        lines(
            "Transactional ids",
            "By the state of their transaction. One that stays in PrepareCommit or PrepareAbort lacks a marker in a partition.",
            Query(each("strandline_transactional_ids", by="state"), "{{state}}"),
        ),
        lines(
            "Transactions per second",
            "How they ended. A timeout aborts the transaction of a producer that is gone, or takes too long.",
            Query(rate("strandline_transactions_ended_total", by="how"), "{{how}}"),
            unit="ops",
        ),
        lines(
            "Held up readers",
            "Records that are committed in the log and that readers of committed records wait for, and partitions with a "
            "transaction that no coordinator will end (`strandline transaction find-hanging`).",
            Query(each("kafka_cluster_partition_laststableoffsetlag"), "records, {{instance}}"),
            Query(each(f"{REPLICA}partitionswithlatetransactionscount"), "partitions, {{instance}}"),
        ),
        lines(
            "Waiting for markers",
            "Transactions that are decided and lack a marker, and markers whose partition has no leader.",
            Query(each("strandline_transactions_awaiting_markers"), "transactions, {{instance}}"),
            Query(each("strandline_transaction_markers_without_leader"), "markers without leader, {{instance}}"),
        ),
    ]


def disk() -> list[Any]:
    return [
        lines(
            "Free disk space",
            "A full disk takes the log directory offline, and the broker exits.",
            Query(f"{each('strandline_log_dir_free_bytes')} / {each('strandline_log_dir_total_bytes')}"),
            unit="percentunit",
        ),
        lines(
            "Disk space used by logs",
            "Retention deletes old segments; a log whose segments have all expired is emptied.",
            Query(each("strandline_log_dir_used_bytes")),
            unit="bytes",
            stacked=True,
        ),
        lines(
            "Logs kept by a future timestamp",
            "Replicas whose oldest segment retention.ms cannot delete, because a record has a timestamp later than the clock.",
            Query(each("strandline_logs_kept_by_future_timestamp")),
        ),
        lines(
            "Dirtiest compacted log",
            "The part of its bytes that is not compacted yet. If it stays high, see the next panel.",
            Query(f"{each('kafka_log_logcleanermanager_max_dirty_percent')} / 100"),
            unit="percentunit",
        ),
        lines(
            "Logs that cannot be compacted",
            "Replicas that the log cleaner leaves out, for example because a batch is damaged; `strandline health` names them.",
            Query(each("kafka_log_logcleanermanager_uncleanable_partitions_count")),
        ),
        lines(
            "Bytes removed by compaction",
            "By how much rounds of the log cleaner have made segments smaller.",
            Query(rate("strandline_log_cleaner_removed_bytes_total")),
            unit="Bps",
        ),
        lines(
            "Log directories offline",
            "A write, an fsync or a read failed. The broker serves nothing from the directory until a restart.",
            Query(each("kafka_log_logmanager_offlinelogdirectorycount")),
        ),
        lines(
            "Flushes",
            "fsyncs of logs. A broker flushes a full segment, a controller every change.",
            Query(rate("kafka_log_logflushstats_logflushrateandtimems_count")),
            unit="ops",
        ),
        lines(
            "Flush time, 99 %",
            "Slow fsyncs on a controller delay every metadata change.",
            Query(quantile(0.99, "kafka_log_logflushstats_logflushrateandtimems", by="instance")),
            unit="ms",
        ),
        lines(
            "Damaged ranges in logs",
            "Ranges with a wrong checksum. A follower fetches them again; a leader rejects reads of them.",
            Query(each("strandline_corrupt_ranges_total")),
        ),
    ]


def nodes() -> list[Any]:
    return [
        lines(
            "Event loop lag, 99 %",
            "All work of a node waits for its event loop. A broker with a lag of seconds is fenced as if it were dead.",
            Query(quantile(0.99, "strandline_event_loop_lag_seconds", by="instance")),
            unit="s",
        ),
        lines(
            "CPU",
            "A node uses at most one core: at 100 % it cannot do more.",
            Query(rate("process_cpu_seconds_total")),
            unit="percentunit",
        ),
        lines(
            "Memory",
            "Resident memory, without the page cache, which serves most reads.",
            Query(each("process_resident_memory_bytes")),
            unit="bytes",
        ),
        lines(
            "Connections",
            "Open connections by listener: from other brokers, observers of the metadata, and clients.",
            Query(
                each("kafka_server_socket_server_metrics_connection_count", by="instance, listener"), "{{instance}} {{listener}}"
            ),
        ),
        lines(
            "New connections",
            "Many per second mean a client that opens a connection for each request.",
            Query(rate("kafka_server_socket_server_metrics_connection_creation_total")),
            unit="cps",
        ),
        lines(
            "Bad peers",
            "Connections that violated the protocol or its limits. The log names the peer, at most once a minute.",
            Query(rate("strandline_bad_peers_total", by="instance, action"), "{{instance}} {{action}}"),
            unit="cps",
        ),
        lines(
            "Open files",
            "Two files per segment, and the connections.",
            Query(each("process_open_fds")),
        ),
        lines(
            "Uptime",
            "A sawtooth means a node that restarts repeatedly.",
            Query(each("strandline_uptime_seconds")),
            unit="s",
        ),
        lines(
            "Internal errors",
            "Metadata that a broker failed to apply, and missing parts of a scrape. Both are bugs: please report them.",
            Query(each("kafka_server_broker_metadata_metrics_metadata_apply_error_count"), "{{instance}}, metadata"),
            Query(each("strandline_scrape_errors_total"), "{{instance}}, scrape"),
        ),
    ]


def build() -> models.Dashboard:
    page = (
        grafana.Dashboard("Strandline")
        .uid("strandline")
        .description(
            "Replication first (leaders, in-sync replicas, lag), then controllers, traffic, groups, transactions, request times, "
            "disks, nodes."
        )
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
        ("Groups", groups()),
        ("Transactions", transactions()),
        ("Request times", request_times()),
        ("Parked requests", waiting()),
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
