"""Sends the markers of decided transactions to the leaders of their partitions, and repeats each marker until it is written. The
core is `marker_queue.py`.

The transactions that are decided in one iteration of the event loop, or while a request is in flight, share the next request to
each broker. A request may take long, because one of its partitions waits for a slow replica; after `SLOW_S` the next request to
that broker is sent without waiting for it.

When the leadership of a `__transaction_state` partition ends, its transactions are dropped: the next coordinator finds their
Prepare records, and sends the markers itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from strandline.broker.transactions.marker_queue import Batch, Failed, MarkerQueue, Sending, all_failed, apply_response
from strandline.broker.transactions.shard import Markers
from strandline.broker.transactions.states import TopicNamePartition
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.apis import WRITE_TXN_MARKERS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.transactions import WriteTxnMarkersResponse

logger = get_logger(__name__)

REQUEST_TIMEOUT_MS = 15_000
"""Longer than a leader waits for the replicas of a marker."""
SLOW_S = 0.2
REQUESTS_MAX = 4
"""The maximum number of requests to one broker that are in flight at the same time."""
BACKOFF_S, BACKOFF_MAX_S = 0.01, 0.5
"""The pause after the first failure of a transaction, which doubles with each further one, and the longest pause."""
WORTH_A_LINE = 6
"""From this failure on, the delay of a transaction is logged: the pauses until then add up to 0.3 s."""


class Channels(Protocol):
    """`BrokerChannels`, as far as it is needed here."""

    def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: int) -> Awaitable[Message]: ...


@dataclass(slots=True)
class _InFlight:
    """The number of requests in flight to one broker: `fast` ones (at most 1) were sent less than `SLOW_S` ago, `slow` ones
    earlier."""

    fast: int = 0
    slow: int = 0

    @property
    def may_send(self) -> bool:
        return not self.fast and self.slow < REQUESTS_MAX


class MarkerSender:
    """Sends the markers of one broker's transaction coordinator."""

    def __init__(
        self,
        channels: Channels,
        image: Callable[[], MetadataImage],
        *,
        on_written: Callable[[Sending], None],
        on_answered: Callable[[int], None],
    ) -> None:
        """`on_written`: called when all markers of a transaction are committed. `on_answered`: called after each request with the
        number of markers that were committed."""
        self._channels = channels
        self._image = image
        self._on_written = on_written
        self._on_answered = on_answered
        self._queue = MarkerQueue()
        self._sendings: dict[Sending, None] = {}
        """The transactions whose markers are not all written, in the order of their decisions."""
        self._in_flight: dict[int, _InFlight] = {}
        """Broker id -> the number of its requests in flight."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_scheduled = False
        self._is_stopped = False
        self._limits = LineLimits()

    def send(self, owner: object, markers: Markers, coordinator_epoch: int) -> None:
        """Send markers until all of them are written. `owner`: the leadership that decided the transaction, for `cancel`."""
        if self._is_stopped:
            return
        now = asyncio.get_running_loop().time()
        sending = Sending(owner, markers, coordinator_epoch, dict.fromkeys(markers.partitions), now)
        self._sendings[sending] = None
        self._put(sending, markers.partitions)

    def cancel(self, owner: object) -> None:
        """Drop the transactions of a leadership that has ended."""
        for sending in [each for each in self._sendings if each.owner is owner]:
            self._drop(sending)

    def stop(self) -> None:
        """Cancel the requests in flight, and send no more, because the broker stops."""
        self._is_stopped = True
        for task in list(self._tasks):
            task.cancel()
        self._sendings.clear()

    def __len__(self) -> int:
        """The number of transactions whose markers are not all written."""
        return len(self._sendings)

    @property
    def without_leader(self) -> int:
        """The number of markers that wait because their partitions have no leader."""
        image = self._image()
        return sum(_has_no_leader(partition, image) for sending in self._sendings for partition in sending.left)

    # -- the way of a marker ------------------------------------------------------------------------------------------

    def _put(self, sending: Sending, partitions: Iterable[TopicNamePartition]) -> None:
        without_leader = self._queue.put(sending, partitions, self._image())
        if without_leader:
            self._pause(Failed(sending, without_leader, ErrorCode.LEADER_NOT_AVAILABLE))
        if not self._check_written(sending):
            self._schedule()

    def _check_written(self, sending: Sending) -> bool:
        if sending.left or sending not in self._sendings:
            return False
        del self._sendings[sending]
        self._on_written(sending)
        return True

    def _drop(self, sending: Sending) -> None:
        sending.is_dropped = True
        self._sendings.pop(sending, None)

    def _pause(self, failed: Failed) -> None:
        sending = failed.sending
        sending.attempts += 1
        delay_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(sending.attempts - 1, 10))
        if sending.attempts >= WORTH_A_LINE:
            self._log_delay(failed)
        asyncio.get_running_loop().call_later(delay_s, self._again, failed)

    def _again(self, failed: Failed) -> None:
        if not (failed.sending.is_dropped or self._is_stopped):
            self._put(failed.sending, failed.partitions)

    def _log_delay(self, failed: Failed) -> None:
        topic, number = failed.partitions[0]
        suppressed = self._limits.admit(f"{topic}-{number}", asyncio.get_running_loop().time())
        if suppressed is not None:
            logger.warning(
                "transactions.markers_delayed",
                transactional_id=failed.sending.markers.transactional_id,
                subject=f"{topic}-{number}",
                error=failed.code.name,
                **suppressed.fields,
            )

    # -- requests -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._is_scheduled = False
        if self._is_stopped:
            return
        for broker_id in self._queue.brokers:
            in_flight = self._in_flight.setdefault(broker_id, _InFlight())
            batch = self._queue.take(broker_id, self._image()) if in_flight.may_send else None
            if batch is not None:
                in_flight.fast = 1
                request = self._request(broker_id, in_flight, batch)
                task = asyncio.get_running_loop().create_task(request, name="write-txn-markers")
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)

    async def _request(self, broker_id: int, in_flight: _InFlight, batch: Batch) -> None:
        is_slow = False

        def slow_down() -> None:
            nonlocal is_slow
            is_slow, in_flight.fast = True, 0
            in_flight.slow += 1
            self._schedule()

        timer = asyncio.get_running_loop().call_later(SLOW_S, slow_down)
        try:
            failures = await self._ask(broker_id, batch)
        finally:
            timer.cancel()
            if is_slow:
                in_flight.slow -= 1
            else:
                in_flight.fast = 0
        self._on_result(batch, failures)
        self._schedule()

    async def _ask(self, broker_id: int, batch: Batch) -> list[Failed]:
        try:
            response = await self._channels.request(broker_id, WRITE_TXN_MARKERS, batch.request, REQUEST_TIMEOUT_MS)
        except BrokerError as e:
            return all_failed(batch, e.code)
        assert isinstance(response, WriteTxnMarkersResponse)
        return apply_response(batch, response)

    def _on_result(self, batch: Batch, failures: list[Failed]) -> None:
        asked = sum(len(part) for _, part in batch.parts)
        self._on_answered(asked - sum(len(failed.partitions) for failed in failures))
        for failed in failures:
            if failed.sending.is_dropped:
                continue
            if failed.is_superseded:
                self._log_superseded(failed)
                self._drop(failed.sending)
            else:
                self._pause(failed)
        for sending, _ in batch.parts:
            if not sending.is_dropped:
                self._check_written(sending)

    def _log_superseded(self, failed: Failed) -> None:
        topic, number = failed.partitions[0]
        logger.warning(
            "transactions.markers_superseded",
            transactional_id=failed.sending.markers.transactional_id,
            subject=f"{topic}-{number}",
            error=failed.code.name,
        )


def _has_no_leader(partition: TopicNamePartition, image: MetadataImage) -> bool:
    topic = image.topic(partition[0])
    registration = None if topic is None else topic.partitions.get(partition[1])
    return registration is not None and registration.leader < 0
