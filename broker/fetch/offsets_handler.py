"""Serving ListOffsets and OffsetForLeaderEpoch: where a log begins, where it ends, and where its leader epochs end.

Only the leader answers, and only in the leader epoch that the request means. For a client, "latest" is the offset up to which it
may read. A new leader may know an older high watermark than the one that clients saw at the previous leader. Until the high
watermark has passed the start of this leader epoch, the answer is OFFSET_NOT_AVAILABLE (KIP-207): a smaller offset would look
like lost records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    EpochEndOffsetPartition,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.files import DiskError

Found = tuple[int, int, int]
"""Timestamp in ms (-1: does not apply), offset, leader epoch (-1: unknown)."""

NOT_FOUND: Found = (-1, -1, -1)


class OffsetsHandler:
    """Answers ListOffsets and OffsetForLeaderEpoch requests of a broker."""

    def __init__(self, directory: PartitionDirectory, failures: LogFailures) -> None:
        self._directory = directory
        self._failures = failures

    def list_offsets(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ListOffsetsRequest)
        twice = _named_twice((item.topic_id, item.partition) for item in body.partitions)
        from_follower = body.replica_id >= 0
        answers = []
        for item in body.partitions:
            answer = ListOffsetsPartitionResponse(item.topic_id, item.partition)
            ask = partial(_list, item=item, answer=answer, from_follower=from_follower)
            answer.error_code = self._guard((item.topic_id, item.partition), twice, ask)
            answers.append(answer)
        request.reply(ListOffsetsResponse(answers))

    def offset_for_leader_epoch(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, OffsetForLeaderEpochRequest)
        twice = _named_twice((item.topic_id, item.partition) for item in body.partitions)
        answers = []
        for item in body.partitions:
            answer = EpochEndOffsetPartition(item.topic_id, item.partition)
            ask = partial(_epoch_end, item=item, answer=answer)
            answer.error_code = self._guard((item.topic_id, item.partition), twice, ask)
            answers.append(answer)
        request.reply(OffsetForLeaderEpochResponse(answers))

    def _guard(self, key: TopicIdPartition, twice: set[TopicIdPartition], ask: Callable[[Partition], None]) -> ErrorCode:
        """Call `ask` with one partition; returns its error code. An error of one partition does not affect the others."""
        if key in twice:
            return ErrorCode.INVALID_REQUEST
        try:
            ask(self._directory.partition(key))
        except BrokerError as e:
            return self._failures.code_of(key, e)
        except DiskError as e:
            self._failures.on_disk_error(e)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE


def _named_twice(keys: Iterable[TopicIdPartition]) -> set[TopicIdPartition]:
    """Partitions that a request names more than once: each of them is refused, and the others are answered."""
    seen: set[TopicIdPartition] = set()
    twice: set[TopicIdPartition] = set()
    for key in keys:
        (twice if key in seen else seen).add(key)
    return twice


def _epoch_end(partition: Partition, item: OffsetForLeaderPartition, answer: EpochEndOffsetPartition) -> None:
    found = partition.last_offset_for_leader_epoch(item.current_leader_epoch, item.leader_epoch)
    answer.leader_epoch, answer.end_offset = found


def _list(partition: Partition, item: ListOffsetsPartition, answer: ListOffsetsPartitionResponse, from_follower: bool) -> None:
    leader_state = partition.leading(item.current_leader_epoch)
    found = _find(partition, leader_state, item.timestamp, from_follower)
    answer.timestamp, answer.offset, answer.leader_epoch = found


def _find(partition: Partition, leader_state: LeaderState, timestamp: int, from_follower: bool) -> Found:
    log = partition.log
    if timestamp == EARLIEST_TIMESTAMP:
        return -1, log.log_start_offset, _epoch_at(partition, log.log_start_offset)
    if timestamp == LATEST_TIMESTAMP and from_follower:
        return -1, log.log_end_offset, log.latest_epoch
    end = log.high_watermark
    is_end_known = end >= leader_state.epoch_start_offset
    if timestamp == LATEST_TIMESTAMP:
        if not is_end_known:
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return -1, end, leader_state.epoch
    if timestamp < MAX_TIMESTAMP:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp} is not supported")
    found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is not None and found[1] < end:
        return found
    if found is not None and not is_end_known:
        # The record may be committed already, so "not found" could be wrong.
        raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return NOT_FOUND


def _epoch_at(partition: Partition, offset: int) -> int:
    return partition.log.epochs.epoch_for_offset(offset)
