"""Hosts vanish and cables are pulled on a separate network: connections neither break nor are refused, and the load continues.

Every time-out has its default. The tests distinguish *why* a broker was fenced: for a dead host by the way in which its
connection ended, for a disconnected host only by a session without a heartbeat.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from load import Load, until
from netns import BROKERS, CONTROLLERS, NetCluster, reason_to_skip

from strandline.client import Admin
from strandline.protocol.errors import StrandlineError

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

SILENCE = "its session timed out"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NetCluster]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    async with NetCluster(tmp_path_factory.mktemp("network")) as cluster:
        await until(lambda: brokers_are(cluster, set(BROKERS)), "all brokers are unfenced", 30)
        yield cluster


@pytest.fixture(autouse=True)
def whole() -> None:
    """Replaces the fixture that heals the cluster on loopback: each test of this module repairs its own faults."""


async def brokers_are(cluster: NetCluster, expected: set[int]) -> bool:
    try:
        async with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=2000) as admin:
            brokers = (await admin.describe_cluster()).brokers
    except StrandlineError:
        return False
    return {b.broker_id for b in brokers if not b.is_fenced} == expected


async def leader_of(cluster: NetCluster, topic: str) -> int:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return (await admin.describe_topics([topic]))[0].partitions[0].leader_id


async def active_controller(cluster: NetCluster) -> int:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return (await admin.describe_quorum()).leader_id


async def all_is_well(load: Load) -> None:
    await load.stop()
    # A broker that was cut off may still describe an old state of the cluster, so the files on the disks are compared.
    await until(lambda: all(comparison.equal for comparison in load.replicas()), "the replicas are equal", 30)
    await load.fully_replicated()
    verdict = await load.verdict()
    assert verdict.good, str(verdict)
    assert load.failed == []
    assert verdict.unknown == 0


async def test_a_dead_host_is_fenced_before_its_session_ends(cluster: NetCluster) -> None:
    """When a container is killed, its connections close, then its address disappears without refusing connections."""
    async with Load(cluster, "killed") as load:
        await load.progress(300)
        leader = await leader_of(cluster, "killed")
        cluster.kill_with_host(leader)
        await load.progress(300)
        reasons = cluster.fencings(leader)
        assert len(reasons) == 1
        assert reasons[0].startswith("it has no connection to this controller, and ")
        await cluster.start_again(leader)
        await all_is_well(load)


async def test_a_disconnected_leader_acknowledges_nothing(cluster: NetCluster) -> None:
    """The leader still believes that it leads. No follower fetches from it, so it never acknowledges a record."""
    async with Load(cluster, "cut") as load:
        await load.progress(300)
        leader = await leader_of(cluster, "cut")
        before = len(cluster.fencings(leader))
        cluster.network.cut(leader)
        await load.progress(300)
        assert cluster.fencings(leader)[before:] == [SILENCE]
        cluster.network.mend(leader)
        await all_is_well(load)


async def test_a_disconnected_controller_fences_no_broker(cluster: NetCluster) -> None:
    """The brokers find the next active controller in time, and the old one cannot commit anything alone."""
    async with Load(cluster, "headless") as load:
        await load.progress(300)
        active = await active_controller(cluster)
        before = {broker_id: cluster.fencings(broker_id) for broker_id in BROKERS}
        cluster.network.cut(active)
        others = [n for n in CONTROLLERS if n != active]

        async def replaced() -> bool:
            return await active_controller(cluster) in others

        await until(replaced, "another controller is active", 30)
        await until(lambda: brokers_are(cluster, set(BROKERS)), "all brokers are known to it", 30)
        await load.progress(300)
        cluster.network.mend(active)
        assert {broker_id: cluster.fencings(broker_id) for broker_id in BROKERS} == before
        await all_is_well(load)
