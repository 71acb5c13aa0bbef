"""From the bytes of a segment to its batches, one after the other, whatever the bytes are. Pure.

    |  sound batch  |  batch with a wrong CRC  |  bytes without a batch  |  sound batch  |  zeros or a torn batch  |

`Walk` yields a `Found` for each of these, and the `Found`s of a range cover its bytes without a gap and without an overlap. A
`Found` that is not sound says so in `damage`, as `kind: sentence`:

    checksum       the stored CRC is not the one of the bytes
    header         length, magic, offsets or count of a header are not possible; the `Found` reaches to the next sound batch
    offsets        the header is possible, but its offsets lie before those of the batch before, or not in this segment
    torn tail      the log's last segment ends inside of a batch: an append that is under way, or that a crash has cut off
    cut off        an earlier segment ends inside of a batch, which no append leaves behind
    preallocated   nothing but zeros from here to the end of the log's last segment
    zeros          nothing but zeros from here to the end of an earlier segment
    shortened      the file has become shorter since the read was planned
    codec, records the records of a sound batch cannot be decompressed or decoded (where records are read)

After a header that is not possible, or a wrong CRC that no possible header of later offsets follows, the walk searches for the
next batch: a possible header of later offsets, and the right CRC. The search reads each byte once, and computes CRCs of at most
`SEARCH_CRC_BYTES_MAX` bytes; after that, all bytes to the end of the range are one `Found`.

Ranges of one file may be walked by different processes: a range begins at a batch (`splits.py`), and brings the offset that the
batch before it ends at. The result is the same as that of one walk, unless a search has used up its CRCs.

Weak spots: without CRCs (`Wanted.HEADERS`) a wrong length that leads to a possible header of later offsets is believed. Where
the header of a batch is damaged, a record of it that holds the bytes of a sound batch with later offsets is taken for a batch.
Where the offsets of a damaged batch are too high, batches behind it are passed over, more of them in one walk than in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

import crc32c

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import ATTRIBUTES_POS, HEADER_SIZE, MAGIC, MAGIC_POS, BatchHeader, corrupt
from strandline.storage.log.index import MAX_RELATIVE_OFFSET
from strandline.storage.log.segment import parse_header

Read = Callable[[int, int], memoryview]
"""(position, size) -> the bytes, fewer at the end of the file. They are valid until the next call."""

CHUNK = 1 << 20
"""Bytes of one read where payloads are needed."""
_SMALL_BATCH = 4096
_HEADERS_AHEAD = 1 << 16
_HEADER_AHEAD = 256
"""Bytes of one read where headers alone are needed: after a small batch many headers, after another one the next header."""
_ANY_SIZE = 1 << 32
"""More room than a batch can claim, so that `parse_header` does not judge the size."""
_MAX_OFFSET = 2**63 - 1
SEARCH_CRC_BYTES_MAX = 256 << 20
_ZEROS = bytes(CHUNK)


class Wanted(IntEnum):
    """How much of a batch is read."""

    HEADERS = 0
    """Headers alone: payloads are skipped. CRCs are computed only of batches that no possible header follows."""
    CRC = 1
    """Payloads are read for their CRC, in pieces."""
    RECORDS = 2
    """`Walk.batch` gives the bytes of a sound batch as a whole."""


class Found(NamedTuple):
    """One run of bytes of a segment."""

    position: int
    size: int
    """Bytes that are covered; of a sound batch its size."""
    header: BatchHeader | None
    """None: there is no possible header at `position`."""
    crc: int | None
    """CRC-32C that was computed; None: it was not wanted, or there is no whole batch."""
    damage: str | None
    """None: a sound batch, as far as it was looked at."""


class Range(NamedTuple):
    """A part of a segment file that begins at a batch."""

    start: int
    end: int
    """A batch begins there, or the file ends."""
    next_offset: int
    """End offset of the batch before `start`; no offset of the range may be below."""


class Extent(NamedTuple):
    """What is known of the file when a read is planned."""

    base_offset: int
    """Of the segment, from the file's name."""
    size: int
    is_last: bool
    """Whether it is the last segment of its log, which an append may be under way to."""


class OffsetOrder:
    """Offsets that a segment may have: those of its base offset and the 2^31 after it, each batch after the one before."""

    def __init__(self, base_offset: int, next_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        """Only headers that are possible and lie in the segment move it, whatever their CRC: header-only walks agree then."""

    def has_room_for(self, header: BatchHeader) -> bool:
        return self.base_offset <= header.base_offset and header.last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def is_next(self, header: BatchHeader) -> bool:
        return header.base_offset >= self.next_offset and self.has_room_for(header)

    def take(self, header: BatchHeader) -> str | None:
        """Move on behind the batch. What is wrong with its offsets, else None."""
        if not self.has_room_for(header):
            return f"offsets: {header.base_offset} to {header.last_offset} cannot be in the segment of {self.base_offset}"
        expected, self.next_offset = self.next_offset, header.next_offset
        if header.base_offset < expected:
            return f"offsets: the batch begins at {header.base_offset}, and the one before it ends at {expected}"
        return None


def possible_header(view: memoryview, at: int) -> BatchHeader:
    """The header at `at`, whatever size it claims; BrokerError with the reason when no batch can have it."""
    header = parse_header(view, at, _ANY_SIZE)
    if header.last_offset > _MAX_OFFSET:
        corrupt(f"a batch claims the offsets {header.base_offset} to {header.last_offset}")
    return header


class Window:
    """The bytes of a file, read in chunks; a read that lies in the current chunk costs nothing."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self.size = size
        """Of the file. Becomes smaller when the file turns out to be shorter."""
        self._view = memoryview(b"")
        self._start = 0

    def at(self, position: int, size: int, ahead: int = CHUNK) -> tuple[memoryview, int]:
        """A view that holds `size` bytes from `position` on (fewer at the file's end), and where they begin in it. It is valid
        until the next call. `ahead`: how much to read at least where something has to be read."""
        start = self._start
        if position < start or position + size > start + len(self._view):
            wanted = max(0, min(max(size, ahead), self.size - position))
            self._view, self._start = self._read(position, wanted), position
            if len(self._view) < wanted:
                self.size = position + len(self._view)
        return self._view, position - self._start


class Walk:
    """Iterates over the `Found`s of a range. Never raises for what the bytes are."""

    def __init__(self, read: Read, extent: Extent, part: Range, wanted: Wanted) -> None:
        self._window = Window(read, extent.size)
        self._ahead = CHUNK
        self._extent = extent
        self._part = part
        self._wanted = wanted
        self._order = OffsetOrder(extent.base_offset, part.next_offset)
        self._following: tuple[int, BatchHeader] | None = None
        """A position, and the possible header there."""

    def __iter__(self) -> Iterator[Found]:
        position, end, window = self._part.start, self._part.end, self._window
        while position < min(end, window.size):
            found = self._next(position)
            if found.size > 0:
                yield found
            position += found.size
        if window.size < end:
            text = f"shortened: the file ends at {window.size}, and had {self._extent.size} bytes when the read was planned"
            yield Found(window.size, 0, None, None, text)

    def batch(self, found: Found) -> memoryview:
        """The bytes of a `Found`, whole; valid until the next step."""
        view, at = self._window.at(found.position, found.size)
        return view[at : at + found.size]

    # -- one step -----------------------------------------------------------------------------------------------------

    def _next(self, position: int) -> Found:
        try:
            header = self._header(position)
        except BrokerError as e:
            return self._without_header(position, e.message or str(e))
        end = position + header.size
        if end > self._window.size:
            return self._too_long(position, header)
        leads_on = self._wanted is Wanted.HEADERS and self._leads_on(end, header)
        crc = None if leads_on else self._crc(position, header.size)
        if leads_on or crc == header.crc:
            return self._accept(position, header, None if self._wanted is Wanted.HEADERS else crc, None)
        if end > self._window.size:
            return self._too_long(position, header)  # The file has become shorter.
        damage = f"checksum: the header says {header.crc:08x}, the bytes have {crc:08x}"
        if self._leads_on(end, header):
            return self._accept(position, header, crc, damage)
        # Where the file ends, the length may still be wrong: then the next offset is found inside of what it claims.
        following, _ = self._search(position + 1, header.next_offset if self._is_end(end) else None)
        if self._is_end(end) and following >= end:
            return self._accept(position, header, crc, damage)
        return Found(position, following - position, header, crc, damage)

    def _header(self, position: int) -> BatchHeader:
        """Parsed once, also where the batch before was held against it."""
        if self._following is not None and self._following[0] == position:
            return self._following[1]
        return possible_header(*self._window.at(position, HEADER_SIZE, self._ahead))

    def _accept(self, position: int, header: BatchHeader, crc: int | None, damage: str | None) -> Found:
        offsets = self._order.take(header)
        return Found(position, header.size, header, crc, damage or offsets)

    def _leads_on(self, position: int, header: BatchHeader) -> bool:
        """Whether a batch that ends there has the right length: a possible header of later offsets follows."""
        if self._wanted is Wanted.HEADERS:
            self._ahead = _HEADERS_AHEAD if header.size < _SMALL_BATCH else _HEADER_AHEAD
        if position > self._part.end:
            return False
        try:
            following = possible_header(*self._window.at(position, HEADER_SIZE, self._ahead))
        except BrokerError:
            return False
        self._following = position, following
        return following.base_offset >= max(header.next_offset, self._order.next_offset) and self._order.has_room_for(following)

    def _is_end(self, position: int) -> bool:
        """Whether no batch follows there: the file ends, or there are zeros."""
        if position > self._part.end:
            return False
        view, at = self._window.at(position, HEADER_SIZE)
        return len(view) - at < HEADER_SIZE or not any(view[at : at + HEADER_SIZE])

    def _crc(self, position: int, size: int) -> int:
        """Of a whole batch, which is read in pieces where it is larger than a chunk."""
        if size <= CHUNK:
            view, at = self._window.at(position, size)
            return crc32c.crc32c(view[at + ATTRIBUTES_POS : at + size])
        crc, start, end = 0, position + ATTRIBUTES_POS, position + size
        while start < min(end, self._window.size):
            view, at = self._window.at(start, 1)
            piece = view[at : at + end - start]
            crc = crc32c.crc32c(piece, crc)
            start += len(piece)
        return crc

    # -- where there is no sound batch --------------------------------------------------------------------------------

    def _too_long(self, position: int, header: BatchHeader) -> Found:
        """The file ends before the batch does. That may also be a wrong length in the middle of the file."""
        left = self._window.size - position
        following, _ = self._search(position + 1)
        left = min(left, self._window.size - position)
        if following < self._window.size:
            text = f"header: a batch claims {header.size} bytes where {left} are left, and another batch follows"
            return Found(position, following - position, None, None, text)
        return Found(position, left, header, None, f"{self._tail_kind}: {left} of the batch's {header.size} bytes are there")

    def _without_header(self, position: int, reason: str) -> Found:
        following, only_zeros = self._search(position)
        size, left = following - position, self._window.size - position
        if left < HEADER_SIZE:
            text = f"{self._tail_kind}: {left} bytes are there, less than the header of a batch"
        elif only_zeros and following >= self._window.size:
            kind = "preallocated" if self._extent.is_last else "zeros"
            text = f"{kind}: {size} bytes of zeros to the end of the file"
        else:
            text = f"header: {reason}; {size} bytes hold no sound batch"
        return Found(position, size, None, None, text)

    @property
    def _tail_kind(self) -> str:
        return "torn tail" if self._extent.is_last else "cut off"

    def _search(self, position: int, base_offset: int | None = None) -> tuple[int, bool]:
        """Where the next sound batch begins (that with this base offset, if one is given), else the end of the range; and whether
        all bytes before it are zeros."""
        only_zeros, budget, start = True, SEARCH_CRC_BYTES_MAX, position
        while start < min(self._part.end, self._window.size):
            view, at = self._window.at(start, HEADER_SIZE)
            chunk = bytes(view[at : at + CHUNK])
            for candidate in self._candidates(chunk):
                place = start + candidate[0]
                if place >= self._part.end or budget <= 0:
                    break
                if base_offset not in (None, candidate[1].base_offset):
                    continue
                budget -= candidate[1].size
                if place + candidate[1].size <= self._window.size and self._crc(place, candidate[1].size) == candidate[1].crc:
                    return place, only_zeros and not any(chunk[: candidate[0]])
            only_zeros = only_zeros and chunk == _ZEROS[: len(chunk)]
            if len(chunk) < HEADER_SIZE:
                break
            start += len(chunk) - HEADER_SIZE + 1
        return min(self._part.end, self._window.size), only_zeros

    def _candidates(self, chunk: bytes) -> Iterator[tuple[int, BatchHeader]]:
        """Possible headers in a chunk whose offsets would be next, with where they begin. All lie in the chunk as a whole."""
        view, at = memoryview(chunk), chunk.find(MAGIC, MAGIC_POS)
        base = self._order.base_offset
        highs = {n.to_bytes(8, "big")[:4] for n in (base, min(base + MAX_RELATIVE_OFFSET, _MAX_OFFSET))}
        while at >= 0 and at - MAGIC_POS + HEADER_SIZE <= len(chunk):
            start = at - MAGIC_POS
            if chunk[start : start + 4] in highs:
                try:
                    header = possible_header(view, start)
                except BrokerError:
                    pass
                else:
                    if self._order.is_next(header):
                        yield start, header
            at = chunk.find(MAGIC, at + 1)
