"""Named producers in a simulated cluster: each row is stored once, although attempts and leaders die."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from thorough import examples

from strandline.client import Admin, Producer, TopicPartition
from strandline.client.errors import DeliveryFailed, ProducerFenced, RequestTimeout
from strandline.testing import simulated
from strandline.testing.kit.simulated.cluster import SimulatedCluster as Cluster

ROWS = 60
PLACES = [TopicPartition("rows", 0), TopicPartition("rows", 1)]
WITHIN_S = 120.0


def row(work_epoch: int, place: TopicPartition, number: int) -> bytes:
    """Return the row of this number, which is the same in every attempt."""
    return b"%d-%d-%d" % (work_epoch, place.partition, number)


class Attempt:
    """Writes all rows of a work epoch like a task of a job: it asks how many rows are stored, and writes the others."""

    def __init__(self, cluster: Cluster, work_epoch: int) -> None:
        self.work_epoch = work_epoch
        self.producer = Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            producer_name="sink",
            producer_work_epoch=work_epoch,
            batch_size=150,
            delivery_timeout_ms=5_000,
            request_timeout_ms=2_000,
        )
        self.has_name = asyncio.Event()
        self.task: asyncio.Task[str]

    def begin(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str:
        try:
            await self.producer.start()
            self.has_name.set()
            while True:
                try:
                    there = await self.producer.written(PLACES)
                    if min(there.values()) == ROWS:
                        return "done"
                    await self._write(there)
                except (DeliveryFailed, RequestTimeout) as e:
                    if isinstance(e, ProducerFenced):
                        raise
                    await self.producer.flush()
        except ProducerFenced:
            return "fenced"

    async def _write(self, there: dict[TopicPartition, int]) -> None:
        receipts = []
        for number in range(min(there.values()), ROWS):
            for place in PLACES:
                if number >= there[place]:
                    value = row(self.work_epoch, place, number)
                    receipts.append(await self.producer.send("rows", value, partition=place.partition))
            await asyncio.sleep(0.01)
        for receipt in receipts:
            await receipt

    async def die(self) -> None:
        """End the attempt at any point; batches that it has sent may still arrive."""
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.producer.stop(timeout_ms=0)


async def work_epoch_of_attempts(cluster: Cluster, work_epoch: int) -> Attempt:
    """Run three attempts: the first dies, the second becomes a zombie, the third writes while a leader is killed. Returns the
    zombie."""
    dead, zombie, last = (Attempt(cluster, work_epoch) for _ in range(3))
    dead.begin()
    await asyncio.sleep(0.3)
    await dead.die()
    zombie.begin()
    async with asyncio.timeout(WITHIN_S):
        await zombie.has_name.wait()
    await asyncio.sleep(0.2)
    last.begin()
    await asyncio.sleep(0.1)
    leader = await cluster.leader_of("rows", work_epoch % 2)
    await cluster.kill(leader)
    await asyncio.sleep(1.0)
    await cluster.start(leader, wait=False)  # If it was the last in-sync replica, no other one could lead.
    async with asyncio.timeout(WITHIN_S):
        outcomes = await asyncio.gather(last.task, zombie.task)
    assert outcomes[0] == "done", "nobody newer has the name"
    await last.producer.stop()
    return zombie


@simulated(seeds=examples(24))
async def test_each_row_is_stored_once_and_in_order(cluster: Cluster) -> None:
    await cluster.create_topic("rows", partitions=2)
    zombies = [await work_epoch_of_attempts(cluster, work_epoch) for work_epoch in (1, 2)]
    for zombie in zombies[:1]:
        with pytest.raises(ProducerFenced):
            await zombie.producer.send_and_wait("rows", b"of a work epoch that is over", partition=0)
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for place, found in (await admin.describe_producers(PLACES)).items():
            (known,) = found.producers
            assert (known.name, known.work_epoch, known.last_sequence) == ("sink", 2, ROWS - 1), place
    for zombie in zombies:
        await zombie.producer.stop(timeout_ms=0)
    await cluster.heal()
    values: dict[int, list[Any]] = {0: [], 1: []}
    for record in await cluster.read_all("rows"):
        values[record.partition].append(record.value)
    for place in PLACES:
        assert values[place.partition] == [row(g, place, n) for g in (1, 2) for n in range(ROWS)]


@simulated(seeds=8, faults=None)
async def test_a_name_keeps_its_id_after_a_controller_change(cluster: Cluster) -> None:
    """The controller loses its memory: the next one knows the owner of the name from the metadata log."""
    await cluster.create_topic("rows", partitions=2)
    epochs = []
    for _ in range(3):
        attempt = Attempt(cluster, 7)
        attempt.begin()
        async with asyncio.timeout(WITHIN_S):
            await attempt.task
        (known,) = (await described(cluster))[PLACES[0]].producers
        epochs.append(known.producer_epoch)
        await attempt.producer.stop()
        (controller,) = cluster.controllers
        await cluster.kill(controller)
        await cluster.start(controller)
    assert epochs == [0, 0, 0], "the second and the third found all rows, and wrote nothing"
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, producer_name="sink", producer_work_epoch=7) as fourth:
        await fourth.written(PLACES)
        await fourth.send_and_wait("rows", b"more", partition=0)
    (known,) = (await described(cluster))[PLACES[0]].producers
    assert (known.producer_epoch, known.last_sequence) == (3, ROWS)


async def described(cluster: Cluster) -> Any:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return await admin.describe_producers(PLACES)


@simulated(seeds=10)
async def test_a_producer_alone_may_move_rows_to_other_partitions(cluster: Cluster) -> None:
    """Each attempt distributes the rows to other partitions than the one before. It compares the stored rows with its own and
    writes the missing ones: if no older attempt can write meanwhile, each row is stored once."""
    await cluster.create_topic("rows", partitions=2)
    rows = {b"%d" % number for number in range(ROWS)}

    async def attempt(number: int, has_begun: asyncio.Event) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            producer_name="sink",
            producer_note=b"of attempt %d" % number,
            batch_size=150,
            delivery_timeout_ms=20_000,
        ) as producer:
            has_begun.set()
            there = await producer.written(PLACES, alone=not producer.is_first_attempt)
            assert producer.note == b"of attempt 0"
            known = {value for place, count in there.items() for value in (await values_of(cluster, place))[:count]}
            for index, value in enumerate(sorted(rows - known)):
                await producer.send("rows", value, partition=(index + number) % 2)
                await asyncio.sleep(0.01)
            await producer.flush()

    attempts = []
    async with asyncio.timeout(WITHIN_S):
        for number in range(4):
            has_begun = asyncio.Event()
            attempts.append(asyncio.create_task(attempt(number, has_begun)))
            await has_begun.wait()  # If messages are lost, the attempt that asks for the name first need not get it first.
            await asyncio.sleep(0.4 if number else 1.0)
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert outcomes[-1] is None, outcomes
    written = [value for place in PLACES for value in await values_of(cluster, place)]
    assert sorted(written) == sorted(rows)


async def values_of(cluster: Cluster, place: TopicPartition) -> list[bytes]:
    return [record.value for record in await cluster.read_all("rows") if record.partition == place.partition]
