"""Logging of a process: structlog, one line per event, to stderr; coloured for a person, JSON for everyone else. It never
fails: see `Lines`.

Import this before anything that imports structlog. structlog imports rich at once where rich is installed, for pretty
tracebacks that a server never prints; that is half of a node's start-up, so rich is hidden while structlog is imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO, cast


def _import_structlog_without_rich() -> None:
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it now raises ImportError
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


_import_structlog_without_rich()

import structlog  # noqa: E402

__all__ = ["configure", "structlog"]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Lines:
    """The process's stderr, as far as structlog needs it. A reader that went away or a full disk costs lines; never does
    the work of whoever logs break off in its midst. Nothing is buffered, so nothing fails later, at the exit, either."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None: ...


def configure(*, node: str = "", level: str = "info") -> None:
    """Set structlog up for this process; `node` (its name, such as `broker-1`) is part of every line."""
    from structlog.processors import ExceptionRenderer, JSONRenderer, TimeStamper, add_log_level

    person = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback) if person else JSONRenderer()
    exceptions = [] if person else [ExceptionRenderer()]

    def add_node(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if node:
            event["node"] = node
        return event

    structlog.configure(
        processors=[
            add_log_level,
            add_node,
            TimeStamper(fmt="%H:%M:%S" if person else "iso", utc=not person),
            *exceptions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, Lines())),
        cache_logger_on_first_use=True,
    )
