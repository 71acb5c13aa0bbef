"""Keeps the log lines of a cluster's nodes, apart from the log of the test that they run in.

A node in the test's process logs through the same loggers as everything else in the process. The running event loop tells
which node logged a line, because each node has its own loop (`process_loop.py`). The last lines are kept for the report of a
failed test; the application's own logging does not get them.
"""

from __future__ import annotations

import threading
import time
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from strandline.protocol import loggers

T = TypeVar("T")

LINES_MAX = 1000
_LEVELS = ("debug", "info", "warning", "error", "critical")

_thread = threading.local()
_users = 0
_before: Callable[[str], Any] | None = None


class Line(NamedTuple):
    at: float
    """Seconds since 1970."""
    node: str
    level: str
    event: str
    """Name of the event; docs/logs.md lists them."""
    fields: dict[str, Any]

    def __str__(self) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(self.at)) + f".{int(self.at * 1000) % 1000:03d}"
        fields = "".join(f" {name}={_short(value)}" for name, value in self.fields.items())
        level = "" if self.level == "info" else f"{self.level} "
        return f"{moment} {self.node:<14} {level}{self.event}{fields}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else text[:297] + "..."


class Lines:
    """The last LINES_MAX lines of all nodes of a cluster, in the order in which they were logged."""

    def __init__(self) -> None:
        self._kept: deque[Line] = deque(maxlen=LINES_MAX)

    def add(self, line: Line) -> None:
        self._kept.append(line)

    def __iter__(self) -> Iterator[Line]:
        return iter(tuple(self._kept))

    def last(self, count: int) -> list[Line]:
        """The last `count` lines, without those of level debug."""
        return [line for line in self if line.level != "debug"][-count:]


class Speaker:
    """The logger of one node, with structlog's methods (`info`, `warning`, ...): it adds each line to `lines`."""

    def __init__(self, node: str, lines: Lines) -> None:
        self.node = node
        self._lines = lines

    def __getattr__(self, level: str) -> Callable[..., None]:
        if level not in (*_LEVELS, "exception"):
            raise AttributeError(level)

        def say(event: str, *, exc_info: Any = None, **fields: Any) -> None:
            if level == "exception" and exc_info is None:
                exc_info = True
            if exc_info:
                fields["exception"] = _told(exc_info)
            self._lines.add(Line(time.time(), self.node, "error" if level == "exception" else level, event, fields))

        return say


def _told(exc_info: Any) -> str:
    if isinstance(exc_info, BaseException):
        return "".join(traceback.format_exception(exc_info))
    return traceback.format_exc()


def speaking_in_thread(speaker: Speaker, work: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Run `work` on this thread for a node, so that its log lines are attributed to the node."""
    _thread.speaker = speaker
    try:
        return work(*args)
    finally:
        _thread.speaker = None


def _route(_module: str) -> Any:
    loop = events._get_running_loop()
    return getattr(_thread, "speaker", None) if loop is None else getattr(loop, "speaker", None)


def begin_routing() -> None:
    """Route log lines to their nodes, until `end_routing` was called as often as this."""
    global _users, _before
    if _users == 0:
        _before, loggers.route = loggers.route, _route
    _users += 1


def end_routing() -> None:
    global _users
    _users -= 1
    if _users == 0:
        loggers.route = _before
