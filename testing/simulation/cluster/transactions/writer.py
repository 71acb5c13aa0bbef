"""A program that writes transactions to several partitions, and aborts some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.client.errors import ProducerFenced, StrandlineError, TransactionAbortable, TransactionOutcomeUnknown
from strandline.testing.history.transactions import Append, Transaction, TransactionHistory
from strandline.testing.simulation.options import TopicPlan
from strandline.testing.simulation.transaction_plans import WriterPlan

SIZE_MAX = 60
QUESTIONS_MAX = 3
"""How often a program asks for an unknown outcome, before it starts again with a new producer."""


class Writer:
    """The program in one process."""

    def __init__(
        self,
        name: str,
        plan: WriterPlan,
        topics: tuple[TopicPlan, ...],
        history: TransactionHistory,
        draw: Random,
        *,
        going: Callable[[], bool],
        gave_up: Callable[[str, Exception], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        """`on_fenced`: called when the coordinator reports that another process has taken the transactional id."""
        self.name = name
        self.plan = plan
        self.history = history
        self.draw = draw
        self._places = [(topic, place) for topic in topics for place in topic.places]
        self._going = going
        self._gave_up = gave_up
        self._on_fenced = on_fenced
        self._incarnation = 0
        self._sent = 0

    async def work(self, start: Callable[[], Any]) -> None:
        """Write transactions until the run is over. `start` returns a started producer, or None when the run is over."""
        if not self.name.endswith("'"):  # a process that replaces a dead one begins at once
            await asyncio.sleep(self.plan.begins_at_s)
        while self._going():
            producer = await start()
            if producer is None:
                return
            self._incarnation += 1
            try:
                self.history.initialized(self.process, self.plan.transactional_id, *identity(producer))
                await self._use(producer)
            finally:
                await producer.stop()
            await asyncio.sleep(self.draw.uniform(0, 4 * self.plan.pause_s))

    @property
    def process(self) -> str:
        """The name of the present producer in the history."""
        return f"{self.name}.{self._incarnation}"

    async def _use(self, producer: Any) -> None:
        goes_on = True
        while goes_on and self._going():
            goes_on = await self._transaction(producer)
            await asyncio.sleep(self.draw.uniform(0, 2 * self.plan.pause_s))

    # -- one transaction ----------------------------------------------------------------------------------------------

    async def _transaction(self, producer: Any) -> bool:
        """Write one transaction. Returns whether the same producer can write the next one."""
        seen = self.history.begin(self.process, self.plan.transactional_id)
        seen.written_as(*identity(producer))
        try:
            await producer.begin_transaction()
            await self._fill(producer, seen)
            if self.draw.random() < self.plan.aborts:
                return await self._abort(producer, seen)
            seen.commit()
            return await self._commit(producer, seen)
        except TransactionAbortable:
            return await self._abort(producer, seen)
        except StrandlineError as e:
            self._on_fatal("a transaction", e)
            seen.unknown()
            return False

    async def _fill(self, producer: Any, seen: Transaction) -> None:
        under_way = []
        for _ in range(self.draw.randint(1, self.plan.appends_max)):
            under_way.append(self._send(producer, seen))
            if self.draw.random() < 0.2:
                await asyncio.sleep(self.draw.uniform(0, 0.05))
        if self.draw.random() < self.plan.dawdles:
            await asyncio.sleep(self.plan.options["transaction_timeout_ms"] / 1000 * self.draw.uniform(0.2, 2.5))
        failure: StrandlineError | None = None
        for append, receipt in under_way:
            try:
                append.ok((await receipt).offset)
            except StrandlineError as e:
                failure = e
        if failure is not None:
            raise failure if isinstance(failure, TransactionAbortable) else TransactionAbortable(str(failure)) from failure

    def _send(self, producer: Any, seen: Transaction) -> tuple[Append, Any]:
        topic, place = self.draw.choice(self._places)
        self._sent += 1
        key = b"k%d" % self.draw.randrange(topic.keys) if topic.keys else None
        value = b"%s.%d %s" % (self.process.encode(), self._sent, b"x" * self.draw.randint(0, SIZE_MAX))
        append = seen.append(place, value, key=key)
        try:
            return append, producer.send_nowait(place[0], value, key=key, partition=place[1])
        except StrandlineError:
            append.fail()
            raise

    async def _commit(self, producer: Any, seen: Transaction) -> bool:
        for _ in range(QUESTIONS_MAX):
            try:
                await producer.commit_transaction()
            except TransactionOutcomeUnknown as e:
                self._gave_up("a commit", e)
            else:
                seen.committed()
                return True
        seen.unknown()
        return False

    async def _abort(self, producer: Any, seen: Transaction) -> bool:
        try:
            await producer.abort_transaction()
        except StrandlineError as e:
            self._on_fatal("an abort", e)
            seen.unknown()
            return False
        seen.aborted()
        return True

    def _on_fatal(self, what: str, error: StrandlineError) -> None:
        self._gave_up(what, error)
        if isinstance(error, ProducerFenced):
            self._on_fenced(f"{self.process} is fenced: {error}")


def identity(producer: Any) -> tuple[int, int]:
    """The producer's id and epoch."""
    identity = producer._sender.identity
    return identity.producer_id, identity.producer_epoch
