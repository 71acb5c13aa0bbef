"""A run as a page of text. `tell` explains a run that failed: the violation, the events before it, the nodes in trouble, the
logs, and the command that repeats the run. `narrate` tells a run from its beginning: under each heading of the scenario the
events, in sentences, and a drawing of the logs.

Both leave out frequent events without news (a fetch that returns nothing, a heartbeat, a vote), and combine repeated ones: ten
records that pass one after the other become "0..9".
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from strandline.testing.simulation.kernel.trace import Event, Trace, partition_order
from strandline.testing.simulation.story.drawing import WIDTH, draw
from strandline.testing.simulation.story.fault_words import BY_NODE_EVENTS, brief, short
from strandline.testing.simulation.story.gathering import Gathering, Sentence
from strandline.testing.simulation.story.picture import Picture, listed, name_of
from strandline.testing.simulation.story.sentences import Sentences, state_text

EVENTS, EARLIER = 40, 20
"""Most sentences on the page of a failure: of the newest events, and of the most important earlier ones."""

PARTITIONS = 3
"""Number of partitions that a page follows by default."""

MEANINGS = {
    "I1": "in one leader epoch at most one node acts as leader",
    "I2": "the leader is in the ISR, the ISR is a subset of the replicas, and no member of it is fenced",
    "I3": "ISR and ELR have no member in common, and leaders are elected from these two alone",
    "I4": "two replicas with the same record at an offset have the same log up to there",
    "I5": "log start <= HW <= LEO, and the offsets of a replica have no gap and no repetition",
    "I6": "no replica truncates a record that is committed",
    "I7": "every member of the ISR and the ELR, and every leader, has every committed record",
    "I8": "no consumer sees a record that is not committed",
    "I9": "a record that a consumer has read stays at its offset, and stays the same",
    "I10": "the HW never decreases",
    "I11": "the epoch cache holds where each epoch of the log begins, with epochs and offsets in ascending order",
    "I12": "for the HW the leader counts at least the members of the controller's ISR",
    "I13": "a replica that joins the ISR has every record below the HW, and is alive under its present broker epoch",
    "I14": "leader epoch, partition epoch and broker epoch never decrease",
    "I15": "a record that is acknowledged with acks=all is committed, and on every member of the ISR",
    "I16": "each sequence number of an idempotent producer is in the log once, in order",
    "I17": "each operation in the purgatory is completed once, and in time",
    "I18": "a vote and a voter's log are on the disk before another node receives them",
    "I19": "the committed metadata is the same on every node, and no node applies more than that",
    "I20": "no record is lost without a log line and a metric that report it",
    "I22": "no record of one topic is served or replicated under the id of another",
    "I23": "connections, tasks, buffers and sessions stay within their bounds",
    "I24": "once the faults are over, the cluster heals within a bounded time",
    "I25": "a process treats its logs as cleanly closed only if the process before it closed them",
    "I26": "a cleaner removes no record but an older one of a key and an expired tombstone, and changes none",
    "I27": "no replica holds an older value of a key whose tombstone was removed",
    "I28": "leaders return to preferred replicas that may lead, and never while a broker is in controlled shutdown",
    "I29": "a leader sends consumers only to members of the ISR",
    "I30": "a leader that recovers from an unclean election is alone in its ISR",
    "I31": "the report of an unclean election names every committed record that it loses",
    "I32": "a log that moves to another directory keeps all its records, and the controller records the new directory first",
    "I33": "a fetch without news is answered when its wait has ended, and not before",
    "I34": "each reassignment and each move of a log ends, at its target or where it began, and leaves nothing behind",
    "I35": "the throttle of a reassignment slows down no member of the ISR",
    "I36": "a partition has one owner in its group, and a member is given its records only while it is that owner",
    "I37": "an acknowledged commit is that of the owner, is committed, and is not below the one before it",
    "I38": "the members of a group get, and begin at, the group's committed offset and no other",
    "I39": "once the faults are over, every partition of a group has one owner, and each record below its commits was finished",
    "I40": "a coordinator has in its memory what a load of its log gives, on each replica",
    "I41": "each marker ends a transaction as a committed Prepare record of its coordinator says",
    "I42": "a transaction is complete only if every partition of it has its marker",
    "I43": "a record of a transaction is appended only to a partition that its coordinator has added, and not after the marker",
    "I44": "readers of committed records get no record of an open transaction, and every transaction ends",
    "I45": "no committed record with a lower fencing token follows one with a higher token",
    "I46": "a process that takes over a transactional id gets a higher epoch than all before it",
    "I47": "no request reaches its handler if its sender lacks the right for it",
    "I48": "rights are decided by the rules of the metadata, and no client receives records without the right to read them",
    "I49": "connections between nodes are never throttled",
    "I50": "sessions and intervals of a group are those of its configuration, from the next heartbeat on",
}
"""Each invariant in one line."""


class Violation(Protocol):
    """The fields of a violation that `tell` reads."""

    invariant: str
    text: str
    partition: str


# -- a run that failed


def tell(
    trace: Trace,
    violation: Violation,
    seed: int | str,
    scenario: str = "",
    *,
    options: Mapping[str, object] | None = None,
    replay: str = "",
    events_max: int = EVENTS,
) -> str:
    """The page of a violation. `replay` holds further arguments of the command line that repeats it, such as `--until 13`."""
    name, partition = violation.invariant, violation.partition
    kept = trace.events()
    picture = Picture.after(kept)
    last = _last(kept, partition, events_max)
    last.append(f"  {trace.now():8.3f} s  -- {name} is violated --")
    head = [*_wrapped(f"{name} is violated: {violation.text}"), ""]
    if name in MEANINGS:
        head += [*_wrapped(f"{name}: {MEANINGS[name]}.", hang=len(name) + 2), ""]
    head += [f"seed {seed}{f', scenario {scenario}' if scenario else ''}, at {trace.now():.3f} s of virtual time"]
    if options:
        drawn = ", ".join(f"{key} {short(value)}" for key, value in brief(options).items())
        head += _wrapped(f"drawn: {drawn}", hang=7)
    command = f"strandline simulate --seed {seed}{f' --scenario {scenario}' if scenario else ''}{f' {replay}' if replay else ''}"
    parts = [
        head,
        _section(f"What happened to {partition}" if partition else "What happened", last),
        _section("Nodes in trouble", _in_trouble(picture)),
        *(_section(f"The logs of {each}", _logs(picture, each)) for each in _concerned(picture, partition)),
        _section("Again", [f"  {command}"]),
    ]
    if not trace.is_complete:
        parts.insert(1, _wrapped("Not every event was kept: the earlier events are missing, and epochs may be unknown (?)."))
    return "\n\n".join("\n".join(part).rstrip() for part in parts if part) + "\n"


def recount(trace: Trace, partition: str = "", *, events_max: int = EVENTS) -> str:
    """The middle part of the page of `tell`, for callers with another head and end: events, nodes in trouble, logs."""
    kept = trace.events()
    picture = Picture.after(kept)
    parts = [
        _section(f"What happened to {partition}" if partition else "What happened", _last(kept, partition, events_max)),
        _section("Nodes in trouble", _in_trouble(picture)),
        *(_section(f"The logs of {each}", _logs(picture, each)) for each in _concerned(picture, partition)),
    ]
    return "\n\n".join("\n".join(part).rstrip() for part in parts if part) + "\n"


def _last(kept: Sequence[Event], partition: str, most: int) -> list[str]:
    """The newest sentences about a partition and its replicas; of the older ones only crashes, elections and truncations."""
    picture = Picture()
    sentences = Sentences(picture)
    entries: list[tuple[bool, list[str]]] = []
    for group in _adjacent(event for event in kept if _matters(event, partition)):
        for number, event in enumerate(group):
            if number == 0:
                text = sentences.of(_joined(group))
            picture.on(event)
        entries.append((group[0].kind in _NOTABLE, _line(group[-1].time, text)))
    newest = range(max(len(entries) - most, 0), len(entries))
    earlier = [place for place in range(newest.start) if entries[place][0]][-EARLIER:]
    return _with_gaps(entries, [*earlier, *newest])


def _with_gaps(entries: Sequence[tuple[bool, list[str]]], shown: Sequence[int]) -> list[str]:
    lines, expected = [], 0
    for place in shown:
        if place != expected:
            lines.append(f"              ({place - expected} more)")
        lines += entries[place][1]
        expected = place + 1
    return lines


def _matters(event: Event, partition: str) -> bool:
    if event.kind in ("raft.high_watermark", "log.rolled", "client.sent", "raft.voted"):
        return False
    if partition and event.partition not in (partition, ""):
        return False
    if event.kind.startswith("fault."):
        return event.fields.get("fault") not in BY_NODE_EVENTS
    if event.kind.startswith("log.") and "level" in event.fields:
        return event.fields["level"] in ("warning", "error", "critical")
    return True


def _adjacent(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Group each event with the one before it if it continues where that one ended. The order stays."""
    group: list[Event] = []
    for event in events:
        if group and not _goes_on(group[-1], event):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def _goes_on(one: Event, next: Event) -> bool:
    if (one.kind, one.node, one.partition) != (next.kind, next.node, next.partition):
        return False
    if one.kind == "hw.advanced":
        return True
    if one.kind not in ("log.appended", "produce.acked"):
        return False
    same = all(one.fields.get(name) == next.fields.get(name) for name in ("epoch", "role", "acks"))
    return same and one.fields.get("last", 0) + 1 == next.fields.get("base")


def _joined(group: Sequence[Event]) -> Event:
    first, last = group[0], group[-1]
    if "base" not in first.fields:
        return last
    return last._replace(fields={**last.fields, "base": first.fields["base"]})


def _in_trouble(picture: Picture) -> list[str]:
    lines = [
        line
        for node in sorted({*picture.nodes, *(node for fault in picture.faults for node in fault.nodes)})
        if (text := state_text(picture, node))
        for line in _wrapped(f"{name_of(node)}: {text}", indent=2)
    ]
    return lines or ["  none: no fault at that time"]


def _concerned(picture: Picture, partition: str) -> list[str]:
    if partition:
        return [partition] if partition in picture.replicas else []
    return sorted((name for name in picture.replicas if not name.startswith("__")), key=partition_order)[:3]


def _logs(picture: Picture, partition: str) -> list[str]:
    maps = [f"  {name_of(node)}   {replica}" for node, replica in sorted(picture.replicas[partition].items())]
    return [*draw(picture, partition), "", *(line for text in maps for line in _wrapped(text.strip(), indent=2, hang=11))]


# -- a run that is to be understood


WORDS = """\
offset         a record's number in its partition
LEO            log end offset: the offset that the next record of this replica gets
HW             high watermark: records below it are committed, and consumers may read them
ISR            the in-sync replicas: the next leader is one of them
leader epoch   counts the leaders of a partition; a record keeps the epoch of its leader (e1)
acks=all       acknowledged as soon as the HW has passed the record\
"""


def narrate(trace: Trace, *, title: str = "", partition: str | Iterable[str] | None = None, words: bool = True) -> str:
    """The page of a whole run. `partition` limits it to one or several; the default is the partitions of users with the most
    events."""
    names = _chosen(trace, partition)
    events = [event for event in trace.events() if event.partition in names or not event.partition]
    out = _title(title, events)
    if not trace.is_complete:
        out += [*_wrapped("Not every event was kept: this page begins in the middle of the run."), ""]
    if left := [name for name in trace.partitions() if name not in names and not name.startswith("__")]:
        out += [*_wrapped(f"There are {len(left)} more partitions; this page follows {listed(names)}."), ""]
    picture = Picture()
    for number, (says, under) in enumerate(_sections(events)):
        out += _chapter(number, says, under, picture, names)
    if words:
        out += ["Words", "-----", *("  " + line for line in WORDS.splitlines())]
    return "\n".join(line.rstrip() for line in out) + "\n"


def _title(title: str, events: Sequence[Event]) -> list[str]:
    source = ""
    for said in (event.fields for event in events if event.kind == "scenario.begins"):
        title = title or f"{said['number']}: {said['title']}"
        source = f"({said['source']})" if said.get("source") else ""
    lines = _wrapped(title)
    if not lines:
        return []
    return [*lines, "=" * max(map(len, lines)), *([source] if source else []), ""]


def _chosen(trace: Trace, partition: str | Iterable[str] | None) -> tuple[str, ...]:
    if partition is not None:
        return (partition,) if isinstance(partition, str) else tuple(partition)
    names = [name for name in trace.partitions() if not name.startswith("__")]
    if len(names) > PARTITIONS:
        counts = Counter(event.partition for event in trace.events(kinds=(*_NOTABLE, "log.appended")))
        names = sorted(sorted(names, key=lambda name: -counts[name])[:PARTITIONS], key=partition_order)
    return tuple(names)


HEADINGS = ("scenario.says", "phase")


def _sections(events: Sequence[Event]) -> Iterator[tuple[Event | None, list[Event]]]:
    """Each heading with the events up to the next one; those before the first heading have None."""
    says: Event | None = None
    under: list[Event] = []
    for event in events:
        if event.kind in HEADINGS:
            yield says, under
            says, under = event, []
        else:
            under.append(event)
    yield says, under


def _chapter(number: int, says: Event | None, under: Sequence[Event], picture: Picture, names: Sequence[str]) -> list[str]:
    before = {name: _shape(picture, name) for name in names}
    lines = [line for each in _sentences(under, picture, len(names) > 1) for line in _line(each.time, each.text)]
    if says is not None and says.kind == "phase" and all(event.kind == "scenario.must" for event in under):
        return []  # the cluster was at rest already
    if says is not None:
        head = _heading(number, says)
    else:
        head = [*_wrapped("Before the first step: the cluster starts."), ""] if lines else []
    out = [*head, *lines, *([""] if lines else [])]
    for name in names:
        if _shape(picture, name) not in ("", before[name]):
            out += [*([f"  {name}"] if len(names) > 1 else []), *draw(picture, name), ""]
    return out


def _heading(number: int, says: Event) -> list[str]:
    text = Sentences(Picture()).of(says) if says.kind == "phase" else str(says.fields["text"])
    stamp = f"{number}. "
    lines = textwrap.wrap(text, WIDTH, initial_indent=stamp, subsequent_indent=" " * len(stamp), break_on_hyphens=False)
    return [*lines, ""]


def _shape(picture: Picture, partition: str) -> str:
    """The drawing as text: a page draws the logs only when this has changed."""
    return "\n".join(draw(picture, partition)) if partition in picture.replicas else ""


def _sentences(events: Iterable[Event], picture: Picture, several: bool) -> list[Sentence]:
    """The sentences for these events. Frequent events are gathered until an event of another kind follows."""
    sentences, out, gathering = Sentences(picture, several, brief=True), [], Gathering(several)
    for event in events:
        if gathering.takes(event, picture):
            gathering.add(event, picture)
        elif _is_notable(event, picture):
            out += gathering.end()
            out.append(Sentence(event.time, sentences.of(event)))
        picture.on(event)
    return out + gathering.end()


_NOTABLE = (
    "node.crashed",
    "node.stopped",
    "node.paused",
    "node.resumed",
    "fault.begin",
    "fault.end",
    "disk.fault",
    "controller.elected",
    "leader.became",
    "log.truncated",
    "log.start_moved",
    "isr.refused",
    "fetch.diverging",
    "produce.failed",
    "invariant.violated",
    "node.failed",
    "scenario.must",
    "scenario.astray",
)


def _is_notable(event: Event, picture: Picture) -> bool:
    said = event.fields
    if event.kind.startswith("fault."):
        return said.get("fault") not in BY_NODE_EVENTS
    if event.kind == "metadata.broker":
        return bool(said.get("fenced")) != picture.fenced.get(int(said.get("broker", event.node)), True)
    if event.kind == "metadata.partition":
        was = picture.partitions.get(event.partition)
        return was is None or (was.leader, set(was.isr)) != (said.get("leader"), set(said.get("isr") or ()))
    if event.kind == "log.recovered":
        replica = picture.replicas.get(event.partition, {}).get(event.node)
        return replica is not None and replica.end > said.get("end", 0)
    return event.kind in _NOTABLE


# -- layout


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "-" * len(title), *lines] if lines else []


def _line(time: float, text: str) -> list[str]:
    stamp = f"  {time:8.3f} s  "
    return textwrap.wrap(text, WIDTH, initial_indent=stamp, subsequent_indent=" " * (len(stamp) + 2), break_on_hyphens=False)


def _wrapped(text: str, *, indent: int = 0, hang: int = 0) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + hang), break_on_hyphens=False
    )
