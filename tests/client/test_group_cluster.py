"""Members of a group against real brokers: in one process, and under simulation with faults."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress

from thorough import examples
from waiting import until

from strandline.client import Consumer, NewTopic, Producer, TopicPartition
from strandline.client.errors import StrandlineError
from strandline.testing import Cluster, simulated
from strandline.testing.kit.simulated.cluster import SimulatedCluster

PARTITIONS = 4


async def fill(cluster: Cluster, count: int, first: int = 0) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(first, first + count):
            await producer.send("orders", b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()


def member(cluster: Cluster, **options: object) -> Consumer:
    defaults = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": "g", "auto_offset_reset": "earliest"}
    return Consumer("orders", **{**defaults, **options})


async def work(consumer: Consumer, seen: Counter[bytes]) -> None:
    while True:
        for records in (await consumer.getmany(timeout_ms=100, max_records=20)).values():
            seen.update(record.value for record in records)
        await asyncio.sleep(0)


async def test_group_reads_everything_once_while_members_come_and_go() -> None:
    """Members that leave in order hand over exactly the records that they have not finished."""
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders", partitions=PARTITIONS)
        seen: Counter[bytes] = Counter()
        async with member(cluster) as first:
            reading = asyncio.create_task(work(first, seen))
            await fill(cluster, 400)
            await until(lambda: len(seen) == 400)
            async with member(cluster) as second:
                other = asyncio.create_task(work(second, seen))
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                await fill(cluster, 400, 400)
                await until(lambda: len(seen) == 800)
                other.cancel()
                await asyncio.wait([other])
            await until(lambda: len(first.assignment()) == 4)
            await fill(cluster, 400, 800)
            await until(lambda: len(seen) == 1200)
            reading.cancel()
            await asyncio.wait([reading])
        assert set(seen.values()) == {1}
        async with member(cluster) as last:
            assert await last.committed(TopicPartition("orders", 0)) == 300


async def test_group_survives_the_death_of_its_coordinator() -> None:
    """The next coordinator has the member, its epoch, and the committed offsets: no member loses a partition."""
    async with Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=PARTITIONS)
        await fill(cluster, 100)
        seen: Counter[bytes] = Counter()
        async with member(cluster) as consumer:
            reading = asyncio.create_task(work(consumer, seen))
            await until(lambda: len(seen) == 100)
            coordinator = consumer.health()["group"]["coordinator"]
            await cluster.kill(coordinator)
            await consumer.commit()
            await fill(cluster, 100, 100)
            await until(lambda: len(seen) == 200)
            await until(lambda: consumer.health()["group"]["coordinator"] not in (-1, coordinator))
            group = consumer.metrics()["group"]
            assert (group["partitions_lost"], group["partitions_assigned"]) == (0, 4)
            reading.cancel()
            await asyncio.wait([reading])
        assert set(seen.values()) == {1}


async def test_crashed_member_is_replaced() -> None:
    """Its process has ended without leaving the group; its connection is closed, and no heartbeat follows."""
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders", partitions=PARTITIONS)
        await fill(cluster, 100)
        seen: Counter[bytes] = Counter()
        crashing = member(cluster, heartbeat_thread=False)
        await crashing.start()
        await until(lambda: len(crashing.assignment()) == 4)
        async with member(cluster) as consumer:
            reading = asyncio.create_task(work(consumer, seen))
            link = crashing._group._link  # type: ignore[union-attr]
            await link.close()  # type: ignore[union-attr]
            await until(lambda: len(seen) == 100, within_s=15)
            reading.cancel()
            await asyncio.wait([reading])
        await crashing.stop(timeout_ms=100)


class Watched:
    """Members in one simulated cluster, and their common check: no two of them return records of one partition at a time."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.consumers: dict[int, Consumer] = {}
        self.seen: Counter[bytes] = Counter()

    async def run(self, number: int) -> None:
        """Run a program that starts again when something fails."""
        while True:
            with suppress(StrandlineError):
                async with member(self.cluster, auto_commit_interval_ms=500) as consumer:
                    self.consumers[number] = consumer
                    await self._work(number, consumer)
            del self.consumers[number]

    async def _work(self, number: int, consumer: Consumer) -> None:
        while True:
            for tp, records in (await consumer.getmany(timeout_ms=100, max_records=5)).items():
                others = [other for i, other in self.consumers.items() if i != number and reads(other, tp)]
                assert not others, f"{tp} is read by two members"
                self.seen.update(record.value for record in records)
            await asyncio.sleep(0.02)


def reads(consumer: Consumer, tp: TopicPartition) -> bool:
    """Whether the next call may return records of the partition."""
    group, state = consumer._group, consumer._subscription.states.get(tp)
    if group is None or state is None or state.is_held or consumer.health()["state"] == "stopped":
        return False
    return group.view.tenure == group._tenure and asyncio.get_running_loop().time() < group.view.valid_until


async def come_and_go(watched: Watched, tasks: dict[int, asyncio.Future[None]]) -> None:
    """Stop a member every few seconds, sometimes without leaving the group, and start another."""
    for number in range(3, 9):
        await asyncio.sleep(2.5)
        leaving = min(tasks)
        consumer = watched.consumers.get(leaving)
        if number % 2 and consumer is not None and consumer._group is not None and consumer._group._link is not None:
            await consumer._group._link.close()
        task = tasks.pop(leaving)
        task.cancel()
        await asyncio.wait([task])
        tasks[number] = asyncio.ensure_future(watched.run(number))


@simulated(seeds=examples(12), limit_s=400)
async def test_simulated_group_reads_everything_and_shares_nothing(cluster: SimulatedCluster) -> None:
    """Under drawn faults each record is read, and no partition by two members at a time. No thread takes part."""
    threads = threading.active_count()
    async with cluster.admin() as admin:
        await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
    watched = Watched(cluster)
    tasks = {number: asyncio.ensure_future(watched.run(number)) for number in range(3)}
    going = asyncio.ensure_future(come_and_go(watched, tasks))
    for first in range(0, 400, 20):
        await fill(cluster, 20, first)
        await asyncio.sleep(1)
    await going
    while len(watched.seen) < 400:
        await asyncio.sleep(0.5)
        for task in tasks.values():
            assert not task.done(), task
    assert threading.active_count() == threads
    for task in tasks.values():
        task.cancel()
    await asyncio.wait(tasks.values())
