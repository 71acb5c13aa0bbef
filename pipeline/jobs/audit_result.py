"""The findings of an audit and their meaning. Pure: no Spark, no pictures.

Each record is counted under **kinds**. Bad kinds mean that a record is lost, doubled or changed. The others explain a difference
between two sides that is legal:

    pending     in the log, after the end of the lake
    expired     in the lake, deleted from the log by retention
    unheld      acknowledged, deleted by retention before the lake began
    compacted   in the lake or the ledger, removed from the log of a compacted topic
    uncommitted acknowledged, but not to be read: the transaction was aborted, or a transaction is open
    gaps        offsets without a record in the log, lake and ledger: control records, aborted transactions, compaction
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strandline.pipeline.jobs.results import counted, finding_document, only_bad, result_document

BAD = {
    "lost_in_log": "acknowledged, but missing in the log",
    "lost_in_lake": "missing in the lake",
    "doubled_in_log": "in the log more than once",
    "doubled_in_lake": "in the lake more than once",
    "foreign_in_lake": "in the lake, but not in the log",
    "differs": "different in the lake and in the log",
    "acknowledged_twice": "acknowledged more than once",
    "acknowledged_other": "different in the log from what was acknowledged",
}
NOTES = {
    "pending": "in the log, not yet in the lake",
    "expired": "in the lake only: retention deleted this part of the log",
    "unheld": "acknowledged, but deleted by retention before the lake began",
    "compacted": "not in the log: compaction removes a record when its key has a newer one, and deletions",
    "uncommitted": "acknowledged, but not committed: the transaction was aborted, or an open one precedes the record",
    "gaps": "without a record in the log, the lake and the ledger (control records, aborted transactions, compaction)",
}
COPY_BAD = {
    "lost_in_copy": "missing in the copy",
    "doubled_in_copy": "in the copy more often than in the source",
    "foreign_in_copy": "in the copy, but not in the source",
}
"""The text of each kind of finding. A sentence has it after the number of records."""
SOURCES = ("log", "lake", "ledger")
EXAMPLES = 5
"""The largest number of examples per finding."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The records that one side has of a partition in an interval: their number, first and last offset, first and last timestamp
    in ms since the epoch."""

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
    """An interval of the comparison of a topic with its copy. Records are compared by content: partitions may differ."""

    topic: str
    copy: str
    at_s: int | None
    count: int
    """Number of records in the source."""
    copied: int
    """Number of records in the copy."""
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str
    """A key of `BAD`, `NOTES` or `COPY_BAD`, or a kind with a `text` of its own."""
    where: str
    """The partition, the lake, the ledger, or the two topics that were compared."""
    count: int
    """Number of records, or of offsets for gaps; 0 for a finding that is not about records."""
    is_bad: bool = True
    text: str = ""
    """Overrides the text of the kind."""
    examples: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        what = self.text or {**BAD, **NOTES, **COPY_BAD}[self.kind]
        noun = "offset" if self.kind == "gaps" else "record"
        return f"{self.where}: {counted(self.count, noun)} {what}" if self.count else what

    @property
    def below(self) -> tuple[str, ...]:
        """The lines below the sentence: the examples."""
        return self.examples


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
    findings: tuple[Finding, ...] = ()

    @property
    def bad(self) -> tuple[Finding, ...]:
        return only_bad(self.findings)

    @property
    def is_ok(self) -> bool:
        return not self.bad

    @property
    def verdict(self) -> str:
        records = f"{counted(self.count('log'), 'record')} in the log"
        if self.is_ok:
            return f"nothing is lost and nothing is doubled: {records}"
        counts = total(self.bad).items()
        kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" if count else kind for kind, count in counts)
        return f"problems found: {kinds}; {records}"

    def counts(self, kind: str) -> int:
        """The number of records of this kind, in all topics and copies."""
        rows: list[Interval | CopyInterval] = [*self.intervals, *self.copies]
        return sum(row.kinds.get(kind, 0) for row in rows)

    def count(self, source: str) -> int:
        """The number of records that one of `sources` has."""
        return sum(interval.seen[source].count for interval in self.intervals if source in interval.seen)

    @property
    def document(self) -> dict[str, Any]:
        return result_document(
            self,
            interval_s=self.interval_s,
            partitions=[asdict(partition) for partition in self.partitions],
            intervals=[asdict(interval) for interval in self.intervals],
            copies=[asdict(copy) for copy in self.copies],
            findings=[finding_document(finding) for finding in self.findings],
        )


def total(findings: Iterable[Finding]) -> dict[str, int]:
    """The number of records of each kind."""
    kinds: dict[str, int] = {}
    for finding in findings:
        kinds[finding.kind] = kinds.get(finding.kind, 0) + finding.count
    return kinds
