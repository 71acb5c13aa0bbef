"""Up to where a voter's metadata log was flushed, beside the log; in Kafka's format.

    recovery-point-offset-checkpoint        0 | 1 | __cluster_metadata 0 0000000000000001200

A start may find a damaged batch. If the batch was flushed, this voter has promised to have it and must not go on without it.
If it was not, it is what a power cut leaves of a tail that was never promised, and is cut off. The log alone cannot say which.

**Never above what is flushed**: written after the flush, and lowered durably before a truncation. It may lag: the file is
overwritten in place and not fsynced at each flush, which would double the time of a commit. So a power cut *and* damage in
the last seconds before it can still be taken for a torn tail; the death of a process cannot.
"""

from __future__ import annotations

from strandline.controller.metadata.records import METADATA_TOPIC
from strandline.storage.checkpoints import RECOVERY_POINTS, OffsetCheckpoint, read_if_present
from strandline.storage.files import Files, join

_KEY = (METADATA_TOPIC, 0)


class FlushedPoint:
    def __init__(self, files: Files, directory: str) -> None:
        path = join(directory, RECOVERY_POINTS)
        data = read_if_present(files, path)
        found = None if data is None else OffsetCheckpoint.decode(data)
        self._file = files.open(path, create=True)
        if data is not None and found is None:
            self._file.truncate(0)  # Damaged: what `note` writes would be followed by the rest of it for ever.
        self.offset = (found or {}).get(_KEY, 0)
        """Everything below was flushed; 0 when the file is missing or damaged."""

    def note(self, offset: int) -> None:
        if offset != self.offset:
            self.offset = offset
            self._file.pwrite(f"0\n1\n{METADATA_TOPIC} 0 {offset:019d}\n".encode(), 0)

    def lower(self, offset: int) -> None:
        """Before the log is cut: what comes there later is not flushed yet."""
        if offset < self.offset:
            self.note(offset)
            self._file.fsync()

    def sync(self) -> None:
        self._file.fsync()

    def close(self) -> None:
        self._file.close()
