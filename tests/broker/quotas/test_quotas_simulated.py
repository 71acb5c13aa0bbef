"""Quotas in a whole cluster on virtual time: our clients against our brokers (`broker/quotas/`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline import NewTopic, QuotaEntity, RequestFailed, RequestTimeout
from strandline.testing import simulated

RATE = 100_000.0
RECORD = bytes(1000)


async def flood(producer: Any, until: float) -> None:
    """Send as fast as the producer takes it."""
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await producer.send("orders", RECORD)


async def fill(cluster: Any, records: int) -> None:
    async with cluster.producer() as producer:
        for _ in range(records):
            await producer.send("orders", RECORD)
        await producer.flush()


@simulated(seeds=1, faults=None, brokers=3)
async def test_producer_gets_its_byte_rate_over_a_minute(cluster: Any) -> None:
    """A client that always has more to send keeps to its rate within 5 % over 60 s. The other client is not slowed down."""
    loop = asyncio.get_running_loop()
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    async with cluster.admin() as admin:
        await admin.alter_client_quotas(QuotaEntity(client_id="greedy"), {"producer_byte_rate": RATE})
    async with (
        cluster.producer(client_id="greedy", linger_ms=5, buffer_memory=1 << 20) as greedy,
        cluster.producer(client_id="modest") as modest,
    ):
        began_at = loop.time()
        flooding = asyncio.create_task(flood(greedy, began_at + 60))
        slowest = 0.0
        while loop.time() < began_at + 60:
            sent_at = loop.time()
            await modest.send_and_wait("orders", b"x")
            slowest = max(slowest, loop.time() - sent_at)
            await asyncio.sleep(0.5)
        acked = greedy.metrics()["records"] * len(RECORD)
        await flooding
        assert 0.95 * RATE * 60 <= acked <= 1.05 * RATE * 60, acked
        assert slowest < 0.5, slowest
        assert greedy.metrics()["produce_throttle_time_max"] > 0
        assert modest.metrics()["produce_throttle_time_max"] == 0


@simulated(seeds=1, faults=None, brokers=3)
async def test_consumer_gets_its_byte_rate_over_a_minute(cluster: Any) -> None:
    """The client keeps to its rate within 5 % over 60 s, although the log holds far more than it may fetch."""
    loop = asyncio.get_running_loop()
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    await fill(cluster, 9000)
    async with cluster.admin() as admin:
        await admin.alter_client_quotas(QuotaEntity(client_id="greedy"), {"consumer_byte_rate": RATE})
    async with cluster.consumer("orders", client_id="greedy", auto_offset_reset="earliest") as consumer:
        began_at, received = loop.time(), 0
        while loop.time() < began_at + 60:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                received += sum(len(record.value) for record in records)
        assert 0.95 * RATE * 60 <= received <= 1.05 * RATE * 60, received
        assert consumer.metrics()["fetch_throttle_time_max"] > 0


@simulated(seeds=1, faults=None, brokers=3)
async def test_replication_is_not_counted(cluster: Any) -> None:
    """The default quota of all clients does not slow followers down: the ISR stays whole under load."""
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    async with cluster.admin() as admin:
        await admin.alter_client_quotas(QuotaEntity(client_id="<default>"), {"consumer_byte_rate": 1000.0})
        await admin.alter_client_quotas(QuotaEntity(user="<default>"), {"request_percentage": 1.0})
        await fill(cluster, 3000)
        (topic,) = await admin.describe_topics(["orders"])
        assert len(topic.partitions[0].isr) == 3


@simulated(seeds=1, faults=None, brokers=3)
async def test_removed_quota_ends_the_throttling(cluster: Any) -> None:
    """An operator removes a quota that was too low. Only the throttle times that the client has already received still apply."""
    loop = asyncio.get_running_loop()
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    async with cluster.admin() as admin, cluster.producer(client_id="greedy", linger_ms=5) as producer:
        await admin.alter_client_quotas(QuotaEntity(user="ANONYMOUS"), {"producer_byte_rate": 10_000.0})
        for _ in range(100):
            await producer.send("orders", RECORD)
        began_at = loop.time()
        await producer.flush()
        assert loop.time() - began_at > 1
        await admin.alter_client_quotas(QuotaEntity(user="ANONYMOUS"), {"producer_byte_rate": None})
        assert await admin.describe_client_quotas() == {}
        await asyncio.sleep(12)
        began_at = loop.time()
        for _ in range(1000):
            await producer.send("orders", RECORD)
        await producer.flush()
        assert loop.time() - began_at < 1


@simulated(seeds=1, faults=None, brokers=3)
async def test_group_member_that_is_throttled_stays_a_member(cluster: Any) -> None:
    """Heartbeats have a connection of their own, which is not muted with that of the fetches."""
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    await fill(cluster, 3000)
    async with cluster.admin() as admin:
        await admin.alter_client_quotas(QuotaEntity(client_id="greedy"), {"consumer_byte_rate": 1000.0})
    async with cluster.consumer("orders", client_id="greedy", group_id="g", auto_offset_reset="earliest") as consumer:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while loop.time() < began_at + 90:
            await consumer.getmany(timeout_ms=1000)
        group = consumer.metrics()["group"]
        assert group["partitions_lost"] == 0, group
        assert consumer.metrics()["fetch_throttle_time_max"] > 5000


@simulated(seeds=1, faults=None, brokers=3)
async def test_admin_waits_until_its_mutations_are_permitted(cluster: Any) -> None:
    """The controller refuses single topics, the broker forwards the user and the client id, and the admin client asks again
    within its timeout."""
    loop = asyncio.get_running_loop()
    async with cluster.admin(client_id="scripted") as admin:
        await admin.alter_client_quotas(QuotaEntity(client_id="scripted"), {"controller_mutation_rate": 2.0})
        await asyncio.sleep(1)
        began_at = loop.time()
        for number in range(4):
            await admin.create_topics([NewTopic(f"t{number}", 10, 3)])
        assert 3.9 < loop.time() - began_at < 6, "22 partitions are free; the third topic exceeds them by 8, at 2 per second"
        with pytest.raises((RequestFailed, RequestTimeout), match="controller_mutation_rate"):
            await admin.create_topics([NewTopic("t4", 10, 3)], timeout_ms=1000)
    async with cluster.admin(client_id="other") as admin:
        began_at = loop.time()
        await admin.create_topics([NewTopic("free", 50, 3)])
        assert loop.time() - began_at < 2


@simulated(seeds=1, faults=None, brokers=3)
async def test_throttled_broker_is_not_suspected(cluster: Any) -> None:
    """A broker that reads nothing for seconds looks like one that hangs, but the client must not close the connection."""
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    async with cluster.admin() as admin:
        await admin.alter_client_quotas(QuotaEntity(client_id="greedy"), {"producer_byte_rate": 2000.0})
    async with cluster.producer(client_id="greedy", linger_ms=5, batch_size=16_000) as producer:
        for _ in range(60):
            await producer.send("orders", RECORD)
        await producer.flush()
        metrics = producer.metrics()
        assert metrics["produce_throttle_time_max"] > 4000
        assert metrics["retries"] == 0
