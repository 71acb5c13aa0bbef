"""Two brokers with replicas of `__transaction_state`, in virtual time; the markers are recorded instead of being sent."""

from __future__ import annotations

import asyncio
from typing import Any

from handled_request import HandledRequest
from replica_world import NOW_MS, Node, ReplicaWorld

from strandline.broker.coordination.coordinator import Host
from strandline.broker.transactions.config import TransactionConfig
from strandline.broker.transactions.coordinator import TransactionCoordinator
from strandline.broker.transactions.handlers import TransactionHandlers
from strandline.broker.transactions.marker_queue import Sending
from strandline.broker.transactions.shard import Markers
from strandline.broker.transactions.states import Transaction
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.controller.metadata.records import AnyRecord
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import InitProducerIdRequest
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
)

STATE, ORDERS = b"transactionstate", b"topic-id-number1"
KEY = (STATE, 0)
ID = "orders-1"


class RecordedMarkers:
    """Stands in for `MarkerSender`."""

    without_leader = 0

    def __init__(self) -> None:
        self.sent: list[tuple[object, Markers, int]] = []
        self.cancelled: list[object] = []

    def __len__(self) -> int:
        return len(self.sent)

    def send(self, owner: object, markers: Markers, coordinator_epoch: int) -> None:
        self.sent.append((owner, markers, coordinator_epoch))

    def cancel(self, owner: object) -> None:
        self.cancelled.append(owner)

    def stop(self) -> None: ...


class FreshIds:
    """Producer ids: 1000, 1001, ..."""

    def __init__(self) -> None:
        self.next = 1000
        self.while_asked: Any = None
        """Called while the coordinator waits for a producer id."""
        self.asked = 0
        self.error: BrokerError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def next_id(self) -> int:
        self.asked += 1
        if self.while_asked is not None:
            self.while_asked()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        self.next += 1
        return self.next - 1


class Coordinating:
    """The transaction coordinator of one broker."""

    def __init__(self, node: Node, config: TransactionConfig) -> None:
        self.node, self.fresh_ids = node, FreshIds()
        self.markers = RecordedMarkers()
        self.is_trusted = True
        manager, loop = node.manager, node.loop
        host = Host(
            manager.directory,
            manager.failures,
            manager.purgatory,
            now=loop.now,
            stopwatch=loop.now,
            wall_clock_ms=lambda: NOW_MS + round(1000 * (loop.time - 1000)),
            call_later=loop.call_later,
            run_blocking=None,
            requests_served=lambda: 0,
        )
        self.coordinator = TransactionCoordinator(config, host, None, self.fresh_ids)  # type: ignore[arg-type]
        self.coordinator.markers = self.markers  # type: ignore[assignment]
        self.handlers = TransactionHandlers(self.coordinator, lambda _: self.is_trusted)

    @property
    def transactions(self) -> dict[str, Transaction]:
        (active,) = self.coordinator.shards.values()
        return active.shard.transactions

    @property
    def found(self) -> Transaction:
        return self.transactions[ID]

    async def ask(self, handle: Any, body: Message) -> HandledRequest:
        request = HandledRequest(body)
        rest = handle(request)
        if rest is not None:
            await rest
        self.node.loop.end_turn()
        return request

    def write_markers(self) -> None:
        """Let the leaders write all markers that were sent."""
        sent, self.markers.sent = self.markers.sent, []
        for owner, markers, epoch in sent:
            self.coordinator._on_written(Sending(owner, markers, epoch, {}, self.node.loop.now()))

    # -- a producer of TV2 --------------------------------------------------------------------------------------------

    async def init(self) -> HandledRequest:
        return await self.ask(self.handlers.init_producer_id, InitProducerIdRequest(ID, 60_000))

    async def add(self, producer: tuple[int, int], *partitions: int) -> HandledRequest:
        asked = AddPartitionsToTxnTransaction(ID, *producer, [GroupTopicPartitions(ORDERS, list(partitions or (0,)))])
        return await self.ask(self.handlers.add_partitions, AddPartitionsToTxnRequest([asked]))

    async def end(self, producer: tuple[int, int], *, commit: bool = True) -> HandledRequest:
        return await self.ask(self.handlers.end, EndTxnRequest(ID, *producer, commit))

    async def describe(self) -> HandledRequest:
        return await self.ask(self.handlers.describe, DescribeTransactionsRequest([ID]))


class TransactionWorld:
    """Two brokers with the transaction coordinator. Broker 1 leads at first."""

    def __init__(self, **config: int) -> None:
        self.replicas = ReplicaWorld(2)
        self.at = {number: Coordinating(self.replicas[number], TransactionConfig(**config)) for number in (1, 2)}
        self.watch(lambda: self.replicas.topic(replicas=(1, 2), min_isr=1, topic_id=ORDERS))
        self.watch(lambda: self.replicas.topic(replicas=(1, 2), min_isr=2, topic_id=STATE, name=TRANSACTION_STATE_TOPIC))
        self.replicas.loop.advance(0.0)

    def watch(self, change: Any) -> None:
        """Change the metadata, and have the coordinators apply it."""
        before = {number: each.node.manager.image for number, each in self.at.items()}
        change()
        for number, each in self.at.items():
            each.coordinator.apply_delta(before[number].delta_to(each.node.manager.image))
        self.replicas.loop.end_turn()

    def change(self, *records: AnyRecord) -> None:
        self.watch(lambda: self.replicas.change(*records))

    def elect(self, leader: int) -> None:
        self.watch(lambda: self.replicas.elect(leader, key=KEY))

    def replicate(self, leader: int = 1) -> None:
        """The follower fetches until the high watermark is at the end."""
        for _ in range(3):
            self.replicas.replicate(3 - leader, leader, key=KEY)

    @property
    def first(self) -> Coordinating:
        return self.at[1]

    async def began(self) -> tuple[int, int]:
        """An ongoing transaction with a committed record; returns its producer."""
        answer = await self.first.init()
        self.replicate()
        producer = (answer.answer.producer_id, answer.answer.producer_epoch)
        await self.first.add(producer)
        self.replicate()
        return producer
