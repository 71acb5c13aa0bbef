"""The folder of a table's snapshots: one file per partition, `TOPIC-PARTITION.table`. It is the table's door to the disk.

A file is written under another name, flushed to disk, and renamed: a crash leaves the old file or the new one. Two tables that
share a folder and a topic replace each other's files, which does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


class SnapshotFiles:
    """Reads and writes the files. The calls block, so they are made on a thread. They raise OSError."""

    def __init__(self, folder: str, topic: str) -> None:
        self._folder = folder
        self._topic = topic

    def path(self, partition: int) -> str:
        return os.path.join(self._folder, f"{self._topic}-{partition}.table")

    def read(self, partition: int) -> bytes | None:
        """The file of a partition; None if there is none."""
        try:
            with open(self.path(partition), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, partition: int, pieces: Sequence[bytes]) -> None:
        """Replace the file of a partition."""
        os.makedirs(self._folder, exist_ok=True)
        path = self.path(partition)
        with open(f"{path}.new", "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        self._sync_folder()

    def _sync_folder(self) -> None:
        """Make the new name durable."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
