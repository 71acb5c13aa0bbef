"""The deadlines of a shard: each fires once, at its last time, in the order of times."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.result import Result


class FiredDeadlines:
    """Deadlines that note when they fire."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.fired: list[tuple[str, float]] = []

    def set(self, key: str, due: float, then: Callable[[], None] = lambda: None) -> None:
        def action(now: float, now_ms: int) -> Result:
            self.fired.append((key, now))
            then()
            return Result()

        self.deadlines.set(key, due, action)

    def expire(self, now: float) -> list[str]:
        """The keys that fire now."""
        before = len(self.fired)
        results = list(self.deadlines.expire(now, int(now * 1000)))
        assert len(results) == len(self.fired) - before
        return [key for key, _ in self.fired[before:]]


@pytest.fixture
def world() -> FiredDeadlines:
    return FiredDeadlines()


def test_deadlines_fire_in_the_order_of_their_times(world: FiredDeadlines) -> None:
    """Deadlines of the same time fire in the order in which they were set, so that a simulation can be repeated."""
    for key, due in (("c", 3), ("a", 1), ("late", 9), ("b2", 2), ("b1", 2)):
        world.set(key, due)
    assert world.expire(0.5) == []
    assert world.expire(3) == ["a", "b2", "b1", "c"]
    assert world.expire(8.9) == []
    assert world.deadlines.next_due() == 9


def test_deadline_fires_once(world: FiredDeadlines) -> None:
    world.set("a", 1)
    assert world.expire(1) == ["a"]
    assert world.expire(2) == []
    assert "a" not in world.deadlines
    assert world.deadlines.next_due() is None


def test_moved_deadline_fires_at_its_last_time(world: FiredDeadlines) -> None:
    """Every heartbeat moves the end of a session."""
    for due in (1, 5, 9):
        world.set("later", due)
    world.set("earlier", 9)
    world.set("earlier", 2)
    assert world.deadlines.due_at("later") == 9
    assert world.expire(2) == ["earlier"]
    assert world.expire(8) == []
    assert world.expire(9) == ["later"]
    assert len(world.deadlines) == 0


def test_moved_deadline_keeps_to_the_order_when_both_times_have_passed(world: FiredDeadlines) -> None:
    """After a pause of the process, many deadlines are due at once."""
    world.set("moved", 1)
    world.set("moved", 5)
    world.set("a", 3)
    assert world.expire(9) == ["a", "moved"]


def test_cancelled_deadline_does_not_fire(world: FiredDeadlines) -> None:
    world.set("a", 1)
    world.deadlines.cancel("a")
    world.deadlines.cancel("unknown")
    assert world.deadlines.due_at("a") is None
    assert world.deadlines.next_due() is None
    assert world.expire(9) == []


def test_deadline_set_again_after_a_cancellation_fires_once(world: FiredDeadlines) -> None:
    world.set("a", 1)
    world.deadlines.cancel("a")
    world.set("a", 5)
    assert world.expire(4) == []
    assert world.expire(5) == ["a"]
    assert world.expire(9) == []


def test_action_may_set_and_cancel_deadlines(world: FiredDeadlines) -> None:
    """The end of a session cancels deadlines of its group, and a periodic deadline sets the next one."""
    world.set("cancelled", 2)
    world.set("again", 1, lambda: world.set("again", 3))
    world.set("a", 1, lambda: world.deadlines.cancel("cancelled"))
    assert world.expire(2) == ["again", "a"]
    assert world.expire(3) == ["again"]


def test_deadline_that_an_action_sets_to_the_past_fires_at_once(world: FiredDeadlines) -> None:
    world.set("a", 1, lambda: world.set("b", 0))
    assert world.expire(1) == ["a", "b"]


def test_deadline_that_is_moved_to_and_fro_leaves_nothing_behind(world: FiredDeadlines) -> None:
    """The connection of a member breaks every few seconds, and it returns: its session is shortened and prolonged each time. The
    heap used to grow by an entry each time, which stayed for as long as the member lived."""
    for now in range(0, 5000, 5):
        assert world.expire(now) == []
        world.set("session", now + 1)
        world.set("session", now + 9)
    assert len(world.deadlines._heap) < 5


def test_action_without_a_decision_yields_nothing() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1, lambda now, now_ms: None)
    assert list(deadlines.expire(1, 1000)) == []
    assert "a" not in deadlines


keys = st.sampled_from("abcd")
times = st.integers(0, 20)
operations = st.one_of(
    st.tuples(st.just("set"), keys, times), st.tuples(st.just("cancel"), keys), st.tuples(st.just("expire"), times)
)


@settings(max_examples=examples(2000))
@given(st.lists(operations, max_size=60))
def test_any_history_fires_as_a_plain_table_would(history: list[tuple[object, ...]]) -> None:
    """The heap keeps out-of-date entries. The same deadlines must fire as from a plain dict."""
    world, due = FiredDeadlines(), dict[str, int]()
    now = 0
    for operation in history:
        match operation:
            case "set", str(key), int(delay):
                world.set(key, now + delay)
                due[key] = now + delay
            case "cancel", str(key):
                world.deadlines.cancel(key)
                due.pop(key, None)
            case "expire", int(delay):
                now += delay
                fired = world.expire(now)
                assert sorted(fired) == sorted(key for key, time in due.items() if time <= now)
                assert [due[key] for key in fired] == sorted(due[key] for key in fired)
                for key in fired:
                    del due[key]
        assert len(world.deadlines) == len(due)
        assert {key: world.deadlines.due_at(key) for key in "abcd"} == {key: due.get(key) for key in "abcd"}
        next_due = world.deadlines.next_due()
        assert (next_due is None) == (not due)
        assert next_due is None or next_due <= min(due.values())
