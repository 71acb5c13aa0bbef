"""Transactions in random runs: they are written and read, and the judges notice a wrong program, or a missing guard of the
product."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from test_nemesis import quiet

from strandline.client import Producer
from strandline.testing.history.transactions import Transaction, check_exactly_once
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.cluster.transactions import work
from strandline.testing.simulation.cluster.transactions.reader import CommittedReader
from strandline.testing.simulation.group_plans import CRASH
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.options import Options, draw_options, with_transactions
from strandline.testing.simulation.runs.run import run_seed
from strandline.testing.simulation.transaction_plans import SHIPPED, VANISH, WriterPlan

RUNS_MAX = 20
OPTIONS = {"transaction_timeout_ms": 4000, "request_timeout_ms": 1000, "delivery_timeout_ms": 2000, "max_block_ms": 3000}


def calm(seed: int, **changes: Any) -> Options:
    """A run without faults, with two programs that have ids of their own."""
    plan = {"appends_max": 5, "pause_s": 0.05, "aborts": 0.2, "dawdles": 0.0, **changes}
    writers = tuple(WriterPlan(f"shop-{n}", OPTIONS, **plan) for n in range(2))
    drawn = with_transactions(quiet(seed), Random(seed))
    return drawn.replaced(writers=writers, committed_readers=1, kinds={}, faults=())


def test_transactions_are_written_and_read() -> None:
    report = run_seed(1, options=calm(1))
    assert report.verdict == "ok", str(report)
    verdict = report.transactions
    assert verdict is not None
    assert verdict.committed > 10
    assert verdict.aborted > 1
    assert verdict.unknown == 0
    assert verdict.read > 2 * verdict.committed  # once by the reader, and once at the end


def test_transaction_of_a_program_that_vanishes_is_ended() -> None:
    """It vanishes in the midst of a transaction, because the program waits in each of them."""
    report = run_seed(1, options=calm(1, dawdles=1.0, event=VANISH, event_at_s=0.6))
    assert report.verdict == "ok", str(report)
    assert report.transactions is not None
    assert report.transactions.unknown > 0
    assert list(report.trace.events(kinds="log.transactions.timed_out"))  # type: ignore[union-attr]


@pytest.mark.slow
def test_program_whose_commit_was_an_abort_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the product reported an abort as a commit, the program's records would be lost."""
    monkeypatch.setattr(Transaction, "aborted", Transaction.committed)
    report = run_seed(1, options=calm(1))
    assert {violation["invariant"] for violation in report.violations} >= {"lost-write", "skipped-read"}, str(report)


@pytest.mark.slow
def test_reader_that_misses_records_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    poll = CommittedReader._poll

    async def careless(self: CommittedReader, consumer: Any) -> None:
        read = self.history.read
        monkeypatch.setattr(self.history, "read", lambda *args, **more: read(*args[:2], args[2][1:], **more))
        await poll(self, consumer)
        monkeypatch.setattr(self.history, "read", read)

    monkeypatch.setattr(CommittedReader, "_poll", careless)
    report = run_seed(1, options=calm(1))
    assert {violation["invariant"] for violation in report.violations} <= {
        "skipped-read", "fractured-read", "intermediate-read"
    }, str(report)  # fmt: skip
    assert report.violations


def shipping(seed: int, **changes: Any) -> Options:
    """A run in which a program sends on what the others write."""
    drawn = next(
        options
        for options in (with_transactions(quiet(each), Random(each)) for each in range(seed, seed + 1000))
        if options.shippers
    )
    plan = WriterPlan("shipper", OPTIONS, **{"appends_max": 5, "pause_s": 0.05, "aborts": 0.2, "dawdles": 0.0, **changes})
    return drawn.replaced(writers=calm(1).writers, committed_readers=1, shippers=(plan,), kinds={}, faults=())


def test_records_are_shipped_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records are shipped, because nothing else happens in this run."""
    numbers: list[tuple[int, int]] = []

    def noting(inputs: Any, outputs: Any, **more: Any) -> Any:
        numbers.append((sum(map(len, inputs.values())), sum(map(len, outputs.values()))))
        return check_exactly_once(inputs, outputs, **more)

    monkeypatch.setattr(work, "check_exactly_once", noting)
    report = run_seed(1, options=shipping(1))
    assert report.verdict == "ok", str(report)
    assert numbers[0][0] == numbers[0][1] > 20


def test_i44_waits_for_the_timeout_of_the_slowest_shipper() -> None:
    """The transaction of a shipper that vanishes stays open until its own timeout, which may be longer than each writer's."""
    options = shipping(1)
    slow = replace(options.shippers[0], options={**OPTIONS, "transaction_timeout_ms": 60_000})
    with closing(World(1)) as world:
        given: Any = dict.fromkeys(("produces", "going", "started", "committed"))
        transactions = work.TransactionWork(SimCluster(world), options.replaced(shippers=(slow,)), [], **given)
        assert transactions.longest_s > 60


@pytest.mark.slow
def test_record_that_is_shipped_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Producer.send

    async def twice(self: Producer, topic: str, *args: Any, **more: Any) -> Any:
        if topic == SHIPPED and args[0].startswith(b"p-writer1."):
            await send(self, topic, *args, **more)
        return await send(self, topic, *args, **more)

    monkeypatch.setattr(Producer, "send", twice)
    report = run_seed(1, options=shipping(1))
    assert {violation["invariant"] for violation in report.violations} == {"duplicate-output"}, str(report)


@pytest.mark.slow
def test_offsets_that_are_not_in_force_after_the_commit_are_noticed() -> None:
    """The next process of the program would ship the records once more."""
    options = shipping(1, event=CRASH, event_at_s=1.0)
    assert run_seed(1, options=options).good
    report = run_seed(1, options=options, mutation="M93")
    assert report.violations[0]["invariant"] == "I38", str(report)


def test_i44_reader_that_does_not_read_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedReader, "_position", lambda *_: 0)
    report = run_seed(1, options=calm(1))
    assert report.violations[0]["invariant"] == "I44", str(report)
    assert "the readers of committed records reach the end" in report.violations[0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("number", ["M80", "M81", "M83", "M86", "M87"])
def test_random_runs_find_the_removed_guard(number: str) -> None:
    """A few runs are enough. The stories find all guards (`test_hunt.py`)."""
    plain = {"members": (), "group_work": (), "lies": 0, "admin": (), "trims": False, "reassigns": False, "drains": False}
    drawn = (draw_options(seed).replaced(**plain, moves_logs=False, racers=0, holders=0) for seed in range(RUNS_MAX))
    options = (with_transactions(each, Random(f"{each.seed}/t")) for each in drawn if not each.loss_permitted)
    assert any(not run_seed(each.seed, options=each, mutation=number).good for each in options)
