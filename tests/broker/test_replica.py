"""A leader's view of one follower: the two-tier caught-up rule."""

from __future__ import annotations

import pytest

from strandline.broker.partition.replica import NEVER, UNKNOWN_OFFSET, Replica

LAG = 10.0


class Session:
    def __init__(self, last_fetch_time: float) -> None:
        self.last_fetch_time = last_fetch_time


@pytest.mark.parametrize(
    ("fetches", "caught_up"),
    [
        pytest.param([(1.0, 5, 5)], 1.0, id="at the leader's end: caught up now"),
        pytest.param([(1.0, 4, 5)], NEVER, id="behind, and nothing known before: never"),
        pytest.param([(1.0, 4, 5), (2.0, 5, 9)], 1.0, id="reaches the end of the fetch before: as of that fetch"),
        pytest.param([(1.0, 4, 5), (2.0, 4, 9)], NEVER, id="does not reach it: unchanged"),
        pytest.param([(1.0, 5, 5), (2.0, 5, 9), (3.0, 8, 12)], 1.0, id="falling behind: stays at the last time"),
        pytest.param([(1.0, 5, 5), (2.0, 5, 9), (3.0, 9, 12), (4.0, 12, 20)], 3.0, id="always behind, always closing: in sync"),
        pytest.param([(1.0, 5, 5), (2.0, 3, 5)], 1.0, id="a log end that went back does not raise the time"),
    ],
)
def test_caught_up_time(fetches: list[tuple[float, int, int]], caught_up: float) -> None:
    """Each fetch is (time, fetch offset, the leader's log end then)."""
    replica = Replica(2)
    for now, offset, leader_end in fetches:
        replica.on_fetch(offset, 0, leader_end, 7, now)
    assert replica.last_caught_up_time == caught_up


def test_it_is_caught_up_at_the_leaders_end_however_long_ago_it_fetched() -> None:
    replica = Replica(2)
    replica.on_fetch(5, 0, 5, 7, 1.0)
    assert replica.is_caught_up(5, 1000.0, LAG)


def test_below_the_end_it_is_caught_up_for_the_lag_time_and_not_longer() -> None:
    replica = Replica(2)
    replica.on_fetch(5, 0, 5, 7, 1.0)
    assert replica.is_caught_up(6, 1.0 + LAG, LAG)
    assert not replica.is_caught_up(6, 1.1 + LAG, LAG)


def test_a_replica_that_never_fetched_is_caught_up_for_the_granted_time_only() -> None:
    assert Replica(2).log_end_offset == UNKNOWN_OFFSET
    assert not Replica(2).is_caught_up(0, 5.0, LAG)
    assert Replica(2, last_caught_up_time=1.0).is_caught_up(0, 5.0, LAG)


def test_a_fetch_returns_whether_the_log_end_moved() -> None:
    replica = Replica(2)
    assert replica.on_fetch(5, 0, 9, 7, 1.0)
    assert not replica.on_fetch(5, 0, 9, 7, 2.0)
    assert replica.on_fetch(3, 0, 9, 7, 3.0)


def test_fetches_that_do_not_name_the_partition_count_when_the_leader_appends() -> None:
    """Such fetches do not visit the replica. Without this, it would look stuck as soon as a record is appended."""
    replica = Replica(2)
    replica.on_fetch(5, 0, 5, 7, 1.0)
    replica.session = Session(900.0)
    replica.before_leader_appends()
    assert replica.is_caught_up(6, 900.0 + LAG, LAG)
    assert not replica.is_caught_up(6, 901.0 + LAG, LAG)


def test_without_a_session_only_named_fetches_count() -> None:
    replica = Replica(2)
    replica.on_fetch(5, 0, 5, 7, 1.0)
    replica.before_leader_appends()
    assert replica.last_caught_up_time == 1.0
