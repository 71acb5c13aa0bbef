"""The shell of a `RaftNode`: it brings requests, responses and timers in, and settles what they have changed.

Every event of the node schedules one callback of the event loop, which settles all events up to then. It sends the messages
that may leave at once. In the next callback, when these are on their way, it writes `quorum-state` if that changed, flushes the
log once for everything that gathered, and sends the messages that waited for the disk.

An error in a step of the node is handed to `on_error`, which stops the node for good (`quorum.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from strandline.controller.raft.channel import VoterChannel
from strandline.controller.raft.election import NO_NODE
from strandline.controller.raft.opened_voter import OpenedVoter
from strandline.controller.raft.outbox import Reply, Send
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import DescribeQuorumResponse, QuorumNode, VoteRequest
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity


class NodeShell:
    """The shell of one node. `is_running` becomes true in `start`; after `halt`, no event reaches the node."""

    def __init__(
        self,
        opened: OpenedVoter,
        *,
        doors: Doors,
        after_settling: Callable[[], None],
        on_error: Callable[[BaseException], None],
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`after_settling` is called at the end of each settling that did not have to wait for the disk."""
        self.node = opened.node
        self.is_running = False
        self._log = opened.log
        self.store = opened.store
        self._voters = opened.voters
        self._channels = _channels(opened, doors, security)
        self._wall_clock_ms = doors.wall_clock_ms
        self._after_settling = after_settling
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._settle_scheduled = False
        self._settled = asyncio.Event()
        """Set whenever the events have been settled; `wait_for_leader` waits on it."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """When `_timer` is due. It is kept here, because a uvloop handle that is due at once does not have its time."""

    def start(self) -> None:
        """Take up the role that the log and `quorum-state` allow."""
        self.is_running = True
        self.node.start(self._loop.time())
        self._guard(self._settle)

    def halt(self) -> None:
        """Handle no more events: requests are refused, timers and responses ignored."""
        self.is_running = False
        self._settled.set()

    async def close(self) -> None:
        """Stop the timer and close the connections to the other voters."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for channel in self._channels.values():
            await channel.close()

    async def wait_for_leader(self) -> None:
        """Return when a leader is known, or the node has stopped."""
        while self.is_running and self.node.state.leader_id == NO_NODE:
            self._settled.clear()
            await self._settled.wait()

    def _guard(self, step: Callable[..., None], *args: Any) -> None:
        """Run a step of the node; after an error in it the node stops."""
        if not self.is_running:
            return
        try:
            step(*args)
        except Exception as e:
            self._on_error(e)

    # -- events in -----------------------------------------------------------------------------------------------------

    def on_request(self, request: ServerRequest) -> None:
        """Handle a request of the quorum's APIs; refuse it with NOT_CONTROLLER if the node does not run."""
        if not self.is_running:
            node_id = self.node.state.node_id
            request.refuse(ErrorCode.NOT_CONTROLLER, f"the metadata quorum of controller {node_id} is not running")
            return
        if isinstance(request.body, VoteRequest) and request.body.replica_id in self._channels:
            self._channels[request.body.replica_id].seems_alive()
        self._guard(self.node.on_request, request.api_key, request.body, request, request.connection.id, self._loop.time())
        self.schedule()

    def _on_done(self, send: Send, result: Message | Exception) -> None:
        if isinstance(result, Exception):
            error = result.code if isinstance(result, BrokerError) else ErrorCode.NETWORK_EXCEPTION
            self._guard(self.node.on_failure, send, error, self._loop.time())
        else:
            self._guard(self.node.on_response, send, result, self._loop.time())
        self.schedule()

    def _on_timer(self) -> None:
        self._timer = None
        self._guard(self.node.tick, self._loop.time())
        self._guard(self._settle)

    def resign(self) -> None:
        """Resign, so that another voter takes over. Only for a leader."""
        self.node.resign(self._loop.time())
        self.schedule()

    # -- settling ------------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Settle in the next event-loop iteration."""
        if not self._settle_scheduled and self.is_running:
            self._settle_scheduled = True
            self._loop.call_soon(self._guard, self._settle)

    def _settle(self) -> None:
        self._settle_scheduled = False
        node = self.node
        node.complete_fetches(self._loop.time())
        at_once = node.state.outbox.take_at_once()
        self.transmit(at_once)
        if node.state.needs_sync:
            if at_once:
                self._loop.call_soon(self._guard, self._sync)
            else:
                self._sync()
                return
        self._after_settling()
        self._arm_timer()
        self._settled.set()

    def _sync(self) -> None:
        """Write `quorum-state` if it has changed, flush the log, and send the messages that waited for the disk."""
        node = self.node
        waiting = node.state.outbox.take_after_sync()
        if node.state.election_dirty:
            self.store.write(node.state.election, min(node.state.high_watermark, self._log.flushed_offset))
            node.state.election_dirty = False
        self._log.flush()
        node.state.wall_clock_ms = self._wall_clock_ms()
        node.on_synced(self._loop.time())
        self.transmit(waiting)
        self.schedule()
        self._arm_timer()

    def transmit(self, messages: list[Send | Reply]) -> None:
        """Send these requests and responses."""
        for message in messages:
            if isinstance(message, Send):
                self._send(message)
            else:
                self._reply(message)

    def _send(self, send: Send) -> None:
        self._channels[send.to_id].send(send.api_key, send.body, lambda result: self._on_done(send, result))

    def _reply(self, reply: Reply) -> None:
        request, body = cast(ServerRequest, reply.ticket), reply.body
        if isinstance(body, DescribeQuorumResponse):
            body.nodes = [QuorumNode(*voter) for voter in self._voters]
        request.reply(body, reply.records)

    def _arm_timer(self) -> None:
        deadline = self.node.next_deadline()
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer) if deadline != float("inf") else None


def _channels(opened: OpenedVoter, doors: Doors, security: ClientSecurity) -> dict[int, VoterChannel]:
    state = opened.node.state
    client_id = f"raft-{state.node_id}"
    others = (voter for voter in opened.voters if voter.id != state.node_id)
    return {voter.id: VoterChannel(voter, client_id, state.config, doors.random, security) for voter in others}
