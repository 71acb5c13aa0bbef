"""The ways to send and to read records with aiokafka and confluent-kafka, on a real Apache Kafka, in records per second.

confluent-kafka has two faces: calls that block (`produce`, `poll`, `consume`), and an asyncio face that awaits them on threads
(`confluent_kafka.aio`). Slow ways get fewer records: the rate counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Any

from loads_kafka import _aiokafka_consumer, _confluent_consumer, _java_producer, confluent_consumer_settings
from shapes import Shape, shapes
from systems import Kafka

Figures = dict[str, float]
PARTITIONS = 6
PRODUCER = {
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 262_144,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 500_000,
    "enable.idempotence": True,
}


async def send(system: Kafka, topic: str, records: int) -> Figures:
    figures: Figures = {}
    for shape in shapes():
        count = int(records * shape.share)
        sync = await asyncio.to_thread(_confluent, system.bootstrap, topic, shape, count // 2)
        figures[f"send unawaited, {shape.name}, confluent-kafka, records/s"] = sync
        figures[f"send awaited, {shape.name}, confluent-kafka asyncio, records/s"] = await _confluent_aio(
            system.bootstrap, topic, shape, count // 10
        )
        figures[f"send awaited, {shape.name}, aiokafka, records/s"] = await _aiokafka(system.bootstrap, topic, shape, count // 5)
    return figures


def _confluent(bootstrap: str, topic: str, shape: Shape, records: int) -> float:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    producer.produce(topic, shape.values[0])
    producer.flush(30)
    headers = list(shape.headers) if shape.headers else None
    started = perf_counter()
    for number in range(records):
        place = number % len(shape.values)
        while True:
            try:
                if headers is None:
                    producer.produce(topic, shape.values[place], shape.keys[place])
                else:
                    producer.produce(topic, shape.values[place], shape.keys[place], headers=headers)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(120)
    return records / (perf_counter() - started)


async def _confluent_aio(bootstrap: str, topic: str, shape: Shape, records: int) -> float:
    """Headers are left out: its batches refuse them."""
    from confluent_kafka.aio import AIOProducer

    producer = AIOProducer({"bootstrap.servers": bootstrap, **PRODUCER}, batch_size=10_000, buffer_timeout=0.005)
    try:
        await (await producer.produce(topic, shape.values[0]))
        started = perf_counter()
        waiting: deque[Any] = deque()
        for number in range(records):
            place = number % len(shape.values)
            waiting.append(await producer.produce(topic, shape.values[place], shape.keys[place]))
            if len(waiting) == 20_000:
                for _ in range(10_000):
                    await waiting.popleft()
        await producer.flush()
        await asyncio.gather(*waiting)
        return records / (perf_counter() - started)
    finally:
        await producer.close()


async def _aiokafka(bootstrap: str, topic: str, shape: Shape, records: int) -> float:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=5, max_batch_size=262_144, enable_idempotence=True
    ) as producer:
        await producer.send_and_wait(topic, shape.values[0])
        started = perf_counter()
        futures: list[Any] = []
        for number in range(records):
            place = number % len(shape.values)
            futures.append(await producer.send(topic, shape.values[place], key=shape.keys[place], headers=shape.headers))
            if len(futures) == 20_000:
                await asyncio.gather(*futures[:10_000])
                del futures[:10_000]
        await asyncio.gather(*futures)
        return records / (perf_counter() - started)


async def read(system: Kafka, topic: str, records: int) -> Figures:
    figures: Figures = {}
    for size, count in ((100, records), (1000, records // 4)):
        filled = f"{topic}-{size}"
        await system.create_topic(filled, PARTITIONS)
        await _java_producer(system, filled, count, size)
        part = count // 4
        poll = await asyncio.to_thread(_confluent_poll, system.bootstrap, filled, part)
        consume = await asyncio.to_thread(_confluent_consumer, system.bootstrap, filled, count)
        figures |= {
            f"read async for, {size} B, aiokafka, records/s": await _aiokafka_one_by_one(system.bootstrap, filled, part),
            f"read getmany, {size} B, aiokafka, records/s": await _aiokafka_consumer(system, filled, count),
            f"read poll, {size} B, confluent-kafka, records/s": poll,
            f"read consume, {size} B, confluent-kafka, records/s": consume,
            f"read await poll, {size} B, confluent-kafka asyncio, records/s": await _confluent_aio_poll(
                system.bootstrap, filled, count // 100
            ),
        }
    return figures


async def _aiokafka_one_by_one(bootstrap: str, topic: str, records: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20)
    consumer.assign(partitions)
    await consumer.start()
    try:
        await consumer.seek_to_beginning(*partitions)
        started, read = perf_counter(), 0
        async for _ in consumer:
            read += 1
            if read == records:
                break
        return read / (perf_counter() - started)
    finally:
        await consumer.stop()


def _confluent_poll(bootstrap: str, topic: str, records: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(confluent_consumer_settings(bootstrap, topic))
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        started, read = perf_counter(), 0
        while read < records:
            message = consumer.poll(10.0)
            read += message is not None and message.error() is None
            if perf_counter() - started > 300:
                raise RuntimeError("confluent-kafka did not read the records within 300 s")
        return read / (perf_counter() - started)
    finally:
        consumer.close()


async def _confluent_aio_poll(bootstrap: str, topic: str, records: int) -> float:
    from confluent_kafka import TopicPartition
    from confluent_kafka.aio import AIOConsumer

    consumer = AIOConsumer(confluent_consumer_settings(bootstrap, topic))
    try:
        await consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        started, read = perf_counter(), 0
        while read < records:
            message = await consumer.poll(10.0)
            read += message is not None and message.error() is None
        return read / (perf_counter() - started)
    finally:
        await consumer.close()
