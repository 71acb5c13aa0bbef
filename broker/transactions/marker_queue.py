"""Queues markers for the leaders of their partitions until they are written, and interprets the responses. A core without I/O.

Each partition of each decided transaction is in one of these states until it is done:

    waiting     for the next request to its leader, which contains the partitions that wait for the same broker
    in flight   in a request to its leader
    paused      the shell keeps it for a moment after a failure, or because the partition has no leader, and queues it again

The leader is looked up each time, so a marker follows its partition. A partition is done when its leader has answered without an
error, or when it no longer exists. A partition that is missing from this broker's metadata was deleted. It cannot be too new for
this metadata: a coordinator adds only partitions of its metadata to a transaction, and the next coordinator's metadata is newer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from strandline.broker.transactions.shard import Markers
from strandline.broker.transactions.states import TopicNamePartition
from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.protocol.errors import ErrorCode, to_code
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

REQUEST_PARTITIONS = 2000
"""The number of partitions at which a request is full; it contains all waiting partitions of its last transaction. A leader
appends a marker in some 30 us, and other requests wait meanwhile."""
_SUPERSEDED = (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
"""Errors of a transaction that a later coordinator has completed: that coordinator has written a marker to the partition, or the
producer has a newer epoch there."""


@dataclass(slots=True, eq=False)
class Sending:
    """A decided transaction whose markers are being sent."""

    owner: object
    """The leadership in which the transaction was decided."""
    markers: Markers
    coordinator_epoch: int
    left: dict[TopicNamePartition, None]
    """The partitions that are not done."""
    began_at: float
    """When the sending began, on the loop's clock."""
    attempts: int = 0
    """The number of failures so far. After each, some of the partitions needed another attempt."""
    is_dropped: bool = False
    """The leadership has ended, or a later coordinator has completed the transaction: partitions that still wait are skipped."""


class Failed(NamedTuple):
    """Partitions that need another attempt, or (with `is_superseded`) a transaction that a later coordinator has completed."""

    sending: Sending
    partitions: list[TopicNamePartition]
    code: ErrorCode

    @property
    def is_superseded(self) -> bool:
        return self.code in _SUPERSEDED


class Batch(NamedTuple):
    """One request, and the transaction and partitions of each of its markers."""

    request: WriteTxnMarkersRequest
    parts: list[tuple[Sending, dict[tuple[bytes, int], TopicNamePartition]]]
    """For each marker of the request, in its order: the transaction, and (topic id, partition number) -> the partition."""


class MarkerQueue:
    """The partitions of one coordinator that wait for the next request to their leader."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[Sending, list[TopicNamePartition]]] = {}
        """Leader -> transaction -> the partitions that need its marker."""

    @property
    def brokers(self) -> list[int]:
        """The leaders of the waiting partitions."""
        return list(self._waiting)

    def put(self, sending: Sending, partitions: Iterable[TopicNamePartition], image: MetadataImage) -> list[TopicNamePartition]:
        """Queue the partitions for their leaders; those that no longer exist are done. Returns those without a leader."""
        without_leader = []
        for partition in partitions:
            leader = _leader_of(partition, image)
            if leader is None:
                sending.left.pop(partition, None)
            elif leader == NO_LEADER:
                without_leader.append(partition)
            else:
                self._waiting.setdefault(leader, {}).setdefault(sending, []).append(partition)
        return without_leader

    def take(self, broker_id: int, image: MetadataImage) -> Batch | None:
        """The next request to a broker; None if nothing waits for it."""
        waiting, size = self._waiting.get(broker_id, {}), 0
        batch = Batch(WriteTxnMarkersRequest([]), [])
        while waiting and size < REQUEST_PARTITIONS:
            sending = next(iter(waiting))
            partitions = waiting.pop(sending)
            if not sending.is_dropped:
                size += len(partitions)
                _append(batch, sending, partitions, image)
        if not waiting:
            self._waiting.pop(broker_id, None)
        return batch if batch.parts else None


def _leader_of(partition: TopicNamePartition, image: MetadataImage) -> int | None:
    """The leader, or `NO_LEADER`; None if the partition does not exist."""
    name, number = partition
    topic = image.topic(name)
    registration = None if topic is None else topic.partitions.get(number)
    return None if registration is None else registration.leader


def _append(batch: Batch, sending: Sending, partitions: list[TopicNamePartition], image: MetadataImage) -> None:
    by_topic: dict[bytes, list[int]] = {}
    part = {}
    for partition in partitions:
        topic = image.topic(partition[0])
        if topic is None:
            sending.left.pop(partition, None)
        else:
            by_topic.setdefault(topic.topic_id, []).append(partition[1])
            part[topic.topic_id, partition[1]] = partition
    batch.parts.append((sending, part))
    markers = sending.markers
    batch.request.markers.append(
        WritableTxnMarker(
            markers.producer_id,
            markers.producer_epoch,
            markers.is_commit,
            [GroupTopicPartitions(topic_id, numbers) for topic_id, numbers in by_topic.items()],
            sending.coordinator_epoch,
            markers.version,
        )
    )


def apply_response(batch: Batch, response: WriteTxnMarkersResponse) -> list[Failed]:
    """Mark the partitions that the leader answered without an error as done. Returns the others, by transaction and error."""
    failures = []
    for index, (sending, part) in enumerate(batch.parts):
        result = response.markers[index] if index < len(response.markers) else WritableTxnMarkerResult(-1, [])
        codes = {(each.topic_id, each.partition): each.error_code for each in result.partitions}
        failed: dict[ErrorCode, list[TopicNamePartition]] = {}
        for key, partition in part.items():
            code = to_code(codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR))
            if code is ErrorCode.NONE:
                sending.left.pop(partition, None)
            else:
                failed.setdefault(code, []).append(partition)
        failures += [Failed(sending, partitions, code) for code, partitions in failed.items()]
    return failures


def all_failed(batch: Batch, code: ErrorCode) -> list[Failed]:
    """The failures of a request without a response. The leader may have written the markers; writing them twice does no harm."""
    return [Failed(sending, list(part.values()), code) for sending, part in batch.parts]
