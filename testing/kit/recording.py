"""A producer and a consumer that record what they send and read in a history, which `check` can judge.

They are the production clients with the same options, plus the history. A record is identified by the bytes of its value, so
values must be unique in a history; put a number into them. The outcome of a send is recorded when its batch is done, even if
the test does not await the receipt. After an error it is unknown whether the record was written (`info`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from strandline.client import Consumer, ConsumerRecord, Producer, Receipt, Receipts, TopicPartition
from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.partition_state import EARLIEST, PartitionState
from strandline.client.consumer.records import decode_records
from strandline.client.producer.batch import Batch, Headers
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.testing.history import History, Send

FINAL = "final read"


class RecordingProducer(Producer):
    """A `Producer` that records its sends and their outcomes in `history`, as the process `name`. `options`: of `Producer`."""

    def __init__(self, history: History, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.history = history
        self.name = name
        self._takes_bare = False  # Disables the fast path that skips `_send_any`, where every record is recorded.
        self._noted = 0
        """Number of sends recorded so far."""

    def send_many(self, topic: str, values: Sequence[Any], *, key: Any = None, partition: int | None = None) -> Receipts:
        at, before = self.history.now(), self._noted
        receipts = super().send_many(topic, values, key=key, partition=partition)
        if self._noted == before:  # The values did not pass `_send_any` one by one.
            for value, receipt in zip(values, receipts, strict=True):
                self._note(topic, value, partition, receipt, at)
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
        self, topic: str, value: Any, key: Any, partition: int | None, headers: Headers | None, timestamp_ms: int | None
    ) -> Receipt:
        at = self.history.now()
        receipt = super()._send_any(topic, value, key, partition, headers, timestamp_ms)
        self._note(topic, value, partition, receipt, at)
        return receipt

    def _note(self, topic: str, value: Any, partition: int | None, receipt: Receipt, at: float) -> None:
        self._noted += 1
        known = None if partition is None else (topic, partition)
        options = self.options
        send = self.history.invoke(
            self.name, known, self._bytes_of(value), acks=options.required_acks, idempotent=options.idempotent, at=at
        )
        self._settle_when_done(send, receipt)

    def _bytes_of(self, value: Any) -> Any:
        if self._value_serializer is not None and value is not None:
            return self._value_serializer(value)
        return value if value is None or type(value) is bytes else bytes(value)

    def _settle_when_done(self, send: Send, receipt: Receipt) -> None:
        """Record the outcome when the receipt is done. Until then the receipt may move to another batch."""
        if receipt.done:
            self._settle(send, receipt)
        else:
            receipt.batch.waiters.append(partial(self._settle_when_done, send, receipt))

    def _settle(self, send: Send, receipt: Receipt) -> None:
        try:
            metadata = receipt.result()
        except Exception:
            if send.partition is None and isinstance(receipt.batch, Batch):
                send.partition = (receipt.batch.topic, receipt.batch.partition)
            send.info()
        else:
            send.ok(metadata.offset, partition=(metadata.topic, metadata.partition))


class RecordingConsumer(Consumer):
    """A `Consumer` that records in `history`, as the process `name`, every record that it returns. `options`: of `Consumer`."""

    def __init__(self, history: History, name: str, *topics: str, **options: Any) -> None:
        super().__init__(*topics, **options)
        self.history = history
        self.name = name
        self._raw: dict[tuple[TopicPartition, int], Any] = {}
        """Bytes of the values that were deserialized and not returned yet."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        polled = await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        for place, records in polled.items():
            self._note(place, records)
        return polled

    async def getone(self, *partitions: TopicPartition, timeout_ms: float | None = None) -> ConsumerRecord:
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
                seen = list(zip(batch.offsets, map(batch.values.__getitem__, range(len(batch))), strict=True))
                self.history.poll(self.name, tuple(place), seen, leader_epoch=batch.leader_epoch)
        return polled

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        async for record in super().__aiter__():
            self._note(TopicPartition(record.topic, record.partition), [record])
            yield record

    def _note(self, place: TopicPartition, records: list[ConsumerRecord]) -> None:
        seen = [(record.offset, self._raw.pop((place, record.offset), record.value)) for record in records]
        self.history.poll(self.name, tuple(place), seen, leader_epoch=records[-1].leader_epoch)

    def _decode(self, place: TopicPartition, buf: Buffer, pos: int, header: BatchHeader, offset: int) -> list[ConsumerRecord]:
        if self.options.value_deserializer is not None:
            for record in decode_records(place, buf, pos, header, from_offset=offset, check_crc=False):
                self._raw[place, record.offset] = record.value
        return super()._decode(place, buf, pos, header, offset)

    def _begin(self, state: PartitionState) -> None:
        if state.reset != EARLIEST:
            self.history.seek(self.name, tuple(state.tp))
        super()._begin(state)

    def _move(self, state: PartitionState, offset: int, leader_epoch: int = -1) -> None:
        self.history.seek(self.name, tuple(state.tp), offset)
        super()._move(state, offset, leader_epoch)


def namer() -> Callable[[str], str]:
    """A function that numbers names by kind: "producer-1", "producer-2", "consumer-1"."""
    counts: dict[str, int] = {}

    def name(kind: str) -> str:
        counts[kind] = counts.get(kind, 0) + 1
        return f"{kind}-{counts[kind]}"

    return name
