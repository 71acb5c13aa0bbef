"""The producer without asyncio. Any number of threads may call it.

`send` costs about as much as a list append (mailbox.py). It takes the long way, a call on the loop for whose result it waits, if
there may be an error that only the loop can detect: the first record of a topic (which may not exist), a partition above those
that were known, an expected offset, a fencing token, a record that may be too large. So the errors of `send` are raised by
`send`, as in the client for asyncio. Serializers run on the thread that sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from strandline.client.arguments import TIMESTAMP_MAX, checked_commits, checked_name, checked_time, checked_whole
from strandline.client.consumer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, TransactionMember
from strandline.client.errors import ClientClosed, RequestTimeout, UsageError
from strandline.client.option_docs import documents
from strandline.client.options import PlainProducerKeywords, ProducerKeywords, ProducerOptions, Serializer, parse_options
from strandline.client.producer import receipts as originals
from strandline.client.producer import transactions as originals_of_transactions
from strandline.client.producer.batch import Headers
from strandline.client.producer.named_producer import NEEDS_PARTITION
from strandline.client.producer.producer import STOP_AFTER_ERROR_MS, GroupMembership
from strandline.client.producer.producer import Producer as AsyncProducer
from strandline.client.producer.receipts import RecordMetadata
from strandline.client.producer.record_fields import checked_headers, serialized, to_bytes
from strandline.client.producer.record_sizes import RICH_OVERHEAD, headers_size_max
from strandline.client.producer.undelivered import Undelivered
from strandline.client.sync.calls import ProducerCalls
from strandline.client.sync.mailbox import Mailbox
from strandline.client.sync.receipts import Parcel, Receipt, Receipts
from strandline.client.type_variables import K, V
from strandline.protocol.doors import Doors
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import HEADER_SIZE

logger = get_logger(__name__)
T = TypeVar("T")
P = TypeVar("P", bound="Producer[Any, Any]")


@documents(ProducerOptions)
class Producer(ProducerCalls, Generic[K, V]):
    """Sends records to the leaders of their partitions, in batches.

        with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
            where = producer.send_and_wait("orders", b"2 tea", key=b"alice")

    Start it with `with`, or with `start()` and `stop()`. Several threads may call it; the records of one thread to one
    partition are in the log in the order of its calls. By default it is idempotent (KIP-98, KIP-679): each record is written
    once and in order, also when a request is sent again."""

    _NAME = "producer"

    @overload
    def __init__(
        self: Producer[bytes, bytes],
        *,
        doors: Doors | None = None,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        doors: Doors | None = None,
        key_serializer: None = None,
        value_serializer: Callable[[V], bytes | None],
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        doors: Doors | None = None,
        key_serializer: Callable[[K], bytes | None],
        value_serializer: None = None,
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        doors: Doors | None = None,
        key_serializer: Callable[[K], bytes | None],
        value_serializer: Callable[[V], bytes | None],
        **options: Unpack[PlainProducerKeywords],
    ) -> None: ...

    def __init__(self, *, doors: Doors | None = None, **options: Unpack[ProducerKeywords]) -> None:
        checked = parse_options(ProducerOptions, options)
        self._key_serializer: Serializer | None = checked.key_serializer
        self._value_serializer: Serializer | None = checked.value_serializer
        rest: dict[str, Any] = {
            name: value for name, value in options.items() if name not in ("key_serializer", "value_serializer")
        }
        super().__init__(AsyncProducer[bytes, bytes](doors=doors, **rest))
        self.options = self._client.options
        self._block_s = checked.max_block_ms / 1000
        self._record_bytes_max = checked.max_request_size - HEADER_SIZE
        self._partitions: dict[str, int] = {}
        """The number of partitions of each topic that the client for asyncio knows, as of the first record. It only grows."""
        self._plain: dict[str, int] = {}
        """The topics to which a plain value may be posted at once (those of `_partitions`, or none) -> the size below which a
        value is accepted."""
        self._takes_plain = self._value_serializer is None and checked.partitioner is None and checked.producer_name is None
        self._mailbox: Mailbox

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the cluster; AuthenticationFailed if it rejects the client's credentials; NoBrokersAvailable if no bootstrap
        server answers within `connect_timeout_ms`. A named producer takes its name within `max_block_ms` (RequestTimeout);
        ProducerFenced if the name has a higher work epoch. A transactional producer takes its transactional id within
        `max_block_ms` (RequestTimeout): earlier producers with the id are fenced, and the transaction that they have left open
        is aborted. UsageError if the producer was started before."""
        super().start()
        thread = self._running()
        thread.on_forked = self._plain.clear
        thread.at_exit = self._stop_at_exit

    async def _begin(self) -> None:
        await self._client.start()
        self._mailbox = Mailbox(self._client, self._running())

    def stop(self, timeout_ms: float | None = None) -> Undelivered:
        """Deliver the waiting records, then close. Returns the records that were not acknowledged, by partition, and is false if
        there are none. The receipts of records that still waited raise ClientClosed, which says whether the record may be in the
        log.

        Waits at most `timeout_ms`. By default that is `delivery_timeout_ms`; one second if `stop` is called while an exception is
        handled (as in a `finally` clause), unless an exception was being handled already when `start` was called. The exception
        because of which the producer stops gets a note that names the partitions and the numbers of records."""
        return self._stop_because(timeout_ms, self._cause())

    def _exit(self, error: BaseException | None) -> None:
        self._stop_because(None, error)

    def _stop_at_exit(self) -> None:
        """Deliver the records of a program that ends without `stop`, for at most a second, and log those that were not
        delivered."""
        undelivered = self._stop_because(min(STOP_AFTER_ERROR_MS, self.options.delivery_timeout_ms), None)
        if undelivered.records:
            reason = f"the program ended without stop(): {undelivered}"
            logger.warning("producer.stopped_with_undelivered", records=undelivered.records, reason=reason)

    def _stop_because(self, timeout_ms: float | None, error: BaseException | None) -> Undelivered:
        if timeout_ms is None:
            limit_ms = self.options.delivery_timeout_ms
            timeout_ms = limit_ms if error is None else min(STOP_AFTER_ERROR_MS, limit_ms)
        timeout_ms = checked_time("timeout_ms", timeout_ms)
        self._plain = {}
        return self._stop(lambda: self._end(timeout_ms, error), timeout_ms / 1000, Undelivered())

    async def _end(self, timeout_ms: float, error: BaseException | None) -> Undelivered:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        closed = ClientClosed("the producer was stopped")
        self._mailbox.refuse(closed)
        try:
            async with asyncio.timeout_at(deadline):
                await self._mailbox.emptied()
        except TimeoutError:
            pass
        left = self._mailbox.close(ClientClosed("the producer stopped before there was room for the record; it was never sent"))
        undelivered = await self._client._stop(max(0.0, (deadline - loop.time()) * 1000), error)
        for topic, records in left.by_partition.items():
            undelivered.add(topic, records, left.reason, may_be_written=False)
        undelivered.failed += left.failed
        return undelivered

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
        """Hand over one record and return at once; ask the receipt for its `result()`, which waits for the acknowledgement.
        BufferFull if there is no room; RecordTooLarge; UsageError for a value of the wrong type. All are raised before anything
        is queued.

        The arguments are those of `send`."""
        if topic in self._plain and type(value) is bytes:
            is_plain = key is None and partition is None and headers is None and timestamp_ms is None
            if is_plain and expect_offset is None and fencing_token is None and len(value) < self._plain[topic]:
                return self._mailbox.post_value(topic, value, 0.0)
        arguments = topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token
        return self._send_any(False, *arguments)

    def send(
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
        `max_block_ms`. It returns the receipt of a record that is handed over, but not acknowledged yet: ask it for its
        `result()`, or `flush`. UnknownTopic, NoBrokersAvailable or RequestTimeout without metadata; BufferFull without room;
        RecordTooLarge; UsageError for a value of the wrong type.

        `key`, `value`: bytes or None, or what the serializer takes; `headers`: a list of (str, bytes) pairs. `partition`: by
        default a hash of the key chooses it, as in Kafka's Java client; without a key, the producer chooses. `timestamp_ms`:
        milliseconds since 1970 (UTC), by default now. `expect_offset`, `fencing_token`: conditions for the record, as for the
        producer for asyncio; such a call waits until the records before it are handed over."""
        if topic in self._plain and type(value) is bytes:
            is_plain = key is None and partition is None and headers is None and timestamp_ms is None
            if is_plain and expect_offset is None and fencing_token is None and len(value) < self._plain[topic]:
                return self._mailbox.post_value(topic, value, self._block_s)
        arguments = topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token
        return self._send_any(True, *arguments)

    def _send_any(
        self,
        waits: bool,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        expect_offset: int | None,
        fencing_token: int | None,
    ) -> Receipt:
        self._running().check()
        self._check_transaction()
        if self.options.producer_name is not None and key is None and partition is None:
            raise UsageError(NEEDS_PARTITION)
        value = _encoded("value", value, self._value_serializer)
        key = _encoded("key", key, self._key_serializer)
        headers = checked_headers(headers)
        if partition is not None:
            partition = checked_whole("a partition", partition)
        if timestamp_ms is not None:
            timestamp_ms = checked_whole("timestamp_ms", timestamp_ms, -1, TIMESTAMP_MAX)
        size = RICH_OVERHEAD + len(value or b"") + len(key or b"") + headers_size_max(headers or ())
        arguments = value, key, partition, headers, timestamp_ms
        if topic not in self._partitions and waits:
            self._learn(topic)
        is_usual = expect_offset is None and fencing_token is None and self.options.partitioner is None
        if is_usual and size <= self._record_bytes_max and (partition or 0) < self._partitions.get(topic, 0):
            block_s = self._block_s if waits else 0.0
            return self._mailbox.post_record(topic, value, arguments[1:], size, block_s)
        return self._run(self._send_now, waits, topic, *arguments, expect_offset, fencing_token)

    def _learn(self, topic: str) -> None:
        """Wait for the metadata of a topic; UnknownTopic if there is none."""
        count = len(self.partitions_for(checked_name(topic)))
        self._partitions[topic] = count
        if self._takes_plain:
            self._plain[topic] = self._record_bytes_max - RICH_OVERHEAD

    def _check_transaction(self) -> None:
        """Raise the error if the open transaction accepts no records, or no transaction is open."""
        transactions = self._client._transactions
        if transactions is not None:
            transactions.state.check_takes_records()

    async def _send_now(self, waits: bool, topic: str, *arguments: Any) -> Receipt:
        """On the loop: hand over a record whose errors the call must raise, after the records that were sent before it."""
        await self._mailbox.emptied()
        receipt = await self._client.send(topic, *arguments) if waits else self._client.send_nowait(topic, *arguments)
        return Receipt(Parcel(self._running(), [receipt]), 0)

    def send_and_wait(
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
        data = _encoded("value", value, self._value_serializer), _encoded("key", key, self._key_serializer)
        arguments = *data, partition, headers, timestamp_ms, expect_offset, fencing_token
        return self._run(self._behind, lambda: self._client.send_and_wait(topic, *arguments))

    async def _behind(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """On the loop: hand over the records that were sent before, and then do the work."""
        await self._mailbox.emptied()
        return await work()

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
        """Hand over many values at once, all or none (BufferFull). The `result()` of the receipts is a list of `BatchMetadata`,
        one for each run of records that went into one batch. With a key, a partition, a partitioner or a name, it calls
        `send_nowait` for one value after the other, and the values before a BufferFull are sent.

        With `expect_offset` or `fencing_token`, all values are one batch: all are written, side by side, or none.
        RecordTooLarge if together they do not fit `max_request_size`. The topic's `max.message.bytes` must allow the batch."""
        data = serialized("value", values, self._value_serializer)
        options: Any = {"partition": partition, "expect_offset": expect_offset, "fencing_token": fencing_token}
        options["key"] = _encoded("key", key, self._key_serializer)

        async def work() -> originals.Receipts:
            return self._client.send_many(topic, data, **options)

        return Receipts(self._running(), self._run(self._behind, work))

    def send_columns(
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
        data = serialized("value", values, self._value_serializer)
        data_keys = None if keys is None else serialized("key", keys, self._key_serializer)
        taken = self._run(self._behind, lambda: self._client.send_columns(topic, data, data_keys, headers, partition=partition))
        return Receipts(self._running(), taken)

    def wait_for_room(self, size: int | None = None, timeout_ms: float | None = None) -> None:
        """Wait until the buffer has room for `size` more bytes (by default, for a whole batch); BufferFull after `timeout_ms` (by
        default `max_block_ms`)."""
        self._run(self._behind, lambda: self._client.wait_for_room(size, timeout_ms))

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every record that was handed over is acknowledged or has failed; RequestTimeout after `timeout_ms` (by
        default `delivery_timeout_ms`). It does not raise for a record that failed: that record's receipt does."""
        self._run(self._flush, self.options.delivery_timeout_ms if timeout_ms is None else timeout_ms)

    async def _flush(self, timeout_ms: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + checked_time("timeout_ms", timeout_ms) / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self._mailbox.emptied()
        except TimeoutError:
            raise RequestTimeout("records still wait for room in buffer_memory", elapsed_ms=timeout_ms) from None
        await self._client.flush(max(0.0, (deadline - loop.time()) * 1000))

    # -- transactions -------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionBlock[Self]:
        """`with producer.transaction():` begins a transaction, commits it at the end, and aborts it if an exception ends the
        block; the exception is raised again. `read_committed` consumers see all records of the block, or none. The producer for
        asyncio describes what its errors mean. UsageError without a `transactional_id`, or while a transaction is open.

        The records of all threads that share the producer are in its one transaction. A thread that sends while another one ends
        the transaction makes it fail, or gets a UsageError."""
        return TransactionBlock(self, self._call(self._client.transaction))

    def begin_transaction(self) -> None:
        """Begin a transaction, which `commit_transaction` or `abort_transaction` ends. This call sends nothing. UsageError while
        a transaction is open. `transaction` begins and ends one for a block of code."""
        self._run(self._client.begin_transaction)
        self._on_begun()

    def _on_begun(self) -> None:
        """A transaction has begun: plain values may be posted at once again."""
        if self._takes_plain:
            self._plain = dict.fromkeys(self._partitions, self._record_bytes_max - RICH_OVERHEAD)

    def commit_transaction(self) -> None:
        """Wait until every record is acknowledged, and commit the transaction. When it returns, the transaction is committed
        for good; consumers see its records a moment later.

        TransactionAbortable if a record was not delivered, or the coordinator has aborted the transaction: abort it.
        TransactionOutcomeUnknown if the coordinator does not answer within `max_block_ms`: call it again, or start a new
        producer. ProducerFenced or TransactionFailed: start a new producer. If the call is interrupted before the commit was
        sent, the transaction stays open; if after that, calling it again returns the outcome."""
        self._plain = {}
        self._run(self._behind, self._client.commit_transaction)

    def abort_transaction(self) -> None:
        """Drop the records that wait, and abort the transaction: `read_committed` consumers see none of its records. The
        receipts of the records that wait raise DeliveryFailed. The errors are those of `commit_transaction`, except
        TransactionAbortable."""
        self._plain = {}
        self._run(self._ahead, self._client.abort_transaction)

    async def _ahead(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """On the loop: do the work, and then wait until the records that were sent before it have been rejected."""
        try:
            return await work()
        finally:
            await self._mailbox.emptied()

    def send_offsets_to_transaction(
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
        member = consumer
        if not isinstance(consumer, (str, ConsumerGroupMetadata)) and hasattr(consumer, "_transaction_member"):
            member = _Member(consumer, checked_commits(offsets))
        self._run(self._behind, lambda: self._client.send_offsets_to_transaction(offsets, member))


class _Member:
    """The membership with which a consumer on another thread commits: its answer, or its error, as of the call."""

    def __init__(self, consumer: GroupMembership, offsets: Iterable[TopicPartition]) -> None:
        self._error: StrandlineError | None = None
        self._member: TransactionMember | None = None
        try:
            self._member = consumer._transaction_member(offsets)
        except UsageError:
            raise
        except StrandlineError as e:
            self._error = e

    def _transaction_member(self, offsets: Iterable[TopicPartition]) -> TransactionMember:
        if self._member is None:
            assert self._error is not None, "there is one or the other"
            raise self._error
        return self._member


class TransactionBlock(Generic[P]):
    """The result of `Producer.transaction`: `with` begins a transaction, and commits or aborts it."""

    def __init__(self, producer: P, block: originals_of_transactions.TransactionBlock[AsyncProducer[bytes, bytes]]) -> None:
        self._producer = producer
        self._block = block
        self._task: asyncio.Task[Any] | None = None
        """The last task that has begun or ended the block on the loop."""

    def __enter__(self) -> P:
        self._run(self._block.__aenter__)
        self._producer._on_begun()
        return self._producer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._producer._plain = {}
        way = self._producer._behind if error is None else self._producer._ahead
        self._run(lambda: way(lambda: self._block.__aexit__(kind, error, tb)))

    def _run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run this on the loop. If an exception such as KeyboardInterrupt ends the wait, the transaction is aborted, unless it
        was committed already."""
        try:
            self._producer._run(self._tracked, work)
        except BaseException as e:
            with suppress(StrandlineError):
                self._producer._run(self._abandon, e)
            raise

    async def _tracked(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._task = asyncio.current_task()
        await work()

    async def _abandon(self, error: BaseException) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._producer._ahead(lambda: self._block.abandon(error))


def _encoded(what: str, data: Any, serializer: Serializer | None) -> bytes | None:
    """A key or a value as bytes."""
    return to_bytes(what, data if serializer is None or data is None else serializer(data))
