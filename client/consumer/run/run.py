"""`Consumer.run`, `Consumer.end_run`, and the parts of a consumer that a run uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, NamedTuple, overload

from strandline.client.consumer.run.backoff import Backoff
from strandline.client.consumer.run.handlers import Handler
from strandline.client.consumer.run.outbox import Outbox, checked_producer, outbox_producer
from strandline.client.consumer.run.runner import RunHooks, Runner
from strandline.client.consumer.run.settings import BatchHandler, Concurrency, NoRetry, OnFailure, RecordHandler, RunSettings
from strandline.client.consumer.run.transactional import TransactionalRunner, TransactionHooks, check_transactional
from strandline.client.errors import UsageError
from strandline.client.options import ConsumerOptions
from strandline.client.producer.producer import Producer
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strandline.client.cluster.cluster import Cluster


class RunAccess(NamedTuple):
    """The parts of a consumer that a run uses."""

    options: ConsumerOptions
    doors: Doors
    cluster: Cluster
    hooks: RunHooks
    reads: Callable[[str], bool]
    """Whether the consumer reads this topic: it subscribes to it by name or pattern, or a partition is assigned."""
    transaction_hooks: Callable[[], TransactionHooks]
    """The consumer's functions for a transactional run. It is called only if the consumer has a group."""
    subscribe_also: Callable[[str], None]
    """Subscribes to one more topic. UsageError if partitions are assigned by hand."""


class HandlerRuns(Generic[K, V]):
    """The calls of a consumer that hand its records to a handler."""

    _runner: Runner | TransactionalRunner | None = None
    """The call of `run` that is in progress; None if there is none."""

    def _run_access(self) -> RunAccess:
        """The parts of the consumer. ClientClosed if it is not started."""
        raise NotImplementedError

    @overload
    async def run(
        self,
        handler: RecordHandler[K, V],
        *,
        concurrency: Concurrency = "partition",
        batch_size: None = None,
        max_tasks: int | None = None,
        max_in_flight: int = 1_000,
        retry: Backoff | None = None,
        retry_topic: str | None = None,
        dlq: str | None = None,
        no_retry: NoRetry = (),
        on_failure: OnFailure = "stop",
        drain_timeout_ms: float = 10_000,
        producer: Producer | None = None,
        transactional: bool = False,
        stop_on: Iterable[int] = (),
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: BatchHandler[K, V],
        *,
        concurrency: Concurrency = "partition",
        batch_size: int,
        max_tasks: int | None = None,
        max_in_flight: int = 1_000,
        retry: Backoff | None = None,
        retry_topic: str | None = None,
        dlq: str | None = None,
        no_retry: NoRetry = (),
        on_failure: OnFailure = "stop",
        drain_timeout_ms: float = 10_000,
        producer: Producer | None = None,
        transactional: bool = False,
        stop_on: Iterable[int] = (),
    ) -> None: ...

    async def run(
        self,
        handler: RecordHandler[K, V] | BatchHandler[K, V],
        *,
        concurrency: Concurrency = "partition",
        batch_size: int | None = None,
        max_tasks: int | None = None,
        max_in_flight: int = 1_000,
        retry: Backoff | None = None,
        retry_topic: str | None = None,
        dlq: str | None = None,
        no_retry: NoRetry = (),
        on_failure: OnFailure = "stop",
        drain_timeout_ms: float = 10_000,
        producer: Producer | None = None,
        transactional: bool = False,
        stop_on: Iterable[int] = (),
    ) -> None:
        """Call `handler` with every record, and commit what it has finished (with `enable_auto_commit`), until `end_run`, `stop`,
        a cancellation, or an error. Each record is handled at least once, and by one member of the group at a time.

        `handler`: a coroutine function, or a plain function, which runs on a thread so that it may block. It gets one record;
        with `batch_size`, a list of at most this many records, in order.

        `concurrency`: with "partition", the records of a partition are handled one after the other, and several partitions at the
        same time; with "key", the records of a key one after the other, and several keys at the same time; with a number, this
        many records at the same time, in no order. `max_tasks`: the most calls of the handler that run at the same time (by
        default 64). `max_in_flight`: the most records that are taken and not finished yet, over all partitions.

        `retry`: a record whose handler raises an error is handled again, after the delays and as often as the `Backoff` says.
        Until then the later records of its partition (or key) wait, and the others go on. With `retry_topic` the record is sent
        to that topic instead, and no other record waits for it; the consumer reads that topic, too, and the handler gets the
        record as it was at its origin. `no_retry`: classes of errors after which the record is not handled again. A record that
        cannot be deserialized is not handled again either. `attempt_of(record)` is the number of the attempt.

        `dlq`: the topic for records that are given up, with the reason and the origin in their headers. A record counts as
        finished when it is acknowledged there. Without `dlq`, `run` raises HandlerFailed, and the next run handles the record
        again; with `on_failure="skip"`, it logs the record and goes on. If a batch fails, its records are first handled one by
        one. `producer`: sends to both topics, instead of a producer that `run` starts for that; it needs acks="all", and no
        serializers.

        `transactional`: the consumer takes at most `max_in_flight` records at a time. One transaction holds what the handler
        sends for them with `producer`, their dead letters, and their offsets. `read_committed` consumers see exactly one result
        of each record. The handler must be a coroutine function. After an abort it may be called for the same records again. The
        run needs a `producer` with a `transactional_id`, which nothing else uses, and a consumer with `enable_auto_commit=False`
        and `isolation_level="read_committed"`; no `retry_topic`. ProducerFenced if another process has the transactional id.

        `max_poll_interval_ms` limits a single call of the handler: if one takes longer, the consumer leaves the group until the
        call has ended, and coroutines are cancelled. When `run` is to end, or a partition is revoked, records that wait are
        dropped, and running calls may end within `drain_timeout_ms` or 72 % of `rebalance_timeout_ms`; after that, coroutines are
        cancelled. `stop_on`: signals that call `end_run`, for example `(signal.SIGTERM, signal.SIGINT)`.

        UnknownTopic if `dlq` or `retry_topic` does not exist; the errors of `getmany`. UsageError while another `run` runs, and
        for a handler that cannot be called with one argument, or is a generator function."""
        access = self._run_access()
        if self._runner is not None:
            raise UsageError("the consumer is running a handler already: one run() at a time")
        settings = RunSettings(
            concurrency=concurrency,
            batch_size=batch_size,
            max_tasks=max_tasks,
            max_in_flight=max_in_flight,
            retry=retry,
            retry_topic=retry_topic,
            dlq=dlq,
            no_retry=no_retry,
            on_failure=on_failure,
            drain_timeout_ms=drain_timeout_ms,
        )
        calls = Handler(handler, access.options, takes_batches=batch_size is not None, calls_max=settings.calls_max)
        if transactional:
            check_transactional(settings, calls, producer, access.options)
        outbox = None if transactional else _outbox(settings, access, producer)
        runner: Runner | TransactionalRunner
        if transactional:
            assert producer is not None, "it was checked"
            runner = TransactionalRunner(settings, calls, producer, access.options, access.transaction_hooks(), access.doors)
        else:
            runner = Runner(settings, calls, outbox, access.options, access.hooks, access.doors)
        self._runner = runner
        try:
            await _prepare(settings, access, outbox)
            with _signals(stop_on, runner):
                await runner.run()
        finally:
            self._runner = None
            runner.close()
            if outbox is not None:
                await outbox.stop()

    def end_run(self) -> None:
        """End `run`: no further call of its handler begins, and `run` returns when the calls that run now have ended. `end_run`
        itself returns at once, and a handler may call it. If no `run` runs, it does nothing."""
        if self._runner is not None:
            self._runner.end()

    def _check_no_handler_stops(self) -> None:
        """UsageError if a handler stops the consumer, because the stop would wait for that handler."""
        if self._runner is not None and self._runner.is_called_by_handler:
            raise UsageError("a handler cannot stop its consumer, because stop() waits for the handler: call end_run() instead")

    async def _end_run(self, by: float) -> None:
        """The consumer is stopped: wait until `run` has ended, at most until `by` (on the loop's clock)."""
        runner = self._runner
        if runner is None:
            return
        runner.end(by)
        try:
            async with asyncio.timeout_at(by):
                await runner.ended.wait()
        except TimeoutError:
            runner.close()


def _outbox(settings: RunSettings, access: RunAccess, producer: Producer | None) -> Outbox | None:
    if producer is not None:
        checked_producer(producer)
    if not settings.topics_written:
        return None
    if producer is not None:
        return Outbox(producer, is_own=False)
    return Outbox(outbox_producer(access.options, access.doors), is_own=True)


async def _prepare(settings: RunSettings, access: RunAccess, outbox: Outbox | None) -> None:
    """Look up the topics for failed records before the first one fails, and subscribe to the retry topic."""
    if settings.dlq is not None and access.reads(settings.dlq):
        raise UsageError(f"{settings.dlq!r} is the dlq, and subscribed: its records would be handled again")
    for topic in settings.topics_written:
        await access.cluster.metadata.topic(topic, access.options.max_block_ms)
    if outbox is not None:
        await outbox.start()
    if settings.retry_topic is not None:
        access.subscribe_also(settings.retry_topic)


@contextmanager
def _signals(numbers: Iterable[int], runner: Runner | TransactionalRunner) -> Iterator[None]:
    """Let these signals end the run."""
    loop, handled = asyncio.get_running_loop(), []
    try:
        for number in numbers:
            loop.add_signal_handler(number, runner.end)
            handled.append(number)
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
