"""The settings with which the internal topics of coordinators are created."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.messages.admin import CreatableTopic, TopicConfig


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """An internal topic. It is compacted, and its segments are small, because a new coordinator reads a whole partition."""

    name: str
    num_partitions: int
    replication_factor: int
    segment_bytes: int
    compression_type: str
    replication_key: str
    """The configuration key of the replication factor, for error messages."""
    configs: tuple[tuple[str, str], ...] = ()
    """Further topic configs: keys and values."""

    def creatable(self) -> CreatableTopic:
        configs = (
            ("cleanup.policy", "compact"),
            ("segment.bytes", str(self.segment_bytes)),
            ("compression.type", self.compression_type),
            *self.configs,
        )
        return CreatableTopic(
            self.name,
            self.num_partitions,
            self.replication_factor,
            [],
            [TopicConfig(name, value) for name, value in configs],
        )
