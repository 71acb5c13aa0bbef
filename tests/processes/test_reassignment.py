"""A hundred partitions move between five real brokers under load, while brokers are killed and restarted.

The moves are throttled, so that each fault finds many of them unfinished. The next targets replace those of the moves that have
not ended. At the end the moves run to their end, and the history and the logs are judged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest
import pytest_asyncio
from load import Load, until

from strandline.client import Admin, TopicPartition
from strandline.local_cluster import LocalCluster, Node
from strandline.protocol.errors import StrandlineError

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

PARTITIONS = 100
BROKERS = range(1, 6)
PRELOAD_MB = 4
RATE = 250_000
"""Bytes per second and broker: the moves of one round would take several seconds."""
BOUND_S = 120.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path_factory.mktemp("cluster"), brokers=len(BROKERS), controllers=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def whole() -> None:
    """Replaces the fixture that heals the cluster of this folder: this test heals its own."""


class Moves:
    """The reassignments of the load's topic."""

    def __init__(self, admin: Admin, topic: str, random: Random) -> None:
        self.admin, self.topic, self.random = admin, topic, random
        self.targets: dict[TopicPartition, list[int]] = {}

    async def begin(self) -> None:
        """Give every partition three random brokers, dead ones included, in place of the moves that run."""
        self.targets = {TopicPartition(self.topic, p): self.random.sample(BROKERS, 3) for p in range(PARTITIONS)}
        await self.apply(RATE)

    async def apply(self, throttle_rate: int | None) -> None:
        results = await self.admin.alter_partition_reassignments(self.targets, throttle_rate=throttle_rate)
        assert [result for result in results if result.code] == []

    async def left(self) -> int:
        try:
            return len(await self.admin.list_partition_reassignments())
        except StrandlineError:
            return PARTITIONS

    async def some_ended(self) -> None:
        """Wait until the first moves have ended. Most are then unfinished."""

        async def reached() -> bool:
            return await self.left() < PARTITIONS - 5

        await until(reached, "the first moves have ended", BOUND_S)

    async def all_ended(self) -> None:
        async def reached() -> bool:
            return await self.left() == 0

        await until(reached, "all moves have ended", BOUND_S)
        await until(self._is_at_target, "the broker that is asked has heard of it", BOUND_S)

    async def _is_at_target(self) -> bool:
        """Any broker may answer, and it may be a little behind the controller, which lists the moves."""
        (topic,) = await self.admin.describe_topics([self.topic])
        return {TopicPartition(self.topic, p.partition): list(p.replicas) for p in topic.partitions} == self.targets


def hosts_of(cluster: LocalCluster, topic: str) -> dict[TopicPartition, set[int]]:
    """The brokers on whose disks each partition has a directory."""
    found: dict[TopicPartition, set[int]] = {}
    for node in cluster.brokers:
        for folder in node.data.glob(f"{topic}-*"):
            name, _, index = folder.name.rpartition("-")
            if name == topic and index.isdigit():
                found.setdefault(TopicPartition(topic, int(index)), set()).add(node.id)
    return found


async def restart(cluster: LocalCluster, node: Node) -> None:
    await cluster.wait_ended(node.name)
    await cluster.start_node(node.name)


@pytest.mark.slow
async def test_nothing_is_lost_while_partitions_move_and_brokers_die(cluster: LocalCluster) -> None:
    """Each round gives all partitions new targets and kills one broker, which may be a leader, a new replica or one that leaves.
    It returns in the next round, into an assignment that is no longer its own."""
    random = Random(455)
    load = Load(cluster, "moves", partitions=PARTITIONS, interval_ms=500)
    async with load, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await load.preload(PRELOAD_MB)
        moves = Moves(admin, load.topic, random)
        dead: Node | None = None
        for victim in random.sample(BROKERS, 4):
            await moves.begin()
            if dead is not None:
                await restart(cluster, dead)
            await moves.some_ended()
            dead = cluster.broker(victim)
            cluster.kill(dead.name)
            await load.progress(PARTITIONS * 3, BOUND_S)
        assert dead is not None
        await restart(cluster, dead)
        await moves.apply(None)
        await moves.all_ended()
        await load.progress(PARTITIONS * 3, BOUND_S)
        await load.stop()
        await load.fully_replicated()
        targets = {tp: set(replicas) for tp, replicas in moves.targets.items()}
        await until(lambda: hosts_of(cluster, load.topic) == targets, "only the final replicas have logs", BOUND_S)
    verdict = await load.verdict()
    assert verdict.good, str(verdict)
    assert load.failed == []
    assert verdict.acknowledged == len(load.history.sends)
    for comparison in load.replicas():
        assert comparison.equal, str(comparison)
        assert comparison.logs[0].size > 0
