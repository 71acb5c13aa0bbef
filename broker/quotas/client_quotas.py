"""The client quotas of a broker: how many bytes a client may produce and fetch, and how much of the event loop it may use.

    producer_byte_rate    the bytes of Produce requests, per second
    consumer_byte_rate    the bytes of records in responses to consumers' fetches, per second
    request_percentage    the time in handlers, in per cent of the event loop: 100 is all of it

Each broker measures by itself, as in Kafka. Other limits are elsewhere: `controller/security/mutation_quota.py` for changes that
clients ask of the controllers, `connections.py` for connections.
"""

from __future__ import annotations

from strandline.broker.quotas.metrics import QuotaMetrics
from strandline.controller.metadata.security.budgets import Budget, Budgets, Window
from strandline.controller.metadata.security.quota_lookup import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)

WAIT_S_MIN = 0.05
"""The shortest throttle time. Without it, a client with small requests would be muted for a moment after each one, which costs
more than the requests. The client may use what its budget gains while it is muted, so its rate is the same."""


class BrokerQuotas:
    """The budgets of all clients of one broker."""

    def __init__(self, window: Window) -> None:
        self.produce = Budgets(PRODUCER_BYTE_RATE, window)
        self.fetch = Budgets(CONSUMER_BYTE_RATE, window)
        self.request = Budgets(REQUEST_PERCENTAGE, window, unit=0.01)
        self.window = window
        self.metrics = QuotaMetrics()

    @property
    def kinds(self) -> tuple[Budgets, ...]:
        return self.produce, self.fetch, self.request

    def use(self, quotas: ClientQuotas, now: float) -> None:
        """Apply changed quotas."""
        for kind in self.kinds:
            kind.use(quotas, now)

    def drop_idle(self, now: float) -> None:
        """Drop the budgets of clients that have sent no request for a long time. Called regularly."""
        for kind in self.kinds:
            kind.drop_idle(now)

    def byte_wait_s(self, budget: Budget, now: float) -> float:
        """The throttle time of a byte quota: at most the length of all windows; 0 if the budget is not in debt."""
        return _within(budget.bucket.wait_s(now), self.window.length_s)

    def request_wait_s(self, budget: Budget, now: float) -> float:
        """The throttle time of a request quota: at most one window, so that a slow handler does not silence a client."""
        return _within(budget.bucket.wait_s(now), self.window.size_s)


def _within(wait_s: float, longest_s: float) -> float:
    return min(max(wait_s, WAIT_S_MIN), longest_s) if wait_s else 0.0
