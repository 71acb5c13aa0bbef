"""Writes the records of a table, with a condition or without one.

**A conditional write.** The table shows all records of a partition below some offset n. If the key has the expected version
there, the record is sent with `expect_offset=n`: the leader appends it only if n is the log end, so only if no other record was
appended to the partition in between. Otherwise the write gets OffsetConflict; the table reads the other record and checks again.
If that is of another key, the record is sent again. So conditional writes to one partition compete with all its writers, and each
attempt needs a round trip.

**A write in doubt.** If an attempt is not acknowledged in time, it is not known whether the record is in the log. The same record
is sent again for the same offset, so at most one of the two is appended. Either it is then acknowledged, or the offset is taken.
In the second case the table reads the record at that offset, and a header that only this write has shows whether it is the same
record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from strandline.client.errors import (
    ClientClosed,
    DeliveryFailed,
    DeliveryTimeout,
    OffsetConflict,
    RequestTimeout,
    StrandlineError,
)
from strandline.client.producer.partitioner import partition_for_key
from strandline.client.producer.producer import Producer
from strandline.client.table.reader import OwnWrite, Reader
from strandline.client.table.rows import Row, Rows
from strandline.protocol.errors import ErrorCode

MARK = "strandline.table.write"
"""The name of the header that marks a conditional record."""

Conflict = Callable[[bytes, int | None, Row | None], StrandlineError]
"""Key, expected version, actual row -> the error."""


class Writer:
    """Writes the records of one table, and waits until the table shows them."""

    def __init__(self, topic: str, producer: Producer, reader: Reader, rows: Rows, table_id: bytes) -> None:
        self._topic = topic
        self._producer = producer
        self._reader = reader
        self._rows = rows
        self._table_id = table_id
        """Random bytes, which make the marks of two tables different."""
        self._writes = 0
        producer.expected_topic_id = self._topic_id
        self._locks: dict[int, asyncio.Lock] = {}
        """A lock per partition: one conditional write at a time, because two would only conflict with each other."""
        self.counters = {"writes": 0, "conditional_writes": 0, "conditional_attempts": 0, "writes_in_doubt": 0}

    def _topic_id(self, topic: str, partition: int) -> bytes:
        """The id of the topic whose partition the table has read. A record that expects an offset in that log must not be
        appended to a topic that was recreated under the name."""
        found = self._reader.progress.get(partition)
        return b"" if found is None else found.topic_id

    async def partition_of(self, key: bytes, deadline: float) -> int:
        """The partition to which the producer sends this key. RequestTimeout at the deadline (on the loop's clock)."""
        try:
            async with asyncio.timeout_at(deadline):
                partitions = await self._producer.partitions_for(self._topic)
        except TimeoutError:
            text = "the partitions of the topic are not known in time; nothing was written"
            raise RequestTimeout(text, topic=self._topic) from None
        partitioner = self._producer.options.partitioner
        if partitioner is None:
            return partition_for_key(key, partitions[-1] + 1)
        return partitioner(key, partitions, partitions)

    async def write(self, key: bytes, value: bytes | None, partition: int, deadline: float) -> int:
        """Write a record without a condition. Returns its offset when the table shows it."""
        self.counters["writes"] += 1
        try:
            async with asyncio.timeout_at(deadline):
                receipt = await self._producer.send(self._topic, value, key, partition)
        except TimeoutError:
            raise self._in_doubt(partition) from None
        try:
            async with asyncio.timeout_at(deadline):
                offset = (await receipt).offset
        except TimeoutError:
            raise self._in_doubt(partition) from None
        await self._shown(partition, offset, deadline)
        return offset

    async def write_if(
        self, key: bytes, value: bytes | None, expected: int | None, partition: int, deadline: float, conflict: Conflict
    ) -> int:
        """Write a record if the key's version is `expected`; None: if there is no such key. Otherwise raise the error that
        `conflict` returns."""
        self.counters["conditional_writes"] += 1
        async with self._turn(partition, deadline):
            attempts = 0
            while True:
                if self._reader.applied(partition) < 0:
                    await self._await_live(partition, deadline)
                    continue
                if self._version(key) != expected:
                    await self._reader.catch_up(deadline, partition)
                    if self._version(key) != expected:
                        raise conflict(key, expected, self._rows.get(key))
                    continue
                # There was no await since the version was checked, so it is still the version as of `applied`.
                own = self._begin_own_write(partition)
                attempts += 1
                try:
                    if await self._try(key, value, partition, own, deadline):
                        await self._shown(partition, own.offset, deadline)
                        return own.offset
                finally:
                    del self._reader.own_writes[partition]
                if asyncio.get_running_loop().time() >= deadline:
                    text = "other records were appended to the partition before each attempt; nothing was written"
                    raise RequestTimeout(text, topic=self._topic, partition=partition, attempts=attempts)

    @asynccontextmanager
    async def _turn(self, partition: int, deadline: float) -> AsyncIterator[None]:
        lock = self._locks.setdefault(partition, asyncio.Lock())
        try:
            async with asyncio.timeout_at(deadline):
                await lock.acquire()
        except TimeoutError:
            text = "earlier conditional writes to the partition are still running; nothing was written"
            raise RequestTimeout(text, topic=self._topic, partition=partition) from None
        try:
            yield
        finally:
            lock.release()

    async def _await_live(self, partition: int, deadline: float) -> None:
        """Wait until the table shows the partition, which may just have been added, or is being read again."""
        await self._learn(partition, deadline)
        await self._reader.wait_applied(partition, 0, deadline)

    def _version(self, key: bytes) -> int | None:
        row = self._rows.get(key)
        return None if row is None else row.offset

    def _begin_own_write(self, partition: int) -> OwnWrite:
        self._writes += 1
        mark = self._table_id + self._writes.to_bytes(8, "big")
        own = self._reader.own_writes[partition] = OwnWrite(self._reader.applied(partition), (MARK, mark))
        return own

    async def _try(self, key: bytes, value: bytes | None, partition: int, own: OwnWrite, deadline: float) -> bool:
        """Try to write the record at the offset of `own`. Returns whether it was written there. DeliveryTimeout if that is not
        known at the deadline."""
        is_in_doubt = False
        while True:
            self.counters["conditional_attempts"] += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await self._producer.send_and_wait(self._topic, value, key, partition, [own.mark], expect_offset=own.offset)
                return True
            except OffsetConflict as e:
                if e.log_end_offset <= own.offset:
                    await self._pause(deadline)  # The leader was deposed, or records were lost: the reader detects it.
                    if is_in_doubt:
                        continue
                    return False
                return await self._look(partition, own, e.log_end_offset, deadline, is_in_doubt=is_in_doubt)
            except DeliveryTimeout:
                self.counters["writes_in_doubt"] += 1
                is_in_doubt = True
            except TimeoutError:
                raise self._in_doubt(partition) from None
            except StrandlineError as e:
                if isinstance(e, DeliveryFailed) and e.code == ErrorCode.UNKNOWN_TOPIC_ID:
                    await self._pause(deadline)  # The topic was recreated: the reader and the producer detect it.
                    return False
                if is_in_doubt and not isinstance(e, ClientClosed):
                    # This attempt was rejected, but an earlier one may be in the log.
                    raise self._in_doubt(partition) from e
                raise
            if own.is_lost or asyncio.get_running_loop().time() >= deadline:
                raise self._in_doubt(partition)

    async def _look(self, partition: int, own: OwnWrite, log_end: int, deadline: float, *, is_in_doubt: bool) -> bool:
        """The offset is taken, by another record or by an earlier attempt of this write. Read it, and return whether it is this
        write."""
        try:
            await self._reader.wait_applied(partition, log_end, deadline)
        except RequestTimeout:
            if is_in_doubt:
                raise self._in_doubt(partition) from None
            raise
        if is_in_doubt and own.is_there is None:
            raise self._in_doubt(partition)
        return is_in_doubt and bool(own.is_there)

    async def _pause(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = max(1, self._producer.options.retry_backoff_ms) / 1000
        await asyncio.sleep(max(0.0, min(backoff_s, deadline - loop.time())))

    async def _shown(self, partition: int, offset: int, deadline: float) -> None:
        """Wait until the table shows the record that was written at `offset`."""
        try:
            if self._reader.applied(partition) < 0:
                await self._learn(partition, deadline)
            await self._reader.wait_applied(partition, offset + 1, deadline)
        except RequestTimeout as e:
            text = f"the record was written at offset {offset}, but the table does not show it yet: {e}"
            raise RequestTimeout(text, topic=self._topic, partition=partition) from None

    async def _learn(self, partition: int, deadline: float) -> None:
        """If the reader does not know the partition, which was added to the topic, let it refresh its metadata."""
        if partition in self._reader.progress:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._reader.learn_partitions()
        except TimeoutError:
            raise RequestTimeout("the partition is not known yet", topic=self._topic, partition=partition) from None

    def _in_doubt(self, partition: int) -> DeliveryTimeout:
        text = "the record was not acknowledged in time; it is not known whether it was written, and it may still be written"
        return DeliveryTimeout(text, topic=self._topic, partition=partition)
