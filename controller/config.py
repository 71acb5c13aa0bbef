"""A controller's configuration file: typed values of the keys in `controller/metadata/node_keys.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.controller.metadata.config_keys import parse
from strandline.controller.metadata.node_config import only_directory, parse_address
from strandline.controller.metadata.node_keys import CONTROLLER_KEYS
from strandline.controller.metadata.voters import Voter, check_quorum, parse_voters
from strandline.controller.raft.config import RaftConfig
from strandline.protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's settings, checked.

    The fields are the settings that the controller acts on; the table above has their meanings and units. `values` holds every
    key, for code that shows or passes on settings."""

    node_id: int
    cluster_id: str | None
    """None if not configured: then it is in the data directory, or the controllers agree on one."""
    listener_name: str
    host: str
    port: int
    """0, for any free port, is allowed with a single voter (in tests)."""
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
    values: Mapping[str, Any]
    """Every key with its parsed value, by Kafka's name."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ControllerConfig:
        """From a mapping of Kafka's dotted keys. Raises UsageError with one sentence for the first error."""
        values = parse(CONTROLLER_KEYS, mapping)
        node_id = values["node.id"]
        if values["cluster.id"] == "":
            raise UsageError("config cluster.id must not be empty; leave it out, and the controllers agree on one")
        voters = parse_voters(values["controller.quorum.voters"], port_min=0)
        check_quorum(voters, node_id)
        own = next(voter for voter in voters if voter.id == node_id)
        listener_name, host, port = _listener(values["listeners"], own)
        return cls(
            node_id=node_id,
            cluster_id=values["cluster.id"],
            listener_name=listener_name,
            host=host,
            port=port,
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


def _listener(items: list[str] | None, own: Voter) -> tuple[str, str, int]:
    if items is None:
        return "CONTROLLER", own.host, own.port
    if len(items) != 1:
        raise UsageError(f"config listeners: a controller has one listener, not {len(items)}")
    name, separator, address = items[0].partition("://")
    host, port = parse_address(address)
    if not separator or not name or port < 0:
        raise UsageError(f"config listeners: {items[0]!r} is not of the form NAME://host:port")
    if port != own.port:
        raise UsageError(
            f"config listeners: port {port} is not the port of node {own.id} in controller.quorum.voters ({own.port})"
        )
    return name, host, port
