"""Loggers for code that may run in a user's process: always the client, and in a user's tests a whole cluster.

A library prints nothing to its application's stdout, but structlog does until it is configured. So the loggers here have two
targets. If the application has configured structlog (nodes and their tests do), lines go there. Otherwise they go to the standard
library's `logging` under the module's name, as lines of libraries do: the application's handlers receive them, and without
handlers Python writes warnings and errors to stderr.

The target is chosen for each line, because an application imports this module before it configures anything. `route` takes
precedence over both: if several nodes share a process, it finds the logger of the node that logs. structlog is imported with the
first line, because its import takes as long as a third of a short command of the command line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

_CALLERS_FRAME = 3
"""The number of calls between `logging` and the line of code that it reports as the source."""


route: Callable[[str], Any] | None = None
"""Takes the module's name and returns the logger of the node that runs now; None if no node runs. Set by `strandline.testing`."""


class _Logger:
    """A logger with structlog's methods, which selects the destination of each line."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _configured(self) -> Any:
        import structlog

        return structlog.get_logger()

    @cached_property
    def _standard(self) -> Any:
        import structlog

        return structlog.wrap_logger(
            logging.getLogger(self._name),
            processors=[_as_message],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            context_class=dict,
            cache_logger_on_first_use=True,
        )

    def __getattr__(self, name: str) -> Any:
        if route is not None and (routed := route(self._name)) is not None:
            return getattr(routed, name)
        import structlog

        return getattr(self._configured if structlog.is_configured() else self._standard, name)


def _as_message(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    name, exc_info = event.pop("event"), event.pop("exc_info", None)
    fields = "".join(f" {field}={value!r}" for field, value in event.items())
    # Without arguments `logging` takes the text as it is, per cent signs included.
    return (f"{name}{fields}",), {"exc_info": exc_info, "stacklevel": _CALLERS_FRAME}


def get_logger(name: str) -> Any:
    """The logger of a module, with structlog's methods. `name` is the module's `__name__`."""
    return _Logger(name)
