"""The histogram of the metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.protocol.metrics import DURATION_S, LATENCY_S, Histogram

values = st.lists(st.one_of(st.floats(0, 100), st.sampled_from(LATENCY_S)), max_size=50)


@given(values)
def test_a_bucket_counts_values_up_to_its_bound(observed: list[float]) -> None:
    """Prometheus' `le`: the bounds are inclusive."""
    histogram = Histogram(LATENCY_S)
    for value in observed:
        histogram.observe(value)
    below = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        assert below == sum(value <= bound for value in observed)
    assert histogram.count == len(observed)
    assert histogram.sum == pytest.approx(sum(observed))


@given(values, values)
def test_the_sum_of_two_histograms_counts_both(first: list[float], second: list[float]) -> None:
    parts = [Histogram(), Histogram()]
    whole = Histogram()
    for histogram, observed in zip(parts, (first, second), strict=True):
        for value in observed:
            histogram.observe(value)
            whole.observe(value)
    together = parts[0].plus(parts[1])
    assert together.counts == whole.counts
    assert together.sum == pytest.approx(whole.sum)
    assert parts[0].count == len(first)


def test_histograms_with_different_bounds_are_not_added() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Histogram(LATENCY_S).plus(Histogram(DURATION_S))
