"""The replicas of one partition against each other: batch by batch, in the order of their offsets. Pure.

    broker 1   [0..9 e0][10..19 e0][20..29 e0]          HW 20
    broker 2   [0..9 e0][10..19 e0][20..24 e1][25..]    HW 30        20..29 of broker 1 was never committed
    broker 3   [0..9 e0]                                HW 10        ends earlier: it was out of the ISR

Followers append the leader's bytes, so equal logs have equal batches: base offset, size, leader epoch, CRC-32C (which covers the
rest). A batch is **vouched for** by a replica if the replica's own checkpointed high watermark is above it. What two replicas
have instead of each other is then judged so:

    the same leader epoch twice                        bad: an epoch has one leader, and it writes one history
    both vouched for                                   bad: both are said to be committed
    one vouched for, the other of a higher epoch       bad: committed records were replaced (an unclean election)
    one vouched for, the other of a lower epoch        legal: a leader that was replaced, and has not truncated yet
    none vouched for                                   legal: not committed, as far as the checkpoints know
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from strandline.pipeline.jobs.verify_checks import Facts, LogCheck
from strandline.pipeline.jobs.verify_log import Batch, Damage
from strandline.pipeline.jobs.verify_result import Finding, Partition, Replica, joined, merged, named

Key = tuple[int, int, int, int, int]
"""Base offset, next offset, size, leader epoch, CRC: what has to be equal."""


@dataclass(slots=True)
class Source:
    """One replica that is to be read."""

    check: LogCheck
    items: Iterable[Batch | Damage]

    @property
    def facts(self) -> Facts:
        return self.check.facts


def verify(sources: Sequence[Source]) -> Partition:
    """Reads each log once, all of them side by side; memory does not grow with their size."""
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
    """Where the walk is in one replica."""

    def __init__(self, source: Source) -> None:
        self.facts = source.facts
        self._items = iter(source.check.watch(source.items))
        self.current: Batch | None = None
        self.last: Batch | None = None
        self.move()

    def move(self) -> None:
        self.last = self.current
        self.current = next((item for item in self._items if isinstance(item, Batch)), None)

    def at(self, offset: int) -> Batch | None:
        """The sound batch that has this offset; the walk has come to it."""
        for batch in (self.current, self.last):
            if batch is not None and batch.base_offset <= offset < batch.next_offset:
                return batch
        return None


def _conflicts(sources: Sequence[Source]) -> Iterator[Finding]:
    cursors = [_Cursor(source) for source in sources]
    while len(running := [cursor for cursor in cursors if cursor.current is not None]) > 0:
        offset = min(cursor.current.base_offset for cursor in running if cursor.current is not None)
        held = [(cursor.facts, batch) for cursor in cursors if (batch := cursor.at(offset)) is not None]
        if len({_key(batch) for _, batch in held}) > 1:
            yield _judge(offset, held)
        for cursor in running:
            if cursor.current is not None and cursor.current.base_offset <= offset:
                cursor.move()


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for neighbours, so that logs that differ in every batch do not fill the memory."""
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


def _judge(offset: int, held: Sequence[tuple[Facts, Batch]]) -> Finding:
    end = min(batch.next_offset for _, batch in held)
    versions: dict[Key, list[str]] = {}
    for facts, batch in held:
        versions.setdefault(_key(batch), []).append(facts.broker)
    vouched = {_key(batch) for facts, batch in held if offset < (facts.high_watermark or 0)}
    epochs = [key[3] for key in versions]
    if len(vouched) > 1 or len(set(epochs)) < len(epochs):
        kind = "replicas_differ"
    elif vouched and max(epochs) > next(iter(vouched))[3]:
        kind = "committed_replaced"
    else:
        kind = "not_committed"
    return Finding(
        kind=kind,
        topic=held[0][0].topic,
        partition=held[0][0].partition,
        brokers=tuple(facts.broker for facts, _ in held),
        first=offset,
        end=end,
        detail=_told(versions),
    )


def _told(versions: dict[Key, list[str]]) -> str:
    """Who agrees with whom; without what changes from batch to batch, so that neighbours make one finding."""
    groups = sorted((brokers, key[3]) for key, brokers in versions.items())
    return "; ".join(f"{named(brokers)}: leader epoch {epoch}" for brokers, epoch in groups)


# -- ranges -----------------------------------------------------------------------------------------------------------


def _with_others(hole: Finding, sources: Sequence[Source]) -> Finding:
    """Says which other replicas have sound batches where this one has a hole."""
    first = hole.first or 0
    end = hole.end if hole.end is not None else first + 1
    others = [
        source.facts.broker for source in sources
        if source.facts.broker not in hole.brokers and not _without(first, end, source.check.sound)
    ]  # fmt: skip
    return replace(hole, others=tuple(others))


def _without(first: int, end: int, ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """What of `first` to `end` is in none of the ranges (sorted, disjoint)."""
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
    """Committed offsets that no replica has, from where the first of the logs begins."""
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
