"""The types of keys and values in a user's program: type checkers check it with an installed package (test_installs.py).

`assert_type` is an error if the checker infers another type."""

import json
from typing import Any, assert_type

import strandline.sync
from strandline import Consumer, ConsumerRecord, Producer
from strandline.client import TopicPartition


class Order:
    def __init__(self, text: str) -> None:
        self.text = text


def encode(order: Order) -> bytes:
    return order.text.encode()


def decode(data: bytes) -> Order:
    return Order(data.decode())


async def write() -> None:
    async with Producer() as plain:
        assert_type(plain, Producer[bytes, bytes])
        await plain.send("orders", b"1", key=b"alice")
        await plain.send("orders", None, key=b"alice")
    async with Producer(value_serializer=encode) as values:
        assert_type(values, Producer[bytes, Order])
        await values.send_and_wait("orders", Order("2 tea"), key=b"alice")
        values.send_many("orders", [Order("2 tea"), Order("3 cocoa")])
        await values.send_columns("orders", [Order("2 tea"), None], keys=[b"alice", b"bob"])
    assert_type(Producer(key_serializer=str.encode), Producer[str, bytes])
    assert_type(Producer(key_serializer=str.encode, value_serializer=encode, linger_ms=5), Producer[str, Order])
    declared: Producer[bytes, dict[str, int]] = Producer(value_serializer=lambda value: json.dumps(value).encode())
    await declared.send("orders", {"tea": 2})
    in_brackets = Producer[bytes, Any](value_serializer=lambda value: json.dumps(value).encode())
    assert_type(in_brackets, Producer[bytes, Any])


def write_without_asyncio() -> None:
    with strandline.sync.Producer(key_serializer=str.encode) as producer:
        assert_type(producer, strandline.sync.Producer[str, bytes])
        producer.send("orders", b"1", key="alice").result()


def bill(record: ConsumerRecord[bytes, Order]) -> None:
    print(record.value.text)


async def bill_many(records: list[ConsumerRecord[bytes, Order]]) -> None:
    print(len(records))


def log(record: ConsumerRecord[Any, object]) -> None:
    print(record.offset)


def takes_bytes(consumer: Consumer, record: ConsumerRecord) -> None:
    """Without brackets, keys and values are bytes."""
    assert_type(consumer, Consumer[bytes, bytes])
    assert_type(record.key, bytes | None)
    assert_type(record.value, bytes)


async def read() -> None:
    async with Consumer("orders", group_id="billing") as plain:
        async for record in plain:
            takes_bytes(plain, record)
            log(record)
    async with Consumer("orders", group_id="billing", value_deserializer=decode) as consumer:
        assert_type(consumer, Consumer[bytes, Order])
        async for one in consumer:
            assert_type(one.value, Order)
            assert_type(one.key, bytes | None)
            bill(one)
            log(one)
        assert_type(await consumer.getmany(), dict[TopicPartition, list[ConsumerRecord[bytes, Order]]])
        assert_type((await consumer.getone()).value, Order)
        await consumer.run(bill)
        await consumer.run(bill_many, batch_size=10)
    assert_type(Consumer("orders", key_deserializer=bytes.decode), Consumer[str, bytes])
    assert_type(Consumer("orders", key_deserializer=int, value_deserializer=bytes.decode), Consumer[int, str])
    assert_type(Consumer("orders", value_deserializer=json.loads), Consumer[bytes, Any])
    compacted: Consumer[bytes, Order | None] = Consumer("prices", value_deserializer=decode)
    assert_type((await compacted.getone()).value, Order | None)
    assert_type(Consumer[bytes, Order | None]("prices", value_deserializer=decode), Consumer[bytes, Order | None])


def read_without_asyncio() -> None:
    with strandline.sync.Consumer("orders", value_deserializer=bytes.decode) as consumer:
        for record in consumer:
            assert_type(record.value, str)
        assert_type(consumer.getone(), ConsumerRecord[bytes, str])
