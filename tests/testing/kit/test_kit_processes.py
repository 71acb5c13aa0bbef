"""Nodes that are processes: the same calls where the operating system permits them, a clear error where it does not."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from strandline.protocol.errors import UsageError
from strandline.testing import Cluster, caught_up, controller, fenced, hw, isr, leader
from strandline.testing.kit.spawned import SpawnedNodes

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def spawned() -> AsyncIterator[Cluster]:
    async with Cluster(processes=True) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def whole(spawned: Cluster) -> AsyncIterator[None]:
    yield
    await spawned.make_whole(within_s=30)


def pid_of(cluster: Cluster, node: int) -> int:
    assert isinstance(cluster.nodes, SpawnedNodes)
    return cluster.nodes._node(node).pid


async def test_a_leader_is_killed_with_a_real_sigkill(spawned: Cluster) -> None:
    topic = await spawned.create_topic()
    async with spawned.producer() as producer:
        await producer.send_and_wait(topic, b"1")
        first = await spawned.leader_of(topic)
        pid = pid_of(spawned, first)
        assert pid != os.getpid()
        await spawned.kill(first)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert spawned.node(first).state == "killed"
        await spawned.until((leader(topic) != first) & fenced(first) & ~isr(topic).contains(first))
        await producer.send_and_wait(topic, b"2")
        await spawned.start(first)
        await spawned.until(caught_up(topic) & (hw(topic) == 2))
    await spawned.assert_no_acked_loss()
    await spawned.assert_logs_identical(topic)


async def test_paused_follower_leaves_the_isr_and_returns(spawned: Cluster) -> None:
    topic = await spawned.create_topic()
    follower = (await spawned.followers_of(topic))[0]
    await spawned.pause(follower)
    assert spawned.node(follower).state == "paused"
    await spawned.until(~isr(topic).contains(follower), within_s=20)
    await spawned.resume(follower)
    await spawned.until(caught_up(topic), within_s=20)


async def test_preferred_leader_is_elected_again_after_a_stop(spawned: Cluster) -> None:
    topic = await spawned.create_topic()
    first = await spawned.leader_of(topic)
    await spawned.restart(first, within_s=20)
    await spawned.until(caught_up(topic))
    assert await spawned.leader_of(topic) != first
    assert await spawned.force_election(topic, 0, first) == first


async def test_caught_up_replica_has_every_record(spawned: Cluster) -> None:
    """A follower that is down has not caught up, even if it still counts as a member of the ISR."""
    topic = await spawned.create_topic()
    await spawned.until(caught_up(topic))
    follower = (await spawned.followers_of(topic))[0]
    await spawned.kill(follower)
    await spawned.until(~caught_up(topic))


async def test_faults_that_need_the_kit_are_rejected_for_processes(spawned: Cluster) -> None:
    topic = await spawned.create_topic()
    network = "processes of their own, so the kit cannot control the network between them"
    for fault in (
        lambda: spawned.partition([1], [2]),
        lambda: spawned.isolate(1),
        lambda: spawned.isolate_controller(1),
        lambda: spawned.drop("Produce"),
        lambda: spawned.delay(ms=10),
        spawned.heal,
    ):
        with pytest.raises(UsageError, match=network):
            fault()
    for fault in (lambda: spawned.slow_disk(1, 10), lambda: spawned.fill_disk(1), lambda: spawned.free_disk(1)):
        with pytest.raises(UsageError, match="the kit cannot control their disks"):
            fault()
    other = (await spawned.followers_of(topic))[0]
    with pytest.raises(UsageError, match="anybody but the preferred leader"):
        await spawned.force_election(topic, 0, other)


async def test_report_shows_states_and_last_log_lines(spawned: Cluster) -> None:
    topic = await spawned.create_topic()
    await spawned.kill(2)
    await spawned.until(fenced(2) & (controller() == 101))
    report = spawned.report()
    assert "3 brokers, 1 controller, processes of their own" in report
    assert re.search(r"broker-2 +killed", report)
    assert f"{topic}-0: leader" in report
    assert "broker.fencing broker_id=2" in report
