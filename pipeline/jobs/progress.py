"""Progress of a Spark job: a thread that reports every few seconds while the driver waits for the job's tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(report: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """Calls `report` every `every_s` seconds, on a thread called `name`, until the block ends. An error of `report` ends the
    reports, not the block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            report()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
