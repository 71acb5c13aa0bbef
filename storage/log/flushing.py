"""The flush of closed segments as work for a thread, and the disk error that takes a log directory offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.storage.disk import DiskError, Files


class DirFailure:
    """The first disk error of a log directory. Its logs share it, because after it none of them is written to."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: DiskError | None = None


class FlushWork(NamedTuple):
    """Closed segments to fsync. `run` touches no state of the log, so it may run on a thread."""

    files: Files
    paths: list[str]
    end_offset: int
    truncations: int
    stopwatch: Callable[[], float]
    took_s: list[float]
    """The duration in seconds, once `run` is done; empty before."""

    def run(self) -> None:
        """fsync the segments, and measure the time. Raises DiskError, except for a file that was deleted meanwhile."""
        started_at = self.stopwatch()
        self._fsync()
        self.took_s.append(self.stopwatch() - started_at)

    def _fsync(self) -> None:
        for path in self.paths:
            try:
                self.files.fsync_path(path)
            except DiskError as e:
                if not e.is_missing:  # The file was deleted meanwhile, so nothing is left to make durable.
                    raise
