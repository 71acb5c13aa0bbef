"""The settings of one log: the part of a topic's configuration that the storage uses. Names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.errors import UsageError

FOREVER = 2**63 - 1
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log."""

    segment_bytes: int = 1 << 30
    """A new segment begins when an append would make the last one larger than this."""
    oversized_segments: bool = False
    """Whether a batch larger than `segment_bytes` gets a segment of its own (the metadata log). Else it is refused, as in
    Kafka."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A new segment begins with the next append when the first batch of the last one is older than this."""
    index_interval_bytes: int = 4096
    """About how many bytes of batches lie between two index entries."""
    segment_index_bytes: int = 10 << 20
    """A new segment begins when the offset index of the last one has reached this size."""
    max_message_bytes: int = 1048588
    """The largest batch that a leader accepts."""
    flush_messages: int = FOREVER
    """fsync after this many records. By default replication provides durability."""
    flush_ms: int = FOREVER
    """fsync when the oldest unflushed record is this old. A timer of the broker checks it."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """A segment may be deleted when its newest record is older than this; -1: never for age."""
    retention_bytes: int = -1
    """The oldest segments may be deleted while the log is larger than this; -1: no limit."""
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = FOREVER
    """How far a record's timestamp may lie behind the broker's clock, with CreateTime."""
    message_timestamp_after_max_ms: int = 3600 * 1000
    """How far a record's timestamp may lie ahead of the broker's clock, with CreateTime."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """The state of a producer is dropped when it has not written for this long."""

    def __post_init__(self) -> None:
        if self.message_timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
            raise UsageError(f"message.timestamp.type must be {CREATE_TIME} or {LOG_APPEND_TIME}")
        if not 14 <= self.segment_bytes <= 2**31 - 1:
            raise UsageError(f"segment.bytes must be between 14 and {2**31 - 1}, not {self.segment_bytes}")
        if self.index_interval_bytes < 0 or self.segment_index_bytes < 8:
            raise UsageError("index.interval.bytes must not be negative, segment.index.bytes at least 8")
