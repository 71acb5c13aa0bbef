"""A simulated process as its own code can meet it: which loop the running code belongs to, and the end of the process.

The trace, the loops and the disks ask for both; nothing here knows any of them.
"""

from __future__ import annotations

import contextvars
from asyncio import AbstractEventLoop

OWNER: contextvars.ContextVar[AbstractEventLoop | None] = contextvars.ContextVar("OWNER", default=None)
"""On a thread of a process, which has no running loop: that process's loop."""


class ProcessDied(BaseException):
    """The simulated process ended here, inside an operation. No production code may catch it, and none goes on after it."""
