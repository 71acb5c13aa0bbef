"""Compares the replicas of one partition with each other: batch by batch, in the order of their offsets. Pure.

    broker 1   [0..9 e0][10..19 e0][20..29 e0]          HW 20        20..29 of leader epoch 0 were never committed
    broker 2   [0..9 e0][10..19 e0][20..24 e1][25..]    HW 30
    broker 3   [0..9 e0]                                HW 10        ends earlier: it was not in the ISR

Followers append the leader's bytes, so equal logs have batches with equal base offsets, sizes, leader epochs and CRC-32Cs (which
cover the other bytes). A batch is **committed** in a replica if the replica's own checkpointed high watermark is above it. If two
replicas have different batches at an offset, the finding depends on this:

    both have the same leader epoch                    bad: an epoch has one leader, which writes one history
    both are committed                                 bad: only one can be
    one is committed, the other has a higher epoch     bad: committed records were replaced (an unclean election)
    one is committed, the other has a lower epoch      legal: the replica was the leader before, and has not truncated yet
    none is committed                                  legal, as far as the checkpoints know

In a compacted topic each replica removes superseded records by itself. Batches of one leader epoch that differ because of this
are compared record by record: a record that two of them have must be equal. Whether a record was rightly removed is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from strandline.pipeline.jobs.verify_checks import Facts, LogCheck
from strandline.pipeline.jobs.verify_log import Batch, Damage
from strandline.pipeline.jobs.verify_result import Finding, Partition, Replica, joined, merged, named
from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import DELETE_HORIZON_MASK, read_header
from strandline.protocol.records.reader import Record, iter_records

Key = tuple[int, int, int, int, int]
"""Base offset, next offset, size, leader epoch and CRC of a batch: equal in all replicas."""


@dataclass(slots=True)
class Source:
    """The log of one replica, to be read once."""

    check: LogCheck
    items: Iterable[Batch | Damage]
    read: Callable[[Batch], bytes]
    """Returns the bytes of a batch."""

    @property
    def facts(self) -> Facts:
        return self.check.facts


def verify(sources: Sequence[Source]) -> Partition:
    """Reads the logs of all replicas of a partition once, side by side. Memory does not grow with their size."""
    findings = list(_joined(_conflicts(sources)))
    for source in sources:
        source.check.finish()
    committed = max((source.facts.high_watermark or 0 for source in sources), default=0)
    findings += [finding for source in sources for finding in source.check.findings]
    findings += [_with_others(hole, sources) for source in sources for hole in source.check.holes]
    findings += _behind(sources, committed)
    findings += _lost(sources, committed)
    findings += _later_starts(sources)
    facts = sources[0].facts
    return Partition(
        topic=facts.topic,
        partition=facts.partition,
        topic_id=facts.topic_id,
        committed=committed,
        replicas=tuple(_replica(source) for source in sources),
        findings=tuple(sorted(merged(findings), key=lambda one: (not one.is_bad, one.first or 0, one.kind))),
    )


# -- side by side -----------------------------------------------------------------------------------------------------


class _Cursor:
    """The position in one replica's log while all logs are read side by side."""

    def __init__(self, source: Source) -> None:
        self.facts = source.facts
        self._read = source.read
        self._contents: tuple[Batch, _Contents] | None = None
        self._items = iter(source.check.watch(source.items))
        self.current: Batch | None = None
        self.last: Batch | None = None
        self.move()

    def move(self) -> None:
        self.last = self.current
        self.current = next((item for item in self._items if isinstance(item, Batch)), None)

    def at(self, offset: int) -> Batch | None:
        """The sound batch that contains this offset, if it is the current one or the one before."""
        for batch in (self.current, self.last):
            if batch is not None and batch.base_offset <= offset < batch.next_offset:
                return batch
        return None

    def contents(self, batch: Batch) -> _Contents:
        """The records of a batch; those of the last batch are cached. BrokerError if they cannot be decoded."""
        if self._contents is None or self._contents[0] is not batch:
            data = self._read(batch)
            is_marked = bool(read_header(data).attributes & DELETE_HORIZON_MASK)
            has_all = batch.record_count == batch.next_offset - batch.base_offset
            records = {record.offset: record for record in iter_records(data)}
            self._contents = batch, _Contents(is_marked or not has_all, records)
        return self._contents[1]


class _Contents(NamedTuple):
    is_compacted: bool
    """Whether a cleaner has changed the batch: it has fewer records than offsets, or a delete horizon."""
    records: dict[int, Record]
    """Offset -> record."""


def _conflicts(sources: Sequence[Source]) -> Iterator[Finding]:
    cursors = [_Cursor(source) for source in sources]
    while len(running := [cursor for cursor in cursors if cursor.current is not None]) > 0:
        offset = min(cursor.current.base_offset for cursor in running if cursor.current is not None)
        held = [(cursor, batch) for cursor in cursors if (batch := cursor.at(offset)) is not None]
        if len({_key(batch) for _, batch in held}) > 1:
            yield _judge(offset, held)
        for cursor in running:
            if cursor.current is not None and cursor.current.base_offset <= offset:
                cursor.move()


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Joins findings of neighbouring offsets, so that logs that differ in every batch do not fill the memory."""
    held: Finding | None = None
    for finding in findings:
        both = joined(held, finding)
        if both is None and held is not None:
            yield held
        held = both or finding
    if held is not None:
        yield held


def _key(batch: Batch) -> Key:
    return batch.base_offset, batch.next_offset, batch.size, batch.leader_epoch, batch.crc


def _judge(offset: int, held: Sequence[tuple[_Cursor, Batch]]) -> Finding:
    end = min(batch.next_offset for _, batch in held)
    versions: dict[Key, list[str]] = {}
    for cursor, batch in held:
        versions.setdefault(_key(batch), []).append(cursor.facts.broker)
    committed = {_key(batch) for cursor, batch in held if offset < (cursor.facts.high_watermark or 0)}
    epochs = [key[3] for key in versions]
    if len(set(epochs)) == 1 and _differ_by_compaction(held):
        kind = "compacted_differently"
    elif len(committed) > 1 or len(set(epochs)) < len(epochs):
        kind = "replicas_differ"
    elif committed and max(epochs) > next(iter(committed))[3]:
        kind = "committed_replaced"
    else:
        kind = "not_committed"
    return Finding(
        kind=kind,
        topic=held[0][0].facts.topic,
        partition=held[0][0].facts.partition,
        brokers=tuple(cursor.facts.broker for cursor, _ in held),
        first=offset,
        end=end,
        detail=_versions(versions),
    )


def _differ_by_compaction(held: Sequence[tuple[_Cursor, Batch]]) -> bool:
    """Whether a cleaner has changed at least one of these batches, and each record that two of them have is equal."""
    try:
        contents = [cursor.contents(batch) for cursor, batch in held]
    except BrokerError:
        return False
    pairs = combinations((each.records for each in contents), 2)
    return any(each.is_compacted for each in contents) and all(
        one[offset] == other[offset] for one, other in pairs for offset in one.keys() & other.keys()
    )


def _versions(versions: dict[Key, list[str]]) -> str:
    """The groups of brokers that have equal batches. It contains no offsets or checksums, so that neighbouring findings are equal
    and can be joined."""
    groups = sorted((brokers, key[3]) for key, brokers in versions.items())
    return "; ".join(f"{named(brokers)}: leader epoch {epoch}" for brokers, epoch in groups)


# -- ranges -----------------------------------------------------------------------------------------------------------


def _with_others(hole: Finding, sources: Sequence[Source]) -> Finding:
    """The finding with the brokers of other replicas that have sound batches at all of its offsets."""
    first = hole.first or 0
    end = hole.end if hole.end is not None else first + 1
    others = [
        source.facts.broker for source in sources
        if source.facts.broker not in hole.brokers and not _without(first, end, source.check.sound)
    ]  # fmt: skip
    return replace(hole, others=tuple(others))


def _without(first: int, end: int, ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """The parts of `first` to `end` (exclusive) that none of the sorted ranges covers."""
    missing, at = [], first
    for low, high in ranges:
        if high <= at or at >= end:
            continue
        if low > at:
            missing.append((at, min(low, end)))
        at = max(at, high)
    return [*missing, (at, end)] if at < end else missing


def _behind(sources: Sequence[Source], committed: int) -> Iterator[Finding]:
    for source in sources:
        known, end = source.facts.high_watermark or 0, source.check.end
        first = max(end, known)
        if first < committed:
            facts = source.facts
            yield Finding(
                kind="behind", topic=facts.topic, partition=facts.partition, brokers=(facts.broker,), first=first, end=committed
            )


def _lost(sources: Sequence[Source], committed: int) -> Iterator[Finding]:
    """A finding for each range of committed offsets that no replica has, from the earliest start of the logs on."""
    start = min(source.check.start or 0 for source in sources)
    ranges = sorted(tuple(run) for source in sources for run in source.check.sound)
    facts = sources[0].facts
    for first, end in _without(start, committed, ranges):
        yield Finding(kind="lost", topic=facts.topic, partition=facts.partition, first=first, end=end)


def _later_starts(sources: Sequence[Source]) -> Iterator[Finding]:
    first = min(source.check.start or 0 for source in sources)
    for source in sources:
        start, facts = source.check.start or 0, source.facts
        if first < start < source.check.end and start > (facts.log_start or 0):
            yield Finding(
                kind="later_start", topic=facts.topic, partition=facts.partition, brokers=(facts.broker,), first=first, end=start
            )


def _replica(source: Source) -> Replica:
    check, facts = source.check, source.facts
    return Replica(
        broker=facts.broker,
        path=facts.path,
        start=check.start or 0,
        end=check.end,
        high_watermark=facts.high_watermark,
        recovery_point=facts.recovery_point,
        log_start=facts.log_start,
        batches=check.batches,
        records=check.records,
        size=check.size,
        epochs=tuple((epoch, first, end) for epoch, first, end in check.epochs),
    )
