"""The rows for our cluster, with our client. Each function returns figures by name; units are part of the names."""

from __future__ import annotations

import asyncio
import signal
from time import perf_counter

import trickle
from raw_client import make_batch, produce_ours
from systems import Ours

from strandline.bench.loads import Load, consume, latency, produce
from strandline.client import Admin, NewTopic, Producer
from strandline.protocol.errors import StrandlineError

Figures = dict[str, float]


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


async def failover(system: Ours, topic: str, fault: str) -> Figures:
    async with Producer(bootstrap_servers=system.bootstrap, acks="all", linger_ms=0) as producer:

        async def send(partition: int, value: bytes) -> None:
            await producer.send_and_wait(topic, value, partition=partition)

        return await trickle.measure(system, topic, fault, send)


async def metadata_outage_ms(system: Ours) -> float:
    """From the death of the active controller until a topic can be created again."""
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
