"""Measures quotas on real processes: how exact the byte rates are, and what one client notices of another that takes too much.

    python benchmarks/quotas.py rates                 (a producer and a consumer at 2 MB/s for a minute)
    python benchmarks/quotas.py others                (the acknowledgements of one producer beside floods by another client)

The client that takes too much is a process of its own, so that the measured one waits for the broker, and not for its own event
loop. It floods with small requests (Metadata, 200 at once on each of four connections), with large ones (1 MB batches, without
waiting), or asks for large responses and does not read them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from time import perf_counter

from strandline.client import Admin, Consumer, NewTopic, Producer, QuotaEntity
from strandline.local_cluster import LocalCluster
from strandline.protocol.apis import FETCH, METADATA
from strandline.protocol.messages.admin import MetadataRequest
from strandline.protocol.messages.data import FetchPartition, FetchRequest
from strandline.protocol.rpc.connection import Connection

RATE = 2_000_000.0
VALUE = bytes(1000)
TOPIC = "measured"
FLOODS = ("requests", "bytes", "slow-reader")


# -- the byte rates ---------------------------------------------------------------------------------------------------


async def produce_rate(bootstrap: str, seconds: float) -> float:
    """Bytes per second that a producer with a quota gets acknowledged."""
    async with Producer(bootstrap_servers=bootstrap, client_id="limited", linger_ms=5) as producer:
        end = perf_counter() + seconds
        while perf_counter() < end:
            await producer.send(TOPIC, VALUE)
        return producer.metrics()["records"] * len(VALUE) / seconds


async def consume_rate(bootstrap: str, seconds: float) -> float:
    """Bytes per second that a consumer with a quota receives."""
    async with Consumer(TOPIC, bootstrap_servers=bootstrap, client_id="limited", auto_offset_reset="earliest") as consumer:
        end, received = perf_counter() + seconds, 0
        while perf_counter() < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                received += len(records) * len(VALUE)
        return received / seconds


async def rates(cluster: LocalCluster, seconds: float) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin, Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic(TOPIC, 1, 1)])
        quotas = {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}
        await admin.alter_client_quotas(QuotaEntity(client_id="limited"), quotas)
        for name, measure in (("produced", produce_rate), ("consumed", consume_rate)):
            if name == "consumed":
                for _ in range(int(RATE * seconds * 0.3) // len(VALUE)):  # The consumer must not reach the end.
                    await producer.send(TOPIC, VALUE)
                await producer.flush()
            rate = await measure(cluster.bootstrap, seconds)
            print(json.dumps({"what": name, "seconds": seconds, "of the quota, %": round(100 * rate / RATE, 1)}), flush=True)


# -- other clients ----------------------------------------------------------------------------------------------------


async def flood(bootstrap: str, kind: str) -> None:
    """Take as much as the broker gives, until this process is killed."""
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    if kind == "bytes":
        async with Producer(bootstrap_servers=bootstrap, client_id="flood", batch_size=1 << 20, acks=1) as producer:
            while True:
                await producer.send("flooded", bytes(100_000))
    connections = [await Connection.connect(host, int(port), client_id="flood") for _ in range(4)]
    while kind == "requests":
        for connection in connections:
            for _ in range(200):
                connection.send(METADATA, MetadataRequest(None), on_response=None)
        await asyncio.gather(
            *(connection.request(METADATA, MetadataRequest([]), timeout_ms=60_000) for connection in connections)
        )
    async with Admin(bootstrap_servers=bootstrap) as admin:
        (topic,) = await admin.describe_topics(["flooded"])
    for connection in connections:
        connection._transport.pause_reading()
    while True:
        for connection in connections:
            partition = FetchPartition(topic.topic_id, 0, -1, 0, -1, -1, 50 << 20)
            connection.send(FETCH, FetchRequest(-1, -1, 100, 1, 50 << 20, 0, 0, -1, [partition]), on_response=None)
        await asyncio.sleep(1)


async def acknowledgements(bootstrap: str, seconds: float) -> dict[str, float]:
    """Measure how long a producer that sends a record every 5 ms waits for the acknowledgement, in ms."""
    async with Producer(bootstrap_servers=bootstrap, client_id="measured", linger_ms=0) as producer:
        times, end = list[float](), perf_counter() + seconds
        while perf_counter() < end:
            began = perf_counter()
            await producer.send_and_wait(TOPIC, b"x")
            times.append((perf_counter() - began) * 1000)
            await asyncio.sleep(0.005)
    times.sort()
    return {
        "p50, ms": round(times[len(times) // 2], 2),
        "p99, ms": round(times[len(times) * 99 // 100], 2),
        "max, ms": round(times[-1], 1),
    }


async def beside(cluster: LocalCluster, kind: str, seconds: float) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "flood", "--at", cluster.bootstrap, "--kind", kind)
    try:
        await asyncio.sleep(3)
        return await acknowledgements(cluster.bootstrap, seconds)
    finally:
        process.kill()
        await process.wait()


async def others(cluster: LocalCluster, seconds: float) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic("flooded", 1, 1, {"retention.bytes": 1 << 30})])
        print(json.dumps({"beside": "nothing", **await acknowledgements(cluster.bootstrap, seconds)}), flush=True)
        for kind in FLOODS:
            for quotas in ({}, {"request_percentage": 10.0, "producer_byte_rate": 5e6, "consumer_byte_rate": 5e6}):
                if quotas:
                    await admin.alter_client_quotas(QuotaEntity(client_id="flood"), dict(quotas))
                found = await beside(cluster, kind, seconds)
                print(json.dumps({"beside": kind, "with quotas": bool(quotas), **found}), flush=True)
                if quotas:
                    await admin.alter_client_quotas(QuotaEntity(client_id="flood"), dict.fromkeys(quotas))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "others", "flood"))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--at", help="for flood: the broker")
    parser.add_argument("--kind", choices=FLOODS, help="for flood: with what")
    arguments = parser.parse_args()
    if arguments.what == "flood":
        await flood(arguments.at, arguments.kind)
        return
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(folder, brokers=1, controllers=1) as cluster:
            if arguments.what == "rates":
                await rates(cluster, arguments.seconds or 60)
            else:
                await others(cluster, arguments.seconds or 15)


if __name__ == "__main__":
    asyncio.run(main())
