"""The measurement of the event loop's lag, on a loop whose clock the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from structlog.testing import capture_logs

from strandline.observe.loop_lag import INTERVAL_MS, RECENT, LoopLag
from strandline.protocol.metrics import Histogram


class SomeLoop:
    """A loop with one timer and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due_at = 0.0
        self.callback: Callable[[], None]

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        self.due_at, self.callback = when, callback
        return asyncio.TimerHandle(when, callback, (), self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def fire(self, late_s: float) -> None:
        self.now = self.due_at + late_s
        self.callback()


def started() -> tuple[SomeLoop, LoopLag]:
    loop = SomeLoop()
    lag = LoopLag(loop, Histogram((0.01, 0.1, 1.0)))  # type: ignore[arg-type]
    lag.start()
    return loop, lag


def test_each_delay_of_the_timer_is_measured() -> None:
    loop, lag = started()
    for late_s in (0.0, 0.004, 0.05, 0.7):
        loop.fire(late_s)
    assert lag.histogram.counts == [2, 1, 1, 0]
    assert round(lag.recent_max_s, 6) == 0.7


def test_the_recent_maximum_covers_one_second() -> None:
    loop, lag = started()
    loop.fire(0.3)
    assert round(lag.recent_max_s, 6) == 0.3
    for _ in range(RECENT - 1):
        loop.fire(0.0)
    assert round(lag.recent_max_s, 6) == 0.3
    loop.fire(0.0)
    assert lag.recent_max_s < 0.001


def test_a_late_timer_does_not_make_the_next_one_late() -> None:
    """Otherwise one stall would count as several."""
    loop, _ = started()
    loop.fire(0.5)
    assert 0 < loop.due_at - loop.now <= INTERVAL_MS / 1000


def test_the_timer_fires_at_multiples_of_its_interval() -> None:
    """A broker's pause detector ticks at the same moments, so both wake an idle process once."""
    loop, _ = started()
    for late_s in (0.0, 0.003, 0.7, 0.0):
        loop.fire(late_s)
        assert round(loop.due_at * 1000) % INTERVAL_MS == 0


def test_a_long_stall_is_logged_once_a_minute() -> None:
    loop, _ = started()
    with capture_logs() as lines:
        for late_s in (1.5, 0.9, 2.0, 3.0):
            loop.fire(late_s)
        assert [(line["event"], line["late_ms"]) for line in lines] == [("node.stalled", 1500)]
        loop.now = loop.due_at = loop.now + 60
        loop.fire(1.2)
    assert [line.get("suppressed") for line in lines] == [None, 2]


async def test_a_blocked_real_loop_is_measured() -> None:
    loop = asyncio.get_running_loop()
    lag = LoopLag(loop, Histogram((0.1, 10.0)))
    lag.start()
    async with asyncio.timeout(10):
        while not lag.histogram.counts[0]:
            await asyncio.sleep(0.01)
        until = loop.time() + 0.6
        while loop.time() < until:
            pass
        while not lag.histogram.counts[1]:
            await asyncio.sleep(0.01)
    assert 0.2 < lag.recent_max_s < 10
    lag.stop()
