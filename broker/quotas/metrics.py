"""Counters of throttled requests: by kind of quota, and by user and client id, for a bounded number of them."""

from __future__ import annotations

from strandline.controller.metadata.security.quota_lookup import Payer
from strandline.protocol.log_limits import printable

PAYERS_MAX = 100
"""The maximum number of users and client ids with counters of their own, per kind of quota; later ones share `OTHERS`."""
OTHERS = ("(others)", "(others)")


class ThrottleTime:
    """The number of throttled requests of one payer, and the sum of their throttle times."""

    __slots__ = ("requests", "seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = 0.0


class QuotaMetrics:
    """(quota key, user, client id) -> the throttled requests. A user or client id that the quota does not name is empty."""

    def __init__(self) -> None:
        self.throttled: dict[str, dict[tuple[str, str], ThrottleTime]] = {}

    def on_throttled(self, key: str, payer: Payer, seconds: float) -> None:
        """Count a request whose client must wait. `seconds`: its throttle time."""
        of_key = self.throttled.setdefault(key, {})
        labels = (printable(payer.user or "") or "", printable(payer.client_id or "") or "")
        if labels not in of_key and len(of_key) >= PAYERS_MAX:
            labels = OTHERS
        counted = of_key.get(labels)
        if counted is None:
            counted = of_key[labels] = ThrottleTime()
        counted.requests += 1
        counted.seconds += seconds
