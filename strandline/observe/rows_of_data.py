"""The catalogue: metrics of a broker's replication, partitions, traffic and metadata."""

from __future__ import annotations

from strandline.observe.row import BOTH, BROKER, Kind, Row, Section


def _replica(name: str, kind: Kind, help: str, bean: str) -> Row:
    return Row(f"kafka_server_replicamanager_{name}", kind, help, BROKER, (), f"kafka.server:type=ReplicaManager,name={bean}")


REPLICATION = Section(
    "Replication",
    "A broker counts the partitions that it leads; sum over the brokers for the cluster.",
    (
        _replica(
            "underreplicatedpartitions",
            "gauge",
            "Partitions led here with fewer in-sync replicas than replicas; replicas that a reassignment adds do not count.",
            "UnderReplicatedPartitions",
        ),
        _replica(
            "underminisrpartitioncount",
            "gauge",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all is rejected.",
            "UnderMinIsrPartitionCount",
        ),
        _replica(
            "atminisrpartitioncount",
            "gauge",
            "Partitions led here with exactly min.insync.replicas in sync: if one more leaves, acks=all is rejected.",
            "AtMinIsrPartitionCount",
        ),
        _replica("reassigningpartitions", "gauge", "Partitions led here that are reassigned.", "ReassigningPartitions"),
        _replica("leadercount", "gauge", "Partitions led here.", "LeaderCount"),
        _replica("partitioncount", "gauge", "Replicas here, led or followed.", "PartitionCount"),
        _replica(
            "offlinereplicacount",
            "gauge",
            "Replicas here that are offline because their log directory failed.",
            "OfflineReplicaCount",
        ),
        _replica(
            "isrshrinks_total",
            "counter",
            "Committed changes that removed a member from the ISR of a partition led here, whatever the cause.",
            "IsrShrinksPerSec",
        ),
        _replica(
            "isrexpands_total",
            "counter",
            "Committed changes that added a member to the ISR of a partition led here.",
            "IsrExpandsPerSec",
        ),
        _replica("failedisrupdates_total", "counter", "ISR changes that the controller rejected.", "FailedIsrUpdatesPerSec"),
        _replica("produceridcount", "gauge", "Idempotent producers that the logs here remember.", "ProducerIdCount"),
        _replica(
            "partitionswithlatetransactionscount",
            "gauge",
            "Partitions led here with a transaction that has been open 5 minutes longer than transaction.max.timeout.ms allows: "
            "no coordinator will end it (`strandline transaction find-hanging`).",
            "PartitionsWithLateTransactionsCount",
        ),
        Row(
            "strandline_throttled_partitions",
            "gauge",
            "Partitions with a replica that the throttle of a reassignment slows down; out: led here, in: the replica is here.",
            BROKER,
            ("direction",),
        ),
        Row(
            "strandline_replication_throttle_rate_bytes",
            "gauge",
            "The largest rate of a throttle of a reassignment on partitions here, in bytes per second; 0 without one.",
            BROKER,
            ("direction",),
        ),
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
            "Replicas here that have a leader but no fetcher: fenced, or stopped after an error.",
            BROKER,
            ("clientId",),
            "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica",
        ),
        Row(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "gauge",
            "Lag of one replica here behind its leader's high watermark, in records, as of the leader's last response.",
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
        Row("strandline_truncations_total", "counter", "Truncations of a log to its leader's history.", BOTH),
        Row(
            "strandline_truncated_records_total",
            "counter",
            "Offsets removed by truncations of a log to its leader's history.",
            BOTH,
        ),
    ),
)


def _partition(name: str, help: str, bean: str) -> Row:
    mbean = f"kafka.cluster:type=Partition,name={bean},topic=*,partition=*"
    return Row(f"kafka_cluster_partition_{name}", "gauge", help, BROKER, ("topic", "partition"), mbean)


def _log(name: str, help: str, bean: str) -> Row:
    mbean = f"kafka.log:type=Log,name={bean},topic=*,partition=*"
    return Row(f"kafka_log_log_{name}", "gauge", help, BOTH, ("topic", "partition"), mbean)


def _cleaner(bean: str, type_: str, help: str, labels: tuple[str, ...] = (), unit: float = 1) -> Row:
    name = f"kafka_log_{type_.lower()}_{bean.lower().replace('-', '_')}"
    return Row(name, "gauge", help, BROKER, labels, f"kafka.log:type={type_},name={bean}" + (",logDirectory=*" if labels else ""))


_DIRECTORY = ("logDirectory",)

COMPACTION = Section(
    "Compaction",
    'The log cleaner of a broker. "The last rounds" are the last round of each of its threads.',
    (
        _cleaner("max-dirty-percent", "LogCleanerManager", "How much of the dirtiest log is dirty, in percent of its bytes."),
        _cleaner(
            "time-since-last-run-ms", "LogCleanerManager", "Time since the log cleaner last looked for a log to compact, in ms."
        ),
        _cleaner(
            "uncleanable-partitions-count",
            "LogCleanerManager",
            "Replicas here that could not be compacted; /health/ready names them.",
            _DIRECTORY,
        ),
        _cleaner(
            "uncleanable-bytes",
            "LogCleanerManager",
            "Bytes of the closed segments of the replicas here that could not be compacted.",
            _DIRECTORY,
        ),
        _cleaner("max-clean-time-secs", "LogCleaner", "Time of the longest of the last rounds, in seconds."),
        _cleaner(
            "max-buffer-utilization-percent",
            "LogCleaner",
            "How full the cleaner's map of keys was in the last rounds, in percent, at most.",
        ),
        _cleaner("cleaner-recopy-percent", "LogCleaner", "Bytes written in the last rounds, in percent of the bytes read."),
        _cleaner(
            "max-compaction-delay-secs", "LogCleaner", "By how much a log exceeds max.compaction.lag.ms, in seconds, at most."
        ),
        _cleaner("DeadThreadCount", "LogCleaner", "Threads of the log cleaner that a bug has ended."),
        Row("strandline_log_cleaner_rounds_total", "counter", "Rounds that the log cleaner has completed.", BROKER),
        Row(
            "strandline_log_cleaner_removed_bytes_total",
            "counter",
            "Bytes by which completed rounds of the log cleaner have made logs smaller.",
            BROKER,
        ),
    ),
)


PARTITIONS = Section(
    "Partitions",
    "Only a partition's leader prints `kafka_cluster_partition_*` (in Kafka the followers print 0); every replica prints "
    "`kafka_log_log_*`. A controller has one log, `__cluster_metadata`.",
    (
        _partition("underreplicated", "1 while a replica is out of sync.", "UnderReplicated"),
        _partition("underminisr", "1 while fewer than min.insync.replicas are in sync.", "UnderMinIsr"),
        _partition("atminisr", "1 while exactly min.insync.replicas are in sync.", "AtMinIsr"),
        _partition("insyncreplicascount", "In-sync replicas.", "InSyncReplicasCount"),
        _partition("replicascount", "Replicas; those that a reassignment is adding do not count yet.", "ReplicasCount"),
        _partition(
            "laststableoffsetlag",
            "Offsets below the high watermark that read_committed consumers cannot read yet: a transaction before them is open.",
            "LastStableOffsetLag",
        ),
        _log("logendoffset", "The offset of the next record.", "LogEndOffset"),
        _log("logstartoffset", "The first readable offset.", "LogStartOffset"),
        _log("size", "Bytes of the log's segments.", "Size"),
        Row(
            "strandline_logs_kept_by_future_timestamp",
            "gauge",
            "Replicas here whose oldest segment is kept by a timestamp in the future, so that retention.ms deletes nothing; "
            "/health/ready names them.",
            BROKER,
        ),
    ),
)


def _topic(name: str, help: str, bean: str, *, labels: tuple[str, ...] = ("topic",)) -> Row:
    mbean = f"kafka.server:type=BrokerTopicMetrics,name={bean}{'[,topic=*]' if labels else ''}"
    return Row(f"kafka_server_brokertopicmetrics_{name}_total", "counter", help, BROKER, labels, mbean)


TRAFFIC = Section(
    "Traffic",
    "One series per topic and, as in Kafka, one without the label for all topics, deleted ones included: select it with "
    '`{topic=""}`.',
    (
        _topic("bytesin", "Bytes of batches that producers appended here.", "BytesInPerSec"),
        _topic("messagesin", "Records that producers appended here.", "MessagesInPerSec"),
        _topic("bytesout", "Bytes of batches sent to consumers.", "BytesOutPerSec"),
        _topic("replicationbytesin", "Bytes of batches fetched from leaders.", "ReplicationBytesInPerSec"),
        _topic("replicationbytesout", "Bytes of batches sent to followers.", "ReplicationBytesOutPerSec"),
        _topic("totalproducerequests", "Produce requests, each counted once per partition.", "TotalProduceRequestsPerSec"),
        _topic(
            "failedproducerequests",
            "Produce requests that failed, each counted once per partition.",
            "FailedProduceRequestsPerSec",
        ),
        _topic("totalfetchrequests", "Reads for fetch requests, each counted once per partition.", "TotalFetchRequestsPerSec"),
        _topic("failedfetchrequests", "Partitions for which a fetch response had an error.", "FailedFetchRequestsPerSec"),
        _topic(
            "reassignmentbytesin",
            "Bytes of batches fetched for replicas that reassignments add here; a part of the replication bytes.",
            "ReassignmentBytesInPerSec",
            labels=(),
        ),
        _topic(
            "reassignmentbytesout",
            "Bytes of batches sent to replicas that reassignments add.",
            "ReassignmentBytesOutPerSec",
            labels=(),
        ),
        Row(
            "strandline_preferred_replica_nominations_total",
            "counter",
            "Fetches that this broker, as the leader, answered by sending the consumer to a replica in its rack (KIP-392), each "
            "counted once per partition.",
            BROKER,
        ),
        Row(
            "strandline_bytesout_as_follower_total",
            "counter",
            "Bytes of batches sent to consumers from partitions that this broker follows (KIP-392).",
            BROKER,
        ),
    ),
)


METADATA = Section(
    "Metadata on a broker",
    "",
    (
        Row(
            "kafka_server_broker_metadata_metrics_last_applied_record_offset",
            "gauge",
            "The last offset of the metadata log that the broker has applied.",
            BROKER,
            (),
            "kafka.server:type=broker-metadata-metrics last-applied-record-offset",
        ),
        Row(
            "kafka_server_broker_metadata_metrics_metadata_apply_error_count",
            "gauge",
            "Metadata changes that the broker failed to apply (each is a bug in Strandline).",
            BROKER,
            (),
            "kafka.server:type=broker-metadata-metrics metadata-apply-error-count",
        ),
        Row("strandline_metadata_lag", "gauge", "Committed records of the metadata log that the broker has not applied.", BROKER),
        Row(
            "strandline_metadata_apply_seconds",
            "histogram",
            "Time from the arrival of metadata until every partition has its new role.",
            BROKER,
        ),
        Row(
            "strandline_became_leader_total",
            "counter",
            "Leader epochs in which this broker became the leader.",
            BROKER,
        ),
        Row("strandline_became_follower_total", "counter", "Leader epochs in which this broker became a follower.", BROKER),
        Row(
            "strandline_log_restarts_total",
            "counter",
            "Logs that were dropped and copied again from the leader's log start: out_of_range (the leader had deleted the "
            "records after the log end), removed_tombstones (the leader had removed tombstones that the replica lacked), "
            "removed_values (the replica's cleaner had removed values because of newer records, which the leader does not have).",
            BROKER,
            ("cause",),
        ),
        Row(
            "strandline_leader_takeover_seconds",
            "histogram",
            "Time from the arrival of metadata until the last new leader here is ready: the broker's part of a fail-over.",
            BROKER,
        ),
        Row(
            "kafka_server_kafkaserver_brokerstate",
            "gauge",
            "0: not running, 1: starting, 2: recovering its logs, 3: running, 6: in controlled shutdown, 7: shutting down.",
            BROKER,
            (),
            "kafka.server:type=KafkaServer,name=BrokerState",
        ),
        Row("strandline_broker_fenced", "gauge", "0 while the broker is registered and unfenced, otherwise 1.", BROKER),
    ),
)
