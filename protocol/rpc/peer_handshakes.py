"""The handshakes of a starting node with its peers, repeated until the node knows enough.

A starting node may not know yet which cluster it belongs to, or whether its peers are up. It sends the handshake
(ApiVersions) to each peer, which every process answers from its first moment on, and passes each answer to the caller. A peer
that cannot be resolved or does not listen yet is asked again: containers start in any order, and a name may resolve a moment
later. Each peer has its own task, so that a peer that is slow to resolve delays no other.

`peers.awaited` names the missing peers and the reasons: once soon after the start, then once per minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from strandline.protocol.apis import API_VERSIONS
from strandline.protocol.errors import BrokerError, PeerError, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.dial import is_unknown_host
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)

ASK_TIMEOUT_MS = 1000
"""Timeout of the connection attempt, and again of the request."""
RETRY_MS = 20
RETRY_MS_MAX = 500
FIRST_NOTICE_MS = 1000
NOTICE_MS = 60_000


class Peer(Protocol):
    """A node and the address at which it should be found."""

    @property
    def id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


OnAnswer = Callable[[int, ApiVersionsResponse], str | None]
"""Called with a peer's id and its response. Returns None if the response is sufficient, else why not. An exception ends `run`."""


class PeerHandshakes:
    """The handshakes with a set of peers. After a `run` that timed out, another `run` continues with the same state."""

    def __init__(
        self,
        peers: Sequence[Peer],
        *,
        client_id: str,
        role: str,
        purpose: str,
        on_answer: OnAnswer,
        ask_all: bool = False,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`ask_all`: `run` does not finish before each peer has been tried once, whether it responded or not."""
        self.awaited: dict[int, str] = {peer.id: f"{peer.host}:{peer.port} has not been asked yet" for peer in peers}
        """Why a sufficient answer is still missing, by peer id."""
        self.unresolvable: set[int] = set()
        """Ids of the peers whose host name did not resolve at the last attempt."""
        self._peers = list(peers)
        self._client_id = client_id
        self._security = security
        self._role = role
        self._purpose = purpose
        """The words of the log line for what the node waits for."""
        self._on_answer = on_answer
        self._untried = {peer.id for peer in peers} if ask_all else set()

    @property
    def reasons(self) -> str:
        """The missing peers and the reasons, in one line."""
        return "; ".join(self.awaited[peer.id] for peer in self._peers if peer.id in self.awaited)

    async def run(self, is_over: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Repeat the handshakes until `is_over()`, which is called after each attempt. False if `timeout_ms` passed first."""
        if is_over():
            return True
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        tasks = [loop.create_task(self._ask_on(peer, is_over, over), name=f"ask {peer.host}:{peer.port}") for peer in self._peers]
        notices = loop.create_task(self._log_awaited(), name=f"waits for {self._purpose}")
        try:
            await asyncio.wait([over], timeout=None if timeout_ms is None else timeout_ms / 1000)
        finally:
            for task in (*tasks, notices):
                task.cancel()
            await asyncio.gather(*tasks, notices, return_exceptions=True)
        if over.done():
            over.result()
        return over.done()

    async def _ask_on(self, peer: Peer, is_over: Callable[[], bool], over: asyncio.Future[None]) -> None:
        pause_ms = RETRY_MS
        try:
            while not over.done():
                await self._ask_once(peer)
                self._untried.discard(peer.id)
                if not self._untried and is_over() and not over.done():
                    over.set_result(None)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
        except Exception as e:
            if not over.done():
                over.set_exception(e)

    async def _ask_once(self, peer: Peer) -> None:
        try:
            answer = await handshake(peer, self._client_id, self._security)
        except (BrokerError, PeerError) as e:
            (self.unresolvable.add if is_unknown_host(e.__cause__) else self.unresolvable.discard)(peer.id)
            self.awaited[peer.id] = (e.message or str(e)) if isinstance(e, BrokerError) else f"{peer.host}:{peer.port}: {e}"
            return
        self.unresolvable.discard(peer.id)
        problem = f"it is {_who(answer)}" if (answer.role, answer.node_id) != (self._role, peer.id) else None
        problem = problem or self._on_answer(peer.id, answer)
        if problem is None:
            self.awaited.pop(peer.id, None)
        else:
            self.awaited[peer.id] = f"{self._role} {peer.id} at {peer.host}:{peer.port}: {problem}"

    async def _log_awaited(self) -> None:
        await asyncio.sleep(FIRST_NOTICE_MS / 1000)
        while True:
            logger.warning("peers.awaited", purpose=self._purpose, awaited=self.reasons)
            await asyncio.sleep(NOTICE_MS / 1000)


async def handshake(peer: Peer, client_id: str, security: ClientSecurity = NO_SECURITY) -> ApiVersionsResponse:
    """Send one ApiVersions request on a new connection. Raises BrokerError or PeerError if there is no valid response."""
    connection = await Connection.connect(
        peer.host, peer.port, client_id=client_id, connect_timeout_ms=ASK_TIMEOUT_MS, security=security
    )
    try:
        answer = await connection.request(API_VERSIONS, ApiVersionsRequest("strandline", ""), timeout_ms=ASK_TIMEOUT_MS)
    finally:
        connection.close()
    assert isinstance(answer, ApiVersionsResponse)
    return answer


def refuse_two_clusters(cluster_ids: Mapping[int, str | None]) -> None:
    """Raise UsageError if controllers reported different cluster ids. `cluster_ids` is by controller id; None means that the
    controller has no cluster id yet."""
    known = {node_id: cluster_id for node_id, cluster_id in sorted(cluster_ids.items()) if cluster_id is not None}
    if len(set(known.values())) > 1:
        who = ", ".join(f"controller {node_id} to {cluster_id}" for node_id, cluster_id in known.items())
        raise UsageError(f"the controllers of controller.quorum.voters belong to different clusters: {who}")


def _who(answer: ApiVersionsResponse) -> str:
    return f"{answer.role or 'node'} {answer.node_id}"
