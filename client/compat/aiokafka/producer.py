"""`AIOKafkaProducer` of aiokafka 0.14, on top of `Producer`.

Intended differences: without `acks` and `enable_idempotence` the producer has this client's defaults, `acks="all"` and
idempotence, so that no acknowledged record is lost and none is written twice. For aiokafka's defaults set `acks=1` and
`enable_idempotence=False`. A record that is not acknowledged fails after `request_timeout_ms`, or in an idempotent producer after
two minutes (in aiokafka never, so that its `stop` may hang while the brokers are down, #1101)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from strandline.client.compat.aiokafka import options as mapping
from strandline.client.compat.aiokafka.batch import BatchBuilder
from strandline.client.compat.aiokafka.errors import (
    IllegalOperation,
    MessageSizeTooLargeError,
    translated,
)
from strandline.client.compat.aiokafka.partitioner import DefaultPartitioner
from strandline.client.compat.aiokafka.structs import RecordMetadata, TopicPartition
from strandline.client.errors import ClientClosed, RecordTooLarge, UsageError
from strandline.client.producer import receipts as originals
from strandline.client.producer.producer import Producer
from strandline.client.producer.transactions import TransactionBlock
from strandline.protocol.errors import StrandlineError

IDEMPOTENT_DELIVERY_MS = 120_000
_numbers = itertools.count(1)


class AIOKafkaProducer:
    """Sends records; see `strandline.Producer` for the meaning of the options, and the head of this module for the differences
    from aiokafka."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str | None = None,
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 40_000,
        api_version: str | None = None,
        acks: int | Literal["all"] | None = None,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        compression_type: Literal["gzip", "snappy", "lz4", "zstd"] | None = None,
        max_batch_size: int = 16_384,
        partitioner: Callable[[bytes | None, list[int], list[int]], int] | None = None,
        max_request_size: int = 1_048_576,
        linger_ms: float = 0,
        retry_backoff_ms: int = 100,
        security_protocol: str = "PLAINTEXT",
        ssl_context: Any = None,
        connections_max_idle_ms: int | None = 540_000,
        enable_idempotence: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        given["client_id"] = client_id or f"aiokafka-producer-{next(_numbers)}"
        mapping.check_loop(loop, api_version)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._acks = _acks(acks, True if transactional_id is not None else enable_idempotence)
        self._max_batch_size = max_batch_size
        self._is_transactional = transactional_id is not None
        self._producer = Producer(**_options(given, self._acks))
        self._closed = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the cluster. KafkaConnectionError if no bootstrap server answers."""
        try:
            await self._producer.start()
        except StrandlineError as e:
            raise translated(e) from e

    async def stop(self) -> None:
        """Deliver the waiting records, then close. It waits at most as long as a record may take (see the head of this module),
        or a second if an exception is being handled. The futures of records that were not delivered raise their errors, which are
        logged."""
        if not self._closed:
            self._closed = True
            await self._producer.stop()

    async def flush(self) -> None:
        """Wait until every record is acknowledged or has failed."""
        try:
            await self._producer.flush()
        except StrandlineError as e:
            raise translated(e) from e

    def health(self) -> dict[str, Any]:
        """The same as `Producer.health`; aiokafka has no such call."""
        return self._producer.health()

    def metrics(self) -> dict[str, float]:
        """The same as `Producer.metrics`; aiokafka has no such call."""
        return self._producer.metrics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    # -- records ------------------------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions. UnknownTopicOrPartitionError."""
        try:
            return set(await self._producer.partitions_for(topic))
        except StrandlineError as e:
            raise translated(e) from e

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand over one record; the future has its metadata when it is acknowledged (None with `acks=0`). KafkaTimeoutError
        without room for `request_timeout_ms`, UnknownTopicOrPartitionError, MessageSizeTooLargeError."""
        if value is None and key is None:
            raise AssertionError("a record needs a key or a value")
        key_bytes = key if self._key_serializer is None else self._key_serializer(key)
        value_bytes = value if self._value_serializer is None else self._value_serializer(value)
        self._check_in_transaction()
        try:
            receipt = await self._producer.send(
                topic, value_bytes, key_bytes, partition, None if headers is None else list(headers), timestamp_ms
            )
        except RecordTooLarge as e:
            raise MessageSizeTooLargeError(str(e)) from e
        except StrandlineError as e:
            raise translated(e) from e
        return self._future(receipt)

    def _future(self, receipt: originals.Receipt) -> asyncio.Future[Any]:
        """A future for the metadata. Cancelling it does not withdraw the record."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(where: originals.RecordMetadata | None, error: StrandlineError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(translated(error))
            elif where is not None:
                future.set_result(None if self._acks == 0 else _metadata(where))

        receipt.on_delivery(settle)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> RecordMetadata:
        """Hand over one record, and wait until it is acknowledged."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    def create_batch(self) -> BatchBuilder:
        """An empty batch, to be filled and passed to `send_batch`."""
        return BatchBuilder(self._max_batch_size, self._key_serializer, self._value_serializer)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        """Hand over the records of a batch, and close it; the future has the metadata of the first record.

        The records have consecutive offsets only if nothing else is sent to the partition meanwhile. They may be in several
        batches of the log, because of their timestamps or sizes. AssertionError if the batch is empty."""
        self._check_in_transaction()
        batch.close()
        receipts: list[originals.Receipt] = []
        try:
            for record in batch.records:
                receipts.append(await self._producer.send(topic, *record.split(partition)))
        except StrandlineError as e:
            raise translated(e) from e
        if not receipts:
            raise AssertionError("the batch is empty")
        return self._future_of_all(receipts)

    def _future_of_all(self, receipts: Sequence[originals.Receipt]) -> asyncio.Future[RecordMetadata]:
        first, *rest = [self._future(receipt) for receipt in receipts]
        if not rest:
            return first

        async def all_done() -> RecordMetadata:
            results: list[RecordMetadata] = await asyncio.gather(first, *rest)
            return results[0]

        return asyncio.ensure_future(all_done())

    # -- transactions -------------------------------------------------------------------------------------------------

    def _check_in_transaction(self) -> None:
        if self._is_transactional and self._producer.health().get("transaction") == "ready":
            raise IllegalOperation("a producer with a transactional_id sends in a transaction only")

    def _check_transactional(self) -> None:
        if not self._is_transactional:
            raise IllegalOperation("a producer without transactional_id has no transactions")

    async def begin_transaction(self) -> None:
        """Begin a transaction. IllegalOperation without a `transactional_id`, or while one is open."""
        self._check_transactional()
        await _translating(self._producer.begin_transaction())

    async def commit_transaction(self) -> None:
        """Wait for the records, and commit. Raises the error of a record that was not delivered, ProducerFenced, or
        KafkaTimeoutError."""
        self._check_transactional()
        await _translating(self._producer.commit_transaction())

    async def abort_transaction(self) -> None:
        """Drop the records that wait, and abort."""
        self._check_transactional()
        await _translating(self._producer.abort_transaction())

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group_id: str) -> None:
        """Commit these offsets of a group with the transaction. As in aiokafka, the request names no member, so the coordinator
        cannot check that the consumer still has the partitions (KIP-447); `Producer.send_offsets_to_transaction` can."""
        self._check_transactional()
        if not group_id or not isinstance(group_id, str):
            raise ValueError(f"group_id is a text, not {group_id!r}")
        await _translating(self._producer.send_offsets_to_transaction(dict(offsets), group_id))

    def transaction(self) -> TransactionContext:
        """`async with producer.transaction():` begins a transaction, commits it at the end, and aborts it after an exception."""
        self._check_transactional()
        return TransactionContext(self._producer)


class TransactionContext:
    """The result of `AIOKafkaProducer.transaction`: a block in which a transaction is open."""

    def __init__(self, producer: Producer[Any, Any]) -> None:
        self._producer = producer
        self._block: TransactionBlock[Producer[Any, Any]] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._block = self._producer.transaction()
        except StrandlineError as e:
            raise translated(e) from e
        await _translating(self._block.__aenter__())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._block is not None, "it was entered"
        await _translating(self._block.__aexit__(kind, error, tb))


async def _translating(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except ClientClosed as e:
        raise translated(e) from e
    except UsageError as e:
        raise IllegalOperation(str(e)) from e
    except StrandlineError as e:
        raise translated(e) from e


def _acks(acks: int | str | None, enable_idempotence: bool | None) -> int | Literal["all"]:
    """`acks` in the form of this client. ValueError for values that aiokafka rejects."""
    if acks not in (0, 1, -1, "all", None) or isinstance(acks, bool):
        raise ValueError(f"acks is 0, 1 or 'all', not {acks!r}")
    if enable_idempotence and acks in (0, 1):
        raise ValueError(f"an idempotent producer needs acks='all', not {acks!r}")
    if acks is None:
        return 1 if enable_idempotence is False else "all"
    return "all" if acks == -1 or isinstance(acks, str) else acks


def _options(given: Mapping[str, Any], acks: int | Literal["all"]) -> dict[str, Any]:
    if given["compression_type"] not in ("gzip", "snappy", "lz4", "zstd", None):
        raise ValueError(f"compression_type is 'gzip', 'snappy', 'lz4', 'zstd' or None, not {given['compression_type']!r}")
    is_transactional = given["transactional_id"] is not None
    idempotent = is_transactional or (acks == "all" and given["enable_idempotence"] is not False)
    partitioner = given["partitioner"]
    delivery_ms = IDEMPOTENT_DELIVERY_MS if idempotent else given["request_timeout_ms"]
    options = {
        **mapping.common(given),
        "acks": acks,
        "enable_idempotence": idempotent,
        "compression_type": given["compression_type"],
        "batch_size": min(given["max_batch_size"], given["max_request_size"]),
        "max_request_size": given["max_request_size"],
        "linger_ms": given["linger_ms"],
        "partitioner": None if isinstance(partitioner, DefaultPartitioner) else partitioner,
        "delivery_timeout_ms": max(delivery_ms, round(given["linger_ms"])),
    }
    if is_transactional:
        options["transactional_id"] = given["transactional_id"]
        options["transaction_timeout_ms"] = given["transaction_timeout_ms"]
    if not idempotent:
        options["max_in_flight_requests_per_connection"] = 1  # A retry cannot change the order then, as in aiokafka.
    return options


def _metadata(where: originals.RecordMetadata) -> RecordMetadata:
    topic, partition, offset, timestamp = where
    return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, timestamp, 0, None)


__all__ = ["AIOKafkaProducer"]
