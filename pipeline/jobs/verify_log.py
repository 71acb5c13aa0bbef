"""One replica's log as it lies on the disk: its batches in order, and the places where there is no sound batch.

    00000000000000000000.log   00000000000000001200.log   ...       read in the order of their base offsets

Nothing of the broker's own reading code is used, so that a fault there does not hide itself: a batch is sound if its header is
plausible and the CRC-32C recomputed over its bytes is the stored one. Where no sound batch is, the search goes on byte by byte
for the next one. Files are opened for reading only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import HEADER_SIZE, LENGTH_PREFIX, MAGIC, MAGIC_POS, BatchHeader, check_crc, read_header

CHUNK = 4 << 20
SEARCH_MAX = 64 << 20
"""How many bytes behind a damage are searched for a sound batch: more than any batch has."""

_SEGMENT = re.compile(r"(\d{20})\.log\Z", re.ASCII)


class Batch(NamedTuple):
    """A sound batch."""

    base_offset: int
    next_offset: int
    size: int
    """In bytes, with its header."""
    leader_epoch: int
    crc: int
    segment: int
    """Base offset of the segment."""
    position: int
    """Of the first byte in the segment's file."""
    record_count: int
    max_timestamp: int
    """In ms."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_control: bool


class Damage(NamedTuple):
    """Bytes that are no sound batch."""

    base_offset: int
    """The offset that was expected there."""
    next_offset: int | None
    """Of the sound batch behind the damage; None: no sound batch follows in this log."""
    size: int
    segment: int
    position: int
    text: str


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Base offset and path of each segment, in order."""
    found = ((_SEGMENT.match(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def read_log(folder: Path) -> Iterator[Batch | Damage]:
    """The whole log."""
    return read_files(segments(folder))


def read_files(files: Sequence[tuple[int, Path]]) -> Iterator[Batch | Damage]:
    """The segments of a log, as `segments` lists them. PermissionError and FileNotFoundError if one cannot be opened."""
    held: Damage | None = None
    expected = files[0][0] if files else 0
    for base, path in files:
        for item in _readable(base, path, expected):
            if held is not None:
                # Only the next item shows where the damage ends.
                yield held._replace(next_offset=item.base_offset)
                held = None
            if isinstance(item, Damage) and item.next_offset is None:
                held = item
                continue
            expected = item.next_offset if item.next_offset is not None else expected
            yield item
    if held is not None:
        yield held


def _readable(base: int, path: Path, expected: int) -> Iterator[Batch | Damage]:
    """A disk that cannot read a sector damages the rest of the segment."""
    try:
        for item in read_segment(base, path, expected):
            expected = expected if item.next_offset is None else item.next_offset
            yield item
    except (PermissionError, FileNotFoundError):
        raise
    except OSError as e:
        yield Damage(expected, None, 0, base, 0, f"the file cannot be read: {e.strerror}")


def read_segment(base: int, path: Path, expected: int) -> Iterator[Batch | Damage]:
    """The batches of one file. If it ends with bytes that are no batch, the last item is a `Damage` without a next offset."""
    with path.open("rb") as file:
        window = _Window(file)
        while window.fill(HEADER_SIZE):
            header, problem = _look(window)
            if header is None or (problem and not _leads_on(window, header)):
                damage = _search(window, base, expected, problem)
                yield damage
                if damage.next_offset is None:
                    return
                expected = damage.next_offset
                continue
            position = window.position
            window.skip(header.size)
            expected = header.next_offset
            if problem:
                yield Damage(header.base_offset, header.next_offset, header.size, base, position, problem)
            else:
                yield _batch(header, base, position)


class _Window:
    """A part of a file in memory, that moves forward. What a broker appends after the file was opened is not read: else the end
    of an unfinished write could come while it is being looked at."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size
        self.data = b""
        self.at = 0
        """Where in `data` the next batch begins."""
        self._start = 0
        """Position in the file of `data[0]`."""

    @property
    def position(self) -> int:
        return self._start + self.at

    def fill(self, size: int) -> bool:
        """Have at least so many bytes from `at` on, or all that the file has; False if there are none."""
        while len(self.data) - self.at < size:
            more = self._file.read(min(max(CHUNK, size), self._left))
            if not more:
                break
            self._left -= len(more)
            self._start += self.at
            self.data, self.at = self.data[self.at :] + more, 0
        return self.at < len(self.data)

    def skip(self, size: int) -> None:
        self.at += size


def _look(window: _Window) -> tuple[BatchHeader | None, str]:
    """The header of the next batch, and what is wrong with the batch. No header: it is not plausible, or cut short."""
    claimed = int.from_bytes(window.data[window.at + 8 : window.at + 12], "big") + LENGTH_PREFIX
    if claimed <= SEARCH_MAX:
        window.fill(claimed)
    try:
        header = read_header(window.data, window.at)
    except BrokerError as e:
        return None, str(e)
    if not check_crc(window.data, window.at, header.size):
        return header, f"the stored checksum {header.crc:08x} is not that of the bytes"
    return header, ""


def _leads_on(window: _Window, header: BatchHeader) -> bool:
    """Whether the size of a batch with a wrong checksum is right: a batch with the next offset follows, or the file ends."""
    window.fill(header.size + HEADER_SIZE)
    after = window.at + header.size
    if after == len(window.data):
        return False
    is_next = int.from_bytes(window.data[after : after + 8], "big") == header.next_offset
    return is_next and window.data[after + MAGIC_POS : after + MAGIC_POS + 1] == bytes((MAGIC,))


def _search(window: _Window, segment: int, expected: int, problem: str) -> Damage:
    """Move to the next sound batch."""
    begin = window.position
    window.fill(SEARCH_MAX)
    data, at = window.data, window.at + 1
    while (magic := data.find(bytes((MAGIC,)), at + MAGIC_POS)) >= 0:
        at = magic - MAGIC_POS
        header = _sound(data, at)
        if header is not None and header.base_offset >= expected:
            window.skip(at - window.at)
            return Damage(expected, header.base_offset, window.position - begin, segment, begin, problem)
        at += 1
    size = len(data) - window.at
    window.skip(size)
    return Damage(expected, None, size, segment, begin, problem)


def _sound(data: bytes, at: int) -> BatchHeader | None:
    try:
        header = read_header(data, at)
    except BrokerError:
        return None
    return header if check_crc(data, at, header.size) else None


def _batch(header: BatchHeader, segment: int, position: int) -> Batch:
    return Batch(
        header.base_offset, header.next_offset, header.size, header.leader_epoch, header.crc, segment, position,
        header.record_count, header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
        header.is_control,
    )  # fmt: skip


class Index(NamedTuple):
    """The entries of an index file."""

    entries: list[tuple[int, int]]
    ends_in_zeros: bool
    """Whether zeros follow, as in a file whose space was allocated ahead: Apache Kafka does so for the last segment of a log."""


def read_index(path: Path, entry_size: int) -> Index | None:
    """The entries of an `.index` (8 bytes each: last offset relative to the segment, position) or a `.timeindex` (12 bytes:
    timestamp, relative offset); None if there is no file or its size is no multiple."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) % entry_size:
        return None
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    ends_in_zeros = len(data) - used > entry_size  # One entry of zeros may be that of the first record, at the time 0.
    if ends_in_zeros:
        data = data[:used]
    cut = entry_size - 4
    pieces: Iterable[bytes] = (data[n : n + entry_size] for n in range(0, len(data), entry_size))
    entries = [(int.from_bytes(piece[:cut], "big"), int.from_bytes(piece[cut:], "big")) for piece in pieces]
    return Index(entries, ends_in_zeros)
