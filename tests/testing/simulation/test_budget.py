"""The fault budget: which losses it permits, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from strandline.protocol import apis
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.nemesis.budget import Budget

Story = Callable[[World, SimCluster, Budget], Awaitable[None]]


def play(story: Story, *, enforced: bool = True, min_isr: int = 2, brokers: int = 3, controllers: int = 3) -> None:
    """Play the story on a cluster with one partition, which all brokers hold."""
    world = World(1)
    sessions = {"broker.session.timeout.ms": 1000}
    cluster = SimCluster(world, controllers=controllers, brokers=brokers, settings=sessions, controller_settings=sessions)
    budget = Budget(cluster, enforced=enforced)

    async def act() -> None:
        await cluster.start_all()
        configs = {"min.insync.replicas": str(min_isr)}
        await cluster.create_topic("orders", partitions=1, replication_factor=brokers, configs=configs)
        await world.until(lambda: isr(cluster) == set(cluster.broker_ids))
        await story(world, cluster, budget)

    try:
        world.run(act())
    finally:
        world.close()


def isr(cluster: SimCluster) -> set[int]:
    return set(registration(cluster).isr)


def registration(cluster: SimCluster) -> Any:
    return cluster.image().partition((cluster.topic_id("orders"), 0))


def test_only_one_of_three_may_lose_power_until_the_isr_is_full_again() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert budget.may_lose(1)
        budget.lost(1)
        cluster.crash(1, lossy=True)
        assert not budget.may_lose(2)
        await world.until(lambda: isr(cluster) == {2, 3})
        assert not budget.may_lose(2), "the ISR is not full"
        cluster.start(1)
        await world.until(lambda: isr(cluster) == {1, 2, 3})
        await world.until(lambda: budget.may_lose(2), 0.1, "the brokers have heard of it, so it is committed")

    play(story)


def test_the_last_member_of_an_isr_never_loses_anything() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        cluster.crash(2)
        cluster.crash(3)
        await world.until(lambda: isr(cluster) == {1})
        assert not budget.may_lose(1)
        assert not Budget(cluster, enforced=True).may_lose(1), "whatever happened before"

    play(story)


def test_no_fault_strikes_the_others_while_a_replica_with_a_loss_is_in_the_isr() -> None:
    """Otherwise that replica could become the last one, and lead."""

    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert budget.may_touch((2, 3))
        budget.lost(1)
        cluster.crash(1, lossy=True)
        assert budget.windows == [1]
        assert budget.may_touch((2,)), "3 is still well"
        budget.touched[2] += 1
        assert not budget.may_touch((3,))
        await world.until(lambda: isr(cluster) == {2, 3})
        await world.until(lambda: not budget.look() and not budget.windows)  # type: ignore[func-returns-value]
        assert budget.may_touch((3,))

    play(story)


def test_no_loss_is_permitted_without_an_active_controller() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        for node in cluster.controller_ids:
            cluster.crash(node)
        assert not budget.may_lose(1)

    play(story)


def test_broker_silent_for_half_a_session_is_no_survivor() -> None:
    """A held message delayed the heartbeats behind it. The fault has ended, but the session ends a moment later: a disk that is
    lost just then may leave only one member of the ISR."""

    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        hold = world.network.hold(lambda m: m.api_key == apis.BROKER_HEARTBEAT and m.source == 2)
        assert budget.may_lose(1)
        await world.until(lambda: not budget.may_lose(1), 1.0, "it is silent")
        assert isr(cluster) == {1, 2}
        hold.release()
        await world.until(lambda: budget.may_lose(1), 1.0, "it was heard of")

    play(story, brokers=2)


def test_fault_of_the_only_controller_holds_up_all_brokers() -> None:
    """The controller receives no heartbeats and fences one broker after the other; the last one left may be the one that lost
    something."""

    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        (controller,) = cluster.controller_ids
        with budget.touching(controller):
            assert not budget.may_lose(1)
        assert budget.may_lose(1)
        assert budget.may_touch((controller,))
        budget.lost(1)
        assert not budget.may_touch((controller,))

    play(story, controllers=1)


def test_a_single_replica_loses_nothing() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert not budget.may_lose(1)

    play(story, brokers=1, min_isr=1)


def test_one_controller_of_three_may_lose_its_disk_at_a_time() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert budget.may_wipe_controller(101)
        budget.wiped_controller(101)
        cluster.crash(101, lossy=True)
        cluster.machines[101].files.wipe()
        assert not budget.may_wipe_controller(102)
        cluster.start(101)
        await world.until(lambda: budget.may_wipe_controller(102), 10, "all controllers are caught up")

    play(story)


def test_one_disk_rots_and_no_other() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert budget.may_rot(1)
        budget.rots(1)
        assert budget.may_rot(1)
        assert not budget.may_rot(2)
        assert not budget.may_touch((2, 3)), "nobody trusted would be left"
        assert budget.open_windows == [], "a broker whose disk rots may stay in the ISR"

    play(story)


def test_unenforced_budget_permits_and_records_losses() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert not budget.exceeded
        for broker in (1, 2, 3):
            assert budget.may_lose(broker)
            budget.lost(broker)
        assert budget.exceeded
        assert budget.may_touch((1, 2, 3))

    play(story, enforced=False)


def test_beside_a_rotten_disk_no_other_disk_loses_anything() -> None:
    """The only copy of a record would be on a broker that cannot read it, and the cluster could not continue (seed 248)."""

    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        budget.rots(1)
        cluster.crash(3)
        assert not budget.may_lose(2)
        assert budget.may_lose(1)

    play(story, enforced=False)


def test_wiped_controller_is_listed_until_it_may_vote_again() -> None:
    """Until then the controller needs all the others, so none of them may be left out of a core that has to heal (seeds 80,
    186)."""

    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        cluster.crash(102)
        cluster.crash(101, lossy=True)
        cluster.machines[101].files.wipe()
        budget.wiped_controller(101)
        cluster.start(101)
        await asyncio.sleep(5)
        budget.look()
        assert budget.wiped_controllers == [101]
        cluster.start(102)
        await world.until(lambda: budget.look() or not budget.wiped_controllers, 10, "the controller has its vote back")
        assert cluster.controllers[101].quorum.has_vote

    play(story)


def test_only_a_rotten_controller_may_rot_again_or_be_wiped() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert budget.may_rot_controller(101)
        budget.rots_controller(101)
        assert budget.may_rot_controller(101), "it is not trusted anyhow"
        assert not budget.may_rot_controller(102)
        assert not budget.may_wipe_controller(102)
        assert budget.may_wipe_controller(101), "to be mended"

    play(story)


def test_a_single_controller_does_not_rot() -> None:
    async def story(world: World, cluster: SimCluster, budget: Budget) -> None:
        assert not budget.may_rot_controller(101)

    play(story, controllers=1)
