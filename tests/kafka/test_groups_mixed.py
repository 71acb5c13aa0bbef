"""One group with members of different clients: they share the partitions, also after the coordinator has died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from mixed_members import TOPIC, AiokafkaMember, Judge, LibrdkafkaMember, Member, StrandlineMember
from waiting import until

from strandline.broker.coordination.partitioning import partition_of
from strandline.testing import Cluster

GROUP = "readers"
SETTINGS = {"offsets_topic_num_partitions": 3, "group_initial_rebalance_delay_ms": 0}
PARTITIONS = 6
WITHIN_S = 60.0
"""More than a session (45 s). Kafka's clients send LeaveGroup once, and a coordinator that was paused rejects it."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def classic(judge: Judge, cluster: Cluster) -> list[Member]:
    servers = cluster.kafka_bootstrap
    return [LibrdkafkaMember(judge, servers, GROUP, "classic"), AiokafkaMember(judge, servers, GROUP)]


def newer(judge: Judge, cluster: Cluster) -> list[Member]:
    servers = cluster.kafka_bootstrap
    return [LibrdkafkaMember(judge, servers, GROUP, "consumer"), StrandlineMember(judge, cluster.bootstrap_servers, GROUP)]


def both(judge: Judge, cluster: Cluster) -> list[Member]:
    """Members of both protocols in one group: the group has the newer protocol (online migration)."""
    return [*newer(judge, cluster), *classic(judge, cluster)]


class Records:
    """Writes records to all partitions, and waits until the members have committed them."""

    def __init__(self, producer: Any, judge: Judge) -> None:
        self._producer, self._judge = producer, judge
        self._ends = [0] * PARTITIONS

    async def _send(self) -> None:
        for partition in range(PARTITIONS):
            sent = await self._producer.send_and_wait(TOPIC, b"x", partition=partition)
            self._ends[partition] = sent.offset + 1

    async def are_read_by(self, members: int) -> None:
        """Send records until this many members share all partitions, and wait until all records are committed."""
        judge = self._judge
        await self._send()
        async with asyncio.timeout(WITHIN_S):
            while len(judge.shares()) != members or sum(judge.shares().values()) != PARTITIONS:
                await asyncio.sleep(0.05)
                await self._send()
        await until(lambda: [judge.committed.get(n) for n in range(PARTITIONS)] == self._ends, within_s=WITHIN_S)


@pytest.mark.parametrize("members_of", [classic, newer, both])
async def test_members_share_the_partitions(members_of: Callable[[Judge, Any], list[Member]]) -> None:
    judge = Judge()
    async with Cluster(brokers=3, kafka=True, **SETTINGS) as cluster:
        await cluster.create_topic(TOPIC, partitions=PARTITIONS)
        members = members_of(judge, cluster)
        ends = [asyncio.Event() for _ in members]
        running = [asyncio.create_task(member.run(end)) for member, end in zip(members, ends, strict=True)]
        try:
            async with cluster.producer() as producer:
                records = Records(producer, judge)
                await records.are_read_by(len(members))
                await cluster.kill(await cluster.leader_of("__consumer_offsets", partition_of(GROUP, 3)))
                await records.are_read_by(len(members))
                ends[0].set()
                await running[0]
                await records.are_read_by(len(members) - 1)
        finally:
            for end in ends:
                end.set()
            await asyncio.wait(running, timeout=WITHIN_S)
        assert not judge.wrong
        await asyncio.gather(*running)
