"""A token bucket, which measures quotas and rate limits.

Tokens arrive at `rate` per second, and at most `burst_s` seconds' worth of them is kept. A client may spend more than there is;
then the bucket is in debt, and `wait_s` says when the debt is paid: the client's throttle time. It is Kafka's formula: with W
seconds of window, O the observed and T the permitted rate, (O - T) / T x W is the excess divided by the quota.

Kafka's `Rate` forgets a whole window at once, and so lets a busy client send its quota in waves. The rate of a bucket is exact
over any time in which the client is busy. A new bucket begins with `first_s` seconds' worth, so that a client does not gain a
whole burst by a new name.

The debt is bounded by `debt_s` seconds of the rate, as Kafka's is by its window: a client that sent far too much in one request
waits for this time, and no longer.
"""

from __future__ import annotations


class TokenBucket:
    """The budget of one client for one resource. `now` never decreases."""

    __slots__ = ("_at", "_tokens", "burst_s", "debt_s", "rate")

    def __init__(self, rate: float, now: float, *, burst_s: float, first_s: float, debt_s: float) -> None:
        self.rate = rate
        """Tokens per second; > 0."""
        self.burst_s = burst_s
        self.debt_s = debt_s
        self._tokens = rate * min(first_s, burst_s)
        self._at = now

    def tokens(self, now: float) -> float:
        """The tokens that may be spent now; a negative number is a debt."""
        self._refill(now)
        return self._tokens

    def spend(self, amount: float, now: float) -> None:
        """Take `amount` tokens, even if that makes a debt. A negative amount gives tokens back."""
        self._refill(now)
        self._tokens = max(self._tokens - amount, -self.rate * self.debt_s)

    def wait_s(self, now: float) -> float:
        """Seconds until the debt is paid; 0 without a debt."""
        self._refill(now)
        return -self._tokens / self.rate if self._tokens < 0 else 0.0

    def use_rate(self, rate: float, now: float) -> None:
        """Change the rate. Tokens and debt stay, within the bounds of the new rate."""
        if rate != self.rate:
            self._refill(now)
            self.rate = rate
            self._tokens = min(max(self._tokens, -rate * self.debt_s), rate * self.burst_s)

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self.rate, self.rate * self.burst_s)
            self._at = now


THROTTLE_MS_MAX = 2**31 - 1
"""The longest throttle time in ms that fits into the field of a response: 25 days."""


def throttle_ms(wait_s: float) -> int:
    """A wait as a response states it: whole milliseconds, rounded up."""
    return -int(-wait_s * 1000 // 1) if wait_s * 1000 < THROTTLE_MS_MAX else THROTTLE_MS_MAX
