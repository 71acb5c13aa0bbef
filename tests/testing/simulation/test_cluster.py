"""The production cluster on simulated machines: its nodes start, run and end as real nodes do."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from strandline.broker.process.server import BrokerServer
from strandline.client import TopicPartition
from strandline.client.errors import NoBrokersAvailable
from strandline.controller.server import ControllerServer
from strandline.protocol.errors import UsageError
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.world import ProcessGone, Unhandled, World

TOPIC = "orders"


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World(1)) as world:
        yield world


def run(world: World, story: Callable[[], Any]) -> None:
    world.run(story())


async def produce(cluster: SimCluster, count: int = 10) -> None:
    client = cluster.client()

    async def work() -> None:
        async with client.producer() as producer:
            for number in range(count):
                await producer.send_and_wait(TOPIC, b"%d" % number, partition=0)

    await client.run(work())


async def read(cluster: SimCluster, count: int) -> list[bytes]:
    client = cluster.client()

    async def work() -> list[bytes]:
        values: list[bytes] = []
        async with client.consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition(TOPIC, 0)])
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    values += [record.value for record in records]
        return values

    return list(await client.run(work()))


async def with_topic(cluster: SimCluster, replication_factor: int) -> None:
    await cluster.start_all()
    await cluster.create_topic(TOPIC, partitions=1, replication_factor=replication_factor)


async def until_led(cluster: SimCluster) -> int:
    """Wait until the topic's partition has a leader that knows its role; returns the leader."""

    def leader() -> int:
        return int(cluster.image().partition((cluster.topic_id(TOPIC), 0)).leader)

    def leads() -> bool:
        partition = cluster.partition(leader(), TOPIC)
        return partition is not None and partition.leader_state is not None

    await cluster.world.until(lambda: leader() >= 0 and leads(), what="a leader")
    return leader()


# -- clusters of all sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("controllers", "brokers"), [(1, 1), (1, 3), (3, 3), (5, 2)])
def test_a_cluster_starts_and_keeps_what_is_written(world: World, controllers: int, brokers: int) -> None:
    cluster = SimCluster(world, controllers=controllers, brokers=brokers)

    async def story() -> None:
        await with_topic(cluster, brokers)
        await produce(cluster)
        assert await read(cluster, 10) == [b"%d" % number for number in range(10)]
        assert cluster.active_controller is not None
        assert cluster.failures == []

    run(world, story)


def test_nodes_and_clients_can_find_each_other_by_name(world: World) -> None:
    """They look names up, as containers do. A client that asks a silent resolver waits, and no other client does."""
    cluster = SimCluster(world, controllers=3, brokers=3, names=True)
    assert cluster.bootstrap_servers == "broker-1:9092,broker-2:9092,broker-3:9092"
    assert "101@controller-101:9093" in cluster.voters

    async def story() -> None:
        await with_topic(cluster, 3)
        await produce(cluster)
        leader = await until_led(cluster)
        world.network.silent_names |= {f"broker-{node}" for node in cluster.broker_ids if node != leader}
        await produce(cluster)
        world.network.answer_names()
        assert len(await read(cluster, 20)) == 20

    run(world, story)


def test_seeds_differ_and_repeat() -> None:
    def trace(seed: int) -> str:
        with closing(World(seed)) as world:
            cluster = SimCluster(world, controllers=1, brokers=1)
            world.run(cluster.start_all())
            return world.trace.sha256()

    assert trace(1) == trace(1) != trace(2)


# -- how a process ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [1, 101])
def test_sigterm_stops_a_node_in_order_without_leftovers(world: World, node: int) -> None:
    """I23. A broker hands over its leaderships, a controller its office; the next start finds a clean shutdown."""
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        await produce(cluster)
        await cluster.stop(node)
        assert not cluster.machines[node].is_up
        assert node not in cluster.brokers
        assert node not in cluster.controllers
        assert cluster.leaks(node) == []
        assert cluster.failures == []
        assert [event.node for event in world.trace.events(kinds="node.stopped")] == [node]
        assert world.network.server_at(cluster.machines[node], 9092 if node == 1 else 9093) is None
        await cluster.stop(node)  # it has stopped already
        await produce(cluster)
        cluster.start(node)
        await cluster.ready()

    run(world, story)


def test_a_second_sigterm_ends_a_node_at_once(world: World) -> None:
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        for other in cluster.controller_ids:
            cluster.isolate(1, [other])  # so that an orderly stop takes long
        cluster.terminate(1)
        await world.sleep(0.5)
        assert cluster.machines[1].is_up
        cluster.terminate(1)
        await world.sleep(0.01)
        assert not cluster.machines[1].is_up
        assert [event.kind for event in world.trace.events(kinds=("node.crashed", "node.stopped"))] == ["node.crashed"]

    run(world, story)


def test_sigterm_during_the_start_breaks_it_off(world: World) -> None:
    """The broker is waiting for its controllers, or recovering its logs."""
    cluster = SimCluster(world)

    async def story() -> None:
        cluster.start(1)
        await world.sleep(0.5)
        await cluster.stop(1)
        assert not cluster.machines[1].is_up
        assert cluster.failures == []
        assert cluster.leaks(1) == []
        assert world.network._ends == {}
        for moment in range(20):  # and at any other moment
            cluster.start(101)
            await world.sleep(moment * 0.000_05)
            await cluster.stop(101)
            assert cluster.leaks(101) == []
        await with_topic(cluster, 3)

    run(world, story)


def test_paused_node_handles_sigterm_when_it_continues(world: World) -> None:
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        cluster.machines[1].pause()
        cluster.terminate(1)
        await world.sleep(5)
        assert cluster.machines[1].is_up
        cluster.machines[1].resume()
        await cluster.stop(1)  # SIGTERM was sent before; this is not a second one
        assert [event.kind for event in world.trace.events(kinds=("node.crashed", "node.stopped"))] == ["node.stopped"]

    run(world, story)


def test_waiting_for_a_stop_reports_a_crash_instead(world: World) -> None:
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        world.scheduler.after(0.001, cluster.crash, 1)
        with pytest.raises(ProcessGone, match="broker-1 ended before it had stopped"):
            await cluster.stop(1)

    run(world, story)


def test_refused_start_ends_the_node_and_keeps_the_reason(world: World) -> None:
    cluster = SimCluster(world, controllers=1, brokers=2)

    async def story() -> None:
        await cluster.start_all()
        await cluster.stop(2)
        cluster.machines[1].files, cluster.machines[2].files = cluster.machines[2].files, cluster.machines[1].files
        cluster.start(2)
        await world.until(lambda: cluster.failures)
        ((_, node, error),) = cluster.failures
        assert node == 2
        assert isinstance(error, UsageError)
        assert not cluster.machines[2].is_up
        assert cluster.leaks(2) == []
        assert 2 not in cluster.brokers

    run(world, story)


def test_node_that_cannot_continue_ends_by_itself(world: World) -> None:
    """Its only disk is broken; the others go on without it."""
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        leader = await until_led(cluster)
        cluster.machines[leader].files.fail("write", "*.log", errno.EIO)
        await produce(cluster)
        await world.until(lambda: cluster.failures)
        assert [node for _, node, _ in cluster.failures] == [leader]
        assert not cluster.machines[leader].is_up
        assert cluster.leaks(leader) == []

    run(world, story)


@pytest.mark.parametrize("method", ["start", "stop"])
def test_a_bug_in_a_start_or_a_stop_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """A real node would end with a traceback. Here it would stay unread, so the run must fail."""

    async def bug(server: BrokerServer) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(BrokerServer, method, bug)
    cluster = SimCluster(world, controllers=1, brokers=1)

    async def story() -> None:
        cluster.start(101)
        cluster.start(1)
        await world.sleep(5)
        await cluster.stop(1)

    with pytest.raises(Unhandled, match="broker-1: the process failed: KeyError"):
        run(world, story)


def test_tasks_that_a_server_leaves_behind_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = ControllerServer.stop

    async def careless(server: ControllerServer) -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(1000), name="forgotten")
        await stop(server)

    monkeypatch.setattr(ControllerServer, "stop", careless)
    cluster = SimCluster(world, controllers=1, brokers=1)

    async def story() -> None:
        await cluster.start_all()
        await cluster.stop(101)
        assert cluster.leaks(101) == ["forgotten"]
        assert cluster.leaks(1) == []

    run(world, story)


# -- how it comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["crash", "power cut", "empty disk"])
def test_returning_broker_catches_up(world: World, fault: str) -> None:
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        await produce(cluster)
        leader = await until_led(cluster)
        cluster.crash(leader, lossy=fault == "power cut")
        await produce(cluster)
        cluster.start(leader, wiped=fault == "empty disk")
        await cluster.ready()

        def has_all() -> bool:
            partition = cluster.partition(leader, TOPIC)
            return partition is not None and partition.log.log_end_offset == 20

        await world.until(has_all)
        assert len(await read(cluster, 20)) == 20

    run(world, story)


def test_isolated_node_is_fenced_and_returns(world: World) -> None:
    cluster = SimCluster(world)

    async def story() -> None:
        await with_topic(cluster, 3)
        cluster.isolate(2)
        await world.until(lambda: cluster.image().brokers[2].fenced)
        cluster.rejoin(2)
        await world.until(lambda: not cluster.image().brokers[2].fenced)
        cluster.isolate(1, cluster.controller_ids, inbound=False)
        await world.until(lambda: cluster.image().brokers[1].fenced)
        cluster.rejoin(1, cluster.controller_ids, inbound=False)
        await cluster.ready()
        assert not any(link.cut for link in world.network._links.values())

    run(world, story)


def test_each_client_has_its_own_process(world: World) -> None:
    cluster = SimCluster(world, controllers=1, brokers=1)

    async def story() -> None:
        await with_topic(cluster, 1)
        client = cluster.client("billing")
        assert client.machine.name == "billing"

        async def work() -> None:
            async with client.producer() as producer:
                await producer.send_and_wait(TOPIC, b"x")
                await asyncio.sleep(1000)

        task = client.spawn(work())
        await world.sleep(5)
        open_before = world.network.connections
        client.machine.crash()
        await world.sleep(1)
        assert not task.done()
        assert world.network.connections < open_before

    run(world, story)


def test_missing_partition_and_topic_are_none(world: World) -> None:
    cluster = SimCluster(world, controllers=1, brokers=1)

    async def story() -> None:
        await cluster.start_all()
        assert cluster.partition(1, "nothing") is None
        assert cluster.partition(7, "nothing") is None
        cluster.crash(1)
        assert cluster.image().topics_by_name == {}
        client = cluster.client()

        async def work() -> None:
            async with client.admin(max_block_ms=1000) as admin:
                await admin.describe_cluster()

        with pytest.raises(NoBrokersAvailable):
            await client.run(work())

    run(world, story)
