"""Runs a handler in transactions: takes records, calls the handler, and commits the records that it has sent together with the
offsets.

    take records -> begin -> the handler, for each of them -> the offsets -> commit
         ^                          | it has failed                 | it cannot be committed
         +------- go back to the first record of the transaction ---+--> abort

There is one transaction at a time, for the records of all partitions that one poll has returned. `read_committed` consumers see
exactly one result of each record, although the handler may be called more than once for it. Effects of the handler other than
sending are not part of the transaction.

- *A partition is revoked while its records are handled.* The rebalance waits for the next poll, which is after the commit.
- *A partition is lost.* The group coordinator rejects the offsets of a member that it has removed (KIP-447), so the transaction
  is aborted, and the next owner begins at the offsets that were committed last.
- *A record fails.* The transaction is aborted, because the results of one record cannot be removed from it. All its records are
  handled again, after the delay of `retry`. A record that is given up is sent to the dead-letter topic within the next
  transaction, or skipped.
- *The commit is not answered.* EndTxn is sent again until it is answered, or `run` is to end. No other transaction begins before.
- *The process ends.* The next producer with the transactional id aborts the open transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from strandline.client.consumer.group.handed_over import Offset
from strandline.client.consumer.group.member import GroupMember
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import AnyRecord, OffsetAndMetadata
from strandline.client.consumer.run import headers
from strandline.client.consumer.run.counters import Counters
from strandline.client.consumer.run.failures import FailureLog, cause_of, stopped_at
from strandline.client.consumer.run.handlers import Handler, Undecodable
from strandline.client.consumer.run.outbox import Outbox
from strandline.client.consumer.run.schedule import Delivery
from strandline.client.consumer.run.settings import Fate, RunSettings
from strandline.client.errors import (
    ClientClosed,
    ClientError,
    CommitFailed,
    ProducerFenced,
    TransactionAbortable,
    TransactionFailed,
    TransactionOutcomeUnknown,
    TransactionTimedOut,
    UsageError,
)
from strandline.client.options import ConsumerOptions
from strandline.client.producer.producer import GroupMembership, Producer
from strandline.protocol.doors import Doors
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

LOOK_S = 1.0
"""The interval (seconds) of polls while no records arrive, or the run waits before another attempt. Each poll counts for
`max_poll_interval_ms`."""
CANCEL_S = 5.0
"""Seconds that a cancelled transaction may take to abort when `run` ends."""
PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
"""Seconds: the first and the longest pause after a transaction that was aborted although the handler did not fail. The pause
doubles with each abort in a row."""


class Portion(NamedTuple):
    """The records that were taken from one partition."""

    records: list[AnyRecord]
    begin: Offset
    """The position before them."""
    end: Offset
    """The position after them."""


class TransactionHooks(NamedTuple):
    """The functions of the consumer that the run calls."""

    take_many: Callable[[TransactionalRunner, int, float], Awaitable[dict[PartitionState, Portion]]]
    """Waits for records until a time on the loop's clock, and returns at most the given number, with keys and values in bytes."""
    is_current: Callable[[PartitionState], bool]
    """Whether the consumer reads this state now."""
    rewind: Callable[[PartitionState, int, int], None]
    """Sets the position of a state: offset, and leader epoch of the record before it."""
    group: GroupMember
    consumer: GroupMembership


class CallFailed(Exception):
    """The handler, or a deserializer, has failed for these records (`__cause__`)."""

    def __init__(self, state: PartitionState, deliveries: list[Delivery], error: BaseException) -> None:
        super().__init__(str(error))
        self.state = state
        self.deliveries = deliveries
        self.error = error


class TransactionalRunner:
    """One call of `Consumer.run` with `transactional=True`. As the container of the partitions whose records it wants, it
    contains every partition."""

    def __init__(
        self,
        settings: RunSettings,
        handler: Handler,
        producer: Producer[Any, Any],
        options: ConsumerOptions,
        hooks: TransactionHooks,
        doors: Doors,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._producer = producer
        self._outbox = Outbox(producer, is_own=False)
        self._options = options
        self._hooks = hooks
        self._doors = doors
        self._loop = asyncio.get_running_loop()
        self._work: asyncio.Task[None] | None = None
        self._end: asyncio.Future[None] = self._loop.create_future()
        """Done when `run` is to end."""
        self._end_by: float | None = None
        """When the last transaction must have ended, on the loop's clock; None: `drain_timeout_ms` applies."""
        self._taken: dict[PartitionState, Portion] = {}
        """The records of the open transaction."""
        self._attempts: dict[tuple[PartitionState, int], int] = {}
        """By state and offset, the number of attempts in which a record has failed in a call of its own."""
        self._alone: dict[tuple[PartitionState, int], None] = {}
        """Records that get a call of their own, because a call with several has failed."""
        self._given_up: dict[tuple[PartitionState, int], tuple[Fate, BaseException]] = {}
        """By state and offset, the records that were given up, with their fate and the error."""
        self._aborted_in_a_row = 0
        self._calls: dict[asyncio.Task[None], None] = {}
        """The tasks in which the handler is called."""
        self._handling = 0
        """The number of running calls of the handler."""
        self._log = FailureLog(options.group_id)
        self.ended = asyncio.Event()
        """Set when no record is being handled."""
        self.counters = Counters()

    def __contains__(self, tp: object) -> bool:
        return True

    def on_moved(self, state: PartitionState) -> None:
        """Does nothing: records that were taken before a seek stay in the open transaction."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle records until `end`, an error, or a cancellation."""
        work = self._work = self._loop.create_task(self._serve(), name="run: transactions")
        try:
            await asyncio.wait([work, self._end], return_when=asyncio.FIRST_COMPLETED)
            is_ending = self._end.done()
        finally:
            self.end()
            await self._wind_up(work)
            self.ended.set()
        if not work.cancelled():
            work.result()
        elif not is_ending:
            raise ClientError("a background task of run() was cancelled")

    def end(self, by: float | None = None) -> None:
        """Begin no more transactions, and let `run` return when the present one has ended, at the latest at `by` (on the loop's
        clock; by default, after `drain_timeout_ms`)."""
        if by is not None:
            self._end_by = by if self._end_by is None else min(by, self._end_by)
        if not self._end.done():
            self._end.set_result(None)

    async def _wind_up(self, work: asyncio.Task[None]) -> None:
        """Let the open transaction end; abort it when the time is up."""
        if self._taken and not work.done():
            until = self._end_by or self._loop.time() + self._settings.drain_timeout_ms / 1000
            await asyncio.wait([work], timeout=max(0.0, until - self._loop.time()))
        if not work.done():
            work.cancel("run ends")
            await asyncio.wait([work], timeout=CANCEL_S)

    def close(self) -> None:
        """End at once: cancel the open transaction."""
        self.end()
        if self._work is not None:
            self._work.cancel("run has ended")
        self._handler.close()

    @property
    def is_called_by_handler(self) -> bool:
        """Whether the task that runs now is in a call of the handler."""
        return asyncio.current_task() in self._calls

    # -- transactions -------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while not self._end.done():
            try:
                taken = await self._hooks.take_many(self, self._settings.max_in_flight, self._loop.time() + LOOK_S)
            except ClientClosed:
                return
            if taken:
                await self._transact(taken)

    async def _transact(self, taken: dict[PartitionState, Portion]) -> None:
        self._taken = taken
        try:
            await self._run_transaction(taken)
        except BaseException as e:
            self._go_back(taken)
            if not isinstance(e, Exception):
                raise
            await self._after_failure(e)
        else:
            self._on_committed(taken)
        finally:
            self._taken = {}

    def _go_back(self, taken: Mapping[PartitionState, Portion]) -> None:
        """The transaction was aborted: set the positions back to its first records."""
        for state, part in taken.items():
            if self._hooks.is_current(state):
                self._hooks.rewind(state, *part.begin)

    def _on_committed(self, taken: Mapping[PartitionState, Portion]) -> None:
        self._aborted_in_a_row = 0
        for state, part in taken.items():
            self.counters.handled += len(part.records)
            for record in part.records:
                key = (state, record.offset)
                self._attempts.pop(key, None)
                self._alone.pop(key, None)
                given_up = self._given_up.pop(key, None)
                if given_up is not None:
                    self._count_given_up(record, *given_up)

    async def _run_transaction(self, taken: Mapping[PartitionState, Portion]) -> None:
        await self._until_ready()
        try:
            async with self._producer.transaction():
                await self._handle_all(taken)
                offsets = {state.tp: OffsetAndMetadata(part.end[0], "", part.end[1]) for state, part in taken.items()}
                await self._producer.send_offsets_to_transaction(offsets, self._hooks.consumer)
        except TransactionOutcomeUnknown:
            await self._until_answered(self._producer.commit_transaction)

    async def _until_ready(self) -> None:
        """Send the abort of the last transaction again if it was not answered yet."""
        if self._producer.health().get("transaction") == "aborting":
            await self._until_answered(self._producer.abort_transaction)

    async def _until_answered(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await ask()
            except TransactionOutcomeUnknown:
                if self._end.done():
                    raise

    # -- the handler --------------------------------------------------------------------------------------------------

    async def _handle_all(self, taken: Mapping[PartitionState, Portion]) -> None:
        """Call the handler with all records. Raises the first error, after the other calls were cancelled."""
        lanes = deque(self._lanes(taken))
        count = min(len(lanes), self._settings.calls_max)
        workers = [self._loop.create_task(self._handle_lanes(lanes), name="run: work") for _ in range(count)]
        self._calls.update(dict.fromkeys(workers))
        try:
            while running := [worker for worker in workers if not worker.done()]:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for worker in workers:
                    if worker.done():
                        worker.result()
        finally:
            for worker in workers:
                worker.cancel("another call has failed, or run ends")
            await asyncio.wait(workers)
            for worker in workers:
                del self._calls[worker]

    def _lanes(self, taken: Mapping[PartitionState, Portion]) -> list[tuple[PartitionState, list[Delivery]]]:
        """The records, divided into lanes. Those of one lane are handled one after the other."""
        lanes: dict[tuple[PartitionState, object], list[Delivery]] = {}
        by_key = self._settings.concurrency == "key"
        for state, part in taken.items():
            for record in part.records:
                attempt = self._attempts.get((state, record.offset), 0) + 1
                lanes.setdefault((state, record.key if by_key else None), []).append(Delivery(record, record.offset, attempt))
        if isinstance(self._settings.concurrency, str):
            return [(state, deliveries) for (state, _), deliveries in lanes.items()]
        return [(state, chunk) for (state, _), deliveries in lanes.items() for chunk in self._chunks(state, deliveries)]

    async def _handle_lanes(self, lanes: deque[tuple[PartitionState, list[Delivery]]]) -> None:
        while lanes:
            state, deliveries = lanes.popleft()
            for chunk in self._chunks(state, deliveries):
                await self._handle(state, chunk)

    def _chunks(self, state: PartitionState, deliveries: list[Delivery]) -> list[list[Delivery]]:
        """The deliveries, divided into those of each call."""
        chunks: list[list[Delivery]] = []
        size, is_closed = self._settings.batch_size or 1, True
        for delivery in deliveries:
            key = (state, delivery.offset)
            is_alone = key in self._alone or key in self._given_up
            if is_closed or is_alone or len(chunks[-1]) == size:
                chunks.append([])
            chunks[-1].append(delivery)
            is_closed = is_alone
        return chunks

    async def _handle(self, state: PartitionState, deliveries: list[Delivery]) -> None:
        given_up = self._given_up.get((state, deliveries[0].offset))
        if given_up is not None:
            await self._put_aside(deliveries[0], *given_up)
            return
        started = self._doors.stopwatch()
        self._handling += 1
        try:
            await self._handler.call(deliveries)
        except (TransactionAbortable, TransactionFailed, ProducerFenced):
            raise
        except Exception as e:
            raise CallFailed(state, deliveries, e) from e
        except asyncio.CancelledError as e:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise CallFailed(state, deliveries, e) from e  # The handler has cancelled itself.
        finally:
            self._handling -= 1
            self.counters.latency.observe(self._doors.stopwatch() - started)

    async def _put_aside(self, delivery: Delivery, fate: Fate, error: BaseException) -> None:
        """Send a record that was given up to the dead-letter topic within the transaction, or skip it."""
        if fate is not Fate.DEAD_LETTER:
            return
        assert self._settings.dlq is not None, "the fate says so"
        fields = headers.dead_letter_headers(delivery.record, self._options.group_id, cause_of(error), delivery.attempt)
        await self._outbox.send(self._settings.dlq, delivery.record, fields)

    # -- failures -----------------------------------------------------------------------------------------------------

    async def _after_failure(self, error: Exception) -> None:
        """The transaction was aborted: raise the error with which `run` ends, or pause before the next transaction."""
        if isinstance(error, CallFailed):
            await self._on_call_failed(error)
            return
        self._aborted_in_a_row += 1
        if not self._may_repeat(error):
            raise error
        logger.warning(
            "consumer.transaction_aborted",
            group_id=self._options.group_id,
            transactional_id=self._producer.options.transactional_id,
            reason=str(error),
        )
        await self._pause(min(PAUSE_S * 2.0 ** min(self._aborted_in_a_row - 1, 10), PAUSE_MAX_S))

    def _may_repeat(self, error: Exception) -> bool:
        """Whether to try another transaction. After an abort: yes if the transaction was late, the partitions were lost, or a
        broker did not answer; otherwise as often as `retry` says. After any other error: no."""
        if not isinstance(error, TransactionAbortable):
            return False
        cause = error.__cause__
        if isinstance(error, TransactionTimedOut) or isinstance(cause, CommitFailed) or getattr(cause, "retriable", False):
            return True
        retry = self._settings.retry
        return retry is not None and retry.has_attempt_after(self._aborted_in_a_row)

    async def _on_call_failed(self, failed: CallFailed) -> None:
        self.counters.failed_attempts += 1
        self._log.on_failed(failed.state.tp, failed.deliveries[0], failed.error, self._loop.time())
        keys = [(failed.state, delivery.offset) for delivery in failed.deliveries]
        if len(keys) > 1:  # Handle the records one by one, to find the one that fails.
            self._alone.update(dict.fromkeys(keys))
            return
        (key,), (delivery,) = keys, failed.deliveries
        fate = self._settings.fate(failed.error, delivery.attempt, may_repeat=not isinstance(failed.error, Undecodable))
        if fate is Fate.STOP:
            raise stopped_at(delivery, failed.error)
        self._attempts[key] = delivery.attempt
        if fate is Fate.RETRY_HERE:
            assert self._settings.retry is not None, "the fate says so"
            self.counters.retried += 1
            await self._pause(self._settings.retry.delay_ms(delivery.attempt, self._doors.random) / 1000)
        else:
            self._given_up[key] = fate, failed.error
            self._attempts[key] = delivery.attempt - 1  # `_lanes` adds 1: the dead letter has the number of attempts.

    async def _pause(self, pause_s: float) -> None:
        """Wait, and poll the group meanwhile, so that `max_poll_interval_ms` does not expire."""
        until = self._loop.time() + pause_s
        while not self._end.done() and (left_s := until - self._loop.time()) > 0:
            await asyncio.wait([self._end], timeout=min(left_s, LOOK_S))
            self._hooks.group.on_poll(())

    def _count_given_up(self, record: AnyRecord, fate: Fate, error: BaseException) -> None:
        """Count and log a record that was given up. The transaction that skipped it, or sent its dead letter, is committed."""
        self.counters.handled -= 1
        if fate is Fate.DEAD_LETTER:
            self.counters.dead_lettered += 1
            self._log.on_given_up(record, error, self._settings.dlq)
        else:
            self.counters.skipped += 1
            self._log.on_given_up(record, error, None)

    # -- what an operator sees ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """The part of `Consumer.health` that is about the handler."""
        return {"state": "ending" if self._end.done() else "running", "calls": self._handling}

    def metrics(self) -> dict[str, Any]:
        """The part of `Consumer.metrics` that is about the handler."""
        return {
            **self.counters.as_dict(),
            "in_flight": sum(len(part.records) for part in self._taken.values()),
            "calls_running": self._handling,
        }


def check_transactional(
    settings: RunSettings, handler: Handler, producer: Producer[Any, Any] | None, options: ConsumerOptions
) -> None:
    """UsageError unless a run with these arguments can be transactional."""
    if producer is None or producer.options.transactional_id is None:
        raise UsageError("a transactional run needs producer=Producer(transactional_id=...), with which its handler sends")
    if handler.uses_threads:
        raise UsageError("the handler of a transactional run sends with the producer, so it must be a coroutine function")
    if options.group_id is None:
        raise UsageError("a transactional run commits the offsets of a group: give the consumer a group_id")
    if options.enable_auto_commit:
        raise UsageError("a transactional run needs enable_auto_commit=False: its offsets are part of the transactions")
    if options.isolation_level != "read_committed":
        why = "otherwise it would process records of aborted transactions"
        raise UsageError(f'a transactional run needs isolation_level="read_committed": {why}')
    if settings.retry_topic is not None:
        raise UsageError("a transactional run has no retry_topic: use retry, or dlq")
    if settings.dlq is not None and (producer.options.key_serializer or producer.options.value_serializer):
        raise UsageError(
            "a producer that sends dead letters must have no serializers: it sends keys and values as they were read"
        )
