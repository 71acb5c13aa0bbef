"""Leaders return to their preferred replicas by themselves: when, how many at once, and to which brokers they do not."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import ControllerWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.controller.config import ControllerConfig
from strandline.controller.leader_balance import (
    ELECTIONS_MAX,
    LATE_S,
    PATIENCE,
    LateReturn,
    LeaderBalance,
    leaving_brokers,
    move_leaders_back,
)
from strandline.controller.leader_balancer import BalanceSettings, LeaderBalancer
from strandline.controller.metadata.records import PartitionChangeRecord, decode_record
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.server import balance_settings
from strandline.protocol import apis
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    PREFERRED_ELECTION,
    RESOURCE_BROKER,
    AlterableConfig,
    AlterConfigsResource,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersPartition,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)

INTERVAL_S = 10.0
ALL = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


class Balanced:
    """A cluster of three brokers, and the leader balance of its active controller, which checks once a second."""

    def __init__(self, assignments: list[list[int]] | None = None, *, percentage: int = 0) -> None:
        self.world = ControllerWorld(brokers=3)
        self.world.create("t", ALL if assignments is None else assignments)
        self.balance = LeaderBalance(interval_s=INTERVAL_S, percentage=percentage)

    @property
    def index(self) -> PartitionIndex:
        active = self.world.controller.active
        assert active is not None
        return active.index

    def leaders(self) -> list[int]:
        topic = self.world.image.topic("t")
        assert topic is not None
        return [topic.partitions[i].leader for i in range(len(topic.partitions))]

    def after(self, seconds: float) -> list[int]:
        """Let the seconds pass; returns the brokers that got leaderships back."""
        moved: list[int] = []
        for _ in range(round(seconds)):
            self.world.now += 1.0
            for broker_id in self.balance.due(self.world.image, self.index, self.world.now):
                self.world.controller.submit(
                    lambda active, to=broker_id: move_leaders_back(self.world.image, active.index, to), lambda reply: None
                )
                self.world.commit()
                self.balance.on_moved(broker_id, self.world.now)
                moved.append(broker_id)
        return moved

    def late(self) -> list[LateReturn]:
        return self.balance.late(self.world.image, self.index, self.world.now)

    def bring_back(self, broker_id: int, incarnation: int = 2) -> None:
        self.world.now += 5
        self.world.start_broker(broker_id, incarnation)

    def catch_up(self, broker_id: int, *indexes: int) -> None:
        """Add the broker to the ISRs of these partitions."""
        for index in indexes:
            isr = self.world.partition("t", index).isr
            assert not self.world.alter("t", [*isr, broker_id], index).error_code


def test_leaders_return_after_the_broker_was_in_all_isrs_for_the_interval() -> None:
    cluster = Balanced()
    cluster.world.kill_broker(1)
    assert cluster.leaders() == [2, 2, 3]
    assert cluster.after(60) == []
    cluster.bring_back(1)
    cluster.catch_up(1, 0, 1)
    assert cluster.after(60) == []
    cluster.catch_up(1, 2)
    assert cluster.after(10) == []
    assert cluster.after(1) == [1]
    assert cluster.leaders() == [1, 2, 3]
    assert cluster.after(60) == []


def test_one_return_is_one_series_of_elections() -> None:
    cluster = Balanced([[1, 2, 3]] * 20 + [[2, 3, 1]] * 20)
    cluster.world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, *range(40))
    before = len(cluster.world.quorum.batches)
    assert cluster.after(30) == [1]
    assert len(cluster.world.quorum.batches) == before + 1
    assert cluster.leaders() == [1] * 20 + [2] * 20


def test_the_wait_begins_again_if_the_broker_leaves_an_isr() -> None:
    cluster = Balanced()
    cluster.world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, 0, 1, 2)
    assert cluster.after(8) == []
    assert not cluster.world.alter("t", [3, 2], 2).error_code
    assert cluster.after(1) == []
    cluster.catch_up(1, 2)
    assert cluster.after(10) == []
    assert cluster.after(1) == [1]


def test_the_wait_begins_again_for_a_new_process_of_the_broker() -> None:
    cluster = Balanced([[1, 2]])
    cluster.world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, 0)
    assert cluster.after(8) == []
    cluster.world.kill_broker(1)
    cluster.bring_back(1, incarnation=3)
    cluster.catch_up(1, 0)
    assert cluster.after(10) == []
    assert cluster.after(1) == [1]


def test_no_leader_returns_while_a_broker_is_in_controlled_shutdown() -> None:
    cluster = Balanced()
    world = cluster.world
    world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, 0, 1, 2)
    assert not world.heartbeat(3, want_shut_down=True, offset=0).should_shut_down
    assert leaving_brokers(world.image)
    assert cluster.after(60) == []
    assert world.heartbeat(3, want_shut_down=True).should_shut_down
    assert cluster.after(1) == [1]


def test_other_leaders_return_if_one_isr_never_gets_the_broker_back() -> None:
    """Partition 2 has no leader that could add broker 1: the other member of its ISR never returns."""
    cluster = Balanced([[1, 2], [1, 2], [3, 1]])
    world = cluster.world
    world.kill_broker(1)
    world.kill_broker(3)
    cluster.bring_back(1)
    cluster.catch_up(1, 0, 1)
    assert (world.partition("t", 2).isr, world.partition("t", 2).elr) == ((), (3,))
    patience = round(PATIENCE * INTERVAL_S)
    assert cluster.after(patience) == []
    assert cluster.after(1) == [1]
    assert cluster.leaders() == [1, 1, -1]
    assert cluster.after(2 * patience) == []


@pytest.mark.parametrize(("percentage", "moved"), [(24, [1]), (25, [])])
def test_leaders_return_above_the_percentage_only(percentage: int, moved: list[int]) -> None:
    """Broker 1 is the preferred replica of four partitions, and does not lead one of them."""
    cluster = Balanced([[1, 2, 3]] * 4, percentage=percentage)
    world = cluster.world
    world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, 0, 1, 2, 3)
    elected = [ElectLeadersPartition("t", index) for index in range(3)]
    world.call(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, elected))
    assert cluster.index.imbalance_percentage(1) == 25
    assert cluster.after(60) == moved


@pytest.mark.parametrize("state", ["fenced", "shutting down", "out of the ISR"])
def test_leaders_move_only_to_a_replica_that_may_lead(state: str) -> None:
    cluster = Balanced([[1, 2, 3]])
    world = cluster.world
    world.kill_broker(1)
    cluster.bring_back(1)
    if state == "fenced":
        world.kill_broker(1)
    elif state == "shutting down":
        cluster.catch_up(1, 0)
        world.heartbeat(1, want_shut_down=True, offset=0)
    decision = move_leaders_back(world.image, cluster.index, 1)
    assert (decision.reply, decision.records) == (0, [])


def test_a_broker_that_waits_for_long_is_reported_with_the_reason() -> None:
    cluster = Balanced()
    world = cluster.world
    world.kill_broker(1)
    cluster.after(2 * LATE_S)
    assert cluster.late() == []
    cluster.bring_back(1)
    cluster.catch_up(1, 1, 2)
    cluster.after(LATE_S - 5)
    assert cluster.late() == []
    cluster.after(6)
    [late] = cluster.late()
    assert (late.broker_id, late.partitions, late.reason) == (1, 1, "it is not in the ISR of 1 of its 3 partitions")
    assert late.waits_s >= LATE_S
    world.heartbeat(3, want_shut_down=True, offset=0)
    assert cluster.late()[0].reason == "broker 3 is in controlled shutdown"
    world.heartbeat(3, want_shut_down=True)
    cluster.catch_up(1, 0)
    cluster.after(12)
    assert cluster.late() == []


# -- the timer --------------------------------------------------------------------------------------------------------


async def test_at_most_a_thousand_leaders_move_in_one_decision_and_the_rest_follows_at_once() -> None:
    cluster = Balanced([[1, 2]] * (ELECTIONS_MAX + 5))
    world = cluster.world
    world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, *range(ELECTIONS_MAX + 5))
    balancer = LeaderBalancer(world.controller, lambda: BalanceSettings(True, 0.01, 0))
    balancer.on_active()
    first = len(world.quorum.batches)
    async with asyncio.timeout(30):
        while cluster.index.brokers_out_of_balance():
            await asyncio.sleep(0.001)
            world.now += 0.001
            world.commit()
    balancer.on_inactive()
    elections = [
        sum(isinstance(decode_record(data), PartitionChangeRecord) for _, data in world.quorum.log[base : last + 1])
        for base, last in world.quorum.batches[first:]
    ]
    assert elections == [ELECTIONS_MAX, 5]
    assert set(cluster.leaders()) == {1}
    assert balancer._timer is None


async def test_a_disabled_balance_has_no_timer() -> None:
    balancer = LeaderBalancer(ControllerWorld().controller, lambda: BalanceSettings(False, 1, 0))
    balancer.on_active()
    assert balancer._timer is None


async def test_an_inactive_controller_moves_no_leaders() -> None:
    cluster = Balanced([[1, 2]])
    world = cluster.world
    world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, 0)
    balancer = LeaderBalancer(world.controller, lambda: BalanceSettings(True, 0.001, 0))
    world.controller.timers.append(balancer)
    balancer.on_active()
    world.controller.on_resign(1)
    assert balancer._timer is None
    world.become_active(epoch=2)
    assert balancer._timer is not None
    async with asyncio.timeout(10):
        while cluster.index.brokers_out_of_balance():
            await asyncio.sleep(0.001)
            world.now += 0.001
    balancer.on_inactive()


def set_for_cluster(world: ControllerWorld, key: str, value: str | None) -> None:
    operation = CONFIG_DELETE if value is None else CONFIG_SET
    resource = AlterConfigsResource(RESOURCE_BROKER, "", [AlterableConfig(key, operation, value)])
    (result,) = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource])).responses
    assert result.error_code == 0, result.error_message


async def test_balance_is_switched_off_and_on_while_the_controller_is_active() -> None:
    world = ControllerWorld()
    config = ControllerConfig.from_mapping(
        {"node.id": 9, "log.dirs": "/d", "controller.quorum.voters": "9@h:1", "leader.imbalance.check.interval.seconds": 50}
    )
    balancer = LeaderBalancer(world.controller, lambda: balance_settings(world.image, config))
    world.controller.on_configs_changed.append(balancer.on_configs_changed)
    balancer.on_active()
    assert balancer._settings == BalanceSettings(True, 50, 0)
    timer = balancer._timer
    set_for_cluster(world, "log.roll.ms", "5")
    assert balancer._timer is timer, "not its own key"
    set_for_cluster(world, "auto.leader.rebalance.enable", "false")
    assert balancer._timer is None
    set_for_cluster(world, "leader.imbalance.check.interval.seconds", "5")
    assert balancer._timer is None
    set_for_cluster(world, "auto.leader.rebalance.enable", None)
    assert balancer._timer is not None
    assert balancer._settings == BalanceSettings(True, 5, 0)
    balancer.on_inactive()


async def test_change_during_a_move_leaves_one_timer() -> None:
    """The elections are committed after the change."""
    cluster = Balanced([[1, 2]])
    world = cluster.world
    world.kill_broker(1)
    cluster.bring_back(1)
    cluster.catch_up(1, 0)
    used = BalanceSettings(True, 0.001, 0)
    balancer = LeaderBalancer(world.controller, lambda: used)
    balancer.on_active()
    async with asyncio.timeout(10):
        while not balancer._is_moving:
            await asyncio.sleep(0.001)
            world.now += 0.001
    used = BalanceSettings(True, 1000, 0)
    balancer.on_configs_changed()
    assert balancer._timer is None
    world.commit()
    assert cluster.leaders() == [1]
    assert balancer._timer is not None
    async with asyncio.timeout(10):
        while balancer._timer.when() < asyncio.get_running_loop().time() + 0.5:
            await asyncio.sleep(0.001)
    balancer.on_inactive()


# -- the index --------------------------------------------------------------------------------------------------------

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(st.sampled_from(["kill", "start", "join", "elect", "create", "delete"]), st.integers(1, 3), st.integers(0, 5)),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_the_index_of_a_running_controller_equals_a_new_one(history: list[Step]) -> None:
    cluster = Balanced()
    world = cluster.world
    incarnation = 1
    for kind, broker_id, number in history:
        if kind == "kill":
            world.kill_broker(broker_id)
        elif kind == "start" and world.image.brokers[broker_id].fenced:
            incarnation += 1
            world.start_broker(broker_id, incarnation)
        elif kind == "join":
            partition = world.partition("t", number % 3)
            if partition.leader >= 0 and world.image.brokers[broker_id].is_active:
                world.alter("t", list(dict.fromkeys([*partition.isr, broker_id])), number % 3)
        elif kind == "elect":
            world.controller.submit(
                lambda active, to=broker_id: move_leaders_back(world.image, active.index, to), lambda reply: None
            )
            world.commit()
        elif kind == "create" and world.image.topic(f"new-{number}") is None and world.image.brokers[broker_id].is_active:
            world.create(f"new-{number}", [[1 + number % 3, broker_id] if 1 + number % 3 != broker_id else [broker_id]])
        elif kind == "delete" and world.image.topic(f"new-{number}") is not None:
            world.call(apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState(f"new-{number}")]))
        check_index(cluster)


def check_index(cluster: Balanced) -> None:
    running, fresh = cluster.index, PartitionIndex(cluster.world.image)
    assert sorted(running.brokers_out_of_balance()) == sorted(fresh.brokers_out_of_balance())
    for broker_id in (1, 2, 3):
        assert sorted(running.imbalanced(broker_id)) == sorted(fresh.imbalanced(broker_id))
        assert running.imbalance_percentage(broker_id) == fresh.imbalance_percentage(broker_id)
        assert running.hosted_by(broker_id) == fresh.hosted_by(broker_id)
        assert running.is_in_all_isrs(broker_id) == fresh.is_in_all_isrs(broker_id)
