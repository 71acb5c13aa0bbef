"""Late requests of members, on connections that they have given up, are refused. The stories S104 and S105 show the harm."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strandline.broker.groups import member_connections
from strandline.broker.groups.member_connections import MemberConnections
from strandline.protocol.errors import BrokerError, ErrorCode


@dataclass(frozen=True)
class Connection:
    id: int
    listener_name: str = "PLAINTEXT"


def is_refused(connections: MemberConnections, connection: Connection, member_id: str = "m") -> bool:
    try:
        connections.check(connection, "g", member_id)
    except BrokerError as e:
        return e.code == ErrorCode.NOT_COORDINATOR
    return False


def test_request_on_an_older_connection_is_refused() -> None:
    connections = MemberConnections()
    assert not is_refused(connections, Connection(3))
    assert not is_refused(connections, Connection(3))
    assert not is_refused(connections, Connection(8))
    assert is_refused(connections, Connection(3))
    assert not is_refused(connections, Connection(8))


def test_members_and_groups_do_not_count_for_each_other() -> None:
    """Members of one process may share a connection, or have several."""
    connections = MemberConnections()
    assert not is_refused(connections, Connection(8), "m")
    assert not is_refused(connections, Connection(3), "n")
    connections.check(Connection(3), "h", "m")


def test_listeners_count_their_connections_apart() -> None:
    connections = MemberConnections()
    assert not is_refused(connections, Connection(8))
    assert not is_refused(connections, Connection(3, "TLS"))


def test_number_of_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_connections, "MEMBERS_MAX", 2)
    connections = MemberConnections()
    for number, member_id in enumerate(("a", "b", "c"), 5):
        assert not is_refused(connections, Connection(number), member_id)
    assert is_refused(connections, Connection(1), "c")
    assert is_refused(connections, Connection(1), "b")
    assert not is_refused(connections, Connection(1), "a")
