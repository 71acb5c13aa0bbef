"""Writes the log start checkpoint soon after a log start has moved, on a thread.

Records below the log start stay in their segments for a while. If a broker restarted before its new log start is on the disk,
they could be read again. So the response to DeleteRecords waits until the log start is written, and cannot wait for the periodic
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.disk_work import DiskWork
from strandline.storage.directory.log_dirs import LogDirs


class LogStartSaver:
    """Writes the log starts of all logs, one write at a time. Log starts that move during a write share the next one."""

    def __init__(self, log_dirs: LogDirs, disk_work: DiskWork) -> None:
        self._log_dirs = log_dirs
        self._disk_work = disk_work
        self._is_writing = False
        self._is_due = False
        """Whether a log start has moved since the write in progress began."""
        self._waiting: list[Callable[[], None]] = []

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write the present log starts, and then call `then` on the loop, even if a disk has failed."""
        if then is not None:
            self._waiting.append(then)
        self._is_due = True
        if not self._is_writing:
            self._write()

    def _write(self) -> None:
        self._is_writing, self._is_due = True, False
        waiting, self._waiting = self._waiting, []
        writes = [log_dir.log_start_checkpoint().write for log_dir in self._log_dirs.online]
        self._disk_work.run_each(writes, partial(self._on_written, waiting))

    def _on_written(self, waiting: list[Callable[[], None]]) -> None:
        self._is_writing = False
        for then in waiting:
            then()
        if self._is_due and not self._is_writing:
            self._write()
