"""Asking the others who they are, again and again, until the asker has heard enough.

A node that starts does not yet know enough to take part: which cluster it belongs to, or whether anybody is there. It
sends each of its peers the handshake (ApiVersions), which every process answers from its first moment on, and hands each
answer to its owner. A peer that cannot be found, or does not listen yet, is asked again: containers start in any order,
and a name may resolve a moment later. Every peer is asked by a task of its own, so that one that is slow to resolve
delays no other.

Who is awaited, and why, is logged once soon after the beginning, and then once a minute.
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
from strandline.protocol.rpc.dial import says_no_such_name

logger = get_logger(__name__)

ASK_TIMEOUT_MS = 1000
"""For the connection, and once more for the answer."""
RETRY_MS = 20
RETRY_MS_MAX = 500
FIRST_NOTICE_MS = 1000
NOTICE_MS = 60_000


class Peer(Protocol):
    """A process that should be found at an address."""

    @property
    def id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


OnAnswer = Callable[[int, ApiVersionsResponse], str | None]
"""Takes a peer's answer; returns why it is not enough yet, or None. What it raises ends the roll call."""


class RollCall:
    """One round of asking. `run` goes on where an earlier one, whose time was over, had left off."""

    def __init__(
        self, peers: Sequence[Peer], *, client_id: str, role: str, purpose: str, on_answer: OnAnswer, ask_all: bool = False
    ) -> None:
        """`ask_all`: it is not over before every peer was asked once, and has answered or not."""
        self.awaited: dict[int, str] = {peer.id: f"{peer.host}:{peer.port} has not been asked yet" for peer in peers}
        """Why a peer's answer is still missing, by peer."""
        self.nowhere: set[int] = set()
        """Peers whose names led nowhere when they were asked last."""
        self._peers = list(peers)
        self._client_id = client_id
        self._role = role
        self._purpose = purpose
        """What the asker waits for, in the log."""
        self._on_answer = on_answer
        self._untried = {peer.id for peer in peers} if ask_all else set()

    @property
    def reasons(self) -> str:
        """Who is awaited and why, in one line."""
        return "; ".join(self.awaited[peer.id] for peer in self._peers if peer.id in self.awaited)

    async def run(self, is_over: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Ask until `is_over()`, which is looked at after each answer. False when the time was over first."""
        if is_over():
            return True
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        tasks = [loop.create_task(self._ask_on(peer, is_over, over), name=f"ask {peer.host}:{peer.port}") for peer in self._peers]
        notices = loop.create_task(self._tell_who_is_awaited(), name=f"waits for {self._purpose}")
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
            answer = await ask_who(peer, self._client_id)
        except (BrokerError, PeerError) as e:
            (self.nowhere.add if says_no_such_name(e.__cause__) else self.nowhere.discard)(peer.id)
            self.awaited[peer.id] = (e.message or str(e)) if isinstance(e, BrokerError) else f"{peer.host}:{peer.port}: {e}"
            return
        self.nowhere.discard(peer.id)
        problem = f"it is {_who(answer)}" if (answer.role, answer.node_id) != (self._role, peer.id) else None
        problem = problem or self._on_answer(peer.id, answer)
        if problem is None:
            self.awaited.pop(peer.id, None)
        else:
            self.awaited[peer.id] = f"{self._role} {peer.id} at {peer.host}:{peer.port}: {problem}"

    async def _tell_who_is_awaited(self) -> None:
        await asyncio.sleep(FIRST_NOTICE_MS / 1000)
        while True:
            logger.warning("roll_call.waiting", purpose=self._purpose, awaited=self.reasons)
            await asyncio.sleep(NOTICE_MS / 1000)


async def ask_who(peer: Peer, client_id: str) -> ApiVersionsResponse:
    """One handshake on a connection of its own; `BrokerError` says why there was none."""
    connection = await Connection.connect(peer.host, peer.port, client_id=client_id, connect_timeout_ms=ASK_TIMEOUT_MS)
    try:
        answer = await connection.request(API_VERSIONS, ApiVersionsRequest("strandline", ""), timeout_ms=ASK_TIMEOUT_MS)
    finally:
        connection.close()
    assert isinstance(answer, ApiVersionsResponse)
    return answer


def refuse_two_clusters(told: Mapping[int, str | None]) -> None:
    """UsageError when controllers (by id) have told different cluster ids; None: it has none yet."""
    known = {node_id: cluster_id for node_id, cluster_id in sorted(told.items()) if cluster_id is not None}
    if len(set(known.values())) > 1:
        who = ", ".join(f"controller {node_id} to {cluster_id}" for node_id, cluster_id in known.items())
        raise UsageError(f"the controllers of controller.quorum.voters belong to different clusters: {who}")


def _who(answer: ApiVersionsResponse) -> str:
    return f"{answer.role or 'node'} {answer.node_id}"
