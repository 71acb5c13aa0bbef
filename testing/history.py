"""The checker of a client's history: given what clients did and what they saw, was any promise broken?

A history is a list of operations as the clients saw them, nothing from inside the cluster. A send is *invoked* and then
ends in one of three ways: **ok** (acknowledged, at an offset), **fail** (certainly not appended: refused before the
append) or **info** (nobody knows: a timeout, a lost connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND, a crash). A poll
is what one consumer read in one go. Values must be unique in a history, so that a value is its own identity.

Offsets give the order of versions, so every check is linear (one sort per partition apart); no search as for a general
linearizability check. The names are those of Jepsen's checker for Kafka (`jepsen.tests.kafka`), so that results compare:

    inconsistent-offsets  one (partition, offset) with two values, in sends or polls
    duplicate             one value at two offsets (a promise only of idempotent producers)
    lost-write            an acknowledged send that a read beyond it, or the final read, does not show;
                          also a value that was read once and is gone from the final read
    aborted-read          a value was read whose send failed for certain
    unwritten-read        a value was read that nobody sent
    poll-skip             one consumer went over a record that others know of
    nonmonotonic-poll     one consumer read an offset again, or went back
    nonmonotonic-send     a later send of one process got the lower offset
    gap                   an offset between the first and the last read that nobody read and no known send explains

What it cannot see: whether a value that ended in *info* should have been there, and anything that no client touched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

OPEN, OK, FAIL, INFO = "open", "ok", "fail", "info"

Partition = Hashable
"""Whatever names a partition: usually `(topic, index)`."""
Value = Hashable


class Send:
    """One record on its way. `outcome` moves once, from OPEN to OK, FAIL or INFO; `offset` is set exactly when OK."""

    __slots__ = ("offset", "outcome", "partition", "process", "value")

    def __init__(self, process: Hashable, partition: Partition, value: Value) -> None:
        self.process = process
        self.partition = partition
        self.value = value
        self.outcome = OPEN
        self.offset = -1

    def ok(self, offset: int) -> None:
        self.outcome = OK
        self.offset = offset

    def fail(self) -> None:
        self.outcome = FAIL

    def info(self) -> None:
        self.outcome = INFO


class Poll(NamedTuple):
    """What one consumer read of one partition in one go, in the order of reading."""

    process: Hashable
    partition: Partition
    offsets: Sequence[int]
    values: Sequence[Value]
    final: bool
    """Part of the last read of everything, after all faults were healed."""
    sought: bool
    """The consumer had jumped (seek, rebalance) before it: order to its earlier polls means nothing."""


class Anomaly(NamedTuple):
    name: str
    partition: Partition
    text: str

    def __str__(self) -> str:
        return f"{self.name} in {self.partition}: {self.text}"


@dataclass(slots=True)
class History:
    """Collects operations. Sends are kept in the order of their invocation, polls in the order in which they ended."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    _sought: set[tuple[Hashable, Partition]] = field(default_factory=set)

    def invoke(self, process: Hashable, partition: Partition, value: Value) -> Send:
        """A send begins. End it with `ok(offset)`, `fail()` or `info()`; one that is never ended counts as info."""
        send = Send(process, partition, value)
        self.sends.append(send)
        return send

    def seek(self, process: Hashable, partition: Partition) -> None:
        """The consumer jumps: its next poll of the partition is not compared with its earlier ones."""
        self._sought.add((process, partition))

    def poll(self, process: Hashable, partition: Partition, records: Iterable[tuple[int, Value]], *, final: bool = False) -> None:
        """A consumer read these (offset, value) pairs, in this order."""
        pairs = list(records)
        sought = (process, partition) in self._sought
        self._sought.discard((process, partition))
        self.polls.append(Poll(process, partition, [o for o, _ in pairs], [v for _, v in pairs], final, sought))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check found. `good` says that there is nothing to explain."""

    acknowledged: int
    unknown: int
    failed: int
    read: int
    """Distinct (partition, offset) pairs that were read."""
    anomalies: tuple[Anomaly, ...]

    @property
    def good(self) -> bool:
        return not self.anomalies

    def counts(self) -> Counter[str]:
        return Counter(a.name for a in self.anomalies)

    def __str__(self) -> str:
        head = f"{self.acknowledged} acknowledged, {self.unknown} unknown, {self.failed} failed, {self.read} read"
        if self.good:
            return f"{head}: no anomaly"
        shown = "\n".join(f"  {a}" for a in self.anomalies[:20])
        more = f"\n  ... and {len(self.anomalies) - 20} more" if len(self.anomalies) > 20 else ""
        return f"{head}: {dict(self.counts())}\n{shown}{more}"


def check(history: History, *, idempotent: bool = True) -> Verdict:
    """Judge a history. Without idempotent producers, duplicates and their order are allowed and not reported."""
    sends, polls = _by_partition(history.sends), _by_partition(history.polls)
    anomalies: list[Anomaly] = []
    read = 0
    for partition in dict.fromkeys([*sends, *polls]):
        checker = _PartitionCheck(partition, sends.get(partition, []), polls.get(partition, []))
        anomalies.extend(checker.run(idempotent))
        read += len(checker.read_at)
    outcomes = Counter(s.outcome for s in history.sends)
    return Verdict(outcomes[OK], outcomes[INFO] + outcomes[OPEN], outcomes[FAIL], read, tuple(anomalies))


_Operation = TypeVar("_Operation", Send, Poll)


def _by_partition(operations: Iterable[_Operation]) -> dict[Partition, list[_Operation]]:
    grouped: dict[Partition, list[_Operation]] = {}
    for operation in operations:
        grouped.setdefault(operation.partition, []).append(operation)
    return grouped


class _PartitionCheck:
    """All checks of one partition."""

    def __init__(self, partition: Partition, sends: list[Send], polls: list[Poll]) -> None:
        self.partition = partition
        self.sends = sends
        self.polls = polls
        self.acked_at = {s.offset: s for s in sends if s.outcome == OK}
        self.read_at: dict[int, Value] = {}
        """offset -> the value that was first read there"""
        for poll in polls:
            for offset, value in zip(poll.offsets, poll.values, strict=True):
                self.read_at.setdefault(offset, value)
        self.known = sorted({*self.read_at, *self.acked_at})
        """Every offset at which some client knows a record."""

    def run(self, idempotent: bool) -> Iterator[Anomaly]:
        yield from self._inconsistent_offsets()
        yield from self._lost_writes()
        yield from self._reads_of_nothing()
        yield from self._polls()
        yield from self._gaps()
        if idempotent:
            yield from self._duplicates()
            yield from self._nonmonotonic_sends()

    def _anomaly(self, name: str, text: str) -> Anomaly:
        return Anomaly(name, self.partition, text)

    def _inconsistent_offsets(self) -> Iterator[Anomaly]:
        values: dict[int, Value] = {}
        for send in self.sends:
            if send.outcome == OK and values.setdefault(send.offset, send.value) != send.value:
                yield self._two_values(send.offset, values[send.offset], send.value)
        for poll in self.polls:
            for offset, value in zip(poll.offsets, poll.values, strict=True):
                if values.setdefault(offset, value) != value:
                    yield self._two_values(offset, values[offset], value)

    def _two_values(self, offset: int, one: Value, other: Value) -> Anomaly:
        return self._anomaly("inconsistent-offsets", f"offset {offset} holds {_short(one)} and {_short(other)}")

    def _duplicates(self) -> Iterator[Anomaly]:
        places: dict[Value, int] = {}
        for offset, value in [*((o, s.value) for o, s in self.acked_at.items()), *self.read_at.items()]:
            if places.setdefault(value, offset) != offset:
                yield self._anomaly("duplicate", f"{_short(value)} at offsets {places[value]} and {offset}")

    def _lost_writes(self) -> Iterator[Anomaly]:
        final = [p for p in self.polls if p.final]
        values_read = set(self.read_at.values())
        highest = max(self.read_at, default=-1)
        final_values = {v for p in final for v in p.values}
        for send in self.sends:
            if send.outcome != OK:
                continue
            if final and send.value not in final_values:
                yield self._anomaly(
                    "lost-write", f"{_short(send.value)}, acknowledged at {send.offset}, is not in the final read"
                )
            elif send.offset <= highest and send.value not in values_read:
                text = f"{_short(send.value)}, acknowledged at {send.offset}, was never read, while offset {highest} was"
                yield self._anomaly("lost-write", text)
        if final:
            acked = {s.value for s in self.sends if s.outcome == OK}
            for offset, value in self.read_at.items():
                if value not in final_values and value not in acked:
                    yield self._anomaly("lost-write", f"{_short(value)}, read at {offset}, is gone from the final read")

    def _reads_of_nothing(self) -> Iterator[Anomaly]:
        outcomes: dict[Value, str] = {}
        for send in self.sends:
            # A value may be sent twice (a retry by hand): it counts as failed only when every attempt did.
            if outcomes.get(send.value, FAIL) == FAIL:
                outcomes[send.value] = send.outcome
        for offset, value in self.read_at.items():
            outcome = outcomes.get(value)
            if outcome == FAIL:
                yield self._anomaly("aborted-read", f"{_short(value)} was read at {offset}, and its send had failed")
            elif outcome is None:
                yield self._anomaly("unwritten-read", f"{_short(value)} was read at {offset}, and nobody sent it")

    def _polls(self) -> Iterator[Anomaly]:
        last: dict[Hashable, int] = {}
        for poll in self.polls:
            if poll.sought:
                last.pop(poll.process, None)
            previous = last.get(poll.process)
            for offset in poll.offsets:
                if previous is not None and offset != previous + 1:
                    yield from self._step(poll.process, previous, offset)
                previous = offset
            if previous is not None:
                last[poll.process] = previous

    def _step(self, process: Hashable, previous: int, offset: int) -> Iterator[Anomaly]:
        if offset <= previous:
            yield self._anomaly("nonmonotonic-poll", f"{process} read offset {offset} after {previous}")
            return
        first = bisect_right(self.known, previous)
        skipped = bisect_left(self.known, offset) - first
        if skipped:
            text = f"{process} went from offset {previous} to {offset}, over {skipped} records, the first at {self.known[first]}"
            yield self._anomaly("poll-skip", text)

    def _nonmonotonic_sends(self) -> Iterator[Anomaly]:
        last: dict[Hashable, int] = {}
        for send in self.sends:
            if send.outcome != OK:
                continue
            previous = last.get(send.process, -1)
            if send.offset <= previous:
                text = f"{send.process} got offset {send.offset} for {_short(send.value)}, after {previous} for an earlier send"
                yield self._anomaly("nonmonotonic-send", text)
            last[send.process] = max(previous, send.offset)

    def _gaps(self) -> Iterator[Anomaly]:
        offsets = sorted(self.read_at)
        for before, after in pairwise(offsets):
            missing = after - before - 1
            if missing:
                first = bisect_right(self.known, before)
                explained = bisect_left(self.known, after) - first
                if explained < missing:
                    text = f"{missing - explained} offsets between {before} and {after} that nobody read or wrote"
                    yield self._anomaly("gap", text)


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
