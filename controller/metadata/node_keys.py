"""The table of the keys of brokers and controllers: type, default, unit, meaning, range, and where a key can be changed while the
nodes run (`Update`). The keys of topics are in `config_keys.py`.

The controllers check every change of a key, so both tables are here and not in the two rooms that act on them.
"""

from __future__ import annotations

from strandline.controller.metadata.config_keys import (
    COARSE_BROKER_CONFIGS,
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    TOPIC_DEFAULT_CONFIGS,
    ConfigKey,
    Update,
    by_name,
    without_blanks,
)
from strandline.controller.metadata.group_keys import GROUP_CONFIG_KEYS, GROUP_KEYS
from strandline.controller.metadata.node_config import http_listener_key
from strandline.controller.metadata.quota_keys import (
    BROKER_QUOTA_KEYS,
    CONNECTION_KEYS,
    CONTROLLER_QUOTA_KEYS,
    LISTENER_LIMIT_KEYS,
    QUEUED_BYTES_KEY,
)
from strandline.controller.metadata.security_keys import CONTROLLER_LISTENER_NAMES, SECURITY_KEYS
from strandline.controller.metadata.transaction_keys import TRANSACTION_KEYS

DRAINING = "broker.draining"
KAFKA = "KAFKA"
"""The name of the listener for Kafka's clients, unless `kafka.listener.names` says otherwise."""

_IDENTITY = (
    ConfigKey("node.id", "int", REQUIRED, "", "the broker's id, unique in the cluster", min=0),
    ConfigKey(
        "cluster.id",
        "string",
        None,
        "",
        "the cluster that this broker belongs to permanently; without it, the broker asks the controllers at its first start",
        check=without_blanks,
    ),
    ConfigKey(
        "listeners",
        "list",
        ["PLAINTEXT://127.0.0.1:9092"],
        "",
        "where the broker listens: NAME://host:port, ...; port 0: any free port",
    ),
    ConfigKey("advertised.listeners", "list", None, "", "the addresses that clients and other nodes use; default: the listeners"),
    ConfigKey(
        "inter.broker.listener.name",
        "string",
        None,
        "",
        "the listener for traffic between brokers; default: the first one that is not for Kafka's clients",
    ),
    ConfigKey(
        "kafka.listener.names",
        "list",
        [KAFKA],
        "",
        "the listeners on which the broker speaks Kafka's own protocol, for Kafka's clients; all others speak Strandline's",
    ),
    ConfigKey(
        "auto.create.topics.enable",
        "boolean",
        True,
        "",
        "whether a topic is created when a Kafka client asks for its metadata; Strandline's clients create topics themselves",
    ),
    ConfigKey("log.dirs", "list", REQUIRED, "", "the data directories, each on a disk of its own; one is enough"),
    ConfigKey(
        "cordoned.log.dirs",
        "list",
        [],
        "",
        "the directories of log.dirs that get no new replicas; * for all: then no replica is placed on the broker",
        update=Update.BROKER,
    ),
    ConfigKey("controller.quorum.voters", "list", REQUIRED, "", "the controllers: id@host:port, ..."),
    ConfigKey("broker.rack", "string", None, "", "the rack of the broker; replicas are spread over racks"),
    http_listener_key("127.0.0.1:8092"),
    ConfigKey(
        DRAINING,
        "boolean",
        False,
        "",
        "whether the broker gets no new replicas; `strandline broker drain` sets it, and moves the replicas away",
        update=Update.BROKER,
    ),
)

_CONTROLLER_LINK = (
    ConfigKey("broker.heartbeat.interval.ms", "int", 500, "ms", "the interval between heartbeats to the controller", min=1),
    ConfigKey(
        "broker.session.timeout.ms", "int", 3000, "ms", "without a heartbeat for so long, the controller fences the broker", min=1
    ),
    ConfigKey(
        "initial.broker.registration.timeout.ms",
        "int",
        60_000,
        "ms",
        "a broker that cannot register for so long stops",
        min=1,
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        "boolean",
        True,
        "",
        "whether the broker asks the controller to move its leaders before it stops",
    ),
    ConfigKey(
        "controlled.shutdown.timeout.ms",
        "int",
        10_000,
        "ms",
        "how long stopping waits for the controller to move the leaders",
        min=0,
    ),
    ConfigKey(
        "broker.unclean.shutdown",
        "string",
        "lossy",
        "",
        "after which unclean stops the replicas of this broker may not lead until they have caught up: lossy, if records may "
        "have been lost (the machine started again, or the logs show it); any, also after a kill, as in Apache Kafka",
        choices=("lossy", "any"),
    ),
)

_REPLICATION = (
    ConfigKey(
        "num.replica.fetchers",
        "int",
        1,
        "",
        "connections to each source leader, over which its partitions are spread",
        min=1,
        max=64,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        "long",
        10_000,
        "ms",
        "a follower that has not been caught up for so long leaves the ISR",
        min=1,
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        "int",
        1 << 20,
        "bytes",
        "the most bytes of one partition in a follower's fetch; at least one batch is sent",
        min=0,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        "int",
        10 << 20,
        "bytes",
        "the most bytes in the response to a follower",
        min=0,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "replica.fetch.min.bytes",
        "int",
        1,
        "bytes",
        "the leader answers a follower's fetch when it has so many bytes",
        min=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms", "int", 500, "ms", "how long a follower's fetch waits at the leader for records", min=0
    ),
    ConfigKey(
        "replica.fetch.backoff.ms",
        "int",
        1000,
        "ms",
        "the longest delay of a partition whose fetch fails",
        min=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "long",
        LONG_MAX,
        "bytes",
        "the most bytes per second that are copied when replicas move between the log directories of this broker",
        min=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "replica.selector.class",
        "string",
        None,
        "",
        "which replica a consumer reads from. rack-aware: a consumer that names its rack reads from a replica in that rack; "
        "without a value, consumers read from leaders",
        choices=("rack-aware", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        "long",
        5000,
        "ms",
        "how often changed high watermarks are written",
        min=1,
    ),
)

_LOG = (
    ConfigKey(
        "log.flush.scheduler.interval.ms",
        "long",
        LONG_MAX,
        "ms",
        "how often the broker checks whether a log is due for a flush",
        min=1,
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "ms",
        "how often recovery points and log start offsets are written",
        min=1,
    ),
    ConfigKey(
        "log.retention.check.interval.ms", "long", 300_000, "ms", "how often the broker looks for old segments to delete", min=1
    ),
    ConfigKey(
        "log.stray.retention.ms",
        "long",
        7 * 86_400_000,
        "ms",
        "how long a log is kept that the cluster deleted or moved while this broker was away; -1: for ever",
        min=-1,
    ),
    ConfigKey("num.partitions", "int", 1, "", "partitions of a topic that is created without a number", min=1),
    ConfigKey(
        "default.replication.factor", "int", 1, "", "replicas of a topic that is created without a number", min=1, max=32767
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        "int",
        86_400_000,
        "ms",
        "how long the state of a silent producer is kept",
        min=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
)

_CLEANER = (
    ConfigKey(
        "log.cleaner.enable", "boolean", True, "", "whether the broker compacts the topics whose cleanup.policy has 'compact'"
    ),
    ConfigKey(
        "log.cleaner.threads",
        "int",
        1,
        "",
        "logs that are compacted at the same time",
        min=1,
        max=64,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        "long",
        128 << 20,
        "bytes",
        "memory for the keys of the logs that are being compacted, 24 bytes per key, of all threads together",
        min=1 << 10,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.load.factor",
        "double",
        0.9,
        "",
        "the part of the memory for keys that may be filled: with more, a round reaches further and is slower",
        min=0.01,
        max=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.size",
        "int",
        512 << 10,
        "bytes",
        "buffers for reading and writing segments, of all threads together",
        min=1 << 10,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        "double",
        1.7976931348623157e308,
        "bytes",
        "the most bytes that compaction reads and writes per second",
        min=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        "long",
        15_000,
        "ms",
        "how long compaction waits when there is no log to compact",
        min=0,
        update=Update.CLUSTER_OR_BROKER,
    ),
)

_LIMITS = (
    *LISTENER_LIMIT_KEYS,
    ConfigKey("connections.max.idle.ms", "long", 600_000, "ms", "an idle connection is closed after this time", min=1),
    ConfigKey("socket.request.max.bytes", "int", 100 << 20, "bytes", "the largest request that is accepted", min=1),
    ConfigKey("fetch.max.bytes", "int", 55 << 20, "bytes", "the largest fetch response to a consumer", min=1024),
    ConfigKey("max.incremental.fetch.session.cache.slots", "int", 1000, "", "the most fetch sessions that are kept", min=0),
    *CONNECTION_KEYS,
    QUEUED_BYTES_KEY,
)

BROKER_KEYS: tuple[ConfigKey, ...] = (
    *_IDENTITY,
    *_CONTROLLER_LINK,
    *_REPLICATION,
    *_LOG,
    *_CLEANER,
    *_LIMITS,
    *BROKER_QUOTA_KEYS,
    *GROUP_KEYS,
    *TRANSACTION_KEYS,
    CONTROLLER_LISTENER_NAMES,
    *SECURITY_KEYS,
    *TOPIC_DEFAULT_CONFIGS.values(),
    *COARSE_BROKER_CONFIGS.values(),
)

CONTROLLER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("node.id", "int", REQUIRED, "", "the controller's id; one of controller.quorum.voters", min=0),
    ConfigKey(
        "cluster.id",
        "string",
        None,
        "",
        "the cluster that this controller belongs to permanently; without it, the controllers agree on one at the first start",
        check=without_blanks,
    ),
    ConfigKey(
        "cluster.id.agreement.timeout.ms",
        "int",
        60_000,
        "ms",
        "a controller without a cluster id stops if the host name of another controller is still unknown after this time",
        min=1,
    ),
    ConfigKey(
        "listeners",
        "list",
        None,
        "",
        "the addresses to listen on: CONTROLLER://host:port, ...; one of them has this controller's port in "
        "controller.quorum.voters; by default only that address",
    ),
    ConfigKey("log.dirs", "list", REQUIRED, "", "the data directory (one): the metadata log and its snapshots"),
    ConfigKey("controller.quorum.voters", "list", REQUIRED, "", "all controllers: id@host:port, ..."),
    ConfigKey(
        "controller.quorum.election.timeout.ms",
        "int",
        500,
        "ms",
        "how long a candidate waits for votes before it tries again",
        min=1,
    ),
    ConfigKey(
        "controller.quorum.fetch.timeout.ms",
        "int",
        1000,
        "ms",
        "a controller that has not fetched from the active one for this time asks for an election",
        min=2,
    ),
    ConfigKey(
        "controller.quorum.election.backoff.max.ms",
        "int",
        100,
        "ms",
        "the largest random delay before an election starts",
        min=1,
    ),
    ConfigKey(
        "controller.quorum.request.timeout.ms",
        "int",
        1000,
        "ms",
        "how long a controller waits for a response of another one",
        min=1,
    ),
    ConfigKey("controller.quorum.retry.backoff.ms", "int", 20, "ms", "the pause before a failed request is sent again", min=1),
    ConfigKey(
        "metadata.log.segment.bytes", "int", 16 << 20, "bytes", "a new segment of the metadata log starts at this size", min=1024
    ),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        "long",
        20 << 20,
        "bytes",
        "a snapshot is written after this many bytes of the metadata log",
        min=1,
    ),
    ConfigKey("broker.session.timeout.ms", "int", 3000, "ms", "a broker is fenced after this time without a heartbeat", min=1),
    ConfigKey(
        "broker.connection.loss.grace.ms",
        "int",
        100,
        "ms",
        "a broker that closed its connection and cannot be reached is fenced after this time",
        min=0,
    ),
    ConfigKey(
        "producer.name.expiration.ms",
        "long",
        30 * 24 * 3600 * 1000,
        "ms",
        "a producer name that was not used for this time is removed, and with it what is known of its earlier attempts",
        min=1,
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        "boolean",
        True,
        "",
        "whether the controller moves leadership back to the preferred replicas after these have returned",
        update=Update.CLUSTER,
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        "long",
        10,
        "s",
        "leaders return to a broker when it has been back in the ISRs of all its partitions for this time",
        min=1,
        update=Update.CLUSTER,
    ),
    ConfigKey(
        "leader.imbalance.per.broker.percentage",
        "int",
        0,
        "",
        "leaders return to a broker only if it does not lead more than this share of the partitions that prefer it, in per cent",
        min=0,
        max=100,
        update=Update.CLUSTER,
    ),
    ConfigKey(
        "unclean.leader.election.interval.ms",
        "long",
        300_000,
        "ms",
        "how often the controller looks for partitions to recover; it also looks when brokers or configurations change",
        min=1,
        update=Update.CLUSTER,
    ),
    ConfigKey(
        "unclean.recovery.timeout.ms",
        "long",
        5000,
        "ms",
        "how long the strategy aggressive waits for more replicas of a partition without a leader",
        min=0,
        update=Update.CLUSTER,
    ),
    ConfigKey("num.partitions", "int", 1, "", "partitions of a topic that is created without a number of partitions", min=1),
    ConfigKey(
        "default.replication.factor",
        "int",
        1,
        "",
        "replicas of a topic that is created without a replication factor",
        min=1,
        max=32767,
    ),
    ConfigKey("max.connections", "int", INT_MAX, "", "the most connections of the listener", min=1),
    ConfigKey("connections.max.idle.ms", "long", 600_000, "ms", "an idle connection is closed after this time", min=1),
    ConfigKey("socket.request.max.bytes", "int", 100 << 20, "bytes", "the largest request that is accepted", min=1),
    *CONTROLLER_QUOTA_KEYS,
    *GROUP_CONFIG_KEYS,
    http_listener_key("127.0.0.1:8093"),
    *SECURITY_KEYS,
)

NODE_CONFIGS: dict[str, ConfigKey] = {**by_name(CONTROLLER_KEYS), **by_name(BROKER_KEYS)}
"""Every key of brokers and controllers."""

DYNAMIC_BROKER_CONFIGS: dict[str, ConfigKey] = {
    name: key for name, key in NODE_CONFIGS.items() if key.update is not Update.RESTART
}
"""The keys of a broker resource, which can be changed while the nodes run."""
