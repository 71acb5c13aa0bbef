"""The checker of transactions is judged by hand-written histories: each anomaly is found, as that and nothing else, and
whatever comes near it without breaking a promise is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from strandline.testing.history.transactions import (
    TRANSACTION_MEANINGS,
    Append,
    Transaction,
    TransactionHistory,
    TransactionVerdict,
    check_exactly_once,
    check_transactions,
)

A, B, C = ("a", 0), ("a", 1), ("b", 0)
Build = Callable[[TransactionHistory], TransactionVerdict | None]
"""Writes a history; returns the verdict if it is not that of the default check."""

BAD: dict[str, list[Build]] = {}
GOOD: list[Build] = []


def bad(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        BAD.setdefault(name, []).append(build)
        return build

    return register


def good(build: Build) -> Build:
    GOOD.append(build)
    return build


class Clock:
    """A clock that advances with each call."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


Places = Iterable[tuple[tuple[str, int], str, int]]


def begun(h: TransactionHistory, places: Places, process: str = "p", transactional_id: str = "") -> Transaction:
    """A transaction whose appends are acknowledged at these (partition, value, offset)."""
    transaction = h.begin(process, transactional_id)
    for partition, value, offset in places:
        transaction.append(partition, value).ok(offset)
    return transaction


def committed(h: TransactionHistory, places: Places, process: str = "p", transactional_id: str = "") -> Transaction:
    transaction = begun(h, places, process, transactional_id)
    transaction.commit()
    transaction.committed()
    return transaction


def unanswered(h: TransactionHistory, places: Places) -> Transaction:
    """A transaction whose commit was requested, and whose answer was lost."""
    transaction = begun(h, places)
    transaction.commit()
    transaction.unknown()
    return transaction


# -- aborted reads (G1a) ----------------------------------------------------------------------------------------------


@bad("aborted-read")
def a_reader_sees_an_aborted_value(h: TransactionHistory) -> None:
    begun(h, [(A, "x", 0)]).aborted()
    h.read("r", A, [(0, "x")], position=2)


@bad("aborted-read")
def the_commit_of_a_program_that_died_was_never_sent(h: TransactionHistory) -> None:
    """The coordinator can only abort it."""
    begun(h, [(A, "x", 0)]).unknown()
    h.read("r", A, [(0, "x")], position=2)


@bad("aborted-read")
def a_rejected_record_is_in_the_log(h: TransactionHistory) -> None:
    transaction = begun(h, [(A, "x", 0)])
    transaction.append(A, "y").fail()
    transaction.committed()
    h.read("r", A, [(0, "x"), (1, "y")], position=3)


@bad("aborted-read")
def the_final_log_shows_an_aborted_value(h: TransactionHistory) -> None:
    transaction = begun(h, [(A, "x", 0)])
    transaction.commit()
    transaction.aborted()
    h.final(A, [(0, "x")], position=2)


@good
def aborted_values_are_passed(h: TransactionHistory) -> None:
    begun(h, [(A, "x", 0), (B, "y", 0)]).aborted()
    committed(h, [(A, "z", 2)])
    h.seek("r", A, 0)
    h.read("r", A, [(2, "z")], position=4)
    h.final(A, [(2, "z")], position=4)
    h.final(B, [], position=2)


# -- intermediate reads (G1b) -----------------------------------------------------------------------------------------


@bad("intermediate-read")
def a_value_is_read_before_its_commit_is_asked_for(h: TransactionHistory) -> None:
    """At the end the value looks right, because the transaction was committed."""
    transaction = begun(h, [(A, "x", 0)])
    h.read("r", A, [(0, "x")])
    transaction.commit()
    transaction.committed()
    h.final(A, [(0, "x")], position=2)


@bad("intermediate-read")
def a_transaction_reads_its_own_value(h: TransactionHistory) -> None:
    transaction = begun(h, [(A, "x", 0)])
    transaction.read(A, [(0, "x")])
    transaction.commit()
    transaction.committed()


@bad("intermediate-read")
def one_of_two_values_in_a_partition_is_missing(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0), (A, "y", 1)])
    h.read("r", A, [(0, "x")], position=3)


@good
def a_poll_ends_in_the_midst_of_a_transaction(h: TransactionHistory) -> None:
    """Consumers take records in portions. The reader has not passed the second one yet."""
    committed(h, [(A, "x", 0), (A, "y", 1), (B, "z", 0)])
    h.read("r", A, [(0, "x")])
    h.read("r", A, [(1, "y")], position=3)
    h.read("r", B, [(0, "z")])


@good
def a_value_is_read_before_its_commit_is_answered(h: TransactionHistory) -> None:
    transaction = begun(h, [(A, "x", 0)])
    transaction.commit()
    h.read("r", A, [(0, "x")])
    transaction.committed()


# -- all or nothing ---------------------------------------------------------------------------------------------------


@bad("fractured-read")
def one_partition_shows_a_transaction_and_the_other_does_not(h: TransactionHistory) -> None:
    unanswered(h, [(A, "x", 0), (B, "y", 0)])
    h.final(A, [(0, "x")], position=2)
    h.final(B, [], position=2)


@bad("fractured-read")
def a_reader_passes_the_other_half_of_a_committed_transaction(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0), (B, "y", 0)])
    h.read("r", A, [(0, "x")], position=2)
    h.seek("r", B, 0)
    h.read("r", B, [], position=2)


@bad("fractured-read")
def two_readers_see_the_two_halves_differently(h: TransactionHistory) -> None:
    """One marker was a commit, the other an abort."""
    unanswered(h, [(A, "x", 0), (B, "y", 0)])
    h.read("r", A, [(0, "x")], position=2)
    h.final(B, [], position=2)


@good
def an_unknown_outcome_is_a_commit_everywhere(h: TransactionHistory) -> None:
    unanswered(h, [(A, "x", 0), (B, "y", 0)])
    h.final(A, [(0, "x")], position=2)
    h.final(B, [(0, "y")], position=2)


@good
def an_unknown_outcome_is_an_abort_everywhere(h: TransactionHistory) -> None:
    unanswered(h, [(A, "x", 0), (B, "y", 0)])
    h.read("r", A, [], position=2)
    h.final(A, [], position=2)
    h.final(B, [], position=2)


@good
def the_other_partition_is_not_readable_so_far(h: TransactionHistory) -> None:
    """Markers do not arrive at all partitions in one moment, so Kafka promises this much only for positions behind them."""
    committed(h, [(A, "x", 0), (B, "y", 3)])
    h.read("r", A, [(0, "x")], position=2)
    h.seek("r", B, 0)
    h.read("r", B, [], position=3)


@bad("lost-write")
def a_committed_record_is_not_in_the_final_log(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0), (B, "y", 0)])
    h.final(A, [(0, "x")], position=2)
    h.final(B, [], position=2)


@bad("lost-write")
def a_committed_record_without_a_known_offset_is_not_in_the_final_log(h: TransactionHistory) -> None:
    transaction = h.begin("p")
    transaction.append(A, "x")
    transaction.committed()
    h.final(A, [], position=0)


@bad("lost-write")
def a_value_that_was_read_is_gone(h: TransactionHistory) -> None:
    """The producer does not know the outcome, but a reader proves that it was a commit."""
    unanswered(h, [(A, "x", 0)])
    h.read("r", A, [(0, "x")], position=2)
    h.final(A, [], position=2)


@good
def deleted_and_superseded_records_may_be_missing(h: TransactionHistory) -> None:
    h.log_start(A, 1)
    h.compacted(B)
    transaction = h.begin("p")
    transaction.append(A, "x").ok(0)
    for offset, value in enumerate("yz"):
        transaction.append(B, value, key="k").ok(offset)
    transaction.committed()
    h.final(A, [], position=2)
    h.final(B, [(1, "z")], position=3)


@bad("skipped-read")
def a_reader_passes_a_committed_record(h: TransactionHistory) -> None:
    """A reader does so whose list of aborted transactions names the wrong transaction."""
    committed(h, [(A, "x", 0)])
    committed(h, [(A, "y", 2)])
    h.seek("r", A, 0)
    h.read("r", A, [(2, "y")], position=4)
    h.final(A, [(0, "x"), (2, "y")], position=4)


@good
def a_reader_that_begins_later_has_skipped_nothing(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0)])
    committed(h, [(A, "y", 2)])
    h.read("r", A, [(2, "y")], position=4)


# -- cycles -----------------------------------------------------------------------------------------------------------


def crossed(h: TransactionHistory) -> None:
    """Two transactions at the same time, each before the other in one partition."""
    first, second = begun(h, [(A, "a1", 0)], "p"), begun(h, [(B, "b2", 0)], "q")
    first.append(B, "b1").ok(1)
    second.append(A, "a2").ok(1)
    for transaction in (first, second):
        transaction.commit()
        transaction.committed()


@bad("write-cycle")
def two_transactions_lie_before_each_other(h: TransactionHistory) -> TransactionVerdict:
    crossed(h)
    return check_transactions(h, isolated_writes=True)


@good
def kafka_lets_transactions_at_the_same_time_cross(h: TransactionHistory) -> None:
    crossed(h)


@bad("information-cycle")
def two_transactions_have_read_from_each_other(h: TransactionHistory) -> None:
    """By their reads, each would have been committed before the other."""
    first, second = begun(h, [(A, "x", 0)], "p"), begun(h, [(B, "y", 0)], "q")
    first.commit()
    second.commit()
    first.read(B, [(0, "y")])
    second.read(A, [(0, "x")])
    first.committed()
    second.committed()


@bad("information-cycle")
def three_transactions_have_read_in_a_circle_over_an_id(h: TransactionHistory) -> None:
    """The third wrote what the first has read, and read what the first's successor wrote."""
    first = begun(h, [(A, "x", 0)], "p", "one")
    first.read(C, [(0, "z")])
    first.committed()
    second = committed(h, [(A, "y", 2)], "p", "one")
    third = begun(h, [(C, "z", 0)], "q", "two")
    third.asked_at = 0.0
    third.read(A, [(2, "y")])
    third.committed()
    assert second.ended_at > first.ended_at


@bad("information-cycle")
def a_transaction_reads_what_lies_behind_it(h: TransactionHistory) -> TransactionVerdict:
    """With isolated writes, the order of the log says which transaction was first."""
    first, second = begun(h, [(A, "a1", 0)], "p"), begun(h, [(A, "a2", 1), (B, "b2", 0)], "q")
    second.commit()
    second.committed()
    first.read(B, [(0, "b2")])
    first.commit()
    first.committed()
    return check_transactions(h, isolated_writes=True)


@good
def a_transaction_has_read_what_was_written_behind_it(h: TransactionHistory) -> None:
    """Without isolated writes, Kafka permits that."""
    first, second = begun(h, [(A, "a1", 0)], "p"), begun(h, [(A, "a2", 1), (B, "b2", 0)], "q")
    second.commit()
    second.committed()
    first.read(B, [(0, "b2")])
    first.commit()
    first.committed()


# -- order ------------------------------------------------------------------------------------------------------------


@bad("producer-order")
def the_second_record_is_first(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 1), (A, "y", 0)])


@bad("transaction-order")
def a_record_of_the_earlier_epoch_follows(h: TransactionHistory) -> None:
    """A late message arrives after the abort (KAFKA-12671)."""
    late = begun(h, [(A, "x", 5)], "zombie", "one")
    late.written_as(7, 3)
    newer = committed(h, [(A, "y", 3)], "p", "one")
    newer.written_as(7, 4)
    late.aborted()


@bad("transaction-order")
def the_next_transaction_of_an_id_is_before_the_one_before(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 5)], "p", "one")
    committed(h, [(A, "y", 3)], "p", "one")


@bad("realtime-order")
def a_transaction_that_began_after_another_had_ended_is_before_it(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 5)], "p")
    committed(h, [(A, "y", 3)], "q")


@good
def an_aborted_transaction_has_a_late_record(h: TransactionHistory) -> None:
    """Until its marker is written, its leader cannot know that it is aborted."""
    begun(h, [(A, "x", 5)], "p").aborted()
    committed(h, [(A, "y", 3)], "q")


@bad("nonmonotonic-read")
def a_reader_returns(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0), (A, "y", 1)])
    h.read("r", A, [(0, "x"), (1, "y")])
    h.read("r", A, [(1, "y")])


@good
def a_reader_that_seeks_returns(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0), (A, "y", 1)])
    h.read("r", A, [(0, "x"), (1, "y")])
    h.seek("r", A, 1)
    h.read("r", A, [(1, "y")])


@bad("zombie-commit")
def a_fenced_program_commits(h: TransactionHistory) -> None:
    zombie = begun(h, [(A, "x", 0)], "zombie", "one")
    zombie.written_as(7, 3)
    h.initialized("p", "one", 7, 4)
    zombie.commit()
    zombie.committed()


@bad("zombie-commit")
def a_fenced_program_whose_answer_was_lost_has_committed(h: TransactionHistory) -> None:
    """A reader proves it. The new owner has another producer id, as if the epochs were exhausted."""
    zombie = begun(h, [(A, "x", 0)], "zombie", "one")
    zombie.written_as(7, 3)
    h.initialized("p", "one", 8, 0)
    zombie.commit()
    zombie.unknown()
    h.read("r", A, [(0, "x")])


@good
def a_program_commits_and_loses_its_id_then(h: TransactionHistory) -> None:
    first = begun(h, [(A, "x", 0)], "p", "one")
    first.written_as(7, 3)
    first.commit()
    h.initialized("q", "one", 7, 5)
    first.committed()


# -- values and offsets -----------------------------------------------------------------------------------------------


@bad("duplicate")
def a_value_is_at_two_offsets(h: TransactionHistory) -> None:
    committed(h, [(A, "x", 0)])
    h.read("r", A, [(0, "x"), (1, "x")])


@bad("inconsistent-offsets")
def two_values_are_acknowledged_at_one_offset(h: TransactionHistory) -> None:
    transaction = begun(h, [(A, "x", 0)], "p")
    other = begun(h, [(A, "y", 0)], "q")
    transaction.aborted()
    other.aborted()


@bad("unwritten-read")
def a_value_that_no_producer_sent_is_read(h: TransactionHistory) -> None:
    h.read("r", A, [(0, "x")])


# -- consume, transform, produce --------------------------------------------------------------------------------------

INPUT = {A: [(0, "x"), (1, "y"), (3, "z")]}


@bad("lost-input")
def an_input_has_no_output(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "x"), (1, "z")]})


@bad("duplicate-output")
def an_input_has_two_outputs(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "x"), (1, "y"), (2, "y"), (4, "z")]})


@bad("unexplained-output")
def an_output_has_no_input(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "x"), (1, "y"), (2, "z"), (3, "other")]})


@bad("uncommitted-input")
def the_output_is_committed_without_the_position(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "x"), (1, "y")]}, positions={A: 1})


@bad("lost-input")
def the_position_is_committed_without_the_output(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "x")]}, positions={A: 2})


@bad("output-order")
def the_outputs_are_in_another_order(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "y"), (1, "x"), (2, "z")]})


@good
def every_input_has_its_output(_: TransactionHistory) -> TransactionVerdict:
    outputs = {B: [(0, "X"), (5, "Z")], C: [(2, "Y")]}
    return check_exactly_once(INPUT, outputs, positions={A: 4}, source=lambda value: str(value).lower())


@good
def outputs_go_as_far_as_the_position(_: TransactionHistory) -> TransactionVerdict:
    return check_exactly_once(INPUT, {C: [(0, "x"), (1, "y")]}, positions={A: 2})


# -- the judgement ----------------------------------------------------------------------------------------------------


def verdict_of(build: Build) -> TransactionVerdict:
    history = TransactionHistory(Clock())
    return build(history) or check_transactions(history)


@pytest.mark.parametrize(("name", "build"), [pytest.param(n, b, id=b.__name__) for n, builds in BAD.items() for b in builds])
def test_a_bad_history_is_flagged_with_exactly_its_anomaly(name: str, build: Build) -> None:
    """A name that also appears for something else sends people to look in the wrong place."""
    verdict = verdict_of(build)
    assert verdict.counts() == {name: 1}, str(verdict)
    assert not verdict.good


@pytest.mark.parametrize("build", [pytest.param(b, id=b.__name__) for b in GOOD])
def test_history_close_to_an_anomaly_is_good(build: Build) -> None:
    """A false alarm costs its reader a day, and makes true alarms less credible."""
    verdict = verdict_of(build)
    assert verdict.good, str(verdict)


def test_every_anomaly_has_its_bad_history() -> None:
    assert set(BAD) == set(TRANSACTION_MEANINGS)


def test_the_report_names_the_transactions_and_values_of_a_cycle() -> None:
    h = TransactionHistory(Clock())
    two_transactions_have_read_from_each_other(h)
    (anomaly,) = check_transactions(h).anomalies
    assert anomaly.text == (
        "transaction 2 of q (q) depends on transaction 1 of p (p): it has read 'x' in a-0 (wr); "
        "transaction 1 of p (p) depends on transaction 2 of q (q): it has read 'y' in a-1 (wr)"
    )


def test_the_verdict_is_text_and_json() -> None:
    h = TransactionHistory(Clock())
    crossed(h)
    begun(h, [(A, "x", 7)], "r").aborted()
    unanswered(h, [(A, "y", 9)])
    h.read("reader", A, [(7, "x")])
    verdict = check_transactions(h)
    assert str(verdict).splitlines() == [
        "2 committed, 1 aborted, 1 unknown, 1 records read: 1 aborted-read",
        f"  aborted-read: {TRANSACTION_MEANINGS['aborted-read']}",
        "    a-0: 'x' was read by reader at 7, and transaction 3 of r (r) was aborted",
        "  permitted: 1 write cycles of transactions that ran at the same time",
    ]
    found = verdict.as_dict()
    assert (found["verdict"], found["anomalies"], found["write_cycles_allowed"]) == ("bad", {"aborted-read": 1}, 1)
    assert found["examples"][0]["partition"] == "a-0"


def test_a_transaction_ends_once() -> None:
    """Two ends are a mistake in the test that writes the history; judged quietly, it would hide an anomaly."""
    transaction = TransactionHistory(Clock()).begin("p")
    transaction.aborted()
    with pytest.raises(ValueError, match="has ended: aborted, then committed"):
        transaction.committed()


def test_values_are_unique_in_a_partition() -> None:
    transaction = TransactionHistory(Clock()).begin("p")
    assert isinstance(transaction.append(A, "x"), Append)
    transaction.append(B, "x")
    with pytest.raises(ValueError, match="was sent to"):
        transaction.append(A, "x")


def test_inputs_have_different_values() -> None:
    with pytest.raises(ValueError, match="two inputs have the value 'x'"):
        check_exactly_once({A: [(0, "x")], B: [(0, "x")]}, {})
