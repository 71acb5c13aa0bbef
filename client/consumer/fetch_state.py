"""The states in which a consumer waits before it may fetch a partition, and the failures that keep it from reading one. Pure.

    INITIALIZING   AwaitReset(timestamp)
           \\          |
       seek \\         | the leader has named the offset, or a seek
             v        v
             FETCHING  <---------------->  AWAIT_VALIDATION
                         a new leader /
                         the position is valid, or a seek

Kafka's consumer has the same states (`SubscriptionState.FetchStates`). A partition is in exactly one of them, so a position that
is looked up is never validated at the same time. A failure (below) and a pause are independent of the state: a partition may fail
while its position is looked up, and when the failure is cleared the look-up goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.protocol.errors import StrandlineError


class FetchState(Enum):
    """The states that need no further facts. The other state is `AwaitReset`."""

    INITIALIZING = "initializing"
    """There is no position, and the consumer does not look one up. The partition needs a seek."""
    AWAIT_VALIDATION = "await validation"
    """There is a position, and a new leader, whose log must hold the record before the position (KIP-320)."""
    FETCHING = "fetching"
    """There is a position, and records may be fetched from it."""


@dataclass(frozen=True, slots=True)
class AwaitReset:
    """There is no position. The leader is asked for the offset that belongs to `timestamp`."""

    timestamp: int
    """Milliseconds since 1970 (UTC), or EARLIEST or LATEST."""


class Failure:
    """Why a partition cannot be read any further. A seek clears it."""

    __slots__ = ("error", "was_raised")

    def __init__(self, error: StrandlineError) -> None:
        self.error = error
        self.was_raised = False
        """A call has raised the error. Later calls raise it again only if they have no records to return."""

    def to_raise(self) -> StrandlineError:
        """The error, for a call that raises it now."""
        self.was_raised = True
        return self.error.with_traceback(None)  # Otherwise its traceback would grow with each call.
