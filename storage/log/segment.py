"""A segment: one `.log` file of consecutive batches, with its indexes.

    00000000000000005000.log         batches from offset 5000 on
    00000000000000005000.index       offset -> position        } sparse, rebuilt from the batches if damaged, loaded at first use
    00000000000000005000.timeindex   timestamp -> offset       } (`index.py`)
    00000000000000005000.txnindex    aborted transactions, if there are any (`transaction_index.py`)

Only the last segment of a log is appended to. The bytes of the others no longer change, except by a truncation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error
from typing import NamedTuple

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX, MAGIC, BatchHeader, check_crc, corrupt
from strandline.storage.disk import Buffer, File, Files, join
from strandline.storage.log.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from strandline.storage.log.transaction_index import TRANSACTION_INDEX_SUFFIX, TransactionIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"

_CHUNK = 16 << 10
NO_TIMESTAMP = -1


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a log's file with this base offset."""
    return f"{base_offset:020d}{suffix}"


class DamagedBatch(BrokerError):
    """CORRUPT_MESSAGE: a segment has no valid batch at `position`, where `offset` was expected."""

    def __init__(self, position: int, offset: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} is damaged on this replica's disk: {reason}")
        self.position = position
        self.offset = offset


def unexpected(found: int, expected: int) -> str:
    """Why a batch at offset `found` cannot follow one that ends before `expected`."""
    if found < expected:
        return f"offset {found} where {expected} was expected"
    return (
        f"offsets {expected} to {found - 1} are missing; in a log that was copied from Apache Kafka this is not damage, because "
        "its cleaner leaves such gaps, but a broker cannot serve them"
    )


class Cut(NamedTuple):
    """A planned truncation of a segment, with all data that it needs from the file. The truncation itself reads nothing, so no
    read error can stop it half-way."""

    position: int
    offset: int
    """The base offset of the first batch that is removed: the segment's new end."""
    max_timestamp: int
    """The newest timestamp of the batches that stay; -1 if none stays."""
    max_timestamp_offset: int


class _Stop(NamedTuple):
    """The place where a walk over the batch headers ended."""

    began_at: int
    """Position where the walk began: a batch that an index entry names correctly, or 0."""
    position: int
    offset: int
    """The offset expected at `position`: the next offset after the batch before it."""
    header: BatchHeader | None
    """The batch at `position`; None if the segment ends there."""
    before_at: int
    before: BatchHeader | None
    """The batch before `position`, which begins at `before_at`; None if the walk has passed no batch."""


def parse_header(buf: Buffer, pos: int, room: int) -> BatchHeader:
    """The batch header at `pos`. `buf` may hold no more of the batch than its header. Raises CORRUPT_MESSAGE if the header is not
    plausible, or claims more than `room` bytes."""
    try:
        fields = HEADER.unpack_from(buf, pos)
    except error:
        corrupt("a batch is cut off in its header")
    base_offset, length, epoch, magic, _, _, last_delta, *_, count = fields
    size = length + LENGTH_PREFIX
    if magic != MAGIC:
        corrupt(f"batch format {magic} is not supported, only 2")
    if size < HEADER_SIZE or size > room:
        corrupt(f"a batch claims {size} bytes where {room} are left")
    if base_offset < 0 or epoch < -1 or last_delta < 0 or not 0 <= count <= last_delta + 1:
        corrupt(f"a batch claims {count} records from offset {base_offset} to {base_offset + last_delta}")
    return BatchHeader(base_offset, size, *fields[2:])


class Segment:
    """One segment of a log: its file, its indexes, and its timestamps."""

    __slots__ = (
        "_indexed_timestamp",
        "_offset_index",
        "_time_index",
        "_unindexed",
        "aborted",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "files",
        "first_timestamp",
        "is_indexed_in_part",
        "max_timestamp",
        "max_timestamp_offset",
        "roll_jitter_ms",
    )

    def __init__(self, files: Files, directory: str, base_offset: int, file: File, created_ms: int) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        """The lowest offset that the segment may hold; its files are named by it."""
        self.file = file
        self.created_ms = created_ms
        self.first_timestamp = NO_TIMESTAMP
        """The max timestamp of the first batch, from which `segment.ms` counts. -1 if not known."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """The last offset of the first batch with `max_timestamp`."""
        self.roll_jitter_ms: int | None = None
        """How much earlier than `segment.ms` the segment ends, in ms. The log draws it when it first checks the segment's age,
        because it knows the topic's settings by then. None before that."""
        self.is_indexed_in_part = False
        """Whether a batch could not be read when the indexes were built. Batches after it may have newer timestamps than
        `max_timestamp`."""
        self._unindexed = 0
        """Bytes appended since the last index entry."""
        self._indexed_timestamp = NO_TIMESTAMP
        """A timestamp at or below the last entry of the time index. With it, an append need not read the index."""
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self.aborted: TransactionIndex | None = None
        """The aborted transactions whose markers are in this segment; None if there is none."""

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int, now_ms: int) -> Segment:
        """Create an empty segment. Its index files are created when they are first saved."""
        file = files.open(join(directory, file_name(base_offset, LOG_SUFFIX)), create=True)
        if file.size:
            file.truncate(0)
        segment = cls(files, directory, base_offset, file, now_ms)
        segment.start_indexes()
        return segment

    @classmethod
    def open(cls, files: Files, directory: str, base_offset: int, now_ms: int) -> Segment:
        """Open the segment whose file exists. The indexes are loaded at their first use."""
        file = files.open(join(directory, file_name(base_offset, LOG_SUFFIX)), create=False)
        return cls(files, directory, base_offset, file, now_ms)

    @property
    def size(self) -> int:
        return self.file.size

    def path(self, suffix: str) -> str:
        return join(self.directory, file_name(self.base_offset, suffix))

    def relocate(self, directory: str) -> None:
        """Close the descriptor, and open the files in this directory from now on, because they are about to be moved there."""
        self.directory = directory
        self.file.close()
        self.file.path = self.path(LOG_SUFFIX)
        for index, suffix in ((self._offset_index, INDEX_SUFFIX), (self._time_index, TIME_INDEX_SUFFIX)):
            if index is not None:
                index.path = self.path(suffix)

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[tuple[int, int, int]], index_interval_bytes: int) -> None:
        """Append `buffers`, which hold `batches`: (last offset, size, max timestamp) each. If it raises DiskError, nothing was
        appended."""
        position = self.file.size
        self.file.append(buffers)
        for last_offset, size, timestamp in batches:
            self.note(last_offset, position, size, timestamp, index_interval_bytes)
            position += size

    def note(self, last_offset: int, position: int, size: int, timestamp: int, index_interval_bytes: int) -> None:
        """Update timestamps and indexes for a batch in the file. Called for each batch in the order of the file."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
            if self.first_timestamp < 0:
                self.first_timestamp = timestamp
        if self._unindexed > index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            # Also if the newest batch lies before this one: a truncation reads only the batches after the last index entry.
            if self.max_timestamp > self._indexed_timestamp:
                self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
                self._indexed_timestamp = self.max_timestamp
            self._unindexed = 0
        self._unindexed += size

    def has_room(self, size: int, last_offset: int, segment_bytes: int, segment_index_bytes: int) -> bool:
        """Whether an append of `size` bytes that ends at `last_offset` keeps the segment within its limits."""
        if self.file.size + size > segment_bytes:
            return False
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return False
        index = self._offset_index
        return index is None or len(index.entries) < segment_index_bytes

    # -- indexes --------------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def _load_indexes(self) -> None:
        offsets = OffsetIndex.load(self.files, self.path(INDEX_SUFFIX), self.size)
        times = TimeIndex.load(self.files, self.path(TIME_INDEX_SUFFIX))
        if offsets is None or times is None or (self.size and not len(times)) or not self._is_true(offsets):
            self.rebuild_indexes()
            return
        self._offset_index, self._time_index, self.is_indexed_in_part = offsets, times, False
        if len(times) and not self.has_time_entry(*times.last()):
            self.rebuild_indexes()

    def _is_true(self, index: OffsetIndex) -> bool:
        """Whether the last entry points to the batch that it names. In a file left by an older log it does not."""
        if not len(index):
            return True
        relative_offset, position = index.last()
        try:
            header = self.header_at(position)
        except BrokerError:
            return False
        return header.last_offset == self.base_offset + relative_offset

    def has_time_entry(self, timestamp: int, relative_offset: int) -> bool:
        """Whether a batch ends at that offset and has that max timestamp."""
        try:
            found = self.position_of(self.base_offset + relative_offset)
        except BrokerError:
            return False
        if found is None:
            return False
        header = found[1]
        return header.last_offset == self.base_offset + relative_offset and header.max_timestamp == timestamp

    def start_indexes(self) -> None:
        """Replace the indexes by empty ones, which `note` fills."""
        self._offset_index = OffsetIndex(self.files, self.path(INDEX_SUFFIX))
        self._time_index = TimeIndex(self.files, self.path(TIME_INDEX_SUFFIX))
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = self._indexed_timestamp = NO_TIMESTAMP
        self._unindexed = 0

    def rebuild_indexes(self, index_interval_bytes: int = 4096) -> None:
        """Rebuild the indexes from the batch headers and save them.

        At a batch that cannot be read, or does not continue the offsets, the rebuild stops and saves nothing, so that the next
        process tries again; a read of that batch reports the damage."""
        self.start_indexes()
        self.is_indexed_in_part = False
        expected = self.base_offset
        try:
            for position, header in self.headers(0):
                if header.base_offset != expected:
                    corrupt(unexpected(header.base_offset, expected))
                expected = header.next_offset
                self.note(header.last_offset, position, header.size, header.max_timestamp, index_interval_bytes)
        except BrokerError:
            self.is_indexed_in_part = True
        self.save_indexes()

    def save_indexes(self) -> None:
        """Write index entries that are not on the disk yet. The last time entry is the segment's newest timestamp."""
        if self._offset_index is None or self._time_index is None or self.is_indexed_in_part:
            return
        self._time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self._offset_index.save()
        self._time_index.save()

    def drop_indexes(self) -> None:
        """Free the loaded indexes of a segment that is not appended to. They are loaded again when needed."""
        self.save_indexes()
        self._offset_index = self._time_index = None

    # -- reading --------------------------------------------------------------------------------------------------

    def header_at(self, position: int) -> BatchHeader:
        """Return the batch header at `position`. Raises CORRUPT_MESSAGE if it is not plausible."""
        room = self.size - position
        return parse_header(self.file.pread(HEADER_SIZE, position), 0, room)

    def headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from `position` to `end` (default: the segment's end). Raises CORRUPT_MESSAGE at a
        header that is not plausible."""
        chunk, start, end = memoryview(b""), position, self.size if end is None else end
        while position < end:
            if position + HEADER_SIZE > start + len(chunk):
                chunk, start = self.file.pread(_CHUNK, position), position
            header = parse_header(chunk, position - start, end - position)
            yield position, header
            position += header.size

    def position_of(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the batch that contains `offset`; None if the segment ends before it. Raises DamagedBatch if a
        batch on the way is not plausible, or does not continue the offsets."""
        stop = self._walk(offset)
        return None if stop.header is None else (stop.position, stop.header)

    def missing(self, offset: int) -> DamagedBatch:
        """The damage because of which `offset`, which lies below the log end, was not found in this segment."""
        try:
            return self._damage(self._walk(offset), "the segment ends there")
        except DamagedBatch as e:
            return e

    def _walk(self, offset: int) -> _Stop:
        """Walk from the nearest index entry to the batch that contains `offset`, or to the segment's end."""
        began_at, before = self._entry_below(offset)
        position = began_at if before is None else began_at + before.size
        expected = self.base_offset if before is None else before.next_offset
        before_at = began_at
        try:
            for found, header in self.headers(position):
                position = found
                if header.base_offset != expected:
                    corrupt(unexpected(header.base_offset, expected))
                if header.last_offset >= offset:
                    return _Stop(began_at, found, expected, header, before_at, before)
                before_at, before = found, header
                position, expected = found + header.size, header.next_offset
        except BrokerError as e:
            raise self._damage(_Stop(began_at, position, expected, None, before_at, before), str(e)) from None
        return _Stop(began_at, position, expected, None, before_at, before)

    def _damage(self, stop: _Stop, reason: str) -> DamagedBatch:
        """The damage at `stop`. If the batch before it is not whole, that one is damaged: its wrong length or last offset led to
        the wrong position."""
        if stop.before is not None and not self._is_whole(stop.before_at, stop.before):
            return DamagedBatch(stop.before_at, stop.before.base_offset, reason)
        return DamagedBatch(stop.position, stop.offset, reason)

    def _entry_below(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Position and header of the batch of the last index entry below `offset`.

        (0, None) if there is no entry, or the entry or its batch is wrong; the walk then begins at the segment's start."""
        relative, position = self.offset_index.lookup(offset - 1 - self.base_offset)
        if position:
            try:
                header = self.header_at(position)
            except BrokerError:
                return 0, None
            if header.last_offset == self.base_offset + relative:
                return position, header
        return 0, None

    def _is_whole(self, position: int, header: BatchHeader) -> bool:
        return check_crc(self.file.pread(header.size, position), 0, header.size)

    def load_tail(self) -> int:
        """Load the state of the last segment from its indexes, after an orderly stop. Returns the next offset."""
        index, times = self.offset_index, self.time_index
        _, position = index.last()
        self.max_timestamp, relative = times.last()
        self.max_timestamp_offset = self.base_offset + relative
        next_offset = self.base_offset
        expected = -1 if position else self.base_offset  # The end of the batch of an index entry was checked as it was loaded.
        for at, header in self.headers(position):
            if expected >= 0 and header.base_offset != expected:
                corrupt(unexpected(header.base_offset, expected))
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
            self._unindexed = at + header.size - position
            next_offset = expected = header.next_offset
        if self.size:
            self.first_timestamp = self.header_at(0).max_timestamp
        return next_offset

    def load_timestamps(self) -> None:
        """Set `max_timestamp` of a closed segment from its time index."""
        if self.max_timestamp < 0 and self.size:
            timestamp, relative = self.time_index.last()
            if self.max_timestamp < 0:
                self.max_timestamp, self.max_timestamp_offset = timestamp, self.base_offset + relative

    # -- life -----------------------------------------------------------------------------------------------------

    def find_cut(self, offset: int) -> Cut:
        """Plan a truncation that keeps everything below `offset`, or everything before the batch that contains it.

        Changes nothing. Raises DamagedBatch if a batch below `offset` cannot be read, because then the end of the remaining
        batches is unknown."""
        try:
            stop = self._walk(offset)
            began_at, position, found, header = stop.began_at, stop.position, stop.offset, stop.header
        except DamagedBatch as e:
            if e.offset < offset:
                raise
            began_at, position, found, header = 0, e.position, e.offset, None
        else:
            if found < offset and header is None:
                raise self._damage(stop, "the segment ends there")
        if found < offset and header is not None and not self._is_whole(position, header):
            raise DamagedBatch(position, found, f"it claims to end at offset {header.last_offset}, and its checksum is wrong")
        timestamp, relative = self.time_index.last_before(found - self.base_offset) if began_at else (NO_TIMESTAMP, 0)
        newest, newest_at = timestamp, self.base_offset + relative
        try:
            for _, kept in self.headers(began_at, position):
                if kept.max_timestamp > newest:
                    newest, newest_at = kept.max_timestamp, kept.last_offset
        except BrokerError as e:  # These batches were readable a moment ago.
            raise DamagedBatch(0, self.base_offset, str(e)) from None
        return Cut(position, found, newest, newest_at)

    def cut(self, at: Cut) -> None:
        """Cut the segment at `at`, the result of `find_cut`; nothing may have changed since."""
        index, times = self.offset_index, self.time_index
        self.file.truncate(at.position)
        index.truncate_to_position(at.position)
        times.truncate_from(at.offset - self.base_offset)
        self._indexed_timestamp = NO_TIMESTAMP
        self.max_timestamp, self.max_timestamp_offset = at.max_timestamp, at.max_timestamp_offset
        self._unindexed = at.position - index.last()[1]
        if self.aborted is not None:
            self.aborted.truncate_from(at.offset)
        self.is_indexed_in_part = False
        if not at.position:
            self.first_timestamp = NO_TIMESTAMP

    def close(self) -> None:
        self.save_indexes()
        self.file.close()

    def remove(self, *, is_rewritten: bool = False) -> list[str]:
        """Rename the segment's files. Returns the new paths, which the caller unlinks; that may be slow. `is_rewritten`: a
        segment with the same base offset takes its place. The snapshot of the producers there, and the index of aborted
        transactions, are those of the new one, and stay."""
        self.file.close()
        gone = []
        suffixes = [LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX]
        if not is_rewritten:
            suffixes += [SNAPSHOT_SUFFIX] if self.aborted is None else [SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX]
        for suffix in suffixes:
            path = self.path(suffix)
            if self.files.exists(path):
                self.files.rename(path, path + DELETED_SUFFIX)
                gone.append(path + DELETED_SUFFIX)
        return gone
