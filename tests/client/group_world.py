"""Shared by the tests of group members: a scripted cluster with a topic, members of the group `g`, and ways to read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from waiting import until

from strandline.client import Consumer, TopicPartition

from .scripted import ScriptedCluster
from .scripted_groups import ScriptedGroups
from .test_consumer import fill

P0, P1, P2, P3 = (TopicPartition("orders", index) for index in range(4))


@asynccontextmanager
async def scripted(
    partitions: int = 4, records: int = 20, interval_ms: int = 100, on_made: Callable[[ScriptedGroups], object] | None = None
) -> AsyncIterator[tuple[ScriptedCluster, ScriptedGroups]]:
    """A cluster with a topic `orders` that has `records` records in each partition, in batches of ten. `on_made` is called before
    its brokers start."""
    cluster = ScriptedCluster()
    groups = ScriptedGroups(cluster, interval_ms)
    if on_made is not None:
        on_made(groups)
    async with cluster:
        cluster.create("orders", partitions)
        for index in range(partitions):
            fill(cluster, "orders", records, index)
        yield cluster, groups


def member(cluster: ScriptedCluster, *topics: str, **options: object) -> Consumer:
    """A consumer of the group, without a thread unless `options` say so."""
    defaults = {
        "bootstrap_servers": cluster.bootstrap,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "heartbeat_thread": False,
        "retry_backoff_ms": 10,
    }
    return Consumer(*(topics or ("orders",)), **{**defaults, **options})


async def read(consumer: Consumer, count: int) -> dict[int, list[int]]:
    """Read `count` records; returns their offsets by partition. The records of the last call are unfinished."""
    seen: dict[int, list[int]] = {}
    async with asyncio.timeout(10):
        while sum(map(len, seen.values())) < count:
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                seen.setdefault(tp.partition, []).extend(record.offset for record in records)
    return seen


def state_of(consumer: Consumer) -> str:
    return str(consumer.health()["group"]["state"])


def is_settled(consumer: Consumer, *indexes: int) -> bool:
    """Whether the consumer owns exactly these partitions of `orders`, and its membership is stable."""
    return consumer.assignment() == {TopicPartition("orders", i) for i in indexes} and state_of(consumer) == "stable"


async def until_settled(consumer: Consumer, *indexes: int) -> None:
    await until(lambda: is_settled(consumer, *indexes), f"the partitions {indexes}, stable")


async def poll_until_settled(consumer: Consumer, *indexes: int) -> None:
    """Keep calling `getmany`, as a program does that reads all the time, until the consumer is settled. Drops the records."""
    async with asyncio.timeout(10):
        while not is_settled(consumer, *indexes):
            await consumer.getmany(timeout_ms=5)


@contextmanager
def scripted_on_a_thread(**options: Any) -> Iterator[tuple[ScriptedCluster, ScriptedGroups]]:
    """`scripted` on an event loop of its own, for tests that block theirs. A test may change something only between requests."""
    started = threading.Event()
    found: list[tuple[ScriptedCluster, ScriptedGroups, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with scripted(**options) as (cluster, groups):
            done = asyncio.Event()
            found.append((cluster, groups, asyncio.get_running_loop(), done))
            started.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert started.wait(10)
    cluster, groups, loop, done = found[0]
    try:
        yield cluster, groups
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
