"""Requests that arrived before the previous transaction of their transactional id was complete.

A completion takes a few milliseconds, and the next transaction of a producer usually begins in this time. Kafka's coordinator
answers CONCURRENT_TRANSACTIONS, and the client repeats its request after a pause. This coordinator keeps the request until the
completion, and answers CONCURRENT_TRANSACTIONS only if that takes longer than `WAIT_S`.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.purgatory import CallLater, Timer

WAIT_S = 0.5

Again = Callable[[], None]


class CompletionWaiters:
    """Each waiter is called once: when the transaction is complete, after `WAIT_S`, or when the leadership ends."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._waiting: dict[str, dict[Again, Timer]] = {}
        """Transactional id -> its waiters, with their timers."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, transactional_id: str, again: Again) -> None:
        timer = self._call_later(WAIT_S, lambda: self._on_timeout(transactional_id, again))
        self._waiting.setdefault(transactional_id, {})[again] = timer

    def wake(self, transactional_id: str) -> None:
        """Call the waiters of an id, because its transaction is complete or the leadership has ended."""
        for again, timer in self._waiting.pop(transactional_id, {}).items():
            timer.cancel()
            again()

    def _on_timeout(self, transactional_id: str, again: Again) -> None:
        waiting = self._waiting.get(transactional_id, {})
        if waiting.pop(again, None) is not None:
            if not waiting:
                del self._waiting[transactional_id]
            again()
