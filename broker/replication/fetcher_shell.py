"""The shell of a replica fetcher: one connection to the leader, callbacks, and no task except the one that connects.

The core (`fetcher.py`) decides what to fetch and what a response means. The shell sends the next fetch in the same event-loop
iteration in which the last response arrived, and reconnects after growing pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from strandline.broker.partition.partition import Partition
from strandline.broker.replication.fetcher import FetcherCore, Plan
from strandline.broker.replication.leader_range import RangeQuestion
from strandline.protocol.apis import DESCRIBE_PRODUCERS, FETCH, LIST_OFFSETS
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import FetchResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.connection import Connection

logger = get_logger(__name__)

REQUEST_TIMEOUT_MS = 3000
"""Added to the wait of the long poll. If no byte arrives from the leader for this long, the fetcher reconnects: after a network
failure, TCP itself would resend the lost bytes only after many seconds. A large response may take longer, because only silence
counts."""
RECONNECT_BACKOFF_MS = 50
RECONNECT_BACKOFF_MS_MAX = 1000


def _code_of(error: Exception) -> ErrorCode:
    return error.code if isinstance(error, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR


class Fetcher:
    """Fetches partitions from one leader, over one connection."""

    def __init__(
        self,
        *,
        leader_id: int,
        broker_id: int,
        core: FetcherCore,
        connect: Callable[[Callable[[Connection, Exception | None], None]], Awaitable[Connection]],
        on_progress: Callable[[list[TopicIdPartition]], None],
    ) -> None:
        self.leader_id = leader_id
        self._broker_id = broker_id
        self.core = core
        self._connect = connect
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._backoff_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pump_scheduled = False
        self._closed = False
        self._limits = LineLimits()
        """Log limits, by event: the fetcher tries a leader that is down every second, and logs that once a minute."""

    # -- from the manager ---------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        self.core.add(partition)
        self._schedule_pump()

    def remove(self, key: TopicIdPartition) -> None:
        self.core.remove(key)

    def on_reader(self, key: TopicIdPartition) -> None:
        if self.core.on_reader(key):
            self._schedule_pump()

    def hurry(self) -> None:
        """Connect now instead of at the end of the back-off, because the leader has a new process."""
        if self._connection is None and self._connecting is not None and not self._closed:
            self._connecting.cancel()
            self._connecting = None
            self._backoff_ms = 0
            self._schedule_pump()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _schedule_pump(self) -> None:
        """Plan a fetch in the next event-loop iteration, so that one fetch names all partitions that a metadata delta adds."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._closed:
            return
        if self._connection is None:
            self._start_connecting()
            return
        plan = self.core.plan(self._loop.time())
        if plan is not None:
            self._connection.send(
                FETCH,
                plan.request,
                on_response=partial(self._on_response, plan),
                timeout_ms=plan.request.max_wait_ms + REQUEST_TIMEOUT_MS,
                of_silence=True,
            )
        self._arm_timer()

    def _arm_timer(self) -> None:
        due = self.core.next_due()
        if due is None or (self._timer is not None and not self._timer.cancelled() and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _on_response(self, plan: Plan, response: Message | Exception) -> None:
        if self._closed or self._connection is None or self._connection.closed:
            return  # `_on_lost` starts over
        now = self._loop.time()
        if isinstance(response, Exception):
            suppressed = self._limits.admit("fetch", now)
            if suppressed is not None:
                logger.info("fetcher.fetch_failed", leader_id=self.leader_id, reason=printable(response), **suppressed.fields)
            if _code_of(response) == ErrorCode.REQUEST_TIMED_OUT:
                self._drop_connection(response)  # no byte for so long: the connection may be dead without an error
                return
            self.core.on_failure(plan, _code_of(response), now)
        else:
            try:
                touched = self.core.on_response(plan, cast(FetchResponse, response), now)
            except PeerError as e:
                self._drop_connection(e)
                return
            if touched:
                self._on_progress(touched)
            self._ask_ranges()
        self._pump()

    def _drop_connection(self, reason: Exception) -> None:
        connection = self._connection
        if connection is not None:
            connection.close()
            self._on_lost(connection, reason)

    def _ask_ranges(self) -> None:
        asked, connection = self.core.take_out_of_range(), self._connection
        if not asked or connection is None:
            return
        question = RangeQuestion(self._broker_id, asked)
        for timestamp in question.TIMESTAMPS:
            self._ask(connection, question, LIST_OFFSETS, question.request(timestamp), partial(question.on_answer, timestamp))
        self._ask(connection, question, DESCRIBE_PRODUCERS, question.producers_request, question.on_producers)

    def _ask(
        self,
        connection: Connection,
        question: RangeQuestion,
        api_key: int,
        request: Message,
        take: Callable[[Message | Exception], None],
    ) -> None:
        def on_response(response: Message | Exception) -> None:
            take(response)
            self._maybe_take_range(question)

        connection.send(api_key, request, on_response=on_response, timeout_ms=REQUEST_TIMEOUT_MS)

    def _maybe_take_range(self, question: RangeQuestion) -> None:
        if question.open or self._closed:
            return
        now = self._loop.time()
        for key, position in question.asked.items():
            found = question.range_of(key)
            if found is None:
                self.core.on_leader_range_failed(key, position, now)
            else:
                self.core.on_leader_range(key, position, found, now)
        self._pump()

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _start_connecting(self) -> None:
        if self._connecting is None and len(self.core):
            self._connecting = self._loop.create_task(self._connect_with_backoff(), name=f"fetcher-connect-{self.leader_id}")

    async def _connect_with_backoff(self) -> None:
        while not self._closed:
            if self._backoff_ms:
                await asyncio.sleep(self._backoff_ms / 1000)
            self._backoff_ms = min(max(2 * self._backoff_ms, RECONNECT_BACKOFF_MS), RECONNECT_BACKOFF_MS_MAX)
            try:
                connection = await self._connect(self._on_lost)
            except BrokerError as e:
                suppressed = self._limits.admit("connect", self._loop.time())
                if suppressed is not None:
                    logger.info("fetcher.connect_failed", leader_id=self.leader_id, reason=printable(e), **suppressed.fields)
                continue
            self._connecting = None
            if self._closed or connection.closed:
                connection.close()
                self._schedule_pump()
                return
            self._connection = connection
            self._backoff_ms = 0
            self._pump()
            return

    def _on_lost(self, connection: Connection, error: Exception | None) -> None:
        if connection is not self._connection or self._closed:
            return
        suppressed = self._limits.admit("lost", self._loop.time())
        if suppressed is not None:
            logger.info("fetcher.connection_lost", leader_id=self.leader_id, reason=printable(error), **suppressed.fields)
        self._connection = None
        self._backoff_ms = RECONNECT_BACKOFF_MS
        self.core.on_connection_lost()
        self._start_connecting()
