"""Parses the lines of the nodes' logs into facts about replication. Pure.

Besides events in JSON, a log may contain the prefix of `docker-compose logs`, Python's warnings, a line that a killed process did
not finish, and coloured text (`STRANDLINE_LOG_FORMAT=console`). Lines that are not events are counted and skipped:

    broker-1  | {"topic": "orders", ..., "event": "partition.truncated", ...}     an event
    broker-1  | Traceback (most recent call last):                                foreign
    {"topic": "orders", "part                                                     cut

docs/logs.md lists events and fields. Only the events in `EVENTS` become facts. Nodes log them only when something changes, so a
year of a quiet cluster gives few facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

OF_A_PARTITION = (
    "partition.changed", "partition.became_leader", "partition.became_follower", "isr.committed", "isr.member_lagged",
    "isr.member_lost_records", "partition.truncated", "partition.truncated_below_hw", "partition.restarted",
    "partition.damaged_tail_dropped", "log.tail_cut_in_recovery",
)  # fmt: skip
OF_MANY_PARTITIONS = "partitions.changed"
OF_THE_CLUSTER = (
    "topic.created", "topic.removed", "broker.changed", "broker.fencing", "broker.pause_detected", "controller.activated",
    "controller.resigned", "fetcher.connection_lost", "fetcher.connect_failed", "metadata.applied", "node.started",
    "node.stopping", "node.stopped", "node.failed",
)  # fmt: skip
EVENTS = frozenset((*OF_A_PARTITION, OF_MANY_PARTITIONS, *OF_THE_CLUSTER))

FOREIGN, CUT = "foreign", "cut"
"""Problems of a line that is not an event: it is something else, or an event without its end."""

_BROKER = re.compile(r"broker-(\d+)")


class Fact(NamedTuple):
    """The part of an event that the report needs, for one partition or for the cluster."""

    at_us: int
    """Microseconds since 1970, by the wall clock of the node."""
    node: str
    event: str
    topic: str | None
    """None: the fact concerns no single partition."""
    partition: int | None
    fields: dict[str, Any]

    @property
    def broker(self) -> int | None:
        """Id of the broker that logged the event. None: a controller logged it, or a node with another name."""
        found = _BROKER.fullmatch(self.node)
        return None if found is None else int(found[1])

    def to_json(self) -> str:
        return json.dumps(self, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Fact:
        return Fact(*json.loads(text))


class Line(NamedTuple):
    """The result of parsing one line."""

    problem: str
    """`FOREIGN`, `CUT`, or empty for an event."""
    facts: Sequence[Fact]
    """Empty for an event that is not in `EVENTS`; several if the line has changes of several partitions."""


def read_line(text: str) -> Line:
    """Parses one line. Never raises, because a log may contain any text."""
    begin = text.find("{")
    if begin < 0:
        return Line(FOREIGN, ())
    fields = _object(text[begin:])
    if fields is None:  # A restarted process appends its first event to the line that the killed process did not finish.
        fields = next(_objects_inside(text, begin + 1), None)
    if fields is None:
        return Line(CUT if text.startswith('{"', begin) else FOREIGN, ())
    event, node, at_us = fields.get("event"), fields.get("node"), micros(fields.get("timestamp"))
    if not (isinstance(event, str) and isinstance(node, str) and at_us is not None):
        return Line(FOREIGN, ())
    if event not in EVENTS:
        return Line("", ())
    try:
        return Line("", _facts(at_us, node, event, fields))
    except (KeyError, TypeError, ValueError):
        return Line(FOREIGN, ())


def _objects_inside(text: str, begin: int, most: int = 32) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in a line that have a field `event`, from left to right; tries at most `most` positions."""
    for _ in range(most):
        begin = text.find('{"', begin)
        if begin < 0:
            return
        found = _object(text[begin:])
        if found is not None and "event" in found:
            yield found
        begin += 2


def _object(text: str) -> dict[str, Any] | None:
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def micros(written: object) -> int | None:
    """Microseconds since 1970 of an ISO 8601 time; None if it is no time or has no time zone."""
    if not isinstance(written, str):
        return None
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    return round(at.timestamp() * 1_000_000)


_HEAD = ("timestamp", "node", "event", "level", "topic", "partition", "changes")


def _facts(at_us: int, node: str, event: str, fields: dict[str, Any]) -> list[Fact]:
    rest = {name: value for name, value in fields.items() if name not in _HEAD}
    if event == OF_MANY_PARTITIONS:
        return [_fact_of_row(at_us, node, str(fields["topic"]), row, rest) for row in fields["changes"]]
    if event in OF_A_PARTITION:
        return [Fact(at_us, node, event, str(fields["topic"]), int(fields["partition"]), rest)]
    if event.startswith("topic."):
        rest["name"] = str(fields["topic"])
    return [Fact(at_us, node, event, None, None, rest)]


def _fact_of_row(at_us: int, node: str, topic: str, row: Sequence[Any], rest: dict[str, Any]) -> Fact:
    """Turns a row of `partitions.changed` into the equivalent `partition.changed`, without the previous leader and ISR."""
    index, leader_epoch, partition_epoch, leader_id, isr, replicas = row
    fields = {"leader_epoch": leader_epoch, "partition_epoch": partition_epoch, "leader_id": leader_id}
    more = {"isr": isr, "replicas": replicas, "metadata_offset": rest.get("metadata_offset"), "cause": rest.get("cause")}
    return Fact(at_us, node, "partition.changed", topic, int(index), {**fields, **more})
