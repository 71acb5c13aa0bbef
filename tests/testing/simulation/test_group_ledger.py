"""I36, I38 and I39, checked by the responses and records that members receive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strandline.client import TopicPartition
from strandline.testing.simulation.cluster.groups.ledger import GroupLedger, Stay
from strandline.testing.simulation.group_plans import NEWER, MemberPlan

ORDERS = bytes(15) + b"\x08"
TP = TopicPartition("orders", 0)
PLACE = (ORDERS, 0)


class Coordinators:
    """The part of the invariants that the ledger calls."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.doubtful: set[str] = set()
        self.deleted = 0
        self.answer = -1
        self.sent_ms = 0

    def incarnation(self, group: str) -> int:
        return self.deleted

    def answered(self, group: str, member_id: str, key: Any) -> int:
        return self.answer

    def is_doubtful(self, group: str, member_id: str) -> bool:
        return member_id in self.doubtful

    def longest_session_ms(self, group: str, member_id: str, within_ms: float) -> int:
        return self.sent_ms

    def committed(self, group: str, key: Any) -> int:
        return self.answer

    def note(self, error: BaseException) -> None:
        self.found.append(str(error))


class ConsumerAtWork:
    """The part of a consumer that the ledger calls."""

    heard_ms_ago: float | None = 100.0

    def topic_id(self, tp: TopicPartition) -> bytes:
        return ORDERS

    def health(self) -> dict[str, Any]:
        return {"group": {"last_heartbeat_age_ms": self.heard_ms_ago}}


@pytest.fixture
def coordinators() -> Coordinators:
    return Coordinators()


@pytest.fixture
def ledger(coordinators: Coordinators) -> GroupLedger:
    return GroupLedger(coordinators, 1500, loss_permitted=False)


def joined(ledger: GroupLedger, name: str, epoch: int, *tps: TopicPartition, instance_id: str = "") -> Stay:
    plan = MemberPlan("g", NEWER, ("orders",), {}, instance_id=instance_id)
    stay = ledger.begin(name, plan, ConsumerAtWork())
    stay.on_assigned(tps, name, epoch)
    return stay


def records_at(*offsets: int) -> dict[TopicPartition, list[Any]]:
    return {TP: [SimpleNamespace(offset=offset) for offset in offsets]}


def test_member_reads_what_it_owns(ledger: GroupLedger, coordinators: Coordinators):
    first = joined(ledger, "a", 1, TP)
    first.given(records_at(0, 1))
    first.on_gone([TP])
    joined(ledger, "b", 2, TP).given(records_at(2))
    assert coordinators.found == []


def test_i36_member_is_given_records_of_a_partition_that_it_has_given_up(ledger: GroupLedger, coordinators: Coordinators):
    stay = joined(ledger, "a", 1, TP)
    stay.on_gone([TP])
    stay.given(records_at(3))
    assert "a was given orders-0 from 3, but owns []" in coordinators.found[0]


def test_i36_two_members_are_assigned_one_partition_in_one_epoch(ledger: GroupLedger, coordinators: Coordinators):
    joined(ledger, "a", 4, TP)
    joined(ledger, "b", 4, TP)
    assert "in the member epoch 4, b and a were both assigned partition 0" in coordinators.found[0]


def test_recreated_group_counts_its_epochs_from_the_start(ledger: GroupLedger, coordinators: Coordinators):
    joined(ledger, "a", 4, TP)
    coordinators.deleted = 1
    joined(ledger, "b", 4, TP)
    assert coordinators.found == []


def test_static_member_that_returns_is_the_same_owner(ledger: GroupLedger, coordinators: Coordinators):
    joined(ledger, "a", 4, TP, instance_id="i")
    joined(ledger, "b", 4, TP, instance_id="i").given(records_at(0))
    assert coordinators.found == []


def test_i36_member_continues_after_another_one_owns_the_partition(ledger: GroupLedger, coordinators: Coordinators):
    first = joined(ledger, "a", 1, TP)
    joined(ledger, "b", 2, TP)
    first.given(records_at(5))
    assert "a was given records of partition 0" in coordinators.found[0]
    assert "which b owns" in coordinators.found[0]


@pytest.mark.parametrize("how", ["removed by an administrator", "removed although it is alive", "the other one has died"])
def test_member_is_excused(ledger: GroupLedger, coordinators: Coordinators, how: str):
    first = joined(ledger, "a", 1, TP)
    second = joined(ledger, "b", 2, TP)
    match how:
        case "removed by an administrator":
            ledger.excuse("g", "a")
        case "removed although it is alive":
            coordinators.doubtful.add("a")
        case _:
            ledger.end(second)
    first.given(records_at(5))
    assert coordinators.found == []


def test_member_with_a_longer_session_continues(ledger: GroupLedger, coordinators: Coordinators):
    stay = joined(ledger, "a", 1, TP)
    coordinators.sent_ms, stay.consumer.heard_ms_ago = 3000, 1600.0
    stay.given(records_at(0))
    assert coordinators.found == []


def test_i36_member_continues_without_responses(ledger: GroupLedger, coordinators: Coordinators):
    stay = joined(ledger, "a", 1, TP)
    stay.consumer.heard_ms_ago = 1600.0
    stay.given(records_at(0))
    assert "1600 ms after its last heartbeat; its session has 1500 ms" in coordinators.found[0]


def test_i38_member_begins_elsewhere(ledger: GroupLedger, coordinators: Coordinators):
    coordinators.answer = 7
    stay = joined(ledger, "a", 1, TP)
    stay.begins_at(TP, 7)
    assert coordinators.found == []
    stay.begins_at(TP, 0)
    assert f"a begins {TP} at 0" in coordinators.found[0]


def test_i39_records_that_no_member_has_finished(ledger: GroupLedger, coordinators: Coordinators):
    first, second = joined(ledger, "a", 1, TP), joined(ledger, "b", 2)
    first.finish({PLACE: [0, 1]})
    second.finish({PLACE: [3]})
    (place,) = ledger.finished
    assert ledger.missing(place, range(6), committed=4) == [2]
    assert ledger.missing(place, (0, 1, 3, 5), committed=4) == []
