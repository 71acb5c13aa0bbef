"""The offset up to which a voter has flushed its metadata log, in a file beside the log, in Kafka's format.

    recovery-point-offset-checkpoint        0 | 1 | __cluster_metadata 0 0000000000000001200

A start may find a damaged batch. If the batch was flushed, this voter has promised to have it, and must not go on without it.
If it was not flushed, it is the torn tail that a power cut leaves; no promise covers it, and it is cut off. The log alone does
not show which of the two it is.

**Never above what is flushed**: the file is written after the flush, and lowered durably before a truncation. It may lag,
because it is overwritten in place without an fsync at each flush, which would double the time of a commit. So after a power
cut, damage within the last seconds before it can still look like a torn tail. After the death of the process alone it cannot.
"""

from __future__ import annotations

from strandline.controller.metadata.records import METADATA_TOPIC
from strandline.storage.checkpoints import RECOVERY_POINTS, OffsetCheckpoint, read_if_present
from strandline.storage.files import Files, join

_KEY = (METADATA_TOPIC, 0)


class FlushedPoint:
    """The file with the offset, and the offset that it holds."""

    def __init__(self, files: Files, directory: str) -> None:
        path = join(directory, RECOVERY_POINTS)
        data = read_if_present(files, path)
        found = None if data is None else OffsetCheckpoint.decode(data)
        self._file = files.open(path, create=True)
        if data is not None and found is None:
            self._file.truncate(0)  # It is damaged, and its rest would stay behind what `note` writes.
        self.offset = (found or {}).get(_KEY, 0)
        """Every record below was flushed; 0 if the file is missing or damaged."""

    def note(self, offset: int) -> None:
        """Store that every record below `offset` is flushed. The file is written without an fsync."""
        if offset != self.offset:
            self.offset = offset
            self._file.pwrite(f"0\n1\n{METADATA_TOPIC} 0 {offset:019d}\n".encode(), 0)

    def lower(self, offset: int) -> None:
        """Lower the offset durably, before a truncation to `offset`: records appended there later are not flushed yet."""
        if offset < self.offset:
            self.note(offset)
            self._file.fsync()

    def sync(self) -> None:
        """Flush the file: before a clean stop."""
        self._file.fsync()

    def close(self) -> None:
        self._file.close()
