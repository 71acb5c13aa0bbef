"""Every metric that a node prints, one row each: what it is called, what it says, and what Kafka calls it.

A metric that is not here is not printed, and what is here is printed by the roles that the row names; tests hold both
against real scrapes. `docs/metrics.md` is made from these rows.

**Names.** Where Kafka has the thing, the name is what Kafka 4.3 prints through the Prometheus JMX exporter with the
exporter's own example rules for KRaft (`kafka-kraft-3_0_0.yml`), so that alert rules and dashboards go on working; labels
are the exporter's, capitals included. Where Kafka has no such thing, the name begins with `strandline_` and ends with its
unit. Two differences, both on purpose:

- Kafka's exporter prints quantiles for what Kafka measures as a histogram. Quantiles of several nodes can not be added
  up, so here the same name is a Prometheus histogram (`_bucket`, `_sum`, `_count`), in the unit that the name ends with:
  `...totaltimems` is in milliseconds. `_count` means what it means there (versions of the exporter from 1.0 on print
  `_count_total`). A query for a quantile becomes `histogram_quantile(0.99, sum by (le) (rate(..._bucket[5m])))`. Our own
  histograms are in seconds.
- What has a rate in Kafka (`...PerSec`) is its counter, as the exporter prints it: `_total`, and `rate()` is the reader's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "summary"]

BROKER = ("broker",)
CONTROLLER = ("controller",)
BOTH = ("broker", "controller")


class Row(NamedTuple):
    name: str
    """With `_total` where it is a counter; without `_bucket`, `_sum` and `_count`."""
    kind: Kind
    help: str
    roles: tuple[str, ...]
    labels: tuple[str, ...] = ()
    mbean: str = ""
    """Kafka's MBean and attribute; empty where Kafka has no such thing."""
    per_second: float = 1.0
    """How many of the printed unit are a second: 1000 where the name ends in ms. Histograms and summaries only."""


class Section(NamedTuple):
    title: str
    text: str
    rows: tuple[Row, ...]


def _replica(name: str, kind: Kind, help: str, bean: str) -> Row:
    return Row(f"kafka_server_replicamanager_{name}", kind, help, BROKER, (), f"kafka.server:type=ReplicaManager,name={bean}")


REPLICATION = Section(
    "Replication",
    "A broker counts the partitions that it leads; the sum over the brokers is the cluster's.",
    (
        _replica(
            "underreplicatedpartitions",
            "gauge",
            "Partitions led here with fewer in-sync replicas than replicas.",
            "UnderReplicatedPartitions",
        ),
        _replica(
            "underminisrpartitioncount",
            "gauge",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
            "UnderMinIsrPartitionCount",
        ),
        _replica(
            "atminisrpartitioncount",
            "gauge",
            "Partitions led here with exactly min.insync.replicas in sync: the next loss refuses acks=all.",
            "AtMinIsrPartitionCount",
        ),
        _replica("leadercount", "gauge", "Partitions led here.", "LeaderCount"),
        _replica("partitioncount", "gauge", "Replicas here, led or followed.", "PartitionCount"),
        _replica(
            "offlinereplicacount", "gauge", "Replicas here that a failed log directory took offline.", "OfflineReplicaCount"
        ),
        _replica(
            "isrshrinks_total",
            "counter",
            "Committed changes by which the ISR of a partition led here lost a member, whoever asked for them.",
            "IsrShrinksPerSec",
        ),
        _replica(
            "isrexpands_total",
            "counter",
            "Committed changes by which the ISR of a partition led here gained a member.",
            "IsrExpandsPerSec",
        ),
        _replica("failedisrupdates_total", "counter", "ISR proposals that the controller refused.", "FailedIsrUpdatesPerSec"),
        _replica("produceridcount", "gauge", "Idempotent producers that the logs here remember.", "ProducerIdCount"),
        Row(
            "kafka_server_replicafetchermanager_maxlag",
            "gauge",
            "The largest lag of a replica here behind its leader's high watermark, in records.",
            BROKER,
            ("clientId",),
            "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica",
        ),
        Row(
            "kafka_server_replicafetchermanager_failedpartitionscount",
            "gauge",
            "Replicas here that have a leader and no fetcher: fenced, or given up after an error.",
            BROKER,
            ("clientId",),
            "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica",
        ),
        Row(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "gauge",
            "Lag of one replica here behind its leader's high watermark, in records, as of the leader's last answer.",
            BROKER,
            ("clientId", "topic", "partition"),
            "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=*,topic=*,partition=*",
        ),
        Row(
            "strandline_fetchers",
            "gauge",
            "Replica fetchers by whether they are connected to their leader.",
            BROKER,
            ("state",),
        ),
        Row("strandline_truncations_total", "counter", "Times that a log was cut back to its leader's history.", BOTH),
        Row("strandline_truncated_records_total", "counter", "Offsets that were cut off by it.", BOTH),
    ),
)


def _partition(name: str, help: str, bean: str) -> Row:
    mbean = f"kafka.cluster:type=Partition,name={bean},topic=*,partition=*"
    return Row(f"kafka_cluster_partition_{name}", "gauge", help, BROKER, ("topic", "partition"), mbean)


def _log(name: str, help: str, bean: str) -> Row:
    mbean = f"kafka.log:type=Log,name={bean},topic=*,partition=*"
    return Row(f"kafka_log_log_{name}", "gauge", help, BOTH, ("topic", "partition"), mbean)


PARTITIONS = Section(
    "Partitions",
    "`kafka_cluster_partition_*` are printed by the partition's leader alone (Kafka's followers print 0 beside it), "
    "`kafka_log_log_*` for every replica. A controller has one log, `__cluster_metadata`.",
    (
        _partition("underreplicated", "1 while a replica is out of sync.", "UnderReplicated"),
        _partition("underminisr", "1 while fewer than min.insync.replicas are in sync.", "UnderMinIsr"),
        _partition("atminisr", "1 while exactly min.insync.replicas are in sync.", "AtMinIsr"),
        _partition("insyncreplicascount", "In-sync replicas.", "InSyncReplicasCount"),
        _log("logendoffset", "The offset that the next record gets.", "LogEndOffset"),
        _log("logstartoffset", "The first offset that may be read.", "LogStartOffset"),
        _log("size", "Bytes of the log's segments.", "Size"),
    ),
)


def _topic(name: str, help: str, bean: str, *, labels: tuple[str, ...] = ("topic",)) -> Row:
    mbean = f"kafka.server:type=BrokerTopicMetrics,name={bean}[,topic=*]"
    return Row(f"kafka_server_brokertopicmetrics_{name}_total", "counter", help, BROKER, labels, mbean)


TRAFFIC = Section(
    "Traffic",
    "One series per topic, and, as in Kafka, one without the label that counts all topics, deleted ones included: a query "
    'says which it means, `{topic=""}` for all of them.',
    (
        _topic("bytesin", "Bytes of batches that producers had appended here.", "BytesInPerSec"),
        _topic("messagesin", "Records that producers had appended here.", "MessagesInPerSec"),
        _topic("bytesout", "Bytes of batches sent to consumers.", "BytesOutPerSec"),
        _topic("replicationbytesin", "Bytes of batches fetched from leaders.", "ReplicationBytesInPerSec"),
        _topic("replicationbytesout", "Bytes of batches sent to followers.", "ReplicationBytesOutPerSec"),
        _topic("totalproducerequests", "Produce requests, each counted once per partition.", "TotalProduceRequestsPerSec"),
        _topic("failedproducerequests", "Of these, the failed ones.", "FailedProduceRequestsPerSec"),
        _topic("totalfetchrequests", "Reads for fetch requests, each counted once per partition.", "TotalFetchRequestsPerSec"),
        _topic("failedfetchrequests", "Partitions that a fetch was answered an error for.", "FailedFetchRequestsPerSec"),
    ),
)


def _request(name: str, kind: Kind, help: str, bean: str, *, labels: tuple[str, ...] = ("request",), unit: float = 1.0) -> Row:
    mbean = f"kafka.network:type=RequestMetrics,name={bean},request=*"
    return Row(f"kafka_network_requestmetrics_{name}", kind, help, BOTH, labels, mbean, unit)


REQUESTS = Section(
    "Requests",
    "`request` is the API's name; a Fetch counts as `FetchConsumer` or `FetchFollower`, and in `Fetch` for both. An API "
    "that was never asked has no series.",
    (
        _request("requests_total", "counter", "Requests that came in.", "RequestsPerSec"),
        _request(
            "errors_total",
            "counter",
            "Error codes in answers (each failed partition or topic counts); NONE: answers without any.",
            "ErrorsPerSec",
            labels=("request", "error"),
        ),
        _request(
            "totaltimems",
            "histogram",
            "From a request's last byte here to its answer, the time that it was parked included.",
            "TotalTimeMs",
            unit=1000,
        ),
        _request(
            "requestqueuetimems",
            "histogram",
            "From a request's last byte here to its handler: the requests that came with it, and back pressure.",
            "RequestQueueTimeMs",
            unit=1000,
        ),
        _request("localtimems", "summary", "Time that the handler had the event loop for itself.", "LocalTimeMs", unit=1000),
        _request("requestbytes", "summary", "Size of requests, in bytes.", "RequestBytes"),
        Row(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "gauge",
            "Requests that are parked: produces until they are replicated, fetches until there is something to read.",
            BROKER,
            ("delayedOperation",),
            "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=*",
        ),
        Row(
            "kafka_server_delayedproducemetrics_expires_total",
            "counter",
            "Produces whose time was over before they were replicated.",
            BROKER,
            (),
            "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec",
        ),
        Row(
            "kafka_server_delayedfetchmetrics_expires_total",
            "counter",
            "Parked fetches whose time was over before there was enough to read (an idle cluster's daily bread).",
            BROKER,
            ("fetcherType",),
            "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=*",
        ),
        Row(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "gauge",
            "Fetch sessions.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
        ),
        Row(
            "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
            "gauge",
            "Partitions that fetch sessions remember.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached",
        ),
        Row(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "counter",
            "Fetch sessions that had to make room for others.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
        ),
    ),
)


def _connection(name: str, kind: Kind, help: str, attribute: str) -> Row:
    mbean = f"kafka.server:type=socket-server-metrics,listener=*,networkProcessor=* {attribute}"
    return Row(f"kafka_server_socket_server_metrics_{name}", kind, help, BOTH, ("listener",), mbean)


CONNECTIONS = Section(
    "Connections",
    "The exporter's example rules put Kafka's labels of these into their names; here they are labels, as with Strimzi's rules.",
    (
        _connection("connection_count", "gauge", "Open connections.", "connection-count"),
        _connection("connection_creation_total", "counter", "Connections that were accepted.", "connection-creation-total"),
        _connection("connection_close_total", "counter", "Connections that ended.", "connection-close-total"),
        _connection("incoming_byte_total", "counter", "Bytes read.", "incoming-byte-total"),
        _connection("outgoing_byte_total", "counter", "Bytes written.", "outgoing-byte-total"),
        Row("strandline_requests_in_flight", "gauge", "Requests that are not answered yet.", BOTH, ("listener",)),
        Row(
            "strandline_bad_peers_total",
            "counter",
            "What peers did against the protocol, by what was done about it (closed, refused).",
            BOTH,
            ("listener", "action"),
        ),
    ),
)


DISK = Section(
    "Disk",
    "",
    (
        Row(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "gauge",
            "Log directories that failed.",
            BROKER,
            (),
            "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
        ),
        Row(
            "kafka_log_logmanager_logdirectoryoffline",
            "gauge",
            "1 when the log directory failed.",
            BROKER,
            ("logDirectory",),
            "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*",
        ),
        Row("strandline_log_dir_total_bytes", "gauge", "Size of the disk under the log directory.", BOTH, ("logDirectory",)),
        Row("strandline_log_dir_free_bytes", "gauge", "What is free of it for this process.", BOTH, ("logDirectory",)),
        Row("strandline_log_dir_used_bytes", "gauge", "What the logs in the directory use of it.", BOTH, ("logDirectory",)),
        Row(
            "kafka_log_logflushstats_logflushrateandtimems",
            "histogram",
            "Time of one flush (fsync) of a log.",
            BOTH,
            (),
            "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
            1000,
        ),
        Row("strandline_corrupt_ranges_total", "counter", "Damaged places that were found in logs.", BOTH),
    ),
)


def _controller(name: str, kind: Kind, help: str, bean: str, *, labels: tuple[str, ...] = ()) -> Row:
    mbean = f"kafka.controller:type=KafkaController,name={bean}" + "".join(f",{label}=*" for label in labels)
    return Row(f"kafka_controller_kafkacontroller_{name}", kind, help, CONTROLLER, labels, mbean)


CONTROL = Section(
    "The controllers",
    "What the cluster is like, as each controller's copy of the metadata has it; the active one's is the newest. Sums over "
    "controllers make sense for `activecontrollercount` alone, take the maximum of the others.",
    (
        _controller("activecontrollercount", "gauge", "1 on the active controller, 0 on the others.", "ActiveControllerCount"),
        _controller(
            "newactivecontrollerscount", "gauge", "How often another controller became active.", "NewActiveControllersCount"
        ),
        _controller("activebrokercount", "gauge", "Registered brokers that are not fenced.", "ActiveBrokerCount"),
        _controller("fencedbrokercount", "gauge", "Registered brokers that are fenced.", "FencedBrokerCount"),
        _controller("controlledshutdownbrokercount", "gauge", "Brokers in controlled shutdown.", "ControlledShutdownBrokerCount"),
        _controller("globaltopiccount", "gauge", "Topics.", "GlobalTopicCount"),
        _controller("globalpartitioncount", "gauge", "Partitions.", "GlobalPartitionCount"),
        _controller("offlinepartitionscount", "gauge", "Partitions without a leader.", "OfflinePartitionsCount"),
        _controller(
            "preferredreplicaimbalancecount",
            "gauge",
            "Partitions that another than the preferred replica leads.",
            "PreferredReplicaImbalanceCount",
        ),
        _controller(
            "lastappliedrecordoffset", "gauge", "The last offset of the metadata log in the image.", "LastAppliedRecordOffset"
        ),
        _controller(
            "lastcommittedrecordoffset", "gauge", "The last offset that is known to be committed.", "LastCommittedRecordOffset"
        ),
        _controller(
            "timedoutbrokerheartbeatcount",
            "gauge",
            "Broker sessions that this controller, being active, saw time out.",
            "TimedOutBrokerHeartbeatCount",
        ),
        _controller(
            "timesincelastheartbeatreceivedms",
            "gauge",
            "Since a live broker's last heartbeat; the active controller alone knows.",
            "TimeSinceLastHeartbeatReceivedMs",
            labels=("broker",),
        ),
        _controller(
            "brokerregistrationstate",
            "gauge",
            "10: fenced, 20: in controlled shutdown, 30: active.",
            "BrokerRegistrationState",
            labels=("broker",),
        ),
        Row(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "counter",
            "Leaders elected from outside the ISR: acknowledged records may be lost.",
            CONTROLLER,
            (),
            "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
        ),
        Row("strandline_elections_total", "counter", "Partitions that this controller gave another leader.", CONTROLLER),
        Row("strandline_fenced_brokers_total", "counter", "Brokers that this controller fenced for their silence.", CONTROLLER),
        Row(
            "strandline_failover_seconds",
            "histogram",
            "From the moment at which the active controller saw a broker's connection break (or its session end) to the "
            "commit of new leaders for all that it led.",
            CONTROLLER,
        ),
    ),
)


def _raft(name: str, help: str, attribute: str, roles: tuple[str, ...] = BOTH, labels: tuple[str, ...] = ()) -> Row:
    mbean = f"kafka.server:type=raft-metrics {attribute}"
    return Row(f"kafka_server_raft_metrics_{name}", "gauge", help, roles, labels, mbean)


QUORUM = Section(
    "The metadata quorum",
    "Brokers follow the quorum's log as observers.",
    (
        _raft("current_epoch", "The quorum's epoch.", "current-epoch"),
        _raft("current_leader", "The leader's node id; -1 when none is known.", "current-leader"),
        _raft("current_vote", "Whom this voter voted for in the epoch; -1 for nobody.", "current-vote", CONTROLLER),
        _raft("current_state", "1 for the state that the node is in.", "current-state", BOTH, ("state",)),
        _raft("high_watermark", "Everything below is committed.", "high-watermark"),
        _raft("log_end_offset", "Where the node's copy of the log ends.", "log-end-offset", CONTROLLER),
        _raft("log_end_epoch", "The epoch of the last entry of the node's copy.", "log-end-epoch", CONTROLLER),
        _raft("number_of_voters", "Voters.", "number-of-voters"),
        _raft(
            "number_of_observers", "Observers that the leader knows; the leader alone does.", "number-of-observers", CONTROLLER
        ),
        Row("strandline_raft_commit_lag", "gauge", "Entries of the node's copy that are not known to be committed.", CONTROLLER),
        Row(
            "strandline_raft_replica_lag",
            "gauge",
            "Entries that another voter or observer lacks, as the leader knows it; the leader alone does.",
            CONTROLLER,
            ("replica",),
        ),
        Row("strandline_raft_leader_changes_total", "counter", "How often this node heard of a new leader.", BOTH),
        Row("strandline_raft_candidacies_total", "counter", "Elections that this node stood for.", CONTROLLER),
        Row("strandline_raft_commit_seconds", "histogram", "From an append on the leader to its commit.", CONTROLLER),
        Row("strandline_raft_leaderless_seconds", "histogram", "How long this voter knew no leader, each time.", CONTROLLER),
    ),
)


METADATA = Section(
    "Metadata on a broker",
    "",
    (
        Row(
            "kafka_server_broker_metadata_metrics_last_applied_record_offset",
            "gauge",
            "The last offset of the metadata log that the broker acted on.",
            BROKER,
            (),
            "kafka.server:type=broker-metadata-metrics last-applied-record-offset",
        ),
        Row(
            "kafka_server_broker_metadata_metrics_metadata_apply_error_count",
            "gauge",
            "Changes that the broker failed to act on (each is a bug of ours).",
            BROKER,
            (),
            "kafka.server:type=broker-metadata-metrics metadata-apply-error-count",
        ),
        Row(
            "strandline_metadata_lag", "gauge", "Committed entries of the metadata log that the broker has not acted on.", BROKER
        ),
        Row("strandline_metadata_apply_seconds", "histogram", "From metadata that arrived to all roles taken.", BROKER),
        Row(
            "strandline_became_leader_total",
            "counter",
            "Leader epochs that began here.",
            BROKER,
        ),
        Row("strandline_became_follower_total", "counter", "Leader epochs that this broker began to follow.", BROKER),
        Row(
            "strandline_leader_takeover_seconds",
            "histogram",
            "From metadata that arrived to the last of the leaders that it made here: the broker's part of a fail-over.",
            BROKER,
        ),
        Row(
            "kafka_server_kafkaserver_brokerstate",
            "gauge",
            "0: not running, 1: starting, 2: recovering its logs, 3: running, 6: leaving in order, 7: stopping.",
            BROKER,
            (),
            "kafka.server:type=KafkaServer,name=BrokerState",
        ),
        Row("strandline_broker_fenced", "gauge", "1 while the broker is not registered and unfenced.", BROKER),
    ),
)


NODE = Section(
    "The node",
    "The `process_*` metrics are prometheus_client's own; they are there on Linux.",
    (
        Row("strandline_build_info", "gauge", "1; what runs here.", BOTH, ("version", "python", "role", "node_id")),
        Row("strandline_uptime_seconds", "gauge", "Since the node was made.", BOTH),
        Row(
            "strandline_event_loop_lag_seconds",
            "histogram",
            "How late the timers of the node's event loop are: everything that a node does waits for it.",
            BOTH,
        ),
        Row(
            "strandline_loss_possible_total",
            "counter",
            "What may have cost acknowledged records: unclean_election, corrupt_range, offline_log_dir, truncated_below_hw.",
            BOTH,
            ("cause",),
        ),
        Row("strandline_scrape_errors_total", "counter", "Parts of a scrape that failed and are missing (a bug of ours).", BOTH),
        Row("process_cpu_seconds_total", "counter", "CPU time.", BOTH),
        Row("process_resident_memory_bytes", "gauge", "Memory in RAM.", BOTH),
        Row("process_virtual_memory_bytes", "gauge", "Address space.", BOTH),
        Row("process_start_time_seconds", "gauge", "Start of the process, since 1970.", BOTH),
        Row("process_open_fds", "gauge", "Open file descriptors.", BOTH),
        Row("process_max_fds", "gauge", "How many it may open.", BOTH),
    ),
)

SECTIONS = (REPLICATION, PARTITIONS, TRAFFIC, REQUESTS, CONNECTIONS, DISK, CONTROL, QUORUM, METADATA, NODE)
ROWS: dict[str, Row] = {row.name: row for section in SECTIONS for row in section.rows}
PROCESS_PREFIX = "process_"
