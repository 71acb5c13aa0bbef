"""Draws changes of dynamic keys, for all brokers or for one of them. No promise to a client depends on these keys."""

from __future__ import annotations

from random import Random

VALUES: dict[str, tuple[int, ...]] = {
    "log.cleaner.backoff.ms": (20, 100, 500),
    "log.cleaner.threads": (1, 2, 3),
    "log.cleaner.dedupe.buffer.size": (1 << 10, 2 << 10, 128 << 20),
    "log.cleaner.io.buffer.size": (1 << 10, 512 << 10),
    "log.cleaner.io.max.bytes.per.second": (10_000, 100_000, 1 << 30),
    "num.replica.fetchers": (1, 2, 3),
    # With less, a follower would copy one batch per round trip, and after an absence could not catch up with the producers.
    "replica.fetch.max.bytes": (2000, 5000, 1 << 20),
    "replica.fetch.response.max.bytes": (8000, 10 << 20),
    "replica.fetch.min.bytes": (1, 100),
    "replica.fetch.backoff.ms": (100, 1000),
    "log.index.interval.bytes": (0, 100, 4096),
    "log.flush.interval.messages": (1, 10, 2**63 - 1),
    "log.roll.ms": (200, 1000, 60_000),
}
"""Key -> the values to choose from. All fit the other settings of any run."""


def draw_change(draw: Random, brokers: int) -> tuple[str, dict[str, int | None]]:
    """A broker's id, or "" for all of them, and one to three keys with their new values; None removes a value."""
    broker = draw.choice(("", str(draw.randint(1, brokers))))
    names = draw.sample(list(VALUES), draw.randint(1, 3))
    return broker, {name: None if draw.random() < 0.25 else draw.choice(VALUES[name]) for name in names}
