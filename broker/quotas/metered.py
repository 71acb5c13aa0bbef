"""Measures requests: the bytes of Produce, and the time in handlers.

The wrapper of a handler passes a `MeteredRequest` to it. The response gets the throttle time, and then the connection is muted
(KIP-219). The bytes of a Produce request count when it arrives, and a client that exceeds its quota with it is muted at once: the
response may wait for the followers, and more requests could arrive until then.

The time is measured from the decoding of the request until its handler returns; a response that is sent later adds the time of
its encoding. The work of a handler on a thread or in a coroutine is not measured. A request that only brokers send is not
measured either, unless its sender is refused because it is no broker. If a listener of Kafka's protocol (`broker/kafka/`) calls a
handler on behalf of a client, only the time in the handler counts, because the handler's answer is not sent to the client as it
is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.controller.metadata.security.budgets import Budget, Client
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.frames import Records
from strandline.protocol.messages.common import Message
from strandline.protocol.rates import throttle_ms
from strandline.protocol.rpc.server import Handler, ServerRequest
from strandline.protocol.rpc.server_connection import answer_error

OF_BROKERS = frozenset({apis.WRITE_TXN_MARKERS, apis.GET_REPLICA_LOG_INFO})
"""Requests that only brokers may send (CLUSTER_ACTION). Requests that both followers and clients send are recognised by their
replica id."""
_CLIENT_ID_MAX = 1024


def client_of(request: ServerRequest) -> Client:
    """The user and the client id of a request's sender. The client id is cut to `_CLIENT_ID_MAX` characters, because thousands of
    them are kept, and a client may send one of megabytes. No quota names a longer one."""
    return request.principal.name, (request.client_id or "")[:_CLIENT_ID_MAX]


class MeteredRequest(ServerRequest, eq=False):
    """A request of a client that has a quota."""

    meter: Meter | None = None
    produce: Budget | None = None
    """The budget that is charged for the request's bytes; None if no quota applies."""
    request: Budget | None = None
    """The budget that is charged for the time in the handler; None if no quota applies."""
    counted_at: float = 0.0
    """The time on the stopwatch up to which the time in the handler was charged; 0 when the handler has returned."""

    def reply(self, body: Message, records: Records | None = None) -> None:
        assert self.meter is not None
        started_at = self.counted_at or self.meter.stopwatch()
        wait_s = self.meter.wait_s(self)
        if wait_s and hasattr(body, "throttle_time_ms"):
            body = msgspec.structs.replace(body, throttle_time_ms=max(body.throttle_time_ms, throttle_ms(wait_s)))
        ServerRequest.reply(self, body, records)
        self._on_answered(started_at, wait_s)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        assert self.meter is not None
        started_at = self.counted_at or self.meter.stopwatch()
        wait_s = self.meter.wait_s(self)
        ServerRequest.refuse(self, code, message)
        self._on_answered(started_at, wait_s)

    def no_reply(self) -> None:
        assert self.meter is not None
        wait_s = self.meter.wait_s(self)
        ServerRequest.no_reply(self)
        self.connection.mute(wait_s)

    def _on_answered(self, started_at: float, wait_s: float) -> None:
        assert self.meter is not None
        self.connection.mute(wait_s)
        if not self.counted_at:
            self.meter.count_time(self, started_at)


class Meter:
    """Wraps handlers, so that their requests are measured."""

    def __init__(self, quotas: BrokerQuotas, now: Callable[[], float], stopwatch: Callable[[], float]) -> None:
        self._quotas = quotas
        self._now = now
        self.stopwatch = stopwatch

    def wrap(self, api_key: int, handler: Handler) -> Handler:
        """The handler that measures the requests of one API."""
        counts_bytes, is_exempt = api_key == apis.PRODUCE, api_key in OF_BROKERS

        def handle(request: Any) -> Any:
            if is_exempt or getattr(request.body, "replica_id", -1) >= 0:
                return self._run_exempt(handler, request)
            if not isinstance(request, ServerRequest):
                return self._run_inner(handler, request)
            metered = self._metered(request, counts_bytes)
            return handler(request) if metered is None else self._run(handler, metered)

        return handle

    def _run_exempt(self, handler: Handler, request: ServerRequest) -> Any:
        """Run a request that only brokers may send. A sender that is refused because it is no broker is charged for it."""
        try:
            return handler(request)
        except BrokerError as e:
            metered = self._metered(request, False) if e.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None
            if metered is None:
                raise
            metered.counted_at = request.connection.request_began_at
            metered.refuse(e.code, e.message)
            return None

    def _run_inner(self, handler: Handler, request: Any) -> Any:
        budget, began_at = self._quotas.request.budget_of(client_of(request), self._now()), self.stopwatch()
        result = handler(request)
        if budget is not None:
            budget.charge(self.stopwatch() - began_at, self._now())
        return result

    def _metered(self, request: ServerRequest, counts_bytes: bool) -> MeteredRequest | None:
        """The request with the budgets that are charged for it; None if no quota applies."""
        now, client, quotas = self._now(), client_of(request), self._quotas
        produce = quotas.produce.budget_of(client, now) if counts_bytes else None
        of_time = quotas.request.budget_of(client, now)
        if produce is None and of_time is None:
            return None
        metered = MeteredRequest(*msgspec.structs.astuple(request))
        metered.meter, metered.produce, metered.request = self, produce, of_time
        return metered

    def _run(self, handler: Handler, request: MeteredRequest) -> None:
        if request.produce is not None:
            now = self._now()
            request.produce.charge(request.size, now)
            request.connection.mute(self._quotas.byte_wait_s(request.produce, now))
        request.counted_at = request.connection.request_began_at
        try:
            result = handler(request)
        except Exception as e:
            answer_error(request, e)
        else:
            if result is not None:
                request.connection.server.run_coroutine(request, result)
        self.count_time(request, request.counted_at)
        request.counted_at = 0.0

    def count_time(self, request: MeteredRequest, since: float) -> None:
        """Charge the request's client for the time since `since`, on the stopwatch."""
        if request.request is not None:
            until = self.stopwatch()
            request.request.charge(until - since, self._now())
            request.counted_at = until

    def wait_s(self, request: MeteredRequest) -> float:
        """The seconds for which the client must wait after the answer to this request; 0 if it is within its quotas."""
        if request.counted_at:
            self.count_time(request, request.counted_at)
        now, quotas = self._now(), self._quotas
        waits = []
        if request.produce is not None:
            waits.append((quotas.byte_wait_s(request.produce, now), quotas.produce.key, request.produce))
        if request.request is not None:
            waits.append((quotas.request_wait_s(request.request, now), quotas.request.key, request.request))
        wait_s, key, budget = max(waits, key=lambda each: each[0])
        if wait_s:
            quotas.metrics.on_throttled(key, budget.payer, wait_s)
        return wait_s
