"""Serves WriteTxnMarkers: the leader of a partition writes the marker that ends a transaction there.

The coordinator sends the marker when it has decided, and repeats it until the result of the partition has no error. So a marker
may be written twice; the second one has no effect. A result without an error means that the marker is committed, so each later
leader has it. As for a producer with acks=-1, the leader writes nothing while the ISR is too small.

A marker for a partition of `__consumer_offsets` also commits or drops the offsets that a producer has stored in its transaction,
so the group coordinator writes it.

Each partition of each marker has its own result. The response is sent when all of them are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import DelayedOperation, Purgatory
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.transactions import (
    TxnPartitionResult,
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.files import DiskError

TIMEOUT_MS = 10_000
"""The time in which markers must be committed. The coordinator's own time limit for a request is longer."""


class OffsetTransactions(Protocol):
    """`GroupCoordinator`, as far as it is needed here."""

    def end_transaction(self, number: int, marker: WritableTxnMarker, now_ms: int) -> tuple[Partition, int]:
        """Write a marker to a partition of `__consumer_offsets`, and apply it to the offsets there. Returns the partition, and
        the high watermark at which the marker is committed. Raises `BrokerError`."""
        ...


class DelayedMarkers(DelayedOperation):
    """A request that waits for the high watermark of one or more partitions."""

    __slots__ = ("_partitions", "_request", "markers", "results")

    def __init__(self, request: ServerRequest) -> None:
        super().__init__()
        self._request = request
        self.markers: list[WritableTxnMarkerResult] = []
        """The result of each marker; the list grows while the request is being handled."""
        self.results: list[TxnPartitionResult] = []
        """The results of all markers, in the order of the request."""
        self._partitions: dict[int, Partition] = {}
        """Index in `results` -> the partition, if its marker is not committed yet."""

    def add_marker(self, producer_id: int) -> WritableTxnMarkerResult:
        self.markers.append(WritableTxnMarkerResult(producer_id, []))
        return self.markers[-1]

    def wait_for(self, partition: Partition, index: int, required_offset: int) -> None:
        self._partitions[index] = partition
        partition.waiters.add(required_offset, index, self, partition.leader_epoch)

    @property
    def is_waiting(self) -> bool:
        return bool(self._partitions)

    def on_reached(self, index: int) -> None:
        """Called when the high watermark of one partition has passed the marker."""
        del self._partitions[index]
        if not self._partitions:
            self.complete()

    def on_failed(self, index: int, error_code: int) -> None:
        self.results[index].error_code = error_code
        self.on_reached(index)

    def on_complete(self) -> None:
        self._request.reply(WriteTxnMarkersResponse(self.markers))

    def on_expiration(self) -> None:
        for index, partition in self._partitions.items():
            partition.waiters.discard(self)
            self.results[index].error_code = ErrorCode.REQUEST_TIMED_OUT
        self._request.reply(WriteTxnMarkersResponse(self.markers))


class MarkerHandler:
    """Answers WriteTxnMarkers requests of a broker."""

    def __init__(
        self,
        directory: PartitionDirectory,
        failures: LogFailures,
        purgatory: Purgatory,
        offsets: OffsetTransactions | None,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        """`offsets`: None if this broker coordinates no groups."""
        self._directory = directory
        self._failures = failures
        self._purgatory = purgatory
        self._offsets = offsets
        self._wall_clock_ms = wall_clock_ms

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, WriteTxnMarkersRequest)
        waiting, now_ms = DelayedMarkers(request), self._wall_clock_ms()
        for marker in body.markers:
            results = waiting.add_marker(marker.producer_id).partitions
            for topic in marker.topics:
                for number in topic.partitions:
                    result = TxnPartitionResult(topic.topic_id, number)
                    results.append(result)
                    waiting.results.append(result)
                    self._write(marker, result, waiting, now_ms)
        if waiting.is_waiting:
            self._purgatory.park(waiting, TIMEOUT_MS)
        else:
            waiting.complete()

    def _write(self, marker: WritableTxnMarker, result: TxnPartitionResult, waiting: DelayedMarkers, now_ms: int) -> None:
        """Write one marker to one partition, and let the request wait until the marker is committed."""
        try:
            partition, required_offset = self._append(marker, result, now_ms)
        except BrokerError as e:
            if e.code == ErrorCode.KAFKA_STORAGE_ERROR:
                self._failures.on_damage((result.topic_id, result.partition))
            result.error_code = e.code
        except DiskError as e:
            self._failures.on_disk_error(e)
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            if partition.log.high_watermark < required_offset:
                waiting.wait_for(partition, len(waiting.results) - 1, required_offset)

    def _append(self, marker: WritableTxnMarker, result: TxnPartitionResult, now_ms: int) -> tuple[Partition, int]:
        partition = self._directory.partition((result.topic_id, result.partition))
        leader_state = partition.leader_state
        if leader_state is None:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader_state.is_under_min_isr:
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if partition.topic == OFFSETS_TOPIC and self._offsets is not None:
            return self._offsets.end_transaction(result.partition, marker, now_ms)
        ended = EndTransactionMarker(marker.committed, marker.coordinator_epoch)
        info = leader_state.append_marker(ended, marker.producer_id, marker.producer_epoch, now_ms, marker.transaction_version)
        return partition, info.last_offset + 1
