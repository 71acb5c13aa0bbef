"""The log cleaner's shell: cleans the logs that `choice.py` chooses, one after the other on each of its threads.

A round builds the map of the newest offset of each key, then rewrites the segments group by group (`storage/cleaner`). The work
goes to a thread in small slices. Between two slices the thread pauses if there are requests, the rate is limited, and the round
ends early if the log was truncated, deleted or is no longer compacted, or if the broker stops. Then the files that were not
finished are removed, and every group that was replaced before stays replaced.

What is durable when:

    the records of the map       before the first segment without the records that they supersede takes its place
    superseded_below             before that, too
    tombstones_removed_below     before the segment without the tombstones takes its place
    first_dirty_offset           after a segment without its tombstones has taken its place, and after the round

So the clean part of a log includes the places of its removed tombstones, even if the round ends early and no other one follows:
replicas that copy the log wait for that. After a crash between the two writes, this holds again after the next round.

The first two matter if records are lost, by a power cut or an unclean election. A record that is lost must not have superseded
another one for good, or the key would lose both values: see `LogState.superseded_below`.

A full disk ends a round, and nothing is lost: the next one tries again after the backoff. Any other disk error takes the log
directory offline. A damaged batch is reported like one that a read meets; a log that cannot be cleaned is left out until it has
changed, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from strandline.broker.disk_work import RunBlocking
from strandline.broker.log_cleaner.choice import LogToClean, assess, choose
from strandline.broker.log_cleaner.metrics import CleanerMetrics
from strandline.broker.log_cleaner.throttle import RequestLoad, Throttle
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.protocol.errors import BrokerError, StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.cleaner.batch_cleaning import Rules
from strandline.storage.cleaner.cleaning import SegmentGroup, build_map, groups, plan
from strandline.storage.cleaner.offset_map import MARKED_PER_BYTE, SLOT_BYTES, OffsetMap
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError, Files
from strandline.storage.log.log import Log
from strandline.storage.log.replacement import CleaningAborted
from strandline.storage.log.segment import DamagedBatch

logger = get_logger(__name__)

SLICE_BYTES, IDLE_SLICE_BYTES = 16 << 10, 512 << 10
"""About how many bytes a slice reads and writes while the broker serves requests, and while it does not. A slice has at least one
batch. Larger slices cost less of the loop's time."""
PAUSE_S = 0.003
"""How long the thread pauses after each slice while the broker serves requests."""
LOOK_S = 1.0
"""How often a round that pauses checks whether its log has changed, in seconds."""
NO_ROOM_S = 60.0
"""How long after a round has ended because its disk was full one such log is tried again, although other logs are due."""
_LOAD_FACTOR = 0.5
_MARKS_PART = 16
"""At most one part in this many of a map's memory holds marks. With the default size, that is enough for 33 million offsets."""
_PRIME_GAP_MAX = 512
"""A map has a prime number of slots, and the next smaller prime is never further away for any size that fits into memory."""


class CleanerSettings(NamedTuple):
    """The settings of the log cleaner, named after Kafka's keys."""

    threads: int = 1
    dedupe_buffer_size: int = 128 << 20
    """Bytes for the maps of all threads together. `io_buffer_size` is for all threads together, too."""
    io_buffer_load_factor: float = 0.9
    io_buffer_size: int = 512 << 10
    io_max_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000


class Uncleanable(NamedTuple):
    """A log that could not be cleaned. It is tried again when it was truncated (as a repair does), or opened again."""

    log: Log
    truncations: int
    reason: str

    def is_current(self, log: Log) -> bool:
        return log is self.log and log.truncations == self.truncations


class UncleanableLog(NamedTuple):
    """A log that cannot be cleaned, as metrics and health show it."""

    topic: str
    partition: int
    reason: str
    cleanable_bytes: int
    """The size of its closed segments."""
    log_dir: str = ""
    """The path of its directory."""


class LogCleaner:
    """Cleans the compacted logs of a broker. Call `start` and `stop` once each; without `start` it does nothing."""

    def __init__(
        self,
        log_dirs: LogDirs,
        directory: PartitionDirectory,
        failures: LogFailures,
        settings: CleanerSettings,
        *,
        files: Files,
        run_blocking: RunBlocking,
        remove_later: Callable[[Log, list[str]], None],
        apply_retention: Callable[[Log], None],
        wall_clock_ms: Callable[[], int],
        stopwatch: Callable[[], float],
        requests_served: Callable[[], int] = lambda: 0,
    ) -> None:
        """`files`: only the threads use it. `run_blocking`: runs work on the threads. `remove_later`: unlinks the files that a
        rewritten segment has replaced, after the time that the log's settings give. `apply_retention`: deletes old segments of a
        log after its round, because retention waits while the log is being cleaned; raises `DiskError`. `requests_served`: how
        many requests of clients and fetches from leaders this broker has handled; while the number grows fast, the cleaner pauses
        between its slices."""
        self._log_dirs = log_dirs
        self._directory = directory
        self._failures = failures
        self._settings = settings
        self._files = files
        self._run_blocking = run_blocking
        self._remove_later = remove_later
        self._apply_retention = apply_retention
        self._wall_clock_ms = wall_clock_ms
        self._stopwatch = stopwatch
        self._throttle = Throttle(settings.io_max_bytes_per_second)
        self._requests_served = requests_served
        self._load = RequestLoad()
        self._is_stopping = False
        self._is_started = False
        self._wake = asyncio.Event()
        """Set, and replaced unless the cleaner stops, to end all pauses."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The task of each thread, by the thread's number. A surplus thread is removed when its round has ended."""
        self._looked_at = 0.0
        self.metrics = CleanerMetrics()
        self.in_progress: dict[TopicIdPartition, LogToClean] = {}
        self.uncleanable: dict[TopicIdPartition, Uncleanable] = {}
        self._without_room: dict[TopicIdPartition, None] = {}
        """Logs whose last rounds ended because their disks were full, oldest round first. Other logs are cleaned before them."""
        self._retry_without_room_at = 0.0
        """When the first log of `_without_room` is tried again although other logs are due. A failed round costs a pause, so a
        full disk with many logs must not use up the rounds of the others."""

    # -- for metrics and health ---------------------------------------------------------------------------------------

    @property
    def dead_threads(self) -> int:
        return 0 if self._is_stopping else sum(task.done() for task in self._tasks.values())

    @property
    def since_last_look_ms(self) -> int:
        """How long ago the logs were looked at last; 0 before the first time."""
        return int(1000 * (self._stopwatch() - self._looked_at)) if self._looked_at else 0

    def uncleanable_now(self) -> list[UncleanableLog]:
        """The logs of this broker that cannot be cleaned."""
        found = []
        for key, each in self.uncleanable.items():
            partition = self._directory.partitions.get(key)
            if partition is not None and each.is_current(partition.log) and partition.log.config.compacts:
                size = sum(segment.size for segment in partition.log.segments[:-1])
                found.append(UncleanableLog(partition.topic, key[1], each.reason, size, self._log_dirs.of(partition.log).path))
        return found

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._is_started = True
        self._start_threads()

    def _start_threads(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self._settings.threads):
            if number not in self._tasks:
                self._tasks[number] = loop.create_task(self._run(number), name=f"log-cleaner-{number}")

    def use_settings(self, settings: CleanerSettings) -> None:
        """Use these settings from now on. The rate and the backoff change at once. A round in progress keeps its memory, and a
        surplus thread ends after its round."""
        if settings.io_max_bytes_per_second != self._settings.io_max_bytes_per_second:
            self._throttle = Throttle(settings.io_max_bytes_per_second)
        self._settings = settings
        self._end_pauses()
        if self._is_started and not self._is_stopping:
            self._start_threads()

    async def stop(self) -> None:
        """End every round after its present slice, and remove the files that it has not finished."""
        self._is_stopping = True
        self._end_pauses()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def kill(self) -> None:
        """Stop without touching the disk, as a killed process does."""
        self._is_stopping = True
        self._end_pauses()
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, thread: int) -> None:
        while not self._is_stopping:
            if thread >= self._settings.threads:
                del self._tasks[thread]
                return
            found = self._choose()
            if found is None or not await self._clean(thread, found):
                await self._pause(self._settings.backoff_ms / 1000)

    def _is_busy(self, now: float) -> bool:
        return self._load.is_busy(self._requests_served(), now)

    def _end_pauses(self) -> None:
        self._wake.set()
        if not self._is_stopping:
            self._wake = asyncio.Event()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _choose(self) -> LogToClean | None:
        if not self._log_dirs.online:
            return None
        self._looked_at = self._stopwatch()
        now_ms = self._wall_clock_ms()
        logs = []
        for key, log in self._compacted_logs():
            if self._is_open(key, log):  # not in a directory that an earlier log has found to have failed
                try:
                    logs.append(assess(key, log, now_ms))
                except DiskError as e:
                    self._failures.on_disk_error(e)
        self.metrics.on_assessed(logs)
        may_clean = [each for each in logs if self._may_clean(each.key)]
        found = choose(each for each in may_clean if each.key not in self._without_room)
        if self._without_room and (found is None or self._looked_at >= self._retry_without_room_at):
            found = self._next_without_room(may_clean) or found
        return found

    def _next_without_room(self, may_clean: list[LogToClean]) -> LogToClean | None:
        """The due log whose round has ended first of those that found no room; None if there is none."""
        self._without_room = {key: None for key in self._without_room if key in self._directory.partitions}
        due = {each.key: each for each in may_clean if each.is_due}
        return next((due[key] for key in self._without_room if key in due), None)

    def _may_clean(self, key: TopicIdPartition) -> bool:
        partition = self._directory.partitions.get(key)  # None if its directory has just failed
        return (
            partition is not None
            and not partition.log.is_being_moved
            and key not in self.in_progress
            and not self._is_uncleanable(key)
        )

    def _compacted_logs(self) -> list[tuple[TopicIdPartition, Log]]:
        return [(key, each.log) for key, each in self._directory.partitions.items() if each.log.config.compacts]

    def _is_uncleanable(self, key: TopicIdPartition) -> bool:
        known, partition = self.uncleanable.get(key), self._directory.partitions.get(key)
        if known is not None and (partition is None or not known.is_current(partition.log)):
            del self.uncleanable[key]
            known = None
        return known is not None

    # -- one round ----------------------------------------------------------------------------------------------------

    async def _clean(self, thread: int, found: LogToClean) -> bool:
        """Clean one log, in one round. Returns whether the round was finished."""
        log = self._directory.partitions[found.key].log
        self.in_progress[found.key] = found
        log.is_being_cleaned = True
        try:
            await _Round(self, thread, log, found).run()
        except CleaningAborted as e:
            logger.info("log_cleaner.aborted", **log.fields, reason=str(e))
        except DiskError as e:
            self._on_disk_error(found.key, log, e)
        except DamagedBatch as e:
            self._set_uncleanable(found.key, log, str(e))
            log.mark_corrupt(e.offset, str(e))
            self._failures.on_damage(found.key)
        except StrandlineError as e:
            self._set_uncleanable(found.key, log, str(e))
        except Exception as e:
            logger.exception("log_cleaner.failed", **log.fields)
            self._set_uncleanable(found.key, log, f"{type(e).__name__}: {e}")
        else:
            self._without_room.pop(found.key, None)
            return True
        finally:
            del self.in_progress[found.key]
            log.is_being_cleaned = False
            self._after_round(found.key, log)
        return False

    def _after_round(self, key: TopicIdPartition, log: Log) -> None:
        """Apply the retention that has waited, unless the log was closed meanwhile."""
        if self._is_stopping or not self._is_open(key, log):
            return
        try:
            self._apply_retention(log)
        except DiskError as e:
            self._failures.on_disk_error(e)

    def _is_open(self, key: TopicIdPartition, log: Log) -> bool:
        """Whether this is still the partition's log, and its directory is online."""
        partition = self._directory.partitions.get(key)
        return partition is not None and partition.log is log

    def _set_uncleanable(self, key: TopicIdPartition, log: Log, reason: str) -> None:
        self.uncleanable[key] = Uncleanable(log, log.truncations, reason)
        logger.warning("log_cleaner.uncleanable", **log.fields, reason=reason)

    def _on_disk_error(self, key: TopicIdPartition, log: Log, error: DiskError) -> None:
        if error.is_full:
            self._without_room.pop(key, None)
            self._without_room[key] = None
            self._retry_without_room_at = self._stopwatch() + NO_ROOM_S
            logger.warning("log_cleaner.disk_full", **log.fields, reason=str(error))
        else:
            self._failures.on_disk_error(error)


class _Round:
    """One round on one log."""

    def __init__(self, cleaner: LogCleaner, thread: int, log: Log, found: LogToClean) -> None:
        self._cleaner = cleaner
        self._thread = thread
        self._log = log
        self._found = found
        settings = cleaner._settings
        buffer_bytes = max(1, settings.io_buffer_size // settings.threads // 2)
        self._plan = plan(log, found.first_dirty, clean_to=found.end)._replace(buffer_bytes=buffer_bytes)
        self._read = self._written = 0

    async def run(self) -> None:
        """Clean the log up to the end that its map of keys reaches. Raises `CleaningAborted`, `DiskError`, and `StrandlineError`
        if the log cannot be cleaned (`DamagedBatch` if it is damaged)."""
        cleaner, log, plan_ = self._cleaner, self._log, self._plan
        began_at, size_before = cleaner._stopwatch(), log.size_bytes
        if log.first_dirty_offset and log.first_dirty_offset != plan_.first_dirty:
            logger.warning("log_cleaner.first_dirty_offset_reset", **log.fields, first_dirty_offset=log.first_dirty_offset)
        offset_map = self._new_map()
        await self._drive(build_map(cleaner._files, plan_, offset_map))
        if offset_map.latest_offset < plan_.first_dirty:
            raise StrandlineError(
                f"the map for {offset_map.capacity} keys (log.cleaner.dedupe.buffer.size) has no room for a batch"
            )
        rules = Rules(offset_map, cleaner._wall_clock_ms(), log.config.delete_retention_ms, plan_.last_batches)
        for group in groups(plan_, offset_map.latest_offset):
            await self._rewrite(group, rules)
            await self._note_clean(min(group.end_offset, offset_map.latest_offset + 1))
        log.first_dirty_offset = offset_map.latest_offset + 1
        seconds = cleaner._stopwatch() - began_at
        cleaner.metrics.on_cleaned(self._thread, seconds, offset_map.size / offset_map.capacity, self._read, self._written)
        logger.info(
            "log_cleaner.cleaned",
            **log.fields,
            previous_first_dirty_offset=plan_.first_dirty,
            first_dirty_offset=log.first_dirty_offset,
            keys=offset_map.size,
            previous_size_bytes=size_before,
            size_bytes=log.size_bytes,
            took_ms=round(seconds * 1000),
        )
        await self._on_thread(cleaner._log_dirs.of(log).cleaner_checkpoint().write)

    def _new_map(self) -> OffsetMap:
        """A map of the configured size, or a smaller one if the dirty part has fewer records than fit. At most every second slot
        of the smaller one is used, because look-ups in a nearly full map need several steps. The marks are part of that size."""
        settings, dirty = self._cleaner._settings, self._plan.end_offset - self._plan.first_dirty
        memory = settings.dedupe_buffer_size // settings.threads
        marked = min(dirty, memory // _MARKS_PART * MARKED_PER_BYTE)
        slots = int(dirty / min(settings.io_buffer_load_factor, _LOAD_FACTOR)) + _PRIME_GAP_MAX
        memory = min(memory - marked // MARKED_PER_BYTE, slots * SLOT_BYTES)
        return OffsetMap(memory, settings.io_buffer_load_factor, marked)

    async def _rewrite(self, group: SegmentGroup, rules: Rules) -> None:
        """Rewrite one group and put it in its place, unless nothing would change."""
        try:
            await self._drive(group.rewrite(self._cleaner._files, rules))
            self._read += group.size
            self._written += group.size if group.cleaned is None else group.cleaned.size
            if group.cleaned is not None:
                await self._replace(group)
        except Exception:
            self._discard(group)
            raise

    def _discard(self, group: SegmentGroup) -> None:
        try:
            group.discard()
        except DiskError as e:
            log = self._log
            logger.warning("log_cleaner.file_not_removed", **log.fields, path=e.path, reason=str(e))

    async def _replace(self, group: SegmentGroup) -> None:
        log, cleaned = self._log, group.cleaned
        assert cleaned is not None
        if cleaned.superseded_below > max(log.superseded_below, log.recovery_point):
            await self._flush()
            self._check_unchanged()
        tombstones, superseding = log.tombstones_removed_below, log.superseded_below
        if cleaned.removed_tombstones_end > tombstones or cleaned.superseded_below > superseding:
            log.tombstones_removed_below = max(tombstones, cleaned.removed_tombstones_end)
            log.superseded_below = max(superseding, cleaned.superseded_below)
            await self._on_thread(self._cleaner._log_dirs.of(log).cleaner_checkpoint().write)
            self._check_open()  # Any other reason ends the round after the replacement, which the written bounds have announced.
        paths = log.replace_segments(group.old, cleaned, self._plan.truncations)
        self._cleaner._remove_later(log, paths)

    async def _flush(self) -> None:
        """Make the closed segments durable, which include all records of the map."""
        log, work = self._log, self._log.flush_work()
        if work is not None:
            await self._on_thread(work.run)
            log.on_flushed(work)

    async def _note_clean(self, offset: int) -> None:
        """Record that the log is clean up to `offset`: all groups below it were rewritten, with a map of all dirty keys below
        it."""
        log = self._log
        if offset > log.first_dirty_offset:
            lacked_tombstones = log.tombstones_removed_below > log.first_dirty_offset
            log.first_dirty_offset = offset
            if lacked_tombstones:
                await self._on_thread(self._cleaner._log_dirs.of(log).cleaner_checkpoint().write)
        self._check_unchanged()

    # -- slices -------------------------------------------------------------------------------------------------------

    async def _drive(self, steps: Iterator[int]) -> None:
        """Do all steps, in slices on the thread. Raises `CleaningAborted` if the log has changed, even if the slice has raised
        another error."""
        cleaner, loop, is_done = self._cleaner, asyncio.get_running_loop(), False
        while not is_done:
            size = 0
            slice_ = _Slice(steps, SLICE_BYTES if cleaner._is_busy(loop.time()) else IDLE_SLICE_BYTES)
            try:
                await self._on_thread(slice_.run)
                size, is_done = slice_.size, slice_.is_done
            except (BrokerError, DiskError):
                self._check_unchanged()
                raise
            self._check_unchanged()
            now = loop.time()
            # Without the pause, the thread and the loop take turns at the interpreter, which delays each request several times.
            delay_s = max(cleaner._throttle.delay_s(size, now), PAUSE_S if cleaner._is_busy(now) else 0.0)
            await self._pause(delay_s)

    async def _pause(self, seconds: float) -> None:
        """Pause, and check every `LOOK_S` whether the log has changed: with a low rate limit, the pause after a slice may last
        hours. A new rate ends the pause."""
        throttle = self._cleaner._throttle
        while seconds > 0 and throttle is self._cleaner._throttle:
            await self._cleaner._pause(min(seconds, LOOK_S))
            self._check_unchanged()
            seconds -= LOOK_S

    async def _on_thread(self, work: Callable[[], None]) -> None:
        """Run `work` on a thread, and raise its error here."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []
        self._cleaner._run_blocking(partial(_guarded, work, errors), partial(_set_done, done))
        await done
        if errors:
            raise errors[0]

    def _check_open(self) -> None:
        if not self._cleaner._is_open(self._found.key, self._log):
            raise CleaningAborted("the log was deleted or its directory is offline")

    def _check_unchanged(self) -> None:
        log, plan_ = self._log, self._plan
        self._check_open()
        if self._cleaner._is_stopping:
            raise CleaningAborted("the broker stops")
        if log.truncations != plan_.truncations:
            raise CleaningAborted("the log was truncated")
        if log.is_being_moved:
            raise CleaningAborted("the log is being moved to another directory")
        if not log.config.compacts:
            raise CleaningAborted("the topic's cleanup.policy no longer has 'compact'")
        if plan_.segments and log.segments[0].base_offset > plan_.segments[0].base_offset:
            raise CleaningAborted("segments were deleted")


class _Slice:
    """Some steps of a round, done on a thread."""

    def __init__(self, steps: Iterator[int], bytes_max: int) -> None:
        self._steps = steps
        self._bytes_max = bytes_max
        self.size = 0
        self.is_done = False

    def run(self) -> None:
        for size in self._steps:
            self.size += size
            if self.size >= self._bytes_max:
                return
        self.is_done = True


def _guarded(work: Callable[[], None], errors: list[Exception]) -> None:
    try:
        work()
    except Exception as e:
        errors.append(e)


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.set_result(None)
