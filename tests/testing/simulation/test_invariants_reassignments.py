"""I34 and I35: how a reassignment ends, and which replicas its throttle slows down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from invariant_bench import Bench, bench

from strandline.controller.reassignment import Assignment
from strandline.testing.simulation.campaign.mutations import applied

RUNNING = {"replicas": (2, 3, 1), "adding_replicas": (3,), "removing_replicas": (1,), "original_replicas": (1, 2)}
"""A reassignment from brokers 1 and 2 to brokers 2 and 3."""
OVER = {"adding_replicas": (), "removing_replicas": (), "original_replicas": (), "throttle_rate": 0}


@pytest.fixture
def at() -> Iterator[Bench]:
    """A partition on brokers 1 and 2 that moves to brokers 2 and 3, with a throttle."""
    with bench() as found:
        found.change(isr=(1, 2), replicas=(1, 2), leader=1)
        found.change(**RUNNING, throttle_rate=1000)
        found.take_role(1)
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


def test_a_reassignment_completes(at: Bench) -> None:
    at.change(isr=(1, 2, 3))
    at.change(replicas=(2, 3), isr=(2, 3), leader=2, **OVER)


def test_a_reassignment_is_cancelled(at: Bench) -> None:
    at.change(isr=(1, 2, 3))
    at.change(replicas=(1, 2), isr=(1, 2), leader=1, **OVER)


def test_a_reassignment_is_replaced(at: Bench) -> None:
    at.change(replicas=(3, 1, 2), removing_replicas=(1, 2), throttle_rate=0)


def test_i34_a_reassignment_completes_without_an_added_replica(at: Bench) -> None:
    with at.flags("I34", "without the added replicas [3] in the ISR"):
        at.change(replicas=(2, 3), isr=(2,), leader=2, **OVER)


def test_i34_a_throttle_outlives_its_reassignment(at: Bench) -> None:
    at.change(isr=(1, 2, 3))
    with at.flags("I34", "something of it is left"):
        at.change(replicas=(2, 3), isr=(2, 3), leader=2, **{**OVER, "throttle_rate": 1000})


def test_i34_a_replica_leaves_before_the_end(at: Bench) -> None:
    with at.flags("I34", "left before its reassignment was complete"):
        at.change(replicas=(2, 3), isr=(2,), leader=2, removing_replicas=())


def test_i34_the_original_replicas_are_forgotten(at: Bench) -> None:
    with at.flags("I34", "not those from before it"):
        at.change(original_replicas=(2, 1))


def test_i34_a_replica_appears_that_was_never_added(at: Bench) -> None:
    with at.flags("I34", "never added"):
        at.change(replicas=(2,), isr=(2,), leader=2, **OVER)
        at.change(replicas=(2, 4), isr=(2, 4))


def test_i35_a_member_of_the_isr_is_throttled(at: Bench) -> None:
    leader_state = at.partitions[1].leader_state
    assert leader_state is not None
    leader_state.throttled = frozenset({3})
    assert leader_state.is_throttled(3)
    at.step()
    with at.flags("I35", "broker 1 throttles broker 2, which is in the ISR [1, 2]"):
        at.invariants.on_throttled(at.replica(1), 2, (1, 2))


def test_a_mutated_assignment_keeps_its_throttle() -> None:
    """This tests that the mutation has its effect."""
    moved = Assignment((2, 3, 1), (3,), (1,), (1, 2), 1000)
    assert moved.without_removed() == Assignment((2, 3))
    with applied("M40"):
        assert moved.without_removed().throttle_rate == 1000
