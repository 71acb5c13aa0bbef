"""The graph of dependencies between transactions, and its cycles (Adya's G0 and G1c).

    ww    the second transaction's record follows one of the first directly in a partition's log
    wr    the second transaction has read a record of the first
    id    the second transaction is of the same transactional id, and began after the first had ended

**Kafka's transactions permit write cycles.** Records take their offsets when they are sent, not when they are committed, so two
transactions that run at the same time may lie before each other in two partitions; and one of them may have read what the other
wrote elsewhere. So ww edges count only if the caller says that writes are isolated: transactions on the same partitions
never ran at the same time. A cycle of wr and id edges is always an anomaly, because a consumer reads only what is committed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf

from strandline.testing.history.operations import Partition
from strandline.testing.history.transactions.cycles import Edge, Graph
from strandline.testing.history.transactions.evidence import Evidence
from strandline.testing.history.transactions.operations import Append
from strandline.testing.history.verdict import Findings, label, short

WW, WR, ID = "ww", "wr", "id"


def check_cycles(evidence: Evidence, findings: Findings, *, isolated_writes: bool) -> int:
    """Report the cycles, and return the number of write cycles that are permitted."""
    graph = Graph()
    _add_writes(graph, evidence)
    _add_reads(graph, evidence)
    _add_ids(graph, evidence)
    allowed = 0
    for component in graph.components((WW,)):
        if isolated_writes:
            _report(findings, "write-cycle", graph.cycle(component, (WW,), (WW,)), evidence)
        else:
            allowed += 1
    kinds = (WW, WR, ID) if isolated_writes else (WR, ID)
    for component in graph.components(kinds):
        cycle = graph.cycle(component, kinds, (WR,))
        if cycle:
            _report(findings, "information-cycle", cycle, evidence)
    return allowed


def _add_writes(graph: Graph, evidence: Evidence) -> None:
    logs: dict[Partition, list[tuple[int, Append]]] = {}
    for append, offset in evidence.offset_of.items():
        if evidence.is_committed(append.transaction):
            logs.setdefault(append.partition, []).append((offset, append))
    for partition, log in logs.items():
        log.sort(key=lambda place: place[0])
        for (_, before), (_, after) in pairwise(log):
            why = f"{short(after.value)} follows {short(before.value)} in {label(partition)}"
            graph.add(Edge(before.transaction.number, after.transaction.number, WW, why))


def _add_reads(graph: Graph, evidence: Evidence) -> None:
    for transaction in evidence.history.transactions:
        if not evidence.is_committed(transaction):
            continue
        for read in transaction.reads:
            for _, value in read.records:
                append = evidence.history.appends.get((read.partition, value))
                if append is not None:
                    why = f"it has read {short(value)} in {label(read.partition)}"
                    graph.add(Edge(append.transaction.number, transaction.number, WR, why))


def _add_ids(graph: Graph, evidence: Evidence) -> None:
    last: dict[str, int] = {}
    transactions = evidence.history.transactions
    for transaction in sorted(transactions, key=lambda t: t.began_at):
        before = last.get(transaction.transactional_id)
        if before is not None and transactions[before - 1].ended_at < transaction.began_at:
            graph.add(Edge(before, transaction.number, ID, f"it is the next one of {transaction.transactional_id}"))
        if transaction.ended_at < inf:
            last[transaction.transactional_id] = transaction.number


def _report(findings: Findings, name: str, cycle: Iterable[Edge], evidence: Evidence) -> None:
    transactions = evidence.history.transactions
    told = [
        f"{transactions[edge.after - 1]} depends on {transactions[edge.before - 1]}: {edge.why} ({edge.kind})" for edge in cycle
    ]
    findings.add(name, None, "; ".join(told))
