"""The configuration of a consumer group: the keys that can be set on it, and the values that they accept (KIP-848).

    value of the group  >  the broker's file  >  default

A group's value is a ConfigRecord with the type GROUP; records of this type need no new level of the metadata, because a node that
does not know the type keeps them and does not act on them. The group need not exist, and its deletion keeps the values.

The controller refuses a value outside of the bounds of its configuration file (`group.consumer.min.session.timeout.ms`, ...), and
a session that would end between two heartbeats. A broker whose file has other bounds acts on the nearest value within them. As in
Kafka, it is up to the operator to give controllers and brokers the same bounds.

Kafka has keys for share groups and Streams groups, too; there are no such groups here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from strandline.controller.metadata.config_keys import ConfigKey, by_name, unknown_key
from strandline.controller.metadata.group_keys import GROUP_CONFIG_KEYS
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"

_NODE_KEYS = by_name(GROUP_CONFIG_KEYS)
NODE_DEFAULTS: Mapping[str, Any] = {name: key.default for name, key in _NODE_KEYS.items()}
"""The values of a node whose file has none of the keys."""


class Bounds(NamedTuple):
    """The node's keys of the smallest and the largest value of a group."""

    min_key: str
    max_key: str


def _key(name: str, meaning: str) -> ConfigKey:
    synonym = f"group.{name}"
    of_node = _NODE_KEYS[synonym]
    return ConfigKey(name, "int", of_node.default, "ms", meaning, of_node.min, synonym=synonym)


GROUP_CONFIGS: dict[str, ConfigKey] = by_name(
    (
        _key(SESSION_TIMEOUT, "a member of the group that is silent for so long is removed"),
        _key(HEARTBEAT_INTERVAL, "the interval between the heartbeats of a member of the group"),
        _key(ASSIGNMENT_INTERVAL, "the group's assignment is computed at most once in this time"),
    )
)
"""The keys of a group. They act on members of the newer protocol; a member of the classic one chooses its session itself."""

BOUNDS: dict[str, Bounds] = {
    name: Bounds(name.replace("consumer.", "group.consumer.min."), name.replace("consumer.", "group.consumer.max."))
    for name in GROUP_CONFIGS
}

_OTHER_GROUPS = {"share.": "share groups", "streams.": "Streams groups"}
OTHER_GROUPS = tuple(_OTHER_GROUPS)
"""The prefixes of the keys of Kafka's other types of groups."""


def check_group_name(name: str) -> None:
    """Raises BrokerError INVALID_REQUEST if a resource of the type GROUP has no name."""
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the name of the group is missing")


def unknown_group_key(name: str) -> UsageError:
    """The error for a name that is not a key of a group."""
    for prefix, groups in _OTHER_GROUPS.items():
        if name.startswith(prefix):
            return UsageError(f"config {name} is a key of {groups}, and Strandline has no {groups}")
    return unknown_key(name, GROUP_CONFIGS, "config key of a group")


def check_group_values(values: Mapping[str, str | None], changed: Iterable[str], node: Mapping[str, Any]) -> None:
    """Check the values of a group after a change of the keys `changed`. `node`: the values of the controller's own keys. Keys
    that this version does not know are not checked. Raises UsageError."""
    given = {name: GROUP_CONFIGS[name].parse(value) for name, value in values.items() if name in GROUP_CONFIGS and value}
    touched = [name for name in changed if name in GROUP_CONFIGS]
    for name in touched:
        if name in given:
            _check_bounds(name, given[name], node)
    if SESSION_TIMEOUT in touched or HEARTBEAT_INTERVAL in touched:
        _check_session(given, node)


def _check_bounds(name: str, value: int, node: Mapping[str, Any]) -> None:
    bounds = BOUNDS[name]
    smallest, largest = node[bounds.min_key], node[bounds.max_key]
    if value < smallest:
        raise UsageError(f"config {name}: {value} is not allowed: must be at least {bounds.min_key}, which is {smallest}")
    if value > largest:
        raise UsageError(f"config {name}: {value} is not allowed: must be at most {bounds.max_key}, which is {largest}")


def _check_session(given: Mapping[str, int], node: Mapping[str, Any]) -> None:
    session, heartbeat = (given.get(name, node[f"group.{name}"]) for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL))
    if session <= heartbeat:
        notes = ["" if name in given else f", the default group.{name}" for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)]
        raise UsageError(
            f"config {SESSION_TIMEOUT} ({session}{notes[0]}) must be larger than {HEARTBEAT_INTERVAL} ({heartbeat}{notes[1]}); "
            "set both"
        )


def value_in_bounds(name: str, value: int, node: Mapping[str, Any]) -> int:
    """The nearest value that the bounds of a node allow."""
    bounds = BOUNDS[name]
    return int(max(node[bounds.min_key], min(value, node[bounds.max_key])))


def check_node_bounds(values: Mapping[str, Any], given: AbstractSet[str]) -> None:
    """Check a node's file, in which the keys `given` are set: the bounds must be in order, and a bound that is set must allow the
    node's own value. (A default bound need not: a cluster may have had its values before it had bounds.) Raises UsageError."""
    for name, (min_key, max_key) in BOUNDS.items():
        if values[min_key] > values[max_key]:
            raise UsageError(f"config {min_key} must not be larger than {max_key}")
        own = f"group.{name}"
        if min_key in given and values[own] < values[min_key]:
            raise UsageError(f"config {own} must not be smaller than {min_key}")
        if max_key in given and values[own] > values[max_key]:
            raise UsageError(f"config {own} must not be larger than {max_key}")
