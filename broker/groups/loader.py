"""Reads the records of one partition of `__consumer_offsets` into a new shard, when this broker becomes its leader.

The log is read from its start to the end at which the leader epoch began, also what is not committed yet: the shard's replies
wait until the high watermark has passed that. A load works in slices of a bounded size, which other partitions do not wait for;
what is not in the page cache is read on a thread. A load is dropped when the leadership ends, and one of a newer epoch starts
from the beginning. When many partitions arrive at once, their loads take turns (`LoadTurns`).

Nearly all records are commits of offsets, and the newest one of each group and partition supersedes the others. So committed ones
are first collected by their keys, as bytes; when the log is read, the newest ones are decoded:

    log        a=1  b=1  group  a=2  a=3  b=2 | a=4        the high watermark is at |
    replayed   group ............................ a=3  a=4  b=2

No other record depends on an offset, and compaction may have removed the superseded ones anyway. An uncommitted record is
replayed at once, after the newest committed one of its key. A log with many keys is replayed in parts, which bounds the memory.

A record of a type that is not known (of share or streams groups, or of a later version) is skipped. If a record or a batch cannot
be decoded, the load fails: a coordinator that knew half of its groups would answer wrongly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from strandline.broker.disk_work import RunBlocking
from strandline.broker.groups.records.codec import UnknownRecordType, decode_record
from strandline.broker.groups.records.offset_commits import OFFSET_COMMIT_TYPES, decode_offset_commit, only_record
from strandline.broker.groups.shard import GroupShard
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.purgatory import CallLater
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import HEADER_SIZE, BatchHeader, Buffer, iter_headers
from strandline.protocol.records.reader import Columns, decode_columns
from strandline.storage.files import ColdRead

SLICE_BYTES = 16 * 1024
SLICE_OFFSETS = 150
"""Bytes of the log that a slice reads, or newest offsets that it replays: a quarter of a millisecond of work."""
PAUSE_S = 0.001
"""How long the loop is free after a slice, if it has requests to serve."""
NEWEST_MAX = 20_000
"""Offsets that are collected before they are replayed. A dict that grew with a million of them would stop the loop when it is
enlarged."""

Step = Callable[[], None]


class LoadTurns:
    """Runs the slices of all loads, one in each iteration of the event loop. The load that began first goes on until it ends, so
    that its groups are served while the others wait.

    A produce request takes a few iterations of the loop until its followers have it, so it would wait for a few slices. While the
    broker serves requests, the slices pause for them; on an idle broker, only the groups wait, and the slices follow at once."""

    def __init__(self, call_later: CallLater, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether the broker serves requests at present."""
        self._call_later = call_later
        self._is_busy = is_busy
        self._steps: deque[Step] = deque()
        self._is_running = False

    def add(self, step: Step) -> None:
        """Run a step. If the step before it has called this, it is the next one, otherwise the last one."""
        if self._is_running:
            self._steps.appendleft(step)
            return
        self._steps.append(step)
        if len(self._steps) == 1:
            self._schedule()

    def _schedule(self) -> None:
        self._call_later(PAUSE_S if self._is_busy() else 0.0, self._run)

    def _run(self) -> None:
        self._is_running = True
        try:
            self._steps.popleft()()
        finally:
            self._is_running = False
            if self._steps:
                self._schedule()


class Loader:
    """One load. `start` begins it; it ends with exactly one call of `on_end`, unless `cancel` comes first."""

    def __init__(
        self,
        leader_state: LeaderState,
        shard: GroupShard,
        *,
        is_current: Callable[[], bool],
        call_soon: Callable[[Step], object],
        run_blocking: RunBlocking | None,
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """`is_current`: whether the partition still leads in the epoch of `leader_state`. `call_soon`: calls a slice when it is
        the turn of this load."""
        self.shard = shard
        self._leader_state = leader_state
        self._end_offset = leader_state.log.log_end_offset
        self._next_offset = leader_state.log.log_start_offset
        self._newest: dict[bytes, bytes | None] = {}
        """Key -> value of the newest OffsetCommit record that is read, committed, and not replayed."""
        self._left: Iterator[tuple[bytes, bytes | None]] | None = None
        """The entries of `_newest` that are still to be replayed; None while the log is read."""
        self._is_current = is_current
        self._call_soon = call_soon
        self._run_blocking = run_blocking
        self._on_end = on_end
        self._is_cancelled = False
        self.records = 0
        """How many records were read, of known types."""
        self.skipped = 0
        """How many records are of a type that is not known."""

    def start(self) -> None:
        """Begin the load, or go on with it."""
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
            if self._left is None:
                self._read_slice()
            else:
                self._replay_slice(self._left)
        except ColdRead as cold:
            assert self._run_blocking is not None
            self._run_blocking(cold.warm, self.start)
        except Exception as e:
            # Also after a bug: a load that never ended would keep the groups' clients waiting without a reason.
            self._finish(e)
        else:
            if self._left is None and self._next_offset >= self._end_offset:
                self._finish(None)
            else:
                self.start()

    def _finish(self, error: Exception | None) -> None:
        self._is_cancelled = True
        self._on_end(error)

    # -- reading the log ----------------------------------------------------------------------------------------------

    def _read_slice(self) -> None:
        """Read a slice of the log. Raises `ColdRead` if a thread must read it into the page cache first."""
        log_ = self._leader_state.log  # another object after a move to another log directory
        self._next_offset = max(self._next_offset, log_.log_start_offset)
        if self._next_offset < self._end_offset:
            found = log_.read(self._next_offset, SLICE_BYTES, self._end_offset, may_block=self._run_blocking is None)
            if not found.size:
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"there is no batch at offset {self._next_offset}")
            self.shard.offsets.on_high_watermark(log_.high_watermark)
            for buffer in found.buffers:
                self._read_batches(buffer, log_.high_watermark)
        if len(self._newest) >= NEWEST_MAX or (self._newest and self._next_offset >= self._end_offset):
            self._left = iter(self._newest.items())

    def _read_batches(self, buffer: Buffer, high_watermark: int) -> None:
        for position, header in iter_headers(buffer):
            self._next_offset = header.next_offset
            if header.is_control or not header.record_count:
                continue
            is_committed = header.next_offset <= high_watermark
            if is_committed and self._collect_only_record(buffer, position, header):
                continue
            columns = decode_columns(buffer, position, header, check_crc=False)
            if not (is_committed and self._collect(columns)):
                self._replay_batch(columns, high_watermark)

    def _collect_only_record(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Collect the record of a batch that holds one commit; False if it holds something else."""
        if header.record_count > 1 or header.attributes:
            return False
        record = only_record(bytes(buffer[position + HEADER_SIZE : position + header.size]))
        if record is None or record[0][:2] not in OFFSET_COMMIT_TYPES:
            return False
        self._newest[record[0]] = record[1]
        self.records += 1
        return True

    def _collect(self, columns: Columns) -> bool:
        """Collect the records of a batch that holds commits; False if it holds something else, too."""
        keys = columns.keys
        if keys is None or not all(key is not None and key[:2] in OFFSET_COMMIT_TYPES for key in keys):
            return False
        self._newest.update(zip(keys, columns.values, strict=True))  # type: ignore[arg-type]
        self.records += len(keys)
        return True

    def _replay_batch(self, columns: Columns, high_watermark: int) -> None:
        """Replay a batch that holds records of several types, or uncommitted ones."""
        keys = columns.keys if columns.keys is not None else [None] * len(columns.values)
        for offset, key, value in zip(columns.offsets(), keys, columns.values, strict=True):
            if key is None or key[:2] not in OFFSET_COMMIT_TYPES:
                self._replay(key, value, offset)
            elif offset < high_watermark:
                self._newest[key] = value
                self.records += 1
            else:
                if key in self._newest:
                    self._replay_committed(key, self._newest.pop(key))
                self._replay(key, value, offset)

    def _replay(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            record = decode_record(key, value)
        except UnknownRecordType:
            self.skipped += 1
            return
        self.shard.replay(record, offset)
        self.records += 1

    # -- the newest offsets -------------------------------------------------------------------------------------------

    def _replay_slice(self, left: Iterator[tuple[bytes, bytes | None]]) -> None:
        """Replay some of the newest offsets."""
        slice_ = list(islice(left, SLICE_OFFSETS))
        for key, value in slice_:
            self._replay_committed(key, value)
        if len(slice_) < SLICE_OFFSETS:
            self._newest, self._left = {}, None

    def _replay_committed(self, key: bytes, value: bytes | None) -> None:
        self.shard.offsets.replay_committed(decode_offset_commit(key, value))
