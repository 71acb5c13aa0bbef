"""Compares the error codes and the values of two answers to one request, and leaves out the intended differences.

An error code is compared by its place: the names, ids and numbers of the rows around it. So neither the order of rows matters,
nor how often one is repeated. A difference is a pair: the code of Kafka and ours. The other values of a row are compared if both
sides have the row and the codes agree; such a difference also has the name of the field.

`known_differences.toml` has the intended differences, each with its reason:

    [[difference]]
    api = "OffsetCommit"        the name of the API, or "*"
    kafka = "NONE"              the code of Kafka, or "*" for any
    ours = "INVALID_REQUEST"    ours
    why = "..."

    field = "is_internal"       only for a difference of values: the name of the field; `kafka` and `ours` are then values

NO_ROW stands for a row that only the other side has, NO_ANSWER for an answer that does not come, CLOSED for a closed connection.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS
from strandline.protocol.errors import ErrorCode

NO_ROW, NO_ANSWER, CLOSED = "NO_ROW", "NO_ANSWER", "CLOSED"
_NAMES = (
    *("name", "topic", "topic_name", "topic_id", "partition_index", "partition", "index"),
    *("group_id", "member_id", "transactional_id", "key", "resource_name", "resource_type"),
)
"""The fields that identify a row."""
NOT_COMPARED = frozenset(
    {
        *("topic_id", "cluster_id", "host", "port", "producer_id", "member_id", "log_dir", "incarnation_id"),
        *("error_message", "message", "documentation", "throttle_time_ms", "client_host", "leader", "leader_id", "session_id"),
        *(
            "log_append_time_ms",
            "transaction_start_time_ms",
            "last_timestamp",
            "records",
            "aborted_transactions",
            "voters",
        ),
        *("total_bytes", "usable_bytes", "partition_size", "epoch", "min_version", "max_version", "finalized_features_epoch"),
    }
)
"""Fields whose values are each side's own, or say the same in other words."""
Place = tuple[Any, ...]
Common = Callable[[str, Any], Any]
"""Gives the values that mean the same at both sides one name. Takes the name of the field and its value."""


class Difference(NamedTuple):
    api: str
    kafka: str
    ours: str
    field: str = "error_code"

    def __str__(self) -> str:
        name = "" if self.field == "error_code" else f"{self.field} "
        return f"{name}Kafka {self.kafka}, ours {self.ours}"


@dataclass(frozen=True, slots=True)
class Known:
    """An intended difference."""

    api: str
    kafka: str
    ours: str
    why: str
    field: str = "error_code"

    def covers(self, found: Difference) -> bool:
        mine = self.api, self.kafka, self.ours
        return self.field == found.field and all(own in ("*", its) for own, its in zip(mine, found[:3], strict=True))


def read_known(file: Path) -> list[Known]:
    return [Known(**row) for row in tomllib.loads(file.read_text())["difference"]]


def codes_of(answer: Any, common: Common) -> dict[Place, set[str]]:
    """The error codes of an answer by their places. `answer`: its fields, or NO_ANSWER or CLOSED."""
    if isinstance(answer, str):
        return {(): {answer}}
    found: dict[Place, set[str]] = {}
    for place, code in _walk(answer, (), common):
        found.setdefault(place, set()).add(code)
    return found


def _walk(value: Any, place: Place, common: Common) -> Iterator[tuple[Place, str]]:
    """The error codes in a message, with their places. `place` is that of `value`."""
    for name, part in value.items():
        if name.endswith("error_code"):
            yield place, name_of(part)
        for item in part if isinstance(part, list) else [part]:
            if isinstance(item, dict):
                yield from _walk(item, (*place, name, *_names_of(item, common)), common)


def _names_of(item: dict[str, Any], common: Common) -> Iterator[tuple[str, Any]]:
    """The names and numbers of a row. If a topic has a name, its id is left out: it adds nothing, and each side has other ids for
    the topics of other rounds."""
    for each in _NAMES:
        if item.get(each) is not None and not (each == "topic_id" and item.get("name")):
            yield each, common(each, item[each])


def values_of(answer: Any, common: Common) -> dict[Place, dict[str, set[str]]]:
    """The values of an answer by their places and the names of their fields, as texts."""
    found: dict[Place, dict[str, set[str]]] = {}
    for place, name, value in () if isinstance(answer, str) else _walk_values(answer, (), common):
        found.setdefault(place, {}).setdefault(name, set()).add(str(value))
    return found


def _walk_values(value: dict[str, Any], place: Place, common: Common) -> Iterator[tuple[Place, str, Any]]:
    for name, part in value.items():
        items = [item for item in (part if isinstance(part, list) else [part]) if isinstance(item, dict)]
        for item in items:
            yield from _walk_values(item, (*place, name, *_names_of(item, common)), common)
        if not items and name not in NOT_COMPARED and not name.endswith("error_code"):
            values = sorted((common(name, each) for each in part), key=str) if isinstance(part, list) else common(name, part)
            yield place, name, values


def value_differences(
    api: str, kafka: dict[Place, dict[str, set[str]]], ours: dict[Place, dict[str, set[str]]]
) -> list[Difference]:
    """The values that differ in rows that both answers have, each pair once."""
    found = [
        Difference(api, *pair, name)
        for place, fields in kafka.items()
        if place in ours and not _is_internal(place)
        for name, values in fields.items()
        if name in ours[place]
        for pair in _pairs(values, ours[place][name])
    ]
    return list(dict.fromkeys(found))


def _is_internal(place: Place) -> bool:
    """Whether the row belongs to an internal topic, whose records differ on the two sides."""
    return any(isinstance(part, tuple) and part[1] in INTERNAL_TOPICS for part in place)


def name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def differences(api: str, kafka: dict[Place, set[str]], ours: dict[Place, set[str]]) -> list[Difference]:
    """The pairs of codes that differ, each once. If the codes of the whole answers differ, the rows are not compared."""
    top = _pairs(kafka.get((), set()), ours.get((), set())) if () in kafka or () in ours else []
    if top:
        return [Difference(api, *pair) for pair in top]
    places = dict.fromkeys([*kafka, *ours])
    pairs = [pair for place in places for pair in _pairs(kafka.get(place, {NO_ROW}), ours.get(place, {NO_ROW}))]
    return [Difference(api, *pair) for pair in dict.fromkeys(pairs)]


def _pairs(kafka: set[str], ours: set[str]) -> list[tuple[str, str]]:
    if kafka == ours:
        return []
    only_kafka, only_ours = sorted(kafka - ours) or [NO_ROW], sorted(ours - kafka) or [NO_ROW]
    return [(k, o) for k in only_kafka for o in only_ours]


def unexplained(found: Iterable[Difference], known: Iterable[Known]) -> list[Difference]:
    known = list(known)
    return [difference for difference in found if not any(each.covers(difference) for each in known)]
