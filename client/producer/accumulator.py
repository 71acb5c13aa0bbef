"""Where records wait to be sent: a queue of batches per partition, one budget of bytes over all. Pure.

Memory is counted per batch, not per record: an open batch reserves its whole size, a closed one what it holds. So the
common `send_nowait` is a dictionary look-up, a subtraction and a list append (`bare_open`), whatever the number of
topics.

The accumulator tells its owner about a queue that has something new through `on_ready(queue)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

from strandline.client.errors import BufferFull, RecordTooLarge, UnknownTopic
from strandline.client.options import REQUEST_SIZE_MAX, ProducerOptions
from strandline.client.producer.batch import BARE_OVERHEAD, Batch, Headers
from strandline.client.producer.parking import Failure, ParkedRecord, ParkingLot
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.client.producer.partitioner import next_sticky, partition_for_key
from strandline.client.producer.receipts import Receipt, Receipts
from strandline.protocol.records.batch import HEADER_SIZE

RICH_OVERHEAD = BARE_OVERHEAD + 15
"""The most that any record needs beside key, value and headers: its own timestamp, the key's length."""


class TopicQueues:
    """One topic: how many partitions, which of them have a leader, and the one that keyless records go to now."""

    __slots__ = ("available", "name", "partition_count", "queues", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.partition_count = 0
        self.available: Sequence[int] = ()
        """Partitions with a leader, ascending; all of them when none has one."""
        self.sticky = -1
        self.queues: dict[int, PartitionQueue] = {}


class Accumulator:
    def __init__(
        self,
        options: ProducerOptions,
        *,
        now: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        on_ready: Callable[[PartitionQueue], None],
        first_sticky: Callable[[int], int],
    ) -> None:
        self._options = options
        self._now = now
        self._wall_clock_ms = wall_clock_ms
        self._on_ready = on_ready
        self._first_sticky = first_sticky
        """Draws where a topic's ring of sticky partitions begins, so that many producers do not start at the same one."""
        self._delivery_timeout_s = options.delivery_timeout_ms / 1000
        self._record_bytes_max = options.max_request_size - HEADER_SIZE
        self.topics: dict[str, TopicQueues] = {}
        self.parked: dict[str, ParkingLot] = {}
        self.bare_open: dict[str, Batch] = {}
        """Per topic the open, bare batch of its sticky partition: where a keyless record may be appended at once."""
        self.incomplete: dict[Batch, None] = {}
        """Every batch that is not done, in the order of creation."""
        self.buffered_bytes = 0
        self.batches_closed = 0
        """Counts up; `await send` gives way to the sender when it has moved."""

    # -- topics -------------------------------------------------------------------------------------------------------

    def update_topic(self, name: str, partition_count: int, available: Sequence[int]) -> None:
        """The topic's partitions as the newest metadata has them; parked records of it get their batches."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicQueues(name)
        topic.partition_count = partition_count
        topic.available = available or range(partition_count)
        if topic.sticky < 0:
            topic.sticky = topic.available[self._first_sticky(len(topic.available))]
        lot = self.parked.pop(name, None)
        if lot is not None:
            self._unpark(topic, lot)

    def queue(self, topic: TopicQueues, partition: int) -> PartitionQueue:
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queues[partition] = PartitionQueue(
                topic.name, partition, idempotent=self._options.idempotent, named=self._options.producer_name is not None
            )
        return queue

    # -- records ------------------------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
    ) -> Receipt:
        """Take one record. BufferFull, RecordTooLarge or UnknownTopic change nothing."""
        topic = self.topics.get(name)
        size = RICH_OVERHEAD
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += headers_size_max(headers)
        if size > self._record_bytes_max:
            raise self._too_large(name, size)
        if topic is None:
            return self._park(name, partition, key, value, headers, timestamp_ms, size)
        queue = topic.queues.get(self._choose(topic, partition, key))
        batch = None if queue is None else queue.open
        if batch is None or batch.room < size:
            batch = self._batch_for(topic, partition, key, size)
        return self._put(topic, batch, key, value, headers, timestamp_ms, size)

    def _too_large(self, name: str, size: int) -> RecordTooLarge:
        limit = self._options.max_request_size
        hint = f"the option may be raised to {REQUEST_SIZE_MAX}" if limit < REQUEST_SIZE_MAX else "no request can carry more"
        return RecordTooLarge(f"a record of {size} bytes for {name} does not fit max_request_size ({limit} bytes); {hint}")

    def _put(
        self,
        topic: TopicQueues,
        batch: Batch,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        size: int,
    ) -> Receipt:
        """Into a batch that has room."""
        batch.room -= size
        index = batch.append(key, value, headers, timestamp_ms)
        self._after_append(topic, batch)
        return Receipt(batch, index)

    def _after_append(self, topic: TopicQueues, batch: Batch) -> None:
        """A batch that is not bare any more takes no plain values."""
        if batch.records is not None and self.bare_open.get(topic.name) is batch:
            del self.bare_open[topic.name]

    def _batch_for(
        self, topic: TopicQueues, partition: int | None, key: bytes | None, size: int, *, force: bool = False
    ) -> Batch:
        """An open batch with room, opened if need be; a full one is closed. `force`: the bytes were counted before."""
        chosen = self._choose(topic, partition, key)
        batch = self.queue(topic, chosen).open
        if batch is not None and batch.room >= size:
            return batch
        if not force:
            self._check_room(max(self._options.batch_size, HEADER_SIZE + size))
        if batch is not None:
            self.close(batch)
            chosen = self._choose(topic, partition, key)  # The sticky partition moved on.
            batch = self.queue(topic, chosen).open
            if batch is not None and batch.room >= size:
                return batch
            if batch is not None:
                self.close(batch)
        return self._open(topic, self.queue(topic, chosen), size)

    def append_many(
        self,
        name: str,
        values: Sequence[bytes | None],
        partition: int | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> Receipts:
        """Take many records at once: all of them, or none (BufferFull). Without a partition, and then without keys, they
        go to the sticky one."""
        receipts = Receipts()
        if not values:
            return receipts
        sizes = _sizes_max(values, keys, headers)
        largest = max(sizes)
        if largest > self._record_bytes_max:
            raise self._too_large(name, largest)
        ends = list(accumulate(sizes))
        self._check_room(ends[-1] + 2 * max(self._options.batch_size, largest))
        topic = self.topics.get(name)
        if topic is None:
            rows = zip(keys or repeat(None), values, headers or repeat(None), sizes, strict=False)
            for key, value, own_headers, size in rows:
                receipts.add_run(self._park(name, partition, key, value, own_headers, None, size), 1)
            return receipts
        start, taken = 0, 0
        while start < len(values):
            batch = self._batch_for_run(topic, partition, sizes[start])
            stop = _last_that_fits(ends, start, taken + batch.room)
            run = slice(start, stop)
            index = batch.extend(values[run], keys and keys[run], headers and headers[run])
            self._after_append(topic, batch)
            batch.room -= ends[stop - 1] - taken
            receipts.add_run(Receipt(batch, index), stop - start)
            start, taken = stop, ends[stop - 1]
        return receipts

    def _batch_for_run(self, topic: TopicQueues, partition: int | None, size: int) -> Batch:
        """The open batch of the partition, or of the sticky one, with room for one more record of `size`."""
        while True:
            queue = self.queue(topic, self._choose(topic, partition, None))
            batch = queue.open
            if batch is None:
                return self._open(topic, queue, size)
            if batch.room >= size:
                return batch
            self.close(batch)

    def _choose(self, topic: TopicQueues, partition: int | None, key: bytes | None) -> int:
        if partition is None:
            return topic.sticky if key is None else partition_for_key(key, topic.partition_count)
        if not 0 <= partition < topic.partition_count:
            raise UnknownTopic(f"{topic.name} has {topic.partition_count} partitions", topic=topic.name, partition=partition)
        return partition

    def _check_room(self, size: int) -> None:
        if not self.has_room(size):
            raise BufferFull(
                f"{self.buffered_bytes} of {self._options.buffer_memory} bytes (buffer_memory) wait to be sent; "
                "await send() waits for room"
            )

    def has_room(self, size: int) -> bool:
        """A single record larger than the whole budget may go when nothing else waits."""
        return self.buffered_bytes + size <= self._options.buffer_memory or self.buffered_bytes == 0

    @property
    def waiting_records(self) -> int:
        """Records that are neither acknowledged nor failed."""
        return sum(len(batch) for batch in self.incomplete) + sum(len(lot.records) for lot in self.parked.values())

    # -- batches ------------------------------------------------------------------------------------------------------

    def _open(self, topic: TopicQueues, queue: PartitionQueue, size: int) -> Batch:
        limit = max(self._options.batch_size, HEADER_SIZE + size)
        now = self._now()
        batch = Batch(queue, limit - HEADER_SIZE, limit, now, now + self._delivery_timeout_s, self._wall_clock_ms())
        queue.open = batch
        self.incomplete[batch] = None
        self.buffered_bytes += limit
        if queue.partition == topic.sticky:
            self.bare_open[topic.name] = batch
        self._on_ready(queue)
        return batch

    def close(self, batch: Batch) -> None:
        """Full: no more records. It becomes ready to be sent."""
        queue = batch.queue
        queue.open = None
        queue.ready.append(batch)
        self.on_closed(batch)
        self._on_ready(queue)

    def on_closed(self, batch: Batch) -> None:
        """The batch takes no more records (closed, or taken by the sender while open): the sticky partition moves on."""
        batch.closed = True
        self.batches_closed += 1
        self.buffered_bytes -= batch.room
        batch.reserved -= batch.room
        batch.room = 0
        name = batch.queue.topic
        topic = self.topics[name]
        if batch.queue.partition == topic.sticky:
            self.bare_open.pop(name, None)
            topic.sticky = next_sticky(topic.sticky, topic.available)
            following = self.queue(topic, topic.sticky).open
            if following is not None and following.records is None:
                self.bare_open[name] = following

    def split(self, batch: Batch) -> None:
        """Too large for its topic: its halves are sent instead."""
        halves = batch.queue.split(batch)
        self.buffered_bytes += sum(half.reserved for half in halves) - batch.reserved
        del self.incomplete[batch]
        self.incomplete.update(dict.fromkeys(halves))

    def release(self, batch: Batch) -> None:
        """The batch is done: its bytes are free."""
        if self.incomplete.pop(batch, 0) is None:
            self.buffered_bytes -= batch.reserved

    def expired(self, now: float) -> list[Batch]:
        """The batches whose delivery time is over, oldest first; they are removed from their queues."""
        late = [batch for batch in self.incomplete if batch.deadline <= now]
        for batch in late:
            self.give_up(batch)
        return late

    def give_up(self, batch: Batch) -> None:
        """Take the batch out of its queue, wherever it stands; the caller fails and releases it."""
        batch.queue.remove(batch)
        if not batch.closed:
            self.on_closed(batch)

    # -- parked records -----------------------------------------------------------------------------------------------

    def _park(
        self,
        name: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        size: int,
    ) -> Receipt:
        self._check_room(size)
        now = self._now()
        lot = self.parked.get(name)
        if lot is None:
            lot = self.parked[name] = ParkingLot()
        receipt = Receipt(lot, len(lot.records))
        deadline = now + self._delivery_timeout_s
        lot.records.append(ParkedRecord(receipt, partition, key, value, headers, timestamp_ms, size, now, deadline))
        self.buffered_bytes += size
        return receipt

    def _unpark(self, topic: TopicQueues, lot: ParkingLot) -> None:
        for record in lot.records:
            receipt, partition, key, value, headers, timestamp_ms, size, _, deadline = record
            self.buffered_bytes -= size
            try:
                batch = self._batch_for(topic, partition, key, size, force=True)
            except UnknownTopic as e:
                receipt.batch = Failure(e)
            else:
                real = self._put(topic, batch, key, value, headers, timestamp_ms, size)
                receipt.batch, receipt.index = batch, real.index
                batch.deadline = min(batch.deadline, deadline)
        lot.wake()

    def fail_parked(self, name: str, error: BaseException, parked_before: float | None = None) -> int:
        """The topic did not become known: its records fail, all or those parked until `parked_before`. Returns how many."""
        lot = self.parked.get(name)
        if lot is None:
            return 0
        failed = [record for record in lot.records if parked_before is None or record.since <= parked_before]
        self._take_out(name, lot, failed, error)
        return len(failed)

    def withdraw(self, name: str, receipt: Receipt, error: BaseException) -> None:
        """The call that handed over this record does not wait any longer. A record that has its batch stays."""
        lot = self.parked.get(name)
        if lot is not None and receipt.batch is lot:
            self._take_out(name, lot, [record for record in lot.records if record.receipt is receipt], error)

    def _take_out(self, name: str, lot: ParkingLot, records: Sequence[ParkedRecord], error: BaseException) -> None:
        failure = Failure(error)
        for record in records:
            self.buffered_bytes -= record.size
            record.receipt.batch = failure
        lot.records = [record for record in lot.records if record.receipt.batch is lot]
        if not lot.records:
            del self.parked[name]
        lot.wake()


def headers_size_max(headers: Headers) -> int:
    """An upper bound of the bytes of a record's headers."""
    return sum(4 * len(name) + 10 + (0 if value is None else len(value)) for name, value in headers)


def _sizes_max(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, headers: Sequence[Headers | None] | None
) -> list[int]:
    """An upper bound of the bytes of each record."""
    if keys is None and headers is None:
        try:
            return list(map(BARE_OVERHEAD.__add__, map(len, values)))  # type: ignore[arg-type]
        except TypeError:
            pass  # A value is None.
    sizes = [RICH_OVERHEAD + len(value or b"") for value in values]
    if keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
    if headers is not None:
        sizes = [size + headers_size_max(own or ()) for size, own in zip(sizes, headers, strict=True)]
    return sizes


def _last_that_fits(ends: Sequence[int], start: int, limit: int) -> int:
    """The largest stop > start with ends[stop - 1] <= limit; at least one record goes."""
    low, high = start + 1, len(ends)
    while low < high:
        middle = (low + high + 1) // 2
        if ends[middle - 1] <= limit:
            low = middle
        else:
            high = middle - 1
    return low
