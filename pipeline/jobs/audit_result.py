"""The findings of an audit and their meaning. Pure: no Spark, no pictures.

Each record is counted under **kinds**. Bad kinds mean that a record is lost, doubled or changed. The others explain a difference
between two sides that is legal:

    pending     in the log, and after the end of the lake
    expired     in the lake, and deleted from the log by retention
    unheld      acknowledged, and deleted by retention before the lake began
    gaps        offsets without a record in the log that neither lake nor ledger has: control records, compaction
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

BAD = {
    "lost_in_log": "acknowledged, and not in the log",
    "lost_in_lake": "not in the lake, though it has what comes behind",
    "doubled_in_log": "in the log more than once",
    "doubled_in_lake": "in the lake more than once",
    "foreign_in_lake": "in the lake, and not in the log",
    "differs": "other in the lake than in the log",
    "acknowledged_twice": "acknowledged more than once",
    "acknowledged_other": "other in the log than what was acknowledged",
}
NOTES = {
    "pending": "in the log, and not yet in the lake",
    "expired": "in the lake alone: retention took it from the log",
    "unheld": "acknowledged, and taken by retention before the lake began",
    "gaps": "offsets without a record in the log, which nobody claims to have seen (control records, compaction)",
}
COPY_BAD = {
    "lost_in_copy": "not in the copy",
    "doubled_in_copy": "in the copy more often than in the source",
    "foreign_in_copy": "in the copy, and not in the source",
}
SOURCES = ("log", "lake", "ledger")
EXAMPLES = 5
"""The largest number of examples per finding."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The records that one side has of a partition in an interval."""

    count: int
    first: int | None = None
    last: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One row of an audit: an interval (by default an hour) of one partition."""

    topic: str
    partition: int
    at_s: int | None
    """Start of the interval, in seconds since the epoch; None: the time of these records is not known."""
    seen: Mapping[str, Seen]
    kinds: Mapping[str, int]
    """The number of records of each kind that occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyInterval:
    """One row of the comparison with a copy. Records are compared by content: partitions may differ."""

    topic: str
    copy: str
    at_s: int | None
    count: int
    """Number of records in the source."""
    copied: int
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str
    where: str
    count: int
    is_bad: bool = True
    text: str = ""
    examples: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        what = self.text or {**BAD, **NOTES, **COPY_BAD}[self.kind]
        return f"{self.where}: {self.count:,} {'record' if self.count == 1 else 'records'} {what}" if self.count else what


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The offsets of one partition that were compared."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    lake_end: int | None
    """The offset after the lake's last record; None: there is no lake, or it has nothing of this partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    made_at_s: float
    interval_s: int
    sources: tuple[str, ...]
    """The members of `SOURCES` that were compared."""
    partitions: tuple[Partition, ...]
    intervals: tuple[Interval, ...]
    copies: tuple[CopyInterval, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    @property
    def bad(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_bad)

    @property
    def is_ok(self) -> bool:
        return not self.bad

    @property
    def verdict(self) -> str:
        records = sum(interval.seen["log"].count for interval in self.intervals)
        if self.is_ok:
            return f"nothing is lost and nothing is doubled: {records:,} records in the log"
        kinds = total(finding for finding in self.bad)
        told = ", ".join(f"{count:,} {kind.replace('_', ' ')}" if count else kind for kind, count in kinds.items())
        return f"not well: {told}; {records:,} records in the log"

    def counts(self, kind: str) -> int:
        """The number of records of this kind, in all topics and copies."""
        rows: list[Interval | CopyInterval] = [*self.intervals, *self.copies]
        return sum(row.kinds.get(kind, 0) for row in rows)

    def count(self, source: str) -> int:
        return sum(interval.seen[source].count for interval in self.intervals if source in interval.seen)

    @property
    def document(self) -> dict[str, Any]:
        """The findings as plain values for programs; the keys are stable."""
        return {
            "ok": self.is_ok,
            "verdict": self.verdict,
            "made_at": iso(int(self.made_at_s)),
            "interval_s": self.interval_s,
            "partitions": [asdict(partition) for partition in self.partitions],
            "intervals": [asdict(interval) for interval in self.intervals],
            "copies": [asdict(copy) for copy in self.copies],
            "findings": [{**asdict(finding), "sentence": finding.sentence} for finding in self.findings],
        }


def total(findings: Iterable[Finding]) -> dict[str, int]:
    """The number of records of each kind."""
    kinds: dict[str, int] = {}
    for finding in findings:
        kinds[finding.kind] = kinds.get(finding.kind, 0) + finding.count
    return kinds


def iso(at_s: int | None) -> str:
    """A time in UTC, readable for people."""
    return "unknown" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
