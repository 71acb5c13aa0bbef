"""The producer: `send_nowait`, `send`, `send_many`, `send_and_wait`, `flush`.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        receipt = producer.send_nowait("orders", b"value")     # a plain call; BufferFull when there is no room
        await producer.send("orders", b"value")                # waits for room, returns the receipt
        metadata = await receipt                               # topic, partition, offset, timestamp
        await producer.flush()

At the normal end of the block, the producer waits until all records are acknowledged. If an exception or a cancellation ends the
block, the producer waits one second, and the exception gets a note that says what was not acknowledged.

A named producer writes each row once, whichever attempt of its work writes it:

    async with Producer(producer_name="orders-sink", producer_work_epoch=batch_id) as producer:   # fences earlier attempts
        done = await producer.written([("orders", 0)])                     # {TopicPartition("orders", 0): 4711} rows
        for row in rows_of_partition_0[done[TopicPartition("orders", 0)]:]:
            await producer.send("orders", row, partition=0)
        await producer.flush()

A transactional producer (`transactional_id`) writes records to any number of partitions, all or nothing (transactions.py):

    async with producer.transaction():                                     # commits at the end, aborts on an exception
        await producer.send("invoices", b"value")
        await producer.send_offsets_to_transaction({TopicPartition("orders", 0): 42}, consumer)

A record whose receipt is never awaited costs no future and no task. The common call touches one dictionary, one batch and one
list; everything else happens per batch (accumulator.py, sender.py).
"""

from __future__ import annotations

import asyncio
import sys
from _thread import get_ident
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, Unpack, overload

from strandline.client.arguments import (
    OFFSET_MAX,
    TIMESTAMP_MAX,
    checked_commits,
    checked_name,
    checked_partitions,
    checked_time,
    checked_whole,
)
from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.shared_cluster import SharedCluster
from strandline.client.consumer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, TransactionMember
from strandline.client.errors import (
    BufferFull,
    ClientClosed,
    DeliveryFailed,
    DeliveryTimeout,
    RequestTimeout,
    UsageError,
    copy_of,
)
from strandline.client.home import Home
from strandline.client.option_docs import documents
from strandline.client.options import PlainProducerKeywords, ProducerKeywords, ProducerOptions, Serializer, parse_options
from strandline.client.producer.accumulator import Accumulator
from strandline.client.producer.batch import BARE_OVERHEAD, Batch, Conditions, Headers
from strandline.client.producer.call_order import CallOrder
from strandline.client.producer.columns import Columns
from strandline.client.producer.flush import flush
from strandline.client.producer.identity import ProducerIdentity
from strandline.client.producer.named_producer import NEEDS_PARTITION, resume_after_written_rows
from strandline.client.producer.parking import Failure, ParkingLot
from strandline.client.producer.receipts import Receipt, Receipts, RecordMetadata
from strandline.client.producer.record_fields import checked_headers, column_of, serialized, to_bytes
from strandline.client.producer.sender import Sender
from strandline.client.producer.transactions import TransactionBlock, Transactions
from strandline.client.producer.undelivered import Undelivered
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors, real_doors
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.fence import FENCING_TOKEN_MAX
from strandline.protocol.security.client_security import NO_SECURITY

logger = get_logger(__name__)

BATCHES_PER_TURN, BYTES_PER_TURN = 4, 262_144
"""`await send` fills at most this many batches, or bytes, before it lets the event loop send them: enough for several partitions
in one request."""
BYTES_PER_PIECE = 1_048_576
"""`send_columns` hands over its records in pieces of at most this size, each of which waits for room."""

STOP_AFTER_ERROR_MS = 1_000
"""Milliseconds that `stop` waits for acknowledgements after an exception or a cancellation."""
NOT_TRANSACTIONAL = "the producer has no transactional_id: give it one, and it can begin transactions"


class GroupMembership(Protocol):
    """The part of a consumer that a transaction uses."""

    def _transaction_member(self, offsets: Iterable[TopicPartition]) -> TransactionMember:
        """The membership with which these offsets are committed now. CommitFailed if a partition is no longer the consumer's."""
        ...


@documents(ProducerOptions)
class Producer(Generic[K, V]):
    """Sends records to the leaders of their partitions, in batches.

        async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
            where = await producer.send_and_wait("orders", b"2 tea", key=b"alice")

    Start it with `async with`, or with `await start()` and `await stop()`. It belongs to the event loop in which it was
    started. By default it is idempotent (KIP-98, KIP-679): each record is written once and in order, also when a request is sent
    again.

    `cluster`: connections and metadata that producers share one after the other; the producer does not close them."""

    @overload
    def __init__(
        self: Producer[bytes, bytes],
        *,
        cluster: SharedCluster | None = None,
        doors: Doors | None = None,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        cluster: SharedCluster | None = None,
        doors: Doors | None = None,
        key_serializer: None = None,
        value_serializer: Callable[[V], bytes | None],
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        cluster: SharedCluster | None = None,
        doors: Doors | None = None,
        key_serializer: Callable[[K], bytes | None],
        value_serializer: None = None,
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        cluster: SharedCluster | None = None,
        doors: Doors | None = None,
        key_serializer: Callable[[K], bytes | None],
        value_serializer: Callable[[V], bytes | None],
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    def __init__(
        self, *, cluster: SharedCluster | None = None, doors: Doors | None = None, **options: Unpack[ProducerKeywords]
    ) -> None:
        self.options = parse_options(ProducerOptions, options)
        self._shared = cluster
        self._check_identity()
        self._doors = doors or real_doors()
        self._key_serializer: Serializer | None = self.options.key_serializer
        self._value_serializer: Serializer | None = self.options.value_serializer
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._accumulator: Accumulator
        self._home: Home | None = None
        self._checked_thread = 0
        """The id of the event loop's thread, once a call in this iteration of the loop was checked; 0 before that."""
        is_plain = self._value_serializer is None and self.options.partitioner is None
        self._takes_bare = is_plain and self.options.producer_name is None
        self._call_order = CallOrder(self._choose_path)
        self._bare_open: dict[str, Batch] = {}
        """`Accumulator.bare_open`: the batches to which a plain value is appended without further checks. An empty dict while
        calls must take the longer path (`_choose_path`)."""
        self._batches_per_turn = max(1, min(BATCHES_PER_TURN, BYTES_PER_TURN // max(1, self.options.batch_size)))
        self._give_way_at = self._batches_per_turn
        self._stopped = False
        self._started_in_handler = False
        """An exception was already being handled when `start` was called. So an exception that is being handled during `stop`
        need not be the reason for the stop."""
        self._is_named = self.options.producer_name is not None
        self._transactions: Transactions | None = None
        """The transactions of this producer; None without a `transactional_id`, and before `start`."""
        self.expected_topic_id: Callable[[str, int], bytes] = self._known_topic_id
        """Topic name and partition -> the id of the topic in whose log the program's expected offsets are. A topic that is
        recreated under the name has another id. By default, the id in the metadata."""

    def _check_identity(self) -> None:
        """UsageError if this producer would use the connections of another identity."""
        own, shared = self.options.connection_security, self._shared
        if shared is not None and own not in (NO_SECURITY, shared.cluster.options.connection_security):
            raise UsageError("the shared cluster has other security settings than this producer: give each identity a cluster")

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster; AuthenticationFailed if it rejects the client's credentials; NoBrokersAvailable if no bootstrap
        server answers within `connect_timeout_ms`. A named producer takes its name within `max_block_ms` (RequestTimeout);
        ProducerFenced if the name has a higher work epoch. A transactional producer takes its transactional id within
        `max_block_ms` (RequestTimeout): earlier producers with the id are fenced, and the transaction that they have left open
        is aborted. UsageError if the producer was started before."""
        if self._cluster is not None or self._stopped:
            raise UsageError("the producer was started before: create a new one")
        self._started_in_handler = sys.exception() is not None
        self._home = Home("producer")
        loop = self._home.loop
        shared = self._shared
        cluster = self._cluster = Cluster(self.options, self._doors.random) if shared is None else shared.cluster
        self._accumulator = Accumulator(
            self.options,
            now=loop.time,
            wall_clock_ms=self._doors.wall_clock_ms,
            on_ready=lambda queue: on_ready(queue),
            first_sticky=self._doors.random.randrange,
        )
        sender = self._sender = Sender(self.options, self._accumulator, cluster)
        on_ready = sender.on_ready
        if self.options.transactional_id is not None:
            transactions = self._transactions = Transactions(self.options, cluster, self._accumulator, sender, self._choose_path)
            on_ready = transactions.on_ready
        try:
            await self._connect(cluster, sender)
            if self._is_named or self._transactions is not None:
                await sender.identity.wait(self.options.max_block_ms)
            if self._transactions is not None:
                self._transactions.state.initialized()
        except BaseException:
            await self.stop(timeout_ms=0)
            raise
        self._choose_path()

    async def _connect(self, cluster: Cluster, sender: Sender) -> None:
        """Fetch the metadata, then request the producer id; with a shared cluster, both at the same time."""
        if self._shared is None:
            await cluster.start()
        else:
            await self._shared.notice_changes()
        if self.options.idempotent:
            sender.identity.request()
        if self._shared is not None:
            await self._shared.renew()

    async def stop(self, timeout_ms: float | None = None) -> Undelivered:
        """Deliver the waiting records, then close. Returns the records that were not acknowledged, by partition, and is false if
        there are none. The receipts of records that still waited raise ClientClosed, which says whether the record may be in the
        log.

        Waits at most `timeout_ms`. By default that is `delivery_timeout_ms`; one second if the task is being cancelled, or if
        `stop` is called while an exception is handled (as in a `finally` clause), unless an exception was being handled already
        when `start` was called. The exception because of which the producer stops gets a note that names the partitions and the
        numbers of records.

        An open transaction is aborted, with a warning in the log."""
        return await self._stop(timeout_ms, None if self._started_in_handler else sys.exception())

    async def _stop(self, timeout_ms: float | None, error: BaseException | None) -> Undelivered:
        """Do what `stop` promises. `error`: the exception because of which the producer is stopped."""
        if self._stopped or self._sender is None or self._cluster is None:
            self._stopped = True
            return Undelivered()
        assert self._home is not None
        self._home.check()
        timeout_ms = self._flush_timeout_ms(error) if timeout_ms is None else checked_time("timeout_ms", timeout_ms)
        self._stopped = True
        self._choose_path()
        try:
            if self._transactions is not None:
                await self._transactions.stop(error, timeout_ms)
            if timeout_ms != 0:
                await flush(self._accumulator, timeout_ms)
        except RequestTimeout:
            pass
        except BaseException as e:
            error = e
            raise
        finally:
            undelivered = self._sender.stop()
            self._report(undelivered, error)
            if self._transactions is not None:
                await self._transactions.close()
            await self._sender.close()
            if self._shared is None:
                await self._cluster.close()
            else:
                self._shared.release()
        return undelivered

    def _flush_timeout_ms(self, error: BaseException | None) -> float:
        """Milliseconds that `stop` waits for acknowledgements, if the caller sets no limit."""
        task = asyncio.current_task()
        is_cancelled = task is not None and task.cancelling() > 0
        timeout_ms = self.options.delivery_timeout_ms
        return min(STOP_AFTER_ERROR_MS, timeout_ms) if error is not None or is_cancelled else timeout_ms

    def _report(self, undelivered: Undelivered, error: BaseException | None) -> None:
        if not undelivered.records:
            return
        text = str(undelivered)
        logger.warning("producer.stopped_with_undelivered", records=undelivered.records, reason=text)
        if error is not None:
            error.add_note(f"When the producer stopped, {text}.")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self._stop(None, error)

    # -- records ------------------------------------------------------------------------------------------------------

    def send_nowait(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        expect_offset: int | None = None,
        fencing_token: int | None = None,
    ) -> Receipt:
        """Hand over one record and return at once; `await` the receipt for the acknowledgement. BufferFull if `buffer_memory` is
        used up, or if an earlier `send` or `send_columns` of the same topic still waits; RecordTooLarge; UsageError for a value
        of the wrong type. All are raised before anything is queued.

        `key`, `value`: bytes or None, or what the serializer takes; `headers`: a list of (str, bytes) pairs. `partition`: by
        default a hash of the key chooses it, as in Kafka's Java client; without a key, the producer chooses. `timestamp_ms`:
        milliseconds since 1970 (UTC), by default now.

        `expect_offset`: append the record only if this is the log end of its partition, so that the record gets this offset;
        otherwise the receipt raises OffsetConflict, which has the log end. It needs a partition or a key.

        `fencing_token`: append the record only if no record of its partition has carried a higher token; otherwise the receipt
        raises TokenFenced, which has the highest token. By default, the producer's option of this name. A record without a token
        is not affected. The first record with a token gets the offset after the log end, which stores the token.

        `expect_offset` and `fencing_token` need idempotence. A retry of a record that was written is not rejected. A record with
        one of these arguments has a batch of its own; if all records have the same token, set the option instead."""
        if get_ident() != self._checked_thread:
            self._enter()
        batch = self._bare_open.get(topic)
        if (
            batch is not None
            and type(value) is bytes
            and key is None
            and partition is None
            and headers is None
            and timestamp_ms is None
            and expect_offset is None
            and fencing_token is None
        ):
            room = batch.room - len(value) - BARE_OVERHEAD
            if room >= 0:
                batch.room = room
                values = batch.values
                values.append(value)
                return Receipt(batch, len(values) - 1)
        if self._call_order:
            self._check_order(topic)
        return self._send_any(topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token)

    async def send(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        expect_offset: int | None = None,
        fencing_token: int | None = None,
    ) -> Receipt:
        """Hand over one record, and wait for the topic's metadata and for room in the buffer if need be, each at most
        `max_block_ms`. The arguments are those of `send_nowait`.

        It returns the receipt of a record that is handed over, but not acknowledged yet: `await` the receipt, or `flush`.
        UnknownTopic, NoBrokersAvailable or RequestTimeout without metadata; BufferFull without room; RecordTooLarge; UsageError
        for a value of the wrong type.

        The call lets the event loop run each time a few batches are full. Records are appended in the order in which their calls
        began, whatever each call waits for."""
        if get_ident() != self._checked_thread:
            self._enter()
        batch = self._bare_open.get(topic)
        if (
            batch is not None
            and type(value) is bytes
            and key is None
            and partition is None
            and headers is None
            and timestamp_ms is None
            and expect_offset is None
            and fencing_token is None
        ):
            room = batch.room - len(value) - BARE_OVERHEAD
            if room >= 0:
                batch.room = room
                values = batch.values
                values.append(value)
                return Receipt(batch, len(values) - 1)
        accumulator = self._running()
        if topic in self._call_order:
            receipt = await self._send_in_turn(topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token)
        else:
            arguments = topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token
            try:
                receipt = self._send_any(*arguments)
            except BufferFull:
                receipt = await self._send_in_turn(*arguments)
        if type(receipt.batch) is ParkingLot:
            await self._leave_parking_lot(topic, receipt)
        if accumulator.batches_closed >= self._give_way_at:
            self._give_way_at = accumulator.batches_closed + self._batches_per_turn
            await asyncio.sleep(0)
        return receipt

    async def send_and_wait(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        expect_offset: int | None = None,
        fencing_token: int | None = None,
    ) -> RecordMetadata:
        """Hand over one record, wait until it is acknowledged, and return its partition, offset and timestamp. DeliveryTimeout if
        it is not acknowledged within `delivery_timeout_ms`; DeliveryFailed if it was rejected; the errors of `send`. One record
        at a time is slow: `send` many, then `flush`."""
        return await (await self.send(topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token))

    def send_many(
        self,
        topic: str,
        values: Sequence[V | None],
        *,
        key: K | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
        fencing_token: int | None = None,
    ) -> Receipts:
        """Hand over many values at once, all or none (BufferFull). `await` the result for a list of `BatchMetadata`, one for each
        run of records that went into one batch. With a key, a partition, a serializer, a partitioner or a name, it calls
        `send_nowait` for one value after the other, and the values before a BufferFull are sent.

        With `expect_offset` or `fencing_token` (see `send_nowait`), all values are one batch: all are written, side by side, or
        none. RecordTooLarge if together they do not fit `max_request_size`. The topic's `max.message.bytes` must allow the
        batch."""
        if expect_offset is not None or fencing_token is not None:
            return self._send_together(topic, values, key, partition, expect_offset, fencing_token)
        if key is None and partition is None and self._takes_bare:
            accumulator = self._running()
            if self._transactions is not None:
                self._transactions.state.check_takes_records()
            self._check_order(topic)
            plain = column_of("values", values)
            if not set(map(type, plain)) <= {bytes}:
                plain = [to_bytes("value", value) for value in plain]
                if None in plain:
                    return self._send_each(topic, plain, key, partition)
            receipts = accumulator.append_many(topic, plain)
            self._note_parked(topic)
            return receipts
        return self._send_each(topic, values, key, partition)

    def _send_each(self, topic: str, values: Sequence[V | None], key: Any, partition: int | None) -> Receipts:
        receipts = Receipts()
        for value in column_of("values", values):
            receipts.add_run(self.send_nowait(topic, value, key, partition), 1)
        return receipts

    def _send_together(
        self,
        topic: str,
        values: Sequence[V | None],
        key: Any,
        partition: int | None,
        expect_offset: int | None,
        fencing_token: int | None,
    ) -> Receipts:
        accumulator = self._running()
        self._check_order(topic)
        encoded = serialized("value", values, self._value_serializer)
        (key,) = serialized("key", [key], self._key_serializer)
        if partition is not None:
            partition = checked_whole("a partition", partition)
        checked_name(topic)
        conditions = self._conditions(expect_offset, fencing_token, key, partition)
        receipts = accumulator.append_alone(topic, partition, key, encoded, None, None, conditions)
        if receipts:
            self._bind(receipts[0])
        self._note_parked(topic)
        return receipts

    async def send_columns(
        self,
        topic: str,
        values: Sequence[V | None],
        keys: Sequence[K | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        *,
        partition: int | None = None,
    ) -> Receipts:
        """Hand over many records by column: `values`, and as many `keys` and `headers` or none. The records are sent to one
        partition, or to those that their keys select; in the second case, the receipts are ordered by partition. It waits for
        metadata and for room as `send` does, with the same errors, and costs about half as much as that many calls of `send`.
        UsageError if the columns have different lengths."""
        self._running()
        columns = Columns(
            serialized("value", values, self._value_serializer),
            None if keys is None else serialized("key", keys, self._key_serializer),
            None if headers is None else list(map(checked_headers, column_of("headers", headers))),
        )
        columns.check_lengths()
        receipts = Receipts()
        deadline, number = self._deadline(), self._transaction_number()
        try:
            async with self._call_order.turn(topic, deadline):
                if topic not in self._running().topics:
                    await self.partitions_for(topic)
                for chosen, rows in self._by_partition(topic, columns, partition):
                    for piece in rows.pieces(max(1, min(BYTES_PER_PIECE, self.options.buffer_memory // 4))):
                        await self._append_columns(topic, chosen, piece, receipts, number)
        except TimeoutError:
            raise self._no_turn(topic) from None
        return receipts

    def _deadline(self, timeout_ms: float | None = None) -> float:
        """`timeout_ms` (by default `max_block_ms`) from now, on the loop's clock."""
        wait_ms = self.options.max_block_ms if timeout_ms is None else checked_time("timeout_ms", timeout_ms)
        return asyncio.get_running_loop().time() + wait_ms / 1000

    def _no_turn(self, topic: str) -> BufferFull:
        return BufferFull(f"earlier calls for {topic} still wait after max_block_ms ({self.options.max_block_ms})")

    def _by_partition(self, topic: str, columns: Columns, partition: int | None) -> Iterable[tuple[int | None, Columns]]:
        if partition is not None:
            return [(checked_whole("a partition", partition), columns)]
        if self._is_named and (columns.keys is None or None in columns.keys):
            raise UsageError(NEEDS_PARTITION)
        queues = self._accumulator.topics[topic]
        if columns.keys is None and self.options.partitioner is None:
            return [(None, columns)]
        return columns.by_choice(partial(self._accumulator.partition_of, queues))

    def _transaction_number(self) -> int | None:
        """The number of the transaction, after a check that it takes records; None without transactions."""
        if self._transactions is None:
            return None
        self._transactions.state.check_takes_records()
        return self._transactions.state.number

    async def _append_columns(
        self, topic: str, partition: int | None, rows: Columns, receipts: Receipts, number: int | None
    ) -> None:
        deadline = self._deadline()
        while True:
            accumulator = self._running()
            if self._transactions is not None:
                self._transactions.state.check_takes_records(number)
            try:
                taken = accumulator.append_many(topic, rows.values, partition, rows.keys, rows.headers)
                break
            except BufferFull:
                await self._wait_for_room(deadline)
        self._wake_next()
        receipts.extend(taken)
        if accumulator.batches_closed >= self._give_way_at:
            self._give_way_at = accumulator.batches_closed + self._batches_per_turn
            await asyncio.sleep(0)

    async def wait_for_room(self, size: int | None = None, timeout_ms: float | None = None) -> None:
        """Wait until the buffer has room for `size` more bytes (by default, for a whole batch); BufferFull after `timeout_ms` (by
        default `max_block_ms`)."""
        accumulator = self._running()
        wanted = max(self.options.batch_size, size or 0)
        deadline = self._deadline(timeout_ms)
        while not accumulator.has_room(wanted):
            await self._wait_for_room(deadline)
        self._wake_next()

    def _send_any(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        expect_offset: int | None = None,
        fencing_token: int | None = None,
        transaction: int | None = None,
    ) -> Receipt:
        """Check, serialize and append one record. `transaction`: the number of the transaction in which the call began."""
        accumulator = self._running()
        if self._transactions is not None:
            self._transactions.state.check_takes_records(transaction)
        if self._is_named and key is None and partition is None:
            raise UsageError(NEEDS_PARTITION)
        if self._value_serializer is not None and value is not None:
            value = self._value_serializer(value)
        if self._key_serializer is not None and key is not None:
            key = self._key_serializer(key)
        if type(value) is not bytes:
            value = to_bytes("value", value)
        if key is not None and type(key) is not bytes:
            key = to_bytes("key", key)
        if headers is not None:
            headers = checked_headers(headers)
        if partition is not None and (type(partition) is not int or partition < 0):
            partition = checked_whole("a partition", partition)
        if timestamp_ms is not None:
            timestamp_ms = checked_whole("timestamp_ms", timestamp_ms, -1, TIMESTAMP_MAX)
        if topic not in accumulator.topics:
            checked_name(topic)
        if expect_offset is None and fencing_token is None:
            receipt = accumulator.append(topic, partition, key, value, headers, timestamp_ms)
        else:
            conditions = self._conditions(expect_offset, fencing_token, key, partition)
            receipt = accumulator.append_alone(topic, partition, key, [value], headers, timestamp_ms, conditions)[0]
            self._bind(receipt)
        if accumulator.parked:
            self._note_parked(topic)
        return receipt

    def _conditions(
        self, expect_offset: int | None, fencing_token: int | None, key: bytes | None, partition: int | None
    ) -> Conditions:
        offset = -1
        if expect_offset is not None:
            if key is None and partition is None:
                raise UsageError(
                    "expect_offset needs the partition (or the key) of the record: each partition has its own offsets"
                )
            self.options.check_conditional("expect_offset")
            offset = checked_whole("expect_offset", expect_offset, 0, OFFSET_MAX)
        if fencing_token is None:
            fencing_token = self.options.fencing_token
        if fencing_token is None:
            return Conditions(offset)
        self.options.check_conditional("fencing_token")
        return Conditions(offset, checked_whole("fencing_token", fencing_token, 0, FENCING_TOKEN_MAX))

    def _bind(self, receipt: Receipt) -> None:
        """If the record expects an offset, bind it to the present id of its topic: it is not appended to a topic with another id.
        A parked record is not bound, because the id of its topic is not known."""
        batch = receipt.batch
        if isinstance(batch, Batch) and batch.conditions.expected_offset >= 0:
            batch.topic_id = self.expected_topic_id(batch.topic, batch.partition)

    def _known_topic_id(self, topic: str, partition: int) -> bytes:
        """The id of the topic in the metadata; empty if it is not known."""
        info = None if self._cluster is None else self._cluster.cache.topics.get(topic)
        return b"" if info is None else info.topic_id

    def _note_parked(self, topic: str) -> None:
        if topic in self._accumulator.parked and self._sender is not None:
            self._sender.on_parked(topic)

    async def _send_in_turn(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        expect_offset: int | None,
        fencing_token: int | None,
    ) -> Receipt:
        """Wait until the earlier calls for this topic have ended, and then for room."""
        deadline, number = self._deadline(), self._transaction_number()
        try:
            async with self._call_order.turn(topic, deadline):
                while True:
                    try:
                        receipt = self._send_any(
                            topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token, number
                        )
                        break
                    except BufferFull:
                        await self._wait_for_room(deadline)
        except TimeoutError:
            raise self._no_turn(topic) from None
        self._wake_next()
        return receipt

    async def _leave_parking_lot(self, topic: str, receipt: Receipt) -> None:
        """Wait for the metadata of a parked record's topic. If the call ends before that, the record is withdrawn."""
        assert self._cluster is not None
        try:
            await self.partitions_for(topic)
        except BaseException:
            withdrawn = DeliveryFailed("the call ended before the topic's metadata was known", topic=topic)
            self._accumulator.withdraw(topic, receipt, withdrawn)
            self._wake_next()
            raise
        if isinstance(receipt.batch, Failure):
            try:
                receipt.result()
            except DeliveryTimeout:
                raise self._cluster.metadata.no_answer(self.options.max_block_ms) from None

    async def _wait_for_room(self, deadline: float) -> None:
        """Wait until a batch is done. BufferFull at the deadline."""
        self._running()
        assert self._sender is not None
        try:
            await self._sender.room.wait(deadline)
        except TimeoutError:
            raise BufferFull(f"no room in buffer_memory within max_block_ms ({self.options.max_block_ms})") from None
        self._running()

    def _wake_next(self) -> None:
        if self._sender is not None:
            self._sender.room.wake_next()

    def _choose_path(self) -> None:
        """Enable the short path, which appends plain values to `bare_open`, unless values need checks or earlier calls wait."""
        is_open = self._takes_bare and not self._stopped and not self._call_order
        if self._transactions is not None:
            is_open = is_open and self._transactions.state.takes_records
        self._bare_open = self._accumulator.bare_open if is_open else {}

    def _enter(self) -> None:
        """Check the caller's event loop. Finding it takes a system call in Python 3.11, so it is done once per iteration of
        the loop; until that ends, comparing the thread is enough."""
        if self._home is not None:
            self._home.check()
            self._checked_thread = get_ident()
            self._home.loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        self._checked_thread = 0

    def _check_order(self, topic: str) -> None:
        if topic in self._call_order:
            raise BufferFull(f"earlier calls for {topic} wait for room or metadata; await send() waits behind them")

    def _running(self) -> Accumulator:
        if get_ident() != self._checked_thread:
            self._enter()
        if self._stopped:
            raise ClientClosed("the producer was stopped")
        if self._sender is None:
            raise ClientClosed("the producer was not started: use `async with Producer(...)`, or `await producer.start()`")
        if self._sender.failures.fatal is not None:
            raise copy_of(self._sender.failures.fatal)
        return self._accumulator

    # -- a named producer ---------------------------------------------------------------------------------------------

    @property
    def is_first_attempt(self) -> bool:
        """Whether this named producer is the first attempt of its work epoch. UsageError without a `producer_name`."""
        return self._identity().producer_epoch == 0

    @property
    def note(self) -> bytes | None:
        """The `producer_note` that the first attempt of this work epoch left; None if it left none. UsageError without a
        `producer_name`."""
        return self._identity().note

    @property
    def producer_id(self) -> int:
        """The producer id in the batches of this named producer. UsageError without a `producer_name`."""
        return self._identity().producer_id

    def _identity(self) -> ProducerIdentity:
        self._running()
        if not self._is_named or self._sender is None:
            raise UsageError("only a producer with a producer_name has earlier attempts")
        return self._sender.identity

    async def written(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]],
        *,
        alone: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, int]:
        """By partition, the number of committed rows of this work epoch, whichever attempt wrote them. The next record that is
        sent to a partition is the row after them. It waits until the rows that it finds are committed, at most `timeout_ms` (by
        default `max_block_ms`); RequestTimeout after that. ProducerFenced if a newer attempt or a higher work epoch has written
        there.

        Call it before the first record, and again after a delivery failed; UsageError if records of these partitions still wait
        (`flush` first). `alone`: also wait until no earlier attempt can write to these partitions. Without it, an earlier attempt
        can write there until the first batch of this producer is appended. An attempt that sends rows to other partitions than
        the earlier attempts needs `alone`."""
        accumulator = self._running()
        assert self._sender is not None
        assert self._cluster is not None
        if not self._is_named:
            raise UsageError("only a producer with a producer_name can ask what was written before it")
        return await resume_after_written_rows(
            list(dict.fromkeys(checked_partitions(partitions))),
            self._cluster,
            accumulator,
            self._sender,
            self.partitions_for,
            alone=alone,
            timeout_ms=self.options.max_block_ms if timeout_ms is None else checked_time("timeout_ms", timeout_ms),
        )

    # -- transactions -------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionBlock[Self]:
        """`async with producer.transaction():` begins a transaction, commits it at the end, and aborts it if an exception or a
        cancellation ends the block; the exception is raised again. `read_committed` consumers see all records of the block, or
        none. After the block no transaction is open, and the next one may begin, unless the error means that the producer cannot
        go on:

        - TransactionAbortable, or any error that is not below: the transaction was aborted. The same block may be run again.
        - ProducerFenced (another producer has the id, or it expired), TransactionFailed: start over with a new producer.
        - TransactionOutcomeUnknown of the commit: call `commit_transaction` again to get the outcome, or start over.

        UsageError without a `transactional_id`, or while a transaction is open. Records that are sent in the block need not be
        awaited: if one was not delivered, the commit raises TransactionAbortable. The records of one producer are all in its one
        transaction, so tasks that share a producer share the transaction, too."""
        return TransactionBlock(self, self._running_transactions())

    async def begin_transaction(self) -> None:
        """Begin a transaction, which `commit_transaction` or `abort_transaction` ends. This call sends nothing. UsageError while
        a transaction is open. `transaction` begins and ends one for a block of code."""
        await self._running_transactions().begin()

    async def commit_transaction(self) -> None:
        """Wait until every record is acknowledged, and commit the transaction. When it returns, the transaction is committed for
        good; consumers see its records a moment later.

        TransactionAbortable if a record was not delivered, or the coordinator has aborted the transaction: abort it.
        TransactionOutcomeUnknown if the coordinator does not answer within `max_block_ms`: call it again, or start a new
        producer. ProducerFenced or TransactionFailed: start a new producer. If the call is cancelled before the commit was sent,
        the transaction stays open; if after that, calling it again returns the outcome."""
        await self._running_transactions().commit()

    async def abort_transaction(self) -> None:
        """Drop the records that wait, and abort the transaction: `read_committed` consumers see none of its records. The receipts
        of the records that wait raise DeliveryFailed. The errors are those of `commit_transaction`, except
        TransactionAbortable."""
        await self._running_transactions().abort()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[Any, int | OffsetAndMetadata | tuple[int, str]],
        consumer: GroupMembership | ConsumerGroupMetadata | str,
    ) -> None:
        """Commit the offsets of a consumer as part of the transaction: they are committed if, and only if, the records that the
        program sent in the transaction are. `offsets`: as for `Consumer.commit`, the offset of the next record to read of each
        partition.

        `consumer`: the consumer that has read the records, with `enable_auto_commit=False`. The coordinator rejects the offsets
        of a consumer that has lost its partitions (KIP-447). If the consumer runs elsewhere, pass its `group_metadata()`; if the
        partitions are assigned by hand, only the id of the group.

        TransactionAbortable if the offsets are not part of the transaction, or if that is not known after `max_block_ms`: abort
        the transaction. The owner of the partitions then reads the records again (`__cause__` is CommitFailed if another consumer
        owns them now)."""
        transactions = self._running_transactions()
        checked = checked_commits(offsets)
        await transactions.send_offsets(checked, _membership(consumer, checked))

    def _on_refused(self, error: StrandlineError) -> None:
        """A record failed before it was handed over, although its caller on another thread has a receipt: the transaction cannot
        be committed."""
        if self._transactions is not None:
            self._transactions.on_failed(error)

    def _running_transactions(self) -> Transactions:
        self._running()
        if self._transactions is None:
            raise UsageError(NOT_TRANSACTIONAL)
        return self._transactions

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every record that was handed over is acknowledged or has failed; RequestTimeout after `timeout_ms` (by
        default `delivery_timeout_ms`). It does not raise for a record that failed: that record's receipt does."""
        accumulator = self._running()
        wait_ms = self.options.delivery_timeout_ms if timeout_ms is None else checked_time("timeout_ms", timeout_ms)
        await flush(accumulator, wait_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions, sorted. It waits for metadata; RequestTimeout after `max_block_ms`, UnknownTopic
        if the cluster has no such topic."""
        accumulator = self._running()
        assert self._cluster is not None
        info = await self._cluster.metadata.topic(topic, self.options.max_block_ms)
        accumulator.update_topic(topic, max(info.partitions) + 1, info.available)
        return sorted(info.partitions)

    def health(self) -> dict[str, Any]:
        """`state` ("not started", "stopped", "ok" or "degraded"), `brokers_connected`, `oldest_record_ms` (age of the oldest
        batch that is not acknowledged; 0 if all records still wait for their topic's metadata) and `last_error`; of a
        transactional producer also `transaction`, such as "ready" or "in transaction"."""
        if self._stopped or self._sender is None or self._cluster is None or self._home is None:
            return {"state": "stopped" if self._stopped else "not started"}
        self._home.check()
        waits_ms = self._accumulator.oldest_age_s(asyncio.get_running_loop().time()) * 1000
        error = self._cluster.metadata.last_error or self._sender.identity.last_error
        return {
            "state": "degraded" if error is not None or waits_ms > self.options.linger_ms + 5000 else "ok",
            "brokers_connected": self._cluster.connections.brokers_connected,
            "oldest_record_ms": waits_ms,
            "last_error": str(error) if error is not None else self._sender.failures.last_error,
            **({} if self._transactions is None else {"transaction": self._transactions.state.state.value}),
        }

    def metrics(self) -> dict[str, float]:
        """Counters since the start (`requests`, `batches`, `records`, `bytes`, `retries`, `conflicts`, `failed_records`,
        `metadata_refreshes`); the bytes (`buffered_bytes`), batches, requests and calls that wait now;
        `produce_throttle_time_avg` and `_max`, in ms: how long brokers made this producer wait because of quotas. A transactional
        producer also has `transactions_committed` and `transactions_aborted`."""
        if self._sender is None or self._cluster is None:
            return {}
        return {
            **self._sender.metrics(),
            "buffered_bytes": self._accumulator.buffered_bytes,
            "incomplete_batches": len(self._accumulator.incomplete),
            "calls_waiting": len(self._call_order),
            "metadata_refreshes": self._cluster.metadata.refreshes,
            **({} if self._transactions is None else self._transactions.metrics()),
        }


def _membership(
    consumer: GroupMembership | ConsumerGroupMetadata | str, offsets: Iterable[TopicPartition]
) -> Callable[[], TransactionMember]:
    """A function that returns the membership with which a transaction commits offsets; called before each attempt."""
    if isinstance(consumer, str) and consumer:
        consumer = ConsumerGroupMetadata(consumer)
    if isinstance(consumer, ConsumerGroupMetadata):
        member = TransactionMember(consumer, {}, is_live=False)
        return lambda: member
    ask: Callable[[Iterable[TopicPartition]], TransactionMember] | None = getattr(consumer, "_transaction_member", None)
    if ask is None:
        raise UsageError(f"offsets are committed for a consumer, its group_metadata(), or a group id, not {consumer!r}")
    return partial(ask, offsets)
