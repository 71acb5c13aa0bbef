"""The ways to send and to read records with Strandline's client. Each returns figures by name, in records per second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from shapes import Shape, shapes
from systems import Ours

from strandline.bench.loads import Load, produce
from strandline.client import Consumer, ConsumerRecord, FetchedBatch, Producer, TopicPartition
from strandline.client.errors import BufferFull
from strandline.client.producer.receipts import Receipt

Figures = dict[str, float]
SLICE = 512
"""Records that are sent before the event loop runs again."""
PARTITIONS = 6


async def send(system: Ours, topic: str, records: int) -> Figures:
    figures: Figures = {}
    for shape in shapes():
        count = int(records * shape.share)
        for name, way in (("unawaited", _send_unawaited), ("awaited", _send_awaited)):
            async with Producer(bootstrap_servers=system.bootstrap, batch_size=262_144, linger_ms=5) as producer:
                await producer.send_and_wait(topic, shape.values[0])
                started = perf_counter()
                await way(producer, topic, shape, count)
                figures[f"send {name}, {shape.name}, strandline, records/s"] = count / (perf_counter() - started)
    return figures


async def _send_unawaited(producer: Producer, topic: str, shape: Shape, records: int) -> None:
    send_nowait, headers, distinct = producer.send_nowait, shape.headers, len(shape.values)
    for number in range(records):
        place = number % distinct
        try:
            send_nowait(topic, shape.values[place], key=shape.keys[place], headers=headers)
        except BufferFull:
            await producer.send(topic, shape.values[place], key=shape.keys[place], headers=headers)
        if not number % SLICE:
            await asyncio.sleep(0)
    await producer.flush()


async def _send_awaited(producer: Producer, topic: str, shape: Shape, records: int) -> None:
    """Await each call of `send`, and every receipt, thousands of records later."""
    send, headers, distinct = producer.send, shape.headers, len(shape.values)
    receipts: list[Receipt] = []
    for number in range(records):
        place = number % distinct
        receipts.append(await send(topic, shape.values[place], key=shape.keys[place], headers=headers))
        if len(receipts) == 20_000:
            for receipt in receipts[:10_000]:
                await receipt
            del receipts[:10_000]
    for receipt in receipts:
        await receipt


async def read(system: Ours, topic: str, records: int) -> Figures:
    figures: Figures = {}
    ways = (("async for", _read_one_by_one), ("getmany", _getmany), ("fetch_batches", _fetch_batches), ("run", _run))
    for size, count in ((100, records), (1000, records // 4)):
        filled = f"{topic}-{size}"
        await system.create_topic(filled, PARTITIONS)
        await produce(Load(bootstrap=system.bootstrap, topic=filled, records=count, record_size=size))
        for name, way in ways:
            seconds = await way(system.bootstrap, filled, count)
            figures[f"read {name}, {size} B, strandline, records/s"] = count / seconds
    return figures


async def _timed(bootstrap: str, topic: str, work: Callable[[Consumer], Awaitable[None]]) -> float:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20) as consumer:
        await consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        started = perf_counter()
        await work(consumer)
        return perf_counter() - started


async def _read_one_by_one(bootstrap: str, topic: str, records: int) -> float:
    async def work(consumer: Consumer) -> None:
        left = records
        async for _ in consumer:
            left -= 1
            if not left:
                return

    return await _timed(bootstrap, topic, work)


async def _polls(records: int, poll: Callable[[], Awaitable[Mapping[Any, Any]]], count: Callable[[Any], int]) -> None:
    """Call `poll` until it has returned `records` records. `count`: counts the records of one partition."""
    left = records
    while left > 0:
        polled = await poll()
        if not polled:
            raise RuntimeError("no records came for 10 s")
        left -= sum(map(count, polled.values()))


async def _getmany(bootstrap: str, topic: str, records: int) -> float:
    return await _timed(bootstrap, topic, lambda c: _polls(records, lambda: c.getmany(timeout_ms=10_000), len))


async def _fetch_batches(bootstrap: str, topic: str, records: int) -> float:
    """Touch the columns, because a batch decodes them when they are first asked for."""

    def count(batches: list[FetchedBatch]) -> int:
        return sum(len(batch.values) for batch in batches)

    return await _timed(bootstrap, topic, lambda c: _polls(records, lambda: c.fetch_batches(timeout_ms=10_000), count))


async def _run(bootstrap: str, topic: str, records: int) -> float:
    """`Consumer.run` with a group and its commits, timed from the first call of the handler until the last."""
    left, started = records, 0.0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal left, started
        started = started or perf_counter()
        left -= 1
        if not left:
            consumer.end_run()

    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"run-{topic}",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
    ) as consumer:
        await consumer.run(handle)
        return perf_counter() - started
