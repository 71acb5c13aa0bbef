"""Writes a cleaned segment under a temporary name, with fillers for what was removed."""

from __future__ import annotations

from strandline.protocol.records.batch import BatchHeader, Buffer, corrupt, read_header
from strandline.protocol.records.filler import is_filler, make_fillers
from strandline.storage.disk import Files, join
from strandline.storage.log.replacement import CLEANED_SUFFIX, CleanedSegment
from strandline.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, file_name


class SegmentWriter:
    """Writes the batches of one cleaned segment, in order. Removed batches and fillers of one leader epoch that lie side by side
    become one filler."""

    def __init__(self, files: Files, directory: str, base_offset: int, index_interval_bytes: int, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._files = files
        self._base_offset = base_offset
        self._interval = index_interval_bytes
        self._paths = [join(directory, file_name(base_offset, suffix)) + CLEANED_SUFFIX for suffix in _SUFFIXES]
        self._file = files.open(self._paths[0], create=True)
        if self._file.size:
            self._file.truncate(0)
        self._segment = Segment(files, directory, base_offset, self._file, 0)
        self._segment.start_indexes()
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self.size = 0
        """Number of bytes written, those that still wait in memory included."""
        self._next_offset = base_offset
        """The offset after the last written batch. The offsets from here to that of the next batch get a filler."""
        self._gap_end = base_offset
        self._gap_epoch = -1
        self._gap_batches = 0
        self.has_changes = False
        """Whether the segment differs from what was read."""

    def add(self, header: BatchHeader, data: Buffer, cleaned: Buffer | None) -> None:
        """Write a batch after its cleaning. `cleaned`: the rest of the batch; None if nothing is left of it."""
        if cleaned is None:
            self._remove(header)
            return
        self.has_changes |= cleaned is not data
        self._close_gap()
        self._write(cleaned, header if cleaned is data else read_header(cleaned))
        self._next_offset = self._gap_end = header.next_offset

    def _remove(self, header: BatchHeader) -> None:
        if self._gap_batches and self._gap_epoch != header.leader_epoch:
            self._close_gap()
        self.has_changes |= bool(self._gap_batches) or not is_filler(header)
        self._gap_epoch, self._gap_end = header.leader_epoch, header.next_offset
        self._gap_batches += 1

    def _close_gap(self) -> None:
        for filler in make_fillers(self._next_offset, self._gap_end, self._gap_epoch):
            self._write(filler, read_header(filler))
        self._next_offset, self._gap_batches = self._gap_end, 0

    def _write(self, data: Buffer, header: BatchHeader) -> None:
        self._segment.note(header.last_offset, self.size, header.size, header.max_timestamp, self._interval)
        self._pending.append(bytes(data))
        self._pending_bytes += len(data)
        self.size += len(data)
        if self._pending_bytes >= self._buffer_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._file.append(self._pending)
        self._pending, self._pending_bytes = [], 0

    def finish(self, end_offset: int, modified_ms: int | None) -> CleanedSegment:
        """Write the rest and the indexes, and make the segment durable. Raises CORRUPT_MESSAGE if it does not end at
        `end_offset`.

        `modified_ms`: when the last of the old segments was written; None if not known. The new one keeps this time, because
        retention counts the age of records without timestamps from it."""
        self._close_gap()
        if self._next_offset != end_offset:
            corrupt(f"the cleaned segment ends at offset {self._next_offset} instead of {end_offset}")
        self._flush()
        if modified_ms is not None:
            self._files.set_modified_ms(self._paths[0], modified_ms)
        self._file.fsync()
        self._file.close()
        segment = self._segment
        segment.time_index.maybe_append(segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)
        self._files.write(self._paths[1], segment.offset_index.entries)
        self._files.write(self._paths[2], segment.time_index.entries)
        return CleanedSegment(self._base_offset, end_offset, self.size)

    def discard(self) -> None:
        """Remove the files, because they will not be used."""
        self._file.close()
        for path in self._paths:
            self._files.remove(path)


_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
