"""I50: the sessions of members, and the moments at which their coordinator removes them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.group import NO_METADATA, Member
from strandline.broker.groups.records.types import ClassicMemberMetadata
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest
from strandline.testing.simulation.invariants import group_sessions
from strandline.testing.simulation.invariants.ghosts import Ghosts
from strandline.testing.simulation.invariants.violation import Violation

NODE, SESSION_MS, GRACE_S = 1, 2000, 0.05
LEAVES, LEAVES_FOR_A_MOMENT, JOINS, STAYS = -1, -2, 0, 5
LOADED_AT = 100.0


class Coordinator:
    """A coordinator that has loaded the group `g` with the members `a` and `b`, as I50 sees it."""

    def __init__(self) -> None:
        self.ghosts = Ghosts()
        server = SimpleNamespace(
            metadata=SimpleNamespace(image=MetadataImage.empty()),
            opened=SimpleNamespace(groups=SimpleNamespace(config=GroupConfig(group_consumer_session_timeout_ms=SESSION_MS))),
        )
        self.ghosts.begin(NODE, server, object())
        self.group = SimpleNamespace(group_id="g", members={"a": Member("a"), "b": Member("b")})
        self.protocol = object()
        group_sessions.on_loaded(self.ghosts, NODE, self.protocol, [self.group], LOADED_AT)

    def heartbeat(self, now: float, epoch: int = STAYS, member_id: str = "a") -> None:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch)
        group_sessions.on_heartbeat(self.ghosts, NODE, self.protocol, {"g": self.group}, request, now)

    def close_connection(self) -> None:
        group_sessions.on_connection_lost(self.ghosts, self.protocol, "g", "a")

    def remove(self, now: float) -> None:
        """Remove the member `a`, because its session has ended."""
        group_sessions.on_session_ended(self.ghosts, NODE, self.protocol, self.group, "a", now)


@pytest.fixture
def at() -> Coordinator:
    return Coordinator()


def breaks(text: str) -> Any:
    return pytest.raises(Violation, match=f"^I50: group g: the member a of broker 1 {text}")


def test_member_is_not_removed_before_the_session_of_its_last_heartbeat_ends(at: Coordinator) -> None:
    at.heartbeat(101.0)
    with breaks("is removed 1000 ms before its session ends"):
        at.remove(102.0)
    at.remove(103.0)


def test_session_begins_at_the_load_for_a_member_without_heartbeats(at: Coordinator) -> None:
    with breaks("is removed 500 ms before its session ends"):
        at.remove(101.5)
    at.remove(102.0)


def test_grace_of_a_closed_connection_lasts_until_the_next_heartbeat(at: Coordinator) -> None:
    at.heartbeat(101.0)
    at.close_connection()
    at.remove(101.1)
    at.heartbeat(101.2)
    with breaks("is removed 1900 ms before its session ends"):
        at.remove(101.3)


def test_refused_leave_does_not_end_the_grace_of_a_closed_connection(at: Coordinator) -> None:
    """Seed 20261131087: the connection of the member closes, and in the short grace it leaves on a new one. The log of the groups
    has too few replicas in sync for the tombstones. The member is still in the group when the grace ends."""
    at.heartbeat(100.7)
    at.close_connection()
    at.heartbeat(101.0, LEAVES)
    at.remove(101.0 + GRACE_S)


@pytest.mark.parametrize("leaves", [1, 2])
def test_refused_leave_does_not_shorten_the_session(at: Coordinator, leaves: int) -> None:
    """The session is that of the last heartbeat before it, not the earlier one of the load."""
    at.heartbeat(101.0)
    for _ in range(leaves):
        at.heartbeat(101.1, LEAVES)
    with breaks("is removed 500 ms before its session ends"):
        at.remove(102.5)
    at.remove(103.0)


def test_member_whose_leave_was_refused_is_removed_when_its_session_ends(at: Coordinator) -> None:
    at.heartbeat(101.0)
    at.heartbeat(101.1, LEAVES)
    at.heartbeat(103.9, member_id="b")
    at.heartbeat(104.1, member_id="b")
    with breaks("is still a member 1300 ms after its session has ended"):
        at.heartbeat(104.3, member_id="b")


def test_member_that_has_left_and_joined_again_has_a_new_session(at: Coordinator) -> None:
    at.heartbeat(101.0)
    at.heartbeat(101.1, LEAVES)
    at.heartbeat(110.0, JOINS)
    with breaks("is removed 1000 ms before its session ends"):
        at.remove(111.0)
    at.remove(112.0)


def test_session_of_a_member_that_is_gone_is_forgotten(at: Coordinator) -> None:
    at.heartbeat(101.0)
    at.heartbeat(101.1, LEAVES)
    del at.group.members["a"]
    for now in (105.0, 105.5, 106.0):
        at.heartbeat(now, member_id="b")


def test_member_that_comes_back_with_the_classic_protocol_has_its_own_session(at: Coordinator) -> None:
    at.heartbeat(101.0)
    at.heartbeat(101.1, LEAVES)
    metadata = replace(NO_METADATA, classic_member_metadata=ClassicMemberMetadata(60_000, ()))
    at.group.members["a"] = Member("a", metadata)
    for now in (105.0, 105.5, 106.0):
        at.heartbeat(now, member_id="b")


def test_leave_for_a_moment_begins_a_session(at: Coordinator) -> None:
    at.heartbeat(101.0)
    at.close_connection()
    at.heartbeat(101.5, LEAVES_FOR_A_MOMENT)
    with breaks("is removed 1900 ms before its session ends"):
        at.remove(101.6)
    at.remove(103.5)
