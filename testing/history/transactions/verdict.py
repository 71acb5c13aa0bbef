"""The result of a check of transactions: number of anomalies by name, and examples of each; as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.testing.history.verdict import SHOWN_OF_EACH, Anomaly, label

TRANSACTION_MEANINGS: Mapping[str, str] = {
    "inconsistent-offsets": "one offset holds two values",
    "duplicate": "one value is at two offsets",
    "unwritten-read": "a consumer read a value that no transaction sent to this partition",
    "aborted-read": "a consumer read a value of a transaction that was aborted, or never asked to commit (G1a)",
    "intermediate-read": "a consumer read a part of a transaction's records in a partition, or read it before its commit (G1b)",
    "fractured-read": "of one transaction, a consumer saw the records in one partition and not those in another",
    "lost-write": "a record of a committed transaction is not in the final log",
    "skipped-read": "a consumer passed a record of a committed transaction without seeing it",
    "nonmonotonic-read": "a consumer returned to a lower offset",
    "producer-order": "the records of a transaction are not in the order in which they were sent",
    "transaction-order": "a record of an earlier transaction of a transactional id follows one of a later transaction",
    "realtime-order": "a transaction that began after another had ended has a record before one of the other",
    "zombie-commit": "a transaction is committed although its transactional id was taken over before its commit was sent",
    "write-cycle": "transactions have written before each other in different partitions (G0)",
    "information-cycle": "transactions have read from each other in a circle (G1c)",
    "lost-input": "an input record before the committed position has no output",
    "duplicate-output": "an input record has more than one output",
    "unexplained-output": "an output belongs to no input",
    "uncommitted-input": "an input record has an output, and the committed position is before it",
    "output-order": "the outputs of one input partition in one output partition are not in the order of the inputs",
}
"""Name of every kind of anomaly -> its meaning."""


@dataclass(frozen=True, slots=True)
class TransactionVerdict:
    """The result of `check_transactions` or `check_exactly_once`. `good`: no anomaly was found."""

    anomalies: tuple[Anomaly, ...]
    total: Counter[str]
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    """Number of transactions by outcome, as their processes know it."""
    read: int = 0
    """Number of records that consumers read, each as often as it was read."""
    write_cycles_allowed: int = 0
    """Number of groups of transactions with write cycles that are not anomalies (`check_transactions(isolated_writes=...)`)."""

    @property
    def good(self) -> bool:
        return not self.total

    def counts(self) -> Counter[str]:
        return Counter(self.total)

    def __str__(self) -> str:
        names = [name for name in TRANSACTION_MEANINGS if self.total[name]]
        head = f"{self.committed} committed, {self.aborted} aborted, {self.unknown} unknown, {self.read} records read"
        lines = [f"{head}: " + (", ".join(f"{self.total[name]} {name}" for name in names) or "no anomaly")]
        for name in names:
            kept = [anomaly for anomaly in self.anomalies if anomaly.name == name]
            lines += [f"  {name}: {TRANSACTION_MEANINGS[name]}"]
            lines += [f"    {label(anomaly.partition)}: {anomaly.text}" for anomaly in kept[:SHOWN_OF_EACH]]
            if self.total[name] > SHOWN_OF_EACH:
                lines.append(f"    ... and {self.total[name] - SHOWN_OF_EACH} more")
        if self.write_cycles_allowed:
            lines.append(f"  permitted: {self.write_cycles_allowed} write cycles of transactions that ran at the same time")
        return "\n".join(lines)

    def as_dict(self, examples: int = 20) -> dict[str, Any]:
        """The verdict for JSON, with at most `examples` anomalies in full. The keys are stable."""
        return {
            "verdict": "ok" if self.good else "bad",
            "committed": self.committed,
            "aborted": self.aborted,
            "unknown": self.unknown,
            "read": self.read,
            "anomalies": {name: self.total[name] for name in TRANSACTION_MEANINGS if self.total[name]},
            "examples": [{**a._asdict(), "partition": label(a.partition)} for a in self.anomalies[:examples]],
            "write_cycles_allowed": self.write_cycles_allowed,
        }
