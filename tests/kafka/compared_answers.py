"""Compares the error codes of two answers to one request, and knows which differences are meant.

An error code is compared by its place: the names, ids and numbers of the rows that it is in. So the order of rows does not
matter, nor how often one is repeated. A difference is a pair: the code of Kafka and ours.

`known_differences.toml` has the pairs that are meant, each with its reason:

    [[difference]]
    api = "OffsetCommit"        the name of the API, or "*"
    kafka = "NONE"              the code of Kafka, or "*" for any
    ours = "INVALID_REQUEST"    ours
    why = "..."

NO_ROW stands for a row that only the other side has, NO_ANSWER for an answer that does not come, CLOSED for a closed connection.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from strandline.protocol.errors import ErrorCode

NO_ROW, NO_ANSWER, CLOSED = "NO_ROW", "NO_ANSWER", "CLOSED"
_NAMES = (
    *("name", "topic", "topic_name", "topic_id", "partition_index", "partition", "index"),
    *("group_id", "member_id", "transactional_id", "key", "resource_name", "resource_type"),
)
"""The fields that say which row it is."""
Place = tuple[Any, ...]


class Difference(NamedTuple):
    api: str
    kafka: str
    ours: str


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant."""

    api: str
    kafka: str
    ours: str
    why: str

    def covers(self, found: Difference) -> bool:
        return all(mine in ("*", its) for mine, its in zip((self.api, self.kafka, self.ours), found, strict=True))


def read_known(file: Path) -> list[Known]:
    return [Known(**row) for row in tomllib.loads(file.read_text())["difference"]]


def codes_of(answer: Any, common: Callable[[Any], Any]) -> dict[Place, set[str]]:
    """The error codes of an answer by their places. `answer`: its fields, or NO_ANSWER or CLOSED; `common`: what both sides
    call a value."""
    if isinstance(answer, str):
        return {(): {answer}}
    found: dict[Place, set[str]] = {}
    for place, code in _walk(answer, (), common):
        found.setdefault(place, set()).add(code)
    return found


def _walk(value: Any, place: Place, common: Callable[[Any], Any]) -> Iterator[tuple[Place, str]]:
    """`value`: a message, whose place is known."""
    for name, part in value.items():
        if name.endswith("error_code"):
            yield place, name_of(part)
        for item in part if isinstance(part, list) else [part]:
            if isinstance(item, dict):
                yield from _walk(item, (*place, name, *_names_of(item, common)), common)


def _names_of(item: dict[str, Any], common: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """The names and numbers of a row. The id of a topic whose name stands beside it says nothing more, and topics of other rounds
    have another on each side."""
    for each in _NAMES:
        if item.get(each) is not None and not (each == "topic_id" and item.get("name")):
            yield each, common(item[each])


def name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def differences(api: str, kafka: dict[Place, set[str]], ours: dict[Place, set[str]]) -> list[Difference]:
    """The pairs of codes that differ, each once. If the answers as wholes differ, their rows do so, and are not compared."""
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
