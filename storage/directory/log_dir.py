"""A data directory: the logs of one broker, and what is kept for all of them together.

    meta.properties        the owner; a directory of another node or cluster, or of a newer release, is refused
    .lock                  held by the process that uses the directory
    .kafka_cleanshutdown   written by an orderly stop, removed at the start; without it every log scans its tail
    boot-id                the machine's boot id; while it stays the same, no write to this directory was lost; see below
    *-checkpoint           high watermarks, recovery points, log starts, and what the cleaner has done; replaced as a whole
    orders-0/              a log; its `partition.metadata` has the topic id, because a topic's name may be reused
    orders-0.<id>-delete/  a deleted log; it was renamed first, so that its name is free at once
    orders-0.<id>-future/  a copy of a log that is being moved here from another directory (`future_logs.py`)
    orders-0.<id>-stray/   a log that is not assigned to this broker, or (id 0) whose topic is not known; `strays.py` says when it
                           may be removed

Records are acknowledged when they are in the page caches of the in-sync replicas, as in Kafka. A killed process loses none of
them. A machine that loses power may lose some, and the log does not show it: it just ends earlier. So a directory that was not
closed in order, and is opened under another boot id, is *in doubt*: its logs have `possible_data_loss`. A replica that becomes
a follower fetches the missing records from its leader. A replica that becomes the leader logs
`partition.elected_with_missing_records`. The boot id on the disk changes only when each log has done one of the two, and the loss
was reported to the controllers: a process that is killed before it could register must not hide it from the next one. For the
same reason the boot id is removed when a checkpoint is damaged, because the first new checkpoint replaces the damaged one.

The first disk error takes the whole directory offline (`offline`), because only a restart can tell what its files hold. Files and
directories with other names are not touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from random import Random
from typing import NamedTuple

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.storage.checkpoints import (
    BOOT_ID,
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REMOVED_TOMBSTONES,
    STRAY_METADATA,
    SUPERSEDING_RECORDS,
    CleanShutdown,
    MetaProperties,
    OffsetCheckpoint,
    PartitionMetadata,
    StrayMetadata,
    TopicPartition,
    read_if_present,
    uuid_to_text,
)
from strandline.storage.directory.claim import Claim, cannot_use
from strandline.storage.directory.future_logs import FutureLogs
from strandline.storage.disk import DiskError, Files, Lock, join
from strandline.storage.log.log import METADATA_TOPIC, DirFailure, FlushWork, Log, LogConfig, TailBudget
from strandline.storage.log.removed_records import removed_records_end
from strandline.storage.log_names import log_name, parse_log_name
from strandline.storage.metrics import LogMetrics

__all__ = ["Claim", "LogDir", "log_name", "parse_log_name"]

logger = get_logger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_DELETED_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}\.[0-9a-f]{32}(\.\d+)?-delete\Z", re.ASCII)
_NAME_BYTES_MAX = 255
"""The limit of common file systems."""


class ExistingLog(NamedTuple):
    """A log that has a directory in the data directory."""

    topic: str
    partition: int
    topic_id: bytes


class RecordLoss(NamedTuple):
    """Whether the logs of a directory may lack records that they had when the last process used them."""

    is_certain: bool
    """Whether a log or the disk shows the loss. If not, a page cache was lost, which may have held records."""
    partitions: tuple[tuple[bytes, int], ...]
    """(topic id, partition) of the logs concerned; empty for all."""


class CheckpointOrder:
    """The order of checkpoints, and the last content written to each file. `Files.exclusive` guards it, because the event loop
    and a thread may write at the same time."""

    def __init__(self) -> None:
        self.taken = 0
        """How many checkpoints were taken; the number of the last one."""
        self.written: dict[str, tuple[int, bytes]] = {}
        """Path -> number and content of the checkpoint that was written last."""


class CheckpointFiles(NamedTuple):
    """The checkpoints of one moment. `write` may run on a thread.

    An older checkpoint never replaces a newer one: a truncation may have lowered offsets in between, and the older checkpoint
    would still cover the truncated records. An unchanged file is not written again.
    """

    files: Files
    contents: list[tuple[str, bytes]]
    moment: int
    order: CheckpointOrder

    def write(self) -> None:
        """Write the files that have changed, unless a newer checkpoint was written. Raises DiskError."""
        with self.files.exclusive():
            for path, data in self.contents:
                moment, last = self.order.written.get(path, (-1, None))
                if moment > self.moment:
                    continue
                if data != last:
                    self.files.write_atomic(path, data)
                self.order.written[path] = self.moment, data


class LogDir:
    """An open data directory and its logs. Open it with `LogDir.open` or `LogDir.open_claimed`."""

    def __init__(self, files: Files, path: str, lock: Lock, meta: MetaProperties, tail_bytes_max: int) -> None:
        """Use `LogDir.open`."""
        self.files = files
        self.path = path
        self.meta = meta
        self.was_clean = False
        """Whether the last process that used the directory stopped in order."""
        self.in_doubt = False
        """Whether a page cache may have been lost, and some log with `possible_data_loss` has not followed a leader or led
        since."""
        self.lost_page_cache = False
        """Whether the last process did not stop in order, and no boot id proves that the page cache has survived it."""
        self.is_fresh = False
        """Whether this process has formatted the directory."""
        self._is_registered = False
        """Whether a controller has received the result of `record_loss`."""
        self._awaits_boot_id = False
        """Whether the boot id on the disk is not the current one, so that the next process also finds the loss."""
        self.previous_broker_epoch = -1
        """The broker epoch in the clean-shutdown marker; -1 if there is none."""
        self.logs: dict[TopicPartition, Log] = {}
        """The open logs."""
        self.budget = TailBudget(tail_bytes_max)
        self.failure = DirFailure()
        self.metrics = LogMetrics()
        self.random: Random | None = None
        """The source of the jitter of segments."""
        self.is_same_boot = False
        """Whether no write was lost since the last process, because the machine was not started again."""
        self._lock = lock
        self._existing: dict[TopicPartition, bytes] = {}
        """The topic ids of the logs that were found at the start or created since."""
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._first_dirty_offsets: dict[TopicPartition, int] = {}
        self._removed_tombstones: dict[TopicPartition, int] = {}
        self._superseding_records: dict[TopicPartition, int] = {}
        """These six: the offsets in the checkpoints, for logs that are not open yet."""
        self._deleted: set[TopicPartition] = set()
        """Deleted logs that a checkpoint on the disk may still contain."""
        self._unfinished_deletions: list[str] = []
        self.futures = FutureLogs(self)
        self._order = CheckpointOrder()
        self._is_checkpoint_damaged = False
        """Whether a checkpoint was damaged. Without its high watermark, a log does not show that it lost committed records."""
        self._has_cleaner_files = False
        """Whether the cleaner's checkpoints are on the disk, or must be."""
        self._are_tombstones_unknown = False
        """Whether the checkpoint of removed tombstones was damaged. Then each log is read to find a bound when it is opened."""

    @classmethod
    def open(
        cls,
        files: Files,
        path: str,
        *,
        node_id: int,
        cluster_id: str | None,
        random: Random | None = None,
        tail_bytes_max: int = 4 << 20,
    ) -> LogDir:
        """Lock and open a data directory; create it if it is missing. Raises UsageError, in one sentence, if it must not be
        used."""
        claim = Claim.take(files, path, node_id=node_id, cluster_id=cluster_id)
        return cls.open_claimed(claim, cluster_id=cluster_id, random=random, tail_bytes_max=tail_bytes_max)

    @classmethod
    def open_claimed(
        cls, claim: Claim, *, cluster_id: str | None, random: Random | None = None, tail_bytes_max: int = 4 << 20
    ) -> LogDir:
        """Open a claimed directory, and format it if it is fresh. On an error the claim is released."""
        try:
            is_fresh = claim.is_fresh
            log_dir = cls(claim.files, claim.path, claim.lock, claim.format(cluster_id, random), tail_bytes_max)
            log_dir.is_fresh, log_dir.random = is_fresh, random
            log_dir.load()
        except DiskError as e:
            claim.release()
            raise cannot_use(claim.files, claim.path, e) from e
        except BaseException:
            claim.release()
            raise
        return log_dir

    @property
    def directory_id(self) -> bytes:
        return self.meta.directory_id

    @property
    def offline(self) -> DiskError | None:
        """The disk error that took this directory offline."""
        return self.failure.error

    def fail(self, error: DiskError) -> None:
        """Take the directory offline because of a disk error outside of a log."""
        if self.failure.error is None:
            self.failure.error = error
            logger.error("log_dir.failed", log_dir=self.path, operation=error.operation, path=error.path, reason=str(error))

    # -- start ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take the clean-shutdown marker, the checkpoints and the names of the existing logs from the directory."""
        marker = read_if_present(self.files, join(self.path, CLEAN_SHUTDOWN))
        epoch = CleanShutdown.decode(marker) if marker is not None else None
        if epoch is not None:
            self.was_clean, self.previous_broker_epoch = True, epoch
        if marker is not None:
            # Removed durably before anything is written: a marker that a power cut brought back would be wrong.
            self.files.remove(join(self.path, CLEAN_SHUTDOWN))
            self.files.fsync_dir(self.path)
        self._high_watermarks = self._read_checkpoint(HIGH_WATERMARKS)
        self._recovery_points = self._read_checkpoint(RECOVERY_POINTS)
        self._log_starts = self._read_checkpoint(LOG_STARTS)
        self._first_dirty_offsets = self._read_checkpoint(FIRST_DIRTY_OFFSETS)
        self._read_removed_tombstones()
        self._superseding_records = self._read_checkpoint(SUPERSEDING_RECORDS)
        for name in self.files.list(self.path):
            self._find(name)
        self._check_boot_id(was_clean=epoch is not None)

    def _check_boot_id(self, *, was_clean: bool) -> None:
        present, path = self.files.boot_id().encode("ascii"), join(self.path, BOOT_ID)
        written = read_if_present(self.files, path)
        self.is_same_boot = bool(present) and written == present
        self.lost_page_cache = not was_clean and not self.is_same_boot
        self.in_doubt = self.lost_page_cache and not self.is_fresh
        self._awaits_boot_id = self.lost_page_cache or self._is_checkpoint_damaged
        if self._is_checkpoint_damaged:
            self.files.write(path, b"")
        elif not self.lost_page_cache and written != present:
            # If a power cut undoes this write, another id or none is left, and the directory is in doubt.
            self.files.write(path, present)

    def on_registered(self) -> None:
        """Called when a controller has registered the broker with the result of `record_loss`. A fresh directory has no log yet,
        so it is not in doubt from now on. Raises DiskError."""
        self._is_registered = True
        if self._awaits_boot_id and not self.in_doubt:
            self._awaits_boot_id = False
            self.files.write(join(self.path, BOOT_ID), self.files.boot_id().encode("ascii"))

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """The offsets of a checkpoint; none if it is missing or damaged. Offset 0 is always correct, and costs a longer scan."""
        data = read_if_present(self.files, join(self.path, name))
        return {} if data is None else self._decode_checkpoint(name, data) or {}

    def _decode_checkpoint(self, name: str, data: bytes) -> dict[TopicPartition, int] | None:
        """The offsets of a checkpoint; None if it is damaged."""
        offsets = OffsetCheckpoint.decode(data)
        if offsets is None:
            reason = "its offsets are not used, and every log is scanned as after an unclean stop"
            logger.warning("log_dir.checkpoint_damaged", path=join(self.path, name), reason=reason)
            self.was_clean, self._is_checkpoint_damaged = False, True
        return offsets

    def _read_removed_tombstones(self) -> None:
        """Read the checkpoint of removed tombstones. If it is damaged, 0 is not a correct bound, unlike for the other
        checkpoints: a deleted key could reappear."""
        data = read_if_present(self.files, join(self.path, REMOVED_TOMBSTONES))
        if data is not None:
            offsets = self._decode_checkpoint(REMOVED_TOMBSTONES, data)
            self._has_cleaner_files, self._are_tombstones_unknown = True, offsets is None
            self._removed_tombstones = offsets or {}

    def _find(self, name: str) -> None:
        path = join(self.path, name)
        if _DELETED_NAME.match(name) and self.files.is_dir(path):
            self._unfinished_deletions.append(path)
            return
        if self.futures.find(name):
            return
        key = parse_log_name(name)
        if key is None or key[0] == METADATA_TOPIC or not self.files.is_dir(path):
            return
        data = read_if_present(self.files, join(path, PARTITION_METADATA))
        topic_id = PartitionMetadata.decode(data) if data is not None else None
        if topic_id is None:
            self._set_aside(name, bytes(16), "partition.metadata is missing or damaged")
        else:
            self._existing[key] = topic_id

    def _set_aside(self, name: str, topic_id: bytes, reason: str, stray: StrayMetadata | None = None) -> None:
        """Rename a directory instead of deleting it. `stray`: the proof that it may be removed later; None if there is none."""
        target = self.free_name(name, topic_id, STRAY_SUFFIX)
        self.files.rename(join(self.path, name), join(self.path, target))
        if stray is not None:
            self.files.write_atomic(join(join(self.path, target), STRAY_METADATA), stray.encode())
        logger.warning("log_dir.log_set_aside", log_dir=self.path, log=name, renamed=target, reason=reason)

    def free_name(self, name: str, topic_id: bytes, suffix: str) -> str:
        """`<log>.<topic id><suffix>`, with a number if that name is taken. A long topic name is shortened, as in Kafka."""
        topic, _, partition = name.rpartition("-")
        ending, count = f"-{partition}.{topic_id.hex()}{suffix}", 1
        while self.files.exists(join(self.path, candidate := topic[: _NAME_BYTES_MAX - len(ending)] + ending)):
            ending, count = f"-{partition}.{topic_id.hex()}.{count}{suffix}", count + 1
        return candidate

    def record_loss(self, *, trust_only_clean_stops: bool = False) -> RecordLoss | None:
        """Whether the logs have lost, or may have lost, records that an earlier process wrote; None if they have not. Call it
        after all logs were opened.

        A killed process loses nothing, because its records are in the page cache. So without an orderly stop, a directory has
        lost records only if the machine has started again since, or if its logs show it. `trust_only_clean_stops`: assume a
        loss after each stop that was not in order, as Kafka does."""
        if self.lost_page_cache or self._is_checkpoint_damaged or (trust_only_clean_stops and not self.was_clean):
            return RecordLoss(False, ())
        lossy = [log for log in self.logs.values() if log.possible_data_loss or log.corrupt_at is not None]
        return RecordLoss(True, tuple((log.topic_id, log.partition) for log in lossy)) if lossy else None

    # -- logs -----------------------------------------------------------------------------------------------------

    def existing_logs(self) -> list[ExistingLog]:
        """The logs that have a directory here, by topic and partition."""
        return [ExistingLog(*key, topic_id) for key, topic_id in sorted(self._existing.items())]

    def topic_id_of(self, topic: str, partition: int) -> bytes | None:
        """The topic id of the log that has this name; None if there is none."""
        return self._existing.get((topic, partition))

    @property
    def log_count(self) -> int:
        """The number of logs that have a directory here, with those that are being moved here."""
        return len(self._existing) + len(self.futures)

    def open_log(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, now_ms: int, *, may_be_new: bool = True
    ) -> Log:
        """Open the partition's log, or create it.

        `may_be_new`: False if the partition had a leader before. A log that is created then lacks that leader's records, and the
        directory is in doubt, so that the next process finds that, too.  Raises INCONSISTENT_TOPIC_ID if the directory has
        another topic id, KAFKA_STORAGE_ERROR if it is offline, and DiskError."""
        self._check_online()
        key = (topic, partition)
        known = self._existing.get(key)
        if known is not None and known != topic_id:
            raise BrokerError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log_name(topic, partition)} holds topic id {uuid_to_text(known)}, not {uuid_to_text(topic_id)}",
            )
        if key in self.logs:
            return self.logs[key]
        checkpointed = self._recovery_points.get(key, 0), self._high_watermarks.get(key, 0)
        cleaned = self._first_dirty_offsets.get(key, 0), self._removed_tombstones.get(key, 0)
        try:
            if known is None and not may_be_new:
                self._mark_in_doubt()
            log = self._open_log(key, topic_id, config, now_ms, create=known is None)
        except DiskError as e:
            self.fail(e)
            raise
        self.logs[key] = log
        if known is not None and _ends_below(log, *checkpointed, *cleaned):
            self.checkpoint_all()
        return log

    def _open_log(self, key: TopicPartition, topic_id: bytes, config: LogConfig, now_ms: int, *, create: bool) -> Log:
        path = join(self.path, log_name(*key))
        if create:
            self._create_log(key, path, topic_id)
        log = Log.open(
            self.files,
            path,
            topic=key[0],
            partition=key[1],
            topic_id=topic_id,
            config=config,
            log_start_offset=self._log_starts.pop(key, 0),
            recovery_point=self._recovery_points.pop(key, 0),
            high_watermark=self._high_watermarks.pop(key, 0),
            first_dirty_offset=self._first_dirty_offsets.pop(key, 0),
            tombstones_removed_below=self._removed_tombstones.pop(key, 0),
            superseded_below=self._superseding_records.pop(key, 0),
            clean_shutdown=self.was_clean or create,
            now_ms=now_ms,
            budget=self.budget,
            failure=self.failure,
            metrics=self.metrics,
            random=self.random,
        )
        if create or not self.was_clean:
            # The log's first flush makes it durable. A directory that loses it before holds no durable record.
            log.unsynced[join(path, PARTITION_METADATA)] = None
        if self._are_tombstones_unknown:
            log.tombstones_removed_below = removed_records_end(log)
        log.on_lowered = self.checkpoint_all
        if not create and log.possible_data_loss:
            self._mark_in_doubt()
        log.possible_data_loss |= create or self.in_doubt
        return log

    def _mark_in_doubt(self) -> None:
        """Record durably that a log may have lost records, because the next process cannot see this in any other file."""
        if not self.in_doubt:
            self.in_doubt = self._awaits_boot_id = True
            self.files.write(join(self.path, BOOT_ID), b"")
            self._order.written.pop(join(self.path, BOOT_ID), None)

    def _is_settled(self) -> bool:
        """Whether the broker is registered, all logs are open, and none of them still has `possible_data_loss`."""
        return self._is_registered and self._are_all_open() and not any(log.possible_data_loss for log in self.logs.values())

    def _create_log(self, key: TopicPartition, path: str, topic_id: bytes) -> None:
        stale = key in self._deleted
        cleaned = self._first_dirty_offsets, self._removed_tombstones, self._superseding_records
        for offsets in (self._high_watermarks, self._recovery_points, self._log_starts, *cleaned):
            stale |= offsets.pop(key, None) is not None
        if stale:
            # A checkpoint of the deleted log must not apply to the new log of the same name.
            self.checkpoint_all()
            self._deleted.clear()
        self.files.make_dirs(path)
        self.files.write(join(path, PARTITION_METADATA), PartitionMetadata.encode(topic_id))
        self._existing[key] = topic_id

    def delete_log(self, topic: str, partition: int, topic_id: bytes) -> str | None:
        """Rename the log's directory, so that its name is free at once. None if there is no log with this topic id.

        Returns the new path. The caller removes it (`remove_tree`) outside the event loop, because that may be slow."""
        self._check_online()
        key = (topic, partition)
        if self._existing.get(key) != topic_id:
            return None
        log = self.logs.pop(key, None)
        if log is not None:
            log.abandon()
        del self._existing[key]
        self._deleted.add(key)
        name = log_name(topic, partition)
        return self.rename_for_deletion(name, name, topic_id)

    def rename_for_deletion(self, name: str, log: str, topic_id: bytes) -> str:
        """Rename the directory of a log so that it can be removed at any time, even after a restart. Returns the new path. `log`:
        the log's name, from which the new name is built."""
        target = join(self.path, self.free_name(log, topic_id, DELETE_SUFFIX))
        try:
            self.files.rename(join(self.path, name), target)
        except DiskError as e:
            self.fail(e)
            raise
        return target

    def later_removed(self, path: str | None) -> None:
        """Let the next call of `unfinished_deletions` return this path."""
        if path is not None:
            self._unfinished_deletions.append(path)

    def adopt(self, log: Log) -> None:
        """Count a log that was moved here, and whose directory is not renamed yet, among the logs of this directory: its offsets
        are in the checkpoints when this returns. If it raises DiskError, nothing has changed."""
        key = (log.name, log.partition)
        self.logs[key], self._existing[key] = log, log.topic_id
        try:
            self.checkpoint_all()
        except DiskError:
            del self.logs[key], self._existing[key]
            raise
        self._deleted.discard(key)
        log.on_lowered = self.checkpoint_all

    def rename(self, source: str, target: str) -> None:
        """Rename a path in this directory durably. DiskError takes the directory offline."""
        try:
            self.files.rename(source, target)
            self.files.fsync_dir(self.path)
        except DiskError as e:
            self.fail(e)
            raise

    def set_aside(self, topic: str, partition: int, reason: str, stray: StrayMetadata | None = None) -> None:
        """Rename a log that is not in the cluster's metadata (a stray), so that it is neither served nor lost.

        `stray`: since when it is a stray, and the proof that the metadata belongs to its cluster. None: it is never removed."""
        key = (topic, partition)
        log = self.logs.pop(key, None)
        if log is not None:
            log.abandon()
        topic_id = self._existing.pop(key, None)
        if topic_id is not None:
            self._deleted.add(key)
            self._set_aside(log_name(topic, partition), topic_id, reason, stray)

    def unfinished_deletions(self) -> list[str]:
        """The directories whose removal an earlier process did not finish. The caller removes each outside the event loop."""
        paths, self._unfinished_deletions = self._unfinished_deletions, []
        return paths

    def _check_online(self) -> None:
        if self.failure.error is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory is offline: {self.failure.error}")

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark checkpoint now. DiskError takes the directory offline."""
        self._write(self.high_watermark_checkpoint())

    def checkpoint_all(self) -> None:
        """Write all checkpoints now. DiskError takes the directory offline."""
        self._write(self.checkpoints())

    def checkpoints(self) -> CheckpointFiles:
        """All checkpoints (and the boot id, if the directory is no longer in doubt), to be written now or on a thread."""
        parts = [
            self._checkpoint(RECOVERY_POINTS, self._recovery_points, lambda log: log.recovery_point),
            self.log_start_checkpoint(),
            self.high_watermark_checkpoint(),
            self.cleaner_checkpoint(),
        ]
        contents = [content for part in parts for content in part.contents]
        if self._awaits_boot_id and self._is_settled():
            self.in_doubt = self._awaits_boot_id = False
            contents.append((join(self.path, BOOT_ID), self.files.boot_id().encode("ascii")))
        return self._new_checkpoint(contents)

    def high_watermark_checkpoint(self) -> CheckpointFiles:
        """The high watermark checkpoint, to be written now or on a thread."""
        return self._checkpoint(HIGH_WATERMARKS, self._high_watermarks, lambda log: log.high_watermark)

    def log_start_checkpoint(self) -> CheckpointFiles:
        """The log start checkpoint, to be written now or on a thread."""
        return self._checkpoint(LOG_STARTS, self._log_starts, _log_start_to_save)

    def save_cleaner_offsets(self) -> None:
        """Write the checkpoints of the cleaner now. DiskError takes the directory offline."""
        self._write(self.cleaner_checkpoint())

    def cleaner_checkpoint(self) -> CheckpointFiles:
        """The checkpoints of the cleaner, to be written now or on a thread. Nothing is written if no log was ever cleaned."""
        parts = [
            self._checkpoint(FIRST_DIRTY_OFFSETS, self._first_dirty_offsets, _first_dirty_to_save),
            self._checkpoint(SUPERSEDING_RECORDS, self._superseding_records, lambda log: log.superseded_below or None),
        ]
        if not self._are_tombstones_unknown or self._are_all_open():
            # A damaged checkpoint is kept until all logs are open, so that a start that is cut short does not hide the damage.
            parts.append(
                self._checkpoint(REMOVED_TOMBSTONES, self._removed_tombstones, lambda log: log.tombstones_removed_below or None)
            )
        self._has_cleaner_files |= any(data != OffsetCheckpoint.encode({}) for part in parts for _, data in part.contents)
        contents = [content for part in parts for content in part.contents]
        return self._new_checkpoint(contents if self._has_cleaner_files else [])

    def _checkpoint(
        self, name: str, unopened: dict[TopicPartition, int], offset_of: Callable[[Log], int | None]
    ) -> CheckpointFiles:
        offsets = {key: offset for key, offset in unopened.items() if key in self._existing}
        for key, log in self.logs.items():
            offset = offset_of(log)
            if offset is not None:
                offsets[key] = offset
        return self._new_checkpoint([(join(self.path, name), OffsetCheckpoint.encode(offsets))])

    def _new_checkpoint(self, contents: list[tuple[str, bytes]]) -> CheckpointFiles:
        self._order.taken += 1
        return CheckpointFiles(self.files, contents, self._order.taken, self._order)

    def _write(self, checkpoint: CheckpointFiles) -> None:
        self._check_online()
        try:
            checkpoint.write()
        except DiskError as e:
            self.fail(e)
            raise

    def flush_work(self) -> list[tuple[Log, FlushWork]]:
        """The closed segments that are not durable yet: call `work.run()` on a thread, then `log.on_flushed(work)` on the
        loop."""
        return [(log, work) for log in self.logs.values() if (work := log.flush_work()) is not None]

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs, and write the marker of an orderly stop. If offline, or `clean` is False, nothing is written."""
        try:
            if clean and self.failure.error is None:
                self.close_cleanly(self.logs.values(), broker_epoch)
        finally:
            for log in self.logs.values():
                log.abandon()
            self.futures.close()
            self._lock.release()

    def close_cleanly(self, logs: Collection[Log], broker_epoch: int) -> None:
        """Close the logs in order and write their checkpoints, then the clean-shutdown marker if it is true of every log. The
        marker is not written if it would hide a loss: the directory is in doubt, or the checkpoints or the page cache may have
        been lost and the broker never registered (`broker_epoch` is -1)."""
        try:
            self._flush_together(logs)
            for log in logs:
                log.close()
            self.checkpoint_all()
            hides_loss = self.in_doubt or (self._awaits_boot_id and broker_epoch < 0)
            if not hides_loss and self._unopened_are_whole():
                self.files.write_atomic(join(self.path, CLEAN_SHUTDOWN), CleanShutdown.encode(broker_epoch))
        except DiskError as e:
            self.fail(e)
            raise

    def _flush_together(self, logs: Collection[Log]) -> None:
        """Flush all logs with one call, because ten thousand logs that wait for the disk one after the other take long."""
        paths = list(dict.fromkeys(path for log in logs for path in log.unflushed_paths()))
        with self.metrics.flushing():
            self.files.fsync_paths(paths)
        for log in logs:
            log.on_all_flushed()

    def _unopened_are_whole(self) -> bool:
        """Whether the marker would also be correct for logs that were not opened in this run."""
        return self.was_clean or self._are_all_open()

    def _are_all_open(self) -> bool:
        return set(self._existing) == set(self.logs)


def _log_start_to_save(log: Log) -> int | None:
    """The log start if it is not the first segment's base offset; else None, as in Kafka."""
    return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None


def _first_dirty_to_save(log: Log) -> int | None:
    """The first dirty offset if it is above the log's first offset, where a log that was never cleaned begins; else None."""
    return log.first_dirty_offset if log.first_dirty_offset > log.segments[0].base_offset else None


def _ends_below(log: Log, recovery_point: int, high_watermark: int, first_dirty: int, tombstones_removed_below: int) -> bool:
    """Whether the log has lost records that its checkpoints cover, so that they must be lowered before it gets new ones."""
    return (
        log.recovery_point < recovery_point
        or log.high_watermark < high_watermark
        or log.first_dirty_offset < first_dirty
        or log.tombstones_removed_below < tombstones_removed_below
    )
