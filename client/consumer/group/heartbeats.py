"""Sends the heartbeats of a group member. The membership (membership.py) decides their fields; this module does its input and
output.

The code runs on the consumer's event loop, or on the loop of a thread of its own (heartbeat_thread.py), and does the same on
both. The heartbeats have a connection of their own, so that no other request, and no quota, delays them.

It also checks that the program still polls. The consumer notes each poll in `Progress`, which costs next to nothing and is read
once per heartbeat. A member whose program has not polled for `max_poll_interval_ms` leaves the group. While `Consumer.run` calls
a handler, the limit applies to the oldest running call instead: the run polls all the time, also while a call is stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.cluster.coordinator import ANSWER_TIMEOUT_MS, CoordinatorConnection
from strandline.client.consumer.group.membership import FIRST_INTERVAL_S, Identity, Membership, MemberState
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.option_types import Address
from strandline.client.options import ConsumerOptions
from strandline.protocol.apis import CONSUMER_GROUP_HEARTBEAT
from strandline.protocol.errors import StrandlineError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

TIMEOUT_MS_MIN = 1_000

Act = Callable[[Membership, float], None]
"""A call on the membership that the consumer's side posts; the second argument is the time on the loop's clock."""


class MemberView(NamedTuple):
    """The state of the membership at one moment, for the consumer's side. Times are on the loop's clock."""

    state: MemberState = MemberState.UNSUBSCRIBED
    tenure: int = 0
    epoch: int = 0
    target_keys: frozenset[TopicIdPartition] | None = None
    target_at: float = float("-inf")
    """When the heartbeat whose response brought the target was sent."""
    owned_keys: frozenset[TopicIdPartition] = frozenset()
    """The partitions of the target, and those that the program has not given up yet."""
    valid_until: float = float("-inf")
    """The time until which the member may rely on owning `owned_keys`."""
    confirmed_at: float | None = None
    """When the last heartbeat that succeeded was sent."""
    interval_s: float = FIRST_INTERVAL_S
    error: StrandlineError | None = None
    """Why the member has failed."""
    last_error: StrandlineError | None = None
    """Why the last heartbeat failed."""
    poll_gap_s: float | None = None
    """Seconds for which the program had not polled, if the member has left the group because of that."""
    coordinator_id: int = -1
    heartbeats: int = 0
    heartbeat_failures: int = 0
    heartbeat_latency_s: float = 0.0
    """Seconds from the last successful heartbeat to its response."""


class Progress:
    """The consumer's notes of when the program asks for records. Another thread may read them."""

    __slots__ = ("iterated", "polls", "waiting", "working_since")

    def __init__(self) -> None:
        self.polls = 0
        """Grows when the program asks for records, and when it gets them after it has waited."""
        self.waiting = 0
        """The number of calls that wait for records now. A program that waits is not late."""
        self.iterated: PartitionState | None = None
        """The state whose records `async for` returns. Its cursor moves with each record."""
        self.working_since: float | None = None
        """When the oldest running call of a handler began, on the loop's clock; None: no call runs."""

    def mark(self) -> tuple[int, object]:
        """Differs from an earlier mark (by identity) if the program has asked for a record since."""
        iterated = self.iterated
        return self.polls, None if iterated is None else iterated.cursor


class Heartbeats:
    """Sends the heartbeats of one member. All methods must be called on the event loop in which it is constructed. Only `run`
    waits."""

    def __init__(
        self,
        options: ConsumerOptions,
        identity: Identity,
        cluster: Cluster,
        random: Random,
        progress: Progress,
        publish: Callable[[MemberView], None],
    ) -> None:
        """`publish` is called with the newest view after each change."""
        self._options = options
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._progress = progress
        self._publish = publish
        self._membership = Membership(identity, random, retry_backoff_s=max(0.001, options.retry_backoff_ms / 1000))
        self._coordinator = CoordinatorConnection(cluster, identity.group_id, self._connect)
        self._connection: ConnectionState | None = None
        """The connection to the coordinator, which nothing else uses."""
        self._was_answered = False
        """A request on this connection was answered since it was opened."""
        self._replaced: list[ConnectionState] = []
        """Connections to former coordinators, to be closed."""
        self._wake = asyncio.Event()
        self._mark = progress.mark()
        self._progressed_at = self._loop.time()
        """When the program was last seen to poll, or when `max_poll_interval_ms` began to apply; on the loop's clock."""
        self._sent = self._failed = 0
        self._latency_s = 0.0

    def act(self, act: Act) -> None:
        """Call `act` with the membership now, and publish the new view."""
        act(self._membership, self._loop.time())
        self._changed()

    async def run(self) -> None:
        """Send each heartbeat that is due, until cancelled."""
        try:
            while True:
                self._check_progress()
                if self._membership.due_at <= self._loop.time():
                    await self._beat()
                else:
                    await self._wait()
        finally:
            await self._close_connections()

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        membership, loop = self._membership, self._loop
        started = loop.time()
        request = membership.next_request(started)
        self._sent += 1
        try:
            response = await self._ask(request)
        except StrandlineError as e:
            self._failed += 1
            membership.on_failure(e, loop.time())
        else:
            if response is None:
                membership.give_up_waiting()
                return
            assert isinstance(response, ConsumerGroupHeartbeatResponse)
            self._was_answered = True
            self._latency_s = loop.time() - started
            self._failed += bool(response.error_code)
            self._coordinator.on_error(to_code(response.error_code))
            membership.on_response(response, loop.time())
        self._changed()
        await self._close_replaced()

    async def _ask(self, request: ConsumerGroupHeartbeatRequest) -> Message | None:
        """The response. None if the coordinator still holds a waiting heartbeat back when the next one is due."""
        if not self._membership.is_waiting:
            return await self._coordinator.ask(CONSUMER_GROUP_HEARTBEAT, request, self._timeout_ms())
        timeout_ms = self._membership.interval_s * 1000 + self._timeout_ms()
        asking = self._loop.create_task(self._coordinator.ask(CONSUMER_GROUP_HEARTBEAT, request, timeout_ms))
        asking.add_done_callback(lambda _: self._wake.set())
        try:
            while not asking.done():
                if self._membership.due_at <= self._loop.time():
                    return None
                await self._wait()
                self._check_progress()
            return asking.result()
        finally:
            asking.cancel()

    def _timeout_ms(self) -> float:
        """The heartbeat interval, within bounds: a coordinator that has not answered by then may have been replaced."""
        within_ms = max(TIMEOUT_MS_MIN, min(ANSWER_TIMEOUT_MS, self._membership.interval_s * 1000))
        return min(self._options.request_timeout_ms, within_ms)

    async def _wait(self) -> None:
        """Wait until a heartbeat is due, the program may be late, or the membership has changed."""
        until = self._membership.due_at
        if self._watches_program:
            until = min(until, self._progressed_at + self._options.max_poll_interval_ms / 1000)
        if until == float("inf"):
            await self._wake.wait()
        else:
            try:
                async with asyncio.timeout_at(until):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()

    def _changed(self) -> None:
        m = self._membership
        view = MemberView(
            m.state,
            m.tenure,
            m.epoch,
            m.target_keys,
            m.target_at,
            m.owned_keys,
            m.valid_until,
            m.confirmed_at,
            m.interval_s,
            m.error,
            m.last_error,
            m.poll_gap_s,
            self._coordinator.node_id,
            self._sent,
            self._failed,
            self._latency_s,
        )
        self._publish(view)
        self._wake.set()

    # -- the program --------------------------------------------------------------------------------------------------

    @property
    def _watches_program(self) -> bool:
        return self._membership.state not in (
            MemberState.UNSUBSCRIBED,
            MemberState.FENCED,
            MemberState.STALE,
            MemberState.LEAVING,
            MemberState.FAILED,
        )

    def _check_progress(self) -> None:
        """Leave the group if the program has not asked for records for too long."""
        now, mark, before = self._loop.time(), self._progress.mark(), self._mark
        has_moved = mark[0] != before[0] or mark[1] is not before[1]
        working_since = self._progress.working_since
        if not self._watches_program or (working_since is None and (has_moved or self._progress.waiting)):
            self._mark, self._progressed_at = mark, now
            return
        if working_since is not None:
            self._progressed_at = working_since
        gap_s = now - self._progressed_at
        if gap_s < self._options.max_poll_interval_ms / 1000:
            return
        logger.warning(
            "consumer.poll_interval_exceeded",
            group_id=self._identity.group_id,
            member_id=self._identity.member_id,
            gap_ms=round(gap_s * 1000),
            max_poll_interval_ms=self._options.max_poll_interval_ms,
        )
        self._membership.on_poll_expired(gap_s, now)
        self._changed()

    # -- the connection -----------------------------------------------------------------------------------------------

    def _connect(self, address: Address) -> ConnectionState:
        if self._connection is None or self._connection.address != address:
            if self._connection is not None:
                self._replaced.append(self._connection)
            self._connection = ConnectionState(address, self._options, self._on_connection)
            self._was_answered = False
        return self._connection

    def _on_connection(self, connection: ConnectionState, is_lost: bool) -> None:
        """If a connection that has carried a response was lost, send the next heartbeat at once: the coordinator may end the
        session if none arrives within its grace time."""
        if is_lost and connection is self._connection and self._was_answered:
            self._was_answered = False
            self._membership.on_connection_lost(self._loop.time())
            self._changed()

    async def _close_replaced(self) -> None:
        replaced, self._replaced = self._replaced, []
        for connection in replaced:
            await connection.close()

    async def _close_connections(self) -> None:
        if self._connection is not None:
            self._replaced.append(self._connection)
        await self._close_replaced()
