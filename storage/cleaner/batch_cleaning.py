"""Cleaning one batch: which of its records stay, and the batch without the others. Pure.

A record stays if the offset map has no newer offset for its key. A tombstone (a record without a value) stays until the delete
horizon of its batch has passed, so that every consumer that is at most that late sees the key vanish:

    first cleaning     sets attribute bit 6 of a batch with tombstones, and writes now + delete.retention.ms as base timestamp;
                       the timestamp deltas are encoded against it, so no record changes its time (KIP-534)
    later cleaning     drops the tombstones once that time has passed

A changed batch keeps base offset, last offset, producer and sequences, so that nothing else about it changes. The encoded
records are copied as they are. Control batches, and everything above the offsets of the map, stay untouched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer, corrupt
from strandline.protocol.records.compression import CannotDecompress, Codec
from strandline.protocol.records.reader import Columns, decode_columns
from strandline.protocol.records.varint import decode_varint, encode_varint
from strandline.storage.cleaner.offset_map import OffsetMap

_REMOVED = 2**63
"""Stands for the newest offset of records without a key: an offset above all others."""
_TIME_MAX = 2**63 - 1


class Rules(NamedTuple):
    """The state and settings that decide which records stay."""

    map: OffsetMap
    now_ms: int
    delete_retention_ms: int
    last_batches: Collection[tuple[int, int]]
    """(producer id, last offset) of the last batch of each active producer. It stays, even empty, for its sequence numbers."""


class CleanedBatch(NamedTuple):
    """What cleaning leaves of one batch."""

    data: Buffer | None
    """The batch without the removed records: the same object if nothing changed; None if nothing is left, so that a filler takes
    its offsets."""
    removed_tombstones_end: int = 0
    """The offset after the last tombstone that was removed because its delete horizon has passed; 0 if there is none. A tombstone
    that a newer record of its key supersedes does not count, because a reader that misses it finds the newer record."""


def clean_batch(data: Buffer, header: BatchHeader, rules: Rules) -> CleanedBatch:
    """Remove the records that the rules remove. The checksum must have been checked.

    BrokerError: CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE."""
    if header.is_control or header.base_offset > rules.map.latest_offset:
        return CleanedBatch(data)
    if not header.record_count:
        return CleanedBatch(data if (header.producer_id, header.last_offset) in rules.last_batches else None)
    columns = decode_columns(data, 0, header, check_crc=False)
    live = _newest_rows(columns, header, rules)
    kept = _without_expired(columns, header, rules, live)
    removed_end = 0
    if len(kept) < len(live):
        offsets = columns.offsets()
        removed_end = max(offsets[row] for row in set(live).difference(kept)) + 1
    return CleanedBatch(_with_rows(data, header, columns, kept, rules), removed_end)


def _with_rows(data: Buffer, header: BatchHeader, columns: Columns, kept: list[int], rules: Rules) -> Buffer | None:
    if not kept:
        return _emptied(header) if (header.producer_id, header.last_offset) in rules.last_batches else None
    sets_horizon = not header.attributes & v2.DELETE_HORIZON_MASK and any(columns.values[row] is None for row in kept)
    if len(kept) == header.record_count and not sets_horizon:
        return data
    horizon = min(rules.now_ms + rules.delete_retention_ms, _TIME_MAX) if sets_horizon else None
    return _rebuilt(data, header, columns, kept, horizon)


def _newest_rows(columns: Columns, header: BatchHeader, rules: Rules) -> list[int]:
    """The rows whose key has no newer record in the map."""
    if columns.keys is None and header.last_offset <= rules.map.latest_offset:
        return []
    latest, offsets = rules.map.latest_offset, columns.offsets()
    keys = columns.keys if columns.keys is not None else [None] * len(offsets)
    newest = rules.map.get(keys, without_key=_REMOVED)
    return [row for row, offset in enumerate(offsets) if offset >= newest[row] or offset > latest]


def _without_expired(columns: Columns, header: BatchHeader, rules: Rules, live: list[int]) -> list[int]:
    """The rows without the tombstones whose delete horizon has passed."""
    if not header.attributes & v2.DELETE_HORIZON_MASK or rules.now_ms < header.base_timestamp:
        return live
    latest, values, offsets = rules.map.latest_offset, columns.values, columns.offsets()
    return [row for row in live if values[row] is not None or offsets[row] > latest]


def _emptied(header: BatchHeader) -> bytes:
    """The batch without records, for the producer's sequence numbers. It is not compressed, because there is nothing in it."""
    kept = header.attributes & (v2.TIMESTAMP_TYPE_MASK | v2.TRANSACTIONAL_MASK)
    return v2.with_records(header._replace(attributes=kept, base_timestamp=header.max_timestamp), [], 0)


def _rebuilt(data: Buffer, header: BatchHeader, columns: Columns, kept: list[int], horizon: int | None) -> bytes:
    """The batch with these rows. `horizon`: the delete horizon that it gets; None if it gets no new one."""
    try:
        encoded = v2.record_bytes(data, 0, header)
    except CannotDecompress as e:
        corrupt(f"the batch at offset {header.base_offset}: {e}")
    starts, base_timestamp = _starts(encoded, header.record_count), header.base_timestamp
    attributes, newest = header.attributes, header.max_timestamp
    if horizon is None:
        records = [encoded[starts[row] : starts[row + 1]] for row in kept]
    else:
        shift = base_timestamp - horizon
        records = [_shifted(encoded, starts[row], starts[row + 1], shift) for row in kept]
        attributes, base_timestamp = attributes | v2.DELETE_HORIZON_MASK, horizon
    if not header.is_log_append_time and len(kept) < header.record_count:
        newest = _newest(columns, kept)
    changed = header._replace(attributes=attributes, base_timestamp=base_timestamp, max_timestamp=newest)
    return v2.with_records(changed, records, len(kept), Codec(header.compression))


def _newest(columns: Columns, kept: list[int]) -> int:
    times = columns.timestamps
    return columns.base_timestamp if times is None else max(times[row] for row in kept)


def _starts(encoded: bytes, count: int) -> list[int]:
    """The position of each record, and the end of the last one. The records were decoded before, so no size is negative.

    Sizes of one and two bytes are decoded here, because a call per record would double the time."""
    starts, at = [0], 0
    for _ in range(count):
        first = encoded[at]
        if first < 0x80:
            at += 1 + (first >> 1)
        elif (second := encoded[at + 1]) < 0x80:
            at += 2 + ((first & 0x7F | second << 7) >> 1)
        else:
            size, at = decode_varint(encoded, at)
            at += size
        starts.append(at)
    return starts


def _shifted(encoded: bytes, start: int, end: int, shift: int) -> bytes:
    """The record with another timestamp delta: length varint | attributes i8 | timestamp delta varint | the rest."""
    _, at = decode_varint(encoded, start)
    delta, rest = decode_varint(encoded, at + 1)
    body = encoded[at : at + 1] + encode_varint(delta + shift) + encoded[rest:end]
    return encode_varint(len(body)) + body
