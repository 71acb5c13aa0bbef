"""The settings of one log: the part of a topic's configuration that the storage uses. Names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.errors import UsageError
from strandline.protocol.records.compression import Compression

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
    segment_jitter_ms: int = 0
    """Each segment ends up to this much before `segment_ms`, at random."""
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
    """The oldest segment may be deleted if the segments after it have at least this many bytes; -1: no limit."""
    deletes: bool = True
    """Whether segments that are too old or too many are deleted. Segments below the log start are deleted in any case."""
    compacts: bool = False
    """Whether only the newest record of each key is kept. A leader refuses records without a key then."""
    min_cleanable_dirty_ratio: float = 0.5
    """The log is cleaned when more than this part of its closed segments is dirty."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long a tombstone is kept after its first cleaning."""
    min_compaction_lag_ms: int = 0
    """A segment with a record that is younger than this is not cleaned."""
    max_compaction_lag_ms: int = FOREVER
    """The log is cleaned when a dirty segment is older than this, even if the dirty part is small."""
    file_delete_delay_ms: int = 60_000
    """How long the files of a removed segment are kept under another name, for a backup or a tool that reads them."""
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = FOREVER
    """How far, in ms, a record's timestamp may lie behind the broker's clock, with CreateTime."""
    message_timestamp_after_max_ms: int = 3600 * 1000
    """How far, in ms, a record's timestamp may lie ahead of the broker's clock, with CreateTime."""
    compression: Compression | None = None
    """A leader stores batches with this codec. None (compression.type=producer): as the producer compressed them."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """The state of a producer is dropped when it has not written for this long."""

    @property
    def needs_preparation(self) -> bool:
        """Whether a leader has more to do with produced batches than to check their format."""
        return self.compacts or self.compression is not None

    def __post_init__(self) -> None:
        if self.message_timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
            raise UsageError(f"message.timestamp.type must be {CREATE_TIME} or {LOG_APPEND_TIME}")
        if not 14 <= self.segment_bytes <= 2**31 - 1:
            raise UsageError(f"segment.bytes must be between 14 and {2**31 - 1}, not {self.segment_bytes}")
        if self.index_interval_bytes < 0 or self.segment_index_bytes < 8:
            raise UsageError("index.interval.bytes must not be negative, segment.index.bytes at least 8")
