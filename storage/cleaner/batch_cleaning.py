"""Cleaning one batch: which of its records stay, and the batch without the others. Pure.

A record stays if the offset map has no newer offset for its key. A tombstone (a record without a value) stays until the delete
horizon of its batch has passed, so that every consumer that is at most that late sees the key vanish:

    first cleaning     sets attribute bit 6 of a batch with tombstones, and writes now + delete.retention.ms as base timestamp;
                       the timestamp deltas are encoded against it, so no record changes its time (KIP-534)
    later cleaning     drops the tombstones once that time has passed

If the pass that built the map has marked the records of a batch, the marks tell which ones are superseded, and the keys are not
read again.

A changed batch keeps its base offset, last offset, producer and sequences. The encoded records are copied as they are. Everything
above the offsets of the map stays untouched. Of the control batches, only the older fences (`protocol/records/fence.py`) are
removed here; `marker_cleaning.py` removes markers. The records of aborted transactions are removed whatever their keys are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer, corrupt
from strandline.protocol.records.compression import CannotDecompress, Codec
from strandline.protocol.records.fence import is_fence
from strandline.protocol.records.layout import Layout, LayoutReader, record_starts, timestamp_delta
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
    """(producer id, last offset) of the last batch of each active producer, and of the newest fences. Such a batch stays, if need
    be without records, because the log needs its sequence numbers."""


class CleanedBatch(NamedTuple):
    """What cleaning leaves of one batch."""

    data: Buffer | None
    """The batch without the removed records: the same object if nothing changed; None if nothing is left, so that a filler takes
    its offsets."""
    removed_tombstones_end: int = 0
    """The offset after the last tombstone or marker that was removed because its delete horizon has passed; 0 if there is none. A
    tombstone that a newer record of its key supersedes does not count, because a reader that misses it finds the newer record."""


def clean_batch(data: Buffer, header: BatchHeader, rules: Rules, reader: LayoutReader) -> CleanedBatch:
    """Remove the records that the rules remove. The checksum must have been checked.

    Raises CORRUPT_MESSAGE and UNSUPPORTED_COMPRESSION_TYPE."""
    if (header.is_control and not is_fence(header)) or header.base_offset > rules.map.latest_offset:
        return CleanedBatch(data)
    if not header.record_count:
        return CleanedBatch(data if (header.producer_id, header.last_offset) in rules.last_batches else None)
    kept = rules.map.kept_rows(header)
    if kept is not None:
        return CleanedBatch(_with_marked_rows(data, header, kept, rules))
    layout = reader.read(data, header)
    live = _newest_rows(layout, header, rules)
    kept = _without_expired(layout, header, rules, live)
    removed_end = 0
    if len(kept) < len(live):
        offsets = layout.offsets(header.base_offset)
        removed_end = max(offsets[row] for row in set(live).difference(kept)) + 1
    return CleanedBatch(_with_rows(data, header, layout, kept, rules), removed_end)


def clean_aborted(data: Buffer, header: BatchHeader, rules: Rules) -> CleanedBatch:
    """Remove the records of an aborted transaction. The batch stays, empty, if its sequence numbers are needed. A tombstone among
    them has deleted nothing, so it does not count as removed."""
    if (header.producer_id, header.last_offset) not in rules.last_batches:
        return CleanedBatch(None)
    return CleanedBatch(_emptied(header) if header.record_count else data)


def _with_marked_rows(data: Buffer, header: BatchHeader, kept: list[int], rules: Rules) -> Buffer | None:
    """The batch with these rows, of which none is a tombstone."""
    if len(kept) == header.record_count:
        return data
    if not kept:
        return _emptied(header) if (header.producer_id, header.last_offset) in rules.last_batches else None
    try:
        encoded = v2.record_bytes(data, 0, header)
    except CannotDecompress as e:
        corrupt(f"the batch at offset {header.base_offset}: {e}")
    return _rebuilt(header, encoded, record_starts(encoded, header.record_count), kept, None)


def _with_rows(data: Buffer, header: BatchHeader, layout: Layout, kept: list[int], rules: Rules) -> Buffer | None:
    if not kept:
        return _emptied(header) if (header.producer_id, header.last_offset) in rules.last_batches else None
    sets_horizon = not header.attributes & v2.DELETE_HORIZON_MASK and not set(kept).isdisjoint(layout.tombstones)
    if len(kept) == header.record_count and not sets_horizon:
        return data
    return _rebuilt(header, layout.data, layout.starts, kept, _horizon(rules) if sets_horizon else None)


def with_horizon(header: BatchHeader, encoded: bytes, starts: list[int], rules: Rules) -> bytes:
    """The batch with all its records, and with a delete horizon."""
    return _rebuilt(header, encoded, starts, list(range(header.record_count)), _horizon(rules))


def _horizon(rules: Rules) -> int:
    return min(rules.now_ms + rules.delete_retention_ms, _TIME_MAX)


def _newest_rows(layout: Layout, header: BatchHeader, rules: Rules) -> list[int]:
    """The rows whose key has no newer record in the map."""
    latest, offsets = rules.map.latest_offset, layout.offsets(header.base_offset)
    newest = rules.map.get(layout.keys, without_key=_REMOVED)
    return [row for row, offset in enumerate(offsets) if offset >= newest[row] or offset > latest]


def _without_expired(layout: Layout, header: BatchHeader, rules: Rules, live: list[int]) -> list[int]:
    """The rows without the tombstones whose delete horizon has passed."""
    if not layout.tombstones or not header.attributes & v2.DELETE_HORIZON_MASK or rules.now_ms < header.base_timestamp:
        return live
    latest, offsets = rules.map.latest_offset, layout.offsets(header.base_offset)
    expired = {row for row in layout.tombstones if offsets[row] <= latest}
    return [row for row in live if row not in expired]


def _emptied(header: BatchHeader) -> bytes:
    """The batch without records, for the producer's sequence numbers. It is not compressed, because there is nothing in it."""
    kept = header.attributes & (v2.TIMESTAMP_TYPE_MASK | v2.TRANSACTIONAL_MASK)
    return v2.with_records(header._replace(attributes=kept, base_timestamp=header.max_timestamp), [], 0)


def _rebuilt(header: BatchHeader, encoded: bytes, starts: list[int], kept: list[int], horizon: int | None) -> bytes:
    """The batch with these rows of its encoded records. `horizon`: the delete horizon that it gets, or None."""
    changed, newest = header, header.max_timestamp
    if not header.is_log_append_time and len(kept) < header.record_count:
        newest = _newest(header, encoded, starts, kept)
    if horizon is None:
        records = _runs(encoded, starts, kept)
        if newest != header.max_timestamp:
            changed = header._replace(max_timestamp=newest)
    else:
        shift = header.base_timestamp - horizon
        records = [_shifted(encoded, starts[row], starts[row + 1], shift) for row in kept]
        attributes = header.attributes | v2.DELETE_HORIZON_MASK
        changed = header._replace(attributes=attributes, base_timestamp=horizon, max_timestamp=newest)
    return v2.with_records(changed, records, len(kept), Codec(header.compression))


def _runs(encoded: bytes, starts: list[int], kept: list[int]) -> Sequence[Buffer]:
    """The bytes of these rows: one piece for each run of rows that lie side by side."""
    view, pieces = memoryview(encoded), []
    first = end = kept[0]
    for row in kept:
        if row != end:
            pieces.append(view[starts[first] : starts[end]])
            first = row
        end = row + 1
    pieces.append(view[starts[first] : starts[end]])
    return pieces


def _newest(header: BatchHeader, encoded: bytes, starts: list[int], kept: list[int]) -> int:
    """The newest timestamp of these rows. Producers send their records in the order of time, so the last row is read first: if it
    has the newest timestamp of the batch, no other one is read."""
    newest = header.max_timestamp - header.base_timestamp
    largest = -_TIME_MAX
    for row in reversed(kept):
        largest = max(largest, timestamp_delta(encoded, starts[row]))
        if largest >= newest:
            break
    found = header.base_timestamp + largest
    if not -_TIME_MAX <= found <= _TIME_MAX:
        corrupt(f"the batch at offset {header.base_offset} has the timestamp {found}")
    return found


def _shifted(encoded: bytes, start: int, end: int, shift: int) -> bytes:
    """The record with another timestamp delta: length varint | attributes i8 | timestamp delta varint | the rest."""
    _, at = decode_varint(encoded, start)
    delta, rest = decode_varint(encoded, at + 1)
    body = encoded[at : at + 1] + encode_varint(delta + shift) + encoded[rest:end]
    return encode_varint(len(body)) + body
