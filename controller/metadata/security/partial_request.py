"""A request from which a guard has removed the items that its sender has no right to: the handler answers for the rest.

The handler sees a body with fewer items. When it answers, at once or later, the rows of the refused items are put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Complete = Callable[[Any], None]
"""Changes the handler's response in place: puts back the rows of the refused items, or removes what may not be seen."""


class PartialRequest:
    """Stands in for a `ServerRequest` (`protocol/rpc/server_connection.py`)."""

    __slots__ = ("_complete", "_request", "body")

    def __init__(self, request: Any, body: Any, complete: Complete) -> None:
        self._request = request
        self._complete = complete
        self.body = body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def reply(self, body: Any, records: Any = None) -> None:
        self._complete(body)
        if records is None:
            self._request.reply(body)
        else:
            self._request.reply(body, records)

    def __repr__(self) -> str:
        return repr(self._request)


class PartialProduce(PartialRequest):
    """A Produce request with acks=0 gets no response, so its connection is closed if an item was refused, as with every error."""

    __slots__ = ()

    def no_reply(self) -> None:
        self._request.no_reply()
        self._request.connection.close_because("a produce with acks=0 failed: TOPIC_AUTHORIZATION_FAILED", self.client_id)


def put_back(rows: list[Any], refused: dict[int, Any]) -> list[Any]:
    """The rows of a response, with the rows of refused items in the positions of these items. (If the handler has answered for
    fewer items than it was asked for, because one was named twice, they are at the end.)"""
    total = len(rows) + len(refused)
    if any(index >= total for index in refused):
        return [*rows, *refused.values()]
    others = iter(rows)
    return [refused[index] if index in refused else next(others) for index in range(total)]
