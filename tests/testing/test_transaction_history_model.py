"""Random histories of transactions that keep every promise are good; and when one promise is broken, the checker says which.

The model is a log for each partition, with records and markers. Its programs append to several partitions at once, read what is
committed, commit, abort, die, and take over each other's ids; answers are lost; and markers arrive at one partition after
the other, so readers find transactions half visible, as with Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from strandline.testing.history.transactions import (
    ABORTED,
    COMMITTED,
    Read,
    Transaction,
    TransactionHistory,
    check_exactly_once,
    check_transactions,
)
from strandline.testing.history.transactions.cycles import Edge, Graph

PARTITIONS = [("a", 0), ("a", 1), ("b", 0)]
SEEDS = 200
STEPS = 150
Partition = tuple[str, int]


@dataclass(eq=False)
class Running:
    """A transaction as the cluster has it. `commit`: its outcome, once it is decided."""

    seen: Transaction
    touched: dict[Partition, None] = field(default_factory=dict)
    commit: bool | None = None
    unmarked: list[Partition] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.commit is not None and not self.unmarked


@dataclass(frozen=True)
class Entry:
    running: Running
    value: str | None
    """None: a marker."""


class Model:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.time = 0.0
        self.history = TransactionHistory(lambda: self.time)
        self.logs: dict[Partition, list[Entry]] = {partition: [] for partition in PARTITIONS}
        self.programs: dict[str, Running | None] = dict.fromkeys(("p0", "p1", "p2"))
        self.epochs = dict.fromkeys(self.programs, 0)
        self.deciding: list[Running] = []
        """Transactions that are decided, but not marked in all partitions."""
        self.readers: dict[tuple[str, Partition], int] = {}
        self.number = 0

    def run(self) -> TransactionHistory:
        steps = [(30, self.append), (12, self.end), (15, self.mark), (20, self.read), (8, self.read_inside), (2, self.take_over)]
        weights = [self.draw.random() * weight for weight, _ in steps]
        for _ in range(STEPS):
            self.time += 1.0
            self.draw.choices(steps, weights)[0][1]()
        self.finish()
        return self.history

    # -- programs

    def append(self) -> None:
        name = self.draw.choice(list(self.programs))
        running = self.programs[name]
        if running is None:
            if any(other.seen.transactional_id == name for other in self.deciding):
                return  # CONCURRENT_TRANSACTIONS
            running = self.programs[name] = Running(self.history.begin(f"{name}/{self.epochs[name]}", name))
            running.seen.written_as(int(name[1]), self.epochs[name])
        partition = self.draw.choice(PARTITIONS)
        self.number += 1
        append = running.seen.append(partition, f"v{self.number}")
        if self.draw.random() < 0.05:
            append.fail()
            return
        self.logs[partition].append(Entry(running, str(append.value)))
        running.touched[partition] = None
        append.ok(len(self.logs[partition]) - 1)

    def end(self) -> None:
        name = self.draw.choice(list(self.programs))
        running = self.programs[name]
        if running is not None:
            self.end_of(name, running, is_commit=self.draw.random() < 0.7)

    def end_of(self, name: str, running: Running, *, is_commit: bool) -> None:
        self.programs[name] = None
        self.epochs[name] += 1
        if is_commit:
            running.seen.commit()
            is_commit = self.draw.random() < 0.9
        self.decide(running, commit=is_commit)
        if self.draw.random() < 0.2:
            running.seen.unknown()
        elif is_commit:
            running.seen.committed()
        else:
            running.seen.aborted()

    def decide(self, running: Running, *, commit: bool) -> None:
        running.commit = commit
        running.unmarked = list(running.touched)
        self.deciding.append(running)

    def take_over(self) -> None:
        """A new program takes the id; the transaction of the old one is aborted, which its process does not know."""
        name = self.draw.choice(list(self.programs))
        running = self.programs[name]
        self.programs[name] = None
        self.epochs[name] += 1
        self.history.initialized(f"{name}/{self.epochs[name]}", name, int(name[1]), self.epochs[name])
        if running is not None:
            self.decide(running, commit=False)
            if self.draw.random() < 0.5:
                self.time += 1.0
                running.seen.commit()
            running.seen.unknown()

    # -- the cluster

    def mark(self) -> None:
        if self.deciding:
            running = self.draw.choice(self.deciding)
            if running.unmarked:
                partition = running.unmarked.pop(self.draw.randrange(len(running.unmarked)))
                self.logs[partition].append(Entry(running, None))
            if running.is_over:
                self.deciding.remove(running)

    def last_stable_offset(self, partition: Partition) -> int:
        log = self.logs[partition]
        marked = {entry.running for entry in log if entry.value is None}
        return next((offset for offset, entry in enumerate(log) if entry.running not in marked), len(log))

    def committed_from(self, partition: Partition, first: int, end: int) -> Iterator[tuple[int, str]]:
        for offset, entry in enumerate(self.logs[partition][:end]):
            if offset >= first and entry.value is not None and entry.running.commit:
                yield offset, entry.value

    # -- consumers

    def read(self) -> None:
        name, partition = self.draw.choice(("r0", "r1")), self.draw.choice(PARTITIONS)
        first, records, end = self.next_records(name, partition)
        self.history.seek(name, partition, first)
        self.history.read(name, partition, records, position=end)

    def next_records(self, name: str, partition: Partition) -> tuple[int, list[tuple[int, str]], int]:
        first = self.readers.get((name, partition), 0)
        end = self.last_stable_offset(partition)
        records = list(self.committed_from(partition, first, end))
        if self.draw.random() < 0.5:
            records = records[: self.draw.randint(1, 4)]
            end = records[-1][0] + 1 if records else first
        self.readers[name, partition] = end
        return first, records, end

    def read_inside(self) -> None:
        for running in self.programs.values():
            if running is not None:
                partition = self.draw.choice(PARTITIONS)
                first, records, end = self.next_records(str(running.seen.process), partition)
                self.history.seek(running.seen.process, partition, first)
                running.seen.read(partition, records, position=end)

    def finish(self) -> None:
        self.time += 1.0
        for name, running in self.programs.items():
            if running is not None:
                self.end_of(name, running, is_commit=True)
        while self.deciding:
            self.mark()
        self.time += 1.0
        for partition, log in self.logs.items():
            assert self.last_stable_offset(partition) == len(log)
            self.history.final(partition, list(self.committed_from(partition, 0, len(log))), position=len(log))


@pytest.mark.parametrize("part", range(4))
def test_correct_transactions_are_good(part: int) -> None:
    """One false alarm in a night of runs is one too many."""
    seen: Counter[str] = Counter()
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        verdict = check_transactions(Model(seed).run())
        assert verdict.good, f"seed {seed}: {verdict}"
        seen.update(committed=verdict.committed, aborted=verdict.aborted, unknown=verdict.unknown)
        seen.update(read=verdict.read, crossed=verdict.write_cycles_allowed)
    assert min(seen.values()) > 10, f"the model is too tame: {seen}"


# -- one broken promise -----------------------------------------------------------------------------------------------


def finals(history: TransactionHistory) -> list[Read]:
    return [read for read in history.reads if read.final]


def pick(history: TransactionHistory, draw: Random, outcome: str, partitions: int = 1) -> Transaction | None:
    """A random transaction with this outcome that has records in at least `partitions` partitions; None if there is none."""
    found = [
        t
        for t in history.transactions
        if t.outcome == outcome and len({a.partition for a in t.appends if not a.failed}) >= partitions
    ]
    return draw.choice(found) if found else None


def hide(history: TransactionHistory, transaction: Transaction, partition: object, only: Callable[[Read], bool]) -> int:
    """Remove the transaction's records in this partition from the reads; returns how many there were."""
    gone = {append.value for append in transaction.appends if append.partition == partition}
    hidden = 0
    for read in history.reads:
        if read.partition == partition and only(read):
            kept = [record for record in read.records if record[1] not in gone]
            hidden += len(read.records) - len(kept)
            read.records[:] = kept  # type: ignore[index]
    return hidden


def spoil(history: TransactionHistory, draw: Random, name: str) -> bool:
    """Break one promise. Returns False if this history has nothing with which it could be broken."""
    committed, aborted = pick(history, draw, COMMITTED), pick(history, draw, ABORTED)
    wide = pick(history, draw, COMMITTED, partitions=2)
    if committed is None or aborted is None or wide is None:
        return False
    append = next(a for a in wide.appends if not a.failed)
    match name:
        case "lost-write":
            return hide(history, wide, append.partition, lambda _: True) > 0
        case "fractured-read":
            wide.outcome = "unknown"
            return hide(history, wide, append.partition, lambda _: True) > 0
        case "skipped-read":
            wide.outcome = "unknown"
            reads = [read for read in history.reads if read.process == "r0"]
            partitions = {a.partition for a in wide.appends}
            return sum(hide(history, wide, partition, lambda read: read in reads) for partition in partitions) > 0
        case "aborted-read":
            bad = next((a for a in aborted.appends if a.offset >= 0), None)
            if bad is None:
                return False
            history.seek("x", bad.partition, bad.offset)
            history.read("x", bad.partition, [(bad.offset, bad.value)])
        case "intermediate-read":
            history.seek("x", append.partition, append.offset)
            history.read("x", append.partition, [(append.offset, append.value)], at=wide.asked_at - 0.5)
        case "information-cycle":
            other = pick(history, draw, COMMITTED)
            if other is None or other is wide or not (back := [a for a in other.appends if not a.failed]):
                return False
            wide.read(back[0].partition, [(back[0].offset, back[0].value)])
            other.read(append.partition, [(append.offset, append.value)])
        case "zombie-commit":
            history.initialized("x", wide.transactional_id, wide.producer_id, wide.producer_epoch + 1, at=wide.asked_at - 0.5)
        case "transaction-order":
            later = [
                t for t in history.transactions if t.producer_id == wide.producer_id and t.producer_epoch > wide.producer_epoch
            ]
            places = [a.offset for t in later for a in t.appends if a.partition == append.partition and a.offset >= 0]
            if not places:
                return False
            append.offset = max(places) + 1
        case "duplicate":
            (last,) = (read for read in finals(history) if read.partition == append.partition)
            last.records.append((last.end, append.value))  # type: ignore[attr-defined]
    return True


@pytest.mark.parametrize(
    "name",
    [
        "lost-write",
        "fractured-read",
        "skipped-read",
        "aborted-read",
        "intermediate-read",
        "information-cycle",
        "zombie-commit",
        "transaction-order",
        "duplicate",
    ],
)
def test_single_anomaly_in_a_correct_history_is_found(name: str) -> None:
    """A hand-written history holds little else; here the needle is in a haystack."""
    spoiled = 0
    for seed in range(60):
        history = Model(seed).run()
        if spoil(history, Random(seed), name):
            spoiled += 1
            verdict = check_transactions(history)
            assert verdict.counts()[name], f"seed {seed}: {name} was not found, but {verdict}"
    assert spoiled > 15, spoiled


def test_an_interleaved_history_with_isolated_writes_has_a_write_cycle() -> None:
    crossed = 0
    for seed in range(40):
        history = Model(seed).run()
        allowed = check_transactions(history).write_cycles_allowed
        crossed += allowed
        assert check_transactions(history, isolated_writes=True).counts()["write-cycle"] == allowed
    assert crossed > 10


# -- exactly once -----------------------------------------------------------------------------------------------------


def test_single_fault_of_a_pipeline_is_found() -> None:
    """One of the outputs of random inputs is dropped, repeated or invented."""
    for seed in range(50):
        draw = Random(seed)
        inputs = {partition: [(2 * n, f"{partition}/{n}") for n in range(draw.randint(2, 20))] for partition in PARTITIONS}
        positions = {partition: draw.randint(1, 2 * len(log)) for partition, log in inputs.items()}
        done = [value for partition, log in inputs.items() for offset, value in log if offset < positions[partition]]
        sound = {("out", 0): list(enumerate(done))}
        assert check_exactly_once(inputs, sound, positions=positions).good
        victim = draw.choice(done)
        for name, output in (
            ("lost-input", [value for value in done if value != victim]),
            ("duplicate-output", [value for value in done for _ in range(2 if value == victim else 1)]),
            ("unexplained-output", [*done, "other"]),
        ):
            verdict = check_exactly_once(inputs, {("out", 0): list(enumerate(output))}, positions=positions)
            assert verdict.counts() == {name: 1}, str(verdict)


# -- the search for cycles --------------------------------------------------------------------------------------------


def test_components_are_those_of_mutual_reachability() -> None:
    """They are compared with the definition, in random graphs."""
    for seed in range(200):
        draw = Random(seed)
        nodes = draw.randint(2, 9)
        pairs = {(draw.randrange(nodes), draw.randrange(nodes)) for _ in range(draw.randint(0, 14))}
        graph = Graph()
        for before, after in sorted(pairs):
            graph.add(Edge(before, after, draw.choice(("ww", "wr")), ""))
        reach = {n: {n} for n in range(nodes)}
        for _ in range(nodes):
            for before, after in pairs:
                for known in reach.values():
                    if before in known:
                        known.add(after)
        wanted = {frozenset(m for m in range(nodes) if m in reach[n] and n in reach[m]) for n in range(nodes)}
        found = graph.components(("ww", "wr"))
        assert {frozenset(component) for component in found} == {component for component in wanted if len(component) > 1}
        for component in found:
            cycle = graph.cycle(component, ("ww", "wr"), ("ww", "wr"))
            assert [edge.after for edge in cycle] == [edge.before for edge in cycle[1:] + cycle[:1]]


def test_a_cycle_through_a_kind_is_a_shortest_one() -> None:
    graph = Graph()
    for before, after, kind in ((1, 2, "ww"), (2, 1, "ww"), (2, 3, "ww"), (3, 4, "wr"), (4, 1, "ww"), (3, 1, "wr")):
        graph.add(Edge(before, after, kind, ""))
    (component,) = graph.components(("ww", "wr"))
    assert component == [1, 2, 3, 4]
    cycle = graph.cycle(component, ("ww", "wr"), ("wr",))
    assert [(edge.before, edge.after) for edge in cycle] == [(3, 1), (1, 2), (2, 3)]
    assert graph.components(("wr",)) == []
    assert graph.cycle(component, ("wr",), ("wr",)) == []


def test_a_long_chain_needs_no_deep_stack() -> None:
    graph = Graph()
    for n in range(20_000):
        graph.add(Edge(n, (n + 1) % 20_000, "ww", ""))
    (component,) = graph.components(("ww",))
    assert len(component) == 20_000
