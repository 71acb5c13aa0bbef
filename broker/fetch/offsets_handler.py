"""Serving ListOffsets and OffsetForLeaderEpoch: where a log begins, where it ends, and where its leader epochs end.

Only the leader answers, and only in the leader epoch that the request means. For a client, "latest" is the offset up to which
it may read: the high watermark, or the last stable offset if it reads committed records only. A new leader may know an older
high watermark than the one that clients saw at the previous leader. Until the high watermark has passed the start of this
leader epoch, the answer is OFFSET_NOT_AVAILABLE (KIP-207): a smaller offset would look like lost records.

A lookup by timestamp has to decode the records of a compressed batch. A thread does that, with the connection on hold. Then these
partitions are looked up again, from the present state: this broker may have lost the leadership meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from strandline.broker.disk_work import RunBlocking
from strandline.broker.fetch.fetch_handler import READ_COMMITTED
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    FIRST_DIRTY_TIMESTAMP,
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
from strandline.protocol.rpc.server_connection import answer_error
from strandline.storage.files import DiskError
from strandline.storage.log.batch_search import BatchSearches, SlowSearch

Found = tuple[int, int, int]
"""Timestamp in ms (-1: does not apply), offset, leader epoch (-1: unknown)."""

NOT_FOUND: Found = (-1, -1, -1)
SEARCH_BYTES_MAX = 8 << 20
"""Bytes of compressed batches that one request keeps in memory at a time. It may name many partitions with large batches."""

Guard = Callable[[TopicIdPartition, set[TopicIdPartition], Callable[[Partition], None]], ErrorCode]


class OffsetsHandler:
    """Answers ListOffsets and OffsetForLeaderEpoch requests of a broker."""

    def __init__(self, directory: PartitionDirectory, failures: LogFailures, run_blocking: RunBlocking | None = None) -> None:
        """`run_blocking`: decodes compressed batches on a thread; None: they are decoded at once, on the event loop."""
        self._directory = directory
        self._failures = failures
        self._run_blocking = run_blocking

    def list_offsets(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ListOffsetsRequest)
        lookup = _Lookup(body, self._guard, None if self._run_blocking is None else BatchSearches())
        lookup.go_on()
        if lookup.slow:
            request.connection.hold()
            self._search(request, lookup)
        else:
            request.reply(lookup.response)

    def _search(self, request: ServerRequest, lookup: _Lookup) -> None:
        assert self._run_blocking is not None
        self._run_blocking(lookup.search, partial(self._go_on, request, lookup))

    def _go_on(self, request: ServerRequest, lookup: _Lookup) -> None:
        """Answer the request, or search further if a searched batch held no matching record or partitions are still open."""
        if request.connection.closed:
            request.connection.release()
            return
        try:
            lookup.go_on()
            if lookup.slow:
                self._search(request, lookup)
                return
            request.reply(lookup.response)
        except Exception as e:
            answer_error(request, e)
        request.connection.release()

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


class _Lookup:
    """The state of one ListOffsets request until all its partitions are answered."""

    def __init__(self, body: ListOffsetsRequest, guard: Guard, searches: BatchSearches | None) -> None:
        self._guard = guard
        self._searches = searches
        self._from_follower = body.replica_id >= 0
        self._reads_committed = body.isolation_level == READ_COMMITTED
        self._twice = _named_twice((item.topic_id, item.partition) for item in body.partitions)
        answers = [ListOffsetsPartitionResponse(item.topic_id, item.partition) for item in body.partitions]
        self._open = list(zip(body.partitions, answers, strict=True))
        """The partitions that are not answered yet."""
        self.response = ListOffsetsResponse(answers)
        """Complete as soon as `slow` is empty after `go_on`."""
        self.slow: list[SlowSearch] = []
        """The searches without which the lookup cannot go on."""

    def go_on(self) -> None:
        """Answer the open partitions. Once the batches to search have `SEARCH_BYTES_MAX` together, the partitions that follow
        stay open for the next call."""
        self.slow, still_open, size = [], [], 0
        for item, answer in self._open:
            if size < SEARCH_BYTES_MAX:
                ask = partial(
                    list_offset,
                    item=item,
                    answer=answer,
                    from_follower=self._from_follower,
                    searches=self._searches,
                    reads_committed=self._reads_committed,
                )
                try:
                    answer.error_code = self._guard((item.topic_id, item.partition), self._twice, ask)
                    continue
                except SlowSearch as e:
                    self.slow.append(e)
                    size += e.size
            still_open.append((item, answer))
        self._open = still_open

    def search(self) -> None:
        """Run the searches of `slow`. May be called on a thread."""
        for search in self.slow:
            search.run()


def _named_twice(keys: Iterable[TopicIdPartition]) -> set[TopicIdPartition]:
    """Return the partitions that a request names more than once. The broker rejects each of them and processes the others."""
    seen: set[TopicIdPartition] = set()
    twice: set[TopicIdPartition] = set()
    for key in keys:
        (twice if key in seen else seen).add(key)
    return twice


def _epoch_end(partition: Partition, item: OffsetForLeaderPartition, answer: EpochEndOffsetPartition) -> None:
    found = partition.last_offset_for_leader_epoch(item.current_leader_epoch, item.leader_epoch)
    answer.leader_epoch, answer.end_offset = found


def list_offset(
    partition: Partition,
    item: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    from_follower: bool,
    searches: BatchSearches | None,
    reads_committed: bool = False,
) -> None:
    """Fill in the answer of ListOffsets for one partition. Raises `BrokerError` and `SlowSearch`, as `find_offset` does."""
    leader_state = partition.leading(item.current_leader_epoch)
    found = find_offset(partition, leader_state, item.timestamp, from_follower, searches, reads_committed)
    answer.timestamp, answer.offset, answer.leader_epoch = found


def find_offset(
    partition: Partition,
    leader_state: LeaderState,
    timestamp: int,
    from_follower: bool,
    searches: BatchSearches | None = None,
    reads_committed: bool = False,
) -> Found:
    """The offset of a timestamp, or of one of ListOffsets' symbolic timestamps.

    Raises OFFSET_NOT_AVAILABLE if this leader does not know yet which records are committed (KIP-207), and INVALID_REQUEST.
    With `searches`, raises SlowSearch instead of decoding a compressed batch."""
    log = partition.log
    if timestamp == EARLIEST_TIMESTAMP:
        return -1, log.log_start_offset, _epoch_at(partition, log.log_start_offset)
    if timestamp == LATEST_TIMESTAMP and from_follower:
        return -1, log.log_end_offset, log.latest_epoch
    if timestamp == FIRST_DIRTY_TIMESTAMP and from_follower:
        return -1, max(log.first_dirty_offset, log.log_start_offset), -1
    is_end_known = log.high_watermark >= leader_state.epoch_start_offset
    end = log.last_stable_offset if reads_committed else log.high_watermark
    if timestamp == LATEST_TIMESTAMP:
        if not is_end_known:
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return -1, end, leader_state.epoch
    if timestamp < MAX_TIMESTAMP:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp} is not supported")
    is_newest = timestamp == MAX_TIMESTAMP
    found = log.max_timestamp_offset(searches) if is_newest else log.offset_for_timestamp(timestamp, searches)
    if found is not None and found[1] < end:
        return found
    if found is not None and not is_end_known:
        # The record may be committed already, so "not found" could be wrong.
        raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return NOT_FOUND


def _epoch_at(partition: Partition, offset: int) -> int:
    return partition.log.epochs.epoch_for_offset(offset)
