"""A consumer's fetch while consumers have quotas (`consumer_byte_rate`).

A fetch gets at most what is left of the budget, but at least one batch if anything is left; the batch may put the budget into
debt. A fetch of a client in debt is answered at once, empty and with the throttle time, and its connection is muted. Such an
answer leaves the session unchanged, because no partition was read. It establishes no new session, as in Kafka: the client asks
for one again.
"""

from __future__ import annotations

from strandline.broker.fetch.fetch_handler import Answer, Fetch, FetchHandler
from strandline.broker.fetch.fetch_session import FetchSession
from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.broker.quotas.metered import client_of
from strandline.protocol.messages.data import FetchResponse
from strandline.protocol.rates import throttle_ms
from strandline.protocol.rpc.server import ServerRequest


class LimitedFetch(Fetch):
    """One fetch request of a client that may have a quota. Followers have none."""

    __slots__ = ("_budget", "_quotas")

    def __init__(
        self, quotas: BrokerQuotas, handler: FetchHandler, request: ServerRequest, session: FetchSession, is_full: bool
    ) -> None:
        super().__init__(handler, request, session, is_full)
        self._quotas = quotas
        now = handler.now()
        self._budget = None if session.is_follower else quotas.fetch.budget_of(client_of(request), now)
        if self._budget is not None:
            self.limit_bytes(max(1, int(self._budget.bucket.tokens(now))))

    def begin(self, max_wait_ms: int) -> None:
        wait_s = self._wait_s()
        if wait_s:
            self.is_completed = True
            self._throttle(wait_s)
        else:
            super().begin(max_wait_ms)

    def reply(self, answer: Answer) -> None:
        """Send the answer, or an empty one if other requests have used up the budget while this one waited."""
        wait_s = self._wait_s() if answer.size else 0.0
        if wait_s:
            self._throttle(wait_s)
            return
        if self._budget is not None:
            self._budget.charge(answer.size, self.handler.now())
        super().reply(answer)

    def _wait_s(self) -> float:
        return 0.0 if self._budget is None else self._quotas.byte_wait_s(self._budget, self.handler.now())

    def _throttle(self, wait_s: float) -> None:
        assert self._budget is not None
        self._quotas.metrics.on_throttled(self._quotas.fetch.key, self._budget.payer, wait_s)
        self.request.reply(FetchResponse(throttle_ms(wait_s), 0, self.leave_session_unchanged(), [], []), [])
        self.request.connection.mute(wait_s)
