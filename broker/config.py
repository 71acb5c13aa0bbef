"""A broker's configuration: the keys, with Kafka's names, defaults, units and meanings, and the typed values.

The keys that are defaults for topics (`log.segment.bytes`, `min.insync.replicas`, ...) come from the table of topic keys, so that
each is written once. All values are checked at the start, and so are relations between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from strandline.controller.metadata.config_keys import (
    COARSE_BROKER_CONFIGS,
    DYNAMIC_BROKER_CONFIGS,
    INT_MAX,
    LONG_MAX,
    REQUIRED,
    TOPIC_CONFIGS,
    ConfigKey,
    as_topic_values,
    by_name,
    check_topic_values,
    parse,
    without_blanks,
)
from strandline.controller.metadata.node_config import http_listener_key, only_directory, parse_address
from strandline.controller.metadata.voters import Voter, parse_voters
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import Listener

_IDENTITY = (
    ConfigKey("node.id", "int", REQUIRED, "", "the broker's id, unique in the cluster", min=0),
    ConfigKey(
        "cluster.id",
        "string",
        None,
        "",
        "the cluster that this broker belongs to for ever; without it, the broker asks the controllers at its first start",
        check=without_blanks,
    ),
    ConfigKey(
        "listeners",
        "list",
        ["PLAINTEXT://127.0.0.1:9092"],
        "",
        "where the broker listens: NAME://host:port, ...; port 0: any free port",
    ),
    ConfigKey("advertised.listeners", "list", None, "", "the addresses that clients and other nodes use; default: the listeners"),
    ConfigKey(
        "inter.broker.listener.name",
        "string",
        None,
        "",
        "the listener for traffic between brokers; default: the first one",
    ),
    ConfigKey("log.dirs", "list", REQUIRED, "", "the data directory (one, for now)"),
    ConfigKey("controller.quorum.voters", "list", REQUIRED, "", "the controllers: id@host:port, ..."),
    ConfigKey("broker.rack", "string", None, "", "the rack of the broker; replicas are spread over racks"),
    http_listener_key("127.0.0.1:8092"),
)

_CONTROLLER_LINK = (
    ConfigKey("broker.heartbeat.interval.ms", "int", 500, "ms", "the interval between heartbeats to the controller", min=1),
    ConfigKey(
        "broker.session.timeout.ms", "int", 3000, "ms", "without a heartbeat for so long, the controller fences the broker", min=1
    ),
    ConfigKey(
        "initial.broker.registration.timeout.ms",
        "int",
        60_000,
        "ms",
        "a broker that cannot register for so long stops",
        min=1,
    ),
    ConfigKey("controlled.shutdown.enable", "boolean", True, "", "hand leadership over before stopping"),
    ConfigKey(
        "controlled.shutdown.timeout.ms",
        "int",
        10_000,
        "ms",
        "how long stopping waits for the controller to move the leaders",
        min=0,
    ),
)

_REPLICATION = (
    ConfigKey(
        "num.replica.fetchers",
        "int",
        1,
        "",
        "connections to each source leader, over which its partitions are spread",
        min=1,
        max=64,
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        "long",
        10_000,
        "ms",
        "a follower that has not been caught up for so long leaves the ISR",
        min=1,
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        "int",
        1 << 20,
        "bytes",
        "the most bytes of one partition in a follower's fetch; at least one batch is sent",
        min=0,
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes", "int", 10 << 20, "bytes", "the most bytes in the response to a follower", min=0
    ),
    ConfigKey(
        "replica.fetch.min.bytes", "int", 1, "bytes", "the leader answers a follower's fetch when it has so many bytes", min=1
    ),
    ConfigKey("replica.fetch.wait.max.ms", "int", 500, "ms", "how long the leader parks a follower's fetch", min=0),
    ConfigKey("replica.fetch.backoff.ms", "int", 1000, "ms", "the longest delay of a partition whose fetch fails", min=1),
    ConfigKey(
        "replica.selector.class",
        "string",
        None,
        "",
        "which replica a consumer reads from: rack-aware sends one that names its rack to a replica there; without a value, "
        "consumers read from leaders",
        choices=("rack-aware", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        "long",
        5000,
        "ms",
        "how often changed high watermarks are written",
        min=1,
    ),
)

_LOG = (
    ConfigKey(
        "log.flush.scheduler.interval.ms",
        "long",
        LONG_MAX,
        "ms",
        "how often the broker checks whether a log is due for a flush",
        min=1,
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "ms",
        "how often recovery points and log start offsets are written",
        min=1,
    ),
    ConfigKey(
        "log.retention.check.interval.ms", "long", 300_000, "ms", "how often the broker looks for old segments to delete", min=1
    ),
    ConfigKey(
        "log.stray.retention.ms",
        "long",
        7 * 86_400_000,
        "ms",
        "how long a log is kept that the cluster deleted or moved while this broker was away; -1: for ever",
        min=-1,
    ),
    ConfigKey("num.partitions", "int", 1, "", "partitions of a topic that is created without a number", min=1),
    ConfigKey(
        "default.replication.factor", "int", 1, "", "replicas of a topic that is created without a number", min=1, max=32767
    ),
    ConfigKey("producer.id.expiration.ms", "int", 86_400_000, "ms", "how long the state of a silent producer is kept", min=1),
)

_CLEANER = (
    ConfigKey("log.cleaner.enable", "boolean", True, "", "compact the topics whose cleanup.policy has 'compact'"),
    ConfigKey("log.cleaner.threads", "int", 1, "", "logs that are compacted at the same time", min=1, max=64),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        "long",
        128 << 20,
        "bytes",
        "memory for the keys of the logs that are being compacted, 24 bytes per key, of all threads together",
        min=1 << 10,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.load.factor",
        "double",
        0.9,
        "",
        "the part of the memory for keys that may be filled: with more, a round reaches further and is slower",
        min=0.01,
        max=1,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.size",
        "int",
        512 << 10,
        "bytes",
        "buffers for reading and writing segments, of all threads together",
        min=1 << 10,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        "double",
        1.7976931348623157e308,
        "bytes",
        "the most bytes that compaction reads and writes per second",
        min=1,
    ),
    ConfigKey("log.cleaner.backoff.ms", "long", 15_000, "ms", "how long compaction waits when there is no log to compact", min=0),
)

_LIMITS = (
    ConfigKey("max.connections", "int", INT_MAX, "", "the most connections of one listener", min=1),
    ConfigKey("connections.max.idle.ms", "long", 600_000, "ms", "an idle connection is closed after this time", min=1),
    ConfigKey("socket.request.max.bytes", "int", 100 << 20, "bytes", "the largest request", min=1),
    ConfigKey("fetch.max.bytes", "int", 55 << 20, "bytes", "the largest fetch response to a consumer", min=1024),
    ConfigKey("max.incremental.fetch.session.cache.slots", "int", 1000, "", "the most fetch sessions that are kept", min=0),
)

KEYS: tuple[ConfigKey, ...] = (
    *_IDENTITY,
    *_CONTROLLER_LINK,
    *_REPLICATION,
    *_LOG,
    *_CLEANER,
    *_LIMITS,
    *DYNAMIC_BROKER_CONFIGS.values(),
    *COARSE_BROKER_CONFIGS.values(),
)
_BY_NAME = by_name(KEYS)
_PARSED = frozenset(
    {
        "node.id",
        "cluster.id",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
    }
)
"""Keys whose fields hold more than the value of the key: an address as a Listener, a default that depends on another key."""


def key_of(field: str) -> str:
    """The key of a field that is named after it: `replica_lag_time_max_ms` -> `replica.lag.time.max.ms`."""
    return field.replace("_", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings, checked.

    The fields are the settings that the broker acts on. A field that is named after its key, with underscores for dots, holds the
    value of that key; the meaning and the unit are in the table above. `values` holds every key, for code that shows or passes on
    settings that they do not act on."""

    node_id: int
    cluster_id: str
    """Empty if it is not configured: then the data directory has it, or the broker asks the controllers."""
    listeners: tuple[Listener, ...]
    """The addresses to bind; a port may be 0."""
    advertised_listeners: tuple[Listener, ...] | None
    """None: the listeners, with the ports that were bound."""
    inter_broker_listener_name: str
    data_dir: str
    voters: tuple[Voter, ...]
    broker_rack: str | None

    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    initial_broker_registration_timeout_ms: int
    controlled_shutdown_enable: bool
    controlled_shutdown_timeout_ms: int

    num_replica_fetchers: int
    replica_lag_time_max_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_wait_max_ms: int
    replica_fetch_backoff_ms: int
    replica_selector_class: str | None
    replica_high_watermark_checkpoint_interval_ms: int

    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    log_stray_retention_ms: int
    producer_id_expiration_ms: int

    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int

    max_connections: int
    connections_max_idle_ms: int
    socket_request_max_bytes: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int

    values: Mapping[str, Any]
    """Every key with its parsed value, by Kafka's name."""
    given: frozenset[str]
    """The keys that were set; the others have their defaults."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> BrokerConfig:
        """Parse a mapping of Kafka's dotted keys to values. Raises `UsageError` with one sentence that names the key if a
        value is wrong."""
        values = parse(KEYS, mapping)
        as_they_are = {name: values[key] for name, key in _FIELDS.items()}
        listeners = _listeners("listeners", values["listeners"])
        advertised = values["advertised.listeners"]
        config = cls(
            node_id=values["node.id"],
            cluster_id=values["cluster.id"] or "",
            listeners=listeners,
            advertised_listeners=None if advertised is None else _listeners("advertised.listeners", advertised),
            inter_broker_listener_name=values["inter.broker.listener.name"] or listeners[0].name,
            data_dir=only_directory(values["log.dirs"]),
            voters=parse_voters(values["controller.quorum.voters"]),
            values=values,
            given=frozenset(mapping),
            **as_they_are,
        )
        config._check_relations()
        return config

    @property
    def topic_defaults(self) -> dict[str, Any]:
        """The defaults for topics that this broker's configuration sets."""
        names = (*DYNAMIC_BROKER_CONFIGS, *COARSE_BROKER_CONFIGS)
        return {name: self.values[name] for name in names if name in self.given}

    @property
    def given_values(self) -> dict[str, Any]:
        """The values that were set; the other keys have their defaults."""
        return {name: value for name, value in self.values.items() if name in self.given}

    def text(self, name: str) -> str | None:
        return _BY_NAME[name].text(self.values[name])

    def _check_relations(self) -> None:
        if self.values["cluster.id"] == "":
            raise UsageError("config cluster.id must not be empty; leave it out, and the controllers are asked")
        names = [listener.name for listener in self.listeners]
        if self.inter_broker_listener_name not in names:
            raise UsageError(f"config inter.broker.listener.name: there is no listener {self.inter_broker_listener_name!r}")
        if self.advertised_listeners is None:
            _refuse_wildcards("listeners", self.listeners, " unless advertised.listeners says how others reach this broker")
        else:
            _refuse_wildcards("advertised.listeners", self.advertised_listeners, "")
            if [listener.name for listener in self.advertised_listeners] != names:
                raise UsageError("config advertised.listeners must name the same listeners as listeners, in the same order")
        if self.broker_heartbeat_interval_ms >= self.broker_session_timeout_ms:
            raise UsageError("config broker.heartbeat.interval.ms must be smaller than broker.session.timeout.ms")
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise UsageError("config replica.fetch.wait.max.ms must not be larger than replica.lag.time.max.ms")
        check_topic_values(parse(TOPIC_CONFIGS, as_topic_values(self.topic_defaults)))
        if any(voter.id == self.node_id for voter in self.voters):
            raise UsageError(f"config node.id: {self.node_id} is the id of a controller in controller.quorum.voters")


_FIELDS = {field.name: key for field in fields(BrokerConfig) if (key := key_of(field.name)) in _BY_NAME and key not in _PARSED}
"""Field -> key, for the fields that hold the value of a key as it is."""


def _listeners(key: str, items: list[str]) -> tuple[Listener, ...]:
    listeners = tuple(_listener(key, item) for item in items)
    if not listeners:
        raise UsageError(f"config {key} must name at least one listener")
    if len({listener.name for listener in listeners}) < len(listeners):
        raise UsageError(f"config {key} has two listeners of the same name")
    return listeners


def _listener(key: str, item: str) -> Listener:
    name, separator, address = item.partition("://")
    host, port = parse_address(address)
    if not separator or not name or port < 0:
        raise UsageError(f"config {key}: {item!r} is not of the form NAME://host:port")
    if name in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
        raise UsageError(f"config {key}: {name} is not offered yet; connections are plaintext")
    return Listener(name, host, port)


def _refuse_wildcards(key: str, listeners: tuple[Listener, ...], unless: str) -> None:
    for listener in listeners:
        if listener.host in ("", "0.0.0.0", "::"):
            raise UsageError(f"config {key}: others cannot connect to host {listener.host!r}; name a real one{unless}")
