"""The budgets of one kind of quota: one token bucket for each user, client id, or client id of a user that shares a quota.

Which budget pays for a client is looked up once, and remembered until a quota changes. A budget that was not used for `IDLE_S` is
dropped. If clients keep using new ids, the budgets that were used longest ago are dropped sooner, so that there are never more
than `BUDGETS_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.controller.metadata.security.quota_lookup import ClientQuotas, Payer, has_quota, quota_of
from strandline.protocol.rates import TokenBucket

BUDGETS_MAX = 10_000
"""The most budgets, and the most clients whose budget is remembered."""
IDLE_S = 3600.0
"""Seconds after which an unused budget is dropped, as Kafka drops its sensors."""


@dataclass(frozen=True, slots=True)
class Window:
    """`quota.window.num` windows of `quota.window.size.seconds`."""

    num: int = 11
    size_s: float = 1.0

    @property
    def length_s(self) -> float:
        return self.num * self.size_s

    def bucket(self, rate: float, now: float) -> TokenBucket:
        """The bucket of a new client, for `rate` per second."""
        length_s = self.length_s
        return TokenBucket(rate, now, burst_s=length_s, first_s=self.size_s, debt_s=length_s)


class StrictWindow(Window):
    """The window of a quota whose requests are refused while there is a debt (Kafka's TokenBucket). A bucket begins full, and its
    debt has no bound."""

    __slots__ = ()

    def bucket(self, rate: float, now: float) -> TokenBucket:
        return TokenBucket(rate, now, burst_s=self.length_s, first_s=self.length_s, debt_s=float("inf"))


class Budget:
    """The budget of the clients that share a quota."""

    __slots__ = ("bucket", "payer", "used_at")

    def __init__(self, payer: Payer, bucket: TokenBucket, now: float) -> None:
        self.payer = payer
        self.bucket = bucket
        self.used_at = now

    def charge(self, amount: float, now: float) -> None:
        """Count what a client has used."""
        self.used_at = now
        self.bucket.spend(amount, now)


Client = tuple[str, str]
"""User and client id; a client without an id has the empty one."""


class Budgets:
    """The budgets of one quota key."""

    def __init__(self, key: str, window: Window, unit: float = 1.0) -> None:
        """`unit`: how much a quota of 1 permits per second; 0.01 s for a percentage."""
        self.key = key
        self.window = window
        self._unit = unit
        self._quotas: ClientQuotas = {}
        self._by_payer: dict[Payer, Budget] = {}
        """Payer -> its budget, in the order of their creation."""
        self._by_client: dict[Client, Budget | None] = {}
        """The result of the look-up, by client. None: the client has no limit."""

    @property
    def is_needed(self) -> bool:
        """Whether any client has a quota of this kind."""
        return has_quota(self._quotas, self.key)

    def __len__(self) -> int:
        return len(self._by_payer)

    def use(self, quotas: ClientQuotas, now: float) -> None:
        """Use these quotas from now on. Amounts that were used stay counted, against the new quota, if the payer is the same."""
        self._quotas = quotas
        self._by_client.clear()
        for payer, budget in list(self._by_payer.items()):
            found = quota_of(quotas, self.key, *_example(payer))
            if found is None or found.payer != payer:
                del self._by_payer[payer]
            else:
                budget.bucket.use_rate(found.value * self._unit, now)

    def budget_of(self, client: Client, now: float) -> Budget | None:
        """The budget that pays for this client; None if it has no limit."""
        try:
            return self._by_client[client]
        except KeyError:
            pass
        self._make_room()
        found = quota_of(self._quotas, self.key, *client)
        budget = None
        if found is not None:
            budget = self._by_payer.get(found.payer)
            if budget is None:
                budget = Budget(found.payer, self.window.bucket(found.value * self._unit, now), now)
                self._by_payer[found.payer] = budget
        self._by_client[client] = budget
        return budget

    def drop_idle(self, now: float) -> None:
        """Drop the budgets that were not used for a long time, and what is remembered of their clients."""
        self._drop({payer for payer, budget in self._by_payer.items() if now - budget.used_at > IDLE_S})

    def _make_room(self) -> None:
        """If too many clients are remembered, drop them all. If there are too many budgets, drop the tenth that was unused for
        longest."""
        if len(self._by_client) >= BUDGETS_MAX:
            self._by_client.clear()
        if len(self._by_payer) >= BUDGETS_MAX:
            longest_unused = sorted(self._by_payer.values(), key=lambda budget: budget.used_at)
            self._drop({budget.payer for budget in longest_unused[: BUDGETS_MAX // 10]})

    def _drop(self, payers: set[Payer]) -> None:
        if payers:
            self._by_payer = {payer: budget for payer, budget in self._by_payer.items() if payer not in payers}
            self._by_client.clear()


def _example(payer: Payer) -> Client:
    """A client that this payer pays for, unless a more specific quota was set since."""
    return payer.user or "", payer.client_id or ""
