"""Loggers for whatever may run in somebody else's process: the client always, a whole cluster in a test of theirs.

A library prints nothing to its application's stdout, which structlog does as long as nobody has configured it. So: an
application that configured structlog has our lines as it wants all lines (the nodes and their tests do that). For
everyone else we log as libraries do, through the standard library's `logging`, under the module's name: the
application's handlers get them, and where it has none either, Python itself writes warnings and worse to stderr.

Which of the two is asked anew with each line, since an application imports us before it configures anything. Before both
stands `route`: where several nodes share a process, a line belongs to the node that says it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

_CALLERS_FRAME = 3
"""So many calls lie between `logging` and the line of ours that it shall name."""


route: Callable[[str], Any] | None = None
"""Given the module's name, the logger of whoever speaks right now; None: nobody special. Set by `strandline.testing`."""


class _Logger:
    """Has structlog's methods."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._configured = structlog.get_logger()
        self._standard = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[_as_message],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            context_class=dict,
            cache_logger_on_first_use=True,
        )

    def __getattr__(self, name: str) -> Any:
        if route is not None and (routed := route(self._name)) is not None:
            return getattr(routed, name)
        return getattr(self._configured if structlog.is_configured() else self._standard, name)


def _as_message(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    name, exc_info = event.pop("event"), event.pop("exc_info", None)
    fields = "".join(f" {field}={value!r}" for field, value in event.items())
    # Without arguments `logging` takes the text as it is, per cent signs included.
    return (f"{name}{fields}",), {"exc_info": exc_info, "stacklevel": _CALLERS_FRAME}


def get_logger(name: str) -> Any:
    return _Logger(name)
