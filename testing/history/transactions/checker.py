"""`check_transactions`: runs all checks on a history of transactions."""

from __future__ import annotations

from collections import Counter

from strandline.testing.history.transactions.atomicity import check_atomicity
from strandline.testing.history.transactions.dependencies import check_cycles
from strandline.testing.history.transactions.evidence import Evidence
from strandline.testing.history.transactions.operations import ABORTED, COMMITTED, TransactionHistory
from strandline.testing.history.transactions.order import check_order, check_readers
from strandline.testing.history.transactions.verdict import TRANSACTION_MEANINGS, TransactionVerdict
from strandline.testing.history.verdict import Findings, short


def check_transactions(history: TransactionHistory, *, isolated_writes: bool = False) -> TransactionVerdict:
    """Check a history for anomalies (listed in the package's docstring) and return the verdict.

    `isolated_writes`: transactions that write to the same partitions never ran at the same time, so write cycles are anomalies.
    """
    evidence, findings = Evidence(history), Findings(TRANSACTION_MEANINGS)
    _check_offsets(evidence, findings)
    check_atomicity(evidence, findings)
    check_readers(evidence, findings)
    check_order(evidence, findings)
    allowed = check_cycles(evidence, findings, isolated_writes=isolated_writes)
    outcomes = Counter(transaction.outcome for transaction in history.transactions)
    return TransactionVerdict(
        anomalies=tuple(findings.kept),
        total=findings.counts,
        committed=outcomes[COMMITTED],
        aborted=outcomes[ABORTED],
        unknown=len(history.transactions) - outcomes[COMMITTED] - outcomes[ABORTED],
        read=sum(len(read.records) for read in history.reads),
        write_cycles_allowed=allowed,
    )


def _check_offsets(evidence: Evidence, findings: Findings) -> None:
    for (partition, offset), values in evidence.values_at.items():
        if len(values) > 1:
            told = " and ".join(f"{short(value)} ({holder})" for value, holder in values.items())
            findings.add("inconsistent-offsets", partition, f"offset {offset} is {told}", offset)
    _check_duplicates(evidence, findings)
    for partition, offset, value, read in evidence.unwritten:
        text = f"{short(value)} was read by {read.process} at {offset}, and nobody sent it to this partition"
        findings.add("unwritten-read", partition, text, offset, read.ended_at)


def _check_duplicates(evidence: Evidence, findings: Findings) -> None:
    first: dict[tuple[object, object], int] = {}
    for (partition, offset), values in evidence.values_at.items():
        for value in values:
            other = first.setdefault((partition, value), offset)
            if other != offset:
                findings.add("duplicate", partition, f"{short(value)} is at {other} and at {offset}", offset)
