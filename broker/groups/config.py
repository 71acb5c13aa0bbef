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
    """How often the lag of the groups is measured for the metrics; 0: never. Not in Kafka."""
    group_lag_max_series: int = 2000
    """The most lags of a broker's metrics. Not in Kafka."""

    group_consumer_session_timeout_ms: int = 9000
    """A member that is silent for so long is removed. Kafka: 45000."""
    group_consumer_min_session_timeout_ms: int = 6000
    """Kafka: 45000. Like the other bounds, of what a group may have for itself (`group_config_manager.py`)."""
    group_consumer_max_session_timeout_ms: int = 60000
    group_consumer_heartbeat_interval_ms: int = 3000
    """Kafka: 5000."""
    group_consumer_min_heartbeat_interval_ms: int = 1000
    """Kafka: 5000."""
    group_consumer_max_heartbeat_interval_ms: int = 15000
    group_consumer_connection_loss_grace_ms: int = 1000
    """Not in Kafka: a member whose connection was closed, and that returns at once if it lives, is removed after this time."""
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first one is the default."""
    group_consumer_assignment_interval_ms: int = 500
    """Kafka: 1000. A group's target assignment is computed at most once in this time (KAFKA-20291)."""
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15000
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600000
    """How often the topics of a regular expression are looked up again although no topic has changed."""

    @property
    def offsets_topic(self) -> InternalTopic:
        """The internal topic, when it is created. `compression.type`: the batches stay as the coordinator builds them."""
        return InternalTopic(
            OFFSETS_TOPIC,
            self.offsets_topic_num_partitions,
            self.offsets_topic_replication_factor,
            self.offsets_topic_segment_bytes,
            "producer",
            "offsets.topic.replication.factor",
        )
