"""The settings of one log: a topic's configuration, as far as the storage acts on it. Names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.errors import UsageError

FOREVER = 2**63 - 1
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1 << 30
    """A segment that would grow beyond this is closed and a new one begun."""
    oversized_segments: bool = False
    """Whether a batch that is larger than that gets a segment of its own. A topic's batch is refused, as in Kafka."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment whose first batch is older than this is closed at the next append."""
    index_interval_bytes: int = 4096
    """One index entry per about so many bytes of batches."""
    segment_index_bytes: int = 10 << 20
    """A segment whose index would grow beyond this is closed."""
    max_message_bytes: int = 1048588
    """The largest batch that a leader accepts."""
    flush_messages: int = FOREVER
    """fsync after so many records; by default replication is the durability."""
    flush_ms: int = FOREVER
    """fsync when the oldest unflushed record is this old (checked by the broker's timer)."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """A segment whose newest record is older than this may be deleted; -1: never."""
    retention_bytes: int = -1
    """The oldest segments of a log beyond this size may be deleted; -1: no limit."""
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = FOREVER
    """How far a record's timestamp may lie behind the broker's clock (CreateTime only)."""
    message_timestamp_after_max_ms: int = 3600 * 1000
    """How far it may lie ahead."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """A producer that has not written for so long is forgotten."""

    def __post_init__(self) -> None:
        if self.message_timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
            raise UsageError(f"message.timestamp.type must be {CREATE_TIME} or {LOG_APPEND_TIME}")
        if not 14 <= self.segment_bytes <= 2**31 - 1:
            raise UsageError(f"segment.bytes must be between 14 and {2**31 - 1}, not {self.segment_bytes}")
        if self.index_interval_bytes < 0 or self.segment_index_bytes < 8:
            raise UsageError("index.interval.bytes must not be negative, segment.index.bytes at least 8")
