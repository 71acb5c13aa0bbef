"""A topic that is deleted and recreated under one name while a consumer reads it, under faults and with brokers that are
behind."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.client.errors import LogTruncated, OffsetOutOfRange, StrandlineError, TopicRecreated, UnknownTopic
from strandline.testing import simulated
from strandline.testing.kit.simulated.cluster import SimulatedCluster as Cluster

GENERATIONS = 3
PLACE = ("orders", 0)


class Reader:
    """A consumer and its check: a record must follow the one before it, or be the first of a topic whose recreation was
    reported."""

    def __init__(self, policy: str = "error") -> None:
        self.policy = policy
        self.expected: tuple[int, int] | None = None
        """Generation and number of the next record; None: it is the first one of some generation."""
        self.seen: set[int] = set()

    def take(self, offset: int, value: bytes) -> None:
        generation, number = map(int, value.split())
        assert number == offset
        if self.policy == "earliest" and number == 0 and self.expected is not None and generation > self.expected[0]:
            self.expected = None  # The reset policy has started a newer topic at its beginning, without an error.
        assert (generation, number) == (self.expected or (generation, 0))
        self.expected = generation, number + 1
        self.seen.add(generation)

    async def read(self, servers: str) -> None:
        async with Consumer(bootstrap_servers=servers, auto_offset_reset=self.policy) as consumer:
            await self.assign(consumer)
            if self.policy == "error":
                consumer.seek(PLACE, 0)
            while True:
                try:
                    record = await consumer.getone(timeout_ms=300)
                except TopicRecreated:
                    self.expected = None
                    consumer.seek(PLACE, 0)
                except (OffsetOutOfRange, LogTruncated):
                    raise
                except StrandlineError:
                    await asyncio.sleep(0.1)
                else:
                    self.take(record.offset, record.value)

    async def assign(self, consumer: Consumer) -> None:
        while not consumer.assignment():
            with suppress(UnknownTopic):
                await consumer.assign([PLACE])


async def write(servers: str, generation: int, count: int) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for number in range(count):
            await producer.send_and_wait("orders", b"%d %d" % (generation, number), partition=0)


async def recreate(admin: Admin, met: set[bytes]) -> None:
    """Recreate the topic. Repeats each request until faults let it pass; brokers may have older metadata than the last answer."""
    while True:
        with suppress(UnknownTopic):
            await admin.delete_topics(["orders"])
        await asyncio.sleep(random.uniform(0, 3))
        with suppress(StrandlineError):
            (made,) = await admin.create_topics([NewTopic("orders", partitions=1, replication_factor=3)])
            if made.topic_id not in met:
                met.add(made.topic_id)
                return


@simulated(seeds=6)
async def test_recreated_topic_is_not_read_at_old_position(cluster: Cluster) -> None:
    await recreate_while_reading(cluster, Reader())


@simulated(seeds=6)
async def test_reset_policy_reads_each_recreated_topic_from_its_beginning(cluster: Cluster) -> None:
    await recreate_while_reading(cluster, Reader("earliest"))


async def recreate_while_reading(cluster: Cluster, reader: Reader) -> None:
    servers = cluster.bootstrap_servers
    async with Admin(bootstrap_servers=servers) as admin:
        met: set[bytes] = set()
        await recreate(admin, met)
        await write(servers, 0, 5)
        reading = asyncio.create_task(reader.read(servers))
        for generation in range(1, GENERATIONS):
            await recreate(admin, met)
            await write(servers, generation, random.randint(1, 15))
            await asyncio.sleep(random.uniform(0, 4))
        async with asyncio.timeout(120):
            while GENERATIONS - 1 not in reader.seen and not reading.done():
                await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled() or reading.result() is None
