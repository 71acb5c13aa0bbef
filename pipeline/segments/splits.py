"""Cuts large segments into ranges of about the wanted size, and packs small segments into tasks. Pure.

Every range begins at a batch. A cut is taken from the sparse offset index (`.index`) if the entry is sound: the headers that
follow the entry before it lead exactly to its batch, that batch has the entry's last offset, and the batch's CRC is right. If
there is no sound entry (no index, the index of another file, the tail of an active segment), the cut is found from header to
header, without reading payloads. After an impossible header, or one whose offsets go back, the segment is not cut again: one task
reads the rest and searches it for batches.

Small segments share a task, up to the size of a split.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from struct import iter_unpack
from typing import NamedTuple, TypeVar

from strandline.pipeline.segments.walk import Extent, Found, OffsetOrder, Range, Read, Walk, Wanted

OPEN_BYTES = 64 << 10
"""Cost of opening a file, in bytes read, when small segments are packed into tasks."""
_INDEX_GAP_MAX = 4 << 20
"""An index entry farther than this from the entry before it is not used: checking it would cost more than it saves."""

Index = list[tuple[int, int]]
"""Entries of the offset index, both values ascending: (last offset of a batch, relative to the segment's base offset; position
of that batch in the file)."""


class Cut(NamedTuple):
    """The begin of a range: the position of a batch in the file."""

    position: int
    next_offset: int
    """End offset of the batch before the cut."""
    base_offset: int
    """Base offset of the batch that begins at the cut."""


def index_entries(data: bytes, size: int) -> Index:
    """The entries of an index file, up to the first that is impossible in a segment of `size` bytes. (Kafka preallocates the
    index of an active segment with zeros.)"""
    entries: Index = []
    offset, position = -1, -1
    for entry in iter_unpack(">II", data[: len(data) // 8 * 8]):
        if not (offset < entry[0] and position < entry[1] < size):
            break
        offset, position = entry
        entries.append((offset, position))
    return entries


def cuts(read: Read, extent: Extent, index: Index, split_bytes: int) -> list[Cut]:
    """The begins of the segment's ranges: the first at 0, each at least `split_bytes` after the one before."""
    found = [Cut(0, extent.base_offset, extent.base_offset)]
    positions = [position for _, position in index]
    while extent.size - found[-1].position > split_bytes:
        target = found[-1].position + split_bytes
        following = _by_index(read, extent, index, bisect_right(positions, target), target) or _by_headers(
            read, extent, found[-1], target
        )
        if following is None:
            break
        found.append(following)
    return found


def _by_index(read: Read, extent: Extent, index: Index, entry: int, target: int) -> Cut | None:
    """The cut at an entry of the index; None if the entry is not sound."""
    if not 0 < entry < len(index):
        return None
    (before_offset, before), (last_offset, position) = index[entry - 1], index[entry]
    if position - before > _INDEX_GAP_MAX:
        return None
    order = OffsetOrder(extent.base_offset, extent.base_offset)
    for found in Walk(read, extent, Range(before, position, extent.base_offset), Wanted.HEADERS):
        if found.header is None or found.damage or found.position + found.size > position:
            return None
        order.take(found.header)
    batch = next(iter(Walk(read, extent, Range(position, extent.size, order.next_offset), Wanted.CRC)))
    if batch.header is None or batch.damage or not before_offset < _last(batch, extent) <= last_offset:
        return None
    return Cut(position, order.next_offset, batch.header.base_offset)


def _last(found: Found, extent: Extent) -> int:
    assert found.header is not None
    return found.header.last_offset - extent.base_offset


def _by_headers(read: Read, extent: Extent, start: Cut, target: int) -> Cut | None:
    """The cut at the first batch at or after `target`, found from header to header. None if a damaged header comes first."""
    order = OffsetOrder(extent.base_offset, start.next_offset)
    for found in Walk(read, extent, Range(start.position, extent.size, start.next_offset), Wanted.HEADERS):
        if found.header is None or found.damage is not None:
            return None
        if found.position >= target:
            return Cut(found.position, order.next_offset, found.header.base_offset)
        order.take(found.header)
    return None


def ranges(found: list[Cut], size: int, start_offset: int, end_offset: int | None) -> Iterator[Range]:
    """The ranges between the cuts, except those without an offset in [`start_offset`, `end_offset`)."""
    ends = [*found[1:], None]
    for cut, following in zip(found, ends, strict=True):
        is_before = following is not None and following.base_offset <= start_offset
        is_after = end_offset is not None and cut.base_offset >= end_offset
        if not is_before and not is_after:
            yield Range(cut.position, size if following is None else following.position, cut.next_offset)


Part = TypeVar("Part")


def packed(parts: Iterable[tuple[int, Part]], split_bytes: int) -> list[list[Part]]:
    """Divides parts, given with their sizes in bytes, into tasks; the order is kept. A task has one part, or several of together
    at most `split_bytes`."""
    tasks: list[list[Part]] = []
    room = -1
    for size, part in parts:
        room -= size + OPEN_BYTES
        if room < 0 or not tasks:
            tasks.append([])
            room = split_bytes - size - OPEN_BYTES
        tasks[-1].append(part)
    return tasks


def overlapping(bases: list[int], start_offset: int, end_offset: int | None) -> Iterator[int]:
    """`bases` are the base offsets of a log's segments, in order. Yields the index of each segment that may have an offset in
    [`start_offset`, `end_offset`)."""
    for i, (base, following) in enumerate(pairwise([*bases, -1])):
        if not (0 <= following <= start_offset) and not (end_offset is not None and base >= end_offset):
            yield i
