"""Real processes are killed, stopped and paused under load, and every guarantee to clients holds.

The tests differ in the node and the signal. Two idempotent producers with acks=all and a consumer run; the fault happens; the
load continues (unless all nodes are down); the node returns; the load continues. Then all records are read once more, the history
is judged, and the replicas are compared byte by byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import pytest
from load import Load, until

from strandline.client import Admin, NewTopic, Producer
from strandline.local_cluster import LocalCluster
from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import ErrorCode, StrandlineError
from strandline.protocol.messages.data import ProducePartition, ProduceRequest, ProduceResponse
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.rpc.connection import Connection

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

PAUSE_S = 2.5
"""How long every process is paused: longer than the session of a broker and the fetch timeout of a controller."""


RETURN_S = 15.0
"""The time within which leaders return, with the default of `leader.imbalance.check.interval.seconds`, 10."""


async def leader_of(cluster: LocalCluster, topic: str, partition: int = 0) -> int:
    try:
        async with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=1000) as admin:
            return (await admin.describe_topics([topic]))[0].partitions[partition].leader_id
    except StrandlineError:
        return -1


async def active_controller(cluster: LocalCluster) -> int:
    try:
        async with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=1000) as admin:
            return (await admin.describe_quorum()).leader_id
    except StrandlineError:
        return -1


async def is_balanced(cluster: LocalCluster, topic: str) -> bool:
    """Whether every partition is led by its preferred replica."""
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
    return all(p.leader_id == p.replicas[0] for p in described.partitions)


async def a_leader(cluster: LocalCluster, topic: str) -> str:
    return cluster.broker(await leader_of(cluster, topic)).name


async def a_follower(cluster: LocalCluster, topic: str) -> str:
    """Return a broker that does not lead partition 0; it may lead another one."""
    leader = await leader_of(cluster, topic)
    return next(n.name for n in cluster.brokers if n.id != leader)


async def the_controller(cluster: LocalCluster, topic: str) -> str:
    return cluster.node(f"controller-{await active_controller(cluster)}").name


async def all_is_well(load: Load) -> None:
    """Check that no record is lost, doubled, reordered or invented, that all are acknowledged, and that the replicas are
    equal."""
    await load.stop()
    await load.fully_replicated()
    verdict = await load.verdict()
    assert verdict.good, str(verdict)
    assert load.failed == []
    assert verdict.unknown == 0
    assert verdict.acknowledged == len(load.history.sends)
    comparisons = load.replicas()
    assert len(comparisons) == 3
    for comparison in comparisons:
        assert comparison.equal, str(comparison)
        assert len(comparison.logs) == 3
        assert comparison.logs[0].size > 0


VICTIMS = {"leader": a_leader, "follower": a_follower, "active controller": the_controller}


def victims(*in_every_build: str) -> list[ParameterSet]:
    """Simulated runs have each fault at each node, in many more moments; the scenario `rolling-restart` stops every process."""
    return [pytest.param(victim, marks=[] if victim in in_every_build else [pytest.mark.slow]) for victim in VICTIMS]


@pytest.mark.parametrize("victim", victims("leader", "active controller"))
async def test_nothing_is_lost_when_a_node_is_killed(cluster: LocalCluster, victim: str) -> None:
    """After SIGKILL the other nodes notice the broken connections."""
    async with Load(cluster, f"killed-{victim.replace(' ', '-')}") as load:
        await load.progress()
        name = await VICTIMS[victim](cluster, load.topic)
        cluster.kill(name)
        await cluster.wait_ended(name)
        await load.progress()
        await cluster.start_node(name)
        await load.progress()
        await cluster.wait_ready()
        await all_is_well(load)


@pytest.mark.slow
async def test_leaders_return_to_a_broker_that_was_killed(cluster: LocalCluster) -> None:
    """They return by themselves, within 15 s after every replica is in sync again, while the load goes on."""
    async with Load(cluster, "leaders-return") as load:
        await load.progress()
        name = await a_leader(cluster, load.topic)
        assert await is_balanced(cluster, load.topic)
        cluster.kill(name)
        await cluster.wait_ended(name)
        await until(lambda: _other(leader_of(cluster, load.topic), cluster.node(name).id), "another broker leads")
        await load.progress()
        await cluster.start_node(name)
        await load.fully_replicated()
        assert not await is_balanced(cluster, load.topic)
        await until(lambda: is_balanced(cluster, load.topic), "every leader is the preferred replica", RETURN_S)
        await load.progress()
        await cluster.wait_ready()
        await all_is_well(load)


@pytest.mark.parametrize("victim", victims("leader"))
async def test_nothing_is_lost_when_a_node_is_stopped(cluster: LocalCluster, victim: str) -> None:
    """At SIGTERM a broker hands over its leaders and a controller its leadership, so the load is hardly delayed."""
    async with Load(cluster, f"stopped-{victim.replace(' ', '-')}") as load:
        await load.progress()
        name = await VICTIMS[victim](cluster, load.topic)
        cluster.terminate(name)
        await cluster.wait_ended(name)
        process = cluster.node(name).process
        assert process is not None
        assert process.returncode == 0
        await load.progress()
        await cluster.start_node(name)
        await load.progress()
        await cluster.wait_ready()
        await all_is_well(load)


@pytest.mark.parametrize("victim", victims("leader"))
async def test_nothing_is_lost_when_a_node_is_paused(cluster: LocalCluster, victim: str) -> None:
    """After SIGSTOP the connections stay open and do not respond. After SIGCONT the old leader still believes that it leads,
    but its epoch is over: it must not acknowledge the requests that arrived meanwhile."""
    async with Load(cluster, f"paused-{victim.replace(' ', '-')}") as load:
        await load.progress()
        name = await VICTIMS[victim](cluster, load.topic)
        broker_id = cluster.node(name).id
        cluster.pause(name)
        if victim == "leader":
            await until(lambda: _other(leader_of(cluster, load.topic), broker_id), "another broker leads")
        elif victim == "active controller":
            await until(lambda: _other(active_controller(cluster), broker_id), "another controller is active")
        await load.progress()
        cluster.resume(name)
        await load.progress()
        await cluster.wait_ready()
        await all_is_well(load)


async def test_records_of_the_leader_alone_are_not_acknowledged(cluster: LocalCluster) -> None:
    """Both followers are paused while the leader receives records, and then the leader dies for good. Records that it had
    acknowledged alone would be lost."""
    async with Load(cluster, "alone") as load:
        await load.progress()
        leader = await a_leader(cluster, load.topic)
        followers = [n.name for n in cluster.brokers if n.name != leader]
        for name in followers:
            cluster.pause(name)
        taken = load.sent + 300
        await until(lambda: load.sent >= taken, "the leader was given records that nobody else has")
        cluster.kill(leader)
        await cluster.wait_ended(leader)
        for name in followers:
            cluster.resume(name)
        await load.progress()
        await cluster.start_node(leader)
        await cluster.wait_ready()
        await all_is_well(load)


async def _other(asked: Awaitable[int], than: int) -> bool:
    now = await asked
    return now >= 0 and now != than


async def _kill_all(cluster: LocalCluster) -> None:
    for name in cluster.nodes:
        cluster.kill(name)
    await _restart_all(cluster)


async def _stop_all(cluster: LocalCluster) -> None:
    for name in cluster.nodes:
        cluster.terminate(name)
    await _restart_all(cluster)


async def _restart_all(cluster: LocalCluster) -> None:
    for name in cluster.nodes:
        await cluster.wait_ended(name)
    for name in cluster.nodes:
        await cluster.start_node(name)


async def _pause_all(cluster: LocalCluster) -> None:
    for name in cluster.nodes:
        cluster.pause(name)
    await asyncio.sleep(PAUSE_S)  # the fault itself is a span of time
    for name in cluster.nodes:
        cluster.resume(name)


FAULTS = {"SIGKILL": _kill_all, "SIGTERM": _stop_all, "SIGSTOP": _pause_all}


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_lost_when_all_nodes_are_killed(cluster: LocalCluster, fault: str) -> None:
    """Without any node the clients wait, and continue where they were."""
    async with Load(cluster, f"all-{fault}") as load:
        await load.progress()
        await FAULTS[fault](cluster)
        await cluster.wait_ready()
        await load.progress()
        await all_is_well(load)


async def test_a_resumed_leader_rejects_waiting_requests(cluster: LocalCluster) -> None:
    """With acks=1 the leader responds after its own append. A resumed leader first finds the requests in its socket that were
    sent before another leader was elected; it would acknowledge records that it truncates a moment later."""
    topic = "asleep"
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions=1, replication_factor=3)])
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait(topic, b"before")
        description = (await admin.describe_topics([topic]))[0]
    leader = description.partitions[0].leader_id
    node = cluster.broker(leader)
    connection = await Connection.connect("127.0.0.1", node.port, client_id="raw")
    records = [(encode_batch([(None, b"lost", [], 0)]),)]
    request = ProduceRequest(None, 1, 60_000, [ProducePartition(description.topic_id, 0)], [])
    cluster.pause(node.name)
    waiting = asyncio.ensure_future(connection.request(PRODUCE, request, records, timeout_ms=60_000))
    await until(lambda: _other(leader_of(cluster, topic), leader), "another broker leads")
    cluster.resume(node.name)
    answer = await waiting
    connection.close()
    assert isinstance(answer, ProduceResponse)
    assert answer.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.wait_ready()
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert (await producer.send_and_wait(topic, b"after")).offset == 1
