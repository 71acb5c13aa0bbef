"""Measures the throttle of a reassignment on real processes: bytes per second that a broker receives, by its rate.

    python benchmarks/throttle.py                     (four brokers and a controller on this machine; a minute and a half)
    python benchmarks/throttle.py --rates 1MB,20MB --seconds 30

Ten partitions move from brokers 1 to 3 to broker 4, one replica each, while a producer writes to them. The rate is measured from
the sizes of the replicas on broker 4, without the records that it gets while the producer runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from contextlib import suppress
from time import perf_counter

from strandline.cli.amounts import parse_bytes, show_bytes
from strandline.client import Admin, NewTopic, Producer, TopicPartition
from strandline.local_cluster import LocalCluster

PARTITIONS = 10
NEW = 4
VALUE = bytes(10_000)


async def write(producer: Producer, topic: str, size: int) -> None:
    """Write `size` bytes, the same to each partition."""
    for number in range(size // len(VALUE)):
        await producer.send(topic, VALUE, partition=number % PARTITIONS)
    await producer.flush()


async def load(producer: Producer, topic: str, gaps: list[float]) -> None:
    """Send a small record to each partition, ten times a second, and note how long the slowest acknowledgement takes."""
    while True:
        began = perf_counter()
        await asyncio.gather(*[producer.send_and_wait(topic, b"meanwhile", partition=p) for p in range(PARTITIONS)])
        gaps.append(perf_counter() - began)
        await asyncio.sleep(0.1)


async def copied(admin: Admin, topic: str) -> int:
    found = await admin.describe_log_dirs([NEW], [topic])
    return sum(info.size_bytes for one in found[NEW] for info in one.replicas.values())


async def measure(cluster: LocalCluster, rate: int, seconds: float) -> dict[str, object]:
    topic, gaps = f"moved-{rate}", list[float]()
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin, Producer(bootstrap_servers=cluster.bootstrap) as producer:
        replicas = {p: [1 + (p + k) % 3 for k in range(3)] for p in range(PARTITIONS)}
        await admin.create_topics([NewTopic(topic, replica_assignments=replicas)])
        await write(producer, topic, int(rate * (seconds + 5)))
        loading = asyncio.create_task(load(producer, topic, gaps))
        targets = {TopicPartition(topic, p): [*ids[:2], NEW] for p, ids in replicas.items()}
        began = perf_counter()
        await admin.alter_partition_reassignments({tp: targets[tp] for tp in targets}, throttle_rate=rate)
        shrunk = 0
        while perf_counter() < began + seconds:
            (described,) = await admin.describe_topics([topic])
            shrunk += any(not set(replicas[p.partition]) <= set(p.isr) for p in described.partitions)
            await asyncio.sleep(0.5)
        size, took = await copied(admin, topic), perf_counter() - began
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
        await admin.alter_partition_reassignments(dict.fromkeys(targets))
        await admin.delete_topics([topic])
    return {
        "rate, bytes per second": rate,
        "measured": round(size / took),
        "of the rate, %": round(100 * size / took / rate, 1),
        "seconds": round(took, 1),
        "looks at which a member had left the ISR": shrunk,
        "slowest acknowledgement, ms": round(max(gaps) * 1000),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1MB,5MB,20MB")
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="throttle-", ignore_cleanup_errors=True) as folder:
        async with LocalCluster(folder, brokers=4, controllers=1) as cluster:
            for text in options.rates.split(","):
                rate = parse_bytes(text, "--rates")
                print(show_bytes(rate), json.dumps(await measure(cluster, rate, options.seconds)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
