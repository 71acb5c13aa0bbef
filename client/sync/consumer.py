"""The consumer without asyncio: calls that wait, and a loop over records.

One thread at a time may call a consumer, as in Kafka's Java client: with two threads that read, neither would know which records
the other has finished. The second one gets a UsageError. `stop`, `health` and `metrics` may come from any thread, and callbacks
may call the consumer while a rebalance waits for them.

**How `for record in consumer` crosses the threads.** The loop hands over the records of one batch at a time (a `Run`), and the
program's thread walks through them without a lock. Only this thread writes `run.current`. It reads the version of the partition's
state, which changes when the following records are no longer the next ones (a seek, a pause, a revocation); then it asks for the
next run. So the loop knows with a delay how far the program has come. It takes over `run.current` (`catch_up`) before every call
of the program, and ten times per second while a run is open, so that commits are up to date, and a slow program does not seem to
have stopped polling. A partition that is revoked waits for the next run, and by then the loop has caught up."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from strandline.client.arguments import checked_time
from strandline.client.consumer.consumer import STOP_TIMEOUT_AFTER_ERROR_MS, STOP_TIMEOUT_MS
from strandline.client.consumer.consumer import Consumer as AsyncConsumer
from strandline.client.consumer.group.callbacks import RebalanceCallback, checked_callbacks
from strandline.client.consumer.partition_state import OpenBatch, PartitionState
from strandline.client.consumer.records import AnyRecord, ConsumerRecord, TopicPartition, TransactionMember
from strandline.client.errors import UsageError
from strandline.client.option_docs import documents
from strandline.client.options import ConsumerKeywords, ConsumerOptions, PlainConsumerKeywords
from strandline.client.sync.callbacks import CallbackThread, in_order
from strandline.client.sync.calls import ConsumerCalls
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors

T = TypeVar("T")
P = ParamSpec("P")

CATCH_UP_S = 0.1
"""While a run is open, the loop takes over the program's progress at this interval (seconds)."""


class Run:
    """The records of one batch, over which the program's thread iterates."""

    __slots__ = ("caught_up", "current", "is_exhausted", "opened", "records", "state", "version")

    def __init__(self, state: PartitionState, records: list[AnyRecord]) -> None:
        self.state = state
        self.records = records
        self.opened: OpenBatch | None = state.opened
        self.version = state.version
        """The records are the next ones as long as the state has this version."""
        self.current: AnyRecord | None = None
        """The last record that was returned to the program. The program's thread writes it."""
        self.caught_up: AnyRecord | None = None
        """The value of `current` that the loop has taken over last."""
        self.is_exhausted = False
        """All records were returned to the program, and it asks for more."""


class RunConsumer(AsyncConsumer[K, V]):
    """The client for asyncio, with runs instead of an asynchronous iterator. All methods must be called on the loop."""

    _open_run: Run | None = None

    async def next_run(self) -> Run:
        """Close the last run, and wait for the next records."""
        self._close_run()
        state = await self._next_ready(None, None)
        assert state is not None
        records = state.rest(self._decode)
        if self._group is not None:
            self._group.on_iterated(state)
        self._open_run = Run(state, records)
        self._keep_up(self._open_run)
        return self._open_run

    def _close_run(self) -> None:
        self.catch_up()
        run, self._open_run = self._open_run, None
        if run is not None and run.is_exhausted and run.state.version == run.version:
            if run.records:
                run.state.finish()
            self._after_reading(run.state)

    def catch_up(self) -> None:
        """Take over the last record that was returned to the program, unless the position was moved since."""
        run = self._open_run
        if run is not None and run.current is not run.caught_up:
            current = run.current
            if current is not None and run.state.catch_up(run.opened, run.caught_up, current):
                run.caught_up = current

    def end_run(self) -> None:
        """Called in a forked process: end the open run after its present record. The next records belong to the parent, and the
        call for another run raises an error."""
        if self._open_run is not None:
            self._open_run.state.version += 1

    def _keep_up(self, run: Run) -> None:
        if self._open_run is run and not self._stopped:
            self.catch_up()
            asyncio.get_running_loop().call_later(CATCH_UP_S, self._keep_up, run)


@documents(ConsumerOptions)
class Consumer(ConsumerCalls[K, V]):
    """Reads records from the leaders of their partitions, and fetches ahead in the background.

        with Consumer("orders", bootstrap_servers="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
            for record in consumer:
                print(record.partition, record.offset, record.key, record.value)

    Start it with `with`, or with `start()` and `stop()`. One thread at a time may call it. Without a `group_id` its positions are
    not stored anywhere: it begins where `auto_offset_reset` or a `seek` says. With one it shares the partitions with the other
    members of the group, and begins where the group has committed."""

    _NAME = "consumer"
    _client: RunConsumer[K, V]

    @overload
    def __init__(
        self: Consumer[bytes, bytes],
        *topics: str | Iterable[str],
        doors: Doors | None = None,
        key_deserializer: None = None,
        value_deserializer: None = None,
        **options: Unpack[PlainConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *topics: str | Iterable[str],
        doors: Doors | None = None,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        **options: Unpack[PlainConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *topics: str | Iterable[str],
        doors: Doors | None = None,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        **options: Unpack[PlainConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *topics: str | Iterable[str],
        doors: Doors | None = None,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **options: Unpack[PlainConsumerKeywords],
    ) -> None: ...

    def __init__(self, *topics: str | Iterable[str], doors: Doors | None = None, **options: Unpack[ConsumerKeywords]) -> None:
        self._callbacks = CallbackThread("strandline consumer callbacks")
        self._in_use = threading.Lock()
        self._user = ""
        """The name of the thread that holds `_in_use`."""
        given: dict[str, Any] = {**options}
        on_state_change = given.get("on_state_change")
        if callable(on_state_change) and not inspect.iscoroutinefunction(on_state_change):  # Anything else is rejected below.
            given["on_state_change"] = in_order(self._callbacks, on_state_change)
        super().__init__(RunConsumer[K, V](*topics, doors=doors, **given))

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the cluster and begin to fetch; AuthenticationFailed if it rejects the client; NoBrokersAvailable if no bootstrap
        server answers within `connect_timeout_ms`; UsageError if the consumer was started before."""
        super().start()
        self._running().on_forked = self._client.end_run

    def stop(self, *, timeout_ms: float | None = None) -> None:
        """Stop fetching and close the connections. Any thread may call it; a call of another thread that waits for records raises
        ClientClosed.

        A member of a group first commits (with `enable_auto_commit`), calls `on_revoked`, and leaves the group, for at most
        `timeout_ms`. By default that is ten seconds; two if `stop` is called while an exception is handled (as in a `finally`
        clause), unless an exception was being handled already when `start` was called. After an exception the records of the last
        call count as unfinished, so they are not committed."""
        self._stop_because(timeout_ms, self._cause())

    def _exit(self, error: BaseException | None) -> None:
        self._stop_because(None, error)

    def _stop_because(self, timeout_ms: float | None, error: BaseException | None) -> None:
        if timeout_ms is None:
            timeout_ms = STOP_TIMEOUT_MS if error is None else STOP_TIMEOUT_AFTER_ERROR_MS
        timeout_ms = checked_time("timeout_ms", timeout_ms)

        async def work() -> None:
            self._client.catch_up()
            await self._client._stop(timeout_ms, error)

        try:
            self._stop(work, timeout_ms / 1000, None)
        finally:
            self._callbacks.close()

    # -- one thread at a time -----------------------------------------------------------------------------------------

    def _enter(self) -> bool:
        """Take the consumer for this thread; UsageError if another thread has it. Returns whether the caller must release
        `_in_use`: a callback need not, because it runs while another thread waits in a call."""
        if self._thread is not None:
            self._thread.check()
        if self._callbacks.is_current():
            return False
        if not self._in_use.acquire(blocking=False):
            raise UsageError(
                f"the consumer is in use by thread {self._user!r}, and only one thread at a time may call it: give each thread a "
                "consumer of its own (in one group), or let one thread read and hand the records on"
            )
        self._user = threading.current_thread().name
        return True

    def _run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            self._client.catch_up()
            return await function(*args, **kwargs)

        thread = self._running()
        has_entered = self._enter()
        try:
            return thread.run(work())
        finally:
            if has_entered:
                self._in_use.release()

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            self._client.catch_up()
            return function(*args, **kwargs)

        has_entered = self._enter() if self._thread is None or not self._thread.is_closed else False
        try:
            return super()._call(work)
        finally:
            if has_entered:
                self._in_use.release()

    def _transaction_member(self, offsets: Iterable[TopicPartition]) -> TransactionMember:
        """The membership with which a transaction commits these offsets, as of this call."""
        return self._call(self._client._transaction_member, offsets)._replace(is_live=False)

    # -- topics and partitions ----------------------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str | Iterable[str],
        pattern: str | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        listener: Any | None = None,
    ) -> None:
        """Read these topics, and no others: `subscribe("a", "b")` or `subscribe(["a", "b"])`. Without a `group_id` the consumer
        reads all their partitions.

        With a `group_id` it joins the group in the background, and reads the partitions that the coordinator assigns to it.
        `pattern`, instead of topics: a regular expression in RE2 syntax, which the coordinator evaluates; the group reads topics
        that match the whole of it, also those that are created later.

        Callbacks are plain functions, and get a list of partitions. They run on a thread of their own, and may call the consumer;
        normally the program's thread waits in a call that returns records meanwhile. `on_assigned` is called before the first
        record of these partitions is returned, and may `seek`. `on_revoked` is called when they go to other members: no more of
        their records are returned, and those that the program has finished are committed (with `enable_auto_commit`). `on_lost`
        is called when the coordinator has removed this member, and other members may already read them; without it, `on_revoked`
        is called. `listener`, instead of callbacks: an object with the methods `on_partitions_assigned` and
        `on_partitions_revoked`. A rebalance waits for a callback, for at most four fifths of `rebalance_timeout_ms`; an error of
        a callback is raised as RebalanceCallbackFailed by the next call that returns records."""
        callbacks = checked_callbacks(on_assigned, on_revoked, on_lost, listener)
        assigned, revoked, lost = map(self._callbacks.on_rebalance, callbacks)
        self._call(self._client.subscribe, *topics, pattern=pattern, on_assigned=assigned, on_revoked=revoked, on_lost=lost)

    def unsubscribe(self) -> None:
        """Read nothing until the next `subscribe` or `assign`. A member of a group commits (with `enable_auto_commit`), calls
        `on_revoked`, and leaves the group in the background."""
        self._call(self._client.unsubscribe)

    # -- records ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """All records of all partitions, without end. Inside the loop body, the position is after its record. Errors are those of
        `getmany`."""
        while True:
            run = self._run(self._client.next_run)
            state, version = run.state, run.version
            for record in run.records:
                run.current = record
                yield record
                if state.version != version:
                    break
            else:
                run.is_exhausted = True
