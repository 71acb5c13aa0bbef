"""Measures the lag of the groups that this broker coordinates, in rounds. The core is `lag.py`.

A round goes through the committed offsets in parts. For each part, the leaders of its partitions are asked at the same time, with
one request each; this broker asks itself without a network. Between two parts the monitor pauses, so a broker with very many
offsets spends a few percent of its time on them, and takes longer for a round. The beginnings of two rounds are
`group.lag.interval.ms` apart.

Without committed offsets there are no rounds, no timer and no connections: the coordinator wakes the monitor when offsets are
loaded or committed (`GroupCoordinator.on_offsets`). A connection is opened when it is needed, and closed after a round that did
not need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.coordinator import ActiveGroups, GroupCoordinator
from strandline.broker.groups.lag import Answers, LagTable, OffsetLag, Position, Questions
from strandline.broker.groups.lag_handler import OffsetLagHandler
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.apis import DESCRIBE_OFFSET_LAG
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.data import (
    DescribeOffsetLagRequest,
    DescribeOffsetLagResponse,
    OffsetLagPartition,
    OffsetLagPartitionResponse,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)

PART = 200
"""The offsets of a part: 0.6 ms of work here. An offset takes 1 us on a leader, or up to 30 us if it is in an old segment."""
PAUSE_S = 0.02
CONNECT_TIMEOUT_MS = 1000
REQUEST_TIMEOUT_MS = 5000

Address = tuple[str, int]


class LagMonitor:
    """The rounds of one broker, and their results in `table`."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        handler: OffsetLagHandler,
        image: Callable[[], MetadataImage],
        *,
        broker_id: int,
        config: GroupConfig,
        address_of: Callable[[int], Address | None],
        wall_clock_ms: Callable[[], int],
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`handler`: answers for the partitions that this broker leads. `address_of`: returns the address of another broker, or
        None if it is unknown."""
        self.table = LagTable(config.group_lag_max_series)
        self.handler = handler
        self._coordinator = coordinator
        self._image = image
        self._broker_id = broker_id
        self._address_of = address_of
        self._security = security
        self._wall_clock_ms = wall_clock_ms
        self._interval_s = config.group_lag_interval_ms / 1000
        self._connections: dict[int, Connection] = {}
        """Broker -> its connection, which this side has not closed."""
        self._used: set[int] = set()
        """Brokers that the present round has sent a request to."""
        self._silent: set[int] = set()
        """Brokers that failed to respond in the present round, which sends them no further request."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._limits = LineLimits()

    # -- life ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Start the rounds, because there are committed offsets; do nothing if rounds are under way or turned off."""
        if self._task is None and self._interval_s > 0 and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="group-lag")

    def use_config(self, config: GroupConfig) -> None:
        """Use a changed configuration. An interval of 0 ends the rounds and drops their results."""
        self.table.series_max = config.group_lag_max_series
        if config.group_lag_interval_ms / 1000 == self._interval_s:
            return
        self._interval_s = config.group_lag_interval_ms / 1000
        self._end()
        if not self._interval_s:
            self.table.clear()
        elif self._has_offsets:
            self.wake()

    def stop(self) -> None:
        """End the rounds for good."""
        self._is_stopped = True
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._close_connections(keep=())

    def current(self) -> Iterator[OffsetLag]:
        """The lags of the groups that this broker still coordinates, the largest first."""
        led = {active.number for active in self._coordinator.loaded_shards()}
        return (lag for lag in self.table.lags.values() if lag.position.shard in led)

    @property
    def is_running(self) -> bool:
        """Whether rounds are under way."""
        return self._task is not None

    @property
    def connected_to(self) -> list[int]:
        """The brokers to which there is a connection."""
        return sorted(self._connections)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last round ended; None if there was none."""
        complete_at = self.table.complete_at
        return None if complete_at is None else asyncio.get_running_loop().time() - complete_at

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                await self._round()
                if not self._has_offsets:
                    break
                await asyncio.sleep(max(PAUSE_S, began + self._interval_s - loop.time()))
        except Exception:
            # The next commit starts the rounds again.
            suppressed = self._limits.admit("lag", loop.time())
            if suppressed is not None:
                logger.exception("groups.lag_failed", **suppressed.fields)
        self._task = None
        self.table.clear()
        self._close_connections(keep=())

    @property
    def _has_offsets(self) -> bool:
        """Whether there are offsets. Those that are not committed yet count, because a later round may measure them."""
        return any(len(active.shard.offsets) for active in self._coordinator.loaded_shards())

    async def _round(self) -> None:
        """Measure all offsets once."""
        self.table.begin()
        self._used, self._silent = set(), set()
        positions = self._positions()
        part = list(islice(positions, PART))
        while part:
            await self._measure(part)
            part = list(islice(positions, PART))
            if part:
                await asyncio.sleep(PAUSE_S)
        self.table.publish(asyncio.get_running_loop().time())
        self._close_connections(keep=self._used)

    def _positions(self) -> Iterator[Position]:
        """The committed offsets of all groups. It may contain or miss groups and shards that appear or disappear meanwhile."""
        for active in list(self._coordinator.loaded_shards()):
            store = active.shard.offsets
            for group_id in list(store.groups_with_offsets()):
                if not active.is_current:
                    break
                store.on_high_watermark(active.partition.log.high_watermark)
                yield from self._positions_of(active, group_id)

    def _positions_of(self, active: ActiveGroups, group_id: str) -> Iterator[Position]:
        image = self._image()
        for offset in active.shard.offsets.offsets_of(group_id):
            topic, value = image.topic(offset.topic), offset.value
            if topic is not None and value.topic_id in (topic.topic_id, ZERO_UUID):
                yield Position(group_id, offset.topic, topic.topic_id, offset.partition, value.offset, active.number)

    async def _measure(self, part: list[Position]) -> None:
        questions = self.table.questions(part, self._image())
        answers = await self._ask(questions)
        self.table.measure(part, questions, answers, asyncio.get_running_loop().time(), self._wall_clock_ms())

    # -- asking the leaders -------------------------------------------------------------------------------------------

    async def _ask(self, questions: Questions) -> Answers:
        """The answers of all leaders that respond."""
        asked = (self._ask_one(broker_id, list(of_leader.values())) for broker_id, of_leader in questions.items())
        answers: dict[TopicIdPartition, OffsetLagPartitionResponse] = {}
        for response in await asyncio.gather(*asked):
            if response is not None:
                answers.update({(answer.topic_id, answer.partition): answer for answer in response.partitions})
        return answers

    async def _ask_one(self, broker_id: int, partitions: list[OffsetLagPartition]) -> DescribeOffsetLagResponse | None:
        if broker_id == self._broker_id:
            return await self._ask_here(partitions)
        if broker_id in self._silent:
            return None
        try:
            connection = await self._connection(broker_id)
            request = DescribeOffsetLagRequest(partitions)
            response = await connection.request(DESCRIBE_OFFSET_LAG, request, timeout_ms=REQUEST_TIMEOUT_MS)
        except BrokerError:
            self._silent.add(broker_id)
            return None
        assert isinstance(response, DescribeOffsetLagResponse)
        return response

    async def _ask_here(self, partitions: list[OffsetLagPartition]) -> DescribeOffsetLagResponse:
        answered: asyncio.Future[DescribeOffsetLagResponse] = asyncio.get_running_loop().create_future()

        def then(response: DescribeOffsetLagResponse) -> None:
            if not answered.done():
                answered.set_result(response)

        self.handler.answer(partitions, then)
        return await answered

    async def _connection(self, broker_id: int) -> Connection:
        """Return the connection to another broker, or open one if there is none to its present address. Raises `BrokerError`."""
        address = self._address_of(broker_id)
        known = self._connections.get(broker_id)
        if known is not None and not known.closed and (known.host, known.port) == address:
            self._used.add(broker_id)
            return known
        self._forget(broker_id)
        if address is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"the address of broker {broker_id} is not known")
        connection = await Connection.connect(
            *address,
            client_id=f"broker-{self._broker_id}",
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            security=self._security,
        )
        self._connections[broker_id] = connection
        self._used.add(broker_id)
        return connection

    def _forget(self, broker_id: int) -> None:
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()

    def _close_connections(self, keep: Iterable[int]) -> None:
        for broker_id in [known for known in self._connections if known not in keep]:
            self._forget(broker_id)
