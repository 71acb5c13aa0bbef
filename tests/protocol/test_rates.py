"""The token bucket (`protocol/rates.py`)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.protocol.rates import TokenBucket, throttle_ms

ROUNDING = 1e-6
"""Tokens by which sums of floating-point numbers may differ."""


def bucket(
    rate: float = 100.0, now: float = 0.0, burst_s: float = 11.0, first_s: float = 1.0, debt_s: float = 11.0
) -> TokenBucket:
    return TokenBucket(rate, now, burst_s=burst_s, first_s=first_s, debt_s=debt_s)


def test_new_client_may_spend_one_window() -> None:
    """If each new client id could spend a whole burst, a client would exceed its quota by changing its id."""
    budget = bucket()
    assert budget.tokens(0.0) == 100.0


def test_wait_is_excess_divided_by_quota() -> None:
    """Kafka's throttle time: (observed - quota) / quota x window."""
    budget = bucket()
    budget.spend(350.0, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(2.5)
    assert budget.wait_s(2.0) == pytest.approx(0.5)
    assert budget.wait_s(2.5) == 0.0


def test_idle_client_gains_at_most_a_burst() -> None:
    """`quota.window.num` bounds what a client may save up."""
    budget = bucket()
    assert budget.tokens(1000.0) == 1100.0


def test_debt_is_bounded() -> None:
    """One absurdly large request must not silence a client for an hour."""
    budget = bucket()
    budget.spend(1e9, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(11.0)


def test_given_back_tokens_can_be_spent() -> None:
    """A request that was refused after its check costs nothing."""
    budget = bucket()
    budget.spend(150.0, 0.0)
    budget.spend(-150.0, 0.0)
    assert budget.tokens(0.0) == 100.0


def test_changed_rate_counts_at_once() -> None:
    """A raised quota ends a long wait; a lowered one takes back what was saved up."""
    budget = bucket()
    budget.spend(1100.0, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(10.0)
    budget.use_rate(1000.0, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(1.0)
    idle = bucket(now=0.0)
    idle.tokens(1000.0)
    idle.use_rate(10.0, 1000.0)
    assert idle.tokens(1000.0) == 110.0


@settings(deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_busy_client_gets_its_rate_exactly(requests: list[int]) -> None:
    """A client that waits as long as it is asked to gets the quota, the first window and its last request, for which it waits
    later: its spent tokens and those left together are the tokens that arrived. Times are rounded, by far less than a token."""
    budget, now, spent = bucket(), 0.0, 0
    for size in requests:
        now += budget.wait_s(now)
        assert budget.tokens(now) >= -ROUNDING
        budget.spend(size, now)
        spent += size
        assert spent + budget.tokens(now) == pytest.approx(100.0 + 100.0 * now, abs=ROUNDING)
    assert 100.0 * now <= spent <= 100.0 * now + 100.0 + requests[-1] + ROUNDING


def test_client_without_debt_may_exceed_its_rate_by_one_request() -> None:
    """The largest excess over the rate: a client that has just used up its tokens owes nothing, and need not wait."""
    budget, now, spent = bucket(), 0.0, 0.0
    for size in (99.9, 0.1, 500.0):
        now += budget.wait_s(now)
        budget.spend(size, now)
        spent += size
    assert spent == pytest.approx(100.0 * now + 100.0 + 500.0)
    assert budget.wait_s(now) == pytest.approx(5.0)


def test_throttle_time_is_rounded_up() -> None:
    """If it were rounded down, a client that returns a fraction of a millisecond too soon would be throttled again."""
    assert [throttle_ms(wait_s) for wait_s in (0.0, 0.0001, 0.001, 1.0001)] == [0, 1, 1, 1001]


@pytest.mark.parametrize("wait_s", [1e7, 1e300, float("inf")])
def test_wait_that_no_response_has_room_for_is_stated_as_the_longest(wait_s: float) -> None:
    """A controller's debt has no bound: a client that deletes a topic of 10,000 partitions with 0.001 per second waits for four
    months. A broker could not read a larger number in the controller's response."""
    assert throttle_ms(wait_s) == 2**31 - 1
