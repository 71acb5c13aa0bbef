"""A data directory: the logs of one broker, and what is kept for all of them together.

    meta.properties        whose it is: refused when it is another node's, another cluster's, newer, or unreadable
    .lock                  held by the process that runs on it
    .kafka_cleanshutdown   left by an orderly stop, taken away at the start: without it every log scans its tail
    boot-id                of the kernel whose page cache has all that was written here; see below
    *-checkpoint           high watermarks, recovery points, log starts; replaced as a whole
    orders-0/              a log; `partition.metadata` in it says of which topic, by id: names come back, ids do not
    orders-0.<id>-delete/  a log on its way out; renamed first, so that the name is free at once
    orders-0.<id>-stray/   a log that the cluster does not give to this broker, or (id 0) whose topic cannot be told; `strays.py`
                           says when it may be removed

Records are acknowledged when they are in the page caches of the in-sync replicas, as in Kafka. A killed process loses none of
them. A machine that loses power may lose some, and the log does not show it: it just ends earlier. So a directory that was not
closed in order, and is opened under another boot id, is *in doubt*: its logs have `possible_data_loss`. A replica that becomes
a follower fetches the missing records from its leader. A replica that becomes the leader logs
`partition.elected_with_missing_records`. The boot id on the disk changes only when each log has done one of the two.

The first disk error takes the whole directory offline (`offline`): what its files hold is known again only after a
restart. Files and directories that are not ours by name are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.storage.checkpoints import (
    BOOT_ID,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    STRAY_METADATA,
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
from strandline.storage.disk import DiskError, Files, Lock, join
from strandline.storage.log.log import METADATA_TOPIC, DirFailure, FlushWork, Log, LogConfig, TailBudget
from strandline.storage.log_names import log_name, parse_log_name
from strandline.storage.metrics import LogMetrics

__all__ = ["Claim", "LogDir", "log_name", "parse_log_name"]

logger = get_logger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_LEAVING = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}\.[0-9a-f]{32}(\.\d+)?-delete\Z", re.ASCII)
_NAME_BYTES_MAX = 255
"""What file systems take."""


class ExistingLog(NamedTuple):
    topic: str
    partition: int
    topic_id: bytes


class CheckpointOrder:
    """What was written last, by path. One write at a time: the loop and a thread may both have one to make."""

    def __init__(self) -> None:
        self.taken = 0
        """Counts the moments at which checkpoints were taken."""
        self.written: dict[str, tuple[int, bytes]] = {}


class CheckpointFiles(NamedTuple):
    """Checkpoints as they were at one moment; `write` may take place on a thread.

    An older one never replaces a newer one: offsets may have been lowered in between, and a checkpoint that still
    vouches for what was truncated would be a lie. What has not changed is not written again.
    """

    files: Files
    contents: list[tuple[str, bytes]]
    moment: int
    order: CheckpointOrder

    def write(self) -> None:
        with self.files.exclusive():
            for path, data in self.contents:
                moment, last = self.order.written.get(path, (-1, None))
                if moment > self.moment:
                    continue
                if data != last:
                    self.files.write_atomic(path, data)
                self.order.written[path] = self.moment, data


class LogDir:
    def __init__(self, files: Files, path: str, lock: Lock, meta: MetaProperties, tail_bytes_max: int) -> None:
        """Use `LogDir.open`."""
        self.files = files
        self.path = path
        self.meta = meta
        self.was_clean = False
        """Whether the last process that ran here stopped in order."""
        self.in_doubt = False
        """Whether a page cache may have been lost since, and not all logs know yet what that has cost."""
        self.previous_broker_epoch = -1
        """The broker epoch that the clean-shutdown marker names, -1 for none."""
        self.logs: dict[TopicPartition, Log] = {}
        """The open ones."""
        self.budget = TailBudget(tail_bytes_max)
        self.failure = DirFailure()
        self.metrics = LogMetrics()
        self._lock = lock
        self._existing: dict[TopicPartition, bytes] = {}
        """Directories that were found at the start or made since, with their topic ids."""
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        """What the checkpoints said, for logs that are not open yet."""
        self._departed: set[TopicPartition] = set()
        """Deleted logs that a checkpoint file on the disk may still speak of."""
        self._leaving: list[str] = []
        self._order = CheckpointOrder()

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
        """Take a data directory, making it when missing. UsageError, in one sentence, when it must not be used."""
        claim = Claim.take(files, path, node_id=node_id, cluster_id=cluster_id)
        return cls.open_claimed(claim, cluster_id=cluster_id, random=random, tail_bytes_max=tail_bytes_max)

    @classmethod
    def open_claimed(
        cls, claim: Claim, *, cluster_id: str | None, random: Random | None = None, tail_bytes_max: int = 4 << 20
    ) -> LogDir:
        """Go on with a directory that was taken: formatted when it is fresh. On an error it is given back."""
        try:
            log_dir = cls(claim.files, claim.path, claim.lock, claim.format(cluster_id, random), tail_bytes_max)
            log_dir._load()
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
        """A disk error that was met outside of a log."""
        if self.failure.error is None:
            self.failure.error = error
            logger.error("log_dir.failed", log_dir=self.path, operation=error.operation, path=error.path, reason=str(error))

    # -- start ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        marker = read_if_present(self.files, join(self.path, CLEAN_SHUTDOWN))
        epoch = CleanShutdown.decode(marker) if marker is not None else None
        if epoch is not None:
            self.was_clean, self.previous_broker_epoch = True, epoch
        if marker is not None:
            # Gone for good before anything is written: a marker that came back after a power cut would tell a lie.
            self.files.remove(join(self.path, CLEAN_SHUTDOWN))
            self.files.fsync_dir(self.path)
        self._high_watermarks = self._read_checkpoint(HIGH_WATERMARKS)
        self._recovery_points = self._read_checkpoint(RECOVERY_POINTS)
        self._log_starts = self._read_checkpoint(LOG_STARTS)
        names = self.files.list(self.path)
        for name in names:
            self._find(name)
        self._check_boot_id(is_new=all(parse_log_name(name) is None for name in names), was_clean=epoch is not None)

    def _check_boot_id(self, *, is_new: bool, was_clean: bool) -> None:
        present, path = self.files.boot_id().encode("ascii"), join(self.path, BOOT_ID)
        written = read_if_present(self.files, path)
        self.in_doubt = not is_new and not was_clean and (not present or written != present)
        if not self.in_doubt and written != present:
            self.files.write(path, present)  # A power cut that undoes this leaves another id, or none: both are doubts.

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Empty when missing or damaged: a lower bound of 0 is always true, and costs a longer scan."""
        data = read_if_present(self.files, join(self.path, name))
        if data is None:
            return {}
        offsets = OffsetCheckpoint.decode(data)
        if offsets is None:
            logger.warning("log_dir.checkpoint_damaged", path=join(self.path, name), reason="every log starts from 0")
            self.was_clean = False
        return offsets or {}

    def _find(self, name: str) -> None:
        path = join(self.path, name)
        if _LEAVING.match(name) and self.files.is_dir(path):
            self._leaving.append(path)
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
        """Out of the way, but not deleted. `stray`: the proof that it may be removed one day; None: there is none."""
        target = self._free_name(name, topic_id, STRAY_SUFFIX)
        self.files.rename(join(self.path, name), join(self.path, target))
        if stray is not None:
            self.files.write_atomic(join(join(self.path, target), STRAY_METADATA), stray.encode())
        logger.warning("log_dir.log_set_aside", log_dir=self.path, log=name, renamed=target, reason=reason)

    def _free_name(self, name: str, topic_id: bytes, suffix: str) -> str:
        """`<log>.<topic id><suffix>`, numbered when that is taken; a long topic's name is cut short, as in Kafka."""
        topic, _, partition = name.rpartition("-")
        ending, count = f"-{partition}.{topic_id.hex()}{suffix}", 1
        while self.files.exists(join(self.path, candidate := topic[: _NAME_BYTES_MAX - len(ending)] + ending)):
            ending, count = f"-{partition}.{topic_id.hex()}.{count}{suffix}", count + 1
        return candidate

    # -- logs -----------------------------------------------------------------------------------------------------

    def existing_logs(self) -> list[ExistingLog]:
        """The logs that have a directory here, by topic and partition."""
        return [ExistingLog(*key, topic_id) for key, topic_id in sorted(self._existing.items())]

    def open_log(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, now_ms: int, *, may_be_new: bool = True
    ) -> Log:
        """The partition's log; made when there is none. INCONSISTENT_TOPIC_ID when the directory is another topic's.
        `may_be_new`: whether an empty log can be all there is. Where the partition had a leader before, a log that is made here
        lacks what that one had, and the next process has to know it, too."""
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
        recovery_point, high_watermark = self._recovery_points.get(key, 0), self._high_watermarks.get(key, 0)
        try:
            if known is None and not may_be_new:
                self._doubt()
            log = self._open_log(key, topic_id, config, now_ms, create=known is None)
        except DiskError as e:
            self.fail(e)
            raise
        self.logs[key] = log
        if known is not None and (log.recovery_point < recovery_point or log.high_watermark < high_watermark):
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
            clean_shutdown=self.was_clean or create,
            now_ms=now_ms,
            budget=self.budget,
            failure=self.failure,
            metrics=self.metrics,
        )
        if create or not self.was_clean:
            # Made durable by the log's first flush; a directory that lost it holds nothing that was promised.
            log.unsynced[join(path, PARTITION_METADATA)] = None
        log.on_lowered = self.checkpoint_all
        if not create and log.possible_data_loss:
            self._doubt()
        log.possible_data_loss |= create or self.in_doubt
        return log

    def _doubt(self) -> None:
        """A log has lost something, and nothing else on the disk shows it any more: the next process has to know it, too."""
        if not self.in_doubt:
            self.in_doubt = True
            self.files.write(join(self.path, BOOT_ID), b"")
            self._order.written.pop(join(self.path, BOOT_ID), None)

    def _is_settled(self) -> bool:
        """Whether all logs know what they lack."""
        return self._are_all_open() and not any(log.possible_data_loss for log in self.logs.values())

    def _create_log(self, key: TopicPartition, path: str, topic_id: bytes) -> None:
        stale = key in self._departed
        for offsets in (self._high_watermarks, self._recovery_points, self._log_starts):
            stale |= offsets.pop(key, None) is not None
        if stale:
            # A checkpoint of the deleted log must not speak for its successor of the same name.
            self.checkpoint_all()
            self._departed.clear()
        self.files.make_dirs(path)
        self.files.write(join(path, PARTITION_METADATA), PartitionMetadata.encode(topic_id))
        self._existing[key] = topic_id

    def delete_log(self, topic: str, partition: int, topic_id: bytes) -> str | None:
        """Take a log away: its name is free at once. Returns the renamed directory, whose removal (`remove_tree`) may be
        slow and is the caller's, off the loop; None when there is no such log or it is another topic's."""
        self._check_online()
        key = (topic, partition)
        if self._existing.get(key) != topic_id:
            return None
        log = self.logs.pop(key, None)
        if log is not None:
            log.abandon()
        del self._existing[key]
        self._departed.add(key)
        name = log_name(topic, partition)
        try:
            target = join(self.path, self._free_name(name, topic_id, DELETE_SUFFIX))
            self.files.rename(join(self.path, name), target)
        except DiskError as e:
            self.fail(e)
            raise
        return target

    def set_aside(self, topic: str, partition: int, reason: str, stray: StrayMetadata | None = None) -> None:
        """Rename a log that the cluster does not know (a stray) so that it is neither served nor lost. It keeps its topic id.

        `stray`: since when, and what proves that the cluster's word is about this log; None: it is never removed by us."""
        key = (topic, partition)
        log = self.logs.pop(key, None)
        if log is not None:
            log.abandon()
        topic_id = self._existing.pop(key, None)
        if topic_id is not None:
            self._departed.add(key)
            self._set_aside(log_name(topic, partition), topic_id, reason, stray)

    def leaving(self) -> list[str]:
        """Directories whose removal an earlier process did not finish; hand each to `files.remove_tree`, off the loop."""
        leaving, self._leaving = self._leaving, []
        return leaving

    def _check_online(self) -> None:
        if self.failure.error is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory is offline: {self.failure.error}")

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        self._write(self.high_watermark_checkpoint())

    def checkpoint_all(self) -> None:
        self._write(self.checkpoints())

    def checkpoints(self) -> CheckpointFiles:
        """All three, to be written now or on a thread."""
        parts = [
            self._checkpoint(RECOVERY_POINTS, self._recovery_points, lambda log: log.recovery_point),
            self._checkpoint(LOG_STARTS, self._log_starts, _log_start_to_save),
            self.high_watermark_checkpoint(),
        ]
        contents = [content for part in parts for content in part.contents]
        if self.in_doubt and self._is_settled():
            self.in_doubt = False
            contents.append((join(self.path, BOOT_ID), self.files.boot_id().encode("ascii")))
        return self._taken(contents)

    def high_watermark_checkpoint(self) -> CheckpointFiles:
        return self._checkpoint(HIGH_WATERMARKS, self._high_watermarks, lambda log: log.high_watermark)

    def _checkpoint(
        self, name: str, unopened: dict[TopicPartition, int], offset_of: Callable[[Log], int | None]
    ) -> CheckpointFiles:
        offsets = {key: offset for key, offset in unopened.items() if key in self._existing}
        for key, log in self.logs.items():
            offset = offset_of(log)
            if offset is not None:
                offsets[key] = offset
        return self._taken([(join(self.path, name), OffsetCheckpoint.encode(offsets))])

    def _taken(self, contents: list[tuple[str, bytes]]) -> CheckpointFiles:
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
        """Closed segments that are not durable yet: `work.run()` on a thread, then `log.on_flushed(work)` here."""
        return [(log, work) for log in self.logs.values() if (work := log.flush_work()) is not None]

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs; an orderly end leaves the marker. Offline, or with `clean` False, nothing is written."""
        try:
            if clean and self.failure.error is None:
                self._close_orderly(self.logs.values(), broker_epoch)
        finally:
            for log in self.logs.values():
                log.abandon()
            self._lock.release()

    def _close_orderly(self, logs: Iterable[Log], broker_epoch: int) -> None:
        try:
            for log in logs:
                log.close()
            self.checkpoint_all()
            if not self.in_doubt and self._unopened_are_whole():
                self.files.write_atomic(join(self.path, CLEAN_SHUTDOWN), CleanShutdown.encode(broker_epoch))
        except DiskError as e:
            self.fail(e)
            raise

    def _unopened_are_whole(self) -> bool:
        """Whether the marker would be true of logs, too, that nobody opened in this run."""
        return self.was_clean or self._are_all_open()

    def _are_all_open(self) -> bool:
        return set(self._existing) == set(self.logs)


def _log_start_to_save(log: Log) -> int | None:
    """Only where it is not simply the first segment's base offset, as in Kafka."""
    return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None
