"""The counters of `Consumer.run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strandline.protocol.metrics import Histogram

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds (seconds) of the histogram of handler calls."""


@dataclass(slots=True)
class Counters:
    """Counts since `run` was called. They count records, unless the name or the text says something else."""

    handled: int = 0
    """Records that were handled without an error."""
    failed_attempts: int = 0
    """Calls that raised an error."""
    retried: int = 0
    """Records to be handled again after a failure, in place or through the retry topic."""
    dead_lettered: int = 0
    skipped: int = 0
    """Records that failed for good, and were skipped (`on_failure="skip"`)."""
    of_other_groups: int = 0
    """Records of the retry topic that belong to another group, which were skipped."""
    dropped: int = 0
    """Records that were taken and not handled, because their partition was revoked, lost or sought, or `run` ended."""
    calls_cut_off: int = 0
    """Calls that were abandoned: their partition was lost or sought, the membership was in doubt, or the time to finish was
    up."""
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Seconds of each call that returned or raised an error."""

    def as_dict(self) -> dict[str, Any]:
        """The counters, with the mean of the latencies in milliseconds."""
        count = self.latency.count
        return {
            "handled": self.handled,
            "failed_attempts": self.failed_attempts,
            "retried": self.retried,
            "dead_lettered": self.dead_lettered,
            "skipped": self.skipped,
            "of_other_groups": self.of_other_groups,
            "dropped": self.dropped,
            "calls": count,
            "calls_cut_off": self.calls_cut_off,
            "handler_latency_ms": self.latency.sum / count * 1000 if count else 0.0,
        }
