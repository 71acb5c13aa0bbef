"""Limits the bytes per second of all cleanings of a broker together, and finds out whether it serves requests. Pure."""

from __future__ import annotations


class Throttle:
    """Computes how long to wait after each step, so that the rate is kept on average."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0
        """When the bytes so far are paid for, in seconds of the loop's time."""

    def delay_s(self, size: int, now: float) -> float:
        """Seconds to wait at `now`, after `size` bytes were read and written."""
        self._free_at = max(self._free_at, now) + size / self._bytes_per_second
        return self._free_at - now


IDLE_REQUESTS_PER_S = 30.0
"""A broker with fewer requests counts as idle: two followers that wait for records send four each second."""
_BUSY_FROM = 2.0
_LEVEL_MAX = 5.0
"""The broker counts as idle again at most a tenth of a second after its last request."""


class RequestLoad:
    """Whether a broker serves requests, from the number that it has served.

    Each request adds one to a level, which falls by `IDLE_REQUESTS_PER_S`."""

    def __init__(self) -> None:
        self._level = 0.0
        self._served = 0
        self._seen_at = 0.0

    def is_busy(self, served: int, now: float) -> bool:
        """`served`: the number of requests up to `now`, in seconds of the loop's time. It may fall, as a sum of counters does if
        one of them ends."""
        fallen = max(0.0, self._level - (now - self._seen_at) * IDLE_REQUESTS_PER_S)
        self._level = min(_LEVEL_MAX, fallen + max(0, served - self._served))
        self._served, self._seen_at = served, now
        return self._level >= _BUSY_FROM
