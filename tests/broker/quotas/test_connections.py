"""The limits of a broker's connections: from its configuration, and changed while it runs (`broker/quotas/connections.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.broker.config import BrokerConfig
from strandline.broker.quotas.connections import connections_max, request_memory, use_limits
from strandline.controller.metadata.quota_keys import connection_overrides
from strandline.protocol.errors import UsageError
from strandline.protocol.rpc.address_limits import UNLIMITED, AddressLimits


class FakeServer:
    """Keeps the limits that are set on it."""

    def __init__(self, listener_name: str) -> None:
        self.listener_name = listener_name
        self.connections = 0
        self.rate: float | None = -1.0

    def limit_connections(self, max_connections: int) -> None:
        self.connections = max_connections

    def limit_creation_rate(self, per_second: float | None) -> None:
        self.rate = per_second


def config(**changes: Any) -> BrokerConfig:
    keys = {
        "node.id": 1,
        "log.dirs": "/data",
        "controller.quorum.voters": "101@c:9093",
        "listeners": "CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9094",
        "inter.broker.listener.name": "BROKERS",
    }
    return BrokerConfig.from_mapping({**keys, **{name.replace("__", "."): value for name, value in changes.items()}})


def limits_of(found: BrokerConfig) -> tuple[dict[str, tuple[int, float | None]], AddressLimits]:
    servers: list[Any] = [FakeServer("CLIENTS"), FakeServer("BROKERS")]
    addresses = AddressLimits()
    use_limits(found, servers, addresses)
    return {server.listener_name: (server.connections, server.rate) for server in servers}, addresses


def test_defaults_limit_nothing() -> None:
    by_listener, addresses = limits_of(config())
    assert set(by_listener.values()) == {(2**31 - 1, None)}
    assert addresses.per_address_max == UNLIMITED
    assert not addresses.overrides
    assert request_memory(config()) is None


def test_listener_may_have_limits_of_its_own() -> None:
    """Clients must not take the connections that brokers need, and the other way round."""
    found = config(
        max__connections=100,
        listener__name__clients__max__connections=7,
        listener__name__clients__max__connection__creation__rate=5,
    )
    by_listener, _ = limits_of(found)
    assert by_listener == {"CLIENTS": (7, 5), "BROKERS": (100, None)}
    assert connections_max(found, "CLIENTS") == 7


def test_limits_of_addresses_and_memory_are_taken_over() -> None:
    found = config(
        max__connections__per__ip=3, max__connections__per__ip__overrides="10.0.0.1:50, [::1]:2", queued__max__request__bytes=1000
    )
    _, addresses = limits_of(found)
    assert addresses.per_address_max == 3
    assert addresses.overrides == {"10.0.0.1": 50, "::1": 2}
    memory = request_memory(found)
    assert memory is not None
    assert memory.bytes_max == 1000


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", ":5", "10.0.0.1:x", "10.0.0.1:-1"])
def test_malformed_overrides_are_refused(text: str) -> None:
    """A limit that is silently ignored is worse than none."""
    with pytest.raises(UsageError, match=r"max\.connections\.per\.ip\.overrides.*address:connections"):
        config(max__connections__per__ip__overrides=text)
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        connection_overrides(text)
