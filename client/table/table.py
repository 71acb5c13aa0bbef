"""The table: the latest value of each key of a compacted topic, in memory and up to date.

    async with Table("users", bootstrap_servers="127.0.0.1:9092") as table:
        table.get(b"alice")                                    # a plain call: it asks no broker
        version = await table.put(b"alice", b"tea")            # written, and shown by this table
        await table.put(b"alice", b"coffee", expect=version)   # VersionConflict if another writer has changed it

A consumer without a group reads all partitions (reader.py) into a dict (rows.py), and a producer writes (writer.py). Keys and
values stay bytes; a value is deserialized when a call returns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, Unpack, cast, overload

from strandline.client.admin.admin import Admin
from strandline.client.arguments import OFFSET_MAX, checked_name, checked_whole
from strandline.client.consumer.consumer import Consumer
from strandline.client.errors import ClientClosed, ClientError, StrandlineError, UsageError, copy_of
from strandline.client.home import Home
from strandline.client.option_docs import documents
from strandline.client.options import AdminOptions, ConsumerOptions, ProducerOptions, parse_options
from strandline.client.producer.partitioner import partition_for_key
from strandline.client.producer.producer import Producer
from strandline.client.producer.record_fields import to_bytes
from strandline.client.table.changes import RawChange, Watcher
from strandline.client.table.entry import ANY, Anything, TableChange, TableEntry, VersionConflict
from strandline.client.table.options import TableKeywords, TableOptions, options_for
from strandline.client.table.progress import TOMBSTONES_KEPT_MS_MIN
from strandline.client.table.reader import Reader, failed
from strandline.client.table.rows import Row, Rows
from strandline.client.table.snapshots import Snapshots
from strandline.client.table.writer import Writer
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors, real_doors
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

TEND_S, TEND_S_MIN = 60.0, 0.5
"""Seconds: the longest and the shortest pause between two checks that the table has read up to the log ends (progress.py)."""
LAST_CATCH_UP_S = 2.0
"""Seconds for which `stop` tries to read up to the log ends, for the last snapshot."""


@documents(TableOptions)
class Table(Generic[K, V]):
    """The latest value of each key of a compacted topic, in memory and up to date.

        async with Table("users", bootstrap_servers="127.0.0.1:9092") as table:
            print(table.get(b"alice"), len(table))
            await table.put(b"alice", b"tea")

    Start it with `async with`, or with `await start()` and `await stop()`: `start` returns when the table has read up to the log
    ends. After that a background task keeps it up to date. Calls that read are plain calls, and ask no broker. All keys and
    values are in memory. It belongs to the event loop in which it was started."""

    @overload
    def __init__(
        self: Table[bytes, bytes], topic: str, *, doors: Doors | None = ..., **options: Unpack[TableKeywords]
    ) -> None: ...

    @overload
    def __init__(
        self: Table[bytes, V],
        topic: str,
        *,
        value_serializer: Callable[[V], bytes | None] | None = ...,
        value_deserializer: Callable[[bytes], V],
        doors: Doors | None = ...,
        **options: Unpack[TableKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: Table[K, bytes],
        topic: str,
        *,
        key_serializer: Callable[[K], bytes | None],
        key_deserializer: Callable[[bytes], K],
        doors: Doors | None = ...,
        **options: Unpack[TableKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        *,
        key_serializer: Callable[[K], bytes | None],
        key_deserializer: Callable[[bytes], K],
        value_serializer: Callable[[V], bytes | None] | None = ...,
        value_deserializer: Callable[[bytes], V],
        doors: Doors | None = ...,
        **options: Unpack[TableKeywords],
    ) -> None: ...

    def __init__(self, topic: str, *, doors: Doors | None = None, **options: Any) -> None:
        self.topic = checked_name(topic)
        self.options = parse_options(TableOptions, options)
        self._doors = doors or real_doors()
        self._home: Home | None = None
        self._stopped = False
        self._rows = Rows(self._home_partition)
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._snapshots: Snapshots | None = None
        self._tender: asyncio.Task[None] | None = None
        self._consumer = Consumer(
            doors=self._doors,
            auto_offset_reset="error",
            on_missing_topic="raise",
            **options_for(ConsumerOptions, self.options),
        )
        self._producer = Producer(doors=self._doors, **options_for(ProducerOptions, self.options))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster and read the topic up to the log ends. NoBrokersAvailable if no bootstrap server answers within
        `connect_timeout_ms`; UnknownTopic; RequestTimeout if no record is read for `max_block_ms`; CorruptRecords. UsageError if
        the table was started before."""
        if self._home is not None or self._stopped:
            raise UsageError("the table was started before: create a new one")
        self._home = Home("table", between_runs=True)
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        options = self.options
        reader = self._reader = Reader(
            self.topic,
            self._consumer,
            self._rows,
            now_ms=self._doors.wall_clock_ms,
            block_ms=options.max_block_ms,
            backoff_ms=options.retry_backoff_ms,
        )
        await self._consumer.start()
        await self._producer.start()
        await self._producer.partitions_for(self.topic)
        reader.tombstones_kept_ms = await self._tombstones_kept_ms()
        self._writer = Writer(self.topic, self._producer, reader, self._rows, self._doors.random.randbytes(8))
        if options.snapshot_dir is not None:
            self._snapshots = Snapshots(options.snapshot_dir, self.topic, self._doors.wall_clock_ms)
        snapshots = {} if self._snapshots is None else await self._snapshots.load(self._consumer, reader.tombstones_kept_ms)
        await reader.open(snapshots)
        await reader.loaded()
        self._tender = asyncio.get_running_loop().create_task(self._tend())
        self._tender.add_done_callback(reader.on_end)

    async def _tombstones_kept_ms(self) -> float | None:
        """The topic's `delete.retention.ms`; None if the brokers do not say."""
        try:
            async with Admin(doors=self._doors, **options_for(AdminOptions, self.options)) as admin:
                entries = await admin.describe_configs("topic", self.topic, timeout_ms=self.options.max_block_ms)
        except StrandlineError as e:
            logger.warning("table.config_unknown", topic=self.topic, reason=str(e))
            return None
        values = {entry.name: entry.value for entry in entries}
        if "compact" not in (values.get("cleanup.policy") or ""):
            reason = "the topic is not compacted (cleanup.policy): keys are lost when their records are deleted"
            logger.warning("table.topic_not_compacted", topic=self.topic, reason=reason)
        return float(values.get("delete.retention.ms") or 0)

    async def stop(self) -> None:
        """Write a snapshot (with `snapshot_dir`), stop reading and close the connections. Iterators of `watch` end, and calls
        that wait raise ClientClosed. It takes a few seconds at most, plus the time to write the snapshot."""
        if self._stopped or self._home is None:
            self._stopped = True
            return
        self._home.check()
        self._stopped = True
        if self._tender is not None:
            self._tender.cancel()
        try:
            await self._last_snapshot()
        finally:
            await self._close()

    async def _last_snapshot(self) -> None:
        reader = self._reader
        if self._tender is None or self._snapshots is None or reader is None or reader.failure is not None:
            return
        try:
            await reader.catch_up(asyncio.get_running_loop().time() + LAST_CATCH_UP_S)
        except StrandlineError:
            pass  # Write the snapshot as of the records that the table has read.
        await self._snapshots.save(self._rows, reader.progress)

    async def _close(self) -> None:
        self._stopped = True
        if self._tender is not None:
            self._tender.cancel()
            await asyncio.wait([self._tender])
        if self._reader is not None:
            await self._reader.close()
            if self._reader.failure is None:
                self._reader.fail(ClientClosed("the table was stopped"))
        await self._producer.stop(timeout_ms=0)
        await self._consumer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    async def _tend(self) -> None:
        """Check from time to time that the table has read up to the log ends, and write snapshots."""
        loop, reader = asyncio.get_running_loop(), self._reader
        assert reader is not None
        pause_s = self._pause_s(reader.tombstones_kept_ms)
        saved_at = loop.time()
        while reader.failure is None:
            await asyncio.sleep(pause_s)
            try:
                await reader.catch_up(loop.time() + TEND_S)
            except StrandlineError as e:
                logger.debug("table.catch_up_failed", topic=self.topic, reason=str(e))
                continue
            if self._snapshots is not None and loop.time() - saved_at >= self.options.snapshot_interval_ms / 1000:
                await self._snapshots.save(self._rows, reader.progress)
                saved_at = loop.time()

    def _pause_s(self, tombstones_kept_ms: float | None) -> float:
        """Seconds between two checks: short enough that a table that is not cut off notices each tombstone in time."""
        kept_s = TEND_S * 4 if tombstones_kept_ms is None else max(tombstones_kept_ms, TOMBSTONES_KEPT_MS_MIN) / 1000
        return max(TEND_S_MIN, min(TEND_S, kept_s / 4, self.options.snapshot_interval_ms / 1000))

    def _running(self) -> Reader:
        """The reader. Raises its failure, or ClientClosed if the table does not run."""
        if self._home is None or self._reader is None:
            raise ClientClosed("the table was not started: use `async with Table(...)`, or `await table.start()`")
        self._check_caller()
        if self._reader.failure is not None:
            raise failed(self.topic, copy_of(self._reader.failure))
        if self._stopped:
            raise ClientClosed("the table was stopped")
        return self._reader

    def _check_caller(self) -> None:
        """UsageError if a call comes from another event loop or thread."""
        if self._home is not None:
            self._home.check()

    # -- reading ------------------------------------------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of a key; `default` if there is no such key. It is deserialized at each call: the object is yours."""
        row = self._row(key)
        return default if row is None else self._value(row.value)

    def entry(self, key: K) -> TableEntry[V] | None:
        """The value of a key, and its version for `put(..., expect=)`; None if there is no such key."""
        row = self._row(key)
        return None if row is None else TableEntry(self._value(row.value), row.offset, row.partition)

    def version(self, key: K) -> int | None:
        """The version of a key: the offset of its latest record; None if there is no such key."""
        row = self._row(key)
        return None if row is None else row.offset

    def __getitem__(self, key: K) -> V:
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        return self._value(row.value)

    def __contains__(self, key: object) -> bool:
        return self._row(key) is not None

    def __len__(self) -> int:
        self._running()
        return len(self._rows)

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def keys(self) -> Iterator[K]:
        """The keys as they are at this call, in no particular order. Later changes do not affect the iterator."""
        self._running()
        return map(self._key, self._rows.keys())

    def values(self) -> Iterator[V]:
        """The values as they are at this call, in no particular order. Later changes do not affect the iterator."""
        self._running()
        return (self._value(row.value) for _, row in self._rows.items())

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values as they are at this call, in no particular order. Later changes do not affect the iterator."""
        self._running()
        return ((self._key(key), self._value(row.value)) for key, row in self._rows.items())

    def watch(self, key: K | None = None, *, prefix: K | None = None) -> TableChanges[K, V]:
        """The changes from this call on, as an async iterator of `TableChange`: of one key, of the keys whose bytes begin with
        those of `prefix`, or of all.

        At most one change of each key waits for the iterator. If the key changes again before that change is taken, the two are
        merged: you get the old value of the first, the new value of the last, and `merged` counts the others. So a slow program
        sees the last value of every key, and never stops the table; it may not see values in between. Changes of one key are in
        order; those of different keys may not be.

        The iterator ends when the table is stopped. If the table fails, the iterator raises the table's error. If you leave the
        loop before that, `close` the iterator, or use it with `with`: otherwise changes keep waiting for it."""
        self._running()
        if key is not None and prefix is not None:
            raise UsageError("watch takes a key or a prefix")
        only = None if key is None else self._key_bytes(key)
        return TableChanges(self, only, b"" if prefix is None else self._key_bytes(prefix))

    async def caught_up(self, *, timeout_ms: float | None = None) -> None:
        """Wait until the table shows every record that was acknowledged before this call, from any writer. It asks the leaders
        for their log ends, and waits at most `timeout_ms` (by default `max_block_ms`); RequestTimeout."""
        await self._running().catch_up(self._deadline(timeout_ms))

    # -- writing ------------------------------------------------------------------------------------------------------

    async def put(self, key: K, value: V, *, expect: int | Anything | None = ANY, timeout_ms: float | None = None) -> int:
        """Write a value. Returns its version when the record is acknowledged and this table shows it (or a later one).

        `expect`: write only if the key has this version (`version`, `entry`, or what `put` has returned); None: only if there is
        no such key. VersionConflict if it has another one, with its version and value. It needs one round trip if no other
        record is written to the key's partition at the same time, and more otherwise.

        It waits at most `timeout_ms` (by default `max_block_ms`). RequestTimeout if nothing was written, or if the message says
        that the record was; DeliveryTimeout if it is not known whether it was written. RecordTooLarge; UsageError for a value of
        the wrong type; the errors of `Producer.send`."""
        encoded = self._serialize("value", value, self.options.value_serializer)
        if encoded is None:
            raise UsageError("None is no value of a table: `delete` removes a key")
        return await self._write(key, encoded, expect, timeout_ms)

    async def delete(self, key: K, *, expect: int | Anything | None = ANY, timeout_ms: float | None = None) -> int:
        """Delete a key, by a record without a value (a tombstone), which is also written if there is no such key. Returns the
        offset of the tombstone. Arguments, time limit and errors are those of `put`."""
        return await self._write(key, None, expect, timeout_ms)

    async def update(self, key: K, change: Callable[[V | None], V | None], *, timeout_ms: float | None = None) -> V | None:
        """Replace the value of a key by `change(value)`. As argument and as result, None stands for no such key. If another
        writer changes the key at the same time, `change` is called again with the newer value, so it must only compute. Returns
        the new value. Time limit and errors are those of `put`."""
        self._running()
        deadline = self._deadline(timeout_ms)
        while True:
            found = self.entry(key)
            value = change(None if found is None else found.value)
            expect = None if found is None else found.version
            left_ms = (deadline - asyncio.get_running_loop().time()) * 1000
            try:
                if value is not None:
                    await self.put(key, value, expect=expect, timeout_ms=left_ms)
                elif found is not None:
                    await self.delete(key, expect=expect, timeout_ms=left_ms)
                return value
            except VersionConflict:
                continue

    async def _write(self, key: K, value: bytes | None, expect: int | Anything | None, timeout_ms: float | None) -> int:
        self._running()
        assert self._writer is not None
        encoded, deadline = self._key_bytes(key), self._deadline(timeout_ms)
        partition = await self._writer.partition_of(encoded, deadline)
        if isinstance(expect, Anything):
            offset = await self._writer.write(encoded, value, partition, deadline)
        else:
            expected = None if expect is None else checked_whole("expect", expect, 0, OFFSET_MAX)
            offset = await self._writer.write_if(encoded, value, expected, partition, deadline, self._conflict)
        try:
            await self._delete_elsewhere(encoded, partition, deadline)
        except StrandlineError as e:
            if value is None:
                raise
            # The value is written and shown. The next write of the key deletes the record in the other partition.
            logger.debug("table.old_record_kept", topic=self.topic, partition=partition, reason=str(e))
        return offset

    async def _delete_elsewhere(self, key: bytes, partition: int, deadline: float) -> None:
        """Delete the key in the partitions to which it went before partitions were added to the topic. Otherwise the table would
        show the old record again after the key is deleted, or when the key goes to that partition again because still more
        partitions were added."""
        assert self._writer is not None
        for other in self._rows.partitions_of(key):
            if other != partition:
                await self._writer.write(key, None, other, deadline)

    def _conflict(self, key: bytes, expected: int | None, row: Row | None) -> VersionConflict:
        """The error of a conditional write. If a deserializer fails, its error is only the cause, because the caller must learn
        of the conflict; the value is None then, and the key is in bytes."""
        shown_key: K | bytes = key
        value: V | None = None
        failure: ClientError | None = None
        try:
            shown_key = self._key(key)
            value = None if row is None else self._value(row.value)
        except ClientError as e:
            failure = e
        conflict = VersionConflict(
            key=shown_key,
            expected=expected,
            actual=None if row is None else row.offset,
            value=value,
            topic=self.topic,
            partition=None if row is None else row.partition,
        )
        conflict.__cause__ = failure
        return conflict

    def _deadline(self, timeout_ms: float | None) -> float:
        wait_ms = self.options.max_block_ms if timeout_ms is None else timeout_ms
        if wait_ms != wait_ms:
            raise UsageError("timeout_ms must be a number of milliseconds, not NaN")
        return asyncio.get_running_loop().time() + wait_ms / 1000

    # -- keys and values ----------------------------------------------------------------------------------------------

    def _row(self, key: Any) -> Row | None:
        self._running()
        return self._rows.get(self._key_bytes(key))

    def _key_bytes(self, key: Any) -> bytes:
        encoded = self._serialize("key", key, self.options.key_serializer)
        if encoded is None:
            raise UsageError("a key of a table is not None")
        return encoded

    def _serialize(self, what: str, data: Any, serializer: Callable[[Any], bytes | None] | None) -> bytes | None:
        if data is not None and serializer is not None:
            data = serializer(data)
        return to_bytes(what, data)

    def _key(self, key: bytes) -> K:
        return cast(K, self._deserialize("key", key, self.options.key_deserializer))

    def _value(self, value: bytes) -> V:
        return cast(V, self._deserialize("value", value, self.options.value_deserializer))

    def _deserialize(self, what: str, data: bytes, deserializer: Callable[[bytes], Any] | None) -> Any:
        if deserializer is None:
            return data
        try:
            return deserializer(data)
        except Exception as e:
            text = f"the deserializer failed for the {what} {data!r:.60}: {type(e).__name__}: {e}"
            raise ClientError(text, topic=self.topic) from e

    def _home_partition(self, key: bytes) -> int:
        """The partition to which a key goes now. Called for a key that several partitions have."""
        assert self._reader is not None
        partitions = sorted(self._reader.progress)
        partitioner = self.options.partitioner
        return partition_for_key(key, len(partitions)) if partitioner is None else partitioner(key, partitions, partitions)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """`state` ("not started", "loading", "ok", "degraded", "failed" or "stopped"), `last_error`, and by partition `phase`
        ("new", "loading" or "live") and `fresh_age_ms`: the table has every record that was acknowledged at least this long
        ago."""
        reader = self._reader
        if self._stopped or reader is None or self._home is None:
            return {"state": "stopped" if self._stopped else "not started"}
        self._home.check()
        now_ms = self._doors.wall_clock_ms()
        is_live = all(each.applied >= 0 for each in reader.progress.values())
        state = "failed" if reader.failure else "degraded" if reader.last_error else "ok" if is_live else "loading"
        error = reader.failure or reader.last_error
        return {
            "state": state,
            "last_error": None if error is None else str(error),
            "partitions": {
                partition: {"phase": each.phase.value, "fresh_age_ms": now_ms - each.fresh_at_ms}
                for partition, each in reader.progress.items()
            },
        }

    def metrics(self) -> dict[str, Any]:
        """`keys`, `records` (that were read), `reloads` (of partitions), `snapshots` (that were written), `writes`,
        `conditional_writes`, their `conditional_attempts` and how many of these were `writes_in_doubt`, and `consumer` and
        `producer`: the metrics of the table's consumer and producer."""
        counters = {} if self._writer is None else self._writer.counters
        return {
            "keys": len(self._rows),
            "records": 0 if self._reader is None else self._reader.records,
            "reloads": 0 if self._reader is None else self._reader.reloads,
            "snapshots": 0 if self._snapshots is None else self._snapshots.written,
            **counters,
            "consumer": self._consumer.metrics(),
            "producer": self._producer.metrics(),
        }


class TableChanges(Generic[K, V]):
    """The result of `Table.watch`: an async iterator of changes."""

    def __init__(self, table: Table[K, V], key: bytes | None, prefix: bytes) -> None:
        self._table = table
        self._changed = asyncio.Event()
        self._watcher = Watcher(key, prefix, self._changed.set)
        table._rows.watch(self._watcher)

    def __aiter__(self) -> AsyncIterator[TableChange[K, V]]:
        return self

    async def __anext__(self) -> TableChange[K, V]:
        while True:
            change = self._watcher.take()
            if change is not None:
                return self._decoded(change)
            if self._watcher.is_ended:
                self._raise_failure()
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    def _decoded(self, change: RawChange) -> TableChange[K, V]:
        table = self._table
        old = None if change.old is None else table._value(change.old)
        new = None if change.new is None else table._value(change.new)
        return TableChange(table._key(change.key), old, new, change.version, change.merged)

    def _raise_failure(self) -> None:
        """Raise the error of a table that failed. After a `stop`, do nothing: the iterator ends."""
        if not self._table._stopped:
            self._table._running()

    @property
    def waiting(self) -> int:
        """The number of changes that wait to be taken."""
        return len(self._watcher)

    def close(self) -> None:
        """Stop watching: the iterator ends when the changes that wait are taken."""
        self._table._rows.unwatch(self._watcher)
        self._watcher.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
