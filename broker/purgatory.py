"""The purgatory: requests that wait for a condition to become true, or for their timeout.

An operation has a condition (checked by its owner), a deadline, and a completion that happens exactly once. The first of three
events completes it: its condition, its deadline, or the end of its partition. The other two then have no effect.

Costs, because a busy broker parks every `acks=all` produce here:

- Deadlines: operations with the same timeout expire in the order in which they were parked, so each timeout has one queue (an
  insertion-ordered dict; leaving it early costs O(1)). One timer stands for the earliest deadline of all queues. It is not moved
  when that operation completes: it fires once without an effect and is set again. Operations that are due a few milliseconds
  later expire with it.
- Conditions: operations that wait for a watermark are ordered by the offset that they need, so a move of the watermark costs only
  as much as the operations that it completes (`WatermarkWatchers`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from strandline.protocol.errors import ErrorCode


class Timer(Protocol):
    def cancel(self) -> object: ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""`loop.call_later`."""


SLACK_S = 0.005
"""The timer also expires operations that are due within this time after it. The fetches of an idle cluster's followers are due
within milliseconds of each other, and a wake-up of an idle broker costs more than to expire a fetch."""

_QUEUES_MAX = 1000
_EMPTY_QUEUES_MAX = 8
"""Empty queues that are kept: a client uses the same timeout again and again."""


class DelayedOperation:
    """A parked request. Subclasses define what completion and expiration do."""

    __slots__ = ("_queue", "deadline", "is_completed")

    def __init__(self) -> None:
        self.is_completed = False
        self.deadline = float("inf")
        self._queue: dict[DelayedOperation, None] | None = None

    def complete(self) -> bool:
        """Complete the operation, because its condition holds or can no longer hold. False if it was completed before."""
        if self.is_completed:
            return False
        self._leave()
        self.on_complete()
        return True

    def expire(self) -> bool:
        """Complete the operation, because its deadline has passed. False if it was completed before."""
        if self.is_completed:
            return False
        self._leave()
        self.on_expiration()
        return True

    def _leave(self) -> None:
        self.is_completed = True
        queue = self._queue
        if queue is not None:
            self._queue = None
            queue.pop(self, None)

    def on_complete(self) -> None:
        """Called once, when the condition of the operation is met. Subclasses send the response."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Called once, when the deadline passes first. Subclasses send the response for a timeout."""
        raise NotImplementedError


class Purgatory:
    """The deadlines of all parked operations."""

    def __init__(self, now: Callable[[], float], call_later: CallLater) -> None:
        self._now = now
        self._call_later = call_later
        self._queues: dict[int, dict[DelayedOperation, None]] = {}
        self._queues_max = _QUEUES_MAX
        self._timer: Timer | None = None
        self._timer_due = float("inf")
        """When the timer fires; never later than the earliest deadline."""

    def __len__(self) -> int:
        """How many operations are parked."""
        return sum(map(len, self._queues.values()))

    @property
    def queues(self) -> Mapping[int, Mapping[DelayedOperation, None]]:
        """Timeout in ms -> the parked operations with this timeout, the next to expire first."""
        return self._queues

    @property
    def timer_due(self) -> float:
        """When the timer for the earliest deadline fires; infinite if no timer is set."""
        return float("inf") if self._timer is None else self._timer_due

    def park(self, operation: DelayedOperation, timeout_ms: int) -> None:
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._new_queue(timeout_ms)
        due = operation.deadline = self._now() + timeout_ms / 1000
        operation._queue = queue
        queue[operation] = None
        if due < self._timer_due:
            self._arm(due)

    def _new_queue(self, timeout_ms: int) -> dict[DelayedOperation, None]:
        if len(self._queues) >= self._queues_max:
            # A client that never uses the same timeout twice must not leave a queue behind for each request.
            self._drop_empty_queues()
            self._queues_max = max(_QUEUES_MAX, 2 * len(self._queues))
        queue: dict[DelayedOperation, None] = {}
        self._queues[timeout_ms] = queue
        return queue

    def _drop_empty_queues(self) -> None:
        self._queues = {timeout_ms: queue for timeout_ms, queue in self._queues.items() if queue}

    def expire(self, now: float) -> int:
        """Expire the operations that are due; returns how many."""
        expired = 0
        for queue in list(self._queues.values()):
            while queue:
                operation = next(iter(queue))
                if operation.deadline > now:
                    break
                expired += operation.expire()
        self._rearm()
        return expired

    def take_all(self) -> list[DelayedOperation]:
        """All parked operations, for a shutdown."""
        return [operation for queue in self._queues.values() for operation in queue]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due = None, float("inf")

    def _rearm(self) -> None:
        due, empty = float("inf"), 0
        for queue in self._queues.values():
            if not queue:
                empty += 1
            elif (first_due := next(iter(queue)).deadline) < due:
                due = first_due
        if empty > _EMPTY_QUEUES_MAX:
            self._drop_empty_queues()
        if due == float("inf"):
            self.close()
        elif due != self._timer_due:
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._call_later(max(0.0, due - self._now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_due = None, float("inf")
        self.expire(self._now() + SLACK_S)


class OffsetWaiter(Protocol):
    """Waits for the high or low watermark of one or more partitions; `index` is the number of the partition in its request."""

    is_completed: bool

    def on_reached(self, index: int) -> None: ...
    def on_failed(self, index: int, error_code: int) -> None: ...


class WatermarkWatchers:
    """The operations that wait for the high watermark of one partition, or for its low watermark, the smallest required offset
    first.

    A waiter belongs to the leader epoch in which its records were appended. In a later epoch of the same broker, the high
    watermark may cover the same offsets with other records, because the broker may have followed and truncated in between.
    """

    __slots__ = ("_ended", "_waiting", "leader_epoch")

    def __init__(self) -> None:
        self.leader_epoch = -1
        """The leader epoch of all waiters in `_waiting`."""
        self._waiting: deque[tuple[int, int, OffsetWaiter]] = deque()
        """(required offset, index, waiter); required offsets never decrease from left to right."""
        self._ended: list[tuple[int, int, OffsetWaiter]] = []
        """Waiters of earlier epochs. No high watermark completes them; they fail at the next `reach`."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ended)

    def operations(self) -> Iterator[OffsetWaiter]:
        """All waiting operations, those of earlier leader epochs first. An operation may wait for several offsets."""
        return (waiter for entries in (self._ended, self._waiting) for _, _, waiter in entries)

    def add(self, required_offset: int, index: int, waiter: OffsetWaiter, leader_epoch: int) -> None:
        """Wait until the watermark reaches `required_offset`, for a request that was begun in this leader epoch."""
        if leader_epoch != self.leader_epoch:
            self._begin_epoch(leader_epoch)
        waiting = self._waiting
        if not waiting or waiting[-1][0] <= required_offset:
            waiting.append((required_offset, index, waiter))
        else:
            # A retried batch was appended before the batches that are waiting already.
            waiting.insert(bisect_right(waiting, required_offset, key=_required), (required_offset, index, waiter))

    def _begin_epoch(self, leader_epoch: int) -> None:
        self._ended += self._waiting
        self._waiting.clear()
        self.leader_epoch = leader_epoch

    def reach(self, watermark: int, leader_epoch: int) -> int:
        """Complete the waiters whose offset the watermark of this leader epoch has reached; returns how many.

        Waiters of earlier epochs fail with NOT_LEADER_OR_FOLLOWER, because their records may have been truncated. The client's
        retry finds out."""
        if leader_epoch != self.leader_epoch:
            self._begin_epoch(leader_epoch)
        if self._ended:
            ended, self._ended = self._ended, []
            for _, index, waiter in ended:
                waiter.on_failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        waiting, reached = self._waiting, 0
        while waiting and waiting[0][0] <= watermark:
            _, index, waiter = waiting.popleft()
            waiter.on_reached(index)
            reached += 1
        return reached

    def fail(self, error_code: int) -> None:
        """Fail all waiters, because the leadership has ended or the ISR is smaller than the min ISR."""
        for _, index, waiter in self._take_all():
            waiter.on_failed(index, error_code)

    def discard(self, waiter: OffsetWaiter) -> None:
        """Remove a waiter that timed out. The oldest waiters are usually first in the queue."""
        for entries in (self._waiting, self._ended):
            for position, entry in enumerate(entries):
                if entry[2] is waiter:
                    del entries[position]
                    return

    def _take_all(self) -> list[tuple[int, int, OffsetWaiter]]:
        waiting = [*self._ended, *self._waiting]
        self._ended.clear()
        self._waiting.clear()
        return waiting


def _required(entry: tuple[int, int, OffsetWaiter]) -> int:
    return entry[0]
