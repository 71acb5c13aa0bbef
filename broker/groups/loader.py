"""Reads the records of one partition of `__consumer_offsets` into a new shard, when this broker becomes its leader.

The log is read from its start to the end at which the leader epoch began, also what is not committed yet: the shard's replies
wait until the high watermark has passed that. It is read in slices of a bounded size, each in an event-loop iteration of its own,
so that other partitions are served meanwhile; what is not in the page cache is read on a thread. A load is dropped when the
leadership ends, and one of a newer epoch starts from the beginning.

A record of a type that is not known (of share or streams groups, or of a later version) is skipped. If a record or a batch cannot
be decoded, the load fails: a coordinator that knew half of its groups would answer wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.disk_work import RunBlocking
from strandline.broker.groups.records.codec import UnknownRecordType, decode_record
from strandline.broker.groups.shard import GroupShard
from strandline.broker.partition.leader_state import LeaderState
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import Buffer, iter_headers
from strandline.protocol.records.reader import decode_batch
from strandline.storage.files import ColdRead

SLICE_BYTES = 64 * 1024
"""About ten milliseconds of decoding."""


class Loader:
    """One load. `start` begins it; it ends with exactly one call of `on_end`, unless `cancel` comes first."""

    def __init__(
        self,
        leader_state: LeaderState,
        shard: GroupShard,
        *,
        is_current: Callable[[], bool],
        call_soon: Callable[[Callable[[], None]], object],
        run_blocking: RunBlocking | None,
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """`is_current`: whether the partition still leads in the epoch of `leader_state`."""
        self.shard = shard
        self._leader_state = leader_state
        self._end_offset = leader_state.log.log_end_offset
        self._next_offset = leader_state.log.log_start_offset
        self._is_current = is_current
        self._call_soon = call_soon
        self._run_blocking = run_blocking
        self._on_end = on_end
        self._is_cancelled = False
        self.records = 0
        """How many records were replayed."""
        self.skipped = 0
        """How many records are of a type that is not known."""

    def start(self) -> None:
        self._call_soon(self._step)

    def cancel(self) -> None:
        self._is_cancelled = True

    def _step(self) -> None:
        if self._is_cancelled:
            return
        if not self._is_current():
            self._finish(BrokerError(ErrorCode.NOT_COORDINATOR, "the leadership ended during the load"))
            return
        try:
            is_read = self._read_slice()
        except Exception as e:
            # Also after a bug: a load that never ended would keep the groups' clients waiting without a reason.
            self._finish(e)
            return
        if self._next_offset >= self._end_offset:
            self._finish(None)
        elif is_read:
            self._call_soon(self._step)

    def _finish(self, error: Exception | None) -> None:
        self._is_cancelled = True
        self._on_end(error)

    def _read_slice(self) -> bool:
        """Read and replay one slice; False if a thread reads it into the page cache first."""
        log_ = self._leader_state.log  # another object after a move to another log directory
        self._next_offset = max(self._next_offset, log_.log_start_offset)
        if self._next_offset >= self._end_offset:
            return True
        read = partial(log_.read, self._next_offset, SLICE_BYTES, self._end_offset)
        try:
            found = read(may_block=self._run_blocking is None)
        except ColdRead as cold:
            assert self._run_blocking is not None
            self._run_blocking(cold.warm, self._step)
            return False
        if not found.size:
            raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"there is no batch at offset {self._next_offset}")
        self.shard.offsets.on_high_watermark(log_.high_watermark)
        for buffer in found.buffers:
            self._replay(buffer)
        return True

    def _replay(self, buffer: Buffer) -> None:
        for position, header in iter_headers(buffer):
            self._next_offset = header.next_offset
            if header.is_control or not header.record_count:
                continue
            for record in decode_batch(buffer, position, header, check_crc=False):
                try:
                    decoded = decode_record(record.key, record.value)
                except UnknownRecordType:
                    self.skipped += 1
                    continue
                self.shard.replay(decoded, record.offset)
                self.records += 1
