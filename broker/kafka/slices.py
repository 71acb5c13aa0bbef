"""A request with very many items is served in slices, between which the event loop serves the other connections.

Each slice is a request of its own: it is translated, passes the guards of rights and quotas, and is handled without a break. So
only APIs whose items do not depend on each other are served in slices: a client could send the items in several requests as well.
The last slice is the client's request itself: its answer gets the rows of the earlier slices, and quotas throttle this request.

    items  | 4,000 | 4,000 | ... | the rest      other connections are served at each |
             inner   inner         the request --> all rows

If one slice is refused as a whole, the client's request is refused with the same error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.inner_request import InnerRequest, answer_of

if TYPE_CHECKING:
    from strandline.protocol.rpc.server_connection import Handler, ServerRequest

SLICE = 4_000
"""The items of a slice, which take about 20 ms."""
_LISTS = {
    2: ("topics", "topics"),  # ListOffsets
    3: ("topics", "topics"),  # Metadata
    9: ("groups", "groups"),  # OffsetFetch, since version 8
    10: ("coordinator_keys", "coordinators"),  # FindCoordinator, since version 4
    15: ("groups", "groups"),  # DescribeGroups
    21: ("topics", "topics"),  # DeleteRecords
    23: ("topics", "topics"),  # OffsetForLeaderEpoch
    32: ("resources", "results"),  # DescribeConfigs
    42: ("groups_names", "results"),  # DeleteGroups
    61: ("topics", "topics"),  # DescribeProducers
    65: ("transactional_ids", "transaction_states"),  # DescribeTransactions
    69: ("group_ids", "groups"),  # ConsumerGroupDescribe
}
"""Kafka's API -> the list of items in the request, and the list of rows in the response."""


def has_slices(call: KafkaCall) -> bool:
    """Whether a request has so many items that it is served in slices."""
    names = _LISTS.get(call.api.key)
    if names is None:
        return False
    items = call.fields.get(names[0])
    return items is not None and len(items) > SLICE


async def serve_in_slices(request: ServerRequest, call: KafkaCall, handler: Handler) -> None:
    """Serve a request that `has_slices`."""
    asked, answered = _LISTS[call.api.key]
    call.whole = call.fields
    items = _items(call, asked)
    rows: list[Any] = []
    for at in range(0, len(items) - SLICE, SLICE):
        part = _part(call, asked, items[at : at + SLICE])
        inner: Any = InnerRequest(request, call.api.ours, None)
        body = await answer_of(inner, lambda inner=inner, part=part: run(inner, part, handler))  # type: ignore[misc]
        rows += call.api.to_kafka(part, body)[answered]
        await asyncio.sleep(0)
    call.fields = _fields(call, asked, items[(len(items) - 1) // SLICE * SLICE :])
    call.earlier = answered, rows
    result = run(request, call, handler)
    if result is not None:
        await result


_ANSWERED_ONCE: dict[int, Callable[[Any], Any]] = {
    3: lambda topic: (topic.name, topic.get("topic_id")),
    32: lambda resource: (resource.resource_type, resource.resource_name),
    42: lambda group_id: group_id,
    65: lambda transactional_id: transactional_id,
}
"""Key of an API whose response has an item once, even if the request names it several times -> the identity of an item. (Other
APIs refuse a request that names a partition twice; in slices they refuse it only if both are in one slice, which does no
harm.)"""


def _items(call: KafkaCall, asked: str) -> list[Any]:
    items: list[Any] = getattr(call.whole, asked)
    key_of = _ANSWERED_ONCE.get(call.api.key)
    if key_of is None:
        return items
    unique: dict[Any, Any] = {}
    for item in items:
        unique.setdefault(key_of(item), item)
    return list(unique.values())


def run(request: Any, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    """Translate a request, and call the handler."""
    api = call.api
    if api.serve is not None:
        return api.serve(request, call, handler)
    request.body = api.to_ours(call)
    return handler(request)


def _part(call: KafkaCall, asked: str, items: list[Any]) -> KafkaCall:
    part = KafkaCall(call.api, call.version, call.correlation_id, call.size, call.connection, call.context)
    part.fields = _fields(call, asked, items)
    return part


def _fields(call: KafkaCall, asked: str, items: list[Any]) -> Fields:
    return Fields(**{**call.whole.__dict__, asked: items})
