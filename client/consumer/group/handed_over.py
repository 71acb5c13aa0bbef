"""Tracks which records were returned to the program, and which of them it has finished. Pure.

A program has finished the records that a call returned as soon as it asks for more: of the same partitions, or of all. Records
that `async for` returns are finished one by one. An automatic commit never goes beyond the finished records, so a program that
ends in the middle of its work gets the unfinished records again.

    position         the record that the program gets next
    finished offset  the first record that it may not have finished; the same, unless a call has just returned records

If the program commits an offset itself, it has finished all records before that offset, also those of the last call.

While `Consumer.run` hands records to a handler, its ledger of finished records (run/) applies instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import TopicPartition

Offset = tuple[int, int]
"""An offset, and the leader epoch of the record before it (-1: not known)."""


class Ledger(Protocol):
    """The records that `Consumer.run` has handed to its handler. The membership reads it, and notifies it of changes."""

    def finished(self, state: PartitionState) -> Offset | None:
        """The finished offset of a state; None while it has no position."""

    def has_unfinished(self, states: Iterable[PartitionState]) -> bool:
        """Whether the handler works on records of these states."""

    def on_revoking(self, states: Iterable[PartitionState], deadline: float) -> None:
        """These states are revoked: they are given up as soon as `has_unfinished` returns False, or at the deadline (on the
        loop's clock)."""

    def on_dropped(self, state: PartitionState) -> None:
        """The partition is no longer read. Another member may read it."""

    def on_moved(self, state: PartitionState) -> None:
        """The program has chosen another position."""

    def on_holds(self) -> None:
        """Which partitions are held may have changed, or whether the membership is in doubt."""


class HandedOver:
    """The unfinished records of a consumer, by partition."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        """The ledger of the running `Consumer.run`; None if none runs."""
        self._open: dict[PartitionState, Offset] = {}
        """By state, the offset of the first unfinished record that a call has returned."""
        self._iterated: PartitionState | None = None
        """The state whose records `async for` returns; all before its `cursor` are finished."""
        self._committed: dict[PartitionState, Offset] = {}
        """The offsets that the program has committed itself, while they are beyond the records that it has finished otherwise."""
        self.dropped: dict[TopicPartition, None] = {}
        """Partitions that were dropped while the program had unfinished records of them. Until the program asks for more records,
        its commits for them must fail."""

    def on_poll(self, only: Container[TopicPartition] | None) -> None:
        """The program asks for records: of these partitions, or of all (None). It has finished those that it had of them."""
        if self.ledger is not None:
            return
        if only is None:
            self._open.clear()
            self.dropped.clear()
            self._iterated = None
            return
        for tp in [tp for tp in self.dropped if tp in only]:
            del self.dropped[tp]
        for state in [state for state in self._open if state.tp in only]:
            del self._open[state]
        if self._iterated is not None and self._iterated.tp in only:
            self._iterated = None

    def on_returned(self, state: PartitionState) -> None:
        """A call is about to return records of this state."""
        self._open.setdefault(state, (state.position, state.position_epoch))

    def on_iterated(self, state: PartitionState) -> None:
        """`async for` is about to return records of this state."""
        self._iterated = state

    def on_committed(self, state: PartitionState, offset: Offset) -> None:
        """The program commits this offset itself. An offset beyond the position is ignored here, because it says nothing about
        the records that were returned."""
        if offset[0] <= state.position:
            self._committed[state] = offset

    def forget(self, state: PartitionState) -> None:
        """The program has chosen another position."""
        if self.ledger is not None:
            self.ledger.on_moved(state)
        self._forget(state)

    def _forget(self, state: PartitionState) -> None:
        self._open.pop(state, None)
        self._committed.pop(state, None)
        if self._iterated is state:
            self._iterated = None

    def drop(self, state: PartitionState) -> None:
        """The partition is no longer read."""
        if self.has_unfinished([state]):
            self.dropped[state.tp] = None
        if self.ledger is not None:
            self.ledger.on_dropped(state)
        self._forget(state)

    def on_revoking(self, states: Iterable[PartitionState], deadline: float) -> None:
        """These partitions are revoked: they are given up as soon as the program has finished their records, or at the deadline
        (on the loop's clock)."""
        if self.ledger is not None:
            self.ledger.on_revoking(states, deadline)

    def on_holds(self) -> None:
        """Which partitions are held may have changed, or whether the membership is in doubt."""
        if self.ledger is not None:
            self.ledger.on_holds()

    def finish_all(self) -> None:
        """Count all records that were returned as finished."""
        self.on_poll(None)

    def has_unfinished(self, states: Iterable[PartitionState]) -> bool:
        """Whether the program may still work on records of these states."""
        if self.ledger is not None:
            return self.ledger.has_unfinished(states)
        return any(state in self._open or (state is self._iterated and state.cursor is not None) for state in states)

    def finished(self, state: PartitionState) -> Offset | None:
        """The finished offset of a state; None while it has no position."""
        finished, committed = self._finished(state), self._committed.get(state)
        if committed is None or finished is None:
            return finished
        if committed[0] > finished[0]:
            return committed
        del self._committed[state]
        return finished

    def _finished(self, state: PartitionState) -> Offset | None:
        if self.ledger is not None:
            return self.ledger.finished(state)
        known = self._open.get(state)
        if known is not None:
            return known
        if state is self._iterated and state.cursor is not None:
            return state.cursor.offset, -1
        return (state.position, state.position_epoch) if state.position >= 0 else None
