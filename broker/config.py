"""A broker's configuration file: typed values of the keys in `controller/metadata/node_keys.py`.

All values, and relations between them, are checked at the start. `dynamic_config.py` applies later changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from strandline.broker.groups.config import GroupConfig
from strandline.broker.transactions.config import TransactionConfig
from strandline.controller.metadata.config_keys import (
    COARSE_BROKER_CONFIGS,
    TOPIC_CONFIGS,
    TOPIC_DEFAULT_CONFIGS,
    as_topic_values,
    by_name,
    check_topic_values,
    parse,
)
from strandline.controller.metadata.group_configs import check_node_bounds
from strandline.controller.metadata.node_config import parse_listeners, separate_directories
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.controller.metadata.node_security.overrides import split_overrides
from strandline.controller.metadata.node_security.settings import NodeSecuritySettings
from strandline.controller.metadata.voters import Voter, parse_voters
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import Listener
from strandline.storage.directory.log_dirs import ALL_LOG_DIRS

_BY_NAME = by_name(BROKER_KEYS)
_PARSED = frozenset(
    {
        "node.id",
        "cluster.id",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "kafka.listener.names",
    }
)
"""Keys whose fields do not hold the plain value: an address is a `Listener`, or the default depends on another key."""


def key_of(field: str) -> str:
    """The key of a field that is named after it: `replica_lag_time_max_ms` -> `replica.lag.time.max.ms`."""
    return field.replace("_", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings, checked.

    The fields are the settings that the broker acts on. A field that is named after its key, with underscores for dots, holds the
    value of that key; its meaning and unit are in `controller/metadata/node_keys.py`. `values` holds every key, for code that
    shows settings or passes them on."""

    node_id: int
    cluster_id: str
    """Empty if it is not configured: then the data directory has it, or the broker asks the controllers."""
    listeners: tuple[Listener, ...]
    """The addresses to bind; a port may be 0."""
    advertised_listeners: tuple[Listener, ...] | None
    """The addresses that clients and other nodes use. None: those of `listeners`, with the ports that were bound."""
    inter_broker_listener_name: str
    kafka_listener_names: frozenset[str]
    """In upper case. On these listeners the broker speaks Kafka's protocol."""
    auto_create_topics_enable: bool
    data_dirs: tuple[str, ...]
    """The directories of `log.dirs`, at least one."""
    voters: tuple[Voter, ...]
    broker_rack: str | None

    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    initial_broker_registration_timeout_ms: int
    controlled_shutdown_enable: bool
    controlled_shutdown_timeout_ms: int
    broker_unclean_shutdown: str

    num_replica_fetchers: int
    replica_lag_time_max_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_wait_max_ms: int
    replica_fetch_backoff_ms: int
    cordoned_log_dirs: list[str]
    replica_selector_class: str | None
    replica_alter_log_dirs_io_max_bytes_per_second: int
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

    security: NodeSecuritySettings
    """How the listeners authenticate their peers, and how this broker authenticates itself to other nodes."""

    values: Mapping[str, Any] = field(repr=False)
    """Every key with its parsed value, by Kafka's name; some are secrets."""
    given: frozenset[str]
    """The keys that were set; the others have their defaults."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> BrokerConfig:
        """Parse a mapping of Kafka's dotted keys to values. Raises `UsageError` with one sentence that names the key if a
        value is wrong."""
        plain, overrides = split_overrides(mapping)
        values = parse(BROKER_KEYS, plain)
        _refuse_keys_of_controllers(values)
        as_they_are = {name: values[key] for name, key in _FIELDS.items()}
        listeners = parse_listeners("listeners", values["listeners"])
        advertised = values["advertised.listeners"]
        kafka_names = frozenset(name.upper() for name in values["kafka.listener.names"])
        others = [listener.name for listener in listeners if listener.name.upper() not in kafka_names]
        inter_broker_listener_name = values["inter.broker.listener.name"] or next(iter(others), listeners[0].name)
        config = cls(
            node_id=values["node.id"],
            cluster_id=values["cluster.id"] or "",
            listeners=listeners,
            advertised_listeners=None if advertised is None else parse_listeners("advertised.listeners", advertised),
            inter_broker_listener_name=inter_broker_listener_name,
            kafka_listener_names=kafka_names,
            data_dirs=separate_directories(values["log.dirs"]),
            voters=parse_voters(values["controller.quorum.voters"]),
            security=NodeSecuritySettings.of(
                listeners,
                to_brokers=inter_broker_listener_name,
                to_controllers=values["controller.listener.names"],
                values=values,
                overrides=overrides,
            ),
            values=values,
            given=frozenset(plain),
            **as_they_are,
        )
        config._check_relations()
        return config

    def changed_by(self, values: Mapping[str, Any]) -> BrokerConfig:
        """A copy of the configuration with these parsed values, by key. `given` is still that of the file."""
        of_fields = {field: values[key] for field, key in _FIELDS.items() if key in values}
        return replace(self, values={**self.values, **values}, **of_fields)

    def speaks_kafka(self, listener_name: str) -> bool:
        """Whether the listener of this name is one for Kafka's clients."""
        return listener_name.upper() in self.kafka_listener_names

    @property
    def topic_defaults(self) -> dict[str, Any]:
        """The defaults for topics that this broker's configuration sets."""
        names = (*TOPIC_DEFAULT_CONFIGS, *COARSE_BROKER_CONFIGS)
        return {name: self.values[name] for name in names if name in self.given}

    @property
    def given_values(self) -> dict[str, Any]:
        """The values that were set; the other keys have their defaults."""
        return {name: value for name, value in self.values.items() if name in self.given}

    @property
    def groups(self) -> GroupConfig:
        """The settings of the group coordinator."""
        values: dict[str, Any] = {field.name: self.values[key_of(field.name)] for field in fields(GroupConfig)}
        values["group_consumer_assignors"] = tuple(values["group_consumer_assignors"])
        return GroupConfig(**values)

    @property
    def transactions(self) -> TransactionConfig:
        """The settings of the transaction coordinator."""
        return TransactionConfig(**{field.name: self.values[key_of(field.name)] for field in fields(TransactionConfig)})

    def text(self, name: str) -> str | None:
        return _BY_NAME[name].text(self.values[name])

    def _check_relations(self) -> None:
        if self.values["cluster.id"] == "":
            raise UsageError("config cluster.id must not be empty; remove it to use the controllers' cluster id")
        names = [listener.name for listener in self.listeners]
        if self.inter_broker_listener_name not in names:
            raise UsageError(f"config inter.broker.listener.name: there is no listener {self.inter_broker_listener_name!r}")
        self._check_kafka(names)
        if self.advertised_listeners is None:
            _refuse_wildcards("listeners", self.listeners, ", or set advertised.listeners to the addresses for clients")
        else:
            _refuse_wildcards("advertised.listeners", self.advertised_listeners, "")
            if [listener.name for listener in self.advertised_listeners] != names:
                raise UsageError("config advertised.listeners must name the same listeners as listeners, in the same order")
            self._refuse_one_address_for_two_protocols(self.advertised_listeners)
        if self.broker_heartbeat_interval_ms >= self.broker_session_timeout_ms:
            raise UsageError("config broker.heartbeat.interval.ms must be smaller than broker.session.timeout.ms")
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise UsageError("config replica.fetch.wait.max.ms must not be larger than replica.lag.time.max.ms")
        groups = self.groups
        if groups.group_consumer_heartbeat_interval_ms >= groups.group_consumer_session_timeout_ms:
            reason = "must be smaller than group.consumer.session.timeout.ms"
            raise UsageError(f"config group.consumer.heartbeat.interval.ms {reason}")
        check_node_bounds(self.values, self.given)
        if groups.group_min_session_timeout_ms > groups.group_max_session_timeout_ms:
            raise UsageError("config group.min.session.timeout.ms must not be larger than group.max.session.timeout.ms")
        check_topic_values(parse(TOPIC_CONFIGS, as_topic_values(self.topic_defaults)))
        unknown = [path for path in self.cordoned_log_dirs if path != ALL_LOG_DIRS and path.rstrip("/") not in self.data_dirs]
        if unknown:
            raise UsageError(f"config cordoned.log.dirs: {unknown[0]} is not one of log.dirs")
        if any(voter.id == self.node_id for voter in self.voters):
            raise UsageError(f"config node.id: {self.node_id} is the id of a controller in controller.quorum.voters")

    def _check_kafka(self, names: list[str]) -> None:
        """Brokers, controllers and Strandline's clients need a listener that speaks Strandline's protocol."""
        kafkas = [name for name in names if self.speaks_kafka(name)]
        if self.speaks_kafka(self.inter_broker_listener_name):
            problem = f"{self.inter_broker_listener_name!r} is for Kafka's clients (kafka.listener.names), not for brokers"
            advice = "name another listener" if len(kafkas) < len(names) else "add one to listeners, such as INTERNAL://host:port"
            raise UsageError(f"config inter.broker.listener.name: {problem}; {advice}")
        to_controllers = self.values["controller.listener.names"]
        if self.speaks_kafka(to_controllers):
            problem = f"{to_controllers!r} is for Kafka's clients (kafka.listener.names), and controllers do not speak to them"
            raise UsageError(f"config controller.listener.names: {problem}")
        if "kafka.listener.names" in self.given:
            unknown = self.kafka_listener_names - {name.upper() for name in kafkas}
            if unknown:
                raise UsageError(f"config kafka.listener.names: there is no listener {min(unknown)!r} in listeners")

    def _refuse_one_address_for_two_protocols(self, advertised: tuple[Listener, ...]) -> None:
        first: dict[tuple[str, int], Listener] = {}
        for listener in advertised:
            other = first.setdefault((listener.host, listener.port), listener)
            if self.speaks_kafka(other.name) != self.speaks_kafka(listener.name):
                problem = f"{other.name} and {listener.name} have the address {listener.host}:{listener.port}"
                raise UsageError(f"config advertised.listeners: {problem}, and only one of them speaks Kafka's protocol")


_FIELDS = {field.name: key for field in fields(BrokerConfig) if (key := key_of(field.name)) in _BY_NAME and key not in _PARSED}
"""Field -> key, for the fields that hold the value of a key as it is."""


def _refuse_keys_of_controllers(values: Mapping[str, Any]) -> None:
    """Refuse keys of unclean elections. The controllers decide on those, and do not read a broker's file."""
    for name in ("unclean.leader.election.enable", "unclean.recovery.strategy"):
        if values[name] != _BY_NAME[name].default:
            raise UsageError(
                f"config {name} has no effect in a broker's file: set it for a topic, or for the cluster (config set)"
            )


def _refuse_wildcards(key: str, listeners: tuple[Listener, ...], alternative: str) -> None:
    for listener in listeners:
        if listener.host in ("", "0.0.0.0", "::"):
            problem = f"clients and other nodes cannot connect to host {listener.host!r}"
            raise UsageError(f"config {key}: {problem}; use an address that they can reach{alternative}")
