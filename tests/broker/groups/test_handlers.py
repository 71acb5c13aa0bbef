"""The connections that the handlers of group requests remember: those of accepted members, and only as long as they matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from handled_request import HandledConnection, HandledRequest

from strandline.broker.groups.handlers import GroupHandlers
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest


class Coordinator:
    """Accepts all requests, or refuses all, and records which members have lost their connections."""

    def __init__(self) -> None:
        self.error: ErrorCode | None = None
        self.lost: list[tuple[str, str]] = []

    def context(self, *_: object) -> None:
        return None

    def decide(self, group_id: str, decide: Callable[[Any], Any]) -> None:
        if self.error is not None:
            raise BrokerError(self.error)

    def on_member_connection_lost(self, group_id: str, member_id: str) -> None:
        self.lost.append((group_id, member_id))


class World:
    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.handlers = GroupHandlers(self.coordinator, lambda received_at: True)  # type: ignore[arg-type]

    def beat(self, connection: HandledConnection, member_id: str = "m", epoch: int = 1, group_id: str = "g") -> None:
        body = ConsumerGroupHeartbeatRequest(group_id, member_id, epoch, returns_at_once=True)
        self.handlers.consumer_group_heartbeat(HandledRequest(body, connection=connection))  # type: ignore[arg-type]

    def lose(self, connection: HandledConnection) -> list[tuple[str, str]]:
        """Lose the connection; returns the members whose sessions are shortened."""
        self.coordinator.lost = []
        self.handlers.on_connection_lost(connection)  # type: ignore[arg-type]
        return self.coordinator.lost


def test_lost_connection_is_one_of_its_members() -> None:
    world, connection = World(), HandledConnection()
    world.beat(connection, "a")
    world.beat(connection, "b")
    assert world.lose(connection) == [("g", "a"), ("g", "b")]
    assert world.lose(connection) == []


def test_refused_heartbeats_are_not_remembered() -> None:
    """A peer may send any number of refused heartbeats, with as many names of groups and members."""
    world, connection = World(), HandledConnection()
    world.coordinator.error = ErrorCode.GROUP_ID_NOT_FOUND
    for number in range(100):
        with pytest.raises(BrokerError):
            world.beat(connection, f"m{number}", group_id=f"g{number}")
    assert not connection.tag
    assert world.lose(connection) == []


def test_members_that_leave_or_move_are_forgotten() -> None:
    """A connection may live as long as the broker, and serve any number of members one after the other."""
    world, old, new = World(), HandledConnection(1), HandledConnection(2)
    for number in range(100):
        world.beat(old, f"m{number}")
        world.beat(old, f"m{number}", -1)
    assert not old.tag
    world.beat(old, "m")
    world.beat(new, "m")
    assert not old.tag
    assert world.lose(old) == []
    assert world.lose(new) == [("g", "m")]


def test_connections_of_two_listeners_are_two() -> None:
    """Each listener numbers its own connections. A member that has moved to the other listener is not lost with its old
    connection, although the new one has the same number."""
    world, old, new = World(), HandledConnection(5, "INSIDE"), HandledConnection(5, "OUTSIDE")
    world.beat(old)
    world.beat(new)
    assert world.lose(old) == []
    assert world.lose(new) == [("g", "m")]
