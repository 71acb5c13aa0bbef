"""What the logs say of the cluster as a whole: brokers that were fenced and since when they were silent, topics, controllers.

A partition's story needs it: it says that its leader was taken away, and here stands why and since when. Pure.

**What was committed.** A controller logs a decision before the quorum commits it. If another controller becomes active first, the
decision never takes effect, and the new one may decide otherwise or not at all. The new one becomes active when it knows all
committed records of earlier terms, and logs the metadata offset at which its own term begins. So a decision of an earlier term
at that offset or a higher one was never committed, and is ignored.

**Since when a leader was lost.** The controller logs how long it had heard nothing of a broker when it fenced it. A controller
that became active in the meantime cannot know. Then a follower that lost its connection to that leader, after the leader's own
last line, is the earlier witness.
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
"""Lines of one decision may be that far apart."""
WITNESS_US = 60_000_000
"""A lost connection that is older than this has nothing to do with a fencing."""
UP, FENCED, LEAVING, ACTIVE, STANDBY = "up", "fenced", "leaving", "active", "standby"


class Fencing(NamedTuple):
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
    """Of the first record of its term: what was committed in earlier terms lies before it."""


class Span(NamedTuple):
    """A node was in one state for a while."""

    node: str
    state: str
    from_us: int
    until_us: int
    detail: str = ""


class Mark(NamedTuple):
    node: str
    at_us: int
    text: str


@dataclass(slots=True)
class ClusterStory:
    begin_us: int = 0
    end_us: int = 0
    """Of the whole log: the first and the last line that is an event."""
    fencings: dict[int, list[Fencing]] = field(default_factory=dict)
    """Broker -> in the order of time."""
    lost_connections: dict[int, list[int]] = field(default_factory=dict)
    """Leader -> when a follower lost its connection to it."""
    own_lines: dict[str, list[int]] = field(default_factory=dict)
    """Node -> when it logged something of those that are looked at."""
    actives: list[Active] = field(default_factory=list)
    """In the order of time."""
    min_isr: dict[str, int] = field(default_factory=dict)
    """Topic -> what counted last, by the line of any of its leaders."""
    applied: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Broker -> (metadata offset, when it began to act on it), ascending."""
    created: dict[str, list[int]] = field(default_factory=dict)
    removed: dict[str, list[int]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _terms: dict[str, list[Active]] = field(default_factory=dict)
    """Controller -> its terms, in the order of time."""
    _begins: list[tuple[int, float]] = field(default_factory=list)
    """Controller epochs, ascending, each with the lowest metadata offset at which it or a later one began."""

    def fencing(self, broker: int, at_us: int) -> Fencing | None:
        """The one that took the broker out of ISRs at that moment."""
        fencings = self.fencings.get(broker, [])
        first = bisect_left(fencings, at_us - SLACK_US, key=_at)
        near = fencings[first : bisect_right(fencings, at_us + SLACK_US, key=_at)]
        return min(near, key=lambda f: abs(f.at_us - at_us), default=None)

    def lost_at(self, broker: int, at_us: int) -> int:
        """Since when the leader was not there, for a change at that moment which took the lead from it."""
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
        """When the broker began to act on this part of the metadata log."""
        if metadata_offset is None:
            return None
        applied = self.applied.get(broker, [])
        first = bisect_left(applied, (metadata_offset, 0))
        return next((at for _, at in islice(applied, first, None) if at >= not_before_us - SLACK_US), None)

    def is_committed(self, decision: Fact) -> bool:
        """False for a line of a controller whose decision an earlier term left uncommitted. If the line of the controller's own
        term is missing, it counts."""
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
        """`actives` in the order of time."""
        self.actives = list(actives)
        for active in self.actives:
            self._terms.setdefault(active.node, []).append(active)
        lowest = math.inf
        for epoch, offset in sorted(((a.controller_epoch, a.metadata_offset) for a in self.actives), reverse=True):
            lowest = min(lowest, offset)
            self._begins.append((epoch, lowest))
        self._begins.reverse()

    def incarnation(self, topic: str, at_us: int) -> int:
        """0 for a topic whose creation is not in the log; one more for each creation."""
        return bisect_right(self.created.get(topic, []), at_us)

    def ends_at(self, topic: str, incarnation: int) -> int | None:
        """When this incarnation of the topic was removed, or another was created; None: neither."""
        created = self.created.get(topic, [])
        begin = created[incarnation - 1] if incarnation else self.begin_us
        ends = [at for at in self.removed.get(topic, []) if at >= begin] + created[incarnation : incarnation + 1]
        return min(ends, default=None)


def cluster_story(facts: Iterable[Fact], begin_us: int, end_us: int) -> ClusterStory:
    """`facts` that concern no single partition, in any order; the range is that of all lines."""
    story = ClusterStory(begin_us, end_us)
    ordered = sorted(set_of(facts), key=lambda fact: fact.at_us)
    story.index_terms(_active(fact) for fact in ordered if fact.event == "controller.activated")
    ordered = [fact for fact in ordered if story.is_committed(fact)]
    for fact in ordered:
        story.own_lines.setdefault(fact.node, []).append(fact.at_us)
        _take(story, fact)
    for applied in story.applied.values():
        applied.sort()
    _draw_lanes(story, ordered)
    return story


def set_of(facts: Iterable[Fact]) -> list[Fact]:
    """Each once: the same line may be in two files."""
    return list({fact.packed(): fact for fact in facts}.values())


def _active(fact: Fact) -> Active:
    fields = fact.fields
    return Active(fact.at_us, fact.node, int(fields.get("controller_epoch", -1)), int(fields.get("metadata_offset", -1)))


def _take(story: ClusterStory, fact: Fact) -> None:
    fields, at_us = fact.fields, fact.at_us
    if fact.event == "broker.fencing":
        silent_us = int(fields.get("silent_ms") or 0) * 1000
        fencing = Fencing(at_us, at_us - silent_us, str(fields.get("reason", "")), int(fields.get("broker_epoch", -1)))
        story.fencings.setdefault(int(fields["broker_id"]), []).append(fencing)
    elif fact.event in ("fetcher.connection_lost", "fetcher.connect_failed"):
        story.lost_connections.setdefault(int(fields["leader_id"]), []).append(at_us)
    elif fact.event == "metadata.applied" and fact.broker is not None:
        story.applied.setdefault(fact.broker, []).append((int(fields["metadata_offset"]), at_us))
    elif fact.event == "topic.created":
        story.created.setdefault(str(fields["name"]), []).append(at_us)
    elif fact.event == "topic.removed":
        story.removed.setdefault(str(fields["name"]), []).append(at_us)


# -- lanes ------------------------------------------------------------------------------------------------------------


def _draw_lanes(story: ClusterStory, facts: Iterable[Fact]) -> None:
    now: dict[str, tuple[str, int, str]] = {}
    """Node -> state, since when, detail."""

    def enter(node: str, state: str, at_us: int, detail: str = "") -> None:
        before = now.get(node)
        if before is not None and before[0] == state:
            return
        if before is not None and at_us > before[1]:
            story.spans.append(Span(node, before[0], before[1], at_us, before[2]))
        now[node] = (state, at_us, detail)

    for fact in facts:
        fields = fact.fields
        if fact.event == "broker.changed":
            node = f"broker-{fields['broker_id']}"
            state = FENCED if fields.get("fenced") else LEAVING if fields.get("in_controlled_shutdown") else UP
            fencing = story.fencing(int(fields["broker_id"]), fact.at_us) if state == FENCED else None
            if fencing is not None and fencing.broker_epoch != fields.get("broker_epoch"):
                fencing = None  # It registered anew, and is fenced until it has caught up with the metadata.
            enter(node, state, fact.at_us, "" if fencing is None else fencing.reason)
        elif fact.event == "controller.activated":
            enter(fact.node, ACTIVE, fact.at_us)
            for other, (state, _, _) in list(now.items()):
                if state == ACTIVE and other != fact.node:  # A killed one does not log that it is no longer active.
                    enter(other, STANDBY, fact.at_us)
        elif fact.event == "controller.resigned":
            enter(fact.node, STANDBY, fact.at_us)
        elif fact.event in _MARKS:
            story.marks.append(Mark(fact.node, fact.at_us, _MARKS[fact.event]))
            if fact.broker is None and fact.node not in now:
                enter(fact.node, STANDBY, fact.at_us)
    for node, (state, since_us, detail) in now.items():
        story.spans.append(Span(node, state, since_us, max(story.end_us, since_us), detail))


_MARKS = {
    "node.started": "process started",
    "node.stopping": "process was asked to stop",
    "node.failed": "process failed",
    "broker.standstill_detected": "process stood still",
}
