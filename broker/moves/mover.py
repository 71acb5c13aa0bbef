"""The shell of the moves between log directories: copies the logs, one at a time, and replaces each log by its copy.

`begin` creates the future replica at once, so that a restarted broker continues the move (`resume`). A turn takes one step of
each move that has caught up, and one slice of the first one that has not; the next turn comes after other work of the event loop.
The copy reads the current log as a follower reads its leader, up to the log end, and appends the batches unchanged. The rate
`replica.alter.log.dirs.io.max.bytes.per.second` limits the bytes that all moves copy together.

The turn that promotes a future replica compares it with the current log, renames it, and swaps the logs, all within one callback
of the event loop, so no record is appended in between. Without moves there are no turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from strandline.broker.disk_work import DiskWork, RunBlocking
from strandline.broker.moves.move import LogFacts, Move, MoveState, Step
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import CallLater, Timer
from strandline.broker.replication.throttle import ReplicationThrottle
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.directory.future_logs import REPLACED_LOG
from strandline.storage.directory.log_dir import ExistingLog, LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.disk import ColdRead, DiskError, join
from strandline.storage.log.log import Log

logger = get_logger(__name__)

SLICE_BYTES = 1 << 20
"""The most bytes that a turn copies: about a millisecond of the event loop."""
FOLLOW_MS = 10
"""The pause between two turns, in ms, if no move has bytes to copy."""
ROOM_MARGIN = 0.05
"""A copy needs room for the bytes of the log, and for this part of them: indexes, and records that are appended meanwhile."""
RETRY_MS = 1000
"""The pause of a move after an error that may pass, such as a damaged batch that is being repaired."""


@dataclass(slots=True)
class _Copy:
    """A move, with its logs and directories."""

    move: Move
    partition: Partition
    source: LogDir
    target: LogDir
    log: Log
    """The future replica."""
    retry_at: float = 0.0
    is_flushing: bool = False

    @property
    def lag(self) -> int:
        """How many records the future replica lacks."""
        return max(0, self.partition.log.log_end_offset - self.log.log_end_offset)

    @property
    def bytes_left(self) -> int:
        """How many bytes the future replica lacks; 0 if the cleaner has made the log smaller than the copy."""
        return max(0, self.partition.log.size_bytes - self.log.size_bytes)


class LogMover:
    """The moves of one broker."""

    def __init__(
        self,
        directory: PartitionDirectory,
        log_dirs: LogDirs,
        *,
        on_disk_error: Callable[[DiskError], None],
        on_damage: Callable[[TopicIdPartition], None],
        now: Callable[[], float],
        call_later: CallLater,
        wall_clock_ms: Callable[[], int],
        run_blocking: RunBlocking | None,
        bytes_per_second: float = float("inf"),
    ) -> None:
        self._directory = directory
        self._log_dirs = log_dirs
        self._on_disk_error = on_disk_error
        self._on_damage = on_damage
        self._now = now
        self._call_later = call_later
        self._wall_clock_ms = wall_clock_ms
        self._run_blocking = run_blocking
        self._disk_work = DiskWork(run_blocking, on_disk_error)
        self._copies: dict[TopicIdPartition, _Copy] = {}
        """The moves, in the order in which they began."""
        self._timer: Timer | None = None
        """The timer of the next turn."""
        self._is_warming = False
        self._may_block_at: tuple[TopicIdPartition, int] | None = None
        """The position of a log that a thread has brought into the page cache: reading there may block now."""
        self._is_stopped = False
        self._limits = LineLimits()
        self._throttle = ReplicationThrottle()
        self.bytes_per_second = bytes_per_second
        self.assign: Callable[[dict[TopicIdPartition, bytes]], None] = lambda assignments: None
        """Sends assignments of replicas to directories to the controller."""
        self.moved = 0
        """How many moves have succeeded: their future replicas were promoted."""
        self.copied_bytes = 0
        """How many bytes the moves have copied."""

    # -- for requests and metrics -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._copies)

    def future_of(self, key: TopicIdPartition) -> tuple[LogDir, Log, int] | None:
        """The directory that a replica moves to, its future replica, and how many records that lacks; None if it does not
        move."""
        copy = self._copies.get(key)
        return None if copy is None else (copy.target, copy.log, copy.lag)

    def to(self, log_dir: LogDir) -> tuple[int, int]:
        """How many replicas move to this directory, and how many bytes their copies lack."""
        left = [copy.bytes_left for copy in list(self._copies.values()) if copy.target is log_dir]
        return len(left), sum(left)

    # -- begin and end ------------------------------------------------------------------------------------------------

    def begin(self, partition: Partition, target: LogDir) -> None:
        """Move the replica to `target`. A move of it to a different directory ends. If `target` is its present directory, that is
        all that happens.

        Raises INVALID_REPLICA_ASSIGNMENT if `target` lacks room for the copy (a disk that gets full goes offline with all its
        replicas), KAFKA_STORAGE_ERROR, and DiskError, after which the directory is offline."""
        copy, source = self._copies.get(partition.key), self._log_dirs.of(partition.log)
        if copy is not None and copy.target is target:
            return
        if target is not source:
            self._check_room(partition, target)
        if copy is not None:
            self.cancel(partition.key, "another directory was requested")
        if target is source:
            return
        name = ExistingLog(partition.topic, partition.key[1], partition.key[0])
        if target.topic_id_of(partition.topic, partition.key[1]) is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{target.path} has another log of this name")
        if not self._log_dirs.settle_replaced(source, name):
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the directory from which the replica was moved last is offline")
        log = target.futures.create(partition.topic, partition.key, partition.log.config, self._wall_clock_ms())
        self._enter(_Copy(Move(partition.key, target.directory_id), partition, source, target, log))
        partition.log.lowest_cut = -1  # begin at the log start
        logger.info("log_move.started", **partition.fields, log_dir=source.path, target_log_dir=target.path)

    def _check_room(self, partition: Partition, target: LogDir) -> None:
        free = self._log_dirs.files.free_space(target.path)
        if free is None:
            return
        free -= self.to(target)[1]
        needed = round(partition.log.size_bytes * (1 + ROOM_MARGIN))
        if needed > free:
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the copy of {partition.topic}-{partition.key[1]} needs {needed} bytes, and {target.path} has room for "
                f"{max(0, free)} beside the copies that are being made there",
            )

    def resume(self) -> None:
        """Continue the moves of the last process, once the partitions have their roles. A copy starts over if a cleaner may have
        rewritten the log since, or if the log has another history now."""
        for target in self._log_dirs.online:
            for key in target.futures.keys:
                partition, log = self._directory.partitions.get(key), target.futures.logs.get(key)
                if partition is None or log is None or self._log_dirs.of(partition.log) is target or key in self._copies:
                    if key not in self._directory.offline and key not in self._copies:
                        self._discard(target, key)
                    continue
                source = self._log_dirs.of(partition.log)
                log.name, log.config = partition.topic, partition.log.config
                self._enter(_Copy(Move(key, target.directory_id), partition, source, target, log))
                partition.log.lowest_cut = _common_end(log, partition.log)
                logger.info("log_move.resumed", **partition.fields, log_dir=source.path, target_log_dir=target.path)

    def _enter(self, copy: _Copy) -> None:
        copy.partition.log.is_being_moved = True
        self._copies[copy.move.key] = copy
        self._schedule(0.0)

    def cancel(self, key: TopicIdPartition, reason: str) -> None:
        """End a move, and remove its future replica. Does nothing if the replica does not move."""
        copy = self._forget(key, reason)
        if copy is not None:
            self._discard(copy.target, key)

    def on_dir_failed(self, log_dir: LogDir) -> None:
        """End the moves from and to a directory that has failed. A future replica in an online directory is kept, so that the
        next process can continue the move."""
        for key, copy in list(self._copies.items()):
            if log_dir in (copy.source, copy.target):
                self._forget(key, f"{log_dir.path} is offline")

    def _forget(self, key: TopicIdPartition, reason: str) -> _Copy | None:
        copy = self._copies.pop(key, None)
        if copy is None:
            return None
        copy.partition.log.is_being_moved = False
        if copy.move.is_announced:
            self._directory.announced.pop(key, None)
            if self._directory.image.partition(key) is not None:
                self.assign({key: copy.source.directory_id})
        logger.info("log_move.ended", **copy.partition.fields, target_log_dir=copy.target.path, reason=reason)
        return copy

    def _discard(self, target: LogDir, key: TopicIdPartition) -> None:
        try:
            path = target.futures.remove(key)
        except DiskError as e:
            self._on_disk_error(e)
            return
        if path is not None:
            self._disk_work.run(partial(self._log_dirs.files.remove_tree, path))

    def on_assigned(self, key: TopicIdPartition, directory_id: bytes, error: int) -> None:
        """Called when the controller has answered an assignment. `error`: its error code."""
        copy = self._copies.get(key)
        if copy is None or copy.move.state is not MoveState.QUEUED or directory_id != copy.move.directory_id:
            return
        if error:
            self.cancel(key, f"the controller refused the assignment: {ErrorCode(error).name}")
        else:
            copy.move.on_accepted(directory_id)
            self._schedule(0.0)

    def use_rate(self, bytes_per_second: float) -> None:
        """Copy at most this many bytes per second from now on."""
        self.bytes_per_second = bytes_per_second
        self._throttle = ReplicationThrottle()
        self._schedule(0.0)

    def stop(self) -> None:
        """Take no further step. The future replicas stay, and the next process continues."""
        self._is_stopped = True

    # -- turns --------------------------------------------------------------------------------------------------------

    def _schedule(self, delay_s: float) -> None:
        """Schedule the next turn. If one is scheduled already, a delay of 0 hurries it, and a longer delay changes nothing."""
        if not self._copies or self._is_stopped or (self._timer is not None and delay_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(delay_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._is_stopped:
            return
        has_copied = False
        for copy in list(self._copies.values()):
            if copy.move.key not in self._copies or copy.retry_at > self._now():
                continue
            if self._take_step(copy, may_copy=not has_copied) is Step.COPY:
                has_copied = True
        self._schedule(self._pause_s() if has_copied else FOLLOW_MS / 1000)

    def _pause_s(self) -> float:
        """Seconds until the next slice may be copied, at most `FOLLOW_MS`. A changed rate or a finished read ends the pause."""
        return min(max(0.0, self._throttle.paid_until - self._now()), FOLLOW_MS / 1000) if self._is_held() else 0.0

    def _is_held(self) -> bool:
        return self._is_warming or self._throttle.is_exceeded(self._now())

    def _take_step(self, copy: _Copy, *, may_copy: bool) -> Step:
        """Take the next step of this move, and return it. A disk error ends the moves of its directory; another error delays this
        move."""
        current, future = copy.partition.log, copy.log
        step = self._next_step(copy)
        try:
            if step is Step.RESTART:
                self._restart(copy)
            elif step is Step.CUT:
                future.truncate_to(current.lowest_cut or 0)
                current.lowest_cut = None
            elif step is Step.COPY:
                if may_copy and not self._is_held():
                    self._copy_slice(copy)
                    step = self._next_step(copy)
                    if step is Step.PROMOTE:
                        self._promote(copy)
            elif step is Step.FLUSH:
                self._flush(copy)
            elif step is Step.ANNOUNCE:
                self._announce(copy)
            elif step is Step.PROMOTE:
                self._promote(copy)
        except DiskError as e:
            self._on_disk_error(e)
        except BrokerError as e:
            self._delay(copy, e)
        return step

    def _next_step(self, copy: _Copy) -> Step:
        current, has_directories = copy.partition.log, bool(self._directory.image.feature_level)
        return copy.move.next_step(_facts(current), _facts(copy.log), current.lowest_cut, needs_acceptance=has_directories)

    def _delay(self, copy: _Copy, error: BrokerError) -> None:
        copy.retry_at = self._now() + RETRY_MS / 1000
        suppressed = self._limits.admit(f"{error.code.name} {copy.partition.topic}-{copy.move.key[1]}", self._now())
        if suppressed is not None:
            logger.warning("log_move.delayed", **copy.partition.fields, reason=str(error), **suppressed.fields)
        self._on_damage(copy.move.key)  # does nothing unless the log that is copied is damaged

    def _restart(self, copy: _Copy) -> None:
        """Empty the future replica, and begin at the log start, with the states of the producers whose batches lie before it."""
        current, future = copy.partition.log, copy.log
        start = current.log_start_offset
        future.truncate_fully_and_start_at(start, current.producers.before(start))
        current.lowest_cut = None

    def _copy_slice(self, copy: _Copy) -> None:
        current, future, key = copy.partition.log, copy.log, copy.move.key
        current.lowest_cut = None
        limit = int(min(SLICE_BYTES, max(1.0, self.bytes_per_second)))
        may_block = self._run_blocking is None or self._may_block_at == (key, future.log_end_offset)
        try:
            read = current.read(future.log_end_offset, limit, current.log_end_offset, may_block=may_block)
        except ColdRead as e:
            self._warm(e, (key, future.log_end_offset))
            return
        for buffer in read.buffers:
            info = future.append_as_follower(buffer, current.latest_epoch)
            if info is None or info.size < len(buffer):
                break  # a full segment: the rest comes in the next turn
        future.update_high_watermark(current.high_watermark)
        future.increment_log_start_offset(current.log_start_offset)
        self.copied_bytes += read.size
        self._throttle.record(read.size / self.bytes_per_second, self._now())

    def _warm(self, cold: ColdRead, position: tuple[TopicIdPartition, int]) -> None:
        assert self._run_blocking is not None
        self._is_warming = True

        def done() -> None:
            self._is_warming, self._may_block_at = False, position
            self._schedule(0.0)

        self._run_blocking(cold.warm, done)

    def _flush(self, copy: _Copy) -> None:
        """fsync the copy on a thread. Records that are copied afterwards need no fsync: they are new in the current log, too."""
        if copy.is_flushing:
            return
        work = copy.log.flush_work(with_last=True)
        if work is None:
            copy.move.on_flushed()
            return
        copy.is_flushing = True

        def done() -> None:
            copy.is_flushing = False
            if self._copies.get(copy.move.key) is copy and work.took_s:
                copy.log.on_flushed(work)
                copy.move.on_flushed()
                self._schedule(0.0)

        self._disk_work.run(work.run, done)

    def _announce(self, copy: _Copy) -> None:
        key, directory_id = copy.move.key, copy.move.directory_id
        copy.move.announce()
        self._directory.announced[key] = directory_id
        self.assign({key: directory_id})

    # -- the end of a move --------------------------------------------------------------------------------------------

    def _promote(self, copy: _Copy) -> None:
        """Put the future replica in the place of the current log, which has the same records; the steps are those of
        `future_logs.py`."""
        key, partition, source, target = copy.move.key, copy.partition, copy.source, copy.target
        old, futures = partition.log, target.futures
        new = futures.prepare(key, old, source.directory_id)
        old.is_being_moved = False
        del self._copies[key]
        self._directory.announced.pop(key, None)
        partition.use_log(new)
        copy.move.on_promoted()
        futures.promote(key)
        self.moved += 1
        logger.info("log_move.promoted", **partition.fields, log_dir=source.path, target_log_dir=target.path)
        deleted = source.delete_log(partition.topic, key[1], key[0])
        self._disk_work.run(partial(self._remove_replaced, source, deleted, join(new.dir, REPLACED_LOG)))

    def _remove_replaced(self, source: LogDir, deleted: str | None, note: str) -> None:
        """Runs on a thread. Removes the note only after the rename of the old log is durable."""
        files = self._log_dirs.files
        files.fsync_dir(source.path)
        files.remove(note)
        if deleted is not None:
            files.remove_tree(deleted)


def _facts(log: Log) -> LogFacts:
    return LogFacts(log.log_start_offset, log.log_end_offset, log.corrupt_at is not None)


def _common_end(future: Log, current: Log) -> int:
    """The offset up to which the two logs have the same history, by their leader epochs; -1 if the copy must start over."""
    if current.first_dirty_offset > current.segments[0].base_offset or current.tombstones_removed_below:
        return -1
    end = min(future.log_end_offset, current.log_end_offset)
    while end > max(future.log_start_offset, current.log_start_offset):
        epoch = future.epochs.epoch_for_offset(end - 1)
        known, known_end = current.end_offset_for_epoch(epoch)
        if known == epoch:
            return min(end, known_end)
        end = min(end - 1, future.end_offset_for_epoch(known)[1] if known >= 0 else -1)
    return -1
