"""The group coordinator of one broker on a real log, and a producer that stores offsets of the group in transactions."""

from __future__ import annotations

from random import Random
from typing import Any

from handled_request import HandledConnection, HandledRequest
from replica_world import NOW_MS, ReplicaWorld
from test_transactional_produce import HeldAdder

from strandline.broker.coordination.coordinator import Host
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.handlers import GroupHandlers
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.protocol.messages.groups import (
    GroupTopicPartitions,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from strandline.protocol.messages.transactions import TxnOffsetCommitRequest, WritableTxnMarker
from strandline.protocol.records.batch import BatchHeader, iter_headers
from strandline.storage.log.log import Log

OFFSETS, ORDERS = b"offsets".ljust(16, b"-"), b"orders".ljust(16, b"-")
KEY = (OFFSETS, 0)
PID = 7


class TxnCommitWorld:
    """`__consumer_offsets` has one partition. With `brokers=2`, the second one has fetched nothing until `replicate`."""

    def __init__(self, brokers: int = 1, *, min_isr: int = 1) -> None:
        self.brokers = ReplicaWorld(brokers)
        replicas = tuple(range(1, brokers + 1))
        self.brokers.topic(name=OFFSETS_TOPIC, topic_id=OFFSETS, replicas=replicas, min_isr=min_isr)
        self.brokers.topic(name="orders", topic_id=ORDERS, replicas=(1,), partitions=3)
        self.adder = HeldAdder()
        self.connection = HandledConnection()
        self.is_trusted = True
        self.commits = 0
        self.start()

    def start(self) -> None:
        """A coordinator that has loaded the log."""
        loop, manager = self.brokers.loop, self.brokers[1].manager
        host = Host(
            manager.directory,
            manager.failures,
            manager.purgatory,
            now=loop.now,
            stopwatch=loop.now,
            wall_clock_ms=lambda: NOW_MS,
            call_later=loop.call_later,
            run_blocking=None,
            requests_served=lambda: 0,
        )
        self.coordinator = GroupCoordinator(GroupConfig(), host, Random(0))
        self.coordinator.on_offsets = self._count
        self.handlers = GroupHandlers(self.coordinator, lambda now: self.is_trusted, self.adder).handlers()
        self.load()

    def _count(self) -> None:
        self.commits += 1

    def load(self) -> None:
        image = self.brokers[1].manager.image
        self.coordinator.apply_delta(image.EMPTY.delta_to(image))
        self.brokers.loop.advance(0.1)

    @property
    def log(self) -> Log:
        return self.brokers[1][KEY].log

    def headers(self) -> list[BatchHeader]:
        found = self.log.read(0, 1 << 20, self.log.log_end_offset)
        return [header for buffer in found.buffers for _, header in iter_headers(buffer)]

    # -- requests --

    def ask(self, api_key: int, body: Any) -> HandledRequest:
        request = HandledRequest(body, api_key=api_key, connection=self.connection)
        self.handlers[api_key](request)  # type: ignore[arg-type]
        self.brokers.loop.end_turn()
        return request

    def store(self, offset: int, partition: int = 0, *, epoch: int = 0, version: int = 2, **fields: Any) -> HandledRequest:
        """A TxnOffsetCommit of a program without a membership."""
        asked = [OffsetCommitPartition(ORDERS, partition, offset)]
        body = TxnOffsetCommitRequest(
            **{"transactional_id": "t", "group_id": "g", **fields},
            producer_id=PID,
            producer_epoch=epoch,
            partitions=asked,
            transaction_version=version,
        )
        return self.ask(apis.TXN_OFFSET_COMMIT, body)

    def stored(self, offset: int, partition: int = 0, **options: Any) -> None:
        """A TxnOffsetCommit that the transaction coordinator admits."""
        request = self.store(offset, partition, **options)
        self.adder.answer()
        assert [p.error_code for p in request.answer.partitions] == [0]

    def commit(self, offset: int, partition: int = 0) -> None:
        asked = [OffsetCommitPartition(ORDERS, partition, offset)]
        request = self.ask(apis.OFFSET_COMMIT, OffsetCommitRequest("g", -1, "", None, asked))
        assert request.answer.partitions[0].error_code == 0

    def end(self, *, is_commit: bool, epoch: int = 1, version: int = 2, coordinator_epoch: int = 0) -> int:
        """Write a marker; returns the high watermark that commits it."""
        marker = WritableTxnMarker(PID, epoch, is_commit, [], coordinator_epoch, version)
        partition, end = self.coordinator.end_transaction(0, marker, NOW_MS)
        assert partition is self.brokers[1][KEY]
        self.brokers.loop.end_turn()
        return end

    def fetch(self, *, require_stable: bool = False) -> HandledRequest:
        group = OffsetFetchGroup("g", topics=[GroupTopicPartitions(ORDERS, [0, 1])])
        return self.ask(apis.OFFSET_FETCH, OffsetFetchRequest([group], require_stable))

    def fetched(self, *, require_stable: bool = False) -> list[tuple[int, int]]:
        """Offset and error code of the partitions 0 and 1."""
        answer = self.fetch(require_stable=require_stable).answer.groups[0]
        assert answer.error_code == 0
        return [(p.committed_offset, p.error_code) for p in answer.partitions]
