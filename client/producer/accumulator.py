"""Records that wait to be sent: a queue of batches per partition, and one budget of bytes (`buffer_memory`) for all. Pure.

Memory is counted per batch, not per record: an open batch reserves its whole size, a closed one the bytes that it holds. So the
common `send_nowait` is a dictionary look-up, a subtraction and a list append (`bare_open`), whatever the number of topics.

When a batch of a queue is opened or closed, the accumulator calls `on_ready(queue)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

from strandline.client.arguments import checked_whole
from strandline.client.errors import BufferFull, RecordTooLarge, UnknownTopic, UsageError, no_such_partition
from strandline.client.options import REQUEST_SIZE_MAX, ProducerOptions
from strandline.client.producer.batch import Batch, BatchState, Conditions, Headers
from strandline.client.producer.parking import Failure, ParkedRecord, ParkingLot
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.client.producer.partitioner import next_sticky, partition_for_key
from strandline.client.producer.receipts import Receipt, Receipts, Resolvable
from strandline.client.producer.record_sizes import RICH_OVERHEAD, headers_size_max, last_that_fits, sizes_max
from strandline.protocol.records.batch import HEADER_SIZE


class TopicQueues:
    """The queues of one topic, and its sticky partition, to which records without a key are appended now."""

    __slots__ = ("available", "name", "partition_count", "queues", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.partition_count = 0
        self.available: Sequence[int] = ()
        """Partitions with a leader, ascending; all partitions if none has a leader. Empty before the first metadata."""
        self.sticky = -1
        """The number of the sticky partition; -1 before the first metadata."""
        self.queues: dict[int, PartitionQueue] = {}
        """The queues of the partitions to which a record was appended."""

    def update(self, partition_count: int, available: Sequence[int], first_sticky: Callable[[int], int]) -> None:
        """Take over the partitions from the newest metadata. `first_sticky(n)` draws a number below n, which selects the first
        sticky partition."""
        self.partition_count = partition_count
        self.available = available or range(partition_count)
        if self.sticky < 0:
            self.sticky = self.available[first_sticky(len(self.available))]

    def move_sticky(self) -> None:
        """Append records without a key to the next available partition from now on."""
        self.sticky = next_sticky(self.sticky, self.available)


class Accumulator:
    """Appends records to the open batches of their partitions, and counts the bytes of all batches that are not done."""

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
        """Draws the index of a topic's first sticky partition, so that many producers do not start with the same one."""
        self._partitioner = options.partitioner
        self._conditions = Conditions(fencing_token=-1 if options.fencing_token is None else options.fencing_token)
        """The conditions of batches whose records have none of their own."""
        self._delivery_timeout_s = options.delivery_timeout_ms / 1000
        self._record_bytes_max = options.max_request_size - HEADER_SIZE
        self.on_refused: Callable[[UnknownTopic | UsageError], None] = lambda error: None
        """Called with the error of parked records that could not be appended when their topic's metadata arrived."""
        self.topics: dict[str, TopicQueues] = {}
        self.parked: dict[str, ParkingLot] = {}
        self.bare_open: dict[str, Batch] = {}
        """By topic, the open batch of its sticky partition if that batch is bare. A record without a key may be appended to it at
        once."""
        self.incomplete: dict[Batch, PartitionQueue] = {}
        """Each batch that is not done, and its queue, in the order of creation; the halves of a split batch come last."""
        self.buffered_bytes = 0
        self.batches_closed = 0
        """A counter. `await send` lets the event loop run when it has grown by a few."""
        self.refused_records = 0
        """A counter: parked records that could not be appended when their topic's metadata arrived."""

    # -- topics -------------------------------------------------------------------------------------------------------

    def update_topic(self, name: str, partition_count: int, available: Sequence[int]) -> None:
        """Take over the topic's partitions from the newest metadata, and append its parked records to their batches."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicQueues(name)
        topic.update(partition_count, available, self._first_sticky)
        lot = self.parked.pop(name, None)
        if lot is not None:
            self._unpark(topic, lot)

    def queue(self, topic: TopicQueues, partition: int) -> PartitionQueue:
        """The queue of a partition, which is created for its first record."""
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queues[partition] = PartitionQueue(
                topic.name,
                partition,
                idempotent=self._options.idempotent,
                named=self._options.producer_name is not None,
                transactional=self._options.transactional_id is not None,
                compression=self._options.compression,
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
        """Append one record. If it raises BufferFull, RecordTooLarge or UnknownTopic, nothing has changed."""
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
        if partition is None and self._partitioner is not None:
            partition = self.partition_of(topic, key)
        queue = topic.queues.get(self._choose(topic, partition, key))
        batch = None if queue is None else queue.open
        if batch is None or batch.room < size:
            batch = self._batch_for(topic, partition, key, size)
        return self._put(topic, batch, key, value, headers, timestamp_ms, size)

    def append_alone(
        self,
        name: str,
        partition: int | None,
        key: bytes | None,
        values: Sequence[bytes | None],
        headers: Headers | None,
        timestamp_ms: int | None,
        conditions: Conditions,
    ) -> Receipts:
        """Append records in a batch of their own, which the leader appends only if the conditions hold. They have this key, these
        headers and this timestamp. If it raises an error of `append`, none was appended."""
        receipts = Receipts()
        if not values:
            return receipts
        sizes = sizes_max(values, [key] * len(values), [headers] * len(values))
        size = sum(sizes)
        if size > self._record_bytes_max:
            raise self._too_large(name, size, len(values))
        self._check_room(HEADER_SIZE + size)
        topic = self.topics.get(name)
        if topic is None:
            for value, its_size in zip(values, sizes, strict=True):
                receipt = self._park(name, partition, key, value, headers, timestamp_ms, its_size, conditions)
                receipts.add_run(receipt, 1)
        else:
            batch = self._put_alone(topic, partition, key, values, headers, timestamp_ms, sizes, conditions)
            receipts.add_run(Receipt(batch, 0), len(values))
        return receipts

    def _put_alone(
        self,
        topic: TopicQueues,
        partition: int | None,
        key: bytes | None,
        values: Sequence[bytes | None],
        headers: Headers | None,
        timestamp_ms: int | None,
        sizes: Sequence[int],
        conditions: Conditions,
    ) -> Batch:
        """Put these records into a batch of their own. The queue's open batch is closed first, so that its records are sent
        before these. The new batch is closed, too, so that later records are in another batch."""
        if partition is None:
            partition = self.partition_of(topic, key)
        queue = self.queue(topic, self._choose(topic, partition, key))
        self.close(queue)
        batch = self._open(topic, queue, sum(sizes))
        batch.conditions = conditions
        for value, size in zip(values, sizes, strict=True):
            batch.append(key, value, headers, timestamp_ms, size)
        self._after_append(topic, batch)
        self.close(queue)
        return batch

    def _too_large(self, name: str, size: int, count: int = 1) -> RecordTooLarge:
        limit = self._options.max_request_size
        hint = f"the option may be raised to {REQUEST_SIZE_MAX}" if limit < REQUEST_SIZE_MAX else "no request can carry more"
        what = f"a record of {size} bytes for {name} does" if count == 1 else f"{count} records of {size} bytes for {name} do"
        return RecordTooLarge(f"{what} not fit max_request_size ({limit} bytes); {hint}")

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
        """Append to a batch that has room."""
        index = batch.append(key, value, headers, timestamp_ms, size)
        self._after_append(topic, batch)
        return Receipt(batch, index)

    def _after_append(self, topic: TopicQueues, batch: Batch) -> None:
        """Remove a batch that is no longer bare from `bare_open`."""
        if self.bare_open.get(topic.name) is batch and not batch.is_bare:
            del self.bare_open[topic.name]

    def _batch_for(
        self, topic: TopicQueues, partition: int | None, key: bytes | None, size: int, *, force: bool = False
    ) -> Batch:
        """An open batch with room. A full one is closed, and a new one is opened if there is none. `force`: do not check
        `buffer_memory`, because the record's bytes were counted already."""
        chosen = self._choose(topic, partition, key)
        queue = self.queue(topic, chosen)
        if queue.open is not None and queue.open.room >= size:
            return queue.open
        if not force:
            self._check_room(max(self._options.batch_size, HEADER_SIZE + size))
        if queue.open is not None:
            self.close(queue)
            queue = self.queue(topic, self._choose(topic, partition, key))  # The sticky partition may have changed.
            if queue.open is not None and queue.open.room >= size:
                return queue.open
            self.close(queue)
        return self._open(topic, queue, size)

    def append_many(
        self,
        name: str,
        values: Sequence[bytes | None],
        partition: int | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> Receipts:
        """Append many records at once. If it raises BufferFull, RecordTooLarge or UnknownTopic, none was appended. If `partition`
        is None, the records are appended to the sticky partition, and must have no keys."""
        receipts = Receipts()
        if not values:
            return receipts
        sizes = sizes_max(values, keys, headers)
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
            stop = last_that_fits(ends, start, taken + batch.room)
            run = slice(start, stop)
            index = batch.extend(values[run], keys and keys[run], headers and headers[run], ends[stop - 1] - taken)
            self._after_append(topic, batch)
            receipts.add_run(Receipt(batch, index), stop - start)
            start, taken = stop, ends[stop - 1]
        return receipts

    def _batch_for_run(self, topic: TopicQueues, partition: int | None, size: int) -> Batch:
        """The open batch of the partition, or of the sticky one, with room for a record of `size` bytes."""
        while True:
            queue = self.queue(topic, self._choose(topic, partition, None))
            batch = queue.open
            if batch is None:
                return self._open(topic, queue, size)
            if batch.room >= size:
                return batch
            self.close(queue)

    def partition_of(self, topic: TopicQueues, key: bytes | None) -> int | None:
        """The partition of a record for which the program has named none; None: the sticky one. UsageError if the program's
        partitioner fails, or returns no partition of the topic."""
        count = topic.partition_count
        if self._partitioner is None:
            return None if key is None else partition_for_key(key, count)
        try:
            chosen = self._partitioner(key, list(range(count)), list(topic.available))
        except Exception as e:
            raise UsageError(f"the partitioner failed for a record of {topic.name}: {e!r}") from e
        try:
            return checked_whole("a partition", chosen, 0, count - 1)
        except UsageError:
            text = f"the partitioner returned {chosen!r}, but {topic.name} has the partitions 0 to {count - 1}"
            raise UsageError(text) from None

    def _choose(self, topic: TopicQueues, partition: int | None, key: bytes | None) -> int:
        if partition is None:
            return topic.sticky if key is None else partition_for_key(key, topic.partition_count)
        if not 0 <= partition < topic.partition_count:
            raise UnknownTopic(no_such_partition(topic.partition_count), topic=topic.name, partition=partition)
        return partition

    def _check_room(self, size: int) -> None:
        if not self.has_room(size):
            raise BufferFull(
                f"{self.buffered_bytes} of {self._options.buffer_memory} bytes (buffer_memory) wait to be sent; "
                "await send() waits for room"
            )

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit into `buffer_memory`. A record larger than all of it is accepted if nothing else
        waits."""
        return self.buffered_bytes + size <= self._options.buffer_memory or self.buffered_bytes == 0

    @property
    def waiting_records(self) -> int:
        """Records that are neither acknowledged nor failed."""
        return sum(len(batch) for batch in self.incomplete) + sum(len(lot.records) for lot in self.parked.values())

    def is_idle(self, name: str, partition: int) -> bool:
        """Whether no record of this partition waits."""
        topic = self.topics.get(name)
        queue = None if topic is None else topic.queues.get(partition)
        return name not in self.parked and (queue is None or queue.idle)

    def oldest_age_s(self, now: float) -> float:
        """The age of the oldest batch that is not done, in seconds; 0 if there is none."""
        oldest = next(iter(self.incomplete), None)
        return 0.0 if oldest is None else now - oldest.created_at

    # -- batches ------------------------------------------------------------------------------------------------------

    def _open(self, topic: TopicQueues, queue: PartitionQueue, size: int) -> Batch:
        limit = max(self._options.batch_size, HEADER_SIZE + size)
        now = self._now()
        deadline = now + self._delivery_timeout_s
        batch = Batch(queue.topic, queue.partition, limit - HEADER_SIZE, limit, now, deadline, self._wall_clock_ms())
        batch.conditions = self._conditions
        queue.begin(batch)
        self.incomplete[batch] = queue
        self.buffered_bytes += limit
        if queue.partition == topic.sticky:
            self.bare_open[topic.name] = batch
        self._on_ready(queue)
        return batch

    def close(self, queue: PartitionQueue) -> None:
        """Accept no more records in the queue's open batch, if there is one: it is ready to be sent."""
        batch = queue.close_open()
        if batch is not None:
            self._on_closed(queue, batch)
            self._on_ready(queue)

    def close_batch_of(self, target: Resolvable) -> None:
        """Close the batch at which a receipt points, if it is open."""
        if isinstance(target, Batch) and target.state is BatchState.OPEN:
            self.close(self.incomplete[target])

    def take(self, queue: PartitionQueue, now: float, partial: bool, broker_id: int | None = None) -> Batch | None:
        """Call `PartitionQueue.take`. If it returns the open batch, the batch is closed."""
        was_open = queue.open
        batch = queue.take(now, partial, broker_id)
        if batch is not None and batch is was_open:
            self._on_closed(queue, batch)
        return batch

    def _on_closed(self, queue: PartitionQueue, batch: Batch) -> None:
        """Give back the bytes that the batch does not use. If it was a batch of the sticky partition, the next partition becomes
        sticky."""
        self.batches_closed += 1
        self.buffered_bytes -= batch.close()
        topic = self.topics[queue.topic]
        if queue.partition == topic.sticky:
            self.bare_open.pop(topic.name, None)
            topic.move_sticky()
            following = self.queue(topic, topic.sticky).open
            if following is not None and following.is_bare:
                self.bare_open[topic.name] = following

    def split(self, queue: PartitionQueue, batch: Batch) -> None:
        """Replace a batch that is too large for its topic by its halves."""
        halves = queue.split(batch)
        self.buffered_bytes += sum(half.reserved for half in halves) - batch.reserved
        del self.incomplete[batch]
        self.incomplete.update(dict.fromkeys(halves, queue))

    def release(self, batch: Batch) -> None:
        """Give back the bytes of a batch that is done."""
        if self.incomplete.pop(batch, None) is not None:
            self.buffered_bytes -= batch.reserved

    def expired(self, now: float) -> list[tuple[PartitionQueue, Batch]]:
        """Remove the batches whose deadline has passed from their queues, and return them, oldest first."""
        late = [(queue, batch) for batch, queue in self.incomplete.items() if batch.deadline <= now]
        for queue, batch in late:
            self.give_up(queue, batch)
        return late

    def give_up(self, queue: PartitionQueue, batch: Batch) -> None:
        """Remove the batch from its queue. The caller fails and releases it."""
        queue.remove(batch)
        if batch.state is BatchState.OPEN:
            self._on_closed(queue, batch)

    def forget_open_batches(self) -> None:
        """Empty `bare_open`, so that no call can append a record without a check."""
        self.bare_open.clear()

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
        conditions: Conditions | None = None,
    ) -> Receipt:
        self._check_room(size)
        now = self._now()
        lot = self.parked.get(name)
        if lot is None:
            lot = self.parked[name] = ParkingLot()
        deadline = now + self._delivery_timeout_s
        self.buffered_bytes += size
        return lot.add(partition, key, value, headers, timestamp_ms, size, now, deadline, conditions)

    def _unpark(self, topic: TopicQueues, lot: ParkingLot) -> None:
        for records in lot.pieces():
            self.buffered_bytes -= sum(record.size for record in records)
            try:
                batch, first = self._put_parked(topic, records)
            except (UnknownTopic, UsageError) as e:
                for record in records:
                    record.point_at(Failure(e))
                self.refused_records += len(records)
                self.on_refused(e)
            else:
                for index, record in enumerate(records, first):
                    record.point_at(batch, index)
                batch.expire_by(records[0].deadline)
        lot.wake()

    def _put_parked(self, topic: TopicQueues, records: list[ParkedRecord]) -> tuple[Batch, int]:
        """Append a parked record, or several that get a batch of their own. Returns their batch, and the index of the first."""
        _, partition, key, value, headers, timestamp_ms, size, _, _, conditions = records[0]
        if conditions is not None:
            values, sizes = [record.value for record in records], [record.size for record in records]
            return self._put_alone(topic, partition, key, values, headers, timestamp_ms, sizes, conditions), 0
        if partition is None and self._partitioner is not None:
            partition = self.partition_of(topic, key)
        batch = self._batch_for(topic, partition, key, size, force=True)
        return batch, self._put(topic, batch, key, value, headers, timestamp_ms, size).index

    def fail_parked(self, name: str, error: BaseException, parked_before: float | None = None) -> int:
        """Fail the parked records of a topic: all of them, or those that were parked until `parked_before`. Returns their
        number."""
        lot = self.parked.get(name)
        if lot is None:
            return 0
        failed = [record for record in lot.records if parked_before is None or record.since <= parked_before]
        self._take_out(name, lot, failed, error)
        return len(failed)

    def withdraw(self, name: str, receipt: Receipt, error: BaseException) -> None:
        """Fail one parked record, because its call has ended. Does nothing if the record has left the parking lot."""
        lot = self.parked.get(name)
        if lot is not None and receipt.batch is lot:
            self._take_out(name, lot, [record for record in lot.records if record.receipt is receipt], error)

    def _take_out(self, name: str, lot: ParkingLot, records: Sequence[ParkedRecord], error: BaseException) -> None:
        self.buffered_bytes -= sum(record.size for record in records)
        lot.remove(records, Failure(error))
        if not lot.records:
            del self.parked[name]
        lot.wake()
