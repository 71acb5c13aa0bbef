"""Logging of a process: structlog, one line per event, to stderr; coloured on a terminal, otherwise JSON. It never fails:
see `Lines`.

    STRANDLINE_LOG_LEVEL     debug, info (the default), warning, error
    STRANDLINE_LOG_FORMAT    auto (the default: console on a terminal, else json), json, console

Import this module before any other that imports structlog. If rich is installed, structlog imports it for tracebacks that
a server never prints. That takes half of a node's start-up time, so rich is hidden while structlog is imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO, cast

from strandline.protocol.errors import UsageError


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

__all__ = ["check_environment", "configure", "is_json", "structlog"]

LEVEL, FORMAT = "STRANDLINE_LOG_LEVEL", "STRANDLINE_LOG_FORMAT"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
FORMATS = ("auto", "json", "console")


class Lines:
    """The process's stderr, with the methods that structlog needs. If a line cannot be written (a closed pipe, a full
    disk), it is lost and no error is raised. Nothing is buffered, so the exit cannot fail either."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None: ...


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise UsageError for an invalid value of a logging variable."""
    for name, choices in ((LEVEL, tuple(LEVELS)), (FORMAT, FORMATS)):
        value = environment.get(name)
        if value is not None and value not in choices:
            raise UsageError(f"{name}: {value!r} is not allowed: must be one of {', '.join(choices)}")


def is_json(environment: Mapping[str, str]) -> bool:
    """Whether log lines are JSON. An invalid value counts as `auto`, because the error about it has to be logged, too."""
    wanted = environment.get(FORMAT)
    return wanted == "json" or (wanted != "console" and not _is_terminal())


def _is_terminal() -> bool:
    try:
        return os.isatty(2)
    except OSError:
        return False


def configure(*, node: str, environment: Mapping[str, str]) -> None:
    """Configure structlog for this process. Every line contains `node`, the node's name, such as `broker-1`."""
    from structlog.processors import ExceptionRenderer, JSONRenderer, TimeStamper, add_log_level

    person = not is_json(environment)
    renderer = _console(environment) if person else JSONRenderer()
    exceptions = [] if person else [ExceptionRenderer()]
    level = LEVELS.get(environment.get(LEVEL, ""), LEVELS["info"])

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
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, Lines())),
        cache_logger_on_first_use=True,
    )


def _console(environment: Mapping[str, str]) -> structlog.dev.ConsoleRenderer:
    # Colours only on a terminal, and not if NO_COLOR is set (https://no-color.org).
    colors = _is_terminal() and not environment.get("NO_COLOR")
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


def silence() -> None:
    """Discard all log lines: for a command that reports errors itself."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False)
