"""Serves DescribeOffsetLag: the leader of a partition measures the lag of readers at some offsets.

The high watermark is that of ListOffsets: a new leader that does not know yet which records are committed answers with
OFFSET_NOT_AVAILABLE (KIP-207). For each offset the leader reads the header of one batch, the first that holds a committed record
at or after the offset. A thread reads a batch that is not in the page cache; the connection is on hold meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.disk_work import RunBlocking
from strandline.broker.fetch.offsets_handler import find_offset
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    LATEST_TIMESTAMP,
    DescribeOffsetLagRequest,
    DescribeOffsetLagResponse,
    OffsetLagPartition,
    OffsetLagPartitionResponse,
)
from strandline.protocol.records.batch import DELETE_HORIZON_MASK, BatchHeader, read_header
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.rpc.server_connection import answer_error
from strandline.storage.files import ColdRead, DiskError
from strandline.storage.log.log import Log

OFFSETS_MAX = 300
"""The maximum of the partitions, and of the offsets, in one request. An offset in an old segment takes up to 30 us of the event
loop."""
NO_TIMESTAMP = -1

Then = Callable[[DescribeOffsetLagResponse], None]


class OffsetLagHandler:
    """Answers DescribeOffsetLag requests of other brokers and, without a network, those of this broker."""

    def __init__(self, directory: PartitionDirectory, failures: LogFailures, run_blocking: RunBlocking | None) -> None:
        """If `run_blocking` is None, the disk is read on the event loop."""
        self._directory = directory
        self._failures = failures
        self._run_blocking = run_blocking

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeOffsetLagRequest)
        count = max(len(body.partitions), sum(len(asked.offsets) for asked in body.partitions))
        if count > OFFSETS_MAX:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{count} offsets are too many for one request: at most {OFFSETS_MAX}")
        lookup = _Lookup(self, body.partitions)
        if lookup.go_on(may_block=self._run_blocking is None):
            request.reply(lookup.response)
        else:
            request.connection.hold()
            self._warm(lookup, partial(self._finish, request, lookup))

    def _finish(self, request: ServerRequest, lookup: _Lookup) -> None:
        try:
            lookup.go_on(may_block=True)
            if not request.connection.closed:
                request.reply(lookup.response)
        except Exception as e:
            answer_error(request, e)
        request.connection.release()

    def answer(self, partitions: list[OffsetLagPartition], then: Then) -> None:
        """Look up partitions of this broker. Calls `then` with the response, at once or after a thread has read the disk."""
        lookup = _Lookup(self, partitions)

        def finish() -> None:
            lookup.go_on(may_block=True)
            then(lookup.response)

        if lookup.go_on(may_block=self._run_blocking is None):
            then(lookup.response)
        else:
            self._warm(lookup, finish)

    def _warm(self, lookup: _Lookup, then: Callable[[], None]) -> None:
        """Let a thread read the missing bytes into the page cache. If it fails, the read that follows fails with the same
        error."""
        assert self._run_blocking is not None
        self._run_blocking(lookup.warm, then)

    def describe(self, asked: OffsetLagPartition, answer: OffsetLagPartitionResponse, *, may_block: bool) -> None:
        """Fill in the answer for one partition. Raises `ColdRead`."""
        key = (asked.topic_id, asked.partition)
        try:
            found = self._directory.partition(key)
            leader_state = found.leading(asked.current_leader_epoch)
            _, end, _ = find_offset(found, leader_state, LATEST_TIMESTAMP, from_follower=False)
            answer.timestamps = [first_timestamp(found.log, offset, end, may_block=may_block) for offset in asked.offsets]
            answer.high_watermark, answer.log_start_offset = end, found.log.log_start_offset
        except BrokerError as e:
            answer.error_code = self._failures.code_of(key, e)
        except DiskError as e:
            self._failures.on_disk_error(e)
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR


class _Lookup:
    """The state of one request until it is answered."""

    def __init__(self, handler: OffsetLagHandler, partitions: list[OffsetLagPartition]) -> None:
        self._handler = handler
        answers = [OffsetLagPartitionResponse(asked.topic_id, asked.partition) for asked in partitions]
        self._open = list(zip(partitions, answers, strict=True))
        """The partitions that are not answered yet."""
        self._cold: list[ColdRead] = []
        self.response = DescribeOffsetLagResponse(answers)
        """Complete when `go_on` has returned True."""

    def go_on(self, *, may_block: bool) -> bool:
        """Answer the open partitions. False if some need bytes that are not in the page cache; `may_block` reads them."""
        self._cold, still_open = [], []
        for asked, answer in self._open:
            try:
                self._handler.describe(asked, answer, may_block=may_block)
            except ColdRead as cold:
                self._cold.append(cold)
                still_open.append((asked, answer))
        self._open = still_open
        return not still_open

    def warm(self) -> None:
        """Read the missing bytes into the page cache. May run on a thread."""
        for cold in self._cold:
            cold.warm()


def first_timestamp(log: Log, offset: int, end_offset: int, *, may_block: bool = True) -> int:
    """The timestamp in ms of the first batch that has a record in [`offset`, `end_offset`), as `OffsetLagPartitionResponse` says;
    -1 if there is none. Raises the errors of `Log.read`, except OFFSET_OUT_OF_RANGE."""
    offset = max(offset, log.log_start_offset)
    while offset < end_offset:
        found = log.read(offset, 1, end_offset, may_block=may_block)
        if not found.size:
            break
        header = read_header(found.buffers[0])
        if header.record_count:
            return _timestamp_of(header)
        offset = header.next_offset
    return NO_TIMESTAMP


def _timestamp_of(header: BatchHeader) -> int:
    if header.is_log_append_time or header.attributes & DELETE_HORIZON_MASK:
        return header.max_timestamp
    return header.base_timestamp
