"""A run as a picture: one HTML file that needs nothing else, for a browser that is offline.

Time runs from left to right, and each replica has a lane. In the lane its log grows upwards, offset by offset, in the colour of
the leader epoch in which the records were written. So a truncation is a step down, a fork is another colour at the same height,
and a crash is a gap. `render` creates the page: it applies the events (picture.py) to the lanes, and fills the template
timeline.html.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strandline.testing.simulation.kernel.trace import WORLD, Event, Trace, plain
from strandline.testing.simulation.story.fault_words import BY_NODE_EVENTS, brief, fault_text, short
from strandline.testing.simulation.story.picture import (
    CONTROLLERS_FROM,
    DEAD,
    PAUSED,
    STOPPED,
    UNKNOWN,
    Fault,
    Picture,
    Replica,
    name_of,
)
from strandline.testing.simulation.story.sentences import Sentences
from strandline.testing.simulation.story.story import MEANINGS, Violation, narrate

TEMPLATE = Path(__file__).with_name("timeline.html")
EVENTS_MAX = 20_000
"""Most rows of the table; if there are more events, the least interesting ones are left out."""

GROUPS = {
    "leaders and ISR": ("leader.became", "follower.became", "metadata.", "isr.", "controller."),
    "logs": ("log.truncated", "log.start_moved", "log.recovered", "log.appended", "log.rolled", "hw.", "fetch."),
    "acks and clients": ("produce.", "client."),
    "nodes and faults": ("node.", "fault.", "disk.", "invariant."),
    "story": ("scenario.", "phase"),
    "warnings": (),
    "other": ("",),
}
"""The filters of the table, by prefixes of kinds; the first that matches counts. Warnings are logged lines."""


def render(
    trace: Trace,
    title: str,
    *,
    about: Mapping[str, object] | None = None,
    violation: Violation | None = None,
) -> str:
    """The page. `about` is printed below the title: seed, scenario, and `options`, a mapping."""
    text = narrate(trace, title=title)
    data = json.dumps(_data(trace, violation), ensure_ascii=False, separators=(",", ":"))
    shown = {**(about or {})}
    options = shown.pop("options", None)
    facts = {**shown, "virtual time": f"{trace.now():.3f} s", "events": trace.emitted, "trace": trace.sha256()[:16]}
    return _filled(
        TEMPLATE.read_text(encoding="utf-8"),
        {
            "title": html.escape(title),
            "facts": "".join(
                f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(short(value))}</dd></div>" for name, value in facts.items()
            ),
            "options": _options(options),
            "violation": _violation(violation),
            "text": html.escape(text),
            "data": data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        },
    )


def _options(options: object) -> str:
    """The options of the seed, in short and in full."""
    if not isinstance(options, Mapping) or not options:
        return ""
    full = html.escape(json.dumps(plain(options), indent=2, ensure_ascii=False))
    return f"<details class=options><summary>drawn: {html.escape(short(brief(options)))}</summary><pre>{full}</pre></details>"


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Put each part in its place in the template. Placeholders inside a part are not replaced."""
    return re.sub(r"@@(\w+)@@", lambda place: parts[place[1]], template)


def _violation(violation: Violation | None) -> str:
    if violation is None:
        return ""
    meaning = MEANINGS.get(violation.invariant, "")
    said = f"<b>{html.escape(violation.invariant)} is violated.</b> {html.escape(violation.text)}"
    return f'<p class="violation" role="alert">{said}{f" <i>({html.escape(meaning)})</i>" if meaning else ""}</p>'


def _data(trace: Trace, violation: Violation | None) -> dict[str, Any]:
    film = _Film()
    for event in trace.events():
        film.on(event)
    film.end(trace.now())
    names = [name for name in trace.partitions() if name in film.lanes and not name.startswith("__")]
    return {
        "end": _t(trace.now()),
        "partitions": [
            {
                "name": name,
                "lanes": [lane.data() for _, lane in sorted(film.lanes[name].items())],
                "elections": film.elections[name],
            }
            for name in names
        ],
        "first": max(range(len(names)), key=lambda place: film.happenings[names[place]], default=0),
        "controllers": film.controllers,
        "spans": film.spans,
        "groups": list(GROUPS),
        "events": _table(film.table, names),
        "left_out": max(len(film.table) - EVENTS_MAX, 0),
        "complete": trace.is_complete,
        "violation": None if violation is None else {"partition": violation.partition, "invariant": violation.invariant},
    }


def _t(time: float) -> float:
    return round(time, 6)


@dataclass(slots=True)
class Lane:
    """The lane of one replica, as steps: each entry holds until the next one of its list."""

    node: int
    areas: list[dict[str, Any]] = field(default_factory=list)
    """One area per run of an epoch, with `points` [time, base, end); the last point is empty."""
    leo: list[list[Any]] = field(default_factory=list)
    """[time, offset]; None: the log is not open."""
    hw: list[list[Any]] = field(default_factory=list)
    roles: list[list[Any]] = field(default_factory=list)
    """[from, to, epoch, leader] of each time in which the replica led (then `leader` is the replica itself) or followed."""
    isr: list[list[Any]] = field(default_factory=list)
    """[from, to] of each time in which the replica was in the ISR."""
    cuts: list[list[Any]] = field(default_factory=list)
    """[time, to, was]: truncations."""
    _open: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def see(self, time: float, replica: Replica) -> None:
        """The replica has this state from now on."""
        now = {(run.epoch, run.base if run.epoch == UNKNOWN else 0): run for run in replica.runs}
        for key in [key for key in self._open if key not in now]:
            self._close(time, key)
        for key, run in now.items():
            area = self._open.get(key)
            if area is None:
                area = self._open[key] = {"epoch": run.epoch, "points": []}
                self.areas.append(area)
            if not area["points"] or area["points"][-1][1:] != [run.base, run.end]:
                area["points"].append([_t(time), run.base, run.end])
        _step(self.leo, time, replica.end)
        _step(self.hw, time, None if replica.hw is None else min(replica.hw, replica.end))

    def _close(self, time: float, key: tuple[int, int]) -> None:
        points = self._open.pop(key)["points"]
        points.append([_t(time), points[-1][1], points[-1][1]])

    def vanish(self, time: float) -> None:
        """The process has ended: the log is not visible."""
        for key in list(self._open):
            self._close(time, key)
        for steps in (self.leo, self.hw):
            if steps:
                _step(steps, time, None)
        self.plays(time, None, UNKNOWN)

    def plays(self, time: float, epoch: int | None, leader: int) -> None:
        """The replica has another role from now on, in this epoch; None: it has no role."""
        _until(self.roles, time)
        if epoch is not None:
            self.roles.append([_t(time), None, epoch, leader])

    def is_in_sync(self, time: float, member: bool) -> None:
        is_open = bool(self.isr) and self.isr[-1][1] is None
        if is_open and not member:
            _until(self.isr, time)
        elif member and not is_open:
            self.isr.append([_t(time), None])

    def data(self) -> dict[str, Any]:
        names = ("areas", "leo", "hw", "roles", "isr", "cuts")
        return {"node": self.node, "name": name_of(self.node), **{name: getattr(self, name) for name in names}}


def _step(steps: list[list[Any]], time: float, value: int | None) -> None:
    if not steps or steps[-1][1] != value:
        steps.append([_t(time), value])


def _until(spans: list[list[Any]], time: float) -> None:
    """Close the last entry, if it is open."""
    if spans and spans[-1][1] is None:
        spans[-1][1] = _t(time)


class _Film:
    """Turns the events, one by one, into lanes, spans and rows."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.sentences = Sentences(self.picture)
        self.lanes: defaultdict[str, dict[int, Lane]] = defaultdict(dict)
        self.elections: defaultdict[str, list[list[Any]]] = defaultdict(list)
        """Partition -> [time, node, epoch] of each election."""
        self.controllers: list[list[Any]] = []
        """[from, to, node, epoch] of each active controller."""
        self.spans: list[dict[str, Any]] = []
        """Times of trouble: {kind, nodes, from, to, text}."""
        self._open: dict[object, dict[str, Any]] = {}
        self.table: list[list[Any]] = []
        self.happenings: Counter[str] = Counter()

    def on(self, event: Event) -> None:
        group = _group(event.kind, event.fields.get("level"))
        self.table.append([_t(event.time), event.kind, group, event.node, event.partition, self.sentences.of(event)])
        self.happenings[event.partition] += 1
        faults = list(self.picture.faults)
        self.picture.on(event)
        if event.kind.startswith("node."):
            self._node(event)
        elif event.kind.startswith("fault.") or event.kind == "phase":
            self._fault(event, faults)
        elif event.kind.startswith("controller."):
            self._controller(event)
        elif event.partition:
            self._partition(event)

    def _lane(self, event: Event) -> Lane:
        return self.lanes[event.partition].setdefault(event.node, Lane(event.node))

    def _node(self, event: Event) -> None:
        state = self.picture.nodes[event.node].state if event.node in self.picture.nodes else ""
        self._end_span(("node", event.node), event.time)
        if state in (DEAD, STOPPED):
            for lanes in self.lanes.values():
                if event.node in lanes:
                    lanes[event.node].vanish(event.time)
            self._end_controller(event.node, event.time)
        if state in (DEAD, STOPPED, PAUSED):
            lossy = " (unflushed bytes lost)" if event.fields.get("lossy") else ""
            text = {PAUSED: "paused", STOPPED: "stopped"}.get(state, f"dead{lossy}")
            self._begin_span(("node", event.node), state, (event.node,), event.time, text)

    def _fault(self, event: Event, before: Sequence[Fault]) -> None:
        for fault in self.picture.faults:
            if fault.event is event and fault.name not in BY_NODE_EVENTS:
                self._begin_span(("fault", event.number), "fault", fault.nodes, event.time, fault_text(event))
        for fault in before:
            if fault not in self.picture.faults:
                self._end_span(("fault", fault.event.number), event.time)

    def _begin_span(self, key: object, kind: str, nodes: Iterable[int], time: float, text: str) -> None:
        span = {"kind": kind, "nodes": list(nodes), "from": _t(time), "to": None, "text": text}
        self._open[key] = span
        self.spans.append(span)

    def _end_span(self, key: object, time: float) -> None:
        span = self._open.pop(key, None)
        if span is not None:
            span["to"] = _t(time)

    def _controller(self, event: Event) -> None:
        if event.kind == "controller.elected":
            _until(self.controllers, event.time)
            self.controllers.append([_t(event.time), None, event.node, event.fields.get("epoch", UNKNOWN)])
        else:
            self._end_controller(event.node, event.time)

    def _end_controller(self, node: int, time: float) -> None:
        if self.controllers and self.controllers[-1][2] == node:
            _until(self.controllers, time)

    def _partition(self, event: Event) -> None:
        replica = self.picture.replicas.get(event.partition, {}).get(event.node)
        if event.kind == "metadata.partition":
            self._in_sync(event)
            return
        if replica is None or not _shows(event):
            return
        lane = self._lane(event)
        if event.kind == "leader.became":
            self.elections[event.partition].append([_t(event.time), event.node, event.fields.get("epoch", UNKNOWN)])
            lane.plays(event.time, event.fields.get("epoch", UNKNOWN), event.node)
        elif event.kind == "follower.became":
            lane.plays(event.time, event.fields.get("epoch", UNKNOWN), event.fields.get("leader", UNKNOWN))
        elif event.kind == "log.truncated" and event.fields.get("was", event.fields["to"]) > event.fields["to"]:
            lane.cuts.append([_t(event.time), event.fields["to"], event.fields["was"]])
        lane.see(event.time, replica)

    def _in_sync(self, event: Event) -> None:
        isr = self.picture.partitions[event.partition].isr
        lanes = self.lanes[event.partition]
        for node in isr:
            lanes.setdefault(node, Lane(node))
        for node, lane in lanes.items():
            lane.is_in_sync(event.time, node in isr)

    def end(self, time: float) -> None:
        for lanes in self.lanes.values():
            for lane in lanes.values():
                _until(lane.roles, time)
                _until(lane.isr, time)
        _until(self.controllers, time)
        for key in list(self._open):
            self._end_span(key, time)


_SHOWN = ("leader.became", "follower.became", "log.appended", "log.truncated", "log.recovered", "log.start_moved", "hw.advanced")


def _shows(event: Event) -> bool:
    """Whether the event changes the lane of its node's replica."""
    return event.kind in _SHOWN and WORLD < event.node < CONTROLLERS_FROM


def _group(kind: str, level: object) -> int:
    if level is not None:
        return list(GROUPS).index("other" if level in ("debug", "info") else "warnings")
    return next(number for number, begins in enumerate(GROUPS.values()) if kind.startswith(begins))


def _table(rows: list[list[Any]], names: Sequence[str]) -> list[list[Any]]:
    """The rows of the table: [time, kind, group, node, index of the partition or -1, sentence]."""
    if len(rows) > EVENTS_MAX:
        often = ("log.appended", "hw.advanced", "produce.", "client.", "raft.", "fetch.")
        spare = len(rows) - EVENTS_MAX
        kept = []
        for row in rows:
            if spare and row[1].startswith(often):
                spare -= 1
            else:
                kept.append(row)
        rows = kept
    places = {name: place for place, name in enumerate(names)}
    return [[t, kind, group, node, places.get(name, -1), text] for t, kind, group, node, name, text in rows]
