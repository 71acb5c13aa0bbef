"""A request that the broker sends to its own handlers on behalf of a Kafka client, because one request of Kafka's needs several
of ours.

The same guards and quotas apply as to a request of the client itself, because they are in the handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from strandline.broker.kafka.call import check_limits
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.server_connection import ServerRequest


class InnerRequest:
    """Replaces a `ServerRequest`: the handler's response becomes the result of the future `answer`, instead of a frame."""

    __slots__ = ("_request", "answer", "api_key", "api_version", "body")

    def __init__(self, request: ServerRequest, api_key: int, body: Message | None, api_version: int = 0) -> None:
        self._request = request
        self.api_key = api_key
        self.api_version = api_version
        self.body = body
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def is_open(self) -> bool:
        return not self.answer.done() and not self._request.connection.closed

    def reply(self, body: Message, records: Any = None) -> None:
        if not self.answer.done():
            self.answer.set_result(body)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        if not self.answer.done():
            self.answer.set_exception(BrokerError(code, message or code.name))


async def ask(request: ServerRequest, api_key: int, body: Message, api_version: int = 0) -> Any:
    """Send a request in the name of the client to this broker's handler, and return its response. Raises the BrokerError of a
    refusal.

    Cancelled when the client's connection is lost, because handlers do not answer requests of lost connections."""
    check_limits(body)
    connection: Any = request.connection
    inner = InnerRequest(request, api_key, body, api_version)
    return await answer_of(inner, lambda: connection.handlers[api_key](inner))


async def answer_of(inner: InnerRequest, run: Callable[[], Awaitable[None] | None]) -> Any:
    """The answer to an inner request, which `run` hands to a handler. Cancelled, like `ask`, when the connection is lost."""
    connection: Any = inner.connection
    if connection.closed:
        raise BrokerError(ErrorCode.NETWORK_EXCEPTION, "the client has closed its connection")
    connection.asked[inner.answer] = None
    try:
        result = run()
        if result is not None:
            await result
        return await inner.answer
    finally:
        connection.asked.pop(inner.answer, None)
