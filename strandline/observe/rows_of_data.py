"""The catalogue, of what a broker does with data: replication, partitions, traffic, metadata."""

from __future__ import annotations

from strandline.observe.row import BOTH, BROKER, Kind, Row, Section


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
