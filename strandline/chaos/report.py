"""The report of a scenario's run: its events, figures and verdict. The JSON keys are stable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strandline.chaos.gaps import spread
from strandline.testing.history import Verdict

STEP, SEEN, CLAIM, NOTE, PROBLEM = "step", "seen", "claim", "note", "problem"
PROBLEMS_MAX = 50


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the report: a step, a change in the cluster, the result of a claim, a note or a problem."""

    at_s: float
    """Seconds since the load began."""
    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Fault:
    """A fault or its healing, and the gap in acknowledgements until the next one."""

    step: int
    do: str
    nodes: list[str]
    at_s: float
    partitions_led: list[int]
    """The partitions that these nodes led when the fault began."""
    gap_ms: float = 0.0
    """The longest gap of any partition."""
    gap_at_s: float = 0.0
    """Start of that gap, in seconds since the load began."""
    gap_ms_by_partition: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    scenario: str
    title: str
    cluster: str
    parameters: dict[str, float]
    events: list[Event] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    """One entry per claim or check, with the keys step, claim, ok and seen."""
    problems: list[str] = field(default_factory=list)
    records_sent: int = 0
    records_acknowledged: int = 0
    records_failed: int = 0
    """Records of the load whose send ended with an error."""
    records_read: int = 0
    records_lost: int = 0
    records_doubled: int = 0
    records_reordered: int = 0
    records_lost_as_reported: int = 0
    """Acknowledged records that an unclean election lost, all in the range that its report names."""
    other_anomalies: int = 0
    replicas_compared: int = 0
    replicas_different: int = 0
    interval_ms: int = 0
    longest_gap_ms: float = 0.0
    """The longest gap of any partition since the first fault."""
    longest_gap_partition: int = -1
    whole_topic_gap_ms: float = 0.0
    """The longest time since the first fault in which no partition received an acknowledgement."""
    steady_gap_ms: float = 0.0
    """The longest gap before the first fault: the noise of this machine."""
    client_stall_ms: float = 0.0
    """The longest delay of the load's own process."""
    gap_goal_ms: float | None = None
    duration_s: float = 0.0

    @property
    def good(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        return "ok" if self.good else "bad"

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    def take_history(self, verdict: Verdict) -> None:
        counts = verdict.counts()
        self.records_acknowledged, self.records_read = verdict.acknowledged, verdict.read
        self.records_lost = counts.pop("lost-write", 0)
        self.records_doubled = counts.pop("duplicate", 0)
        self.records_reordered = counts.pop("nonmonotonic-send", 0)
        self.records_lost_as_reported = verdict.unpromised_lost
        self.other_anomalies = sum(counts.values())
        for anomaly in verdict.anomalies[:10]:
            self.problem(str(anomaly))
        if not verdict.judged:
            self.problem("no acknowledged record was judged, so the run proves nothing")

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def summary(reports: Sequence[Report]) -> dict[str, Any]:
    """Verdict and gaps of several runs of one scenario, as JSON."""
    gaps = spread([r.longest_gap_ms for r in reports])
    return {
        "verdict": "ok" if all(r.good for r in reports) else "bad",
        "runs": len(reports),
        "longest_gap_ms": {"min": gaps.min, "median": gaps.median, "max": gaps.max},
    }
