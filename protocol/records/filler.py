"""Fillers: batches without records, which keep the offsets of a log without gaps where compaction removed records.

A filler is the header of a batch and nothing else: record count 0, no producer, the offsets of the removed records from base
offset to last offset, and their leader epoch. Kafka's brokers and clients read such batches, because Kafka itself leaves a batch
empty if it is the last one of an idempotent producer. A run of removed batches needs one filler per leader epoch, and one per
2^31 offsets, because the last offset delta has 32 bits. A filler has no timestamp, so the time index finds only records.

An emptied batch of a producer is no filler: it still has the producer's sequence numbers.
"""

from __future__ import annotations

from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer

OFFSETS_MAX = 2**31
"""Number of offsets that one filler can stand for."""
NO_TIMESTAMP = -1


def is_filler(header: BatchHeader) -> bool:
    """Whether the batch only stands for removed offsets, so that its neighbours may absorb it."""
    return (
        not header.record_count
        and header.size == v2.HEADER_SIZE
        and header.producer_id == v2.NO_PRODUCER_ID
        and not header.attributes
    )


def make_fillers(first_offset: int, end_offset: int, leader_epoch: int) -> list[bytes]:
    """The fillers for the offsets from `first_offset` to before `end_offset`, which have one leader epoch."""
    return [
        _filler(first, min(first + OFFSETS_MAX, end_offset), leader_epoch)
        for first in range(first_offset, end_offset, OFFSETS_MAX)
    ]


def _filler(first_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    return v2.assemble(
        [],
        base_offset=first_offset,
        leader_epoch=leader_epoch,
        attributes=0,
        last_offset_delta=end_offset - first_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=v2.NO_PRODUCER_ID,
        producer_epoch=v2.NO_PRODUCER_EPOCH,
        base_sequence=v2.NO_SEQUENCE,
        record_count=0,
    )


def without_filled_before(records: Buffer, offset: int) -> Buffer:
    """The records without the part of a first filler that lies before `offset`. Everything else is returned unchanged.

    Each replica compacts its own log, so the leader's filler may begin before the end of a follower that was away."""
    if len(records) < v2.HEADER_SIZE or v2.base_offset_at(records, 0) >= offset:
        return records
    header = v2.read_header(records)
    if header.next_offset <= offset or not is_filler(header) or not v2.check_crc(records, 0, header.size):
        return records
    rest = make_fillers(offset, header.next_offset, header.leader_epoch)
    return b"".join([*rest, memoryview(records)[header.size :]])
