"""The settings of the group coordinator, named after Kafka's keys. The keys themselves, with their meanings and ranges, are in
`controller/metadata/node_keys.py`."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.coordination.topics import InternalTopic
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The defaults are those of the keys. Where they differ from Kafka's, the table of keys says so."""

    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 104857600
    offsets_commit_timeout_ms: int = 5000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10080
    offsets_retention_check_interval_ms: int = 600000

    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1800000
    group_max_size: int = 2**31 - 1

    group_lag_interval_ms: int = 5000
    """The interval at which the lag of the groups is measured for the metrics; 0: never. Not in Kafka."""
    group_lag_max_series: int = 2000
    """The maximum number of lags in a broker's metrics. Not in Kafka."""

    group_consumer_session_timeout_ms: int = 9000
    """A member that is silent for so long is removed. Kafka: 45000."""
    group_consumer_min_session_timeout_ms: int = 6000
    """Kafka: 45000. This and the other bounds limit the values that a group may set for itself (`group_config_manager.py`)."""
    group_consumer_max_session_timeout_ms: int = 60000
    group_consumer_heartbeat_interval_ms: int = 3000
    """Kafka: 5000."""
    group_consumer_min_heartbeat_interval_ms: int = 1000
    """Kafka: 5000."""
    group_consumer_max_heartbeat_interval_ms: int = 15000
    group_consumer_connection_loss_grace_ms: int = 1000
    """Not in Kafka. A member that promised to return at once (`returns_at_once`) is removed this long after it closed its
    connection, unless it has returned."""
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first one is the default."""
    group_consumer_assignment_interval_ms: int = 500
    """Kafka: 1000. A group's target assignment is computed at most once in this time (KAFKA-20291)."""
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15000
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600000
    """The interval at which the topics of a regular expression are looked up again although no topic has changed."""

    @property
    def offsets_topic(self) -> InternalTopic:
        """The settings with which the internal topic is created. With `compression.type=producer`, the batches stay as the
        coordinator builds them."""
        return InternalTopic(
            OFFSETS_TOPIC,
            self.offsets_topic_num_partitions,
            self.offsets_topic_replication_factor,
            self.offsets_topic_segment_bytes,
            "producer",
            "offsets.topic.replication.factor",
        )
