"""How a leader's ISR proposals reach the controller: one request on the wire, at most one proposal per partition.

The queue (a plain core) holds the proposals that wait and those on the wire; the manager (its shell) sends them. Rules:

- A partition has at most one proposal here. A second `submit` is refused until the first was answered or cancelled.
- All waiting proposals go into the next request; while that request is on the wire, new proposals wait for the one after it.
- A proposal leaves the queue *before* its callback is called, so that the partition may propose again from the callback.
  Otherwise the second proposal would be refused as "already pending" and be lost for good.
- Errors of transport and of the controller as a whole are retried for ever, after a short pause: the proposal is not
  refused, only late. It ends with an answer for its partition, or with `cancel` when newer metadata superseded it.
- A proposal is **doubtful** if a copy of it got no answer: that copy may reach a controller after a later copy, and a refusal
  of the later copy says nothing about it.
- An answer to a cancelled proposal is dropped. Proposals are compared by identity, so the answer to one of an earlier
  leadership cannot be taken for the answer to the present one.
- `STALE_BROKER_EPOCH` means that this registration is over: nothing is sent until the broker has registered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from strandline.broker.process.controller_channel import Channel
from strandline.broker.process.send_loop import SendLoop
from strandline.controller.metadata.records import RECOVERED
from strandline.protocol.apis import ALTER_PARTITION
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
)
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)


RETRY_BACKOFF_MS = 50
REQUEST_TIMEOUT_MS = 30_000

_NOT_DECIDED = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
"""Errors that say nothing about the proposal itself: it stays in the queue."""


class AlterPartitionItem(NamedTuple):
    """One proposal: the next ISR of (topic_id, partition), as its leader proposes it; based on `partition_epoch`."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch) of each proposed member; the epoch is the one that the leader last saw."""
    on_result: Callable[[AlterPartitionPartitionResponse, bool], None]
    """Called at most once, with the controller's answer for this partition (which may hold an error code), and with whether an
    earlier copy of the proposal may still reach a controller."""
    leader_recovery_state: int = RECOVERED
    """RECOVERED also ends the recovery of a leader from an unclean election (KIP-704)."""
    lost: tuple[int, ...] = ()
    """Replicas that have lost committed records."""

    @property
    def key(self) -> TopicIdPartition:
        return self.topic_id, self.partition


class Decided(NamedTuple):
    """A proposal with the controller's response."""

    item: AlterPartitionItem
    answer: AlterPartitionPartitionResponse
    is_doubtful: bool
    """Whether an earlier copy of the proposal may still reach a controller."""


class AlterPartitionQueue:
    """The core: the proposals that wait and those on the wire. No clock, no socket."""

    def __init__(self) -> None:
        self._pending: dict[TopicIdPartition, AlterPartitionItem] = {}
        """Proposals without an answer, those on the wire included; in the order of submission."""
        self._in_flight: Sequence[AlterPartitionItem] | None = None
        """The proposals in the request on the wire; None if there is no request."""
        self.doubtful: set[TopicIdPartition] = set()
        """Pending proposals of which an earlier copy was sent and got no answer."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def in_flight(self) -> bool:
        return self._in_flight is not None

    @property
    def superseded(self) -> list[AlterPartitionItem]:
        """The proposals on the wire that were cancelled since they were sent: the response no longer decides them."""
        return [item for item in self._in_flight or () if self._pending.get(item.key) is not item]

    def submit(self, item: AlterPartitionItem) -> bool:
        """Queue a proposal. False if the partition has one already; then nothing was queued."""
        if item.key in self._pending:
            return False
        self._pending[item.key] = item
        return True

    def cancel(self, key: TopicIdPartition) -> None:
        """Drop the partition's proposal, because newer metadata superseded it: its callback will not be called."""
        self._pending.pop(key, None)
        self.doubtful.discard(key)

    def next_request(self, broker_id: int, broker_epoch: int) -> AlterPartitionRequest | None:
        """All waiting proposals as one request. None while another request is on the wire, or if no proposal waits."""
        if self._in_flight is not None or not self._pending:
            return None
        self._in_flight = list(self._pending.values())
        return AlterPartitionRequest(broker_id, broker_epoch, [_wire_partition(item) for item in self._in_flight])

    def on_lost(self) -> None:
        """A copy of the request got no answer, and the channel sends it again."""
        self.doubtful.update(item.key for item in self._in_flight or () if self._pending.get(item.key) is item)

    def on_failure(self) -> None:
        """The request brought no answer for any partition: it timed out, was lost, or was refused as a whole."""
        self._in_flight = None

    def on_response(self, response: AlterPartitionResponse) -> list[Decided]:
        """Take a response. Returns the decided proposals, which have left the queue; the others are still pending."""
        sent, self._in_flight = self._in_flight or (), None
        if response.error_code:
            return []
        answers = {(p.topic_id, p.partition): p for p in response.partitions}
        decided = []
        for item in sent:
            answer = answers.get(item.key)
            if answer is None or self._pending.get(item.key) is not item or answer.error_code in _NOT_DECIDED:
                continue
            decided.append(Decided(item, answer, item.key in self.doubtful))
            self.cancel(item.key)
        return decided


def _wire_partition(item: AlterPartitionItem) -> AlterPartitionPartition:
    return AlterPartitionPartition(
        topic_id=item.topic_id,
        partition=item.partition,
        leader_epoch=item.leader_epoch,
        new_isr=[BrokerState(broker_id, epoch) for broker_id, epoch in item.isr],
        leader_recovery_state=item.leader_recovery_state,
        partition_epoch=item.partition_epoch,
        lost_replicas=list(item.lost),
    )


class Registration(Protocol):
    """The broker's registration, as far as the manager needs it (`broker/process/lifecycle.py`)."""

    @property
    def broker_epoch(self) -> int: ...

    async def renew(self, stale_epoch: int) -> None:
        """Register again after a request with `stale_epoch` was refused with STALE_BROKER_EPOCH. Returns once registered."""


class AlterPartitionManager:
    """The shell: one task that sends the queue's requests, one at a time."""

    def __init__(self, broker_id: int, channel: Channel, registration: Registration) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._registration = registration
        self._queue = AlterPartitionQueue()
        self._limits = LineLimits()
        self._loop = SendLoop("alter-partition", self._queue, self._send_once, RETRY_BACKOFF_MS)
        self.start, self.stop = self._loop.start, self._loop.stop

    def submit(self, item: AlterPartitionItem) -> bool:
        """Queue a proposal. False if the partition has one already; then nothing was queued."""
        accepted = self._queue.submit(item)
        if accepted:
            self._loop.wake()
        return accepted

    def cancel(self, key: TopicIdPartition) -> None:
        self._queue.cancel(key)

    async def _send_once(self) -> bool:
        """One round trip. False if a proposal is still undecided: then the next attempt follows after a pause."""
        epoch = self._registration.broker_epoch
        request = self._queue.next_request(self._broker_id, epoch)
        if request is None:
            return True
        try:
            answer = await self._channel.request(ALTER_PARTITION, request, REQUEST_TIMEOUT_MS, self._queue.on_lost)
        except BrokerError as e:
            self._queue.on_failure()
            return await self._on_refusal(e.code, epoch)
        except BaseException:
            self._queue.on_failure()
            raise
        response = cast(AlterPartitionResponse, answer)
        decided = self._queue.on_response(response)
        for each in decided:
            self._notify(*each)
        if response.error_code:
            return await self._on_refusal(to_code(response.error_code), epoch)
        return len(decided) == len(request.partitions)

    async def _on_refusal(self, code: ErrorCode, epoch: int) -> bool:
        suppressed = self._limits.admit(code.name, asyncio.get_running_loop().time())
        if suppressed is not None:
            logger.info("alter_partition.retried", error=code.name, partitions=len(self._queue), **suppressed.fields)
        if code == ErrorCode.STALE_BROKER_EPOCH:
            await self._registration.renew(epoch)
        return False

    def _notify(self, item: AlterPartitionItem, answer: AlterPartitionPartitionResponse, is_doubtful: bool) -> None:
        try:
            item.on_result(answer, is_doubtful)
        except Exception:
            logger.exception(
                "alter_partition.callback_failed",
                topic_id=item.topic_id.hex(),
                partition=item.partition,
                leader_epoch=item.leader_epoch,
                partition_epoch=item.partition_epoch,
            )
