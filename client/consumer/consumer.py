"""The consumer: `async for`, `getmany`, `getone`, `fetch_batches`, positions, seeks, commits; `run` is in run/.

    async with Consumer("orders", bootstrap_servers="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            ...

Without a group it reads all partitions of its topics, also those that are added later, or the partitions that were assigned by
hand. As a member of a group it reads those that the coordinator assigns to it (group/). The fetcher (fetcher.py) fetches records
ahead in the background; a call that returns records decodes a batch at a time. Only records below the high watermark are
returned.

If a partition cannot be read any further (its log was truncated, the position is outside the log, a batch is corrupt), the calls
that return records raise its error: the next call, and later ones whenever they have no records to return. A seek clears it.

A topic that is deleted and recreated under its name is another topic, with another id (KIP-516). A consumer that subscribed to
the name reads the new one from its beginning. If the partition was assigned by hand, its position is an offset of a deleted log:
the consumer logs a warning and continues in the new topic by `auto_offset_reset`; with "error" it raises TopicRecreated until a
seek. Without a position yet, it reads the new topic from its beginning. If the topic is deleted and not recreated, both raise
UnknownTopic. The consumer waits a moment (`MISSING_TOPIC_GRACE_MS`) before that, because a broker that is behind still knows the
old topic, or does not know the new one yet.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from strandline.client.arguments import (
    OFFSET_MAX,
    TIMESTAMP_MAX,
    check_encodes,
    checked_by_partition,
    checked_commits,
    checked_name,
    checked_partition,
    checked_partitions,
    checked_time,
    checked_whole,
)
from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.batches import FetchedBatch, fetched_batch
from strandline.client.consumer.fetch_state import FetchState
from strandline.client.consumer.fetcher import Fetcher
from strandline.client.consumer.group.callbacks import Callbacks, RebalanceCallback, checked_callbacks
from strandline.client.consumer.group.member import GroupMember
from strandline.client.consumer.group.membership import Topics
from strandline.client.consumer.group.rebalancer import Hooks
from strandline.client.consumer.partition_state import EARLIEST, LATEST, PartitionState
from strandline.client.consumer.poll import Room, checked_limit, pull_batches, pull_records
from strandline.client.consumer.records import (
    AnyRecord,
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    TransactionMember,
    by_topic,
    decode_records,
    deserialize,
)
from strandline.client.consumer.run.run import HandlerRuns, RunAccess
from strandline.client.consumer.run.runner import RunHooks, Runner
from strandline.client.consumer.run.transactional import Portion, TransactionalRunner, TransactionHooks
from strandline.client.consumer.subscription import Subscription
from strandline.client.consumer.topic_tracker import TopicTracker
from strandline.client.errors import (
    ClientClosed,
    CorruptRecords,
    OffsetOutOfRange,
    RequestTimeout,
    TopicRecreated,
    UsageError,
)
from strandline.client.home import Home
from strandline.client.option_docs import documents
from strandline.client.options import ConsumerKeywords, ConsumerOptions, PlainConsumerKeywords, parse_options
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors, real_doors
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import BatchHeader, Buffer

logger = get_logger(__name__)

MANY_RECORDS = 10_000
"""`getmany` without a limit returns whole batches until it has this many records: enough to be fast, and few enough for a short
call."""

MANY_ROWS, MANY_BYTES = 100_000, 8 * 1024 * 1024
"""`fetch_batches` without a limit returns no more than this: some ten milliseconds of decoding."""

STOP_TIMEOUT_MS, STOP_TIMEOUT_AFTER_ERROR_MS = 10_000, 2_000
"""Time limits (ms) of `stop` if the caller gives none: in general, and after an error."""
RUN_SHARE = 0.7
"""Share of the time of `stop` within which a handler of `run` must end. In the rest, the consumer leaves the group."""

Taken = TypeVar("Taken")

_RESETS = {"earliest": EARLIEST, "latest": LATEST, "error": None}


@documents(ConsumerOptions)
class Consumer(HandlerRuns[K, V]):
    """Reads records from the leaders of their partitions, and fetches ahead in the background.

        async with Consumer("orders", bootstrap_servers="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                print(record.partition, record.offset, record.key, record.value)

    Start it with `async with`, or with `await start()` and `await stop()`. It belongs to the event loop in which it was started.
    Without a `group_id` its positions are not stored anywhere: it begins where `auto_offset_reset` or a `seek` says. With one it
    shares the partitions with the other members of the group, and begins where the group has committed."""

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
        self.options = parse_options(ConsumerOptions, options)
        self._doors = doors or real_doors()
        self._subscription = Subscription(_RESETS[self.options.auto_offset_reset], self._skips, self.options.check_crcs)
        self._skipped = {"skipped_batches": 0, "skipped_offsets": 0}
        self._cluster: Cluster | None = None
        self._fetcher: Fetcher | None = None
        self._home: Home | None = None
        self._stopped = False
        """`stop` was called: no more records are returned."""
        self._closed = False
        """`stop` has closed the connections. Until then, callbacks may commit."""
        self._tracker: TopicTracker | None = None
        self._assigning: Coroutine[Any, Any, None] | None = None
        """The last call of `assign`. If it was not awaited, reading is an error."""
        self._assigning_partitions: list[TopicPartition] = []
        self._group: GroupMember | None = None
        """The membership in the group; None without a `group_id`, and before `start`."""
        self._subscribed: tuple[Topics, Callbacks] | None = None
        """The subscription of a consumer with a `group_id`, and its callbacks."""
        self._started_in_handler = False
        """An exception was already being handled when `start` was called. So an exception that is being handled during `stop`
        need not be the reason for the stop."""
        if topics:
            self.subscribe(*topics)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster and begin to fetch; AuthenticationFailed if it rejects the client; NoBrokersAvailable if no bootstrap
        server answers within `connect_timeout_ms`; UsageError if the consumer was started before."""
        if self._cluster is not None or self._stopped:
            raise UsageError("the consumer was started before: create a new one")
        self._started_in_handler = sys.exception() is not None
        self._home = Home("consumer", between_runs=True)
        cluster = self._cluster = Cluster(self.options, self._doors.random)
        cluster.listeners.add(self._on_cluster)
        self._fetcher = Fetcher(self.options, cluster, self._subscription)
        self._tracker = TopicTracker(self.options, cluster, self._subscription, self._fetcher, lambda state: self._begin(state))
        cluster.metadata.want_topics(self._subscription.topics)
        try:
            await cluster.start()
        except BaseException:
            await self.stop()
            raise
        if self.options.group_id is not None:
            hooks = Hooks(lambda state: self._begin(state), lambda state, offset, epoch: self._move(state, offset, epoch))
            self._group = GroupMember(
                self.options, self.options.group_id, self._doors, cluster, self._subscription, self._fetcher, hooks
            )
            self._group.start()
            if self._subscribed is not None:
                self._group.subscribe(*self._subscribed)
        self._on_cluster()

    async def stop(self, *, timeout_ms: float | None = None) -> None:
        """Stop fetching and close the connections. A call that waits for records raises ClientClosed.

        A member of a group first commits (with `enable_auto_commit`), calls `on_revoked`, and leaves the group, for at most
        `timeout_ms`. By default that is ten seconds; two if `stop` is called while an exception is handled (as in a `finally`
        clause), unless an exception was being handled already when `start` was called. After an exception the records of the last
        call count as unfinished, so they are not committed."""
        await self._stop(timeout_ms, None if self._started_in_handler else sys.exception())

    async def _stop(self, timeout_ms: float | None, error: BaseException | None) -> None:
        """Do what `stop` promises. `error`: the exception because of which the consumer is stopped."""
        if self._stopped:
            return
        self._check_caller()
        self._check_no_handler_stops()
        if timeout_ms is None:
            timeout_ms = STOP_TIMEOUT_MS if error is None else STOP_TIMEOUT_AFTER_ERROR_MS
        timeout_ms = checked_time("timeout_ms", timeout_ms)
        self._stopped = True
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            await self._end_run(deadline - (1 - RUN_SHARE) * timeout_ms / 1000)
            if self._group is not None:
                await self._group.stop(deadline, has_finished=error is None)
        finally:
            self._closed = True
            if self._fetcher is not None:
                await self._fetcher.close()
            if self._cluster is not None:
                await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self._stop(None, error)

    def _check_caller(self) -> None:
        """UsageError for a call from another thread or event loop than that of `start`."""
        if self._home is not None:
            self._home.check()

    def _running(self) -> tuple[Fetcher, Cluster]:
        if self._stopped:
            self._check_caller()
            raise ClientClosed("the consumer was stopped")
        return self._connected()

    def _connected(self) -> tuple[Fetcher, Cluster]:
        """The fetcher and the cluster. Unlike `_running`, it does not fail while the consumer is being stopped: a callback may
        still commit or seek then."""
        self._check_caller()
        if self._closed:
            raise ClientClosed("the consumer was stopped")
        if self._fetcher is None or self._cluster is None:
            raise ClientClosed("the consumer was not started: use `async with Consumer(...)`, or `await consumer.start()`")
        return self._fetcher, self._cluster

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

        Callbacks are plain functions or coroutine functions, and get a list of partitions. `on_assigned` is called before the
        first record of these partitions is returned, and may `seek`. `on_revoked` is called when they go to other members: no
        more of their records are returned, and those that the program has finished are committed (with `enable_auto_commit`).
        `on_lost` is called when the coordinator has removed this member, and other members may already read them; without it,
        `on_revoked` is called. `listener`, instead of callbacks: an object with aiokafka's methods `on_partitions_assigned` and
        `on_partitions_revoked`. A rebalance waits for a callback, for at most four fifths of `rebalance_timeout_ms`; an error of
        a callback is raised as RebalanceCallbackFailed by the next call that returns records."""
        self._check_caller()
        names = _checked_topics(topics)
        callbacks = checked_callbacks(on_assigned, on_revoked, on_lost, listener)
        self._assigning = None
        if self.options.group_id is None:
            if pattern is not None or callbacks != Callbacks():
                raise UsageError("a pattern, and callbacks of a rebalance, need a group_id")
            self._drop(self._subscription.subscribe(names))
        else:
            wanted = _checked_subscription(names, pattern)
            self._drop(self._subscription.subscribe_by_group(names))
            self._subscribed = wanted, callbacks
            if self._group is not None:
                self._group.subscribe(wanted, callbacks)
        if self._cluster is not None and self._tracker is not None:
            self._tracker.forget_topics()
            self._cluster.metadata.want_topics(names)
            self._cluster.metadata.request_refresh()
            self._on_cluster()

    def unsubscribe(self) -> None:
        """Read nothing until the next `subscribe` or `assign`. A member of a group commits (with `enable_auto_commit`), calls
        `on_revoked`, and leaves the group in the background."""
        self._check_caller()
        self._assigning = self._subscribed = None
        if self._group is not None and self._subscription.by_group:
            self._subscription.topics = {}
            self._group.unsubscribe()
        else:
            self._drop(self._subscription.clear())

    def subscription(self) -> set[str]:
        """The topics that are subscribed by name."""
        return set(self._subscription.topics)

    def _drop(self, states: Iterable[PartitionState]) -> None:
        if self._fetcher is not None:
            self._fetcher.drop(states)

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> Coroutine[Any, Any, None]:
        """Read exactly these partitions. It must be awaited, unlike aiokafka's `assign`: it waits at most `max_block_ms` for
        their topics' metadata. UnknownTopic if a partition does not exist. Partitions that were assigned before keep their
        positions."""
        self._assigning_partitions = checked_partitions(partitions)
        self._assigning = self._assign(self._assigning_partitions)
        return self._assigning

    async def _assign(self, tps: list[TopicPartition]) -> None:
        fetcher, cluster = self._running()
        ids: dict[str, bytes] = {}
        for topic, wanted in by_topic(tps).items():
            ids[topic] = (await cluster.metadata.topic(topic, self.options.max_block_ms, wanted)).topic_id
        await self._leave_group()
        states = self._subscription.states.items()
        kept = {tp: state for tp, state in states if tp in tps and state.topic_id == ids[tp.topic]}
        if self._subscription.topics:
            self._drop(self._subscription.clear())
            kept = {}
        self._drop([self._subscription.remove(tp) for tp in list(self._subscription.states) if tp not in kept])
        added = [tp for tp in tps if tp not in kept]
        if self._group is not None:
            await self._begin_at_commits([self._subscription.add(tp, ids[tp.topic], None) for tp in added])
        else:
            for tp in added:
                self._begin(self._subscription.add(tp, ids[tp.topic], self._subscription.default_reset))
        fetcher.on_cluster()

    async def _begin_at_commits(self, states: list[PartitionState]) -> None:
        """Begin to read states that were assigned by hand at the committed offsets of the group."""
        assert self._group is not None
        try:
            await self._group.begin_assigned(states, self._deadline(None))
        except BaseException:
            present = self._subscription.states
            self._drop([self._subscription.remove(state.tp) for state in states if present.get(state.tp) is state])
            raise

    async def _leave_group(self) -> None:
        """Leave the group, if the consumer is a member, because partitions are assigned by hand now."""
        if self._group is not None and self._subscription.by_group:
            self.unsubscribe()
            await self._group.left(self._deadline(None))
            self._drop(self._subscription.clear())

    def _deadline(self, timeout_ms: float | None) -> float:
        """`timeout_ms` (by default `max_block_ms`) from now, on the loop's clock."""
        wait_ms = self.options.max_block_ms if timeout_ms is None else checked_time("timeout_ms", timeout_ms)
        return asyncio.get_running_loop().time() + wait_ms / 1000

    def _check_assigned_is_awaited(self) -> None:
        if self._assigning is not None and inspect.getcoroutinestate(self._assigning) == inspect.CORO_CREATED:
            raise UsageError(
                f"assign() of {', '.join(map(str, self._assigning_partitions))} was not awaited and has done nothing: "
                "write `await consumer.assign(...)`"
            )

    def _begin(self, state: PartitionState) -> None:
        """Begin to read a new state. Without a reset policy it needs a seek first."""
        if state.fetch_state is FetchState.INITIALIZING:
            state.fail(
                OffsetOutOfRange(
                    'the partition has no position, and auto_offset_reset is "error": seek to one',
                    topic=state.tp.topic,
                    partition=state.tp.partition,
                )
            )
        assert self._fetcher is not None
        self._fetcher.check_soon(state)
        if state.error is not None:
            self._fetcher.wake()

    async def refresh_metadata(self) -> None:
        """Refresh the metadata now, for example after the event loop was blocked for long. It waits at most `max_block_ms`;
        NoBrokersAvailable or RequestTimeout after that."""
        _, cluster = self._running()
        await cluster.metadata.refresh(self.options.max_block_ms)
        self._on_cluster()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now, through `assign` or `subscribe`."""
        return set(self._subscription.states)

    def topic_id(self, partition: TopicPartition | tuple[str, int]) -> bytes:
        """The id (16 bytes) of the topic whose log this consumer reads as the assigned `partition`. A topic that is deleted and
        recreated under its name has another id (KIP-516). UsageError if the partition is not assigned."""
        return self._state(partition).topic_id

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """The ids (16 bytes) of these topics in the newest metadata of this consumer; a topic that is not in it is left out. It
        sends no request."""
        _, cluster = self._running()
        known = cluster.cache.topics
        return {name: known[name].topic_id for name in _checked_topics([topics]) if name in known}

    def _on_cluster(self) -> None:
        """Metadata was refreshed."""
        if self._tracker is not None and not self._stopped:
            self._tracker.on_cluster()
            if self._fetcher is not None and self._cluster is not None and self._cluster.refusal is not None:
                self._fetcher.wake()
            if self._group is not None:
                self._group.on_cluster()

    # -- records ------------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """All records of all partitions, without end. Inside the loop body, the position is after its record. Errors are those of
        `getmany`."""
        while True:
            state = await self._next_ready(None, None)
            assert state is not None
            records = state.rest(self._decode)
            if self._group is not None:
                self._group.on_iterated(state)
            version = state.version
            for record in records:
                state.cursor = record
                yield record
                if state.version != version:
                    break
            else:
                if records:
                    state.finish()
                self._after_reading(state)
            await asyncio.sleep(0)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """The records that were fetched, by partition; those of `partitions` only, if some are given. It waits at most
        `timeout_ms` for the first record and returns an empty dict if none came. At most `max_records` (by default
        `max_poll_records`).

        It raises the error of a partition that cannot be read any further: OffsetOutOfRange, LogTruncated (KIP-320),
        TopicRecreated, UnknownTopic, CorruptRecords, or that of a deserializer (ClientError). A `seek` clears it."""
        limit = checked_limit("max_records", max_records) or self.options.max_poll_records
        left = limit or MANY_RECORDS

        def pull(state: PartitionState) -> list[ConsumerRecord[K, V]]:
            nonlocal left
            records = self._pull(state, left, whole=limit is None) if left > 0 else []
            left -= len(records)
            return records

        return await self._poll(partitions, timeout_ms, pull)

    async def fetch_batches(
        self,
        *partitions: TopicPartition,
        timeout_ms: float = 0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[TopicPartition, list[FetchedBatch]]:
        """The batches that were fetched, by partition; those of `partitions` only, if some are given. A `FetchedBatch` has its
        records by column, without a Python object per record: several million records per second. `arrow_batches` (or
        `batch.to_arrow`) converts them to Arrow record batches.

        It waits at most `timeout_ms` for the first batch and returns an empty dict if none came. The errors of partitions are
        those of `getmany`. Deserializers do not apply.

        Batches are not divided, so a first batch that is larger than `max_records` or `max_bytes` (bytes of the batch in the log)
        is returned all the same. After a `seek`, or after records that were returned one by one, it begins at the position."""
        room = Room(
            checked_limit("max_records", max_records) or self.options.max_poll_records or MANY_ROWS,
            checked_limit("max_bytes", max_bytes) or MANY_BYTES,
        )
        return await self._poll(partitions, timeout_ms, lambda state: self._pull_batches(state, room))

    async def _poll(
        self, partitions: tuple[TopicPartition, ...], timeout_ms: float, pull: Callable[[PartitionState], list[Taken]]
    ) -> dict[TopicPartition, list[Taken]]:
        """The result of `pull` for each partition from which it takes something. Waits at most `timeout_ms` until there is
        one."""
        fetcher, _ = self._running()
        only = {checked_partition(tp) for tp in partitions} or None
        result: dict[TopicPartition, list[Taken]] = {}
        deadline = asyncio.get_running_loop().time() + checked_time("timeout_ms", timeout_ms) / 1000
        await asyncio.sleep(0)
        while not result and await self._next_ready(only, deadline) is not None:
            for state in fetcher.ready_states(only):
                taken = pull(state)
                if taken:
                    result[state.tp] = taken
        return result

    def _pull(self, state: PartitionState, left: int, *, whole: bool) -> list[ConsumerRecord[K, V]]:
        if self._group is not None:
            self._group.on_returned(state)
        records = pull_records(state, self._decode, left, whole=whole)
        self._after_reading(state)
        return records

    def _pull_batches(self, state: PartitionState, room: Room) -> list[FetchedBatch]:
        """The batches that there is room for. A partition from which no batch is taken keeps its turn."""
        if self._group is not None:
            self._group.on_returned(state)
        batches, taken = pull_batches(state, self._decode_columns, room)
        if taken:
            self._after_reading(state)
        return batches

    async def getone(self, *partitions: TopicPartition, timeout_ms: float | None = None) -> ConsumerRecord[K, V]:
        """The next record (of `partitions`, if some are given). It waits without bound, or RequestTimeout after `timeout_ms`.
        Errors are those of `getmany`."""
        only = {checked_partition(tp) for tp in partitions} or None
        deadline = None if timeout_ms is None else self._deadline(timeout_ms)
        while True:
            state = await self._next_ready(only, deadline)
            if state is None:
                raise RequestTimeout("no record arrived", elapsed_ms=timeout_ms)
            records = self._pull(state, 1, whole=False)
            if records:
                return records[0]

    async def _next_ready(self, only: Container[TopicPartition] | None, deadline: float | None) -> PartitionState | None:
        """A state with something in its buffer; None at the deadline. Raises the error of a topic or partition that has one."""
        if self._runner is not None and only is not self._runner:
            raise UsageError("run() reads the records of this consumer: no other call may return some of them")
        if self._assigning is not None:
            await asyncio.sleep(0)  # A task that runs `assign` begins now.
            self._check_assigned_is_awaited()
            self._assigning = None
        group = self._group
        if group is not None:
            group.on_poll(only)
        has_given_way = False
        while True:
            fetcher, cluster = self._running()
            if cluster.refusal is not None:
                await cluster.check_refusal()
                continue
            if group is not None:
                group.raise_errors()
            self._raise_errors(first_time=True)
            state = fetcher.next_ready(only)
            if state is not None:
                return state
            if self._subscription.failed and not has_given_way:
                await asyncio.sleep(0)  # Let other tasks run, even if the program ignores the error in a loop.
                has_given_way = True
                continue  # Records may have arrived during the sleep. There is no other await before the wait.
            self._raise_errors(first_time=False)
            if not await (fetcher.wait(deadline) if group is None else group.wait(deadline)):
                return None

    def _raise_errors(self, first_time: bool) -> None:
        assert self._tracker is not None
        self._tracker.raise_missing(forget=first_time)
        for state in self._subscription.failed:
            if isinstance(state.error, TopicRecreated) and self._tracker.follows_policy(state):
                continue  # The reset policy applies when its buffer is empty.
            failure = state.failure
            if failure is not None and failure.was_raised != first_time and not state.paused:
                raise failure.to_raise()

    def _skips(self, error: CorruptRecords) -> bool:
        """Whether to skip a batch that cannot be read. It is counted and logged."""
        if self.options.on_corrupt_batch != "skip":
            return False
        self._skipped["skipped_batches"] += 1
        self._skipped["skipped_offsets"] += error.last_offset - error.first_offset + 1
        logger.warning(
            "consumer.batch_skipped",
            topic=error.topic,
            partition=error.partition,
            first_offset=error.first_offset,
            last_offset=error.last_offset,
            reason=str(error),
        )
        return True

    def _after_reading(self, state: PartitionState) -> None:
        """Records of the state were returned: serve the other partitions first next time, and fill its buffer again."""
        assert self._fetcher is not None
        assert self._tracker is not None
        if isinstance(state.error, TopicRecreated) and self._tracker.follows_policy(state) and not state.has_buffered:
            self._tracker.read_recreated(state, state.error.topic_id)
        else:
            self._fetcher.on_read(state)

    def _decode(self, tp: TopicPartition, buf: Buffer, pos: int, header: BatchHeader, offset: int) -> list[AnyRecord]:
        options = self.options
        records = self._decode_raw(tp, buf, pos, header, offset)
        if options.key_deserializer is None and options.value_deserializer is None:
            return records
        return deserialize(records, options.key_deserializer, options.value_deserializer)

    def _decode_columns(self, tp: TopicPartition, buf: Buffer, pos: int, header: BatchHeader, offset: int) -> FetchedBatch:
        return fetched_batch(tp, buf, pos, header, from_offset=offset, check_crc=self.options.check_crcs)

    # -- a handler ----------------------------------------------------------------------------------------------------

    def _run_access(self) -> RunAccess:
        fetcher, cluster = self._running()
        subscription = self._subscription
        hooks = RunHooks(
            self._take,
            fetcher.wake,
            lambda: len(subscription.states),
            lambda state: subscription.states.get(state.tp) is state,
            self._move,
            self._group,
        )
        return RunAccess(self.options, self._doors, cluster, hooks, self._reads, self._transaction_hooks, self._subscribe_also)

    def _transaction_hooks(self) -> TransactionHooks:
        states = self._subscription.states
        return TransactionHooks(self._take_many, lambda state: states.get(state.tp) is state, self._move, self._member(), self)

    async def _take_many(self, runner: TransactionalRunner, limit: int, deadline: float) -> dict[PartitionState, Portion]:
        """Records of all partitions, with keys and values in bytes."""
        taken: dict[PartitionState, Portion] = {}
        fetcher, _ = self._running()
        await asyncio.sleep(0)
        while not taken and await self._next_ready(runner, deadline) is not None:
            for state in fetcher.ready_states(None):
                records, begin = [], (state.position, state.position_epoch)
                if limit > 0:
                    self._member().on_returned(state)
                    records = pull_records(state, self._decode_raw, limit, whole=False)
                    self._after_reading(state)
                if records:
                    limit -= len(records)
                    taken[state] = Portion(records, begin, (state.position, state.position_epoch))
        return taken

    async def _take(self, runner: Runner, deadline: float) -> tuple[PartitionState, list[AnyRecord]] | None:
        """The next records for `run`, all of one partition, as many as the runner has room for, with keys and values in bytes.
        None at the deadline."""
        state = await self._next_ready(runner, deadline)
        if state is None:
            return None
        records = pull_records(state, self._decode_raw, runner.room(state), whole=False)
        self._after_reading(state)
        return state, records

    def _decode_raw(self, tp: TopicPartition, buf: Buffer, pos: int, header: BatchHeader, offset: int) -> list[AnyRecord]:
        return decode_records(tp, buf, pos, header, from_offset=offset, check_crc=self.options.check_crcs)

    def _reads(self, topic: str) -> bool:
        """Whether the consumer subscribes to this topic, by name or pattern, or a partition of it is assigned."""
        subscription = self._subscription
        if topic in subscription.topics or any(tp.topic == topic for tp in subscription.states):
            return True
        return self._subscribed is not None and self._subscribed[0].include(topic)

    def _subscribe_also(self, topic: str) -> None:
        """Subscribe to one more topic, with the same callbacks."""
        if self._subscribed is None:
            raise UsageError("a retry_topic needs a group_id, and a subscription: the members share its partitions, too")
        (names, pattern), callbacks = self._subscribed
        if topic in names:
            return
        if pattern is None:
            self.subscribe(*names, topic, **callbacks._asdict())
        else:
            self.subscribe(pattern=f"(?:(?:{pattern})|{topic.replace('.', '[.]')})", **callbacks._asdict())

    # -- positions ----------------------------------------------------------------------------------------------------

    def _state(self, tp: TopicPartition | tuple[str, int]) -> PartitionState:
        self._check_caller()
        tp = checked_partition(tp)
        state = self._subscription.states.get(tp)
        if state is None:
            self._check_assigned_is_awaited()
            raise UsageError(f"{tp} is not assigned to this consumer")
        return state

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, leader_epoch: int = -1) -> None:
        """Continue at the first record at or after `offset`. `leader_epoch`: the leader epoch of the record before `offset`, if
        the program has kept it; then LogTruncated is raised if the log no longer holds that record (KIP-320). UsageError if the
        partition is not assigned."""
        offset = checked_whole("an offset", offset, 0, OFFSET_MAX)
        leader_epoch = checked_whole("a leader epoch", leader_epoch, -1)
        state = self._state(partition)
        failure = state.failure
        if failure is not None and failure.was_raised and isinstance(failure.error, TopicRecreated):
            assert self._tracker is not None
            # A program that has seen the error seeks in the new topic. Before that, its offset is one of the old log.
            state = self._tracker.renew(state, failure.error.topic_id)
        self._move(state, offset, leader_epoch)

    def _move(self, state: PartitionState, offset: int, leader_epoch: int = -1) -> None:
        fetcher, _ = self._connected()
        state.seek(offset, leader_epoch)
        if self._group is not None:
            self._group.on_moved(state)
        elif self._runner is not None:
            self._runner.on_moved(state)
        fetcher.on_moved(state)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all that are assigned, from their first record. RequestTimeout after `max_block_ms`."""
        await self._seek_by(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all that are assigned, from their end: only records that are sent from now on. RequestTimeout
        after `max_block_ms`."""
        await self._seek_by(LATEST, partitions)

    async def _seek_by(self, timestamp: int, partitions: Iterable[TopicPartition]) -> None:
        states = [self._state(tp) for tp in partitions] or list(self._subscription.states.values())
        fetcher, _ = self._running()
        assert self._tracker is not None
        found = await fetcher.offset_fetcher.look_up({state.tp: timestamp for state in states})
        for state in states:
            answer = found[state.tp]
            if self._subscription.states.get(state.tp) is state and answer.offset >= 0:
                is_same = answer.topic_id == state.topic_id
                self._move(state if is_same else self._tracker.renew(state, answer.topic_id), answer.offset)

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record. It waits until a first position is known; RequestTimeout after `max_block_ms`, or the
        error of a partition that cannot be read. UsageError if the partition is not assigned."""
        state = self._state(partition)
        fetcher, _ = self._connected()
        deadline = asyncio.get_running_loop().time() + self.options.max_block_ms / 1000
        if state.position < 0:
            fetcher.check_soon(state)
        while state.position < 0:
            if state.error is not None:
                raise state.error
            if not await fetcher.wait(deadline):
                reason = f": {state.lookup_error}" if state.lookup_error is not None else ""
                text = f"the position is not known yet{reason}"
                raise RequestTimeout(text, topic=state.tp.topic, partition=state.tp.partition)
            self._running()
        return state.position

    def highwater(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """The partition's high watermark in the newest fetch response; None before the first one. A `read_committed` consumer may
        have to stop before it, at an open transaction. UsageError if the partition is not assigned."""
        state = self._state(partition)
        return state.highwater if state.highwater >= 0 else None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """By partition, the offset of the first record in the log. RequestTimeout after `max_block_ms`; UnknownTopic."""
        return await self._offsets_at(EARLIEST, partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """By partition, the offset after the last record that consumers may read. RequestTimeout after `max_block_ms`;
        UnknownTopic."""
        return await self._offsets_at(LATEST, partitions)

    async def _offsets_at(self, timestamp: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        fetcher, _ = self._running()
        found = await fetcher.offset_fetcher.offsets(dict.fromkeys(checked_partitions(partitions), timestamp))
        return {tp: answer.offset if answer is not None else 0 for tp, answer in found.items()}

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition, the first record at or after a time (milliseconds since 1970, UTC), or at -2 (the first record of the
        log) or -1 (after the last one that consumers may read), with leader epochs; None if there is no such record.
        RequestTimeout after `max_block_ms`; UnknownTopic."""
        fetcher, _ = self._running()
        return await fetcher.offset_fetcher.offsets(checked_by_partition(wanted))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition, the first record at or after a time (milliseconds since 1970, UTC); None if there is no such record.
        RequestTimeout after `max_block_ms`; UnknownTopic."""
        for timestamp in checked_by_partition(timestamps).values():
            checked_whole("a timestamp (ms since 1970)", timestamp, 0, TIMESTAMP_MAX)
        return await self.list_offsets(timestamps)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions, and do not fetch them, until `resume`. Records that are fetched already are
        kept. UsageError if one is not assigned."""
        for tp in partitions:
            state = self._state(tp)
            state.pause()
            self._running()[0].check_soon(state)

    def resume(self, *partitions: TopicPartition) -> None:
        """Read these paused partitions again. UsageError if one is not assigned."""
        fetcher, _ = self._running()
        for tp in partitions:
            state = self._state(tp)
            state.resume()
            fetcher.on_resumed(state)

    def fetch_until(self, partition: TopicPartition | tuple[str, int], offset: int | None) -> None:
        """Fetch no records of this partition from `offset` on; None removes the bound. Records at or after the bound that are
        fetched already are returned all the same, because brokers send whole batches. For a program that reads a known range, and
        whose consumer would otherwise fetch beyond its end."""
        state = self._state(partition)
        state.stop_fetching_at(None if offset is None else checked_whole("an offset", offset, 0, OFFSET_MAX))
        self._running()[0].check_soon(state)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, state in self._subscription.states.items() if state.is_paused_by_program}

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions. It waits at most `max_block_ms` for metadata; UnknownTopic."""
        _, cluster = self._running()
        return set((await cluster.metadata.topic(topic, self.options.max_block_ms)).partitions)

    # -- committed offsets --------------------------------------------------------------------------------------------

    def _member(self) -> GroupMember:
        self._connected()
        if self._group is None:
            raise UsageError("offsets are committed for a group: give the consumer a group_id")
        return self._group

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int | tuple[int, str]] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Store positions for the group: `offsets` by partition (the offset of the next record to be read, also with a text), or
        the positions of all assigned partitions. A position is the offset after the last record that a call has returned, whether
        the program has finished that record or not. It waits at most `timeout_ms` (by default `max_block_ms`).

        CommitFailed if a partition is no longer assigned to this consumer, or the coordinator has removed it from the group;
        RequestFailed if the coordinator rejects an offset; RequestTimeout. The offsets of the other partitions are stored all the
        same. UsageError without a `group_id`."""
        group = self._member()
        await group.commit(None if offsets is None else checked_commits(offsets), self._deadline(timeout_ms))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group, member id and member epoch with which the consumer commits now: for `Producer.send_offsets_to_transaction`,
        if the producer runs elsewhere. CommitFailed if the coordinator does not count the consumer as a member; UsageError
        without a `group_id`."""
        return self._member().metadata()

    def _transaction_member(self, offsets: Iterable[TopicPartition]) -> TransactionMember:
        """The membership with which a transaction commits these offsets. CommitFailed if one of the partitions is no longer
        assigned to this consumer; UsageError with `enable_auto_commit`."""
        if self.options.enable_auto_commit:
            raise UsageError("a consumer whose offsets a transaction commits needs enable_auto_commit=False")
        return self._member().transaction_member(offsets)

    async def committed(self, partition: TopicPartition | tuple[str, int], *, timeout_ms: float | None = None) -> int | None:
        """The committed offset of a partition, assigned or not; None if there is none. It waits at most `timeout_ms` (by default
        `max_block_ms`); RequestTimeout, UnknownTopic. UsageError without a `group_id`."""
        found = await self.committed_offsets([partition], timeout_ms=timeout_ms)
        return next((offset.offset for offset in found.values()), None)

    async def committed_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """By partition, the committed offset with its metadata; partitions without one are left out. Its time limit and errors
        are those of `committed`."""
        group, deadline = self._member(), self._deadline(timeout_ms)
        _, cluster = self._connected()
        tps = checked_partitions(partitions)
        keys = {}
        for topic, indexes in by_topic(tps).items():
            left_ms = max(1.0, (deadline - asyncio.get_running_loop().time()) * 1000)
            topic_id = (await cluster.metadata.topic(topic, left_ms, indexes)).topic_id
            keys.update({(topic_id, index): TopicPartition(topic, index) for index in indexes})
        return await group.committed(keys, deadline)

    async def seek_to_committed(
        self, *partitions: TopicPartition | tuple[str, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Continue these partitions, or all that are assigned, at their committed offsets, which are returned. A partition
        without one (None) continues by `auto_offset_reset`. It waits at most `timeout_ms` (by default `max_block_ms`);
        RequestTimeout."""
        states = [self._state(tp) for tp in partitions] or list(self._subscription.states.values())
        keys = {state.key: state.tp for state in states}
        committed = await self._member().committed(keys, self._deadline(timeout_ms))
        for state in states:
            if self._subscription.states.get(state.tp) is not state:
                continue
            offset = committed.get(state.tp)
            if offset is not None:
                self._move(state, offset.offset, offset.leader_epoch)
            elif self._subscription.default_reset is not None:
                state.reset_to(self._subscription.default_reset)
                self._member().on_moved(state)
                self._begin(state)
        return {state.tp: committed[state.tp].offset if state.tp in committed else None for state in states}

    # -- the rest -----------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """`state` ("not started", "stopped", "ok", "degraded" or "failed"), `brokers_connected`, `last_fetch_age_ms`,
        `failed_partitions` (with their errors) and `last_error`: why metadata could not be refreshed, or why the position of a
        partition could not be looked up. The consumer tries both again.

        With a `group_id` also `group`: `group_id`, `state` ("unsubscribed", "joining", "stable", "reconciling", "acknowledging",
        "fenced", "stale", "leaving", "suspended" or "failed"), `member_id`, `member_epoch`, `coordinator` (a broker id; -1: not
        known), `last_heartbeat_age_ms`, `assignment`, `error` and `last_heartbeat_error`.

        While `run` runs also `run`: `state` ("running" or "ending"), `calls` (of the handler, that run now), `oldest_call_ms` and
        `oldest_call` (its first record), and `calls_of_lost_partitions`: calls that still run although their partition was lost,
        revoked or sought. A transactional run has `state` and `calls`."""
        if self._stopped or self._fetcher is None or self._cluster is None:
            return {"state": "stopped" if self._stopped else "not started"}
        self._check_caller()
        failed = {str(state.tp): str(state.error) for state in self._subscription.states.values() if state.error is not None}
        error = self._cluster.metadata.last_error or self._lookup_error()
        group = {} if self._group is None else {"group": self._group.health()}
        run = {} if self._runner is None else {"run": self._runner.health()}
        is_well = not failed and error is None and (self._group is None or self._group.is_well)
        has_failed = self._group is not None and self._group.error is not None
        return {
            "state": "failed" if has_failed else "ok" if is_well else "degraded",
            "brokers_connected": self._cluster.connections.brokers_connected,
            "last_fetch_age_ms": (asyncio.get_running_loop().time() - self._fetcher.last_fetch_at) * 1000,
            "failed_partitions": failed,
            "last_error": None if error is None else str(error),
            **group,
            **run,
        }

    def _lookup_error(self) -> StrandlineError | None:
        """Why a partition is not read yet: the look-up of its position failed, and is repeated."""
        return next((s.lookup_error for s in self._subscription.states.values() if s.lookup_error is not None), None)

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, `buffered_bytes`, `fetch_throttle_time_avg` and `_max` (in ms: how long brokers made this
        consumer wait because of quotas), and for each partition position, high watermark, lag (in records, behind the high
        watermark; with `read_committed`, behind the last stable offset) and `preferred_read_replica`: the follower that it is
        read from (`client_rack`), -1 for the leader. With a `group_id` also `group`: rebalances, partitions assigned, revoked and
        lost, callbacks that failed or were cut off, heartbeats, commits, their failures and latencies, and the delay with which
        the event loop processed the last heartbeat.

        While `run` runs also `run`: records that were handled, retried, dead-lettered, skipped and dropped, attempts that failed,
        calls and their mean latency, and records that are in flight now: taken and not finished, waiting, or delayed until they
        are handled again."""
        if self._fetcher is None or self._cluster is None:
            return {}
        partitions = {}
        for tp, state in self._subscription.states.items():
            end = state.last_stable_offset if self.options.isolation_level == "read_committed" else state.highwater
            lag = end - state.position if end >= 0 and state.position >= 0 else None
            partitions[str(tp)] = {
                "position": state.position,
                "highwater": state.highwater,
                "lag": lag,
                "preferred_read_replica": self._fetcher.preferred_replica(state),
            }
        buffered = sum(state.buffered_bytes for state in self._subscription.states.values())
        throttles = self._cluster.throttles.metrics("fetch", self._fetcher.counters["fetches"])
        counters = {**self._fetcher.counters, **self._skipped, **throttles}
        counters["metadata_refreshes"] = self._cluster.metadata.refreshes
        group = {} if self._group is None else {"group": self._group.metrics()}
        run = {} if self._runner is None else {"run": self._runner.metrics()}
        return {**counters, "buffered_bytes": buffered, "partitions": partitions, **group, **run}


def _checked_topics(topics: Iterable[str | Iterable[str]]) -> list[str]:
    """The checked topic names, which were given one by one or in lists."""
    names: list[str] = []
    for given in topics:
        names.extend([given] if isinstance(given, str) or not isinstance(given, Iterable) else given)
    return [checked_name(name) for name in names]


def _checked_subscription(names: list[str], pattern: str | None) -> Topics:
    """The subscription of a group member: topics by name, or a pattern. UsageError for both."""
    if pattern is None:
        return Topics(tuple(sorted(set(names))))
    if names or not isinstance(pattern, str) or not pattern:
        raise UsageError(f"a pattern is a non-empty str, and excludes topics by name; not {pattern!r}")
    check_encodes("a pattern", pattern)
    return Topics(pattern=pattern)
