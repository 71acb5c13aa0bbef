"""Requests that any broker may answer: metadata, producer ids, and most of the admin client's.

- A request that only reads is sent to a connected broker, and if that one is slow, to the next one as well. So a broker that
  hangs costs a quarter of a second, not a timeout.
- A broker that is suspected of being gone (a response is overdue) is asked last.
- A request that changes something is sent to one broker only, which has just responded: two brokers would apply the change twice.
"""

from __future__ import annotations

import asyncio
from random import Random

from strandline.client.cluster.connection_state import SOFTWARE, ConnectionState
from strandline.client.cluster.connections import BrokerConnections
from strandline.client.errors import (
    AUTHORIZATION_CODES,
    AuthenticationFailed,
    ClientError,
    NoBrokersAvailable,
    RequestTimeout,
    copy_of,
    describe,
    request_failed,
    to_client_error,
)
from strandline.protocol.apis import API_VERSIONS, api_name
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.admin import ApiVersionsRequest, DescribeClusterResponse, MetadataResponse
from strandline.protocol.messages.common import Message

HEDGE_AFTER_MS = 250
"""If a broker has not answered a request within this time, the next one is asked as well."""
STALE_AFTER_MS = 300
"""The answer of a broker that knows no controller is accepted if no other broker answers within this time."""
REFUSED_AFTER_MS = 1_000
"""After a broker has rejected the client's authentication, the others have this time to answer."""
FRESH_S = 1.0
"""A connection on which bytes arrived within this time is known to be alive."""

Answer = tuple[ConnectionState, Message]
"""The connection on which an answer arrived, and the answer."""


class AnyBroker:
    """Chooses the broker that answers a request."""

    def __init__(self, connections: BrokerConnections, random: Random) -> None:
        self.connections = connections
        self._random = random
        self._turn = 0
        """Grows by one with each request, so that the open connections take turns."""

    def choose_first(self) -> None:
        """Begin the turns with a random broker, so that many clients do not begin with the same one."""
        self._turn = self._random.randrange(1 << 16)

    async def ask_one(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Send a request that changes something to one broker, and return its response. If nothing has arrived from the best
        candidate for a second, a handshake first finds a broker that responds.

        Raises NoBrokersAvailable if no broker can be reached, RequestTimeout after `timeout_ms`, and RequestFailed if the
        connection breaks."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        state = self._candidates()[0]
        if state.connection is None or state.connection.idle_s(loop.time()) > FRESH_S:
            state, _ = await self._first_answer(API_VERSIONS, ApiVersionsRequest(*SOFTWARE), timeout_ms)
            timeout_ms = max(1.0, (deadline - loop.time()) * 1000)
        try:
            return await state.request(api_key, body, timeout_ms)
        except BrokerError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=state.node_id) from e

    async def ask_any(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Ask one broker, and the next one each time one fails or is slow. Returns the first answer.

        Raises AuthenticationFailed if one broker rejects the client and no other answers, AuthorizationFailed, RequestTimeout if
        a broker was asked and none answered within `timeout_ms`, and NoBrokersAvailable if every attempt failed."""
        _, answer = await self._first_answer(api_key, body, timeout_ms)
        return answer

    async def _first_answer(self, api_key: int, body: Message, timeout_ms: float) -> Answer:
        candidates = self._candidates()
        race = _Race(candidates, api_key, body, timeout_ms)
        answer = await race.run()
        if answer is not None:
            return answer
        if race.refusal is not None:
            raise copy_of(race.refusal)
        if race.has_unanswered:
            raise RequestTimeout("no broker answered in time", api=api_name(api_key), elapsed_ms=timeout_ms)
        raise NoBrokersAvailable(self.connections.describe([state.address for state in candidates]), api=api_name(api_key))

    def _candidates(self) -> list[ConnectionState]:
        """The connections on which to ask, best first: open ones in turn, then closed ones (those with fewer failures first),
        then those of suspected brokers."""
        connections = self.connections.all()
        self._turn += 1
        turn, now = self._turn % len(connections), asyncio.get_running_loop().time()
        connections = connections[turn:] + connections[:turn]
        return sorted(connections, key=lambda state: (state.is_suspected(now), state.connection is None, state.failures))


class _Race:
    """One request that is sent to several brokers, one after the other, until the first of them answers.

    Only the answer of a broker that follows a controller wins. A broker that is cut off from the controllers answers with old
    metadata, so its answer counts only if no other broker has answered within STALE_AFTER_MS."""

    def __init__(self, candidates: list[ConnectionState], api_key: int, body: Message, timeout_ms: float) -> None:
        self._waiting = list(candidates)
        """Candidates that were not asked yet, best first."""
        self._attempts: dict[asyncio.Future[Message], ConnectionState] = {}
        """Requests in flight, in the order in which they were sent."""
        self._stale: Answer | None = None
        """The first answer of a broker that knows no controller."""
        self.refusal: ClientError | None = None
        """The error of a broker that rejects the client's authentication; another broker may still answer, because it may already
        have newer credentials. Or the error for a principal that lacks a right, which every broker would return."""
        self._request = api_key, body, timeout_ms
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_ms / 1000
        """On the loop's clock. A stale answer or a refusal brings it forward."""

    @property
    def has_unanswered(self) -> bool:
        """Whether a request has neither failed nor been answered."""
        return bool(self._attempts)

    async def run(self) -> Answer | None:
        """The answer that wins; None if there is none before the deadline, or every attempt has failed."""
        try:
            while self._waiting or self._attempts:
                if self._waiting and not self._ask_next():
                    continue
                left_s = self._deadline - self._loop.time()
                if left_s <= 0:
                    break
                wait_s = min(left_s, HEDGE_AFTER_MS / 1000) if self._waiting else left_s
                await asyncio.wait(self._attempts, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                answer = self._winner()
                if answer is not None:
                    return answer
        finally:
            self._abandon()
        return self._stale

    def _ask_next(self) -> bool:
        """Send the request to the next candidate. Returns False if that one was skipped, because its connection is backing
        off."""
        state = self._waiting.pop(0)
        if state.connection is None and state.is_backing_off(self._loop.time()):
            self._on_error(state.last_error)
            return False
        self._attempts[state.begin_request(*self._request)] = state
        return True

    def _winner(self) -> Answer | None:
        """Take the attempts that have ended out of the race. Returns the first good answer; a stale one is kept for later."""
        for attempt in [attempt for attempt in self._attempts if attempt.done()]:
            state = self._attempts.pop(attempt)
            if attempt.exception() is not None:
                self._on_error(attempt.exception())
                continue
            if follows_controller(attempt.result()):
                return state, attempt.result()
            if self._stale is None:
                self._stale = state, attempt.result()
                self._deadline = min(self._deadline, self._loop.time() + STALE_AFTER_MS / 1000)
        return None

    def _on_error(self, error: BaseException | None) -> None:
        if isinstance(error, AuthenticationFailed):
            self.refusal = error
            self._deadline = min(self._deadline, self._loop.time() + REFUSED_AFTER_MS / 1000)
        elif isinstance(error, BrokerError) and error.code in AUTHORIZATION_CODES:
            self.refusal = request_failed(describe(error.code, error.message), api=api_name(self._request[0]), code=error.code)
            self._deadline = self._loop.time()

    def _abandon(self) -> None:
        for attempt in self._attempts:
            if not attempt.cancel() and not attempt.cancelled():
                attempt.exception()  # Retrieve the error, so that asyncio does not log it.


def follows_controller(answer: Message) -> bool:
    """Whether the answering broker knows a controller. If not, its metadata may be old."""
    return not isinstance(answer, (MetadataResponse, DescribeClusterResponse)) or answer.controller_id >= 0
