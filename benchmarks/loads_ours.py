"""Measures the rows of `make bench` on Strandline. Each function returns figures by name; units are part of the names."""

from __future__ import annotations

import asyncio
import json
import signal
from time import perf_counter
from typing import Literal

import keyed_log
import trickle
from json_values import json_values
from raw_client import fill_ours, make_batch, produce_ours
from systems import Ours

from strandline.bench.loads import Load, consume, latency, produce
from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.client.errors import BufferFull
from strandline.local_cluster import Node
from strandline.protocol.errors import StrandlineError

Figures = dict[str, float]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
SEGMENT_BYTES = 16 << 20


async def produce_1000(system: Ours, topic: str, records: int) -> Figures:
    load = Load(bootstrap=system.bootstrap, topic=topic, records=records, record_size=1000, batch_size=262_144)
    return {"1,000 B, strandline, MiB/s": (await produce(load)).mb_per_s * 1e6 / 2**20}


async def produce_100(system: Ours, topic: str, records: int) -> Figures:
    nowait = Load(bootstrap=system.bootstrap, topic=topic, records=records, record_size=100)
    waiting = Load(bootstrap=system.bootstrap, topic=topic, records=records // 2, record_size=100, mode="await")
    return {
        "100 B, strandline send_nowait, records/s": (await produce(nowait)).records_per_s,
        "100 B, strandline await send, records/s": (await produce(waiting)).records_per_s,
    }


async def raw(system: Ours, topic: str, total_bytes: int) -> Figures:
    figures: Figures = {}
    for name, size in (("16 KiB", 16 << 10), ("64 KiB", 64 << 10), ("1 MiB", (1 << 20) - 1024)):
        batch = make_batch(size)
        requests = total_bytes // len(batch)
        before = system.broker_cpu_s()
        result = await produce_ours(system.bootstrap, topic, batch, requests)
        cpu = system.broker_cpu_s() - before
        figures[f"raw {name}, MB/s"] = result.bytes_per_s / 1e6
        figures[f"raw {name}, broker CPU s/GB"] = cpu / (len(batch) * requests / 1e9)
    return figures


async def one_at_a_time(system: Ours, topic: str, records: int) -> Figures:
    result = await latency(Load(bootstrap=system.bootstrap, topic=topic, records=records, record_size=100))
    return {"one at a time, strandline p50, ms": result.p50_ms, "one at a time, strandline p99, ms": result.p99_ms}


async def backlog(system: Ours, topic: str, records: int) -> Figures:
    result = await consume(Load(bootstrap=system.bootstrap, topic=topic, records=records, record_size=100))
    return {"backlog, strandline, records/s": result.records_per_s}


async def clean(system: Ours, topic: str, size: int, keys: int, records: int) -> Figures:
    configs = {"cleanup.policy": "delete", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": SEGMENT_BYTES}
    async with Admin(bootstrap_servers=system.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions=1, replication_factor=1, configs=configs)])
        count = -(-records // keyed_log.per_batch(size))
        await fill_ours(system.bootstrap, topic, keyed_log.batches(size, keys, records), count)
        (broker,) = (broker for broker in system.cluster.brokers if (broker.data / f"{topic}-0").exists())
        closed = sum(path.stat().st_size for path in sorted((broker.data / f"{topic}-0").glob("*.log"))[:-1])
        before = system.broker_cpu_s()
        await admin.alter_configs("topic", topic, {"cleanup.policy": "compact"})
        while not (lines := cleaned_lines(broker, topic)):
            await asyncio.sleep(0.1)
        cpu = system.broker_cpu_s() - before
    seconds = lines[0]["took_ms"] / 1000
    return {f"cleaner, {size} B, MB/s": closed / seconds / 1e6, f"cleaner, {size} B, broker CPU s/GB": cpu / closed * 1e9}


async def codec(system: Ours, topic: str, name: Codec, records: int) -> Figures:
    return {
        f"{name}, produce, strandline, records/s": await _produce_codec(system.bootstrap, topic, name, records),
        f"{name}, consume, strandline, records/s": await _consume(system.bootstrap, topic, records),
    }


async def _produce_codec(bootstrap: str, topic: str, name: Codec, records: int) -> float:
    values = json_values()
    async with Producer(bootstrap_servers=bootstrap, compression_type=name, batch_size=262_144, linger_ms=5) as producer:
        await producer.send_and_wait(topic, values[0])
        started = perf_counter()
        for number in range(records):
            value = values[number % len(values)]
            try:
                producer.send_nowait(topic, value)
            except BufferFull:
                await producer.send(topic, value)
            if not number % 512:
                await asyncio.sleep(0)
        await producer.flush()
        return records / (perf_counter() - started)


async def _consume(bootstrap: str, topic: str, records: int) -> float:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20) as consumer:
        await consumer.assign([TopicPartition(topic, partition) for partition in range(6)])
        started, read = perf_counter(), 0
        while read < records:
            polled = await consumer.getmany(timeout_ms=10_000)
            if not polled:
                raise RuntimeError("no records came for 10 s")
            read += sum(map(len, polled.values()))
        return read / (perf_counter() - started)


def cleaned_lines(broker: Node, topic: str) -> list[dict[str, float]]:
    """The lines that a broker has logged at the end of each cleaning of this topic."""
    lines = [json.loads(line) for line in broker.log_file.read_text().splitlines() if "log_cleaner.cleaned" in line]
    return [line for line in lines if line["topic"] == topic]


async def failover(system: Ours, topic: str, fault: str) -> Figures:
    async with Producer(bootstrap_servers=system.bootstrap, acks="all", linger_ms=0) as producer:

        async def send(partition: int, value: bytes) -> None:
            await producer.send_and_wait(topic, value, partition=partition)

        return await trickle.measure(system, topic, fault, send)


async def metadata_outage_ms(system: Ours) -> float:
    """Measure the time from the death of the active controller until a topic can be created again."""
    async with Admin(bootstrap_servers=system.bootstrap) as admin:
        victim = await system.active_controller()
        system.signal(victim, signal.SIGKILL)
        killed = perf_counter()
        for attempt in range(1000):
            try:
                await admin.create_topics([NewTopic(f"after-{victim}-{attempt}", partitions=1, replication_factor=3)])
                break
            except StrandlineError:
                await asyncio.sleep(0.01)
        outage = (perf_counter() - killed) * 1000
    await system.restart(victim)
    return outage
