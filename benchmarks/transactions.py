"""Transactions: Strandline's client on Strandline, confluent-kafka on a real Apache Kafka (row `transactions` of `compare.py`).

`small`: one record to each of ten partitions, then the commit, one transaction after the other: transactions per second, and how
long the commit takes, which includes the acknowledgement of the records. `large`: 1,000 records of 100 B, records per second.
confluent-kafka's calls block; Strandline's are awaited.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from systems import Ours, System

from strandline.client import Producer

Figures = dict[str, float]
PARTITIONS = 10
LARGE = 1000
VALUE = b"x" * 100
WARM_UP = 20
TOPIC = "ttransactions"


async def measure(system: System, small: int) -> Figures:
    """Run `small` small transactions, and a fifth as many large ones, at least ten."""
    await system.create_topic(TOPIC, PARTITIONS)
    large = max(10, small // 5)
    if isinstance(system, Ours):
        commits, small_s = await _small_ours(system.bootstrap, small)
        large_s = await _large_ours(system.bootstrap, large)
    else:
        commits, small_s = await asyncio.to_thread(_small_confluent, system.bootstrap, small)
        large_s = await asyncio.to_thread(_large_confluent, system.bootstrap, large)
    commits.sort()
    return {
        "transactions of 10 partitions/s": small / small_s,
        "commit of 10 partitions, p50, ms": 1000 * commits[len(commits) // 2],
        "commit of 10 partitions, p99, ms": 1000 * commits[len(commits) * 99 // 100],
        "transactions of 1,000 records, records/s": large * LARGE / large_s,
    }


async def _small_ours(bootstrap: str, count: int) -> tuple[list[float], float]:
    commits: list[float] = []
    async with Producer(bootstrap_servers=bootstrap, transactional_id="bench-small", linger_ms=0) as producer:
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                commits, started = [], perf_counter()
            await producer.begin_transaction()
            for partition in range(PARTITIONS):
                await producer.send(TOPIC, VALUE, partition=partition)
            before = perf_counter()
            await producer.commit_transaction()
            commits.append(perf_counter() - before)
        return commits, perf_counter() - started


async def _large_ours(bootstrap: str, count: int) -> float:
    async with Producer(bootstrap_servers=bootstrap, transactional_id="bench-large", batch_size=262_144) as producer:
        for number in range(3 + count):
            if number == 3:
                started = perf_counter()
            await producer.begin_transaction()
            for _ in range(LARGE):
                producer.send_nowait(TOPIC, VALUE)
            await producer.commit_transaction()
        return perf_counter() - started


def _small_confluent(bootstrap: str, count: int) -> tuple[list[float], float]:
    from confluent_kafka import Producer as Confluent

    commits: list[float] = []
    producer = Confluent({"bootstrap.servers": bootstrap, "transactional.id": "bench-small", "linger.ms": 0})
    producer.init_transactions(60)
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            commits, started = [], perf_counter()
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, VALUE, partition=partition)
        before = perf_counter()
        producer.commit_transaction(60)
        commits.append(perf_counter() - before)
    return commits, perf_counter() - started


def _large_confluent(bootstrap: str, count: int) -> float:
    from confluent_kafka import Producer as Confluent

    producer = Confluent(
        {"bootstrap.servers": bootstrap, "transactional.id": "bench-large", "linger.ms": 5, "batch.size": 262_144}
    )
    producer.init_transactions(60)
    for number in range(3 + count):
        if number == 3:
            started = perf_counter()
        producer.begin_transaction()
        for _ in range(LARGE):
            producer.produce(TOPIC, VALUE)
        producer.commit_transaction(60)
    return perf_counter() - started
