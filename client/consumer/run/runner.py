"""Runs a handler for the records of a consumer: takes records, calls the handler, and settles the result.

    the poller    one task; takes records of partitions that have few waiting, and puts them into the schedule
    workers       up to `calls_max` tasks; each makes one call after the other, and ends when no lane is ready
    the ledger    the interface for the membership (group/handed_over.py): which records are finished, which are being handled

The runner decides nothing about records: the schedule (schedule.py) says what may be handled, the settings (settings.py) what
happens to a record that has failed. `__init__.py` lists what may happen at the same time, and why nothing goes wrong then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from strandline.client.consumer.group.handed_over import Offset
from strandline.client.consumer.group.member import GroupMember
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import AnyRecord, TopicPartition
from strandline.client.consumer.run import headers
from strandline.client.consumer.run.counters import Counters
from strandline.client.consumer.run.failures import FailureLog, cause_of, stopped_at
from strandline.client.consumer.run.handlers import Handler, Undecodable
from strandline.client.consumer.run.outbox import Outbox
from strandline.client.consumer.run.schedule import Call, Delivery, Schedule, Work, lane_of_key, lane_of_partition
from strandline.client.consumer.run.settings import Fate, RunSettings
from strandline.client.errors import ClientClosed, ClientError, UsageError
from strandline.client.options import ConsumerOptions
from strandline.protocol.doors import Doors
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

LOOK_S = 1.0
"""The interval (seconds) of the poller's polls while no records arrive. Each poll counts for `max_poll_interval_ms`."""
CALLS_PER_TURN = 32
"""After this many calls the workers let other tasks run: with a handler that never awaits anything, they would block the loop."""
DRAIN_SHARE = 0.9
"""Share of the time for a revocation within which calls may end. In the rest, calls that were cancelled clean up."""
CANCEL_S = 1.0
"""Seconds that cancelled calls may take to end when `run` ends."""
COMMIT_S = 5.0
"""Seconds that the last commit may take."""


class RunHooks(NamedTuple):
    """The functions of the consumer that the runner calls."""

    take: Callable[[Runner, float], Awaitable[tuple[PartitionState, list[AnyRecord]] | None]]
    """Waits for records that the runner wants, until a time on the loop's clock, and returns those that it has room for, with
    keys and values in bytes. Raises what `getmany` raises."""
    wake: Callable[[], None]
    """Makes a `take` that waits look again."""
    partition_count: Callable[[], int]
    """The number of partitions that the consumer reads now."""
    is_current: Callable[[PartitionState], bool]
    """Whether the consumer reads this state now."""
    rewind: Callable[[PartitionState, int, int], None]
    """Sets the position of a state: offset, and leader epoch of the record before it."""
    group: GroupMember | None


class Runner:
    """One call of `Consumer.run`. It is the `Ledger` of the consumer's membership. As a container, it contains the partitions of
    which it wants records."""

    def __init__(
        self,
        settings: RunSettings,
        handler: Handler,
        outbox: Outbox | None,
        options: ConsumerOptions,
        hooks: RunHooks,
        doors: Doors,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._outbox = outbox
        self._options = options
        self._hooks = hooks
        self._doors = doors
        self._loop = asyncio.get_running_loop()
        lane_of = lane_of_key if settings.concurrency == "key" else lane_of_partition
        is_ordered = isinstance(settings.concurrency, str)
        self._schedule = Schedule(lane_of, is_ordered=is_ordered, batch_size=settings.batch_size or 1)
        self._works: dict[PartitionState, Work] = {}
        """The records that were taken, of the partitions that are read now and of those that are being revoked."""
        self._by_tp: dict[TopicPartition, Work] = {}
        """The works of `_works`, by partition."""
        self._calls: dict[Call, None] = {}
        """The calls that have begun and not ended, the oldest first."""
        self._handling: dict[Call, None] = {}
        """Those of `_calls` that are in the handler, the oldest first. The others wait for the acknowledgement of a failed
        record."""
        self._workers: dict[asyncio.Task[None], Call | None] = {}
        """Each worker, and its call; None between calls."""
        self._calls_in_turn = 0
        """Calls that all workers together have finished in this iteration of the event loop."""
        self._orphans: dict[TopicPartition, int] = {}
        """By partition, the number of calls from an earlier assignment that have not ended. If the partition is assigned again,
        its new calls wait for them."""
        self._call_ended = asyncio.Event()
        """Set when a call ends."""
        self._end: asyncio.Future[None] = self._loop.create_future()
        """Done when `run` is to end."""
        self.ended = asyncio.Event()
        """Set when no record is being handled, and the positions are those of the first unfinished records."""
        self._end_by: float | None = None
        """When the last call must have ended, on the loop's clock; None: `drain_timeout_ms` applies."""
        self._is_ending = False
        """`run` is to end: no further call begins."""
        self._error: BaseException | None = None
        """The first error because of which `run` ends; None if nothing went wrong."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        """When the timer is due, on the loop's clock; None: there is none."""
        self._log = FailureLog(options.group_id)
        self.counters = Counters()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle records until `end`, an error, or a cancellation."""
        if self._hooks.group is not None:
            self._hooks.group.begin_run(self)
        poller = self._loop.create_task(self._poll(), name="run: poll")
        try:
            await asyncio.wait([self._end])
        finally:
            self.end()
            poller.cancel()
            await self._wind_up()
        if self._error is not None:
            raise self._error

    def end(self, by: float | None = None) -> None:
        """Start no more calls, and let `run` return when those that run have ended, at the latest at `by` (on the loop's clock;
        by default, after `drain_timeout_ms`)."""
        if by is not None:
            self._end_by = by if self._end_by is None else min(by, self._end_by)
        self._is_ending = True
        if not self._end.done():
            self._end.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """End with this error, unless there was one before."""
        if self._error is None:
            self._error = error
        self.end()

    @property
    def is_called_by_handler(self) -> bool:
        """Whether the task that runs now is in a call of the handler."""
        task = asyncio.current_task()
        return any(worker is task for worker in self._workers)

    async def _wind_up(self) -> None:
        """Let the running calls end, commit, and set the positions back to the first unfinished records."""
        for work in self._works.values():
            self.counters.dropped += self._schedule.close(work)
        try:
            await self._drain(self._end_by or self._loop.time() + self._settings.drain_timeout_ms / 1000)
            if self._hooks.group is not None:
                await self._hooks.group.commit_finished(self._loop.time() + COMMIT_S)
        finally:
            self.close()

    async def _drain(self, until: float) -> None:
        """Wait until no call runs. Calls that still run at that time are abandoned."""
        if not await self._until_idle(until):
            self._abandon(list(self._calls), "run ends, and the time to finish is up")
            await self._until_idle(self._loop.time() + CANCEL_S)

    async def _until_idle(self, until: float) -> bool:
        while self._calls:
            self._call_ended.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._call_ended.wait()
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """End at once: set the positions back to the first unfinished records, and cancel all tasks."""
        if self.ended.is_set():
            return
        self.end()
        self.ended.set()
        if self._timer is not None:
            self._timer.cancel()
        self._abandon(list(self._calls), "run has ended")
        for worker in self._workers:
            worker.cancel()
        if self._hooks.group is not None:
            self._hooks.group.end_run()
        for state, work in self._works.items():
            first = work.taken.first_open()
            if first is not None and self._hooks.is_current(state):
                self._hooks.rewind(state, *first)
        self._handler.close()

    # -- taking records -----------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        try:
            while True:
                await self._until_welcome()
                taken = await self._hooks.take(self, self._loop.time() + LOOK_S)
                if taken is not None:
                    self._take(*taken)
                await asyncio.sleep(0)
        except ClientClosed:
            self.end()
        except asyncio.CancelledError:
            if not self._end.done():
                self._fail(ClientError("a background task of run() was cancelled"))
        except BaseException as e:
            self._fail(e)

    async def _until_welcome(self) -> None:
        """If the consumer has left the group because a call takes too long, wait until no call runs: the next poll would join the
        group again."""
        group = self._hooks.group
        while group is not None and group.is_expelled and self._calls:
            self._call_ended.clear()
            await self._call_ended.wait()

    def __contains__(self, tp: object) -> bool:
        """Whether to take records of this partition: at most half of its share of unfinished records is waiting, and the share is
        not used up."""
        work = self._by_tp.get(tp)  # type: ignore[call-overload]
        if work is None:
            return True
        work.is_full = work.is_closed or not self._has_much_room(work)
        return not work.is_full

    def _has_much_room(self, work: Work) -> bool:
        share = self._share()
        return len(work.taken) < share and work.waiting <= share // 2

    def room(self, state: PartitionState) -> int:
        """The number of records of this state that may be taken."""
        work = self._works.get(state)
        return self._share() - (0 if work is None else len(work.taken))

    def _share(self) -> int:
        """The number of unfinished records that one partition may have."""
        return max(1, self._settings.max_in_flight // max(1, self._hooks.partition_count()))

    def _take(self, state: PartitionState, records: list[AnyRecord]) -> None:
        """Schedule records that were taken from the buffer of the state. Its position is behind them."""
        if not records:
            return
        work = self._work(state)
        work.taken.take(records)
        if state.tp.topic == self._settings.dlq:
            # A record that fails again would be sent there again, without end. These records stay unfinished.
            self._fail(UsageError(f"{state.tp.topic!r} is the dlq, and subscribed by now: its records would be handled again"))
        elif state.tp.topic == self._settings.retry_topic:
            for record in records:
                self._take_retried(work, record)
        else:
            self._schedule.add(work, [Delivery(record, record.offset) for record in records])
        self._update_block(work)
        self._go_on()

    def _work(self, state: PartitionState) -> Work:
        work = self._works.get(state)
        if work is None:
            old = self._by_tp.get(state.tp)
            if old is not None:  # The state was replaced without `on_dropped`, as when the topic was recreated.
                self._drop(old)
            work = self._works[state] = self._by_tp[state.tp] = Work(state, -1)
        return work

    def _take_retried(self, work: Work, record: AnyRecord) -> None:
        retried = headers.parse(record)
        if retried.group_id is not None and retried.group_id != self._options.group_id:
            work.taken.finish(record.offset)
            self.counters.of_other_groups += 1
            return
        assert self._settings.retry is not None, "a retry topic needs a Backoff"
        wait_ms = min(retried.not_before_ms - self._doors.wall_clock_ms(), self._settings.retry.max_ms)
        delivery = Delivery(retried.record, record.offset, retried.attempt)
        if wait_ms > 0:
            self._schedule.add_at(work, delivery, self._loop.time() + wait_ms / 1000)
        else:
            self._schedule.add(work, [delivery])

    # -- calls --------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Start workers for the calls that can be made now, and set the timer for delayed records."""
        if self._is_ending:
            return
        self._set_timer()
        spare = self._settings.calls_max - len(self._workers)
        for _ in range(min(spare, self._schedule.ready_lanes)):
            worker = self._loop.create_task(self._serve(), name="run: work")
            self._workers[worker] = None
            worker.add_done_callback(self._on_worker_end)

    def _set_timer(self) -> None:
        at = self._schedule.next_time()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None if at is None else self._loop.call_at(at, self._on_time), at

    def _on_time(self) -> None:
        self._timer = self._timer_at = None
        self._schedule.on_time(self._loop.time())
        self._go_on()

    def _on_worker_end(self, worker: asyncio.Task[None]) -> None:
        call = self._workers.pop(worker)
        error = None if worker.cancelled() else worker.exception()
        if call is not None:
            self._release(call)
        if error is not None:
            self._fail(error)
        elif worker.cancelled() and not self._is_ending and (call is None or not call.is_abandoned):
            self._fail(ClientError("a background task of run() was cancelled"))
        self._go_on()

    async def _serve(self) -> None:
        """A worker: make one call after the other, until none can be made now. A worker whose call was abandoned ends."""
        worker = asyncio.current_task()
        assert worker is not None
        while (call := self._next_call()) is not None:
            self._workers[worker] = call
            await self._make(call)
            if call.is_abandoned:
                return  # `_on_worker_end` releases it.
            self._workers[worker] = None
            self._forget(call)
            if self._calls_in_turn == 0:
                self._loop.call_soon(self._begin_turn)
            self._calls_in_turn += 1
            if self._calls_in_turn >= CALLS_PER_TURN:
                await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        self._calls_in_turn = 0

    def _next_call(self) -> Call | None:
        """The next call that may be made now; None if there is none."""
        while not self._is_ending and (call := self._schedule.next_call()) is not None:
            work = call.lane.work
            if not self._hooks.is_current(work.state):
                self._schedule.put_back(call)
                self._drop(work)
            elif self._is_held(work):
                self._schedule.block(work)
                self._schedule.put_back(call)
            else:
                return call
        return None

    async def _make(self, call: Call) -> None:
        """Call the handler with the records of the call, and enter the result into the schedule."""
        error = await self._handle(call)
        if call.is_abandoned:
            return
        if error is None:
            self.counters.handled += len(call.deliveries)
            self._schedule.finish(call)
        elif len(call.deliveries) > 1:
            self._schedule.divide(call)
        else:
            await self._on_failed(call, call.deliveries[0], error)

    async def _handle(self, call: Call) -> BaseException | None:
        """Call the handler. Returns its error."""
        call.started_at, started = self._loop.time(), self._doors.stopwatch()
        self._calls[call] = self._handling[call] = None
        self._update_working()
        try:
            await self._handler.call(call.deliveries)
        except Exception as e:
            return self._failed(e, call)
        except asyncio.CancelledError as e:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(e, call)  # The handler has cancelled itself.
        finally:
            self.counters.latency.observe(self._doors.stopwatch() - started)
            del self._handling[call]
            self._update_working()
        return None

    def _failed(self, error: BaseException, call: Call) -> BaseException:
        """Count and log the error of a call."""
        self.counters.failed_attempts += 1
        self._log.on_failed(call.state.tp, call.deliveries[0], error, self._loop.time())
        return error

    def _update_working(self) -> None:
        if self._hooks.group is not None:
            self._hooks.group.on_working(next((call.started_at for call in self._handling), None))

    def _forget(self, call: Call) -> None:
        """The call has ended: forget it, notify the group, and take more records if there is room for them again."""
        self._calls.pop(call, None)
        self._call_ended.set()
        if self._hooks.group is not None:
            self._hooks.group.on_finished()
        work = call.lane.work
        if work.is_full and not work.is_closed and self._has_much_room(work):
            work.is_full = False
            self._hooks.wake()

    def _release(self, call: Call) -> None:
        """An abandoned call has ended: its result is ignored, and its records stay unfinished."""
        self._schedule.put_back(call)
        tp = call.state.tp
        if self._works.get(call.state) is not call.lane.work:
            self._orphans[tp] -= 1
            if not self._orphans[tp]:
                del self._orphans[tp]
                self._on_no_orphans(tp)
        self._forget(call)

    # -- failures -----------------------------------------------------------------------------------------------------

    async def _on_failed(self, call: Call, delivery: Delivery, error: BaseException) -> None:
        fate = self._settings.fate(error, delivery.attempt, may_repeat=not isinstance(error, Undecodable))
        if fate is Fate.RETRY_HERE:
            assert self._settings.retry is not None
            delay_s = self._settings.retry.delay_ms(delivery.attempt, self._doors.random) / 1000
            self.counters.retried += 1
            self._schedule.retry_at(call, self._loop.time() + delay_s)
            self._set_timer()
        elif fate is Fate.STOP:
            self._stop_at(call, delivery, error)
        elif fate is Fate.SKIP:
            self.counters.skipped += 1
            self._log.on_given_up(delivery.record, error, None)
            self._schedule.finish(call)
        elif await self._send(call, delivery, error, fate):
            self._schedule.finish(call)

    async def _send(self, call: Call, delivery: Delivery, error: BaseException, fate: Fate) -> bool:
        """Send the record to the retry topic or to the dead-letter topic. Returns True if it is acknowledged there and the call
        still counts. False: `run` ends, or the call was abandoned meanwhile."""
        assert self._outbox is not None
        topic, fields = self._letter(delivery, error, fate)
        try:
            await self._outbox.send(topic, delivery.record, fields)
        except StrandlineError as e:
            if not call.is_abandoned:
                self._stop_at(call, delivery, e, f"the record was not delivered to {topic}: {e}")
            return False
        if fate is Fate.RETRY_TOPIC:
            self.counters.retried += 1
        else:
            self.counters.dead_lettered += 1
            self._log.on_given_up(delivery.record, error, topic)
        return not call.is_abandoned

    def _letter(self, delivery: Delivery, error: BaseException, fate: Fate) -> tuple[str, headers.HeaderList]:
        """The topic that a failed record is sent to, and its headers."""
        settings, group_id, cause = self._settings, self._options.group_id, cause_of(error)
        if fate is Fate.RETRY_TOPIC:
            assert settings.retry is not None
            assert settings.retry_topic is not None
            delay_ms = settings.retry.delay_ms(delivery.attempt, self._doors.random)
            not_before_ms = self._doors.wall_clock_ms() + round(delay_ms)
            attempt = delivery.attempt + 1
            return settings.retry_topic, headers.retry_headers(delivery.record, group_id, cause, attempt, not_before_ms)
        assert settings.dlq is not None
        return settings.dlq, headers.dead_letter_headers(delivery.record, group_id, cause, delivery.attempt)

    def _stop_at(self, call: Call, delivery: Delivery, error: BaseException, text: str | None = None) -> None:
        """End `run` because of this record, which stays unfinished."""
        self._fail(stopped_at(delivery, error, text))
        self.counters.dropped += self._schedule.close(call.lane.work)
        self._schedule.put_back(call)

    # -- partitions come and go: the ledger ---------------------------------------------------------------------------

    def finished(self, state: PartitionState) -> Offset | None:
        """See `Ledger`."""
        work = self._works.get(state)
        first = None if work is None else work.taken.first_open()
        if first is not None:
            return first
        return (state.position, state.position_epoch) if state.position >= 0 else None

    def has_unfinished(self, states: Iterable[PartitionState]) -> bool:
        """See `Ledger`. Records that wait do not count: they are handled by the next owner."""
        wanted = dict.fromkeys(states)
        return any(call.state in wanted for call in self._calls)

    def on_revoking(self, states: Iterable[PartitionState], deadline: float) -> None:
        """See `Ledger`. Running calls may end until shortly before the deadline; then they are cut off."""
        revoked = dict.fromkeys(states)
        for state in revoked:
            work = self._works.get(state)
            if work is not None:
                self.counters.dropped += self._schedule.close(work)
        if self.has_unfinished(revoked):
            now = self._loop.time()
            self._loop.call_at(now + DRAIN_SHARE * (deadline - now), self._cut_off, revoked)

    def _cut_off(self, states: dict[PartitionState, None]) -> None:
        late = [call for call in self._calls if call.state in states]
        self._abandon(late, "the partition goes to another member")

    def on_dropped(self, state: PartitionState) -> None:
        """See `Ledger`."""
        work = self._works.get(state)
        if work is not None:
            self._drop(work)

    def _drop(self, work: Work) -> None:
        """The partition was revoked, lost or sought: drop its records. Its running calls become orphans."""
        state = work.state
        self.counters.dropped += self._schedule.close(work)
        del self._works[state]
        if self._by_tp.get(state.tp) is work:
            del self._by_tp[state.tp]
        lost = [call for call in self._calls if call.lane.work is work]
        if lost:
            self._orphans[state.tp] = self._orphans.get(state.tp, 0) + len(lost)
        self._abandon(lost, "the partition was lost")

    def on_moved(self, state: PartitionState) -> None:
        """See `Ledger`. Records that were taken before the move are neither handled nor committed."""
        work = self._works.get(state)
        if work is not None and not self.ended.is_set():
            self._drop(work)

    def on_holds(self) -> None:
        """See `Ledger`."""
        group = self._hooks.group
        if group is not None and group.is_in_doubt and not self._handler.uses_threads:
            self._abandon(list(self._handling), "the membership is in doubt")
        for work in self._works.values():
            self._update_block(work)
        self._go_on()

    def _update_block(self, work: Work) -> None:
        is_held = self._is_held(work)
        if is_held and not work.is_blocked:
            self._schedule.block(work)
        elif not is_held and work.is_blocked:
            self._schedule.unblock(work)

    def _is_held(self, work: Work) -> bool:
        """Whether no call of this partition may begin now."""
        group = self._hooks.group
        return work.state.tp in self._orphans or (group is not None and not group.may_handle(work.state))

    def _on_no_orphans(self, tp: TopicPartition) -> None:
        if self._hooks.group is not None:
            self._hooks.group.forget_dropped(tp)
        work = self._by_tp.get(tp)
        if work is not None:
            self._update_block(work)

    def _abandon(self, calls: Iterable[Call], why: str) -> None:
        """Ignore the results of these calls from now on, and cancel those that do not run on a thread."""
        cut_off = {call: None for call in calls if not call.is_abandoned}
        for call in cut_off:
            call.is_abandoned = True
            self.counters.calls_cut_off += 1
            self._log_if_stuck(call)
        current = asyncio.current_task()
        for worker, its_call in self._workers.items():
            on_thread = self._handler.uses_threads and its_call in self._handling
            if its_call in cut_off and worker is not current and not on_thread:
                worker.cancel(why)

    def _log_if_stuck(self, call: Call) -> None:
        """Log the call (`consumer.handler_stuck`) if the consumer has left the group because of it."""
        group = self._hooks.group
        if group is None or not group.is_expelled or call not in self._handling:
            return
        running_ms, limit_ms = round((self._loop.time() - call.started_at) * 1000), self._options.max_poll_interval_ms
        if running_ms < limit_ms:
            return
        record = call.deliveries[0].record
        logger.error(
            "consumer.handler_stuck",
            group_id=self._options.group_id,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            running_ms=running_ms,
            max_poll_interval_ms=limit_ms,
        )

    # -- what an operator sees ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """The part of `Consumer.health` that is about the handler."""
        now = self._loop.time()
        oldest = next(iter(self._handling), None)
        return {
            "state": "ending" if self._end.done() else "running",
            "calls": len(self._handling),
            "oldest_call_ms": None if oldest is None else (now - oldest.started_at) * 1000,
            "oldest_call": None if oldest is None else _name(oldest),
            "calls_of_lost_partitions": sum(self._orphans.values()),
        }

    def metrics(self) -> dict[str, Any]:
        """The part of `Consumer.metrics` that is about the handler."""
        return {
            **self.counters.as_dict(),
            "in_flight": sum(len(work.taken) for work in self._works.values()),
            "calls_running": len(self._handling),
            "waiting": sum(work.waiting for work in self._works.values()),
            "delayed": self._schedule.delayed,
        }


def _name(call: Call) -> str:
    record = call.deliveries[0].record
    return f"{record.topic}-{record.partition} at offset {record.offset}"
