"""The core of a move of one replica to another log directory of its broker (KIP-113, KIP-858): which step comes next.

A future replica in the other directory copies the current log. When it has caught up, it replaces the current log, but only after
the controller has accepted the assignment of the replica to that directory: otherwise the controller would not elect another
leader if that directory failed. The states are Kafka's (`ReplicaAlterLogDirsThread.ReassignmentState`):

    NONE ---- caught up, flushed, announced ----> QUEUED ---- the controller has it ----> ACCEPTED ---- promoted ----> EFFECTIVE

If a move ends in QUEUED or ACCEPTED, the broker assigns the present directory again. While a move waits for the controller, the
current log grows, and the future replica follows it; it is promoted in a step in which it lacks no record.

At level 0 the metadata has no directories, so nothing is announced: the step that compares the logs also promotes. No state may
stand for "the controller need not know": the level may be raised before the next step, and then the controller has the present
directory, and would keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from strandline.protocol.partitions import TopicIdPartition


class MoveState(Enum):
    """The state of a move: how far the controller and the broker have got (see the module docstring)."""

    NONE = "none"
    QUEUED = "queued"
    ACCEPTED = "accepted"
    EFFECTIVE = "effective"


class Step(Enum):
    """The next step of a move."""

    RESTART = "restart"
    """Empty the future replica, and begin at the start of the current log."""
    CUT = "cut"
    """Cut the future replica where the current log was cut."""
    COPY = "copy"
    FLUSH = "flush"
    """Make the future replica durable, before the log that it copies is deleted."""
    ANNOUNCE = "announce"
    """Ask the controller to assign the replica to the new directory."""
    WAIT = "wait"
    PROMOTE = "promote"


class LogFacts(NamedTuple):
    """The offsets and the health of one log, the current one or the future replica: `next_step` compares the two."""

    start: int
    """The log start of the current log; the first offset that the future replica has."""
    end: int
    is_damaged: bool = False


@dataclass(slots=True)
class Move:
    """One move. The methods are its transitions; `next_step` changes nothing."""

    key: TopicIdPartition
    directory_id: bytes
    """The directory that the replica moves to."""
    state: MoveState = MoveState.NONE
    is_flushed: bool = False

    def next_step(self, current: LogFacts, future: LogFacts, lowest_cut: int | None, *, needs_acceptance: bool) -> Step:
        """The next step. `lowest_cut`: see `LogState.lowest_cut`, since the last step. `needs_acceptance`: whether the metadata
        has directories now, so that the controller has to know of the move."""
        if future.is_damaged or lowest_cut == -1 or future.end < current.start:
            return Step.RESTART
        if lowest_cut is not None and lowest_cut < future.end:
            return Step.CUT
        if future.end < current.end:
            return Step.COPY
        if current.is_damaged or self.state in (MoveState.QUEUED, MoveState.EFFECTIVE):
            return Step.WAIT
        if self.state is MoveState.ACCEPTED:
            return Step.PROMOTE
        if not self.is_flushed:
            return Step.FLUSH
        return Step.ANNOUNCE if needs_acceptance else Step.PROMOTE

    @property
    def is_announced(self) -> bool:
        """Whether the controller may have assigned the replica to the new directory, although it is not there yet."""
        return self.state in (MoveState.QUEUED, MoveState.ACCEPTED)

    def on_flushed(self) -> None:
        self.is_flushed = True

    def announce(self) -> None:
        """Called when the assignment is sent."""
        self.state = MoveState.QUEUED

    def on_accepted(self, directory_id: bytes) -> None:
        """Called when the controller has assigned the replica to this directory. Ignored if that is not the move's directory."""
        if self.state is MoveState.QUEUED and directory_id == self.directory_id:
            self.state = MoveState.ACCEPTED

    def on_promoted(self) -> None:
        self.state = MoveState.EFFECTIVE
