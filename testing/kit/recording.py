"""A producer, a consumer and an admin client that record what they send, read and change in a history, which `check` can judge.

They are the production clients with the same options, plus the history. A record is identified by the bytes of its value, so
values must be unique in a history; put a number into them. The outcome of a send is recorded when its batch is done, even if
the test does not await the receipt. After an error it is unknown whether the record was written (`info`).

A tombstone has no value. So in a compacted topic the producer adds a header to it, TOMBSTONE_HEADER, whose text stands for the
value in the history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from strandline.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OffsetConflict,
    Producer,
    Receipt,
    Receipts,
    TokenFenced,
    TopicDescription,
    TopicPartition,
)
from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.fetch_state import AwaitReset
from strandline.client.consumer.partition_state import EARLIEST, PartitionState
from strandline.client.consumer.records import decode_records
from strandline.client.producer.batch import Batch, Headers
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.testing.history import History, Send
from strandline.testing.kit.policies import DECIDING, Policies

FINAL = "final read"
TOMBSTONE_HEADER = "strandline.testing.tombstone"


class RecordingProducer(Producer[Any, Any]):
    """A `Producer` that records its sends and their outcomes in `history`, as the process `name`. `options`: of `Producer`."""

    def __init__(self, history: History, name: str, *, policies: Policies | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.history = history
        self.name = name
        self._policies = Policies() if policies is None else policies
        self._takes_bare = False  # Disables the fast path that skips `_send_any`, where every record is recorded.
        self._noted = 0
        """Number of sends recorded so far."""

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        key: Any = None,
        partition: int | None = None,
        expect_offset: int | None = None,
        fencing_token: int | None = None,
    ) -> Receipts:
        at, before = self.history.now(), self._noted
        conditions = {"expect_offset": expect_offset, "fencing_token": fencing_token}
        receipts = super().send_many(topic, values, key=key, partition=partition, **conditions)
        if self._noted == before:  # The values did not pass `_send_any` one by one.
            for value, receipt in zip(values, receipts, strict=True):
                self._note(topic, value, partition, receipt, at, key, fencing_token=fencing_token)
        return receipts

    async def send_columns(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[Headers | None] | None = None,
        *,
        partition: int | None = None,
    ) -> Receipts:
        """Send the rows one by one, so that each is recorded when it is handed over."""
        receipts = Receipts()
        for value, key, own in zip(values, keys or repeat(None), headers or repeat(None), strict=False):
            receipts.add_run(await self.send(topic, value, key, partition, own), 1)
        return receipts

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
        at = self.history.now()
        name = None
        if value is None and key is not None and topic in self._policies:
            name = b"tombstone %d of %s" % (self._noted, self.name.encode())
            headers = [*(headers or ()), (TOMBSTONE_HEADER, name)]
        receipt = super()._send_any(
            topic, value, key, partition, headers, timestamp_ms, expect_offset, fencing_token, transaction
        )
        self._note(topic, value, partition, receipt, at, key, name, fencing_token)
        return receipt

    def _note(
        self,
        topic: str,
        value: Any,
        partition: int | None,
        receipt: Receipt,
        at: float,
        key: Any = None,
        tombstone: bytes | None = None,
        fencing_token: int | None = None,
    ) -> None:
        """Record the start of a send. `tombstone`: the name of the record if it is a tombstone. `fencing_token`: None for that of
        the options."""
        self._noted += 1
        known = None if partition is None else (topic, partition)
        options = self.options
        send = self.history.invoke(
            self.name,
            known,
            _bytes_of(value, options.value_serializer) if tombstone is None else tombstone,
            acks=options.required_acks,
            idempotent=options.idempotent,
            key=_bytes_of(key, options.key_serializer),
            tombstone=tombstone is not None,
            fencing_token=options.fencing_token if fencing_token is None else fencing_token,
            at=at,
        )
        self._settle_when_done(send, receipt)

    def _settle_when_done(self, send: Send, receipt: Receipt) -> None:
        """Record the outcome when the receipt is done. Until then the receipt may move to another batch."""
        if receipt.done:
            self._settle(send, receipt)
        else:
            receipt.batch.waiters.append(partial(self._settle_when_done, send, receipt))

    def _settle(self, send: Send, receipt: Receipt) -> None:
        try:
            metadata = receipt.result()
        except (OffsetConflict, TokenFenced):
            send.fail()
        except Exception:
            if send.partition is None and isinstance(receipt.batch, Batch):
                send.partition = (receipt.batch.topic, receipt.batch.partition)
            send.info()
        else:
            send.ok(metadata.offset, partition=(metadata.topic, metadata.partition))


def _bytes_of(given: Any, serializer: Callable[[Any], Any] | None) -> Any:
    if serializer is not None and given is not None:
        given = serializer(given)
    return given if given is None or type(given) is bytes else bytes(given)


def name_of(value: Any, headers: Headers) -> Any:
    """The name of this record in a history: its value, or of a tombstone the text of its header, which is unique too."""
    if value is not None:
        return value
    return next((bytes(text) for name, text in headers if name == TOMBSTONE_HEADER and text is not None), None)


class RecordingConsumer(Consumer[Any, Any]):
    """A `Consumer` that records in `history`, as the process `name`, every record that it returns. `options`: of `Consumer`."""

    def __init__(self, history: History, name: str, *topics: str, **options: Any) -> None:
        super().__init__(*topics, **options)
        self.history = history
        self.name = name
        self._raw: dict[tuple[TopicPartition, int], Any] = {}
        """Bytes of the values that were deserialized and not returned yet."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        polled = await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        for place, records in polled.items():
            self._note(place, records)
        return polled

    async def getone(self, *partitions: TopicPartition, timeout_ms: float | None = None) -> ConsumerRecord[Any, Any]:
        record = await super().getone(*partitions, timeout_ms=timeout_ms)
        self._note(TopicPartition(record.topic, record.partition), [record])
        return record

    async def fetch_batches(
        self,
        *partitions: TopicPartition,
        timeout_ms: float = 0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[TopicPartition, list[FetchedBatch]]:
        polled = await super().fetch_batches(*partitions, timeout_ms=timeout_ms, max_records=max_records, max_bytes=max_bytes)
        for place, batches in polled.items():
            for batch in batches:
                seen = [(offset, _name_in(batch, row)) for row, offset in enumerate(batch.offsets)]
                self.history.poll(self.name, tuple(place), seen, leader_epoch=batch.leader_epoch)
        return polled

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[Any, Any]]:
        async for record in super().__aiter__():
            self._note(TopicPartition(record.topic, record.partition), [record])
            yield record

    def _note(self, place: TopicPartition, records: list[ConsumerRecord[Any, Any]]) -> None:
        seen = []
        for record in records:
            value = self._raw.pop((place, record.offset), record.value)
            seen.append((record.offset, name_of(value, record.headers)))
        self.history.poll(self.name, tuple(place), seen, leader_epoch=records[-1].leader_epoch)

    def _decode(
        self, place: TopicPartition, buf: Buffer, pos: int, header: BatchHeader, offset: int
    ) -> list[ConsumerRecord[Any, Any]]:
        if self.options.value_deserializer is not None:
            for record in decode_records(place, buf, pos, header, from_offset=offset, check_crc=False):
                self._raw[place, record.offset] = record.value
        return super()._decode(place, buf, pos, header, offset)

    def _begin(self, state: PartitionState) -> None:
        if state.fetch_state != AwaitReset(EARLIEST):
            self.history.seek(self.name, tuple(state.tp))
        super()._begin(state)

    def _move(self, state: PartitionState, offset: int, leader_epoch: int = -1) -> None:
        self.history.seek(self.name, tuple(state.tp), offset)
        super()._move(state, offset, leader_epoch)


def _name_in(batch: FetchedBatch, row: int) -> Any:
    headers = () if batch.headers is None else batch.headers[row]
    return name_of(batch.values[row], headers)


class RecordingAdmin(Admin):
    """An `Admin` that notes in `policies` and `history` which topics are compacted, before and after each change that may decide
    it. `options`: of `Admin`."""

    def __init__(self, policies: Policies, history: History, **options: Any) -> None:
        super().__init__(**options)
        self._policies = policies
        self._history = history

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_ms: float = 30_000
    ) -> list[TopicDescription]:
        given = [topics] if isinstance(topics, NewTopic | str) else list(topics)
        created = await super().create_topics(given, validate_only=validate_only, timeout_ms=timeout_ms)
        if created:
            configured = [topic for topic in given if isinstance(topic, NewTopic) and DECIDING.intersection(topic.configs or ())]
            await self._policies.look(self, [topic.name for topic in configured], self._history)
        return created

    async def alter_configs(
        self,
        resource_type: str,
        name: str | int,
        configs: Mapping[str, str | int | float | bool | None],
        *,
        append: Mapping[str, str | Iterable[str]] | None = None,
        subtract: Mapping[str, str | Iterable[str]] | None = None,
        validate_only: bool = False,
        timeout_ms: float = 30_000,
    ) -> list[str]:
        changed = [*configs, *(append or {}), *(subtract or {})]
        await self._look(resource_type, name, changed)
        warnings = await super().alter_configs(
            resource_type,
            name,
            configs,
            append=append,
            subtract=subtract,
            validate_only=validate_only,
            timeout_ms=timeout_ms,
        )
        await self._look(resource_type, name, changed)
        return warnings

    async def _look(self, resource_type: str, name: str | int, configs: Iterable[str]) -> None:
        if DECIDING.isdisjoint(configs):
            return
        topics = [str(name)] if resource_type == "topic" else await self.list_topics()
        await self._policies.look(self, topics, self._history)


def namer() -> Callable[[str], str]:
    """A function that numbers names by kind: "producer-1", "producer-2", "consumer-1"."""
    counts: dict[str, int] = {}

    def name(kind: str) -> str:
        counts[kind] = counts.get(kind, 0) + 1
        return f"{kind}-{counts[kind]}"

    return name
