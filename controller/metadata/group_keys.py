"""The keys of the group coordinator, which runs on the brokers: a part of the table in `node_keys.py`.

A consumer group may have values of its own (`group_configs.py`). The controllers check these when they are set, so they have the
keys with the defaults and the bounds of these values, too (`GROUP_CONFIG_KEYS`).
"""

from __future__ import annotations

from strandline.controller.metadata.config_keys import INT_MAX, ConfigKey, Update

_OFFSETS = (
    ConfigKey(
        "offsets.topic.num.partitions",
        "int",
        50,
        "",
        "partitions of __consumer_offsets, when it is created; each group belongs to one of them",
        min=1,
    ),
    ConfigKey(
        "offsets.topic.replication.factor",
        "int",
        3,
        "",
        "replicas of __consumer_offsets; the topic is not created before there are so many brokers",
        min=1,
        max=32767,
    ),
    ConfigKey(
        "offsets.topic.segment.bytes",
        "int",
        100 << 20,
        "bytes",
        "the segment size of __consumer_offsets; a new coordinator reads the topic's partition, which closed segments keep short",
        min=1,
    ),
    ConfigKey(
        "offsets.commit.timeout.ms",
        "int",
        5000,
        "ms",
        "how long a change of a group waits for its replicas; then the answer is COORDINATOR_NOT_AVAILABLE",
        min=1,
    ),
    ConfigKey("offset.metadata.max.bytes", "int", 4096, "bytes", "the largest metadata text of a committed offset", min=0),
    ConfigKey(
        "offsets.retention.minutes",
        "int",
        10_080,
        "minutes",
        "how long committed offsets are kept after their group has lost its last member, or has stopped reading the topic",
        min=1,
    ),
    ConfigKey("offsets.retention.check.interval.ms", "long", 600_000, "ms", "how often expired offsets are looked for", min=1),
)

_CLASSIC = (
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        "int",
        3000,
        "ms",
        "how long the first rebalance of a classic group waits for more members",
        min=0,
    ),
    ConfigKey("group.min.session.timeout.ms", "int", 6000, "ms", "the shortest session of a classic member", min=1),
    ConfigKey("group.max.session.timeout.ms", "int", 1_800_000, "ms", "the longest session of a classic member", min=1),
    ConfigKey("group.max.size", "int", INT_MAX, "", "the most members of a classic group", min=1),
)

GROUP_CONFIG_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "group.consumer.session.timeout.ms",
        "int",
        9000,
        "ms",
        "a member of a consumer group that is silent for so long is removed (Apache Kafka: 45000)",
        min=1,
    ),
    ConfigKey(
        "group.consumer.min.session.timeout.ms",
        "int",
        6000,
        "ms",
        "the smallest consumer.session.timeout.ms of a group (Apache Kafka: 45000)",
        min=1,
    ),
    ConfigKey(
        "group.consumer.max.session.timeout.ms",
        "int",
        60_000,
        "ms",
        "the largest consumer.session.timeout.ms of a group",
        min=1,
    ),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        "int",
        3000,
        "ms",
        "the interval between the heartbeats of a member of a consumer group (Apache Kafka: 5000)",
        min=1,
    ),
    ConfigKey(
        "group.consumer.min.heartbeat.interval.ms",
        "int",
        1000,
        "ms",
        "the smallest consumer.heartbeat.interval.ms of a group (Apache Kafka: 5000)",
        min=1,
    ),
    ConfigKey(
        "group.consumer.max.heartbeat.interval.ms",
        "int",
        15_000,
        "ms",
        "the largest consumer.heartbeat.interval.ms of a group",
        min=1,
    ),
    ConfigKey(
        "group.consumer.assignment.interval.ms",
        "int",
        500,
        "ms",
        "a group's assignment is computed at most once in this time (Apache Kafka: 1000)",
        min=0,
        max=15_000,
    ),
    ConfigKey(
        "group.consumer.min.assignment.interval.ms",
        "int",
        0,
        "ms",
        "the smallest consumer.assignment.interval.ms of a group",
        min=0,
    ),
    ConfigKey(
        "group.consumer.max.assignment.interval.ms",
        "int",
        15_000,
        "ms",
        "the largest consumer.assignment.interval.ms of a group",
        min=0,
    ),
)
"""The defaults and the bounds of a group's own values. Brokers act on them, and controllers check new values against them."""

_CONSUMER = (
    *GROUP_CONFIG_KEYS,
    ConfigKey(
        "group.consumer.connection.loss.grace.ms",
        "int",
        1000,
        "ms",
        "a member that has closed its connection without leaving is removed after this time, if it promised to return at once",
        min=0,
    ),
    ConfigKey("group.consumer.max.size", "int", INT_MAX, "", "the most members of a consumer group", min=1),
    ConfigKey(
        "group.consumer.assignors",
        "list",
        ["uniform", "range"],
        "",
        "the server-side assignors; the first one is the default",
        choices=("uniform", "range"),
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        "string",
        "bidirectional",
        "",
        "whether a group may change between the classic and the newer protocol while it has members",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    ConfigKey(
        "group.consumer.regex.refresh.interval.ms",
        "int",
        600_000,
        "ms",
        "how often the topics of a regular expression are looked up again although no topic has changed",
        min=10_000,
    ),
)

_LAG = (
    ConfigKey(
        "group.lag.interval.ms",
        "int",
        5000,
        "ms",
        "how often a broker measures the lag of the groups that it coordinates, for its metrics; 0: never (not in Apache Kafka)",
        min=0,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "group.lag.max.series",
        "int",
        2000,
        "",
        "the most lags in the metrics of a broker, one for each group and partition: the largest ones (not in Apache Kafka)",
        min=0,
        update=Update.CLUSTER_OR_BROKER,
    ),
)

GROUP_KEYS: tuple[ConfigKey, ...] = (*_OFFSETS, *_CLASSIC, *_CONSUMER, *_LAG)
