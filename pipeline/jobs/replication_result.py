"""The result of the replication report: findings, sums per hour, the verdict, and the document for programs. Pure.

Times are microseconds since 1970, by the clock of the node that logged the line; durations are milliseconds. Sums add up the
times of partitions: two partitions that are under-replicated for one minute count as two minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from strandline.pipeline.jobs.replication_cluster import ClusterTimeline, Mark, Span
from strandline.pipeline.jobs.replication_partition import (
    ELECTION,
    FAILOVER,
    INTERVAL,
    LAG,
    OUT_OF_ISR,
    SKEW,
    STATE,
    TRUNCATION,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WITHOUT_LEADER,
    Row,
)
from strandline.pipeline.jobs.replication_states import NO_LEADER
from strandline.pipeline.jobs.results import counted

HOUR_US = 3_600_000_000
SKEW_US_MIN = 1000
"""Smaller differences are not reported as skew: two processes on one machine log the same change this far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The numbers of files and lines that were read."""

    files: int = 0
    lines: int = 0
    events: int = 0
    """Lines that are events."""
    foreign: int = 0
    """Lines that are not events."""
    cut: int = 0
    """Events without their end, which a killed process left behind."""
    nodes: tuple[str, ...] = ()
    """Nodes that logged an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distribution of durations, in ms. `median` and `p95` are durations that occurred (nearest rank)."""

    count: int = 0
    min: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    max: float = 0.0


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread()
    at = [ordered[math.ceil(len(ordered) * share) - 1] for share in (0.5, 0.95)]
    return Spread(count=len(ordered), min=ordered[0], median=at[0], p95=at[1], max=ordered[-1])


@dataclass(slots=True, kw_only=True)
class TopicHour:
    """Sums of one topic in one hour, over its partitions. Times are milliseconds; `hour_us` is the begin of the hour."""

    topic: str
    hour_us: int
    under_replicated_ms: float = 0.0
    under_min_isr_ms: float = 0.0
    without_leader_ms: float = 0.0
    shrinks: int = 0
    expansions: int = 0
    failovers: int = 0
    handovers: int = 0
    failover_ms_max: float = 0.0
    truncations: int = 0
    records_cut: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerHour:
    """Sums of one broker in one hour, over its replicas. Times are milliseconds; `hour_us` is the begin of the hour."""

    broker: int
    hour_us: int
    out_of_isr_ms: float = 0.0
    left_isr: int = 0
    joined_isr: int = 0
    leads_lost: int = 0
    leads_won: int = 0
    truncations: int = 0
    records_cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """All findings in the requested range of time."""

    begin_us: int
    end_us: int
    """The range of time of the report: that of the logs, or the requested part of it."""
    read: Read
    rows: tuple[Row, ...]
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    whole: tuple[int, int] = (0, 0)
    """Times of the first and last event in the logs."""
    asked: tuple[str, ...] = ()
    """The requested topics; empty: all."""
    named: tuple[str, ...] = ()
    """All topics with a partition in the logs."""

    def of(self, kind: str, what: str = "") -> list[Row]:
        """The findings of this kind, in the order of time. An empty `what` means all."""
        return [row for row in self.rows if row.kind == kind and what in ("", row.what)]

    @property
    def elections(self) -> list[Row]:
        return self.of(ELECTION)

    @property
    def failovers(self) -> list[Row]:
        return self.of(ELECTION, FAILOVER)

    @property
    def truncations(self) -> list[Row]:
        return self.of(TRUNCATION)

    @property
    def changes(self) -> list[Row]:
        """States that began with a change of the ISR."""
        return [row for row in self.of(STATE) if row.removed or row.added]

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """(Topic, partition) of each partition with a known state."""
        return sorted({(row.topic, row.partition) for row in self.of(STATE)})

    def total_ms(self, what: str) -> float:
        """Sum of the intervals of this `what` over all partitions, in ms."""
        return sum(row.ms for row in self.of(INTERVAL, what))

    @property
    def failover_ms(self) -> Spread:
        return spread(row.ms for row in self.failovers)

    @property
    def knows_min_isr(self) -> bool:
        """Whether a leader's line has `min.insync.replicas`, which older versions did not log."""
        return any(row.min_isr for row in self.of(STATE))

    @property
    def without_min_isr(self) -> list[str]:
        """Topics with a partition whose `min.insync.replicas` is unknown."""
        return sorted({row.topic for row in self.of(STATE) if not row.min_isr})

    # -- sums

    def topic_hours(self) -> list[TopicHour]:
        table: dict[tuple[str, int], TopicHour] = {}

        def at(topic: str, hour_us: int) -> TopicHour:
            return table.setdefault((topic, hour_us), TopicHour(topic=topic, hour_us=hour_us))

        for row in self.of(INTERVAL):
            if row.what != OUT_OF_ISR:
                for hour_us, ms in by_hour(row):
                    hour = at(row.topic, hour_us)
                    setattr(hour, f"{row.what}_ms", getattr(hour, f"{row.what}_ms") + ms)
        for row in self.changes:
            hour = at(row.topic, hour_of(row.from_us))
            hour.shrinks, hour.expansions = hour.shrinks + bool(row.removed), hour.expansions + bool(row.added)
        for row in self.elections:
            hour = at(row.topic, hour_of(decided_us(row)))
            if row.what == FAILOVER:
                hour.failovers, hour.failover_ms_max = hour.failovers + 1, max(hour.failover_ms_max, row.ms)
            else:
                hour.handovers += 1
        for row in self.truncations:
            hour = at(row.topic, hour_of(row.from_us))
            hour.truncations, hour.records_cut = hour.truncations + 1, hour.records_cut + (row.records or 0)
        return [table[key] for key in sorted(table)]

    def broker_hours(self) -> list[BrokerHour]:
        table: dict[tuple[int, int], BrokerHour] = {}

        def at(broker: int | None, hour_us: int) -> BrokerHour:
            known = -1 if broker is None else broker
            return table.setdefault((known, hour_us), BrokerHour(broker=known, hour_us=hour_us))

        for row in self.of(INTERVAL, OUT_OF_ISR):
            for hour_us, ms in by_hour(row):
                at(row.broker, hour_us).out_of_isr_ms += ms
        for row in self.changes:
            for broker in row.removed:
                at(broker, hour_of(row.from_us)).left_isr += 1
            for broker in row.added:
                at(broker, hour_of(row.from_us)).joined_isr += 1
        for row in self.elections:
            if row.previous_broker != NO_LEADER:
                at(row.previous_broker, hour_of(decided_us(row))).leads_lost += 1
            at(row.broker, hour_of(decided_us(row))).leads_won += 1
        for row in self.truncations:
            hour = at(row.broker, hour_of(row.from_us))
            hour.truncations, hour.records_cut = hour.truncations + 1, hour.records_cut + (row.records or 0)
        return [table[key] for key in sorted(table)]

    # -- words

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if not self.partitions:
            return self._why_nothing()
        below = sum(row.below_hw or 0 for row in self.truncations)
        parts = [
            counted(len(self.failovers), "fail-over") + (f" of up to {duration(self.failover_ms.max)}" if self.failovers else ""),
            f"{duration(self.total_ms(UNDER_REPLICATED))} under-replicated",
            f"{duration(self.total_ms(UNDER_MIN_ISR))} under min ISR" if self.knows_min_isr else "min ISR unknown",
            f"{duration(self.total_ms(WITHOUT_LEADER))} without a leader",
            counted(sum(row.records or 0 for row in self.truncations), "record") + " truncated",
        ]
        return ", ".join(parts) + (f"; {below:,} of them below a high watermark" if below else "")

    def _why_nothing(self) -> str:
        begin, end = self.whole
        absent = [topic for topic in self.asked if topic not in self.named]
        if absent:
            names = ", ".join(self.named[:5]) + (", ..." if len(self.named) > 5 else "")
            return (
                f"these logs have no partition of {', '.join(absent)}; their topics are {names}"
                if names
                else "these logs name no topic"
            )
        if end and (self.end_us < begin or self.begin_us > end):
            return f"these logs have no events of that time: they extend from {stamp(begin)} to {stamp(end)}"
        return "these logs name no partition"

    @property
    def is_bad(self) -> bool:
        """Whether clients may have lost data: a replica truncated records below its high watermark."""
        return any(row.below_hw for row in self.truncations)

    @property
    def notes(self) -> list[str]:
        """Reasons why figures of this report may be incomplete or wrong, one sentence each."""
        read, found = self.read, list[str]()
        odd = read.foreign + read.cut
        if odd and not read.events:
            found.append(
                f"none of the {counted(read.lines, 'line')} is an event in JSON: start the nodes with "
                "STRANDLINE_LOG_FORMAT=json, or redirect their stderr to a file"
            )
        elif odd:
            found.append(
                f"{odd:,} of {counted(read.lines, 'line')} {'is not an event' if odd == 1 else 'are not events'} "
                f"({read.cut:,} incomplete)"
            )
        if self.partitions and not any(name.startswith("controller") for name in read.nodes):
            found.append("the controllers' logs are missing: causes are unknown, and times are those of the brokers' lines")
        absent = sorted(self._brokers() - set(read.nodes))
        if absent and self.partitions:
            found.append(
                f"the logs of {', '.join(absent)} are missing: truncations there, and when it became leader, are unknown"
            )
        if self.partitions and not self.knows_min_isr:
            found.append("no line has min.insync.replicas: the time under min ISR is unknown")
        elif self.without_min_isr:
            names = ", ".join(self.without_min_isr[:5]) + (", ..." if len(self.without_min_isr) > 5 else "")
            found.append(f"no line has the min.insync.replicas of {names}: the time under min ISR is unknown there")
        for node, us in sorted(self._skews().items()):
            if us >= SKEW_US_MIN:
                found.append(
                    f"the clock of {node} is behind by {duration(us / 1000)} or more: some durations are too short by as much"
                )
        return found

    def _brokers(self) -> set[str]:
        return {f"broker-{broker}" for row in self.of(STATE) for broker in row.replicas}

    def _skews(self) -> dict[str, int]:
        skews: dict[str, int] = {}
        for row in self.of(SKEW):
            skews[row.detail] = max(skews.get(row.detail, 0), row.records or 0)
        return skews

    @property
    def document(self) -> dict[str, Any]:
        """The report for programs, ready for JSON. The keys are stable, and times are ISO 8601 in UTC."""
        return {
            "verdict": self.verdict,
            "from": stamp(self.begin_us),
            "until": stamp(self.end_us),
            "read": asdict(self.read),
            "notes": self.notes,
            "under_replicated_ms": self.total_ms(UNDER_REPLICATED),
            "under_min_isr_ms": self.total_ms(UNDER_MIN_ISR) if self.knows_min_isr else None,
            "without_leader_ms": self.total_ms(WITHOUT_LEADER),
            "failover_ms": asdict(self.failover_ms),
            "topic_hours": [_with_readable_times(asdict(hour)) for hour in self.topic_hours()],
            "broker_hours": [_with_readable_times(asdict(hour)) for hour in self.broker_hours()],
            "elections": [_row(row) for row in self.elections],
            "isr_changes": [{**_row(row), "removed": row.removed, "added": row.added} for row in self.changes],
            "intervals": [_row(row) for row in self.of(INTERVAL)],
            "truncations": [_row(row) for row in self.truncations],
            "lags": [_row(row) for row in self.of(LAG)],
        }


def replication_of(
    timeline: ClusterTimeline,
    rows: Iterable[Row],
    read: Read,
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    topics: Sequence[str] = (),
) -> Replication:
    """The result for the range from `since_us` to `until_us` (exclusive) and these topics; an empty `topics` means all. A state
    or interval that extends beyond the range is clipped to it."""
    begin = max(timeline.begin_us, since_us or 0)
    end = timeline.end_us + 1 if until_us is None else min(timeline.end_us + 1, until_us)
    rows = list(rows)
    asked = [row for row in rows if not topics or row.topic in topics]
    kept = (
        [] if end <= begin else [clipped for row in asked if (clipped := _clipped(row, begin, end, timeline.end_us)) is not None]
    )
    kept.sort(key=lambda row: (row.from_us, row.topic, row.partition))
    spans = [span for span in timeline.spans if span.until_us >= begin and span.from_us < end]
    spans = [span._replace(from_us=max(span.from_us, begin), until_us=min(span.until_us, end)) for span in spans]
    marks = [mark for mark in timeline.marks if begin <= mark.at_us < end]
    return Replication(
        begin_us=since_us or begin if end <= begin else begin,
        end_us=until_us or end if end <= begin else min(end, timeline.end_us),
        read=read, rows=tuple(kept), spans=tuple(spans), marks=tuple(marks), whole=(timeline.begin_us, timeline.end_us),
        asked=tuple(topics), named=tuple(sorted({row.topic for row in rows if row.kind == STATE})),
    )  # fmt: skip


def _clipped(row: Row, begin: int, end: int, last: int) -> Row | None:
    """The part of a finding that lies in [begin, end); None if there is none. `last` is the time of the last event in the logs. A
    state that began before `begin` keeps no previous leader and ISR: its change does not belong to the range."""
    if row.kind == SKEW:
        return row
    if row.kind in (STATE, INTERVAL):
        until = last if row.until_us is None else row.until_us
        if row.from_us >= end or until < begin or (until == begin and row.from_us < begin):
            return None
        if row.from_us < begin:
            row = replace(row, from_us=begin, previous_isr=[], previous_broker=None)
        return replace(row, until_us=end, is_open=True) if until >= end else row
    return row if begin <= decided_us(row) < end else None


def decided_us(row: Row) -> int:
    """The time that decides to which range and hour a finding belongs: of an election the decision, not the loss of the
    leader."""
    return row.from_us if row.elected_us is None else row.elected_us


def by_hour(row: Row) -> Iterator[tuple[int, float]]:
    """Yields each hour that an interval touches, with the milliseconds of the interval in this hour."""
    begin, end = row.from_us, row.from_us if row.until_us is None else row.until_us
    while begin < end:
        hour = hour_of(begin)
        upto = min(end, hour + HOUR_US)
        yield hour, (upto - begin) / 1000
        begin = upto


def hour_of(at_us: int) -> int:
    return at_us - at_us % HOUR_US


def stamp(at_us: int | None) -> str | None:
    """A time as ISO 8601 in UTC, with milliseconds."""
    if at_us is None:
        return None
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(ms: float) -> str:
    """A duration for readers: 184 ms, 3.2 s, 4 min 5 s, 2 h 10 min."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    return f"{minutes // 60:,} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60:,} h"


def leader_name(broker: int | None) -> str:
    return "none" if broker in (None, NO_LEADER) else str(broker)


_TIMES = [name.name for name in fields(Row) if name.name.endswith("_us")]


def _row(row: Row) -> dict[str, Any]:
    return {**_with_readable_times({name: value for name, value in asdict(row).items() if value not in ("", None)}), "ms": row.ms}


def _with_readable_times(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces times in microseconds by ISO 8601, and removes the suffix `_us` from their names."""
    return {name.removesuffix("_us"): stamp(value) if name.endswith("_us") else value for name, value in values.items()}
