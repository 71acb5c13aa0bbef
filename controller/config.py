"""A controller's configuration: the keys, with Kafka's names, defaults, units and meanings, and the typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.controller.metadata.config_keys import INT_MAX, REQUIRED, ConfigKey, parse, without_blanks
from strandline.controller.metadata.node_config import http_listener_key, only_directory, parse_address
from strandline.controller.raft.config import RaftConfig, Voter
from strandline.protocol.errors import UsageError

KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("node.id", "int", REQUIRED, "", "the controller's id; one of controller.quorum.voters", min=0),
    ConfigKey(
        "cluster.id",
        "string",
        None,
        "",
        "the cluster that this controller belongs to for ever; without it, the controllers agree on one at the first start",
        check=without_blanks,
    ),
    ConfigKey(
        "cluster.id.agreement.timeout.ms",
        "int",
        60_000,
        "ms",
        "a controller without a cluster id gives up when after this time the name of another controller still leads nowhere",
        min=1,
    ),
    ConfigKey(
        "listeners",
        "list",
        None,
        "",
        "where the controller listens: CONTROLLER://host:port; if not given, its address in controller.quorum.voters",
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
        "a controller that could not fetch from the active one for so long asks for an election",
        min=2,
    ),
    ConfigKey(
        "controller.quorum.election.backoff.max.ms",
        "int",
        100,
        "ms",
        "the largest random delay before an election is begun",
        min=1,
    ),
    ConfigKey(
        "controller.quorum.request.timeout.ms", "int", 1000, "ms", "how long a controller waits for another one's answer", min=1
    ),
    ConfigKey("controller.quorum.retry.backoff.ms", "int", 20, "ms", "the pause before a failed request is sent again", min=1),
    ConfigKey("metadata.log.segment.bytes", "int", 16 << 20, "bytes", "a new segment of the metadata log begins here", min=1024),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        "long",
        20 << 20,
        "bytes",
        "a snapshot is written after so many bytes of the metadata log",
        min=1,
    ),
    ConfigKey("broker.session.timeout.ms", "int", 3000, "ms", "without a heartbeat for so long, a broker is fenced", min=1),
    ConfigKey(
        "broker.connection.loss.grace.ms",
        "int",
        100,
        "ms",
        "a broker that let go of its connection and cannot be reached is fenced after this time",
        min=0,
    ),
    ConfigKey(
        "producer.name.expiration.ms",
        "long",
        30 * 24 * 3600 * 1000,
        "ms",
        "a producer's name that nobody asked an id for in this time is forgotten, and with it what its attempts have written",
        min=1,
    ),
    ConfigKey("num.partitions", "int", 1, "", "partitions of a topic that is created without a number", min=1),
    ConfigKey(
        "default.replication.factor", "int", 1, "", "replicas of a topic that is created without a number", min=1, max=32767
    ),
    ConfigKey("max.connections", "int", INT_MAX, "", "connections of the listener", min=1),
    ConfigKey("connections.max.idle.ms", "long", 600_000, "ms", "a silent connection is closed after this time", min=1),
    ConfigKey("socket.request.max.bytes", "int", 100 << 20, "bytes", "the largest request", min=1),
    http_listener_key("127.0.0.1:8093"),
)


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's settings, checked. `values` has every key; the fields are those that code asks for by name."""

    node_id: int
    cluster_id: str | None
    """None: not configured; the data directory has it, or the controllers agree on one."""
    listener_name: str
    host: str
    port: int
    """May be 0 in tests with a single voter: any port."""
    data_dir: str
    voters: tuple[Voter, ...]
    raft: RaftConfig
    values: Mapping[str, Any]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ControllerConfig:
        """From Kafka's dotted keys; `UsageError` with one clear sentence for whatever is wrong."""
        values = parse(KEYS, mapping)
        node_id = values["node.id"]
        if values["cluster.id"] == "":
            raise UsageError("config cluster.id must not be empty; leave it out, and the controllers agree on one")
        voters = _voters(values["controller.quorum.voters"])
        me = next((voter for voter in voters if voter.id == node_id), None)
        if me is None:
            raise UsageError(f"config node.id: {node_id} is not one of controller.quorum.voters")
        listener_name, host, port = _listener(values["listeners"], me)
        return cls(
            node_id=node_id,
            cluster_id=values["cluster.id"],
            listener_name=listener_name,
            host=host,
            port=port,
            data_dir=only_directory(values["log.dirs"]),
            voters=voters,
            raft=_raft_config(values),
            values=values,
        )

    def __getitem__(self, name: str) -> Any:
        """The typed value of a key, by Kafka's name."""
        return self.values[name]


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


def _voters(items: list[str]) -> tuple[Voter, ...]:
    """`101@127.0.0.1:9192` and so on."""
    voters = []
    for item in items:
        node, at, address = item.partition("@")
        host, port = parse_address(address) if at and node.isascii() and node.isdigit() else ("", -1)
        if not host or port < 0:
            raise UsageError(f"config controller.quorum.voters: {item!r} is not of the form id@host:port")
        voters.append(Voter(int(node), host, port))
    if not voters:
        raise UsageError("config controller.quorum.voters must name at least one controller")
    if len({voter.id for voter in voters}) < len(voters):
        raise UsageError("config controller.quorum.voters names an id twice")
    if len(voters) > 1 and any(voter.port == 0 for voter in voters):
        raise UsageError("config controller.quorum.voters: every controller needs a port that is not 0")
    if len(voters) not in (1, 3, 5):
        raise UsageError(f"config controller.quorum.voters: 1, 3 or 5 controllers are offered, not {len(voters)}")
    return tuple(voters)


def _listener(items: list[str] | None, me: Voter) -> tuple[str, str, int]:
    if items is None:
        return "CONTROLLER", me.host, me.port
    if len(items) != 1:
        raise UsageError(f"config listeners: a controller has one listener, not {len(items)}")
    name, separator, address = items[0].partition("://")
    host, port = parse_address(address)
    if not separator or not name or port < 0:
        raise UsageError(f"config listeners: {items[0]!r} is not of the form NAME://host:port")
    if port != me.port:
        raise UsageError(f"config listeners: port {port} is not the port of node {me.id} in controller.quorum.voters ({me.port})")
    return name, host, port
