"""The log's order agrees with the order of a producer's sends, of one id's transactions, and of transactions in real time."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from strandline.testing.history.operations import Partition
from strandline.testing.history.transactions.evidence import Evidence
from strandline.testing.history.transactions.operations import COMMITTED, Append, Transaction
from strandline.testing.history.verdict import Findings, short

_Place = tuple[int, Append]


def check_order(evidence: Evidence, findings: Findings) -> None:
    for transaction in evidence.history.transactions:
        _check_within(evidence, transaction, findings)
    _check_epochs(evidence, findings)
    _check_real_time(evidence, findings)
    _check_fencing(evidence, findings)


def check_readers(evidence: Evidence, findings: Findings) -> None:
    for read in evidence.history.reads:
        before = read.first - 1
        for offset, value in read.records:
            if offset <= before:
                text = f"{read.process} read offset {offset} ({short(value)}) after {before}"
                findings.add("nonmonotonic-read", read.partition, text, offset, read.ended_at)
            before = offset


def _check_within(evidence: Evidence, transaction: Transaction, findings: Findings) -> None:
    last: dict[Partition, _Place] = {}
    for append, offset in evidence.placed(transaction):
        before = last.get(append.partition)
        if before is not None and offset < before[0]:
            _report(findings, "producer-order", before, (offset, append))
        last[append.partition] = (offset, append)


def _check_epochs(evidence: Evidence, findings: Findings) -> None:
    """A producer id's records of a higher epoch follow all those of lower epochs."""
    by_id: dict[int, list[Transaction]] = {}
    for transaction in evidence.history.transactions:
        if transaction.producer_epoch >= 0:
            by_id.setdefault(transaction.producer_id, []).append(transaction)
    for transactions in by_id.values():
        transactions.sort(key=attrgetter("producer_epoch"))
        furthest: dict[Partition, _Place] = {}
        waiting: list[Transaction] = []
        for transaction in transactions:
            if waiting and waiting[-1].producer_epoch < transaction.producer_epoch:
                _advance(evidence, furthest, waiting)
                waiting = []
            waiting.append(transaction)
            _compare(evidence, furthest, transaction, findings, "transaction-order")


def _check_real_time(evidence: Evidence, findings: Findings) -> None:
    """A record must have a higher offset than those of each transaction that ended before its own began. Only committed
    transactions have certainly ended: a record of an aborted one may be appended until its marker is."""
    transactions = evidence.history.transactions
    ended = sorted((t for t in transactions if t.outcome == COMMITTED), key=attrgetter("ended_at"))
    furthest: dict[Partition, _Place] = {}
    i = 0
    for transaction in sorted(transactions, key=attrgetter("began_at")):
        while i < len(ended) and ended[i].ended_at < transaction.began_at:
            _advance(evidence, furthest, [ended[i]])
            i += 1
        _compare(evidence, furthest, transaction, findings, "realtime-order")


def _advance(evidence: Evidence, furthest: dict[Partition, _Place], transactions: Iterable[Transaction]) -> None:
    for transaction in transactions:
        for append, offset in evidence.placed(transaction):
            if offset > furthest.get(append.partition, (-1, append))[0]:
                furthest[append.partition] = (offset, append)


def _compare(
    evidence: Evidence, furthest: dict[Partition, _Place], transaction: Transaction, findings: Findings, name: str
) -> None:
    for append, offset in evidence.placed(transaction):
        before = furthest.get(append.partition)
        if before is None or offset >= before[0]:
            continue
        earlier = before[1].transaction
        if name == "realtime-order" and earlier.transactional_id == transaction.transactional_id:
            if earlier.producer_id == transaction.producer_id and 0 <= earlier.producer_epoch < transaction.producer_epoch:
                return  # Reported by their epochs.
            name = "transaction-order"
        _report(findings, name, before, (offset, append))
        return


def _report(findings: Findings, name: str, before: _Place, after: _Place) -> None:
    first, second = before[1], after[1]
    earlier = f"{short(first.value)} of {first.transaction}, which is at {before[0]}"
    text = f"{short(second.value)} of {second.transaction} is at {after[0]}, before the earlier {earlier}"
    findings.add(name, second.partition, text, after[0], second.transaction.began_at)


def _check_fencing(evidence: Evidence, findings: Findings) -> None:
    """A transaction must not be committed if its id was taken over before its process asked to commit."""
    taken: dict[str, list[tuple[float, int, int]]] = {}
    for found in sorted(evidence.history.initializations, key=attrgetter("ended_at")):
        taken.setdefault(found.transactional_id, []).append((found.ended_at, found.producer_id, found.producer_epoch))
    for transaction in evidence.history.transactions:
        if transaction.producer_epoch < 0 or not evidence.is_committed(transaction):
            continue
        for at, producer_id, epoch in taken.get(transaction.transactional_id, ()):
            is_newer = epoch > transaction.producer_epoch if producer_id == transaction.producer_id else at > transaction.began_at
            if is_newer and at < transaction.asked_at:
                owner = f"epoch {epoch} of producer {producer_id} had the id since {at:.3f} s"
                text = f"{transaction} has epoch {transaction.producer_epoch} and is committed, and {owner}"
                findings.add("zombie-commit", None, text, None, transaction.asked_at)
                break
