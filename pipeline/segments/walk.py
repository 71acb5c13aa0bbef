"""Divides the bytes of a segment into batches and damage. Accepts any bytes. Pure.

    |  sound batch  |  batch with a wrong CRC  |  bytes without a batch  |  sound batch  |  zeros or a torn batch  |

`Walk` yields a `Found` for each of these. The `Found`s of a range cover all its bytes, and do not overlap. `damage` is None for a
sound batch, and otherwise names the fault as `kind: sentence`:

    checksum        the stored CRC differs from the CRC of the bytes
    header          length, magic, offsets or record count of a header are impossible; the `Found` extends to the next sound batch
    offsets         the offsets lie before the end of the previous batch, or outside of the segment's range
    torn tail       the log's last segment ends within a batch: an append is under way, or a crash interrupted one
    cut off         an earlier segment ends within a batch, which no append causes
    preallocated    the log's last segment has only zeros from here to its end
    zeros           an earlier segment has only zeros from here to its end
    shortened       the file became shorter after the read was planned
    codec, records  the records of a sound batch cannot be decompressed or decoded (checked only with `rows=record`)

A header is *possible* if a batch could have it: magic 2, and plausible length, offsets and count. The walk searches for the next
batch after an impossible header, and after a wrong CRC unless a possible header with later offsets follows the batch directly.
The search accepts a batch with a possible header, later offsets and the right CRC. It reads each byte once and computes CRCs of
at most `SEARCH_CRC_BYTES_MAX` bytes; then all bytes up to the end of the range become one `Found`.

Different processes may walk the ranges of one file: a range begins at a batch (`splits.py`) and holds the end offset of the batch
before it. The result is the same as that of one walk over the whole file, unless a search reaches its limit of CRCs.

Known weaknesses:

- Without CRCs (`Wanted.HEADERS`), a wrong length that leads to a possible header with later offsets is accepted.
- If the header of a batch is damaged, and one of its records contains the bytes of a sound batch with later offsets, the walk
  takes these bytes for a batch.
- If a damaged batch has too high offsets, the walk skips the batches after it that have lower ones. One walk skips more of them
  than several walks over the ranges do.
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
"""(position, size) -> the bytes, fewer at the end of the file. The view is valid until the next call."""

CHUNK = 1 << 20
"""Bytes to read at once when payloads are needed."""
_SMALL_BATCH = 4096
_HEADERS_AHEAD = 1 << 16
_HEADER_AHEAD = 256
"""Bytes to read at once when only headers are needed: many headers after a batch below `_SMALL_BATCH` bytes, one header after a
larger one."""
_ANY_SIZE = 1 << 32
"""Larger than any size in a header, so that `parse_header` accepts every size; the walk compares it with the file itself."""
_MAX_OFFSET = 2**63 - 1
SEARCH_CRC_BYTES_MAX = 256 << 20
_ZEROS = bytes(CHUNK)


class Wanted(IntEnum):
    """How much of a batch is read."""

    HEADERS = 0
    """Headers only. The CRC is computed only for a batch that no possible header with later offsets follows."""
    CRC = 1
    """Headers, and the CRC of each batch, computed in pieces."""
    RECORDS = 2
    """Headers and CRCs, and `Walk.batch` returns the bytes of a batch."""


class Found(NamedTuple):
    """A run of bytes in a segment: a batch, or damage."""

    position: int
    size: int
    """Number of bytes; for a sound batch the size of the batch."""
    header: BatchHeader | None
    """None: the bytes at `position` are no possible header."""
    crc: int | None
    """The computed CRC-32C. None: the CRC was not wanted, or the batch is incomplete."""
    damage: str | None
    """None: no fault was found by the checks that were wanted."""


class Range(NamedTuple):
    """A part of a segment file that begins at a batch."""

    start: int
    end: int
    """Position (exclusive) at which a batch begins or the file ends."""
    next_offset: int
    """End offset of the batch before `start`. Lower offsets in the range are damage."""


class Extent(NamedTuple):
    """The segment file as it was when the read was planned."""

    base_offset: int
    """Base offset of the segment, from the file's name."""
    size: int
    is_last: bool
    """Whether it is the last segment of its log, to which a broker may be appending."""


class OffsetOrder:
    """Checks that the offsets of successive batches ascend and lie at most `MAX_RELATIVE_OFFSET` above the segment's base."""

    def __init__(self, base_offset: int, next_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        """The lowest offset that the next batch may have. Every possible header within the segment moves it, even if the CRC is
        wrong, so that walks with and without CRCs find the same."""

    def has_room_for(self, header: BatchHeader) -> bool:
        return self.base_offset <= header.base_offset and header.last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def is_next(self, header: BatchHeader) -> bool:
        return header.base_offset >= self.next_offset and self.has_room_for(header)

    def take(self, header: BatchHeader) -> str | None:
        """Moves to the end of this batch. Returns the text for `damage` if its offsets are wrong, else None."""
        if not self.has_room_for(header):
            return f"offsets: {header.base_offset} to {header.last_offset} cannot be in the segment of {self.base_offset}"
        expected, self.next_offset = self.next_offset, header.next_offset
        if header.base_offset < expected:
            return f"offsets: the batch begins at {header.base_offset}, before the end offset {expected} of the previous batch"
        return None


def possible_header(view: memoryview, at: int) -> BatchHeader:
    """Parses the header at `at`; any size is accepted. Raises BrokerError, with the reason, if no batch can have this header."""
    header = parse_header(view, at, _ANY_SIZE)
    if header.last_offset > _MAX_OFFSET:
        corrupt(f"a batch claims the offsets {header.base_offset} to {header.last_offset}")
    return header


class Window:
    """Reads a file in chunks, and keeps the current chunk: a request for bytes in it reads nothing."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self.size = size
        """Size of the file. It is reduced when a read shows that the file has become shorter."""
        self._view = memoryview(b"")
        self._start = 0

    def at(self, position: int, size: int, ahead: int = CHUNK) -> tuple[memoryview, int]:
        """Returns a view that contains `size` bytes from `position` on (fewer at the end of the file), and their index in the
        view. The view is valid until the next call. If the bytes must be read, at least `ahead` bytes are read."""
        start = self._start
        if position < start or position + size > start + len(self._view):
            wanted = max(0, min(max(size, ahead), self.size - position))
            self._view, self._start = self._read(position, wanted), position
            if len(self._view) < wanted:
                self.size = position + len(self._view)
        return self._view, position - self._start


class Walk:
    """Iterates over the `Found`s of a range. No content of the file makes it raise an error."""

    def __init__(self, read: Read, extent: Extent, part: Range, wanted: Wanted) -> None:
        self._window = Window(read, extent.size)
        self._ahead = CHUNK
        self._extent = extent
        self._part = part
        self._wanted = wanted
        self._order = OffsetOrder(extent.base_offset, part.next_offset)
        self._following: tuple[int, BatchHeader] | None = None
        """The last possible header that was parsed ahead, with its position."""

    def __iter__(self) -> Iterator[Found]:
        position, end, window = self._part.start, self._part.end, self._window
        while position < min(end, window.size):
            found = self._next(position)
            if found.size > 0:
                yield found
            position += found.size
        if window.size < end:
            text = f"shortened: the file has {window.size} bytes, and had {self._extent.size} when the read was planned"
            yield Found(window.size, 0, None, None, text)

    def batch(self, found: Found) -> memoryview:
        """All bytes of a `Found`. The view is valid until the iteration continues."""
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
            return self._too_long(position, header)  # The file became shorter while the CRC was computed.
        damage = f"checksum: the header says {header.crc:08x}, the bytes have {crc:08x}"
        if self._leads_on(end, header):
            return self._accept(position, header, crc, damage)
        # If no batch can follow at `end`, the length may be wrong: then the batch with the next offset begins before `end`.
        following, _ = self._search(position + 1, header.next_offset if self._is_end(end) else None)
        if self._is_end(end) and following >= end:
            return self._accept(position, header, crc, damage)
        return Found(position, following - position, header, crc, damage)

    def _header(self, position: int) -> BatchHeader:
        """The header at a position. It is not parsed again if `_leads_on` has just parsed it."""
        if self._following is not None and self._following[0] == position:
            return self._following[1]
        return possible_header(*self._window.at(position, HEADER_SIZE, self._ahead))

    def _accept(self, position: int, header: BatchHeader, crc: int | None, damage: str | None) -> Found:
        offsets = self._order.take(header)
        return Found(position, header.size, header, crc, damage or offsets)

    def _leads_on(self, position: int, header: BatchHeader) -> bool:
        """Whether a possible header with later offsets follows at `position`, the end of the batch with this header. If so, the
        length of the batch is taken as correct."""
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
        """Whether no batch can follow at `position`: the file ends there, or zeros begin."""
        if position > self._part.end:
            return False
        view, at = self._window.at(position, HEADER_SIZE)
        return len(view) - at < HEADER_SIZE or not any(view[at : at + HEADER_SIZE])

    def _crc(self, position: int, size: int) -> int:
        """Computes the CRC-32C of a complete batch. A batch larger than a chunk is read in pieces."""
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
        """The `Found` for a batch that is longer than the rest of the file: a torn batch, or a wrong length if another batch
        follows."""
        left = self._window.size - position
        following, _ = self._search(position + 1)
        left = min(left, self._window.size - position)
        if following < self._window.size:
            text = f"header: a batch claims {header.size} bytes, {left} are left, and another batch follows"
            return Found(position, following - position, None, None, text)
        return Found(position, left, header, None, f"{self._tail_kind}: the file has {left} of the batch's {header.size} bytes")

    def _without_header(self, position: int, reason: str) -> Found:
        """The `Found` for bytes that are no possible header, for this reason; it extends to the next sound batch."""
        following, only_zeros = self._search(position)
        size, left = following - position, self._window.size - position
        if left < HEADER_SIZE:
            text = f"{self._tail_kind}: the file has {left} more bytes, less than the header of a batch"
        elif only_zeros and following >= self._window.size:
            kind = "preallocated" if self._extent.is_last else "zeros"
            text = f"{kind}: {size} bytes of zeros up to the end of the file"
        else:
            text = f"header: {reason}; {size} bytes hold no sound batch"
        return Found(position, size, None, None, text)

    @property
    def _tail_kind(self) -> str:
        return "torn tail" if self._extent.is_last else "cut off"

    def _search(self, position: int, base_offset: int | None = None) -> tuple[int, bool]:
        """Searches for the next sound batch, with this base offset if one is given. Returns its position, or the end of the range
        if there is none, and whether all bytes before it are zeros."""
        only_zeros, budget, start = True, SEARCH_CRC_BYTES_MAX, position
        while start < min(self._part.end, self._window.size):
            view, at = self._window.at(start, HEADER_SIZE)
            chunk = bytes(view[at : at + CHUNK])
            for index, header in self._candidates(chunk):
                found_at = start + index
                if found_at >= self._part.end or budget <= 0:
                    break
                if base_offset not in (None, header.base_offset):
                    continue
                budget -= header.size
                if found_at + header.size <= self._window.size and self._crc(found_at, header.size) == header.crc:
                    return found_at, only_zeros and not any(chunk[:index])
            only_zeros = only_zeros and chunk == _ZEROS[: len(chunk)]
            if len(chunk) < HEADER_SIZE:
                break
            start += len(chunk) - HEADER_SIZE + 1
        return min(self._part.end, self._window.size), only_zeros

    def _candidates(self, chunk: bytes) -> Iterator[tuple[int, BatchHeader]]:
        """Yields the possible headers with later offsets that lie completely in the chunk, each with its index in the chunk."""
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
