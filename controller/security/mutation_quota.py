"""How fast a client may create and delete partitions: `controller_mutation_rate` (KIP-599).

The active controller measures, so the quota holds for the whole cluster. A client may use up to `controller.quota.window.num`
windows' worth at once, and the last request may exceed it. Until that debt is paid, each topic that the client asks for is
refused with THROTTLING_QUOTA_EXCEEDED; the response says how long that takes. Each topic counts by its partitions.

Only requests that a broker forwards for a client count (Envelope): brokers create internal topics for themselves. A new active
controller does not know what was used before, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.controller.metadata.security.budgets import Budget, Budgets, Window
from strandline.controller.metadata.security.quota_lookup import CONTROLLER_MUTATION_RATE, ClientQuotas
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.rates import throttle_ms


class Charge:
    """Pays for the partitions that one request creates and deletes."""

    def __init__(self, budget: Budget | None, now: float) -> None:
        self._budget = budget
        self._now = now
        self.throttle_ms = 0
        """How long the client has to wait, if something was refused."""

    def __call__(self, partitions: int) -> None:
        """Count this many partitions. Raises BrokerError THROTTLING_QUOTA_EXCEEDED if the client had used up its quota before."""
        if self._budget is None:
            return
        wait_s = self._budget.bucket.wait_s(self._now)
        if wait_s:
            self.throttle_ms = throttle_ms(wait_s)
            text = f"the quota {CONTROLLER_MUTATION_RATE} of the client is used up; retry in {self.throttle_ms} ms"
            raise BrokerError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        self._budget.charge(partitions, self._now)


FREE = Charge(None, 0.0)
"""The charge of requests that no quota limits."""


class MutationQuota:
    """The budgets of the active controller's clients."""

    def __init__(self, window: Window, now: Callable[[], float]) -> None:
        self._budgets = Budgets(CONTROLLER_MUTATION_RATE, window)
        self._quotas: ClientQuotas = {}
        self._now = now
        self.throttled = 0
        """Requests of which a part was refused."""

    def use(self, quotas: ClientQuotas) -> None:
        """Use these quotas from now on."""
        if quotas is not self._quotas:
            self._quotas = quotas
            self._budgets.use(quotas, self._now())

    def charge_of(self, request: Any, quotas: ClientQuotas) -> Charge:
        """The charge that counts the partitions of this request. `quotas`: those of the present image."""
        client = getattr(request, "paying_client", None)
        if client is None or not quotas:
            return FREE
        self.use(quotas)
        now = self._now()
        return Charge(self._budgets.budget_of(client, now), now)

    def on_reply(self, charge: Charge, reply: Any) -> None:
        """Put the throttle time into the response."""
        if charge.throttle_ms:
            self.throttled += 1
            reply.throttle_time_ms = charge.throttle_ms
