"""A night of chaos writes millions of operations, and the checker must judge them in minutes."""

from __future__ import annotations

import cProfile
import pstats
import time

import pytest

from strandline.testing.history import History, check


def good_history(sends: int, *, records_per_poll: int) -> History:
    """Everything is acknowledged, and read twice."""
    history = History()
    for number in range(sends):
        history.invoke(f"producer-{number % 3}", "orders", number, session=1).ok(number, leader_epoch=1)
        if number % 100 == 0:
            history.latest("admin", "orders", number + 1, began_at=history.now())
    for process, final in (("reader", False), ("last", True)):
        for first in range(0, sends, records_per_poll):
            records = [(n, n) for n in range(first, min(first + records_per_poll, sends))]
            history.poll(process, "orders", records, final=final, began_at=history.now())
    return history


def bad_history(sends: int) -> History:
    """Many anomalies of most kinds: every second record is lost, what is read was read differently and out of order."""
    history = History()
    for number in range(sends):
        history.invoke("p", "orders", number).ok(number ^ 1, leader_epoch=number % 7)
    for number in range(0, sends, 2):
        history.poll("r", "orders", [(number, number)], began_at=history.now())
        history.poll("s", "orders", [(number, -number), (number, number)], follower=True)
        history.latest("c", "orders", number // 3, began_at=history.now())
    history.poll("last", "orders", [(n, n) for n in range(0, sends, 4)], final=True)
    return history


def calls(history: History) -> int:
    """How many functions the check calls. It is the same in every run, unlike the time, which depends on the machine."""
    profile = cProfile.Profile()
    profile.runcall(check, history)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


def test_twice_the_operations_are_twice_the_work() -> None:
    small, large = (calls(good_history(n, records_per_poll=5)) for n in (4_000, 8_000))
    assert large < 2.2 * small


def test_twice_the_anomalies_are_twice_the_work() -> None:
    """The worst runs are those that must be judged in time, too."""
    small, large = (bad_history(n) for n in (2_000, 4_000))
    assert sum(check(small).counts().values()) > 4_000
    assert calls(large) < 2.2 * calls(small)


@pytest.mark.slow
def test_a_million_operations_are_judged_in_a_minute() -> None:
    """The limit is one of the process's own time: it takes some seconds, and a quadratic check would need days."""
    history = good_history(600_000, records_per_poll=3)
    assert len(history.sends) + len(history.polls) >= 1_000_000
    started = time.process_time()
    verdict = check(history)
    assert time.process_time() - started < 60
    assert verdict.good, str(verdict)
    assert (verdict.acknowledged, verdict.read) == (600_000, 600_000)


def test_many_anomalies_are_all_counted_and_some_kept() -> None:
    """A cluster that lost everything must not fill the memory with sentences."""
    history = History()
    for number in range(5_000):
        history.invoke("p", "orders", number).ok(number)
    history.poll("last", "orders", [], final=True)
    verdict = check(history)
    assert verdict.counts() == {"lost-write": 5_000}
    assert len(verdict.anomalies) == 1_000
