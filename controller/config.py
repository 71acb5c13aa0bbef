"""A controller's configuration: the keys, with Kafka's names, defaults, units and meanings, and the typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.controller.metadata.config_keys import INT_MAX, REQUIRED, ConfigKey, parse, without_blanks
from strandline.controller.metadata.node_config import http_listener_key, only_directory, parse_address
from strandline.controller.metadata.voters import Voter, check_quorum, parse_voters
from strandline.controller.raft.config import RaftConfig
from strandline.protocol.errors import UsageError

KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("node.id", "int", REQUIRED, "", "the controller's id; one of controller.quorum.voters", min=0),
    ConfigKey(
        "cluster.id",
        "string",
        None,
        "",
        "the cluster that this controller belongs to permanently; without it, the controllers agree on one at the first start",
        check=without_blanks,
    ),
    ConfigKey(
        "cluster.id.agreement.timeout.ms",
        "int",
        60_000,
        "ms",
        "a controller without a cluster id stops if the host name of another controller is still unknown after this time",
        min=1,
    ),
    ConfigKey(
        "listeners",
        "list",
        None,
        "",
        "the address to listen on: CONTROLLER://host:port; by default the controller's address in controller.quorum.voters",
    ),
    ConfigKey("log.dirs", "list", REQUIRED, "", "the data directory (one): the metadata log and its snapshots"),
    ConfigKey("controller.quorum.voters", "list", REQUIRED, "", "all controllers: id@host:port, ..."),
    ConfigKey(
        "controller.quorum.election.timeout.ms",
        "int",
        500,
        "ms",
        "how long a candidate waits for votes before it tries again",
        min=1,
    ),
    ConfigKey(
        "controller.quorum.fetch.timeout.ms",
        "int",
        1000,
        "ms",
        "a controller that has not fetched from the active one for this time asks for an election",
        min=2,
    ),
    ConfigKey(
        "controller.quorum.election.backoff.max.ms",
        "int",
        100,
        "ms",
        "the largest random delay before an election starts",
        min=1,
    ),
    ConfigKey(
        "controller.quorum.request.timeout.ms",
        "int",
        1000,
        "ms",
        "how long a controller waits for a response of another one",
        min=1,
    ),
    ConfigKey("controller.quorum.retry.backoff.ms", "int", 20, "ms", "the pause before a failed request is sent again", min=1),
    ConfigKey(
        "metadata.log.segment.bytes", "int", 16 << 20, "bytes", "a new segment of the metadata log starts at this size", min=1024
    ),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        "long",
        20 << 20,
        "bytes",
        "a snapshot is written after this many bytes of the metadata log",
        min=1,
    ),
    ConfigKey("broker.session.timeout.ms", "int", 3000, "ms", "a broker is fenced after this time without a heartbeat", min=1),
    ConfigKey(
        "broker.connection.loss.grace.ms",
        "int",
        100,
        "ms",
        "a broker that closed its connection and cannot be reached is fenced after this time",
        min=0,
    ),
    ConfigKey(
        "producer.name.expiration.ms",
        "long",
        30 * 24 * 3600 * 1000,
        "ms",
        "a producer name that was not used for this time is removed, and with it what is known of its earlier attempts",
        min=1,
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        "boolean",
        True,
        "",
        "whether leaders return by themselves to their preferred replicas, after these have returned",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        "long",
        10,
        "s",
        "leaders return to a broker when it has been back in the ISRs of all its partitions for this time",
        min=1,
    ),
    ConfigKey(
        "leader.imbalance.per.broker.percentage",
        "int",
        0,
        "",
        "leaders return to a broker only if it does not lead more than this share of the partitions that prefer it, in per cent",
        min=0,
        max=100,
    ),
    ConfigKey("num.partitions", "int", 1, "", "partitions of a topic that is created without a number of partitions", min=1),
    ConfigKey(
        "default.replication.factor",
        "int",
        1,
        "",
        "replicas of a topic that is created without a replication factor",
        min=1,
        max=32767,
    ),
    ConfigKey("max.connections", "int", INT_MAX, "", "connections of the listener", min=1),
    ConfigKey("connections.max.idle.ms", "long", 600_000, "ms", "an idle connection is closed after this time", min=1),
    ConfigKey("socket.request.max.bytes", "int", 100 << 20, "bytes", "the largest request", min=1),
    http_listener_key("127.0.0.1:8093"),
)


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
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_s: int
    leader_imbalance_per_broker_percentage: int
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
        values = parse(KEYS, mapping)
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
            auto_leader_rebalance_enable=values["auto.leader.rebalance.enable"],
            leader_imbalance_check_interval_s=values["leader.imbalance.check.interval.seconds"],
            leader_imbalance_per_broker_percentage=values["leader.imbalance.per.broker.percentage"],
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
