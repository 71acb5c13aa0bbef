"""What outlives a call into a log: work that is handed to a thread, and the failure that ends a log directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.storage.disk import DiskError, Files


class DirFailure:
    """The first disk error of a log directory; shared by its logs, for after it none of them is written to again."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: DiskError | None = None


class FlushWork(NamedTuple):
    """Closed segments to be fsynced. `run` touches no state of the log and may take place on a thread."""

    files: Files
    paths: list[str]
    end_offset: int
    truncations: int
    stopwatch: Callable[[], float]
    took_s: list[float]
    """How long it took, once it is done."""

    def run(self) -> None:
        started_at = self.stopwatch()
        self._fsync()
        self.took_s.append(self.stopwatch() - started_at)

    def _fsync(self) -> None:
        for path in self.paths:
            try:
                self.files.fsync_path(path)
            except DiskError as e:
                if not e.is_missing:  # deleted meanwhile: nothing left to make durable
                    raise
