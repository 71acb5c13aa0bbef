"""Shared by the tests of `Consumer.run`: a scripted cluster with topics for failed records, and a `run` in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from strandline.client import Consumer, ConsumerRecord, TopicPartition
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records

from .group_world import member
from .scripted import ScriptedCluster
from .scripted_groups import ScriptedGroups

RETRY, DEAD = "orders.retry", "orders.dead"
Seen = list[tuple[int, int]]
"""Partitions and offsets, in the order in which they were handled."""


@asynccontextmanager
async def cluster_with(
    *keys: str, interval_ms: int = 100, retry_partitions: int = 1
) -> AsyncIterator[tuple[ScriptedCluster, ScriptedGroups]]:
    """A cluster whose topic `orders` has a partition for each of `keys`, with a record for each letter, which is its key. The
    value of a record is `partition:offset`. There is an empty topic for records that are retried, and one for dead letters."""
    cluster = ScriptedCluster()
    groups = ScriptedGroups(cluster, interval_ms)
    async with cluster:
        cluster.create("orders", len(keys))
        cluster.create(RETRY, retry_partitions)
        cluster.create(DEAD)
        for index, letters in enumerate(keys):
            add(cluster, index, letters)
        yield cluster, groups


def add(cluster: ScriptedCluster, index: int, letters: str) -> None:
    """Append a batch with a record for each letter to a partition of `orders`."""
    partition = cluster.partition("orders", index)
    first = partition.end_offset
    rows = [
        (None if letter == "-" else letter.encode(), b"%d:%d" % (index, first + n), [], 1_700_000_000_000 + n)
        for n, letter in enumerate(letters)
    ]
    if rows:
        partition.append(memoryview(bytearray(encode_batch(rows))))


AnyHandler = Callable[..., Awaitable[object] | object]


@asynccontextmanager
async def running(
    cluster: ScriptedCluster, handler: AnyHandler, options: dict[str, Any] | None = None, **run: Any
) -> AsyncIterator[tuple[Consumer, asyncio.Task[None]]]:
    """A member of the group that runs the handler. Both stop when the block ends."""
    async with member(cluster, **(options or {})) as consumer:
        task = asyncio.ensure_future(consumer.run(handler, **run))
        await asyncio.sleep(0)
        try:
            yield consumer, task
        finally:
            consumer.end_run()
            with suppress(Exception):
                await task


def records_of(cluster: ScriptedCluster, topic: str, index: int = 0) -> list[ConsumerRecord]:
    """The records of a topic's partition, as a consumer would return them."""
    return [
        ConsumerRecord(topic, index, record.offset, record.timestamp_ms, record.key, record.value, tuple(record.headers), 0)
        for _, batch in cluster.partition(topic, index).log.batches
        for record in iter_records(batch)
    ]


def origins(cluster: ScriptedCluster, topic: str) -> list[bytes | None]:
    """The values of a topic's records, which name the partition and offset of origin."""
    return [record.value for record in records_of(cluster, topic)]


def place(record: ConsumerRecord) -> tuple[int, int]:
    return record.partition, record.offset


class Gate:
    """A handler that notes its records, and waits for permission to finish each."""

    def __init__(self) -> None:
        self.begun: Seen = []
        self.done: Seen = []
        self.gates: dict[tuple[int, int], asyncio.Event] = {}
        self.cancelled: Seen = []

    async def handle(self, record: ConsumerRecord) -> None:
        gate = self.gates.setdefault(place(record), asyncio.Event())
        self.begun.append(place(record))
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(place(record))
            raise
        self.done.append(place(record))

    def open(self, *places: tuple[int, int]) -> None:
        for each in places:
            self.gates.setdefault(each, asyncio.Event()).set()


P = [TopicPartition("orders", index) for index in range(4)]
