"""Finds the coordinator of a group or of a transactional id, and sends requests to it.

Any broker can name the coordinator (FindCoordinator). It moves with the leadership of a partition, so after an error that says
so, or a lost connection, the client asks again. Each call here is one attempt within its time limit; its caller decides about the
next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.errors import (
    AUTHORIZATION_CODES,
    NoBrokersAvailable,
    RequestFailed,
    describe,
    request_failed,
    to_client_error,
)
from strandline.client.option_types import Address
from strandline.protocol.apis import FIND_COORDINATOR, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import KEY_TYPE_GROUP, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

ANSWER_TIMEOUT_MS = 3_000
"""A coordinator answers as soon as its followers have the records that it writes. If it takes longer, another broker may be the
coordinator."""

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors after which the client asks for the coordinator again."""
_UNREACHABLE = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})


class CoordinatorConnection:
    """Sends requests to the coordinator of one group or transactional id, which it looks up when a request needs it."""

    def __init__(
        self, cluster: Cluster, key: str, connect: Callable[[Address], ConnectionState], key_type: int = KEY_TYPE_GROUP
    ) -> None:
        """`key`: the id of the group, or the transactional id. `connect` returns the connection to an address, which other parts
        of the client may share."""
        self._cluster = cluster
        self._key = key
        self._key_type = key_type
        self._connect = connect
        self._connection: ConnectionState | None = None
        """The connection to the coordinator; None while the coordinator is not known."""
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
        rejects the request as a whole (`code`). `timeout_ms` bounds the look-up, connecting and the request together."""
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
        found = (await find_coordinators(self._cluster, [self._key], timeout_ms, self._key_type))[self._key]
        if isinstance(found, RequestFailed):
            raise found
        self._connection, self.node_id = self._connect((found.host, found.port)), found.node_id
        return self._connection


async def find_coordinators(
    cluster: Cluster, keys: list[str], timeout_ms: float, key_type: int = KEY_TYPE_GROUP
) -> dict[str, Coordinator | RequestFailed]:
    """The coordinator of each group or transactional id, or the error if there is none now. Sends one request to any broker;
    raises the errors of `ask_any`."""
    response = await cluster.any_broker.ask_any(FIND_COORDINATOR, FindCoordinatorRequest(keys, key_type), timeout_ms)
    assert isinstance(response, FindCoordinatorResponse)
    found = {coordinator.key: coordinator for coordinator in response.coordinators}
    return {key: _checked(key, found.get(key), key_type) for key in keys}


def _checked(key: str, found: Coordinator | None, key_type: int) -> Coordinator | RequestFailed:
    if found is not None and not found.error_code:
        return found
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else to_code(found.error_code)
    text = describe(code, None if found is None else found.error_message)
    if code in AUTHORIZATION_CODES:
        return request_failed(f"{key!r}: {text}", api="FindCoordinator", code=code)
    what = "group" if key_type == KEY_TYPE_GROUP else "transactional id"
    return request_failed(f"{what} {key!r} has no coordinator now: {text}", api="FindCoordinator", code=code)
