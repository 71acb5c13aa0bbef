"""The limits of a broker's connections, from its configuration. They may be changed while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.config import BrokerConfig
from strandline.broker.dynamic_config import DynamicConfig
from strandline.controller.metadata.config_keys import INT_MAX
from strandline.controller.metadata.quota_keys import connection_overrides
from strandline.protocol.rpc.address_limits import AddressLimits
from strandline.protocol.rpc.request_memory import RequestMemory
from strandline.protocol.rpc.server import Server


def request_memory(config: BrokerConfig) -> RequestMemory | None:
    """The memory limit for queued requests, which all listeners share; None if there is no limit."""
    bytes_max = config.values["queued.max.request.bytes"]
    return RequestMemory(bytes_max) if bytes_max > 0 else None


def connections_max(config: BrokerConfig, listener_name: str) -> int:
    """The maximum number of connections of this listener."""
    return _of_listener(config, listener_name, "max.connections")


def use_limits(config: BrokerConfig, servers: Sequence[Server], addresses: AddressLimits) -> None:
    """Apply the limits of addresses and listeners. Connections above a lowered limit stay open."""
    addresses.per_address_max = config.values["max.connections.per.ip"]
    addresses.overrides = connection_overrides(config.values["max.connections.per.ip.overrides"])
    for server in servers:
        server.limit_connections(connections_max(config, server.listener_name))
        rate = _of_listener(config, server.listener_name, "max.connection.creation.rate")
        server.limit_creation_rate(None if rate == INT_MAX else rate)


def follow_limits(dynamic_config: DynamicConfig, servers: Sequence[Server], addresses: AddressLimits) -> None:
    """Apply the present limits now, and each later change of them."""
    use_limits(dynamic_config.current, servers, addresses)
    for key in ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides", "max.connection.creation.rate"):
        dynamic_config.listen(key, lambda config: use_limits(config, servers, addresses))


def _of_listener(config: BrokerConfig, listener_name: str, key: str) -> int:
    """The value of a key for one listener: of `listener.name.<name>.<key>` if that is set, else of `<key>`."""
    return int(config.security.overrides.get(listener_name.lower(), {}).get(key, config.values[key]))
