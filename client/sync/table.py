"""The table without asyncio. Any number of threads may call it.

Looking up a key does not cross the threads: it is one read of a dict, which the loop changes by single operations. So it costs as
much as with asyncio. Keys and values are deserialized on the thread that asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, Unpack, overload

from strandline.client.option_docs import documents
from strandline.client.sync.calls import TableCalls
from strandline.client.table.entry import TableChange, TableEntry
from strandline.client.table.options import TableKeywords, TableOptions
from strandline.client.table.table import Table as AsyncTable
from strandline.client.table.table import TableChanges as AsyncTableChanges
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors

STOP_TIMEOUT_S = 60.0
"""Seconds that `stop` waits for the last snapshot."""


class SharedTable(AsyncTable[K, V]):
    """The table for asyncio, whose lookups may come from any thread. All other methods must be called on the loop."""

    def _check_caller(self) -> None:
        pass


@documents(TableOptions)
class Table(TableCalls[K, V]):
    """The latest value of each key of a compacted topic, in memory and up to date.

        with Table("users", bootstrap_servers="127.0.0.1:9092") as table:
            print(table.get(b"alice"), len(table))
            table.put(b"alice", b"tea")

    Start it with `with`, or with `start()` and `stop()`: `start` returns when the table has read up to the log ends. After that
    the client's thread keeps it up to date. Calls that read ask no broker. All keys and values are in memory. Several threads
    may call it."""

    _NAME = "table"
    _client: SharedTable[K, V]

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
        super().__init__(SharedTable[K, V](topic, doors=doors, **options))
        self.topic = self._client.topic

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the cluster and read the topic up to the log ends. NoBrokersAvailable if no bootstrap server answers within
        `connect_timeout_ms`; UnknownTopic; RequestTimeout if no record is read for `max_block_ms`; CorruptRecords. UsageError if
        the table was started before."""
        super().start()

    def stop(self) -> None:
        """Write a snapshot (with `snapshot_dir`), stop reading and close the connections. Iterators of `watch` end, and calls
        that wait raise ClientClosed. It takes a few seconds at most, plus the time to write the snapshot. Any thread may call it;
        a second call does nothing."""
        self._stop(self._client.stop, STOP_TIMEOUT_S, None)

    def _exit(self, error: BaseException | None) -> None:
        self.stop()

    def _there(self) -> SharedTable[K, V]:
        """The table for asyncio. ClientClosed if it does not run; UsageError in a forked process."""
        self._running().check()
        return self._client

    # -- reading ------------------------------------------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of a key; `default` if there is no such key. It is deserialized at each call: the object is yours."""
        found = self._there().entry(key)
        return default if found is None else found.value

    def entry(self, key: K) -> TableEntry[V] | None:
        """The value of a key, and its version for `put(..., expect=)`; None if there is no such key."""
        return self._there().entry(key)

    def version(self, key: K) -> int | None:
        """The version of a key: the offset of its latest record; None if there is no such key."""
        return self._there().version(key)

    def __getitem__(self, key: K) -> V:
        return self._there()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._there()

    def __len__(self) -> int:
        return len(self._there())

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def keys(self) -> Iterator[K]:
        """The keys as they are at this call, in no particular order. Later changes do not affect the iterator."""
        return self._call(self._there().keys)

    def values(self) -> Iterator[V]:
        """The values as they are at this call, in no particular order. Later changes do not affect the iterator."""
        return self._call(self._there().values)

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values as they are at this call, in no particular order. Later changes do not affect the iterator."""
        return self._call(self._there().items)

    def watch(self, key: K | None = None, *, prefix: K | None = None) -> TableChanges[K, V]:
        """The changes from this call on, as an iterator of `TableChange`: of one key, of the keys whose bytes begin with those
        of `prefix`, or of all.

        At most one change of each key waits for the iterator. If the key changes again before that change is taken, the two are
        merged: you get the old value of the first, the new value of the last, and `merged` counts the others. So a slow program
        sees the last value of every key, and never stops the table; it may not see values in between. Changes of one key are in
        order; those of different keys may not be.

        The iterator ends when the table is stopped. If the table fails, the iterator raises the table's error. If you leave the
        loop before that, `close` the iterator, or use it with `with`: otherwise changes keep waiting for it."""
        return TableChanges(self, self._call(self._there().watch, key, prefix=prefix))


class TableChanges(Generic[K, V]):
    """The result of `Table.watch`: an iterator of changes. One thread at a time may wait for the next one."""

    def __init__(self, table: Table[K, V], changes: AsyncTableChanges[K, V]) -> None:
        self._table = table
        self._changes = changes

    def __iter__(self) -> Iterator[TableChange[K, V]]:
        return self

    def __next__(self) -> TableChange[K, V]:
        thread = self._table._running()
        change = None if thread.is_closed else self._table._run(self._next)
        if change is None:
            raise StopIteration
        return change

    async def _next(self) -> TableChange[K, V] | None:
        return await anext(self._changes, None)

    @property
    def waiting(self) -> int:
        """The number of changes that wait to be taken."""
        return self._changes.waiting

    def close(self) -> None:
        """Stop watching: the iterator ends when the changes that wait are taken."""
        if not self._table._running().is_closed:
            self._table._call(self._changes.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
