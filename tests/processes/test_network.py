"""Hosts vanish and cables are pulled, on a network of its own: nothing breaks, nothing refuses, and the load goes on.

Every time-out is at its default. What is told apart here is *why* a broker was fenced: a host that died is known by how
its connection ended, a host that was cut off by its silence alone, for as long as a session lasts.
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
    """In place of what heals the cluster on loopback: each test here mends what it broke."""


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
    # A broker that was cut off may still speak of the cluster as it was: what counts is what is on the disks.
    await until(lambda: all(comparison.equal for comparison in load.replicas()), "the replicas are equal", 30)
    await load.fully_replicated()
    verdict = await load.verdict()
    assert verdict.good, str(verdict)
    assert load.failed == []
    assert verdict.unknown == 0


async def test_a_leader_that_dies_with_its_host_is_not_awaited_for_a_session(cluster: NetCluster) -> None:
    """A killed container: its connections end in order, then its address is gone, and nobody refuses anything."""
    async with Load(cluster, "killed") as load:
        await load.progress(300)
        leader = await leader_of(cluster, "killed")
        cluster.kill_with_host(leader)
        await load.progress(300)
        reasons = cluster.fencings(leader)
        assert len(reasons) == 1
        assert reasons[0].startswith("its connection broke, and ")
        await cluster.start_again(leader)
        await all_is_well(load)


async def test_a_leader_that_is_cut_off_acknowledges_nothing_and_comes_back(cluster: NetCluster) -> None:
    """It goes on leading in its own eyes. Nobody replicates from it, so nothing of what it takes is ever acknowledged."""
    async with Load(cluster, "cut") as load:
        await load.progress(300)
        leader = await leader_of(cluster, "cut")
        before = len(cluster.fencings(leader))
        cluster.network.cut(leader)
        await load.progress(300)
        assert cluster.fencings(leader)[before:] == [SILENCE]
        cluster.network.mend(leader)
        await all_is_well(load)


async def test_an_active_controller_that_is_cut_off_costs_no_broker_its_session(cluster: NetCluster) -> None:
    """The brokers find the next one in time; the old one, alone, can decide nothing."""
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
