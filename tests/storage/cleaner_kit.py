"""Shared parts of the cleaner's tests: keyed batches, whole cleanings, and the records of a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage_kit import NOW_MS, read_all

from strandline.protocol.records.batch import check_crc, read_header
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.compression import Codec
from strandline.protocol.records.reader import Record, iter_records
from strandline.storage.cleaner.batch_cleaning import Rules
from strandline.storage.cleaner.cleaning import build_map, groups, plan
from strandline.storage.cleaner.offset_map import SLOT_BYTES, OffsetMap
from strandline.storage.log.log import Log

DAY_MS = 24 * 3600 * 1000

Row = tuple[bytes | None, bytes | None]
Producer = tuple[int, int, int]
"""Id, epoch and base sequence."""
NONE: Producer = (-1, -1, -1)


def keyed(rows: Sequence[Row], *, timestamp_ms: int = NOW_MS, codec: Codec = Codec.NONE, producer: Producer = NONE) -> bytearray:
    """A batch of these keys and values; the n-th record is n ms younger than the first."""
    records = [(key, value, [("h", b"%d" % n)] if n % 3 == 2 else [], timestamp_ms + n) for n, (key, value) in enumerate(rows)]
    producer_id, epoch, sequence = producer
    return bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, codec=codec))


class Cleaned(NamedTuple):
    next_dirty: int
    """The offset at which the next cleaning begins."""
    replaced: int
    """Number of groups of segments that were replaced."""


def clean(
    log: Log,
    first_dirty: int = 0,
    *,
    keys: int = 10_000,
    marked: int = 10_000,
    now_ms: int = NOW_MS,
    delete_retention_ms: int = DAY_MS,
    save: Callable[[], object] | None = None,
) -> Cleaned:
    """Run one whole cleaning, with a map for `keys` keys and marks for `marked` offsets. `save` makes the bound of removed
    tombstones durable."""
    planned = plan(log, first_dirty)
    offset_map = OffsetMap(keys * SLOT_BYTES, load_factor=1.0, marked_offsets=marked)
    for _ in build_map(log.files, planned, offset_map):
        pass
    rules = Rules(offset_map, now_ms, delete_retention_ms, planned.last_batches)
    replaced = 0
    if offset_map.latest_offset < planned.first_dirty:
        return Cleaned(planned.first_dirty, 0)
    for group in groups(planned, offset_map.latest_offset):
        for _ in group.rewrite(log.files, rules):
            pass
        if group.cleaned is not None:
            if save is not None and group.cleaned.removed_tombstones_end > log.tombstones_removed_below:
                log.tombstones_removed_below = group.cleaned.removed_tombstones_end
                save()
            for path in log.replace_segments(group.old, group.cleaned, planned.truncations):
                log.files.remove(path)
            replaced += 1
    return Cleaned(offset_map.latest_offset + 1, replaced)


def records(log: Log) -> list[Record]:
    """All records of the log. Every batch must be whole, and the offsets must have no gap."""
    found: list[Record] = []
    expected = log.segments[0].base_offset
    begins = {log.log_end_offset}
    for data in read_all(log, expected):
        header = read_header(data)
        assert check_crc(data, 0, header.size)
        assert header.base_offset == expected
        assert header.leader_epoch == log.epochs.epoch_for_offset(max(header.base_offset, log.log_start_offset))
        expected = header.next_offset
        begins.add(header.base_offset)
        found += iter_records(data)
    assert expected == log.log_end_offset
    assert begins.issuperset(segment.base_offset for segment in log.segments), "segments overlap"
    return found


def rows(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(log)]
