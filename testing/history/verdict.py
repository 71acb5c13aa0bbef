"""The result of a check: number of anomalies by name, examples of each, and measurements; as text and as JSON."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MEANINGS = {
    "inconsistent-offsets": "one offset holds two values",
    "duplicate": "one value is at more offsets than it was sent",
    "lost-write": "an acknowledged record, or one that a consumer had read, is missing",
    "aborted-read": "a consumer read a value whose send certainly failed (G1a)",
    "unwritten-read": "a consumer read a value that no producer sent to this partition",
    "int-poll-skip": "within one poll, a consumer skipped records that others read",
    "int-nonmonotonic-poll": "within one poll, a consumer returned to a lower offset",
    "poll-skip": "between two polls, a consumer skipped records that others read",
    "nonmonotonic-poll": "between two polls, a consumer returned to a lower offset",
    "gap": "offsets are missing, and no record or declaration explains them",
    "deleted-key": "a key has a value again although its newest record deletes it",
    "nonmonotonic-send": "the later of two sends of one producer was acknowledged at the lower offset",
    "producer-order": "records of one idempotent producer are not in the order in which they were sent",
    "realtime-order": "a send that began after another was acknowledged got the lower offset",
    "nonmonotonic-latest": "a broker returned a lower log end than was known before the request",
    "stale-leader-ack": "a leader acknowledged a send that began after a client had learned of its successor",
    "follower-read-subset": "a follower served a record that the leader's log does not have",
    "unseen": "no consumer read these acknowledged records, although all faults had ended",
    "realtime-lag": "a poll missed records that had been acknowledged long before it began",
    "replica-mismatch": "the logs of two replicas differ",
}
"""Name of every kind of anomaly -> its meaning, in the order of the checks, not of severity."""

KEPT_OF_EACH = 1000
"""Maximum number of anomalies of one name that are kept in full; all are counted."""
SHOWN_OF_EACH = 5
SERIES_POINTS = 100


class Anomaly(NamedTuple):
    name: str
    partition: Hashable
    text: str
    offset: int | None = None
    at: float | None = None
    """Approximate time, in seconds on the history's clock."""

    def __str__(self) -> str:
        return f"{self.name} in {label(self.partition)}: {self._told()}"

    def _told(self) -> str:
        return self.text if self.at is None else f"{self.text} (at {self.at:.3f} s)"


class Findings:
    """Collects anomalies for a verdict."""

    def __init__(self, meanings: Mapping[str, str] = MEANINGS) -> None:
        self._meanings = meanings
        self.counts: Counter[str] = Counter()
        self.kept: list[Anomaly] = []

    def add(self, name: str, partition: Hashable, text: str, offset: int | None = None, at: float | None = None) -> None:
        assert name in self._meanings
        self.counts[name] += 1
        if self.counts[name] <= KEPT_OF_EACH:
            self.kept.append(Anomaly(name, partition, text, offset, at))


class Lag(NamedTuple):
    """The poll that was furthest behind: it did not reach a record, although the record had been acknowledged, or read by another
    consumer, `seconds` before the poll began."""

    seconds: float
    process: Hashable
    partition: Hashable
    offset: int
    """Offset of the first record that the poll did not reach."""
    at: float
    """Start of the poll, in seconds on the history's clock."""

    def __str__(self) -> str:
        where = f"offset {self.offset} of {label(self.partition)}"
        return (
            f"{self.process} did not reach {where}, which had been in the log for {self.seconds:.3f} s (poll at {self.at:.3f} s)"
        )


@dataclass(slots=True)
class Unseen:
    """Number of acknowledged records that no consumer had read yet, over time: the maximum `most` and when it was, and a series.
    Times are seconds on the history's clock."""

    most: int = 0
    most_at: float = 0.0
    last: int = 0
    """The number at the end of the history."""
    last_zero_at: float | None = None
    """Time since which the number is 0 until the end; None: it is not 0 at the end, or no record was read."""
    series: list[tuple[float, int]] = field(default_factory=list)
    """(time, number) pairs for a chart, thinned out."""


def unseen_over_time(acked_at: array[float], seen_at: array[float]) -> Unseen:
    """Count unread records over time. `acked_at`: times of acknowledgement; `seen_at`: times at which acknowledged records were
    first read."""
    acked, seen = sorted(acked_at), sorted(seen_at)
    found, number, reads = Unseen(), 0, len(seen)
    step, i = max(1, len(acked) // SERIES_POINTS), 0
    for n, at in enumerate(acked):
        while i < reads and seen[i] <= at:
            i += 1
        number = max(0, n + 1 - i)
        if number > found.most:
            found.most, found.most_at = number, at
        if n % step == 0:
            found.series.append((at, number))
    found.last = len(acked) - reads
    if found.last == 0:
        found.last_zero_at = seen[-1] if seen else None
    if acked:
        found.series.append((max(acked[-1], seen[-1]) if seen else acked[-1], found.last))
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `check`. `good`: no anomaly was found. `str(verdict)` is a report, `as_dict()` the same for JSON.

    `acknowledged`, `unknown` and `failed` count the sends by outcome, `polls` the polls.
    """

    acknowledged: int
    unknown: int
    failed: int
    read: int
    """Number of distinct (partition, offset) pairs that were read."""
    anomalies: tuple[Anomaly, ...]
    """The anomalies, at most KEPT_OF_EACH of each name; `counts` has the full numbers."""
    total: Counter[str]
    judged: int = 0
    """Number of acknowledged sends whose acknowledgement was checked as a promise (`check(acks=...)`)."""
    polls: int = 0
    duplicates_allowed: int = 0
    """Number of values at several offsets whose producers were not idempotent."""
    unpromised_lost: int = 0
    """Number of acknowledged records that are lost although permitted: by their acks (`check(acks=...)`) or a declared loss."""
    lag: Lag | None = None
    """The worst lag of all polls with a known start, without final ones. None: there is no such poll."""
    unseen: Unseen = field(default_factory=Unseen)

    @property
    def good(self) -> bool:
        return not self.total

    def counts(self) -> Counter[str]:
        return Counter(self.total)

    def __str__(self) -> str:
        head = f"{self.acknowledged} acknowledged, {self.unknown} unknown, {self.failed} failed, {self.read} read"
        lines = [f"{head}: " + (", ".join(f"{n} {name}" for name, n in self._ordered()) or "no anomaly")]
        for name, number in self._ordered():
            lines += [f"  {name}: {MEANINGS[name]}", *self._some(name, number)]
        return "\n".join([*lines, *(f"  {line}" for line in self._measured())])

    def _ordered(self) -> list[tuple[str, int]]:
        return [(name, self.total[name]) for name in MEANINGS if self.total[name]]

    def _some(self, name: str, number: int) -> list[str]:
        kept = [a for a in self.anomalies if a.name == name]
        shown = [f"    {label(a.partition)}: {a._told()}" for a in kept[:SHOWN_OF_EACH]]
        return [*shown, f"    ... and {number - len(shown)} more"] if number > len(shown) else shown

    def _measured(self) -> list[str]:
        lines = []
        if self.duplicates_allowed:
            lines.append(f"permitted: {self.duplicates_allowed} duplicates of producers that are not idempotent")
        if self.unpromised_lost:
            lines.append(
                f"permitted: {self.unpromised_lost} acknowledged records are missing (by their acks, or declared as lost)"
            )
        if self.lag is not None and self.lag.seconds > 0:
            lines.append(f"worst lag: {self.lag}")
        if self.acknowledged and not self.judged:
            lines.append("no acknowledgement was checked: its acks promise nothing, or its record was declared as lost")
        if self.unseen.last:
            lines.append(f"unseen: {self.unseen.last} acknowledged records at the end, at most {self.unseen.most}")
        return lines

    def as_dict(self, examples: int = 20) -> dict[str, Any]:
        """The verdict for JSON, with at most `examples` anomalies in full. The keys are stable."""
        lag, unseen = self.lag, self.unseen
        return {
            "verdict": "ok" if self.good else "bad",
            "acknowledged": self.acknowledged,
            "unknown": self.unknown,
            "failed": self.failed,
            "read": self.read,
            "polls": self.polls,
            "anomalies": {name: self.total[name] for name in MEANINGS if self.total[name]},
            "examples": [{**a._asdict(), "partition": label(a.partition)} for a in self._examples(examples)],
            "duplicates_allowed": self.duplicates_allowed,
            "unpromised_lost": self.unpromised_lost,
            "unseen": {
                "most": unseen.most,
                "most_at": unseen.most_at,
                "last": unseen.last,
                "last_zero_at": unseen.last_zero_at,
                "series": [list(point) for point in unseen.series],
            },
            "realtime_lag": lag
            and {
                "seconds": lag.seconds,
                "process": str(lag.process),
                "partition": label(lag.partition),
                "offset": lag.offset,
                "at": lag.at,
            },
        }

    def _examples(self, number: int) -> list[Anomaly]:
        """At most `number` anomalies, spread over the names."""
        seen: Counter[str] = Counter()
        ranked = []
        for anomaly in self.anomalies:
            ranked.append((seen[anomaly.name], anomaly))
            seen[anomaly.name] += 1
        ranked.sort(key=lambda pair: pair[0])
        return [anomaly for _, anomaly in ranked[:number]]


def label(partition: Hashable) -> str:
    """Text for a partition: `orders-0`, as in logs and folders, with a topic id in hexadecimal."""
    match partition:
        case None:
            return "an unknown partition"
        case (topic, int(index)):
            return f"{topic.hex() if isinstance(topic, bytes) else topic}-{index}"
        case bytes():
            return partition.hex()
        case int():
            return f"partition {partition}"
    return str(partition)


def short(value: Hashable) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
