"""I33: a broker and a fetcher do not go in circles: a fetch without news is answered when its wait has ended, not before.

If a fetch is answered early although nothing is new for the fetcher, the fetcher sends the next one at once, which is answered
early again: both processes are busy without progress, as fast as the network permits (KAFKA-9731, redpanda#31580). A few such
answers in a row are right: a fetcher that has another partition to fetch ends its parked fetch, and errors are repeated after a
pause.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from typing import Any

from strandline.testing.simulation.invariants.violation import Violation

IN_A_ROW_MAX, WITHIN_S = 100, 1.0
"""Twice the answers that a retry every 20 ms causes in this time; processes that go in circles cause thousands."""
EARLY = 0.5
"""A fetch is answered early if less than this part of its wait has passed; the clocks of the nodes do not agree better."""


class LastResponses:
    """The broker's last response about each partition over one connection, and the number of its latest responses in a row that
    were early and had no news."""

    __slots__ = ("by_partition", "in_a_row", "since")

    def __init__(self) -> None:
        self.by_partition: dict[tuple[bytes, int], tuple[int, ...]] = {}
        self.in_a_row = 0
        self.since = 0.0


def on_fetch_answered(last: LastResponses, node: int, fetch: Any, answer: Any, now: float) -> None:
    """Judge the answer to a fetch, which is about to be sent."""
    wait_s = fetch.request.body.max_wait_ms / 1000
    is_news = _note_news(last, answer)
    if is_news or not wait_s or not fetch.request.body.min_bytes or now - fetch.request.received_at > EARLY * wait_s:
        last.in_a_row = 0
        return
    if not last.in_a_row or now - last.since > WITHIN_S:
        last.in_a_row, last.since = 0, now
    last.in_a_row += 1
    if last.in_a_row > IN_A_ROW_MAX:
        fetcher = "a consumer" if fetch.session.replica_id < 0 else f"broker {fetch.session.replica_id}"
        text = (
            f"broker {node} has answered {last.in_a_row} fetches of {fetcher} within {now - last.since:.3f} s, before their wait "
            f"of {wait_s * 1000:.0f} ms was over, and none of the responses had anything new"
        )
        raise Violation("I33", text, node=node)


def _note_news(last: LastResponses, answer: Any) -> bool:
    is_news = False
    for response, buffers in zip(answer.responses, answer.records, strict=True):
        key = (response.topic_id, response.partition)
        says = (
            response.error_code,
            response.high_watermark,
            response.log_start_offset,
            response.preferred_read_replica,
            response.diverging_epoch.end_offset,
        )
        is_news |= bool(buffers) or last.by_partition.get(key) != says
        last.by_partition[key] = says
    return is_news
