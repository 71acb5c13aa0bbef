"""Reads one replica's log from the disk: its sound batches in order, and the bytes between them that are not a sound batch.

    00000000000000000000.log   00000000000000001200.log   ...       read in the order of their base offsets

A batch is sound if its header is plausible and the CRC-32C recomputed over its bytes is the stored one. After bytes that are not
a sound batch, the reader searches byte by byte for the next one. It shares no reading code with the broker, because a fault in
that code would hide itself. Files are opened for reading only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import HEADER_SIZE, LENGTH_PREFIX, MAGIC, MAGIC_POS, BatchHeader, check_crc, read_header
from strandline.protocol.records.marker import EndTransactionMarker, is_marker, read_marker

CHUNK = 4 << 20
SEARCH_MAX = 64 << 20
"""How many bytes after damage are searched for a sound batch: more than the largest batch has."""

_SEGMENT = re.compile(r"(\d{20})\.log\Z", re.ASCII)
_SWAP = re.compile(r"(\d{20})\.log\.swap\Z", re.ASCII)


class Batch(NamedTuple):
    """A sound batch."""

    base_offset: int
    next_offset: int
    size: int
    """Bytes of the batch, with its header."""
    leader_epoch: int
    crc: int
    segment: int
    """Base offset of the segment."""
    position: int
    """Position of the first byte in the segment's file."""
    record_count: int
    max_timestamp: int
    """In ms since the epoch."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_control: bool
    is_transactional: bool = False
    is_marker: bool = False
    """Whether it ends a transaction: a COMMIT or ABORT marker, or one whose record a cleaner has removed."""
    is_abort: bool = False


class Damage(NamedTuple):
    """Bytes that are not a sound batch."""

    base_offset: int
    """The offset at which a batch was expected."""
    next_offset: int | None
    """Base offset of the sound batch after the damage; None: no sound batch follows in this log."""
    size: int
    segment: int
    position: int
    text: str
    """What is wrong with the bytes."""


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Base offset and path of each segment in a log's folder, sorted by base offset.

    If a broker was stopped while it replaced segments, these are the segments that it has after its next start: a `.swap` file
    takes the place of the segments that it covers, of which the first is removed first."""
    names = sorted(folder.iterdir())
    found = {int(match[1]): path for path in names if (match := _SEGMENT.match(path.name))}
    for path in names:
        match = _SWAP.match(path.name)
        if match and int(match[1]) not in found:
            base = int(match[1])
            end = _end(base, path)
            found = {each: kept for each, kept in found.items() if not base <= each < end} | {base: path}
    return sorted(found.items())


def _end(base: int, path: Path) -> int:
    """The offset after the last sound batch of a file; `base` if it has none."""
    return max((item.next_offset for item in read_segment(base, path, base) if isinstance(item, Batch)), default=base)


def segment_path(folder: Path, base: int) -> Path:
    """The file of a segment that `segments` lists."""
    path = folder / f"{base:020}.log"
    return path if path.exists() else path.with_name(path.name + ".swap")


def read_log(folder: Path) -> Iterator[Batch | Damage]:
    """All batches and damage of the log in this folder."""
    return read_files(segments(folder))


def read_files(files: Sequence[tuple[int, Path]]) -> Iterator[Batch | Damage]:
    """All batches and damage of a log; `files` are its segments, as `segments` lists them. Raises PermissionError or
    FileNotFoundError if a file cannot be opened."""
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


def read_batch(folder: Path, batch: Batch) -> bytes:
    """The bytes of a batch of the log in this folder. Raises OSError if the file cannot be read."""
    with (folder / f"{batch.segment:020}.log").open("rb") as file:
        file.seek(batch.position)
        return file.read(batch.size)


def _readable(base: int, path: Path, expected: int) -> Iterator[Batch | Damage]:
    """The items of one segment. If the disk fails to read it, the rest of the segment is damage."""
    try:
        for item in read_segment(base, path, expected):
            expected = expected if item.next_offset is None else item.next_offset
            yield item
    except (PermissionError, FileNotFoundError):
        raise
    except OSError as e:
        yield Damage(expected, None, 0, base, 0, f"the file cannot be read: {e.strerror}")


def read_segment(base: int, path: Path, expected: int) -> Iterator[Batch | Damage]:
    """The items of one file; the first batch should begin at the offset `expected`. If the file ends with bytes that are not a
    sound batch, the last item is a `Damage` without a next offset."""
    with path.open("rb") as file:
        window = _Window(file)
        while window.fill(HEADER_SIZE):
            header, problem = _look(window)
            if header is None or (problem and not _is_followed(window, header)):
                damage = _search(window, base, expected, problem)
                yield damage
                if damage.next_offset is None:
                    return
                expected = damage.next_offset
                continue
            position = window.position
            marker = read_marker(window.data, window.at, header) if is_marker(header) and not problem else None
            window.skip(header.size)
            expected = header.next_offset
            if problem:
                yield Damage(header.base_offset, header.next_offset, header.size, base, position, problem)
            else:
                yield _batch(header, base, position, marker)


class _Window:
    """A part of a file in memory that moves forward. It ends where the file ended when it was opened: a broker may append
    meanwhile, and a batch that grows while it is checked would look damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size
        self.data = b""
        self.at = 0
        """Index in `data` at which the next batch begins."""
        self._start = 0
        """Position of `data[0]` in the file."""

    @property
    def position(self) -> int:
        """Position of the next batch in the file."""
        return self._start + self.at

    def fill(self, size: int) -> bool:
        """Reads until `size` bytes from `at` on are in memory, or the file ends. False at the end of the file."""
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
    """The header of the next batch and what is wrong with the batch (empty: it is sound). The header is None if it is not
    plausible or not complete."""
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


def _is_followed(window: _Window, header: BatchHeader) -> bool:
    """Whether the size of a batch with a wrong checksum can be trusted: a batch with the next offset follows."""
    window.fill(header.size + HEADER_SIZE)
    after = window.at + header.size
    if after == len(window.data):
        return False
    is_next = int.from_bytes(window.data[after : after + 8], "big") == header.next_offset
    return is_next and window.data[after + MAGIC_POS : after + MAGIC_POS + 1] == bytes((MAGIC,))


def _search(window: _Window, segment: int, expected: int, problem: str) -> Damage:
    """Moves the window to the next sound batch whose offset is not below `expected`, or to the end of the searched bytes."""
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


def _batch(header: BatchHeader, segment: int, position: int, marker: EndTransactionMarker | None) -> Batch:
    return Batch(
        header.base_offset, header.next_offset, header.size, header.leader_epoch, header.crc, segment, position,
        header.record_count, header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
        header.is_control, header.is_transactional, is_marker(header), marker is not None and not marker.is_commit,
    )  # fmt: skip


class Index(NamedTuple):
    """The entries of an index file."""

    entries: list[tuple[int, int]]
    ends_in_zeros: bool
    """Whether zeros follow: Apache Kafka allocates the index files of a log's last segment ahead."""


def read_index(path: Path, entry_size: int) -> Index | None:
    """The entries of an `.index` (8 bytes each: offset relative to the segment, position) or a `.timeindex` (12 bytes each:
    timestamp, relative offset). None if the file does not exist or ends within an entry."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) % entry_size:
        return None
    used = -(-len(data.rstrip(b"\0")) // entry_size) * entry_size
    ends_in_zeros = len(data) - used > entry_size  # One entry of zeros may be a real one: the first record, at time 0.
    if ends_in_zeros:
        data = data[:used]
    cut = entry_size - 4
    pieces: Iterable[bytes] = (data[n : n + entry_size] for n in range(0, len(data), entry_size))
    entries = [(int.from_bytes(piece[:cut], "big"), int.from_bytes(piece[cut:], "big")) for piece in pieces]
    return Index(entries, ends_in_zeros)
