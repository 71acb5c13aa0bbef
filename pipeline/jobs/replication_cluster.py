"""The timeline of the cluster, from the lines of all nodes: fenced brokers, topics, and terms of controllers. Pure.

The findings on a partition depend on it (`replication_partition.py`): a partition's lines say that it lost its leader, and the
timeline says why and since when.

**Committed decisions.** A controller logs a decision before the quorum commits it. If another controller becomes active first,
the decision never takes effect, and the new controller may decide otherwise. A controller becomes active when it has all
committed records of earlier terms; it then logs the metadata offset at which its own term begins. So a decision of an earlier
term at this or a higher offset was never committed, and the report ignores it.

**The loss of a leader.** When a controller fences a broker, it logs how long it had received nothing from it. A controller that
became active in the meantime does not know that time. In that case, the loss is dated by a follower whose connection to the
leader broke after the leader's own last line.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from strandline.pipeline.jobs.replication_facts import Fact

_at = attrgetter("at_us")
SLACK_US = 1_000_000
"""Largest distance in time between the lines that different nodes log about one decision."""
WITNESS_US = 60_000_000
"""A connection that was lost longer than this before a fencing is not attributed to it."""
UP, FENCED, LEAVING, ACTIVE, STANDBY = "up", "fenced", "leaving", "active", "standby"


class Fencing(NamedTuple):
    """The controller fenced a broker."""

    at_us: int
    silent_since_us: int
    reason: str
    broker_epoch: int


class Active(NamedTuple):
    """A controller became active."""

    at_us: int
    node: str
    controller_epoch: int
    metadata_offset: int
    """Offset of the first record of its term. All committed records of earlier terms lie before it."""


class Span(NamedTuple):
    """The time that a node spent in one state (`UP`, `FENCED`, `LEAVING`, `ACTIVE` or `STANDBY`)."""

    node: str
    state: str
    from_us: int
    until_us: int
    detail: str = ""


class Mark(NamedTuple):
    """An event of a node's process, such as its start."""

    node: str
    at_us: int
    text: str


@dataclass(slots=True)
class ClusterTimeline:
    """Facts about the cluster that the findings on partitions refer to. Times are microseconds since 1970."""

    begin_us: int = 0
    end_us: int = 0
    """Times of the first and the last event in the logs."""
    fencings: dict[int, list[Fencing]] = field(default_factory=dict)
    """Broker -> its fencings, in the order of time."""
    lost_connections: dict[int, list[int]] = field(default_factory=dict)
    """Leader -> the times at which a follower lost its connection to it, ascending."""
    own_lines: dict[str, list[int]] = field(default_factory=dict)
    """Node -> the times of its lines about the cluster, ascending."""
    actives: list[Active] = field(default_factory=list)
    """Terms of all controllers, in the order of time."""
    min_isr: dict[str, int] = field(default_factory=dict)
    """Topic -> `min.insync.replicas` in the newest line of any of its leaders."""
    applied: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Broker -> (metadata offset, time at which the broker applied the log up to it), ascending."""
    created: dict[str, list[int]] = field(default_factory=dict)
    removed: dict[str, list[int]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _terms: dict[str, list[Active]] = field(default_factory=dict)
    """Controller -> its terms, in the order of time."""
    _begins: list[tuple[int, float]] = field(default_factory=list)
    """Each controller epoch, ascending, with the lowest metadata offset at which this or a later epoch began."""

    def fencing(self, broker: int, at_us: int) -> Fencing | None:
        """The fencing of this broker at about this time; None if there is none within `SLACK_US`."""
        fencings = self.fencings.get(broker, [])
        first = bisect_left(fencings, at_us - SLACK_US, key=_at)
        near = fencings[first : bisect_right(fencings, at_us + SLACK_US, key=_at)]
        return min(near, key=lambda f: abs(f.at_us - at_us), default=None)

    def lost_at(self, broker: int, at_us: int) -> int:
        """The time since which the leader was lost, if a change at `at_us` replaced it as leader."""
        fencing = self.fencing(broker, at_us)
        if fencing is None:
            return at_us
        since = min(fencing.silent_since_us, at_us)
        own = self.own_lines.get(f"broker-{broker}", [])
        n = bisect_right(own, since)
        floor = max(fencing.at_us - WITNESS_US, own[n - 1] if n else 0)
        n = bisect_right(self.actives, fencing.at_us, key=_at)
        latest_active = self.actives[n - 1].at_us if n else 0
        witnesses = self.lost_connections.get(broker, [])
        n = bisect_right(witnesses, floor)
        is_witness = n < len(witnesses) and witnesses[n] < since and witnesses[n] <= latest_active
        return witnesses[n] if is_witness else since

    def applied_at(self, broker: int, metadata_offset: int | None, not_before_us: int) -> int | None:
        """The time at which the broker had applied the metadata log up to this offset; None if no line says so."""
        if metadata_offset is None:
            return None
        applied = self.applied.get(broker, [])
        first = bisect_left(applied, (metadata_offset, 0))
        return next((at for _, at in islice(applied, first, None) if at >= not_before_us - SLACK_US), None)

    def is_committed(self, decision: Fact) -> bool:
        """Whether the decision took effect. False if a controller logged it and a later term began at or before its offset.
        True if the logs lack the line with which the controller's term began."""
        offset = decision.fields.get("metadata_offset")
        if offset is None or decision.broker is not None:
            return True
        terms = self._terms.get(decision.node, [])
        n = bisect_right(terms, decision.at_us, key=_at)
        if not n:
            return True
        later = bisect_right(self._begins, terms[n - 1].controller_epoch, key=itemgetter(0))
        return later == len(self._begins) or int(offset) < self._begins[later][1]

    def index_terms(self, actives: Iterable[Active]) -> None:
        """Builds the lookup tables of `is_committed`. `actives` are in the order of time."""
        self.actives = list(actives)
        for active in self.actives:
            self._terms.setdefault(active.node, []).append(active)
        lowest = math.inf
        for epoch, offset in sorted(((a.controller_epoch, a.metadata_offset) for a in self.actives), reverse=True):
            lowest = min(lowest, offset)
            self._begins.append((epoch, lowest))
        self._begins.reverse()

    def incarnation(self, topic: str, at_us: int) -> int:
        """How often a topic of this name had been created in the logs by this time; 0 if it was created before the logs begin."""
        return bisect_right(self.created.get(topic, []), at_us)

    def ends_at(self, topic: str, incarnation: int) -> int | None:
        """The time at which this incarnation of the topic was deleted or the next one created; None: it still exists."""
        created = self.created.get(topic, [])
        begin = created[incarnation - 1] if incarnation else self.begin_us
        ends = [at for at in self.removed.get(topic, []) if at >= begin] + created[incarnation : incarnation + 1]
        return min(ends, default=None)


def cluster_timeline(facts: Iterable[Fact], begin_us: int, end_us: int) -> ClusterTimeline:
    """Builds the timeline. `facts` are those that concern no single partition, in any order. `begin_us` and `end_us` are the
    times of the first and last event in the logs."""
    timeline = ClusterTimeline(begin_us, end_us)
    ordered = sorted(without_repeats(facts), key=lambda fact: fact.at_us)
    timeline.index_terms(_active(fact) for fact in ordered if fact.event == "controller.activated")
    ordered = [fact for fact in ordered if timeline.is_committed(fact)]
    for fact in ordered:
        timeline.own_lines.setdefault(fact.node, []).append(fact.at_us)
        _take(timeline, fact)
    for applied in timeline.applied.values():
        applied.sort()
    _add_spans_and_marks(timeline, ordered)
    return timeline


def without_repeats(facts: Iterable[Fact]) -> list[Fact]:
    """Removes repeated facts: the same line may be in two files."""
    return list({fact.to_json(): fact for fact in facts}.values())


def _active(fact: Fact) -> Active:
    fields = fact.fields
    return Active(fact.at_us, fact.node, int(fields.get("controller_epoch", -1)), int(fields.get("metadata_offset", -1)))


def _take(timeline: ClusterTimeline, fact: Fact) -> None:
    fields, at_us = fact.fields, fact.at_us
    if fact.event == "broker.fencing":
        silent_us = int(fields.get("silent_ms") or 0) * 1000
        fencing = Fencing(at_us, at_us - silent_us, str(fields.get("reason", "")), int(fields.get("broker_epoch", -1)))
        timeline.fencings.setdefault(int(fields["broker_id"]), []).append(fencing)
    elif fact.event in ("fetcher.connection_lost", "fetcher.connect_failed"):
        timeline.lost_connections.setdefault(int(fields["leader_id"]), []).append(at_us)
    elif fact.event == "metadata.applied" and fact.broker is not None:
        timeline.applied.setdefault(fact.broker, []).append((int(fields["metadata_offset"]), at_us))
    elif fact.event == "topic.created":
        timeline.created.setdefault(str(fields["name"]), []).append(at_us)
    elif fact.event == "topic.removed":
        timeline.removed.setdefault(str(fields["name"]), []).append(at_us)


# -- nodes over time --------------------------------------------------------------------------------------------------


def _add_spans_and_marks(timeline: ClusterTimeline, facts: Iterable[Fact]) -> None:
    now: dict[str, tuple[str, int, str]] = {}
    """Node -> its current state, the time at which it entered the state, and the detail."""

    def enter(node: str, state: str, at_us: int, detail: str = "") -> None:
        before = now.get(node)
        if before is not None and before[0] == state:
            return
        if before is not None and at_us > before[1]:
            timeline.spans.append(Span(node, before[0], before[1], at_us, before[2]))
        now[node] = (state, at_us, detail)

    for fact in facts:
        fields = fact.fields
        if fact.event == "broker.changed":
            node = f"broker-{fields['broker_id']}"
            state = FENCED if fields.get("fenced") else LEAVING if fields.get("in_controlled_shutdown") else UP
            fencing = timeline.fencing(int(fields["broker_id"]), fact.at_us) if state == FENCED else None
            if fencing is not None and fencing.broker_epoch != fields.get("broker_epoch"):
                fencing = None  # The broker has registered again, and is fenced until it has caught up with the metadata.
            enter(node, state, fact.at_us, "" if fencing is None else fencing.reason)
        elif fact.event == "controller.activated":
            enter(fact.node, ACTIVE, fact.at_us)
            for other, (state, _, _) in list(now.items()):
                if state == ACTIVE and other != fact.node:  # A killed controller does not log that it is no longer active.
                    enter(other, STANDBY, fact.at_us)
        elif fact.event == "controller.resigned":
            enter(fact.node, STANDBY, fact.at_us)
        elif fact.event in _MARKS:
            timeline.marks.append(Mark(fact.node, fact.at_us, _MARKS[fact.event]))
            if fact.broker is None and fact.node not in now:
                enter(fact.node, STANDBY, fact.at_us)
    for node, (state, since_us, detail) in now.items():
        timeline.spans.append(Span(node, state, since_us, max(timeline.end_us, since_us), detail))


_MARKS = {
    "node.started": "process started",
    "node.stopping": "process is stopping",
    "node.failed": "process failed",
    "broker.pause_detected": "process was paused",
}
