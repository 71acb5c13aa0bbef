"""The consumer of payments is idempotent: it is tested with duplicates, and by killing it."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from payments import Ledger, book_payments

from strandline.testing import Cluster, simulated


def payment(number: int, account: str = "alice", cents: int = 100) -> bytes:
    return json.dumps({"id": f"payment-{number}", "account": account, "cents": cents}).encode()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(sqlite3.connect(":memory:"))


@asynccontextmanager
async def running(topic: str, cluster: Cluster, ledger: Ledger) -> AsyncIterator[None]:
    """Run the consumer until the end of the block, and cancel it there at any point of its work."""
    consumer = asyncio.create_task(book_payments(topic, cluster.bootstrap_servers, ledger))
    try:
        yield
    finally:
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)


async def has_booked(ledger: Ledger, offset: int) -> None:
    async with asyncio.timeout(10):
        while sum(ledger.positions().values()) < offset:
            await asyncio.sleep(0.005)


async def test_a_duplicate_payment_is_booked_once(cluster: Cluster, ledger: Ledger) -> None:
    topic = await cluster.create_topic("payments")
    # A producer without idempotence that misses the response sends again: this makes the duplicate.
    async with cluster.producer(enable_idempotence=False) as producer:
        with cluster.drop("Produce", where="response", times=1):
            await producer.send_and_wait(topic, payment(1))
    assert len(await cluster.read_all(topic)) == 2

    async with running(topic, cluster, ledger):
        await has_booked(ledger, 2)
    assert ledger.balances() == {"alice": 100}


async def test_a_killed_consumer_continues_at_its_position(cluster: Cluster, ledger: Ledger) -> None:
    topic = await cluster.create_topic("payments", partitions=3)
    async with cluster.producer() as producer:
        for number in range(300):
            await producer.send(topic, payment(number, account=f"account-{number % 7}"), key=b"%d" % (number % 7))
        await producer.flush()
        for seen in (40, 150, 299):
            async with running(topic, cluster, ledger):
                await has_booked(ledger, seen)
    async with running(topic, cluster, ledger):
        await has_booked(ledger, 300)
    assert sum(ledger.balances().values()) == 300 * 100


async def test_a_leader_change_skips_no_payment(cluster: Cluster, ledger: Ledger) -> None:
    topic = await cluster.create_topic("payments")
    async with cluster.producer() as producer, running(topic, cluster, ledger):
        for number in range(50):
            await producer.send_and_wait(topic, payment(number))
            if number == 25:
                await cluster.kill(await cluster.leader_of(topic))
        await has_booked(ledger, 50)
    assert ledger.balances() == {"alice": 5000}


@simulated(seeds=20)
async def test_each_payment_is_booked_once_for_every_seed(cluster: Cluster) -> None:
    """The same code runs on virtual time, once per seed: the seed determines when brokers and connections die, and also the
    values of `random`, which decides when the consumer dies."""
    topic = await cluster.create_topic("payments", partitions=3)
    ledger = Ledger(sqlite3.connect(":memory:"))  # Created here and not by a fixture, because each seed needs its own.
    # A producer without idempotence stores a payment twice if a response is lost.
    async with cluster.producer(enable_idempotence=False) as producer:
        for number in range(12):
            async with running(topic, cluster, ledger):
                await producer.send_and_wait(topic, payment(number), key=b"%d" % number)
                await asyncio.sleep(random.uniform(0, 0.2))
    sent = len(await cluster.read_all(topic))
    async with running(topic, cluster, ledger):
        await has_booked(ledger, sent)
    assert ledger.balances() == {"alice": 12 * 100}
