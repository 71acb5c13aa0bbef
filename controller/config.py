"""A controller's configuration file: typed values of the keys in `controller/metadata/node_keys.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.controller.metadata.config_keys import parse
from strandline.controller.metadata.group_configs import check_node_bounds
from strandline.controller.metadata.node_config import only_directory, parse_listeners
from strandline.controller.metadata.node_keys import CONTROLLER_KEYS, KAFKA
from strandline.controller.metadata.node_security.overrides import split_overrides
from strandline.controller.metadata.node_security.settings import NodeSecuritySettings
from strandline.controller.metadata.voters import Voter, check_quorum, parse_voters
from strandline.controller.raft.config import RaftConfig
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import Listener


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's settings, checked.

    The fields are the settings that the controller acts on; the table in `node_keys.py` has their meanings and units. `values`
    holds every key, for code that shows or passes on settings."""

    node_id: int
    cluster_id: str | None
    """None if not configured; the id is then in the data directory, or the controllers agree on one."""
    listeners: tuple[Listener, ...]
    """The addresses to bind: first the one in `voters`, where other nodes find this controller. Its port may be 0, for any free
    port, with a single voter (in tests)."""
    data_dir: str
    voters: tuple[Voter, ...]
    raft: RaftConfig
    cluster_id_agreement_timeout_ms: int
    broker_session_timeout_ms: int
    broker_connection_loss_grace_ms: int
    producer_name_expiration_ms: int
    num_partitions: int
    default_replication_factor: int
    max_connections: int
    connections_max_idle_ms: int
    socket_request_max_bytes: int
    security: NodeSecuritySettings
    """How the listeners authenticate their peers, and how this controller authenticates itself to other nodes."""
    values: Mapping[str, Any] = field(repr=False)
    """Every key with its parsed value, by Kafka's name; some are secrets."""

    @property
    def port(self) -> int:
        """The port in `voters`."""
        return self.listeners[0].port

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ControllerConfig:
        """The configuration in a mapping of Kafka's dotted keys. Raises UsageError with one sentence for the first error."""
        plain, overrides = split_overrides(mapping)
        values = parse(CONTROLLER_KEYS, plain)
        node_id = values["node.id"]
        if values["cluster.id"] == "":
            raise UsageError("config cluster.id must not be empty; leave it out, and the controllers agree on one")
        voters = parse_voters(values["controller.quorum.voters"], port_min=0)
        check_quorum(voters, node_id)
        own = next(voter for voter in voters if voter.id == node_id)
        listeners = _listeners(values["listeners"], own)
        check_node_bounds(values, plain.keys())
        return cls(
            node_id=node_id,
            cluster_id=values["cluster.id"],
            listeners=listeners,
            data_dir=only_directory(values["log.dirs"]),
            voters=voters,
            raft=_raft_config(values),
            cluster_id_agreement_timeout_ms=values["cluster.id.agreement.timeout.ms"],
            broker_session_timeout_ms=values["broker.session.timeout.ms"],
            broker_connection_loss_grace_ms=values["broker.connection.loss.grace.ms"],
            producer_name_expiration_ms=values["producer.name.expiration.ms"],
            num_partitions=values["num.partitions"],
            default_replication_factor=values["default.replication.factor"],
            max_connections=values["max.connections"],
            connections_max_idle_ms=values["connections.max.idle.ms"],
            socket_request_max_bytes=values["socket.request.max.bytes"],
            security=NodeSecuritySettings.of(
                listeners, to_brokers=None, to_controllers=listeners[0].name, values=values, overrides=overrides
            ),
            values=values,
        )


def _raft_config(values: Mapping[str, Any]) -> RaftConfig:
    defaults = RaftConfig()
    fetch_timeout_ms = values["controller.quorum.fetch.timeout.ms"]
    request_timeout_ms = values["controller.quorum.request.timeout.ms"]
    backoff_ms_max = values["controller.quorum.election.backoff.max.ms"]
    return RaftConfig(
        election_timeout_ms=values["controller.quorum.election.timeout.ms"],
        fetch_timeout_ms=fetch_timeout_ms,
        request_timeout_ms=request_timeout_ms,
        election_backoff_ms_max=backoff_ms_max,
        election_backoff_ms_min=min(defaults.election_backoff_ms_min, backoff_ms_max),
        retry_backoff_ms=values["controller.quorum.retry.backoff.ms"],
        fetch_wait_ms_max=min(defaults.fetch_wait_ms_max, fetch_timeout_ms // 2, request_timeout_ms // 2),
        segment_bytes=values["metadata.log.segment.bytes"],
        snapshot_after_bytes=values["metadata.log.max.record.bytes.between.snapshots"],
    )


def _listeners(items: list[str] | None, own: Voter) -> tuple[Listener, ...]:
    """The listeners; the one in controller.quorum.voters comes first."""
    if items is None:
        return (Listener("CONTROLLER", own.host, own.port),)
    listeners = parse_listeners("listeners", items)
    if any(listener.name.upper() == KAFKA for listener in listeners):
        raise UsageError(f"config listeners: {KAFKA} is a listener for Kafka's clients, and only brokers have one")
    of_quorum = [listener for listener in listeners if listener.port == own.port]
    if not of_quorum:
        ports = " or ".join(str(listener.port) for listener in listeners)
        raise UsageError(
            f"config listeners: port {ports} is not the port of node {own.id} in controller.quorum.voters ({own.port})"
        )
    return (of_quorum[0], *(listener for listener in listeners if listener is not of_quorum[0]))
