"""Gathers frequent events: ten records that pass one after the other become "0..9".

Events are gathered into groups until something of another kind happens; then each group becomes a sentence. The groups are
ordered by their first events, so "broker 1 appends, broker 3 copies" stays true. Events before and after a truncation or an
election are never mixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.testing.simulation.kernel.trace import Event
from strandline.testing.simulation.story.picture import Picture, listed, name_of, names_of, offsets

KINDS = frozenset(
    {"node.started", "log.appended", "hw.advanced", "follower.became", "produce.acked", "client.read", "metadata.topic"}
)
MUSTS = 3
"""If more checks of a story have passed in a row, only this many are listed."""


class Sentence(NamedTuple):
    """The sentence of a group of events, with its time."""

    time: float
    text: str


@dataclass(slots=True)
class Group:
    """Events that become one sentence."""

    first: Event
    newest: Event
    nodes: dict[int, None] = field(default_factory=dict)
    """The nodes that it is about, each once."""
    last: int = -1
    """The highest offset of its events."""
    names: dict[str, None] = field(default_factory=dict)
    """Names of topics."""
    again: bool = False
    """For nodes that start: it is not their first start."""

    def add(self, event: Event) -> None:
        self.newest = event
        self.nodes[event.fields["broker"] if event.kind == "metadata.broker" else event.node] = None
        if "name" in event.fields:
            self.names[str(event.fields["name"])] = None
        self.last = max(self.last, int(event.fields.get("last", -1)))

    def join(self, other: Group) -> None:
        self.nodes.update(other.nodes)
        self.newest = max(self.newest, other.newest, key=lambda event: event.number)

    @property
    def event(self) -> Event:
        """The event whose time the sentence gets: the first one for an action, the newest one for a result."""
        return self.newest if self.first.kind in ("hw.advanced", "produce.acked", "client.read") else self.first


Key = tuple[object, ...]


class Gathering:
    def __init__(self, several: bool) -> None:
        self._several = several
        """Whether more than one partition is described, so that each is named."""
        self._groups: dict[Key, Group] = {}
        """The groups, in the order of their first events."""

    @staticmethod
    def takes(event: Event, picture: Picture) -> bool:
        said = event.fields
        if event.kind == "scenario.must":
            return bool(said.get("holds"))
        if event.kind == "metadata.broker":
            return not said.get("fenced") and picture.fenced.get(int(said.get("broker", event.node)), True)
        return event.kind in KINDS

    def add(self, event: Event, picture: Picture) -> None:
        again = event.kind == "node.started" and event.node in picture.nodes
        key = (*_key(event), again)
        group = self._groups.get(key)
        if group is not None and "base" in event.fields and event.fields["base"] > group.last + 1:
            self._groups[(*key, group.first.number)] = self._groups.pop(key)  # a gap: the group is complete
            group = None
        if group is None:
            group = self._groups[key] = Group(event, event, again=again)
        group.add(event)

    def end(self) -> list[Sentence]:
        """End all groups, and return their sentences, in order."""
        groups = sorted(_merged(self._groups), key=lambda group: group.event.number)
        self._groups = {}
        musts = [group for group in groups if group.first.kind == "scenario.must"]
        if len(musts) > MUSTS + 1:
            groups = [group for group in groups if group not in musts[MUSTS - 1 : -1]]
        sentences = [Sentence(group.event.time, self._sentence(group)) for group in groups]
        if len(musts) > MUSTS + 1:
            text = f"check passed, like {len(musts) - MUSTS} others: {musts[-1].first.fields['text']}"
            sentences[groups.index(musts[-1])] = Sentence(musts[-1].first.time, text)
        return sentences

    def _sentence(self, group: Group) -> str:
        event, said = group.first, group.first.fields
        nodes, many = names_of(group.nodes), len(group.nodes) > 1
        if event.kind == "scenario.must":
            return f"check passed: {said['text']}"
        if event.kind == "node.started":
            return f"{nodes} {'re' if group.again else ''}start{'' if many else 's'}"
        if event.kind == "metadata.broker":
            return f"{nodes} {'are' if many else 'is'} unfenced: {'they' if many else 'it'} may lead and join ISRs"
        if event.kind == "metadata.topic":
            names = list(group.names)
            return f"topic {names[0]} is created" if len(names) == 1 else f"topics {_some(names)} are created"
        return self._of_a_partition(group, nodes, many)

    def _of_a_partition(self, group: Group, nodes: str, many: bool) -> str:
        event, said = group.first, group.first.fields
        of, to, where = (f" {word} {event.partition}" if self._several else "" for word in ("of", "to", "in"))
        if event.kind == "follower.became":
            if said["leader"] > 0:
                return f"{nodes} follow{'' if many else 's'} {name_of(said['leader'])}{where} (epoch {said['epoch']})"
            return f"{nodes} {'have' if many else 'has'} no leader to follow{where} (epoch {said['epoch']})"
        if event.kind == "hw.advanced":
            return f"HW{of} is {group.newest.fields['hw']} on {nodes}"
        if event.kind == "client.read":
            return f"{nodes} reads {offsets(said['from'], group.newest.fields['to'])}{of}"
        what = offsets(said["base"], group.last)
        if event.kind == "produce.acked":
            acks = "all" if said.get("acks") == -1 else said.get("acks", "?")
            return f"{nodes} acknowledges {what}{of} (acks={acks})"
        if said.get("role") == "follower":
            return f"{nodes} cop{'y' if many else 'ies'} {what}{of} (epoch {said['epoch']})"
        return f"{nodes} appends {what}{to} in epoch {said['epoch']}"


def _key(event: Event) -> Key:
    """The key of the event's group: events with the same key become one sentence."""
    said = event.fields
    if event.kind == "follower.became":
        return (event.kind, event.partition, said.get("leader"), said.get("epoch"))
    if event.kind in ("node.started", "metadata.broker", "metadata.topic"):
        return (event.kind,)
    if event.kind == "scenario.must":
        return (event.kind, said.get("text"))
    return (event.kind, event.partition, event.node, said.get("epoch"), said.get("acks"))


def _some(names: list[str]) -> str:
    return listed(names if len(names) <= 5 else [*names[:3], f"{len(names) - 3} more"])


def _merged(groups: dict[Key, Group]) -> Iterable[Group]:
    """Joins groups that differ in the replica only: followers that copied the same records, high watermarks that reached the
    same offset."""
    merged: dict[Key, Group] = {}
    for key, group in groups.items():
        said = group.first.fields
        if group.first.kind == "hw.advanced":
            key = ("hw", group.first.partition, group.newest.fields["hw"])
        elif group.first.kind == "log.appended" and said.get("role") == "follower":
            key = ("copied", group.first.partition, said.get("epoch"), said["base"], group.last)
        if key in merged:
            merged[key].join(group)
        else:
            merged[key] = group
    return merged.values()
