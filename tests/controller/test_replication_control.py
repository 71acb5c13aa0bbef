"""AlterPartition and elections: every check, and the changes when a broker dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.controller.metadata.records import NO_LEADER
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    PREFERRED_ELECTION,
    ElectLeadersPartition,
    ElectLeadersRequest,
    ElectLeadersResult,
)


@pytest.fixture
def world() -> ControllerWorld:
    """Brokers 1-4; topic t with one partition on 1, 2, 3, led by 1."""
    world = ControllerWorld(brokers=4)
    world.create("t", [[1, 2, 3]])
    return world


def test_shrink_and_expand_bump_only_the_partition_epoch(world: ControllerWorld) -> None:
    """An ISR change is no change of the leader: followers keep fetching."""
    answer = world.alter("t", [1, 2])
    assert (answer.error_code, answer.isr, answer.leader_id, answer.leader_epoch, answer.partition_epoch) == (0, [1, 2], 1, 0, 1)
    assert world.partition("t").isr == (1, 2)
    answer = world.alter("t", [1, 2, 3])
    assert (answer.isr, answer.leader_epoch, answer.partition_epoch) == ([1, 2, 3], 0, 2)
    assert world.partition("t").isr == (1, 2, 3)


def test_the_same_isr_again_raises_the_partition_epoch(world: ControllerWorld) -> None:
    """The new epoch invalidates earlier proposals: a leader so withdraws an expansion of which a copy may still be in flight."""
    answer = world.alter("t", [1, 2, 3])
    assert (answer.error_code, answer.partition_epoch, answer.isr) == (0, 1, [1, 2, 3])
    assert world.partition("t").partition_epoch == 1
    late = world.alter("t", [1, 2], partition_epoch=0)
    assert late.error_code == ErrorCode.INVALID_UPDATE_VERSION


REFUSALS: list[tuple[str, list[int], dict[str, Any], ErrorCode]] = [
    ("topic id is unknown", [1], {"topic_id": b"?" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
    ("partition is unknown", [1], {"index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("leader epoch is ahead of ours", [1], {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
    ("partition epoch is ahead of ours", [1], {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
    ("leader epoch is old", [1], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
    ("sender does not lead", [1, 2], {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
    ("partition epoch is old", [1], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
    ("isr is empty", [], {}, ErrorCode.INVALID_REQUEST),
    ("isr names one twice", [1, 2, 2], {}, ErrorCode.INVALID_REQUEST),
    ("isr is no subset of the replicas", [1, 4], {}, ErrorCode.INVALID_REQUEST),
    ("isr lacks the leader", [2, 3], {}, ErrorCode.INVALID_REQUEST),
    ("recovery state does not exist", [1], {"recovery": 2}, ErrorCode.INVALID_REQUEST),
    ("recovery is begun by the leader", [1], {"recovery": 1}, ErrorCode.INVALID_REQUEST),
    ("a member's epoch is another one", [1, 2], {"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize(("isr", "overrides", "code"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_alter_partition_refuses_when(world: ControllerWorld, isr: list[int], overrides: dict[str, Any], code: ErrorCode) -> None:
    """Kafka's checks, one by one; no record is written."""
    before = world.image
    assert world.alter("t", isr, **overrides).error_code == code
    assert world.image is before


def test_alter_partition_with_a_stale_broker_epoch_is_rejected(world: ControllerWorld) -> None:
    """The whole request is rejected: one of an earlier incarnation must not count (F15)."""
    for epoch in (world.epoch(1) - 1, world.epoch(1) + 1):
        with pytest.raises(BrokerError, match="STALE_BROKER_EPOCH"):
            world.alter("t", [1], broker_epoch=epoch)
    with pytest.raises(BrokerError, match="not registered"):
        world.call(apis.ALTER_PARTITION, _forged(world, broker_id=9))


def _forged(world: ControllerWorld, broker_id: int) -> Any:
    request = world.alter_request("t", [1])
    request.broker_id = broker_id
    return request


def test_two_proposals_for_one_partition_in_a_request_count_once(world: ControllerWorld) -> None:
    """Both would be checked against the same state (F11)."""
    request = world.alter_request("t", [1, 2])
    request.partitions.append(world.alter_request("t", [1, 3]).partitions[0])
    answers = world.call(apis.ALTER_PARTITION, request).partitions
    assert [a.error_code for a in answers] == [0, ErrorCode.INVALID_REQUEST]
    assert world.partition("t").isr == (1, 2)


def test_an_unseen_epoch_is_taken_only_for_a_present_member(world: ControllerWorld) -> None:
    """A new leader may not have received a fetch from the other members yet; but it has from a broker that it adds."""
    assert world.alter("t", [1, 2], epochs={1: -1, 2: -1}).error_code == 0
    assert world.alter("t", [1, 2, 3], epochs={3: -1}).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_proposal_of_an_earlier_leader_epoch_is_fenced(world: ControllerWorld) -> None:
    """S17: a proposal of leader 1 in epoch 0 is fenced after 1 was deposed and elected again, whether its ISR is right or not."""
    held = world.alter_request("t", [1, 2])
    world.kill_broker(1)
    world.start_broker(1, incarnation=2)
    world.alter("t", [2, 3, 1])
    _elect(world, ("t", 0))
    held.broker_epoch = world.epoch(1)
    (answer,) = world.call(apis.ALTER_PARTITION, held).partitions
    assert (world.partition("t").leader, world.partition("t").leader_epoch) == (1, 2)
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_retry_of_an_accepted_proposal_is_rejected_as_stale(world: ControllerWorld) -> None:
    """S18, the controller's side: the first request was committed, so the retry names an old partition epoch and changes
    nothing."""
    request = world.alter_request("t", [1, 2])
    world.send(apis.ALTER_PARTITION, request)
    world.commit()
    committed = world.partition("t")
    (answer,) = world.call(apis.ALTER_PARTITION, request).partitions
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert world.partition("t") == committed


def test_the_next_controller_accepts_a_rejected_proposal(world: ControllerWorld) -> None:
    """S19, the controller's side: a rejected proposal leaves no trace."""
    request = world.alter_request("t", [1, 2])
    world.controller.on_resign(1)
    with pytest.raises(BrokerError, match="NOT_CONTROLLER"):
        world.call(apis.ALTER_PARTITION, request)
    world.become_active(epoch=2)
    (answer,) = world.call(apis.ALTER_PARTITION, request).partitions
    assert (answer.error_code, answer.isr) == (0, [1, 2])


@pytest.mark.parametrize("how", ["fenced", "shutting down"])
def test_a_fenced_or_leaving_replica_cannot_come_back_into_the_isr(world: ControllerWorld, how: str) -> None:
    """S20: the leader does not know yet that 3 is gone, and because of 3's last fetch it proposes {1, 2, 3}."""
    if how == "fenced":
        world.kill_broker(3)
    else:
        world.create("led-by-3", [[3, 1]])
        world.heartbeat(3, want_shut_down=True)
    assert world.partition("t").isr == (1, 2)
    assert world.alter("t", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert world.partition("t").isr == (1, 2)


def test_a_proposal_does_not_add_a_new_incarnation(world: ControllerWorld) -> None:
    """S21: 2 caught up, then lost its disk and registered again; the delayed proposal names its old epoch."""
    world.alter("t", [1])
    held = world.alter_request("t", [1, 2])
    world.kill_broker(2)
    world.start_broker(2, incarnation=9)
    (answer,) = world.call(apis.ALTER_PARTITION, held).partitions
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA
    world.kill_broker(1)
    assert (world.partition("t").isr, world.partition("t").elr) == ((), (1,))
    assert world.partition("t").leader == NO_LEADER


def test_a_dead_leaders_partition_goes_to_the_next_replica_in_the_isr(world: ControllerWorld) -> None:
    """A new leader raises both epochs. The order of the replicas decides, not that of the ISR."""
    world.alter("t", [3, 1, 2])
    world.kill_broker(1)
    partition = world.partition("t")
    assert (partition.leader, partition.isr, partition.leader_epoch, partition.partition_epoch) == (2, (3, 2), 1, 2)


def test_a_dead_follower_leaves_the_isr_and_the_leader_epoch_stays(world: ControllerWorld) -> None:
    world.kill_broker(2)
    partition = world.partition("t")
    assert (partition.leader, partition.isr, partition.leader_epoch, partition.partition_epoch) == (1, (1, 3), 0, 1)


def test_at_level_0_the_last_isr_member_stays_and_leads_again_when_it_returns() -> None:
    """Only this broker has every committed record. Another one may return before it, and must not be elected."""
    world = ControllerWorld(brokers=3, levels=LEVEL_0_ONLY)
    world.create("t", [[1, 2, 3]])
    for broker_id in (1, 2, 3):
        world.kill_broker(broker_id)
    assert (world.partition("t").leader, world.partition("t").isr) == (NO_LEADER, (3,))
    world.start_broker(1, incarnation=2)
    assert (world.partition("t").leader, world.partition("t").isr) == (NO_LEADER, (3,))
    world.register(3, incarnation=2)
    assert (world.partition("t").leader, world.partition("t").isr) == (NO_LEADER, (3,))
    world.heartbeat(3)
    partition = world.partition("t")
    assert (partition.leader, partition.isr) == (3, (3,))


def test_a_thousand_partitions_move_in_one_batch_under_200_ms() -> None:
    """The other 4,000 partitions do not change. The limit is what a fail-over can afford, several times the real duration."""
    world = ControllerWorld(brokers=6)
    world.create("mine", [[1, 2, 3]] * 1000)
    world.create("others", [[4, 5, 6]] * 4000)
    batches = len(world.quorum.batches)
    started = time.process_time()
    world.controller.fence(1, world.epoch(1), "test")
    took_ms = (time.process_time() - started) * 1000
    assert len(world.quorum.batches) == batches + 1
    topic = world.image.topic("mine")
    assert topic is not None
    assert {(p.leader, p.isr) for p in topic.partitions.values()} == {(2, (2, 3))}
    assert took_ms < 200


# -- ElectLeaders -----------------------------------------------------------------------------------------------------


def _elect(world: ControllerWorld, *partitions: tuple[str, int], all_of_them: bool = False) -> list[ElectLeadersResult]:
    asked = None if all_of_them else [ElectLeadersPartition(*p) for p in partitions]
    results: list[ElectLeadersResult] = world.call(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, asked)).results
    return results


def test_a_preferred_election_restores_the_preferred_leader(world: ControllerWorld) -> None:
    world.kill_broker(1)
    world.start_broker(1, incarnation=2)
    assert _elect(world, ("t", 0))[0].error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    world.alter("t", [2, 3, 1])
    assert _elect(world, ("t", 0))[0].error_code == 0
    assert (world.partition("t").leader, world.partition("t").leader_epoch) == (1, 2)
    assert _elect(world, ("t", 0))[0].error_code == ErrorCode.ELECTION_NOT_NEEDED


@pytest.mark.parametrize("all_of_them", [False, True])
def test_elections_of_many_partitions_leave_room_for_other_requests(monkeypatch: pytest.MonkeyPatch, all_of_them: bool) -> None:
    """Thirty thousand elections take seconds, and a controller that answers no heartbeat in the meantime loses its brokers."""
    monkeypatch.setattr("strandline.controller.handlers.ELECTIONS_MAX", 4)
    world = ControllerWorld(brokers=2)
    world.create("many", [[1, 2]] * 10)
    world.kill_broker(1)
    world.start_broker(1, incarnation=2)
    for index in range(10):
        world.alter("many", [1, 2], index=index)
    later: list[Callable[[], None]] = []
    world.call_soon = later.append
    batches = len(world.quorum.batches)
    asked = None if all_of_them else [ElectLeadersPartition("many", index) for index in range(10)]
    request = world.send(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, asked))
    for _ in range(2):
        assert later == [], "the next part waits until the elections of the last one are committed"
        world.commit()
        assert not request.is_answered
        later.pop()()
    world.commit()
    assert later == []
    assert [(r.partition, r.error_code) for r in request.answer.results] == [(index, 0) for index in range(10)]
    assert [last - first + 1 for first, last in world.quorum.batches[batches:]] == [4, 4, 2]
    assert all(world.partition("many", index).leader == 1 for index in range(10))


def test_a_controller_that_resigns_between_elections_refuses_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.controller.handlers.ELECTIONS_MAX", 1)
    world = ControllerWorld(brokers=2)
    world.create("two", [[1, 2]] * 2)
    later: list[Callable[[], None]] = []
    world.call_soon = later.append
    request = world.send(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, None))
    world.controller.on_resign(1)
    later.pop()()
    assert isinstance(request.answer, BrokerError)
    assert request.answer.code == ErrorCode.NOT_CONTROLLER


def test_election_of_unknown_partitions_is_an_error_of_each(world: ControllerWorld) -> None:
    codes = [r.error_code for r in _elect(world, ("t", 5), ("nowhere", 0))]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_electing_all_reports_only_partitions_that_needed_it(world: ControllerWorld) -> None:
    world.create("u", [[2, 3], [3, 2], [1, 2]])
    world.kill_broker(3)
    world.start_broker(3, incarnation=2)
    world.alter("u", [2, 3], index=1)
    assert [(r.topic, r.partition, r.error_code) for r in _elect(world, all_of_them=True)] == [("u", 1, 0)]
    assert world.partition("u", 1).leader == 3
