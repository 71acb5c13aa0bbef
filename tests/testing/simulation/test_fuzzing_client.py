"""The lying client: no server of a cluster accepts a lie, or is harmed by one."""

from __future__ import annotations

import asyncio
from contextlib import closing
from random import Random
from typing import Any

import pytest

from strandline.client import NewTopic
from strandline.protocol.apis import BROKER, CONTROLLER
from strandline.protocol.records.check import RecordTimes
from strandline.testing.simulation.cluster import fuzzing_client
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, CONTROLLER_PORT, SimCluster
from strandline.testing.simulation.cluster.fuzzing_client import ANSWERED, CLOSED, REFUSED, SILENT, UNREACHABLE, Findings, Target
from strandline.testing.simulation.kernel.machine import EPOCH_MS
from strandline.testing.simulation.kernel.world import World

TOPIC = "orders"
LIES = 400


def targets(cluster: SimCluster) -> list[Target]:
    machines = cluster.machines
    brokers = [Target(machines[node].address, BROKER_PORT, BROKER) for node in cluster.broker_ids]
    return brokers + [Target(machines[node].address, CONTROLLER_PORT, CONTROLLER) for node in cluster.controller_ids]


async def lie(cluster: SimCluster, seed: int, lies: int = LIES) -> Findings:
    client = cluster.client("liar")

    async def work() -> Findings:
        connect = asyncio.get_running_loop().create_connection
        return await fuzzing_client.run(connect, Random(seed), targets(cluster), lies=lies, now_ms=EPOCH_MS + 10_000)

    findings: Findings = await client.run(work())
    return findings


async def produce(cluster: SimCluster, count: int) -> list[int]:
    """Produce `count` records; returns their offsets."""
    client = cluster.client()

    async def work() -> list[int]:
        async with client.producer() as producer:
            return [(await producer.send_and_wait(TOPIC, b"%d" % n, partition=0)).offset for n in range(count)]

    offsets: list[int] = await client.run(work())
    return offsets


async def create_topic(cluster: SimCluster) -> None:
    client = cluster.client()

    async def work() -> None:
        async with client.admin() as admin:
            await admin.create_topics([NewTopic(TOPIC, 2, 3)])

    await client.run(work())


def what_it_holds(cluster: SimCluster) -> Any:
    """The state of the cluster: metadata, the ends of the logs, and the controllers' epochs."""
    image = cluster.image()
    logs = {(n, p.key): p.log.log_end_offset for n, b in cluster.brokers.items() for p in b.replicas.partitions.values()}
    epochs = {n: controller.quorum.epoch for n, controller in cluster.controllers.items()}
    return image.topics_by_id, image.brokers, image.configs, logs, epochs


@pytest.mark.parametrize("seed", range(6))
def test_no_lie_is_accepted_and_the_cluster_keeps_working(seed: int) -> None:
    """Metadata, logs and quorum are as they were, no loop has an unhandled exception (the world would raise it), and records are
    acknowledged and numbered as if nothing had been sent."""
    with closing(World(seed)) as world:
        cluster = SimCluster(world, controllers=3, brokers=3)

        async def story() -> Findings:
            await cluster.start_all(30)
            await create_topic(cluster)
            assert await produce(cluster, 3) == [0, 1, 2]
            await world.sleep(2)
            before = what_it_holds(cluster)
            findings = await lie(cluster, seed)
            assert what_it_holds(cluster) == before
            assert await produce(cluster, 3) == [3, 4, 5]
            return findings

        findings = world.run(story())
    assert findings.accepted == []
    assert findings.count(REFUSED) > LIES / 2
    assert findings.count(CLOSED)
    assert findings.count(ANSWERED), "oddities are answered"
    assert findings.count(UNREACHABLE) == 0
    assert {name for name, of_lie in findings.outcomes.items() if SILENT in of_lie} <= {
        "bytes: half a frame",
        "bytes: a request with a changed byte",
    }


def test_the_same_seed_tells_the_same_lies() -> None:
    def outcomes() -> Any:
        with closing(World(1)) as world:
            cluster = SimCluster(world, controllers=1, brokers=1)

            async def story() -> Findings:
                await cluster.start_all(30)
                return await lie(cluster, 5, lies=60)

            return world.run(story()).outcomes

    assert outcomes() == outcomes()


def test_accepted_lie_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a leader that does not look at records is found."""
    monkeypatch.setattr("strandline.storage.log.validation.check_records", lambda *args: RecordTimes(*args[2][7:9]))
    monkeypatch.setattr("strandline.storage.log.record_rules.is_out_of_range", lambda *_: False)
    with closing(World(1)) as world:
        cluster = SimCluster(world, controllers=1, brokers=3)

        async def story() -> Findings:
            await cluster.start_all(30)
            await create_topic(cluster)
            return await lie(cluster, 5)

        assert any(accepted.lie.startswith("Produce: ") for accepted in world.run(story()).accepted)
