"""Each transaction is visible to all consumers as a whole or not at all, and only when it is committed."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.testing.history.operations import Partition
from strandline.testing.history.transactions.evidence import Evidence, Missed, Seen
from strandline.testing.history.transactions.operations import ABORTED, COMMITTED, Transaction
from strandline.testing.history.verdict import Findings, short


def check_atomicity(evidence: Evidence, findings: Findings) -> None:
    unplaced: dict[int, list[Missed]] = {}
    for miss in evidence.unplaced():
        unplaced.setdefault(miss.append.transaction.number, []).append(miss)
    for transaction in evidence.history.transactions:
        number = transaction.number
        seen = evidence.seen.get(number, [])
        _check_failed(seen, findings)
        if not transaction.may_be_committed:
            _check_aborted(transaction, seen, findings)
            continue
        _check_early(transaction, seen, findings)
        missed = [*evidence.missed.get(number, []), *unplaced.get(number, [])]
        if missed and evidence.is_committed(transaction):
            _check_missed(transaction, seen, missed, findings)


def _check_failed(seen: Iterable[Seen], findings: Findings) -> None:
    for append, read, offset in seen:
        if append.failed:
            text = f"{short(append.value)} was read by {read.process} at {offset}, and its send had failed"
            findings.add("aborted-read", append.partition, text, offset, read.ended_at)


def _check_aborted(transaction: Transaction, seen: Iterable[Seen], findings: Findings) -> None:
    why = "was aborted" if transaction.outcome == ABORTED else "was never asked to commit"
    told: dict[Partition, None] = {}
    for append, read, offset in seen:
        if append.partition not in told and not append.failed:
            told[append.partition] = None
            text = f"{short(append.value)} was read by {read.process} at {offset}, and {transaction} {why}"
            findings.add("aborted-read", append.partition, text, offset, read.ended_at)


def _check_early(transaction: Transaction, seen: Iterable[Seen], findings: Findings) -> None:
    for append, read, offset in seen:
        if read.ended_at < transaction.asked_at:
            when = f"at {read.ended_at:.3f} s, before {transaction} asked to commit at {transaction.asked_at:.3f} s"
            text = f"{short(append.value)} was read by {read.process} at {offset} {when}"
            findings.add("intermediate-read", append.partition, text, offset, read.ended_at)
            return


def _check_missed(transaction: Transaction, seen: list[Seen], missed: Iterable[Missed], findings: Findings) -> None:
    """Report the first miss of each name in each partition: one lost marker hides all records of a partition."""
    reported: dict[tuple[str, Partition], None] = {}
    for miss in missed:
        name, text = _name(transaction, seen, miss)
        if (name, miss.append.partition) not in reported:
            reported[name, miss.append.partition] = None
            offset = miss.offset if miss.offset >= 0 else None
            findings.add(name, miss.append.partition, text, offset, miss.read.ended_at)


def _name(transaction: Transaction, seen: list[Seen], miss: Missed) -> tuple[str, str]:
    append, read, offset = miss
    what = short(append.value) + (f" at {offset}" if offset >= 0 else "")
    if read.final and (transaction.outcome == COMMITTED or any(other.append is append for other in seen)):
        proof = "was committed" if transaction.outcome == COMMITTED else "was read before"
        return "lost-write", f"{what} of {transaction} {proof}, and is not in the final log"
    own = [other for other in seen if other.read.process == read.process]
    for other in own:
        if other.append.partition == append.partition:
            text = f"{read.process} saw {short(other.append.value)} of {transaction}, and not {what}"
            return "intermediate-read", text
    if own:
        there = f"{short(own[0].append.value)} in {own[0].append.partition!r}"
        return "fractured-read", f"{read.process} saw {there} of {transaction}, and not {what}"
    if read.final:
        return "fractured-read", f"{seen[0].read.process} saw {short(seen[0].append.value)} of {transaction}, and not {what}"
    return "skipped-read", f"{read.process} passed {what} of {transaction}, which is committed"
