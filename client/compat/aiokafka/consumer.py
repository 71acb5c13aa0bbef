"""`AIOKafkaConsumer` of aiokafka 0.14, on top of `Consumer`.

`assign` is a plain call here as in aiokafka, although the partitions must be looked up: the look-up runs in the background, seeks
and pauses that follow at once are kept for it, and each coroutine call waits for it first (`_ready`).

Intended differences: the consumer keeps reading the partitions that it keeps during a rebalance (#1126), an automatic commit
contains only records that the program has finished, a consumer that the coordinator rejects for good raises an error (#1188), and
every wait has a bound, `request_timeout_ms` (#1101)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar

from strandline.client.admin.admin import Admin
from strandline.client.compat.aiokafka import options as mapping
from strandline.client.compat.aiokafka.abc import ConsumerRebalanceListener
from strandline.client.compat.aiokafka.assignors import RoundRobinPartitionAssignor
from strandline.client.compat.aiokafka.errors import ConsumerStoppedError, IllegalOperation, IllegalStateError, translated
from strandline.client.compat.aiokafka.listener import ListenerCalls
from strandline.client.compat.aiokafka.reader import Decode, Reader
from strandline.client.compat.aiokafka.structs import ConsumerRecord, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from strandline.client.consumer.records import GroupStateChange
from strandline.client.errors import RebalanceCallbackFailed
from strandline.protocol.errors import StrandlineError

T = TypeVar("T")
FIRST_ASSIGNMENT_S = 5.0
"""Seconds that `start` waits for the first partitions. A member that gets none, because there are more members than partitions,
cannot be distinguished from one that gets its partitions later."""


class AIOKafkaConsumer:
    """Reads records; see `strandline.Consumer` for the meaning of the options, and the head of this module for the differences
    from aiokafka."""

    def __init__(
        self,
        *topics: str,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str = "aiokafka",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        key_deserializer: Decode | None = None,
        value_deserializer: Decode | None = None,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        fetch_min_bytes: int = 1,
        max_partition_fetch_bytes: int = 1_048_576,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        auto_offset_reset: Literal["earliest", "latest", "none"] = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        check_crcs: bool = True,
        metadata_max_age_ms: int = 300_000,
        partition_assignment_strategy: Sequence[Any] = (RoundRobinPartitionAssignor,),
        max_poll_interval_ms: int = 300_000,
        rebalance_timeout_ms: int | None = None,
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int = 3_000,
        consumer_timeout_ms: int = 200,
        max_poll_records: int | None = None,
        ssl_context: Any = None,
        security_protocol: str = "PLAINTEXT",
        api_version: str | None = None,
        exclude_internal_topics: bool = True,
        connections_max_idle_ms: int | None = 540_000,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
        client_rack: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        mapping.check_loop(loop, api_version)
        if max_poll_records is not None and (not isinstance(max_poll_records, int) or max_poll_records < 1):
            raise ValueError(f"max_poll_records is a whole number of at least 1, or None; not {max_poll_records!r}")
        self._group_id = group_id
        self._isolation_level = isolation_level
        self._timeout_ms = request_timeout_ms
        self._common = mapping.common(given)
        self._settled = asyncio.Event()
        """Set when the group has assigned the first partitions to the consumer, or never will."""
        self._reader = Reader(on_state_change=self._on_state_change, **_options(given, self._common))
        self._reader.decode_key, self._reader.decode_value = key_deserializer, value_deserializer
        self._closed = False
        self._was_started = False
        """`start` was called."""
        self._is_started = False
        """The client runs, or has run."""
        self._records: AsyncIterator[Any] | None = None
        """The iteration of `async for`."""
        self._listener: ListenerCalls | None = None
        self._assigned: list[TopicPartition] | None = None
        """The partitions that were passed to `assign`; None after `subscribe`."""
        self._assigning: asyncio.Task[None] | None = None
        """The look-up of those partitions, until a call has taken its result."""
        self._seeks: dict[TopicPartition, int] = {}
        self._pauses: dict[TopicPartition, None] = {}
        """Seeks and pauses that were called before the look-up ended; they are applied then."""
        self._is_subscribed = False
        self._pattern: re.Pattern[str] | None = None
        """The pattern of a subscription without a group: the consumer reads all topics that match it."""
        self._pattern_task: asyncio.Task[None] | None = None
        self._admin: Admin | None = None
        if topics:
            self.subscribe(topics)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster, and wait until the first partitions are assigned, if topics are subscribed; at most
        `request_timeout_ms`. KafkaConnectionError if no bootstrap server answers; UnknownTopicOrPartitionError. A second call
        raises AssertionError, and the consumer keeps running."""
        if self._was_started or self._closed:
            raise AssertionError("a consumer is started once")
        self._was_started = True
        try:
            await self._reader.start()
            self._is_started = True
            self._begin_assign()
            await self._reader.partitions_known(self._reader.subscription())
            await self._look_for_topics()
            await self._first_assignment()
        except StrandlineError as e:
            await self.stop()
            raise translated(e, closed=ConsumerStoppedError) from e
        except BaseException:  # Cancelled. `async with` does not call `__aexit__` then, and the member would stay in its group.
            await self.stop()
            raise
        if self._pattern is not None:
            self._watch_topics()

    async def _first_assignment(self) -> None:
        if self._group_id is None or not self._is_subscribed:
            return
        try:
            async with asyncio.timeout(min(FIRST_ASSIGNMENT_S, self._timeout_ms / 1000)):
                await self._settled.wait()
        except TimeoutError:
            pass  # The other members have all partitions, or the group is busy.

    def _on_state_change(self, change: GroupStateChange) -> None:
        if change.state == "failed":
            self._settled.set()

    def _callbacks(self) -> dict[str, Any]:
        """The callbacks for `Consumer.subscribe` in a group."""
        listener = self._listener
        calls: dict[str, Any] = {"on_assigned": None, "on_revoked": None, "on_lost": None}
        if listener is not None:
            calls = {**listener.callbacks()}

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            self._settled.set()
            if listener is not None:
                await listener.on_assigned(partitions)

        return {**calls, "on_assigned": on_assigned}

    async def stop(self) -> None:
        """Commit what is finished (with `enable_auto_commit`), leave the group, and close the connections. It takes ten seconds
        at most."""
        if self._closed:
            return
        self._closed = True
        if self._listener is not None:
            self._listener.is_stopping = True
        for task in (self._pattern_task, self._assigning):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._reader.stop()
        if self._admin is not None:
            await self._admin.stop()

    def health(self) -> dict[str, Any]:
        """The same as `Consumer.health`: whether the consumer reads, and why not. aiokafka has no such call (#1154)."""
        return self._reader.health()

    def metrics(self) -> dict[str, Any]:
        """The same as `Consumer.metrics`, with the lag; aiokafka has no such call (#38)."""
        return self._reader.metrics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    # -- what every call goes through ---------------------------------------------------------------------------------

    async def _ready(self) -> None:
        """Wait for the look-up of partitions that were assigned by hand. IllegalStateError before `start`, ConsumerStoppedError
        after `stop`."""
        if self._closed:
            raise ConsumerStoppedError("the consumer was stopped")
        if not self._is_started:  # A ConsumerStoppedError would end an `async for` as if there were no more records.
            raise IllegalStateError("the consumer was not started: call `await consumer.start()` first")
        assigning = self._assigning
        if assigning is not None:
            await asyncio.wait([assigning])
            if self._assigning is assigning:
                self._assigning = None
                assigning.result()

    async def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a call of the client, and raise its errors as aiokafka's."""
        try:
            await self._ready()
            return await work()
        except StrandlineError as e:
            self._raise(e)

    def _raise(self, error: StrandlineError) -> NoReturn:
        position = self._reader.position_of(getattr(error, "topic", None), getattr(error, "partition", None))
        raise translated(error, closed=ConsumerStoppedError, position=position) from error

    def _check_assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions as a list. TypeError for an item that is no TopicPartition; IllegalStateError for a partition that is
        not assigned."""
        listed = list(partitions)
        for tp in listed:
            if not isinstance(tp, TopicPartition):
                raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
        missing = [tp for tp in listed if tp not in self.assignment()]
        if missing:
            raise IllegalStateError(f"{', '.join(map(str, missing))}: not assigned to this consumer")
        return listed

    def _all_or(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        chosen = self._check_assigned(partitions or sorted(self.assignment()))
        if not chosen:
            raise AssertionError("no partitions are assigned")
        return chosen

    def _check_group(self) -> None:
        if self._group_id is None:
            raise IllegalOperation("offsets are committed for a group: the consumer needs a group_id")

    # -- topics and partitions ----------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Read these topics, or those that match `pattern`, an expression of Python's `re` (in a group: in RE2's syntax, too)
        that matches from the beginning of a name on. IllegalStateError after `assign`."""
        if isinstance(topics, str) or not isinstance(topics, (tuple, list, set, frozenset)):
            raise TypeError(f"topics are a list of names, not {topics!r}")
        if bool(topics) == bool(pattern):
            raise TypeError("give either topics or a pattern")
        if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
            raise TypeError(f"a listener is a ConsumerRebalanceListener, not {listener!r}")
        if self._assigned is not None:
            raise IllegalStateError("partitions are assigned by hand: call unsubscribe() first")
        self._listener = None if listener is None else ListenerCalls(listener)
        self._pattern = None
        self._is_subscribed = True
        callbacks = {} if self._group_id is None else self._callbacks()
        try:
            if pattern is not None:
                self._subscribe_by_pattern(pattern, callbacks)
            else:
                self._reader.subscribe(*sorted(topics), **callbacks)
        except StrandlineError as e:
            self._raise(e)

    def _subscribe_by_pattern(self, pattern: str, callbacks: dict[str, Any]) -> None:
        try:
            compiled = re.compile(pattern)
        except re.error as e:
            raise ValueError(f"{pattern!r} is no regular expression: {e}") from e
        if self._group_id is not None:
            self._reader.subscribe(pattern=f"(?:{compiled.pattern}).*", **callbacks)
            return
        self._reader.unsubscribe()
        self._pattern = compiled
        if self._is_started:
            self._watch_topics()

    def _watch_topics(self) -> None:
        if self._pattern_task is None:
            self._pattern_task = asyncio.get_running_loop().create_task(self._keep_looking_for_topics())

    async def _keep_looking_for_topics(self) -> None:
        while True:
            try:
                await self._look_for_topics()
            except StrandlineError:
                pass  # `health` of the client has the reason. The loop tries again.
            await asyncio.sleep(self._common["metadata_max_age_ms"] / 1000)

    async def _look_for_topics(self) -> None:
        """Without a group: read the topics that match the pattern, and are not read yet."""
        if self._pattern is None:
            return
        found = [name for name in await self._names() if self._pattern.match(name)]
        added = [name for name in found if name not in self._reader.subscription()]
        if added and self._reader.subscription():
            self._reader.add_topics(added)
        elif added:
            self._reader.subscribe(*added)
        await self._reader.partitions_known(added)

    async def _names(self) -> list[str]:
        """The names of all topics except the internal ones."""
        if self._admin is None:
            admin = Admin(**self._common)
            await admin.start()
            self._admin = admin
        described = await self._admin.describe_topics(timeout_ms=self._timeout_ms)
        return [topic.name for topic in described if not topic.is_internal]

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed by name, or match the pattern. In a group only the coordinator knows all topics that
        match, so the result has the topics of the assigned partitions."""
        named = self._reader.subscription()
        if self._is_subscribed and not named:
            return frozenset(tp.topic for tp in self._reader.assignment())
        return frozenset(named)

    def unsubscribe(self) -> None:
        """Read nothing, until the next `subscribe` or `assign`."""
        self._assigned = self._pattern = None
        self._is_subscribed = False
        self._seeks.clear()
        self._pauses.clear()
        if self._pattern_task is not None:
            self._pattern_task.cancel()
            self._pattern_task = None
        self._reader.unsubscribe()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. IllegalStateError after `subscribe`. If a partition does not exist, the next call that
        is awaited raises UnknownTopicOrPartitionError."""
        if self._is_subscribed:
            raise IllegalStateError("topics are subscribed: call unsubscribe() first")
        listed = list(partitions)
        for tp in listed:
            if not isinstance(tp, TopicPartition):
                raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
        self._assigned = listed
        if self._is_started:
            self._begin_assign()

    def _begin_assign(self) -> None:
        if self._assigned is not None and not self._closed:
            work = self._assign(self._assigning, self._assigned)
            self._assigning = asyncio.get_running_loop().create_task(work)

    async def _assign(self, before: asyncio.Task[None] | None, partitions: list[TopicPartition]) -> None:
        """Assign, after an earlier call of `assign` has ended."""
        if before is not None:
            await asyncio.wait([before])
        await self._reader.assign(partitions)
        for tp in [tp for tp in self._seeks if tp in partitions]:
            self._reader.seek(tp, self._seeks.pop(tp))
        for tp in [tp for tp in self._pauses if tp in partitions]:
            self._reader.pause(tp)
        self._pauses.clear()

    @property
    def _is_assigning(self) -> bool:
        """Whether partitions were assigned by hand, and the client does not know them yet."""
        return self._assigned is not None and (self._assigning is None or not self._assigning.done()) and not self._has_assigned()

    def _has_assigned(self) -> bool:
        return self._reader.assignment() == set(self._assigned or ())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._assigned) if self._assigned is not None else self._reader.assignment()

    async def topics(self) -> set[str]:
        """The names of all topics."""
        return set(await self._do(self._names))

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The numbers of the topic's partitions; None if the consumer does not know the topic."""
        return self._reader.known_partitions(topic)

    # -- records ------------------------------------------------------------------------------------------------------

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Any, Any]:
        """The next record (of these partitions, if some are given). ConsumerStoppedError after `stop`."""
        record: ConsumerRecord[Any, Any] = await self._read(lambda: self._reader.getone(*partitions))
        return record

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        """The records that were fetched, by partition. It waits at most `timeout_ms` for the first one."""
        if max_records is not None and (not isinstance(max_records, int) or max_records < 1):
            raise ValueError(f"max_records is a whole number of at least 1, or None; not {max_records!r}")
        work = partial(self._reader.getmany, *partitions, timeout_ms=timeout_ms, max_records=max_records)
        records: dict[TopicPartition, list[ConsumerRecord[Any, Any]]] = await self._read(work)
        return records

    async def _read(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a call that returns records. An error of a rebalance listener, which was logged, does not end it."""
        while True:
            try:
                await self._ready()
                return await work()
            except RebalanceCallbackFailed:
                continue
            except StrandlineError as e:
                self._raise(e)

    def __aiter__(self) -> Self:
        if self._closed:
            raise ConsumerStoppedError("the consumer was stopped")
        return self

    async def __anext__(self) -> ConsumerRecord[Any, Any]:
        """The next record. The iteration ends when the consumer is stopped."""
        try:
            record: ConsumerRecord[Any, Any] = await self._read(self._next)
        except ConsumerStoppedError:
            raise StopAsyncIteration from None
        return record

    async def _next(self) -> Any:
        if self._records is None:
            self._records = self._reader.__aiter__()
        try:
            return await anext(self._records)
        except BaseException:
            self._records = None
            raise

    # -- positions ----------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record. IllegalStateError if the partition is not assigned."""
        self._check_assigned([partition])
        return await self._do(lambda: self._reader.position(partition))

    def highwater(self, partition: TopicPartition) -> int | None:
        """The partition's high watermark in the newest fetch response; None before the first one."""
        self._check_assigned([partition])
        return None if self._is_assigning else self._reader.highwater(partition)

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """With `isolation_level="read_committed"`, the offset of the first open transaction, or the high watermark without one,
        in the newest fetch response; None before the first one. Otherwise -1."""
        self._check_assigned([partition])
        if self._isolation_level != "read_committed":
            return -1
        return None if self._is_assigning else self._reader.last_stable_offset(partition)

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """When the last fetch response of any partition arrived (milliseconds since 1970); None before the first one that has
        this partition. IllegalStateError if the partition is not assigned."""
        return None if self.highwater(partition) is None else self._reader.last_fetch_ms()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`. ValueError; IllegalStateError if the partition is not assigned."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ValueError(f"an offset is a whole number of at least 0, not {offset!r}")
        self._check_assigned([partition])
        if self._is_assigning:
            self._seeks[partition] = offset
            return
        try:
            self._reader.seek(partition, offset)
        except StrandlineError as e:
            self._raise(e)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Read these partitions, or all, from their first record."""
        chosen = self._all_or(partitions)
        await self._do(lambda: self._reader.seek_to_beginning(*chosen))
        return True

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Read these partitions, or all, from their end."""
        chosen = self._all_or(partitions)
        await self._do(lambda: self._reader.seek_to_end(*chosen))
        return True

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Continue these partitions, or all, at their committed offsets, which are returned."""
        self._check_group()
        chosen = self._all_or(partitions)
        return await self._do(lambda: self._reader.seek_to_committed(*chosen))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition, the first record at or after a time (milliseconds since 1970); None if there is none."""
        wanted = {tp: int(timestamp) for tp, timestamp in timestamps.items()}
        if min(wanted.values(), default=0) < 0:
            raise ValueError(f"a time is not negative: {wanted}")
        found = await self._do(lambda: self._reader.offsets_for_times(wanted))
        return {tp: None if at is None else OffsetAndTimestamp(at.offset, at.timestamp_ms) for tp, at in found.items()}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """By partition, the offset of the first record."""
        listed = list(partitions)
        return await self._do(lambda: self._reader.beginning_offsets(listed))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """By partition, the offset after the last record that consumers may read."""
        listed = list(partitions)
        return await self._do(lambda: self._reader.end_offsets(listed))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions, until `resume`."""
        for tp in self._check_assigned(partitions):
            if self._is_assigning:
                self._pauses[tp] = None
            else:
                self._reader.pause(tp)

    def resume(self, *partitions: TopicPartition) -> None:
        """Read these paused partitions again."""
        for tp in self._check_assigned(partitions):
            self._pauses.pop(tp, None)
            if not self._is_assigning:
                self._reader.resume(tp)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return set(self._pauses) | self._reader.paused()

    # -- committed offsets --------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata] | None = None) -> None:
        """Store these offsets (of the next records to be read), or the positions of all assigned partitions. CommitFailedError if
        a partition was assigned to another member; IllegalStateError if one is not assigned; ValueError."""
        self._check_group()
        if not self.assignment():
            raise IllegalStateError("no partitions are assigned")
        checked = None if offsets is None else _checked_offsets(offsets)
        self._check_assigned(checked or ())
        await self._do(lambda: self._reader.commit(checked))

    async def committed(self, partition: TopicPartition) -> int | None:
        """The committed offset; None if there is none."""
        self._check_group()
        return await self._do(lambda: self._reader.committed(partition))


def _checked_offsets(offsets: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int | tuple[int, str]]:
    if not offsets or not isinstance(offsets, Mapping):
        raise ValueError(f"offsets are a mapping of partitions to offsets, not {offsets!r}")
    checked: dict[TopicPartition, int | tuple[int, str]] = {}
    for tp, given in offsets.items():
        if not isinstance(tp, TopicPartition):
            raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
        if not isinstance(given, int) and (not isinstance(given, tuple) or len(given) != 2):
            raise ValueError(f"an offset is a whole number, or a pair of that and a text; not {given!r}")
        if isinstance(given, tuple) and not isinstance(given[1], str):
            raise TypeError(f"the text of an offset is a str, not {given[1]!r}")
        checked[tp] = given if isinstance(given, int) else (given[0], given[1])
    return checked


_SAME = (
    "auto_commit_interval_ms",
    "auto_offset_reset",
    "check_crcs",
    "client_rack",
    "enable_auto_commit",
    "fetch_max_bytes",
    "fetch_max_wait_ms",
    "fetch_min_bytes",
    "group_id",
    "group_instance_id",
    "isolation_level",
    "max_partition_fetch_bytes",
    "max_poll_interval_ms",
    "max_poll_records",
    "rebalance_timeout_ms",
)
"""Options with the same name and meaning."""


def _options(given: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    options = {**common, **{name: given[name] for name in _SAME}}
    options["group_remote_assignor"] = mapping.assignor(given["partition_assignment_strategy"], given["group_id"])
    if given["group_id"] is None:
        options["group_instance_id"] = None
    return options


__all__ = ["AIOKafkaConsumer"]
