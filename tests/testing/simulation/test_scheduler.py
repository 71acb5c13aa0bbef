"""The scheduler's time never decreases, and the order of its entries depends on the seed alone."""

from __future__ import annotations

from random import Random

import pytest

from strandline.testing.simulation.kernel.scheduler import QUIET, OutOfTime, Scheduler, cancel


def make(seed: int = 1) -> Scheduler:
    return Scheduler(Random(seed))


def run_out(scheduler: Scheduler) -> None:
    """Run until no entry is left."""
    with pytest.raises(OutOfTime, match="no event is left"):
        scheduler.run(lambda: False)


def test_time_jumps_to_the_next_entry_and_never_goes_back() -> None:
    scheduler = make()
    seen: list[float] = []
    for when in (3.0, 1.0, 2.0, -5.0):
        scheduler.at(when, lambda: seen.append(scheduler.now))
    run_out(scheduler)
    assert seen == [0.0, 1.0, 2.0, 3.0]


def test_entry_for_a_past_time_happens_now() -> None:
    scheduler = make()
    seen: list[float] = []
    scheduler.at(5.0, lambda: scheduler.at(1.0, lambda: seen.append(scheduler.now)))
    run_out(scheduler)
    assert seen == [5.0]


def test_time_that_is_no_number_is_rejected() -> None:
    """In the heap it would compare false with every time, which would break the order of all entries."""
    with pytest.raises(ValueError, match="not a number"):
        make().at(float("nan"), print)


def test_entries_of_one_time_come_in_an_order_of_the_seed() -> None:
    def order(seed: int) -> list[int]:
        scheduler, seen = make(seed), []
        for number in range(20):
            scheduler.at(1.0, seen.append, number)
        run_out(scheduler)
        return seen

    assert order(1) == order(1) != order(2)
    assert order(1) != sorted(order(1)) == list(range(20))


def test_first_comes_before_other_entries_of_its_time() -> None:
    scheduler, seen = make(), []

    def begin() -> None:
        for number in range(20):
            scheduler.after(0.0, seen.append, number)
        scheduler.first(seen.append, "first")
        scheduler.first(seen.append, "then")

    scheduler.at(1.0, begin)
    run_out(scheduler)
    assert seen[:2] == ["first", "then"]
    assert scheduler.now == 1.0


def test_cancelled_entry_is_never_called() -> None:
    scheduler, seen = make(), []
    late = scheduler.at(2.0, seen.append, "late")
    scheduler.at(1.0, cancel, late)
    called = scheduler.at(0.5, seen.append, "called")
    scheduler.at(0.7, cancel, called)  # too late, and without effect
    run_out(scheduler)
    assert seen == ["called"]


def test_cancelled_entries_do_not_pile_up() -> None:
    """Most timers are cancelled. A heap that kept them until their time would grow with every request."""
    scheduler = make()
    for _ in range(10_000):
        cancel(scheduler.at(1e6, print))
    assert len(scheduler._heap) <= 200


def test_sweeping_away_cancelled_entries_keeps_the_order_of_the_others() -> None:
    def seen_with(cancelled: int) -> list[int]:
        scheduler, seen, random = make(), [], Random(3)
        for number in range(300):
            scheduler.at(random.random(), seen.append, number)
        waste = [scheduler.at(2.0, print) for _ in range(cancelled)]
        for entry in waste:
            cancel(entry)
        scheduler.at(3.0, print)
        run_out(scheduler)
        return seen

    assert seen_with(0) == seen_with(5_000)


def test_a_bound_that_is_met_loses_nothing() -> None:
    """A story may be run in two parts: the entry beyond the bound of the first part belongs to the second."""
    scheduler, seen = make(), []
    scheduler.at(10.0, seen.append, 1)
    with pytest.raises(OutOfTime, match="not over"):
        scheduler.run(lambda: False, limit_s=5.0)
    assert (scheduler.now, seen) == (0.0, [])
    scheduler.run(lambda: bool(seen), limit_s=20.0)
    assert seen == [1]


def test_endless_loop_at_one_moment_is_stopped() -> None:
    scheduler = make()

    def again() -> None:
        scheduler.after(0.0, again)

    again()
    with pytest.raises(OutOfTime, match="1000 steps"):
        scheduler.run(lambda: False, steps_max=1000)


def test_failure_ends_the_run_even_if_code_swallowed_it() -> None:
    """An invariant raises inside production code, which may catch the exception."""
    scheduler, seen = make(), []

    def careless() -> None:
        try:
            error = AssertionError("I6")
            scheduler.fail(error)
            raise error
        except AssertionError:
            pass

    scheduler.at(1.0, careless)
    scheduler.at(2.0, seen.append, "went on")
    with pytest.raises(AssertionError, match="I6"):
        scheduler.run(lambda: False)
    with pytest.raises(AssertionError, match="I6"):
        scheduler.run(lambda: False)  # and it stays ended
    assert seen == []


def test_after_step_follows_each_entry_that_is_not_quiet() -> None:
    scheduler, asked = make(), []
    scheduler.after_step.append(lambda: asked.append(scheduler.now))
    scheduler.at(1.0, lambda: None)
    scheduler.at(2.0, lambda: QUIET)
    scheduler.at(3.0, lambda: None)
    run_out(scheduler)
    assert asked == [1.0, 3.0]


def test_an_entry_that_was_called_holds_nothing() -> None:
    """A timer's entry and its handle refer to each other. With the collector off, a cycle stays in memory until the end."""
    scheduler, big = make(), ["a lot"]
    entry = scheduler.at(1.0, lambda _: None, big)
    run_out(scheduler)
    assert entry[3:] == [None, ()]
