"""Reads the records of one partition of an internal topic into a new shard, when this broker becomes the partition's leader.

The log is read from its start to the end at which the leader epoch began. That includes records that are not committed yet: the
shard's replies wait until the high watermark has passed them. A load reads slices of a bounded size, so that the event loop
serves requests in between; a slice that is not in the page cache is read on a thread. A load is dropped when the leadership ends,
and a load in a newer epoch starts from the beginning. The loads of several partitions take turns (`LoadTurns`).

A subclass interprets the batches (`read_batch`). It may keep some of the records, and replay them later in slices of its own
(`is_replaying`).

If a record or a batch cannot be decoded, the load fails: a coordinator that knew half of its state would answer wrongly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from strandline.broker.disk_work import RunBlocking
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.purgatory import CallLater
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import BatchHeader, Buffer, iter_headers
from strandline.storage.files import ColdRead

SLICE_BYTES = 16 * 1024
"""Bytes of the log that a slice reads: a quarter of a millisecond of work."""
PAUSE_S = 0.001
"""The pause after a slice, in which a busy broker serves requests."""

Shard = TypeVar("Shard")
Step = Callable[[], None]


class LoadTurns:
    """Runs the slices of all loads, one in each iteration of the event loop. The load that began first runs until it ends, so
    that its shard serves requests while the others wait.

    A produce request needs a few iterations of the loop until the followers have its records, so it would wait for as many
    slices. Therefore a broker that serves requests pauses for `PAUSE_S` between two slices; an idle broker does not."""

    def __init__(self, call_later: CallLater, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether the broker serves requests at present."""
        self._call_later = call_later
        self._is_busy = is_busy
        self._steps: deque[Step] = deque()
        self._is_running = False

    def add(self, step: Step) -> None:
        """Queue a step: in front, if the running step calls this, so that its load goes on; otherwise at the end."""
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


class ShardLoader(ABC, Generic[Shard]):
    """One load. `start` begins it; it ends with exactly one call of `on_end`, unless it is cancelled before."""

    def __init__(
        self,
        leader_state: LeaderState,
        shard: Shard,
        *,
        is_current: Callable[[], bool],
        call_soon: Callable[[Step], object],
        run_blocking: RunBlocking | None,
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """`is_current`: whether the partition still leads in the epoch of `leader_state`. `call_soon`: runs a slice
        when it is this load's turn."""
        self.shard = shard
        self._leader_state = leader_state
        self.end_offset = leader_state.log.log_end_offset
        """The exclusive end of the load."""
        self.next_offset = leader_state.log.log_start_offset
        """The offset at which the next slice begins."""
        self._is_current = is_current
        self._call_soon = call_soon
        self._run_blocking = run_blocking
        self._on_end = on_end
        self._is_cancelled = False
        self.records = 0
        """The number of records of known types that were read."""
        self.skipped = 0
        """The number of records of unknown types, which were skipped."""

    # -- what the records mean ----------------------------------------------------------------------------------------

    @property
    def is_replaying(self) -> bool:
        """Whether the next slice replays records that the subclass has kept, instead of reading more of the log."""
        return False

    def replay_slice(self) -> None:
        """Replay some of the kept records."""
        raise NotImplementedError

    def begin_slice(self, high_watermark: int) -> None:
        """Called before the batches of a slice. `high_watermark`: its value when the slice was read."""

    @abstractmethod
    def read_batch(self, buffer: Buffer, position: int, header: BatchHeader, high_watermark: int) -> None:
        """Interpret the next batch of the log: records, or a control record such as the marker that ends a transaction
        (`header.is_control`)."""

    def end_slice(self) -> None:
        """Called after the batches of a slice."""

    # -- slices -------------------------------------------------------------------------------------------------------

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
            if self.is_replaying:
                self.replay_slice()
            else:
                self._read_slice()
        except ColdRead as cold:
            assert self._run_blocking is not None
            self._run_blocking(cold.warm, self.start)
        except Exception as e:
            # A bug ends the load, too: a load that never ended would keep the coordinator's clients waiting without a reason.
            self._finish(e)
        else:
            if not self.is_replaying and self.next_offset >= self.end_offset:
                self._finish(None)
            else:
                self.start()

    def _finish(self, error: Exception | None) -> None:
        self._is_cancelled = True
        self._on_end(error)

    def _read_slice(self) -> None:
        """Read a slice of the log. Raises `ColdRead` if a thread must read it into the page cache first."""
        log_ = self._leader_state.log  # a new object after the replica has moved to another log directory
        self.next_offset = max(self.next_offset, log_.log_start_offset)
        if self.next_offset < self.end_offset:
            found = log_.read(self.next_offset, SLICE_BYTES, self.end_offset, may_block=self._run_blocking is None)
            if not found.size:
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"there is no batch at offset {self.next_offset}")
            high_watermark = log_.high_watermark
            self.begin_slice(high_watermark)
            for buffer in found.buffers:
                for position, header in iter_headers(buffer):
                    self.next_offset = header.next_offset
                    self.read_batch(buffer, position, header, high_watermark)
        self.end_slice()
