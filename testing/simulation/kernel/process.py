"""The loop of the process whose code runs, and the exception that ends a process.

The trace, the loops and the disks import this module; it imports none of them.
"""

from __future__ import annotations

import contextvars
from asyncio import AbstractEventLoop

OWNER: contextvars.ContextVar[AbstractEventLoop | None] = contextvars.ContextVar("OWNER", default=None)
"""The loop of the process to which the running thread belongs; a thread has no running loop."""


class ProcessDied(BaseException):
    """The simulated process ended here, inside an operation. No production code may catch it or continue after it."""
