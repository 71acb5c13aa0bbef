"""Measures the rows of `make bench` on Apache Kafka, with its users' clients: Java's tools, confluent-kafka, aiokafka."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence

import keyed_log
import trickle
from json_values import json_values
from raw_client import fill_kafka, make_batch, produce_kafka
from systems import Kafka

Figures = dict[str, float]
SEGMENT_BYTES = 16 << 20


async def _java_producer(system: Kafka, topic: str, records: int, size: int) -> tuple[float, float]:
    """Return records/s and MiB/s of Kafka's own load tool with batches of 256 KiB."""
    out = await system.run_tool(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", str(records), "--record-size", str(size),
        "--throughput", "-1", "--command-property", f"bootstrap.servers={system.bootstrap}", "acks=all", "batch.size=262144",
        "linger.ms=5", "buffer.memory=134217728",
    )  # fmt: skip
    found = re.findall(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)", out)
    return float(found[-1][0]), float(found[-1][1])


async def produce_1000(system: Kafka, topic: str, records: int) -> Figures:
    return {"1,000 B, java, MiB/s": (await _java_producer(system, topic, records, 1000))[1]}


async def produce_100(system: Kafka, topic: str, records: int) -> Figures:
    return {
        "100 B, java, records/s": (await _java_producer(system, topic, records, 100))[0],
        "100 B, confluent-kafka, records/s": await asyncio.to_thread(_confluent_producer, system.bootstrap, topic, records),
        "100 B, aiokafka, records/s": await _aiokafka_producer(system.bootstrap, topic, records // 5),
    }


def _confluent_producer(
    bootstrap: str, topic: str, records: int, values: Sequence[bytes] = (b"x" * 100,), codec: str = "none"
) -> float:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 262_144,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 500_000,
            "enable.idempotence": True,
            "compression.type": codec,
        }
    )
    producer.produce(topic, values[0])
    producer.flush(30)
    started = time.monotonic()
    for number in range(records):
        value = values[number % len(values)]
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(120)
    return records / (time.monotonic() - started)


async def _aiokafka_producer(
    bootstrap: str, topic: str, records: int, values: Sequence[bytes] = (b"x" * 100,), codec: str = "none"
) -> float:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        linger_ms=5,
        max_batch_size=262_144,
        enable_idempotence=True,
        compression_type=None if codec == "none" else codec,
    ) as producer:
        await producer.send_and_wait(topic, values[0])
        started = time.monotonic()
        futures: list[asyncio.Future[object]] = []
        for number in range(records):
            futures.append(await producer.send(topic, values[number % len(values)]))
            if len(futures) == 20_000:
                await asyncio.gather(*futures[:10_000])
                del futures[:10_000]
        await asyncio.gather(*futures)
        return records / (time.monotonic() - started)


async def raw(system: Kafka, topic: str, total_bytes: int) -> Figures:
    figures: Figures = {}
    for name, size in (("16 KiB", 16 << 10), ("64 KiB", 64 << 10), ("1 MiB", (1 << 20) - 1024)):
        batch = make_batch(size)
        requests = total_bytes // len(batch)
        before = system.broker_cpu_s()
        result = await produce_kafka(system.bootstrap, topic, batch, requests)
        cpu = system.broker_cpu_s() - before
        figures[f"raw {name}, MB/s"] = result.bytes_per_s / 1e6
        figures[f"raw {name}, broker CPU s/GB"] = cpu / (len(batch) * requests / 1e9)
    return figures


async def one_at_a_time(system: Kafka, topic: str, records: int) -> Figures:
    from aiokafka import AIOKafkaProducer

    times = []
    async with AIOKafkaProducer(bootstrap_servers=system.bootstrap, acks="all", linger_ms=0) as producer:
        for _ in range(200):
            await producer.send_and_wait(topic, b"x" * 100)
        for _ in range(records):
            before = time.perf_counter()
            await producer.send_and_wait(topic, b"x" * 100)
            times.append((time.perf_counter() - before) * 1000)
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return {"one at a time, aiokafka p50, ms": p50, "one at a time, aiokafka p99, ms": p99}


async def backlog(system: Kafka, topic: str, records: int) -> Figures:
    await _java_producer(system, topic, records, 100)
    aiokafka = await _aiokafka_consumer(system, topic, records)
    return {"backlog, java, records/s": await _java_consumer(system, topic, records), "backlog, aiokafka, records/s": aiokafka}


async def _aiokafka_consumer(system: Kafka, topic: str, records: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    partitions = [TopicPartition(topic, p) for p in await system.leaders(topic)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=system.bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20
    )
    consumer.assign(partitions)
    await consumer.start()
    try:
        await consumer.seek_to_beginning(*partitions)
        read, started = 0, time.monotonic()
        while read < records:
            polled = await consumer.getmany(timeout_ms=10_000)
            if not polled:
                raise RuntimeError("aiokafka got no records for 10 s")
            read += sum(map(len, polled.values()))
        return read / (time.monotonic() - started)
    finally:
        await consumer.stop()


async def _java_consumer(system: Kafka, topic: str, records: int) -> float:
    out = await system.run_tool(
        "kafka-consumer-perf-test", "--bootstrap-server", system.bootstrap, "--topic", topic, "--num-records", str(records),
        "--group", f"bench-{time.monotonic_ns()}", "--timeout", "30000",
    )  # fmt: skip
    header, values = [line.split(", ") for line in out.splitlines() if line.count(", ") > 5][-2:]
    return float(dict(zip(header, values, strict=False))["fetch.nMsg.sec"])


async def clean(system: Kafka, topic: str, size: int, keys: int, records: int) -> Figures:
    configs = {"cleanup.policy": "delete", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(SEGMENT_BYTES)}
    await system.create_topic(topic, 1, replication_factor=1, configs=configs)
    count = -(-records // keyed_log.per_batch(size))
    await fill_kafka(system.bootstrap, topic, keyed_log.batches(size, keys, records), count)
    before = system.broker_cpu_s()
    await system.set_topic_config(topic, "cleanup.policy", "compact")
    line = re.compile(rf"cleaned log {topic}-0 .*\n\s+([\d,.]+) MB of log processed in ([\d,.]+) seconds")
    while (found := next(filter(None, map(line.search, system.broker_logs())), None)) is None:
        await asyncio.sleep(0.1)
    cpu = system.broker_cpu_s() - before
    closed, seconds = (float(number.replace(",", "")) for number in found.groups())
    closed *= 1 << 20  # its megabytes are mebibytes
    return {f"cleaner, {size} B, MB/s": closed / seconds / 1e6, f"cleaner, {size} B, broker CPU s/GB": cpu / closed * 1e9}


async def codec(system: Kafka, topic: str, name: str, records: int) -> Figures:
    values = json_values()
    produced = await asyncio.to_thread(_confluent_producer, system.bootstrap, topic, records, values, name)
    consumed = await asyncio.to_thread(_confluent_consumer, system.bootstrap, topic, records)
    await system.create_topic(f"{topic}-aiokafka", 6)
    aio_records = records // 4
    return {
        f"{name}, produce, confluent-kafka, records/s": produced,
        f"{name}, consume, confluent-kafka, records/s": consumed,
        f"{name}, produce, aiokafka, records/s": await _aiokafka_producer(
            system.bootstrap, f"{topic}-aiokafka", aio_records, values, name
        ),
        f"{name}, consume, aiokafka, records/s": await _aiokafka_consumer(system, topic, records),
    }


SHORT_QUEUE_BACKOFF_MS = 10
"""A consumer of librdkafka stops fetching once 100,000 records wait in its queue, and goes on `fetch.queue.backoff.ms` later: by
default a second, in which the application has long read them. So the defaults measure the pauses of the client, the same on every
system."""


def confluent_consumer_settings(
    bootstrap: str, topic: str, queue_backoff_ms: int = SHORT_QUEUE_BACKOFF_MS
) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": f"bench-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.partition.fetch.bytes": 4 << 20,
        "fetch.queue.backoff.ms": queue_backoff_ms,
    }


def _confluent_consumer(bootstrap: str, topic: str, records: int, queue_backoff_ms: int = SHORT_QUEUE_BACKOFF_MS) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(confluent_consumer_settings(bootstrap, topic, queue_backoff_ms))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(6)])
    started, read = time.monotonic(), 0
    while read < records:
        polled = consumer.consume(10_000, 1.0)
        read += sum(message.error() is None for message in polled)
        if time.monotonic() - started > 300:
            raise RuntimeError("confluent-kafka did not read the records within 300 s")
    seconds = time.monotonic() - started
    consumer.close()
    return read / seconds


async def failover(system: Kafka, topic: str, fault: str) -> Figures:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=system.bootstrap, acks="all", linger_ms=0, enable_idempotence=True) as producer:

        async def send(partition: int, value: bytes) -> None:
            await producer.send_and_wait(topic, value, partition=partition)

        return await trickle.measure(system, topic, fault, send)
