"""The coordinator of a group: which broker it is, and requests to it.

Any broker knows the coordinator (FindCoordinator). It moves with the leadership of a partition, so whoever gets an error that
says so, or loses the connection, asks again. Each call here is one attempt within its time limit; its caller decides about the
next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.errors import NoBrokersAvailable, RequestFailed, describe, to_client_error
from strandline.client.option_types import Address
from strandline.protocol.apis import FIND_COORDINATOR, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

ANSWER_TIMEOUT_MS = 3_000
"""A coordinator answers as soon as its followers have what it writes. If it takes longer, another broker may be the
coordinator."""

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Answers after which the coordinator is looked for again."""
_UNREACHABLE = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})


class GroupCoordinator:
    """Sends requests to the coordinator of one group, which it finds when it needs it."""

    def __init__(self, cluster: Cluster, group_id: str, connect: Callable[[Address], ConnectionState]) -> None:
        """`connect` returns the connection to an address; it may be one that others use as well."""
        self._cluster = cluster
        self._group_id = group_id
        self._connect = connect
        self._connection: ConnectionState | None = None
        """None: the coordinator is not known."""
        self.node_id = -1
        """The broker id of the coordinator; -1: not known."""

    def forget(self) -> None:
        """Find the coordinator again before the next request."""
        self._connection, self.node_id = None, -1

    def on_error(self, code: ErrorCode) -> None:
        """A response of the coordinator contained this error."""
        if code in MOVED:
            self.forget()

    async def ask(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Send a request to the coordinator, and return its response, which may contain an error.

        Raises RequestFailed, RequestTimeout or NoBrokersAvailable if the coordinator is not known or cannot be reached, or if it
        refuses the request as a whole (`code`). `timeout_ms` is for everything together."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        connection = self._connection or await self._find(timeout_ms)
        node_id = self.node_id
        try:
            return await connection.request(api_key, body, max(1.0, (deadline - loop.time()) * 1000))
        except (BrokerError, NoBrokersAvailable) as e:
            is_gone = not isinstance(e, BrokerError) or e.code in MOVED or e.code in _UNREACHABLE
            if is_gone and self._connection is connection:
                self.forget()
            raise to_client_error(e, api=api_name(api_key), broker_id=node_id) from e

    async def _find(self, timeout_ms: float) -> ConnectionState:
        found = (await find_coordinators(self._cluster, [self._group_id], timeout_ms))[self._group_id]
        if isinstance(found, RequestFailed):
            raise found
        self._connection, self.node_id = self._connect((found.host, found.port)), found.node_id
        return self._connection


async def find_coordinators(cluster: Cluster, group_ids: list[str], timeout_ms: float) -> dict[str, Coordinator | RequestFailed]:
    """By group, its coordinator, or why there is none now. One request to any broker; its errors are those of `ask_any`."""
    response = await cluster.any_broker.ask_any(FIND_COORDINATOR, FindCoordinatorRequest(group_ids), timeout_ms)
    assert isinstance(response, FindCoordinatorResponse)
    found = {coordinator.key: coordinator for coordinator in response.coordinators}
    return {group_id: _checked(group_id, found.get(group_id)) for group_id in group_ids}


def _checked(group_id: str, found: Coordinator | None) -> Coordinator | RequestFailed:
    if found is not None and not found.error_code:
        return found
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else to_code(found.error_code)
    text = describe(code, None if found is None else found.error_message)
    return RequestFailed(f"group {group_id!r} has no coordinator now: {text}", api="FindCoordinator", code=code)
