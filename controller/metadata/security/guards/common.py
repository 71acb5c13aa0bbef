"""The building blocks of guards.

A guard stands before the handler of an API. It gets the rights of the sender (`Access`), the request and the handler, and does
one of these: it passes the request on; it raises the error of the whole request; it answers the request itself, if nothing of it
is allowed; or it passes on a `PartialRequest`. *Every* item of a request is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from strandline.controller.metadata.security.access import Access
from strandline.controller.metadata.security.partial_request import Complete, PartialRequest, put_back
from strandline.protocol.apis import APIS

Handler = Callable[[Any], Any]
Guard = Callable[[Access, Any, Handler], Any]
"""Returns what the handler returns: None, or an awaitable."""
Refuse = Callable[[Access, Any], Any]
"""Checks an item of the request by the sender's rights. Returns the row of the response that refuses it, or None."""


def everyone(access: Access, request: Any, handler: Handler) -> Any:
    """The guard of APIs that need no right. Handlers are not wrapped with it."""
    return handler(request)


def cluster(*operations: int) -> Guard:
    """A guard of requests that need one of these rights on the cluster."""

    def guard(access: Access, request: Any, handler: Handler) -> Any:
        access.require_cluster(*operations)
        return handler(request)

    return guard


def items(field: str, rows: str, refuse: Refuse, *, asks_for_none: bool = False) -> Guard:
    """A guard that checks each item of the request's list `field` by itself. The item has a row in the response's list `rows`.

    `asks_for_none`: the handler is called even if no item is left, because it may raise an error of the whole request. Topics
    that do not exist get that error; if refused topics did not get it, the sender would learn that they exist."""

    def guard(access: Access, request: Any, handler: Handler) -> Any:
        return pass_items(request, handler, field, rows, dict(_refused(access, request, field, refuse)), asks_for_none)

    return guard


def _refused(access: Access, request: Any, field: str, refuse: Refuse) -> list[tuple[int, Any]]:
    wanted = getattr(request.body, field)
    return [(index, row) for index, item in enumerate(wanted) if (row := refuse(access, item)) is not None]


def pass_items(
    request: Any, handler: Handler, field: str, rows: str, refused: dict[int, Any], asks_for_none: bool = False
) -> Any:
    """Pass on the request without the refused items, whose rows are given; answer it if none is left."""
    if not refused:
        return handler(request)
    body = request.body
    wanted = getattr(body, field)
    if len(refused) == len(wanted) and not asks_for_none:
        request.reply(APIS[request.api_key].response(**{rows: list(refused.values())}))
        return None

    def complete(response: Any) -> None:
        setattr(response, rows, put_back(getattr(response, rows), refused))

    left = [item for index, item in enumerate(wanted) if index not in refused]
    return handler(PartialRequest(request, replace(body, **{field: left}), complete))


def pass_filtered(request: Any, handler: Handler, complete: Complete) -> Any:
    """Pass on the request, and have `complete` remove from the response what the sender may not see."""
    return handler(PartialRequest(request, request.body, complete))
