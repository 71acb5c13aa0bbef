"""Finds the offset up to which the cleaner has removed records from a log. Used if the checkpoint of removed tombstones is
damaged."""

from __future__ import annotations

from strandline.protocol.errors import BrokerError
from strandline.storage.log.batch_iteration import iter_batches
from strandline.storage.log.log_state import LogState


def removed_records_end(log: LogState) -> int:
    """The offset after the last batch that lacks a record; 0 if the log has all records. It reads every header.

    No tombstone is missing at or above it. A segment that cannot be read to its end may lack all of its records."""
    removed = 0
    for segment, end in log.segments_with_ends():
        try:
            for _, header, _, _ in iter_batches(segment, 0):
                if header.record_count <= header.last_offset_delta and not header.is_control:
                    removed = header.next_offset
        except BrokerError:
            removed = end
    return removed
