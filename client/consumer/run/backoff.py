"""Limits how often a record is handled again, and how long `run` waits before that. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from strandline.client.option_types import INT32_MAX, Number, Whole
from strandline.protocol.errors import UsageError

FACTOR_MAX = 1000
_DOUBLINGS_MAX = 64
"""Exponents above this change nothing: the delay has reached `max_ms` long before, and a float would overflow."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays after which a record whose handler failed is handled again: `first_ms` after the first attempt, `factor` times
    as long after each further one, but at most `max_ms`. Each delay is varied by up to `jitter` (0.2: 20 %), so that records that
    failed together are not handled again together. UsageError for a value out of its range."""

    first_ms: float = 1_000
    factor: float = 2.0
    max_ms: float = 60_000
    attempts: int | None = 5
    """The most attempts to handle a record, the first one included. None: until it succeeds."""
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _check("first_ms", Number(0), self.first_ms)
        _check("factor", Number(1, FACTOR_MAX), self.factor)
        _check("max_ms", Number(0), self.max_ms)
        _check("jitter", Number(0, 1), self.jitter)
        if self.attempts is not None:
            _check("attempts", Whole(1, INT32_MAX), self.attempts)
        if self.first_ms > self.max_ms:
            raise UsageError(f"first_ms ({self.first_ms}) of a Backoff must not be larger than max_ms ({self.max_ms})")

    def has_attempt_after(self, attempt: int) -> bool:
        """Whether a record may be handled once more after this attempt. The first attempt is 1."""
        return self.attempts is None or attempt < self.attempts

    def delay_ms(self, attempt: int, random: Random) -> float:
        """Milliseconds to wait after this attempt; at most `max_ms`."""
        plain_ms = min(self.first_ms * self.factor ** min(attempt - 1, _DOUBLINGS_MAX), self.max_ms)
        return min(plain_ms * random.uniform(1 - self.jitter, 1 + self.jitter), self.max_ms)


def _check(name: str, kind: Number | Whole, value: object) -> None:
    try:
        kind.check(value)
    except ValueError:
        raise UsageError(f"{name} of a Backoff must be {kind.text}, not {value!r}") from None
