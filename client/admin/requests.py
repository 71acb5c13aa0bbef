"""The part that all calls of the admin client share: a started cluster, and a request that is sent again until it succeeds.

Any broker accepts almost any request. A request that only reads is sent to several brokers if one is slow; a request that changes
something is sent to one broker at a time. A request that fails for a moment (there is no controller yet, a connection was lost, a
quota is used up) is repeated until `timeout_ms` of the call has passed. A request that is rejected raises RequestFailed with the
code, the broker's message and the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from strandline.client.cluster.cluster import Cluster
from strandline.client.errors import (
    ClientClosed,
    NoBrokersAvailable,
    RequestFailed,
    RequestTimeout,
    UnknownTopic,
    describe,
    request_failed,
)
from strandline.client.home import Home
from strandline.client.options import AdminOptions
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, StrandlineError, to_code
from strandline.protocol.messages.common import Message

RETRY_S = 0.05
"""Seconds before a request is repeated for the first time, and between two checks whether the cluster has reached a state."""
RETRY_MAX_S = 0.5
"""The pause doubles with each repetition, up to this."""

_READS = frozenset({apis.API_VERSIONS, apis.METADATA, apis.DESCRIBE_CONFIGS, apis.DESCRIBE_CLUSTER, apis.DESCRIBE_QUORUM})
"""Requests that change nothing, so that several brokers may answer them."""

R = TypeVar("R", bound=Message)
Send = Callable[[int, Message, float], Awaitable[Message]]
"""Sends a request of this API key once, and returns its response, which arrives within this time limit in ms."""


class AdminRequests:
    """The base of the admin client's calls. `Admin` starts and stops it."""

    def __init__(self, options: AdminOptions) -> None:
        self.options = options
        self._cluster: Cluster | None = None
        """The cluster's connections and metadata; None before `start`."""
        self._home: Home | None = None
        self._stopped = False

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def _deadline(self, timeout_ms: float) -> float:
        """`timeout_ms` from now, on the loop's clock."""
        return self._loop_time() + timeout_ms / 1000

    def _check_caller(self) -> None:
        """UsageError for a call from another thread or event loop than that of `start`."""
        if self._home is not None:
            self._home.check()

    def _running(self) -> Cluster:
        """The started cluster. ClientClosed before `start` and after `stop`; UsageError for a call from a foreign thread or
        loop."""
        self._check_caller()
        if self._stopped or self._cluster is None:
            raise ClientClosed("the admin client was stopped" if self._stopped else "the admin client was not started")
        return self._cluster

    async def _ask(
        self,
        api_key: int,
        body: Message,
        kind: type[R],
        check: Callable[[R, bool], None] | None,
        deadline: float,
        broker_id: int | None = None,
        send: Send | None = None,
    ) -> R:
        """Send a request to this broker, or to any, until a response passes `check`, an error is not retriable, or the deadline
        (on the loop's clock) is reached. `send` chooses the broker of each attempt, if given. Returns the response, which is of
        class `kind`.

        `check(response, is_retry)` raises the error that the response contains. `is_retry`: an earlier attempt may have made the
        change. Raises that error if it is not retriable or there was one attempt, otherwise RequestTimeout; NoBrokersAvailable if
        no broker could be reached."""
        ask = send or self._route(api_key, broker_id)
        started = self._loop_time()
        attempts, delay_s = 0, RETRY_S
        while True:
            pause_s = delay_s
            timeout_ms = max(1.0, min((deadline - self._loop_time()) * 1000, self.options.request_timeout_ms))
            attempts += 1
            try:
                answer = await ask(api_key, _limited(body, timeout_ms), timeout_ms)
                assert isinstance(answer, kind)
                pause_s = max(delay_s, getattr(answer, "throttle_time_ms", 0) / 1000)
                if check is not None:
                    check(answer, attempts > 1)
                return answer
            except StrandlineError as e:
                if not e.retriable or self._loop_time() + pause_s >= deadline:
                    raise self._finally(e, api_key, attempts, (self._loop_time() - started) * 1000) from e
            await asyncio.sleep(pause_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def _route(self, api_key: int, broker_id: int | None) -> Send:
        """The function that sends a request: to this broker, or if it is None, to as many brokers as the kind of request
        permits."""
        cluster = self._running()
        if broker_id is not None:
            return partial(cluster.connections.request, broker_id)
        return cluster.any_broker.ask_any if api_key in _READS else cluster.any_broker.ask_one

    @staticmethod
    def _finally(error: StrandlineError, api_key: int, attempts: int, elapsed_ms: float) -> StrandlineError:
        if isinstance(error, NoBrokersAvailable) or not error.retriable or attempts == 1:
            return error
        text = f"each attempt failed, the last one with: {error}"
        return RequestTimeout(text, api=apis.api_name(api_key), attempts=attempts, elapsed_ms=elapsed_ms)


def _limited(body: Message, timeout_ms: float) -> Message:
    """The request with the time limit of this attempt, if it has a field for one (as in Kafka). With that of the whole call, a
    broker that has no controller would keep a repeated request after the call has failed, and make the change then."""
    return msgspec.structs.replace(body, timeout_ms=max(1, round(timeout_ms))) if hasattr(body, "timeout_ms") else body


def check_code(error_code: int, message: str | None, api: str, topic: str | None = None) -> None:
    """Raise the error that a response contains, if its code is not 0: UnknownTopic, or RequestFailed with the broker's message.
    `api` is the name of the request, for the error."""
    if error_code:
        code = to_code(error_code)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Retriable for producers, which wait for metadata. Here the controller has answered, so it is final.
            raise _NotFound(describe(code, message) if message else "the topic does not exist", topic=topic, api=api, code=code)
        raise request_failed(describe(code, message), api=api, topic=topic, code=code)


def error_in(error_code: int, message: str | None, api: str) -> RequestFailed | None:
    """The error that a part of a response contains; None for code 0."""
    code = to_code(error_code)
    return request_failed(describe(code, message), api=api, code=code) if code != ErrorCode.NONE else None


class _NotFound(UnknownTopic):
    """UnknownTopic as a final answer."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.retriable = False
