"""Limits how many connections an address may have, and how fast it may open them. The listeners of a node share one instance.

Above `max.connections.per.ip` a connection is closed. Above a rate, connections are accepted, but their first request waits until
the rate permits it: a client that connects too often becomes slow, and not unable to work. Only a flood that would have to wait
longer than the whole window is refused, so that the waiting connections of one address are bounded, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandline.protocol.rates import TokenBucket

UNLIMITED = 2**31 - 1
WINDOW_S = 11.0
"""Seconds for which the unused part of a rate is kept. Also the longest time for which a connection waits."""


class CreationRate:
    """The rate at which new connections are served: at least one per second."""

    __slots__ = ("_bucket",)

    def __init__(self, rate: float, now: float) -> None:
        self._bucket = TokenBucket(rate, now, burst_s=WINDOW_S, first_s=1.0, debt_s=WINDOW_S)

    def wait_s(self, now: float) -> float | None:
        """Count a connection that is opened now, and return how many seconds it has to wait. None if it must be refused, because
        too many wait already; then it does not count."""
        if self._bucket.wait_s(now) >= WINDOW_S - 1 / self._bucket.rate:
            return None
        self._bucket.spend(1.0, now)
        return self._bucket.wait_s(now)

    def is_idle(self, now: float) -> bool:
        """Whether all connections have waited long enough that the next one need not wait."""
        return self._bucket.tokens(now) >= 1.0


class AddressLimits:
    """The connections of a node by address."""

    def __init__(self) -> None:
        self.per_address_max = UNLIMITED
        self.overrides: Mapping[str, int] = {}
        """Address -> its own limit."""
        self.refused = 0
        """Connections that were closed because of their address."""
        self.delayed = 0
        self._counts: dict[str, int] = {}
        self._rate_of: Callable[[str], float | None] | None = None
        self._rates: dict[str, CreationRate] = {}

    def use_rates(self, rate_of: Callable[[str], float | None] | None) -> None:
        """Use changed quotas: `rate_of` returns the connections per second of an address. None: no address has a limit."""
        self._rate_of = rate_of
        self._rates.clear()

    def count_of(self, host: str) -> int:
        """How many connections the address has."""
        return self._counts.get(host, 0)

    def check(self, host: str, now: float, of_listener: CreationRate | None) -> tuple[float, str | None]:
        """How many seconds a new connection of the address has to wait, and the reason if it must be refused (else None).

        `of_listener`: the rate of its listener, if that has one."""
        limit = self.overrides.get(host, self.per_address_max)
        if self._counts.get(host, 0) >= limit:
            self.refused += 1
            return 0.0, f"{host} has {limit} connections already (max.connections.per.ip)"
        longest_s = 0.0
        for rate in (self._rate(host, now), of_listener):  # the address first: if it is refused, the listener's rate is not used
            wait_s = 0.0 if rate is None else rate.wait_s(now)
            if wait_s is None:
                self.refused += 1
                return 0.0, "connections are opened faster than the limit permits, and too many wait already"
            longest_s = max(longest_s, wait_s)
        self.delayed += longest_s > 0
        return longest_s, None

    def _rate(self, host: str, now: float) -> CreationRate | None:
        rate = None if self._rate_of is None else self._rate_of(host)
        if rate is None:
            return None
        if host not in self._rates:
            self._rates[host] = CreationRate(max(rate, 1.0), now)
        return self._rates[host]

    def on_made(self, host: str) -> None:
        self._counts[host] = self._counts.get(host, 0) + 1

    def on_lost(self, host: str) -> None:
        left = self._counts[host] - 1
        if left:
            self._counts[host] = left
        else:
            del self._counts[host]

    def sweep(self, now: float) -> None:
        """Drop the rates of addresses that have no connection and whose next one would not have to wait."""
        for host in [host for host, rate in self._rates.items() if host not in self._counts and rate.is_idle(now)]:
            del self._rates[host]
