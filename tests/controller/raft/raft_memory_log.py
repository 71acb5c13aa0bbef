"""The Raft log in memory, with a disk that can lose unflushed states: a crash leaves any state since the last flush.

`Platter` outlives the process; `MemoryRaftLog` is the view of one process. Every change of the log adds a state to the platter's
journal. A crash picks one of these states; a flush keeps only the last."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.log import EpochEnd
from strandline.controller.raft.snapshots import check_snapshot, sort_key
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.batch import iter_headers, stamp


class Batch(NamedTuple):
    base: int
    end: int
    epoch: int
    data: bytes


class LogState(NamedTuple):
    start: int
    batches: tuple[Batch, ...]

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start


@dataclass
class Platter:
    """The content of one voter's disk."""

    election: ElectionState = field(default_factory=ElectionState)
    log: LogState = field(default_factory=lambda: LogState(0, ()))
    snapshots: dict[SnapshotId, bytes] = field(default_factory=dict)
    journal: list[LogState] = field(default_factory=list)
    """States of the log since the last flush, any of which a crash may leave."""

    def crash(self, random: Random, *, lossy: bool = True) -> None:
        if self.journal:
            self.log = random.choice([self.log, *self.journal]) if lossy else self.journal[-1]
            self.journal.clear()


class MemoryRaftLog:
    def __init__(self, platter: Platter) -> None:
        self.platter = platter
        self._state = platter.log
        latest = self.latest_snapshot_id
        if latest and (self.last_epoch < latest.epoch or self.end_offset < latest.end_offset):
            self.install_snapshot(latest)
        self.high_watermark = 0

    @property
    def batches(self) -> tuple[Batch, ...]:
        return self._state.batches

    @property
    def start_offset(self) -> int:
        return self._state.start

    @property
    def end_offset(self) -> int:
        return self._state.end

    @property
    def flushed_offset(self) -> int:
        """How far the platter holds the same batches. A batch that was cut and written again is not flushed because an earlier
        one was."""
        flushed = self.platter.log.start
        for ours, theirs in zip(self.batches, self.platter.log.batches, strict=False):
            if ours is not theirs:
                break
            flushed = ours.end
        return self.end_offset if not self.platter.journal else max(self.start_offset, min(flushed, self.end_offset))

    @property
    def _base_epoch(self) -> int:
        first = self.first_snapshot_id
        return first.epoch if first else 0

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else self._base_epoch

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        index = bisect_right(self.batches, epoch, key=lambda batch: batch.epoch)
        if index == 0:
            return EpochEnd(self._base_epoch, self.start_offset)
        return EpochEnd(self.batches[index - 1].epoch, self.batches[index - 1].end)

    def append_as_leader(self, records: memoryview, epoch: int) -> int:
        for pos, header in iter_headers(records):
            stamp(records, pos, self.end_offset, epoch)
            data = bytes(records[pos : pos + header.size])
            self._append(Batch(self.end_offset, self.end_offset + header.last_offset_delta + 1, epoch, data))
        return self.end_offset - 1

    def append_as_follower(self, records: memoryview, max_epoch: int) -> int:
        for pos, header in iter_headers(records):
            if header.leader_epoch > max_epoch:
                break
            if header.base_offset != self.end_offset:
                raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{header.base_offset} appended at {self.end_offset}")
            data = bytes(records[pos : pos + header.size])
            self._append(Batch(header.base_offset, header.last_offset + 1, header.leader_epoch, data))
        return self.end_offset

    def _append(self, batch: Batch) -> None:
        self._change(LogState(self.start_offset, (*self.batches, batch)))

    def _change(self, state: LogState) -> None:
        self._state = state
        self.platter.journal.append(state)

    def read(self, offset: int, max_bytes: int) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        for batch in self.batches[bisect_right(self.batches, offset, key=lambda b: b.end) :]:
            if found and sum(map(len, found)) + len(batch.data) > max_bytes:
                break
            found.append(batch.data)
        return found, sum(map(len, found))

    def truncate_to(self, offset: int) -> None:
        kept = tuple(batch for batch in self.batches if batch.end <= offset)
        assert (kept[-1].end if kept else self.start_offset) == offset, "truncation inside a batch"
        self._change(LogState(self.start_offset, kept))

    def update_high_watermark(self, offset: int) -> None:
        assert self.high_watermark <= offset <= self.end_offset
        self.high_watermark = offset

    def flush(self) -> None:
        self.platter.log = self._state
        self.platter.journal.clear()

    # -- snapshots -------------------------------------------------------------------------------------------------

    @property
    def _snapshots(self) -> list[SnapshotId]:
        return sorted(self.platter.snapshots, key=sort_key)

    @property
    def first_snapshot_id(self) -> SnapshotId | None:
        return next((snapshot for snapshot in self._snapshots if snapshot.end_offset == self.start_offset), None)

    @property
    def latest_snapshot_id(self) -> SnapshotId | None:
        return self._snapshots[-1] if self.platter.snapshots else None

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        return len(self.platter.snapshots[snapshot_id]) if snapshot_id in self.platter.snapshots else None

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        return self.platter.snapshots[snapshot_id][position : position + max_bytes]

    def create_snapshot(self, snapshot_id: SnapshotId) -> MemorySink:
        return MemorySink(self, snapshot_id)

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        self._state = LogState(snapshot_id.end_offset, ())
        self.flush()
        for other in self._snapshots:
            if other != snapshot_id:
                del self.platter.snapshots[other]

    def clean(self) -> None:
        """Start at the older of the two newest snapshots. A crash may follow each step."""
        kept = self._snapshots[-2:]
        if len(kept) == 2 and kept[0].end_offset > self.start_offset:
            start = kept[0].end_offset
            self._change(LogState(start, tuple(batch for batch in self.batches if batch.base >= start)))
            self.flush()
        for old in self._snapshots[:-2]:
            del self.platter.snapshots[old]


class MemorySink:
    def __init__(self, log: MemoryRaftLog, snapshot_id: SnapshotId) -> None:
        self._log = log
        self._snapshot_id = snapshot_id
        self._data = bytearray()

    @property
    def size(self) -> int:
        return len(self._data)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def freeze(self) -> None:
        check_snapshot(self._data)
        self._log.platter.snapshots[self._snapshot_id] = bytes(self._data)

    def discard(self) -> None:
        self._data.clear()
