"""Requests about many groups or transactional ids: one request for all of a coordinator, to all coordinators at once.

A coordinator that does not answer does not delay the others. If the coordinator of a group has moved, is loading or cannot be
reached, the request for that group is repeated until the deadline; after that, the last error is the result of the group. So a
broker that is down affects only the groups that it coordinates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.cluster.coordinator import ANSWER_TIMEOUT_MS, find_coordinators
from strandline.client.errors import RequestFailed, RequestTimeout, to_client_error
from strandline.protocol.apis import api_name
from strandline.protocol.errors import ErrorCode, StrandlineError
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import KEY_TYPE_GROUP, Coordinator

RETRY_S = 0.05
RETRY_MAX_S = 0.5

Answer = TypeVar("Answer")


class Asked:
    """One coordinator, as an argument of the function that sends requests to it."""

    def __init__(self, node_id: int, connection: ConnectionState, timeout_ms: float, repeated: Collection[str]) -> None:
        self.node_id = node_id
        self.repeated = repeated
        """The groups that an earlier attempt may have changed."""
        self._connection = connection
        self._timeout_ms = timeout_ms

    async def request(self, api_key: int, body: Message) -> Message:
        """Send a request to the coordinator, and return the response. Errors of the connection are raised as errors of the
        client."""
        try:
            return await self._connection.request(api_key, body, self._timeout_ms)
        except StrandlineError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=self.node_id) from e


Ask = Callable[[Asked, list[str]], Awaitable[Mapping[str, Answer | StrandlineError]]]
"""Asks one coordinator about its groups, and returns the result or the error of each. After a retriable error, the group is asked
for again."""


class CoordinatorFanOut(Generic[Answer]):
    """One call about several groups."""

    def __init__(self, cluster: Cluster, ask: Ask[Answer], deadline: float, key_type: int = KEY_TYPE_GROUP) -> None:
        """`deadline`: on the loop's clock. `key_type`: another type of id than that of groups, for transactional ids."""
        self._key_type = key_type
        self._cluster = cluster
        self._ask = ask
        self._deadline = deadline
        self._results: dict[str, Answer | StrandlineError] = {}
        self._final: dict[str, None] = {}
        """The groups that are not asked for again."""
        self._maybe_changed: dict[str, None] = {}
        """The groups that an attempt may have changed."""

    async def run(self, group_ids: Sequence[str]) -> dict[str, Answer | StrandlineError]:
        """The result of each group, or the error if there is none."""
        loop, pause_s = asyncio.get_running_loop(), RETRY_S
        while missing := [group_id for group_id in group_ids if group_id not in self._final]:
            await self._round(missing)
            if loop.time() + pause_s >= self._deadline:
                break
            if any(group_id not in self._final for group_id in missing):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
        return {group_id: self._results[group_id] for group_id in group_ids}

    async def _round(self, group_ids: list[str]) -> None:
        try:
            found = await find_coordinators(self._cluster, group_ids, self._left_ms(), self._key_type)
        except StrandlineError as e:
            self._take(dict.fromkeys(group_ids, e))
            return
        by_node: dict[int, tuple[Coordinator, list[str]]] = {}
        for group_id, coordinator in found.items():
            if isinstance(coordinator, RequestFailed):
                self._take({group_id: coordinator})
            else:
                by_node.setdefault(coordinator.node_id, (coordinator, []))[1].append(group_id)
        await asyncio.gather(*(self._ask_one(coordinator, ids) for coordinator, ids in by_node.values()))

    async def _ask_one(self, coordinator: Coordinator, group_ids: list[str]) -> None:
        connection = self._cluster.connections.state_at((coordinator.host, coordinator.port))
        repeated = [group_id for group_id in group_ids if group_id in self._maybe_changed]
        asked = Asked(coordinator.node_id, connection, min(self._left_ms(), ANSWER_TIMEOUT_MS), repeated)
        try:
            answers = await self._ask(asked, group_ids)
        except StrandlineError as e:
            answers = dict.fromkeys(group_ids, e)
        self._maybe_changed.update(dict.fromkeys(group_id for group_id in group_ids if not _is_loading(answers.get(group_id))))
        self._take(answers)

    def _take(self, answers: Mapping[str, Answer | StrandlineError]) -> None:
        for group_id, answer in answers.items():
            self._results[group_id] = answer
            if not isinstance(answer, StrandlineError) or not answer.retriable:
                self._final[group_id] = None

    def _left_ms(self) -> float:
        return max(1.0, (self._deadline - asyncio.get_running_loop().time()) * 1000)


def _is_loading(answer: object) -> bool:
    """Whether the coordinator rejected the request before it looked for the group. It may have made the change before it sent any
    other retriable error."""
    return isinstance(answer, RequestFailed) and answer.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def or_raise(answer: Answer | StrandlineError, timeout_ms: float) -> Answer:
    """The result of the only group of a call. Raises its error: RequestTimeout if it is retriable, because the time is up."""
    if not isinstance(answer, StrandlineError):
        return answer
    if not answer.retriable:
        raise answer
    raise RequestTimeout(f"the coordinator has not answered: {answer}", elapsed_ms=timeout_ms) from answer
