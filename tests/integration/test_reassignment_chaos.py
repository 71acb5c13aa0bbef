"""Reassignments while brokers and links fail, in simulated clusters: no acknowledged record is lost, and every move ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

from strandline.client import StrandlineError, TopicPartition
from strandline.testing import Cluster, simulated

MOVED = TopicPartition("moved", 0)
BROKERS = [1, 2, 3, 4, 5]


def targets(random: Random) -> Iterator[list[int] | None]:
    """Targets of two or three brokers, in any order; sometimes a cancellation."""
    while True:
        yield None if random.random() < 0.2 else random.sample(BROKERS, random.choice((2, 3, 3)))


@simulated(seeds=3, brokers=5, min_insync_replicas=2)
async def test_no_acknowledged_record_is_lost_while_replicas_move(cluster: Cluster) -> None:
    """Each seed draws other faults. The targets follow one another before the moves to the ones before are complete."""
    await cluster.create_topic(MOVED.topic, replicas=[[1, 2, 3]])
    wanted = targets(Random(17))
    async with cluster.producer(delivery_timeout_ms=60_000) as producer, cluster.admin() as admin:
        for number in range(30):
            await producer.send_and_wait(MOVED.topic, b"%d" % number, partition=0)
            if number % 3 == 0:
                try:
                    await admin.alter_partition_reassignments({MOVED: next(wanted)}, timeout_ms=2000)
                except StrandlineError:
                    pass  # The controllers may be away; the next target follows.
        await cluster.make_whole()
        async with asyncio.timeout(120):
            while await admin.list_partition_reassignments():
                await asyncio.sleep(0.5)
        (topic,) = await admin.describe_topics([MOVED.topic])
        assert len(topic.partitions[0].replicas) in (2, 3)
    await cluster.assert_no_acked_loss()
