"""The core of a move between log directories: which step comes next, as a table."""

from __future__ import annotations

import pytest

from strandline.broker.moves.move import LogFacts, Move, MoveState, Step

KEY = (b"topic-id-number1", 0)
HERE, THERE = b"1" * 16, b"2" * 16


def move(state: MoveState, *, is_flushed: bool = True) -> Move:
    return Move(KEY, THERE, state, is_flushed)


@pytest.mark.parametrize("state", list(MoveState))
@pytest.mark.parametrize(
    ("current", "future", "lowest_cut", "expected"),
    [
        (LogFacts(0, 10), LogFacts(0, 4), None, Step.COPY),
        (LogFacts(0, 10), LogFacts(0, 4), 6, Step.COPY),
        (LogFacts(0, 10), LogFacts(0, 4), 3, Step.CUT),
        (LogFacts(0, 3), LogFacts(0, 4), 3, Step.CUT),
        (LogFacts(5, 10), LogFacts(0, 4), None, Step.RESTART),
        (LogFacts(0, 10), LogFacts(0, 10), -1, Step.RESTART),
        (LogFacts(0, 10), LogFacts(0, 4, is_damaged=True), None, Step.RESTART),
        (LogFacts(0, 10, is_damaged=True), LogFacts(0, 10), None, Step.WAIT),
        (LogFacts(0, 10, is_damaged=True), LogFacts(0, 4), None, Step.COPY),
    ],
)
def test_the_copy_follows_the_log_in_every_state(
    state: MoveState, current: LogFacts, future: LogFacts, lowest_cut: int | None, expected: Step
) -> None:
    """The copy also continues after the controller has accepted the move: it is promoted only when it has all records."""
    for needs_acceptance in (False, True):
        assert move(state).next_step(current, future, lowest_cut, needs_acceptance=needs_acceptance) is expected


@pytest.mark.parametrize(
    ("state", "is_flushed", "expected"),
    [
        (MoveState.NONE, False, Step.FLUSH),
        (MoveState.NONE, True, Step.ANNOUNCE),
        (MoveState.QUEUED, True, Step.WAIT),
        (MoveState.ACCEPTED, True, Step.PROMOTE),
        (MoveState.EFFECTIVE, True, Step.WAIT),
    ],
)
def test_a_copy_that_has_caught_up_waits_for_the_controller(state: MoveState, is_flushed: bool, expected: Step) -> None:
    facts = LogFacts(0, 10)
    assert move(state, is_flushed=is_flushed).next_step(facts, facts, None, needs_acceptance=True) is expected


@pytest.mark.parametrize(("is_flushed", "expected"), [(False, Step.FLUSH), (True, Step.PROMOTE)])
def test_metadata_without_directories_needs_no_acceptance(is_flushed: bool, expected: Step) -> None:
    """The state stays NONE until the promotion, so a level that is raised before it makes the acceptance necessary."""
    facts, one = LogFacts(0, 10), move(MoveState.NONE, is_flushed=is_flushed)
    assert one.next_step(facts, facts, None, needs_acceptance=False) is expected


def test_the_states_follow_each_other() -> None:
    one = move(MoveState.NONE)
    assert not one.is_announced
    one.announce()
    assert (one.state, one.is_announced) == (MoveState.QUEUED, True)
    one.on_accepted(HERE)
    assert one.state is MoveState.QUEUED, "an answer to an assignment that was replaced says nothing"
    one.on_accepted(THERE)
    assert (one.state, one.is_announced) == (MoveState.ACCEPTED, True)
    one.on_promoted()
    assert (one.state, one.is_announced) == (MoveState.EFFECTIVE, False)


def test_an_answer_before_the_announcement_is_ignored() -> None:
    one = move(MoveState.NONE)
    one.on_accepted(THERE)
    assert one.state is MoveState.NONE
