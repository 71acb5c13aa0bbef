"""The cluster at one moment, as far as a trace shows it: the log of each replica, the leaders, and which nodes are dead or cut
off.

The pages for people (story.py, timeline.py) apply the events of a trace to this picture one by one. Of a replica's log it has
only the epochs, as runs of offsets. That is enough to see where two histories diverge, which most stories are about.

A trace that is not complete begins in the middle. What is unknown then has the epoch `UNKNOWN`, and is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.testing.simulation.kernel.trace import WORLD, Event

UNKNOWN = -1
CONTROLLERS_FROM, CLIENTS_FROM = 101, 201
"""Brokers are numbered from 1, controllers and clients from here."""

UP, DEAD, STOPPED, PAUSED = "up", "dead", "stopped", "paused"


class Run(NamedTuple):
    """Consecutive offsets that were written in one leader epoch."""

    base: int
    end: int
    """The offset after the last one."""
    epoch: int

    def __str__(self) -> str:
        return f"{offsets(self.base, self.end - 1)}@{'?' if self.epoch == UNKNOWN else f'e{self.epoch}'}"


@dataclass(slots=True)
class Replica:
    node: int
    runs: list[Run] = field(default_factory=list)
    """The runs of its log from `start` to `end`, without gaps; none is empty."""
    start: int = 0
    end: int = 0
    """Log end offset, exclusive."""
    hw: int | None = None
    """The high watermark that this replica knows; None: not reported yet."""
    leads: int | None = None
    """The epoch in which it claims to lead. Several replicas may claim to lead at the same time."""
    follows: tuple[int, int] | None = None
    """The leader that it follows, and its epoch."""

    def append(self, base: int, last: int, epoch: int) -> None:
        if base > self.end:
            self._extend(base, UNKNOWN)
        self.cut(base)
        self._extend(last + 1, epoch)

    def _extend(self, end: int, epoch: int) -> None:
        base = self.end
        if self.runs and self.runs[-1].epoch == epoch:
            base = self.runs.pop().base
        if end > base:
            self.runs.append(Run(base, end, epoch))
        self.end = end

    def cut(self, end: int) -> None:
        """Cut or extend the runs so that the log ends here."""
        if end > self.end:
            self._extend(end, UNKNOWN)
        self.runs = [Run(r.base, min(r.end, end), r.epoch) for r in self.runs if r.base < end]
        self.end, self.start = end, min(self.start, end)

    def start_at(self, start: int) -> None:
        if start > self.end:
            self.runs, self.end = [], start
        self.runs = [Run(max(r.base, start), r.end, r.epoch) for r in self.runs if r.end > start]
        self.start = start

    def __str__(self) -> str:
        return " ".join(map(str, self.runs)) or f"empty at {self.end}"


class Partition(NamedTuple):
    """The committed metadata of a partition."""

    leader: int = UNKNOWN
    leader_epoch: int = UNKNOWN
    partition_epoch: int = UNKNOWN
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()


@dataclass(slots=True)
class Node:
    id: int
    state: str = UP
    since: float = 0.0
    lossy: bool = False
    """For a dead node: whether it lost what it had not flushed."""
    starts: int = 0


class Fault(NamedTuple):
    """A fault that lasts for a while."""

    name: str
    since: float
    nodes: tuple[int, ...]
    """The nodes that it strikes; empty if it names none."""
    event: Event


@dataclass(slots=True)
class Picture:
    nodes: dict[int, Node] = field(default_factory=dict)
    replicas: dict[str, dict[int, Replica]] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    """Faults that have begun and not ended."""
    diverging: dict[str, Event] = field(default_factory=dict)
    """Partition -> the newest event of a follower that received a diverging epoch."""
    fenced: dict[int, bool] = field(default_factory=dict)
    """Registered broker -> whether it is fenced."""
    controller: tuple[int, int] | None = None
    """The active controller and its epoch."""

    def on(self, event: Event) -> None:
        handler = _HANDLERS.get(event.kind)
        if handler is not None:
            handler(self, event)

    @classmethod
    def after(cls, events: Iterable[Event]) -> Picture:
        picture = cls()
        for event in events:
            picture.on(event)
        return picture

    def node(self, id: int) -> Node:
        return self.nodes.setdefault(id, Node(id))

    def replica(self, partition: str, node: int) -> Replica:
        replicas = self.replicas.setdefault(partition, {})
        return replicas.setdefault(node, Replica(node))

    def faults_of(self, node: int) -> list[Fault]:
        return [fault for fault in self.faults if node in fault.nodes]


# -- what each kind of event changes


def _on_started(picture: Picture, event: Event) -> None:
    node = picture.node(event.node)
    node.state, node.since, node.lossy, node.starts = UP, event.time, False, node.starts + 1


def _on_gone(picture: Picture, event: Event) -> None:
    node = picture.node(event.node)
    node.state = DEAD if event.kind == "node.crashed" else STOPPED
    node.since, node.lossy = event.time, bool(event.fields.get("lossy"))
    for replicas in picture.replicas.values():
        if event.node in replicas:
            replicas[event.node].leads = replicas[event.node].follows = None


def _on_paused(picture: Picture, event: Event) -> None:
    node = picture.node(event.node)
    node.state, node.since = PAUSED, event.time


def _on_resumed(picture: Picture, event: Event) -> None:
    node = picture.node(event.node)
    node.state, node.since = UP, event.time


def _on_fault(picture: Picture, event: Event) -> None:
    name = str(event.fields.get("fault", "fault"))
    if name not in MOMENTARY:
        picture.faults.append(Fault(name, event.time, nodes_of(event), event))


def _on_fault_end(picture: Picture, event: Event) -> None:
    fault = ended_by(event, picture.faults)
    if fault is not None:
        picture.faults.remove(fault)


def ended_by(event: Event, faults: Iterable[Fault]) -> Fault | None:
    """The lasting fault that a `fault.end` refers to: the newest of this name with the same fields."""
    said = {name: value for name, value in event.fields.items() if name not in ("fault", "since", "lasted_s")}
    alike = [fault for fault in faults if fault.name == event.fields.get("fault", "fault")]
    exact = [
        f
        for f in alike
        if f.event.node == event.node and all(f.event.fields.get(name, value) == value for name, value in said.items())
    ]
    return next(reversed(exact or alike), None)


NODE_FIELDS = ("victim", "victims", "nodes", "node", "a", "b", "source", "target", "side", "others")
"""Fields of a fault that name the nodes it strikes; the last one names those from which they are cut off."""
MOMENTARY = frozenset({"elect", "reset", "blackout", "rolling"})
"""Faults that end as soon as they have begun."""


def nodes_of(event: Event) -> tuple[int, ...]:
    """The nodes that a fault strikes."""
    found = [event.node] if event.node != WORLD else []
    for name in NODE_FIELDS[:-1]:
        found += _integers(event.fields.get(name))
    return tuple(sorted(set(found)))


def _integers(value: object) -> list[int]:
    if isinstance(value, list):
        return [number for each in value for number in _integers(each)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) and value != WORLD else []


def _on_elected(picture: Picture, event: Event) -> None:
    picture.controller = (event.node, int(event.fields.get("epoch", UNKNOWN)))


def _on_broker(picture: Picture, event: Event) -> None:
    picture.fenced[int(event.fields.get("broker", event.node))] = bool(event.fields.get("fenced"))


def _on_partition(picture: Picture, event: Event) -> None:
    said = event.fields
    picture.partitions[event.partition] = Partition(
        said.get("leader", UNKNOWN),
        said.get("leader_epoch", UNKNOWN),
        said.get("partition_epoch", UNKNOWN),
        tuple(said.get("isr") or ()),
        tuple(said.get("elr") or ()),
    )


def _on_leader(picture: Picture, event: Event) -> None:
    replica = picture.replica(event.partition, event.node)
    replica.leads, replica.follows = event.fields.get("epoch", UNKNOWN), None


def _on_follower(picture: Picture, event: Event) -> None:
    replica = picture.replica(event.partition, event.node)
    replica.leads = None
    replica.follows = (event.fields.get("leader", UNKNOWN), event.fields.get("epoch", UNKNOWN))


def _on_appended(picture: Picture, event: Event) -> None:
    said = event.fields
    picture.replica(event.partition, event.node).append(said["base"], said["last"], said.get("epoch", UNKNOWN))


def _on_truncated(picture: Picture, event: Event) -> None:
    """Cut the log, or restart it at its leader's log start if it ended below that offset."""
    replica, said = picture.replica(event.partition, event.node), event.fields
    if is_restart(event):
        replica.start_at(said["to"])
    else:
        replica.cut(said["to"])


def is_restart(event: Event) -> bool:
    return bool(event.fields["to"] > event.fields.get("was", event.fields["to"]))


def _on_recovered(picture: Picture, event: Event) -> None:
    """Take the state of a recovered log from the event: its end, and if given `epochs` ([epoch, first offset], in order),
    `start` and `hw`."""
    replica, said = picture.replica(event.partition, event.node), event.fields
    replica.cut(said["end"])
    replica.hw = said.get("hw")
    if "epochs" in said:
        ends = [start for _, start in said["epochs"][1:]] + [said["end"]]
        replica.runs = [Run(start, end, epoch) for (epoch, start), end in zip(said["epochs"], ends, strict=False) if end > start]
    replica.start_at(min(said.get("start", replica.start), said["end"]))


def _on_start_moved(picture: Picture, event: Event) -> None:
    picture.replica(event.partition, event.node).start_at(event.fields["to"])


def _on_hw(picture: Picture, event: Event) -> None:
    picture.replica(event.partition, event.node).hw = event.fields["hw"]


def _on_diverging(picture: Picture, event: Event) -> None:
    picture.diverging[event.partition] = event


def phase_of(event: Event) -> str:
    return str(event.fields.get("phase", event.fields.get("name", "")))


def _on_phase(picture: Picture, event: Event) -> None:
    if phase_of(event) in ("heal", "full heal"):
        picture.faults.clear()


_HANDLERS: dict[str, Callable[[Picture, Event], None]] = {
    "phase": _on_phase,
    "node.started": _on_started,
    "node.crashed": _on_gone,
    "node.stopped": _on_gone,
    "node.paused": _on_paused,
    "node.resumed": _on_resumed,
    "fault.begin": _on_fault,
    "fault.end": _on_fault_end,
    "controller.elected": _on_elected,
    "metadata.broker": _on_broker,
    "metadata.partition": _on_partition,
    "leader.became": _on_leader,
    "follower.became": _on_follower,
    "log.appended": _on_appended,
    "log.truncated": _on_truncated,
    "log.recovered": _on_recovered,
    "log.start_moved": _on_start_moved,
    "hw.advanced": _on_hw,
    "fetch.diverging": _on_diverging,
}


# -- words


def name_of(node: int) -> str:
    """The name of a node, such as `broker 2`."""
    if node == WORLD:
        return "the world"
    if node >= CLIENTS_FROM:
        return f"client {node}"
    return f"controller {node}" if node >= CONTROLLERS_FROM else f"broker {node}"


def names_of(nodes: Iterable[int]) -> str:
    """The names of nodes, such as `controller 101 and brokers 1, 2 and 3`."""
    kinds: dict[str, list[str]] = {}
    for id in sorted(set(nodes), key=lambda id: (id < CONTROLLERS_FROM, id)):
        kind, _, number = name_of(id).rpartition(" ")
        kinds.setdefault(kind, []).append(number)
    return listed(f"{kind}{'s' if len(numbers) > 1 else ''} {listed(numbers)}" for kind, numbers in kinds.items())


def listed(words: Iterable[str]) -> str:
    *some, last = list(words) or [""]
    return f"{', '.join(some)} and {last}" if some else last


def offsets(base: int, last: int) -> str:
    """A range of offsets, both ends included: `10..11`, or `10`."""
    return str(base) if base == last else f"{base}..{last}"


def ids(nodes: Iterable[int]) -> str:
    """The ids of nodes, such as `{1,2,3}`."""
    return "{" + ",".join(map(str, sorted(nodes))) + "}"
