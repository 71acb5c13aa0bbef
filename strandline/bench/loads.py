"""Produce, consume, latency: one client against a running cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from strandline.bench.figures import Figures, Progress, lines_of_words, longest_gap, payloads, percentile
from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.client.errors import BufferFull, RequestFailed
from strandline.client.producer.receipts import Receipt
from strandline.local_cluster import ClusterError
from strandline.protocol.errors import ErrorCode
from strandline.reach import reach

SLICE = 512
"""Records passed to `send_nowait` before the event loop runs again, to serve the sockets."""
GROUP = 10_000
"""Receipts are awaited in groups of this size, one group behind."""
SAMPLE = 997
"""One in this many records is watched for its latency."""
NO_RECORDS_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The parameters of a load. The defaults are those of the command line."""

    bootstrap: str
    topic: str = "bench"
    partitions: int = 6
    """Partitions of a topic that is created. It gets three replicas, or one per broker if there are fewer."""
    records: int = 1_000_000
    record_size: int = 100
    acks: Literal["all", 0, 1] = "all"
    batch_size: int = 262_144
    linger_ms: float = 5.0
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """With a codec, the values are compressible."""
    compression_level: int | None = None
    mode: Literal["nowait", "await"] = "nowait"
    """`send_nowait`, or `await send` for each record."""


async def ensure_topic(bootstrap: str, topic: str, partitions: int) -> None:
    async with Admin(**reach(bootstrap)) as admin:
        if topic not in await admin.list_topics():
            brokers = len((await admin.describe_cluster()).brokers)
            try:
                await admin.create_topics([NewTopic(topic, partitions=partitions, replication_factor=min(3, brokers))])
            except RequestFailed as e:
                if e.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # The broker that listed them may not know the newest topic yet.
                    raise


def _producer(load: Load) -> Producer:
    return Producer(
        **reach(load.bootstrap),
        acks=load.acks,
        linger_ms=load.linger_ms,
        batch_size=load.batch_size,
        compression_type=load.compression_type,
        compression_level=load.compression_level,
        max_request_size=max(1 << 20, load.batch_size * 2),
    )


class _Watch:
    """The latencies of sampled records, and the times of their acknowledgements."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self.acked_at: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, receipt: Receipt) -> None:
        task = asyncio.create_task(self._follow(receipt, perf_counter()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, receipt: Receipt, sent_at: float) -> None:
        await receipt
        now = perf_counter()
        self.latencies_ms.append((now - sent_at) * 1000)
        self.acked_at.append(now)

    async def end(self) -> None:
        await asyncio.gather(*self._tasks)


async def produce(load: Load) -> Figures:
    """Send records as fast as the client can; ends when the last one is acknowledged."""
    await ensure_topic(load.bootstrap, load.topic, load.partitions)
    values = payloads(load.record_size) if load.compression_type == "none" else lines_of_words(load.record_size)
    watch, progress = _Watch(), Progress("produce", load.records)
    async with _producer(load) as producer:
        await producer.send_and_wait(load.topic, values[0])  # before the measurement: connections and metadata
        started = perf_counter()
        if load.mode == "nowait":
            await _send_nowait(producer, load, values, watch, progress)
        else:
            await _await_send(producer, load, values, watch, progress)
        await producer.flush()
        seconds = perf_counter() - started
        await watch.end()
    progress.end()
    return _figures(load, seconds, watch)


async def _send_nowait(producer: Producer, load: Load, values: list[bytes], watch: _Watch, progress: Progress) -> None:
    topic, send, count = load.topic, producer.send_nowait, len(values)
    receipts: list[Receipt] = []
    groups: deque[list[Receipt]] = deque()
    for start in range(0, load.records, SLICE):
        for i in range(start, min(start + SLICE, load.records)):
            value = values[i % count]
            try:
                receipt = send(topic, value)
            except BufferFull:
                receipt = await producer.send(topic, value)
            receipts.append(receipt)
        watch_due = start // SAMPLE != (start + SLICE) // SAMPLE
        if watch_due:
            watch.follow(receipts[-1])
        if len(receipts) >= GROUP:
            groups.append(receipts)
            receipts = []
            progress.at(start)
            if len(groups) > 1:
                await _await_all(groups.popleft())
        await asyncio.sleep(0)
    for group in [*groups, receipts]:
        await _await_all(group)


async def _await_send(producer: Producer, load: Load, values: list[bytes], watch: _Watch, progress: Progress) -> None:
    topic, send, count = load.topic, producer.send, len(values)
    receipts: list[Receipt] = []
    groups: deque[list[Receipt]] = deque()
    for i in range(load.records):
        receipts.append(await send(topic, values[i % count]))
        if not i % SAMPLE:
            watch.follow(receipts[-1])
        if len(receipts) >= GROUP:
            groups.append(receipts)
            receipts = []
            progress.at(i)
            if len(groups) > 1:
                await _await_all(groups.popleft())
    for group in [*groups, receipts]:
        await _await_all(group)


async def _await_all(receipts: list[Receipt]) -> None:
    """Wait for all receipts. The records of a batch have one outcome, so one receipt per batch is awaited."""
    batch: object = None
    for receipt in receipts:
        if receipt.batch is not batch:
            batch = receipt.batch
            await receipt


def _figures(load: Load, seconds: float, watch: _Watch) -> Figures:
    return Figures(
        records=load.records,
        seconds=seconds,
        value_bytes=load.records * load.record_size,
        p50_ms=percentile(watch.latencies_ms, 0.5),
        p99_ms=percentile(watch.latencies_ms, 0.99),
        max_gap_ms=longest_gap(watch.acked_at) * 1000,
    )


async def latency(load: Load) -> Figures:
    """Send one record at a time, each after the acknowledgement of the one before."""
    await ensure_topic(load.bootstrap, load.topic, load.partitions)
    values = payloads(load.record_size)
    watch, progress = _Watch(), Progress("latency", load.records)
    async with Producer(**reach(load.bootstrap), acks=load.acks, linger_ms=0) as producer:
        for p in range(min(50, load.records)):
            await producer.send_and_wait(load.topic, values[p % len(values)])
        started = perf_counter()
        for i in range(load.records):
            before = perf_counter()
            await producer.send_and_wait(load.topic, values[i % len(values)])
            after = perf_counter()
            watch.latencies_ms.append((after - before) * 1000)
            watch.acked_at.append(after)
            progress.at(i)
        seconds = perf_counter() - started
    progress.end()
    return _figures(load, seconds, watch)


async def consume(load: Load) -> Figures:
    """Read a backlog of records from the beginning. If the topic has too few, they are sent first."""
    await ensure_topic(load.bootstrap, load.topic, load.partitions)
    async with Consumer(**reach(load.bootstrap), auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20) as c:
        async with Admin(**reach(load.bootstrap)) as admin:
            count = len((await admin.describe_topics([load.topic]))[0].partitions)
        partitions = [TopicPartition(load.topic, p) for p in range(count)]
        first, end = await c.beginning_offsets(partitions), await c.end_offsets(partitions)
        there = sum(end[tp] - first[tp] for tp in partitions)
        if there < load.records:
            await produce(_with_records(load, load.records - there))
        await c.assign(partitions)
        return await _read(c, load)


def _with_records(load: Load, records: int) -> Load:
    from dataclasses import replace

    return replace(load, records=records)


async def _read(consumer: Consumer, load: Load) -> Figures:
    progress = Progress("consume", load.records)
    polls_ms: list[float] = []
    brought_at: list[float] = []
    read = size = 0
    started = before = perf_counter()
    while read < load.records:
        polled = await consumer.getmany(timeout_ms=NO_RECORDS_MS)
        now = perf_counter()
        if not polled:
            raise ClusterError(f"no records came for {NO_RECORDS_MS} ms, after {read} of {load.records}")
        for records in polled.values():
            read += len(records)
            size += sum(len(record.value or b"") for record in records)
        polls_ms.append((now - before) * 1000)
        brought_at.append(now)
        before = perf_counter()
        progress.at(read)
    seconds = perf_counter() - started
    progress.end()
    return Figures(read, seconds, size, percentile(polls_ms, 0.5), percentile(polls_ms, 0.99), longest_gap(brought_at) * 1000)
