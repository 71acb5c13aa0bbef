"""The tasks of Kafka's LogManager: recover the logs at the start, then flush, write checkpoints, delete old segments and strays.

A stray is a log on the disk that the cluster has deleted or moved to other brokers while this broker was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from strandline.broker.replica_manager import ReplicaManager
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.loggers import get_logger
from strandline.storage.checkpoints import StrayMetadata
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.directory.strays import read_stray, stray_paths
from strandline.storage.files import DiskError, Files
from strandline.storage.log.log import FlushWork, Log, LogConfig

logger = get_logger(__name__)

LOGS_PER_TURN = 50
"""How many logs a periodic task visits in one iteration of the event loop, so that requests are served in between."""


class LogManagerTasks:
    """Runs the tasks over all logs of a broker. Slow work on the disk runs on threads."""

    def __init__(
        self, log_dirs: LogDirs, files: Files, *, wall_clock_ms: Callable[[], int], on_disk_error: Callable[[DiskError], None]
    ) -> None:
        self._log_dirs = log_dirs
        self._files = files
        self._wall_clock_ms = wall_clock_ms
        self._on_disk_error = on_disk_error
        self._interrupted = False
        """Set on the loop; the recovering thread reads it between two logs."""
        self.logs = 0
        """How many logs were found at the start. With `logs_recovered` and `recovered` it shows the progress of the recovery."""
        self.logs_recovered = 0
        self.recovered = False

    async def recover(self) -> None:
        """Open every log on the disks, before the broker registers. After a crash each log scans its tail, which may take long.
        A directory that fails goes offline. Raises `DiskError` if all have failed.

        A thread opens the logs, so that SIGTERM is handled meanwhile; after a SIGTERM no further log is opened."""
        work = asyncio.get_running_loop().run_in_executor(None, self._open_all)
        try:
            await asyncio.shield(work)
            self.recovered = True
        except asyncio.CancelledError:
            self._interrupted = True
            await asyncio.wait({work})
            raise

    def _open_all(self) -> None:
        self.logs = len(self._log_dirs.existing_logs())
        errors = []
        for log_dir in self._log_dirs.online:
            try:
                self._open_all_of(log_dir)
            except DiskError as e:
                log_dir.fail(e)
                errors.append(e)
        if not self._log_dirs.online:
            raise errors[0]

    def _open_all_of(self, log_dir: LogDir) -> None:
        now_ms = self._wall_clock_ms()
        existing = log_dir.existing_logs()
        for topic, partition, topic_id in existing:
            if self._interrupted:
                return
            log_dir.open_log(topic, partition, topic_id, LogConfig(), now_ms)
            self.logs_recovered += 1
        log_dir.futures.recover(now_ms)
        if existing:
            logger.info("logs.recovered", log_dir=log_dir.path, logs=len(existing), clean=log_dir.was_clean)

    def checkpoint(self) -> None:
        """For each log directory on its own: flush closed segments on a thread, then write the checkpoints. The recovery points
        record that these segments are durable."""
        for log_dir in self._log_dirs.online:
            work = log_dir.flush_work()
            self._aside(partial(_flush, work), partial(self._on_flushed, log_dir, work))

    def _on_flushed(self, log_dir: LogDir, work: list[tuple[Log, FlushWork]]) -> None:
        for log_, item in work:
            log_.on_flushed(item)
        self._aside(log_dir.checkpoints().write)

    def _aside(self, work: Callable[[], object], then: Callable[[], None] | None = None) -> None:
        """Run `work` on a thread, then `then` on the loop. If the work fails, report the disk error or log the failure."""

        def on_done(done: asyncio.Future[object]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, DiskError):
                self._on_disk_error(error)
            elif error is not None:
                logger.error("log_manager_tasks.failed", exc_info=error)
            elif then is not None and not done.cancelled():
                then()

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(on_done)

    def flush_due(self, replicas: ReplicaManager) -> None:
        now_ms = self._wall_clock_ms()
        self._for_each(replicas, lambda log_: log_.maybe_flush(now_ms))

    def delete_old_segments(self, replicas: ReplicaManager) -> None:
        """Apply retention, and forget the state of producers that have been silent for long. Files are unlinked
        `file.delete.delay.ms` later, or when the broker starts again, on a thread, because a large one may take 100 ms."""
        now_ms = self._wall_clock_ms()

        def visit(log_: Log) -> None:
            log_.expire_producers(now_ms, replicas.image.knows_producer)
            log_.drop_indexes()
            if not log_.is_being_cleaned:  # the cleaner applies retention at the end of its round
                self.apply_retention(log_)

        self._for_each(replicas, visit)

    def apply_retention(self, log_: Log) -> None:
        """Delete the segments of one log that its retention does not keep."""
        paths = log_.delete_old_segments(self._wall_clock_ms())
        if paths:
            self.remove_later(log_, paths)

    def remove_later(self, log_: Log, paths: list[str]) -> None:
        """Unlink renamed files of a log after `file.delete.delay.ms`, on a thread."""
        loop = asyncio.get_running_loop()
        loop.call_later(log_.config.file_delete_delay_ms / 1000, loop.run_in_executor, None, self._unlink, paths)

    def _unlink(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._files.remove(path)
            except DiskError as e:
                logger.warning("logs.segment_not_removed", path=path, reason=str(e))

    def _for_each(self, replicas: ReplicaManager, action: Callable[[Log], object]) -> None:
        """Call `action` with each log, `LOGS_PER_TURN` in each iteration of the event loop. A partition that is deleted meanwhile
        is skipped."""
        keys = list(replicas.partitions)

        def visit(start: int) -> None:
            for key in keys[start : start + LOGS_PER_TURN]:
                partition = replicas.partitions.get(key)
                if partition is None:
                    continue
                try:
                    action(partition.log)
                except DiskError as e:
                    self._on_disk_error(e)
            if start + LOGS_PER_TURN < len(keys):
                asyncio.get_running_loop().call_soon(visit, start + LOGS_PER_TURN)

        visit(0)

    def remove_deleted(self) -> None:
        """Remove the directories that an earlier process had renamed for deletion."""
        for log_dir in self._log_dirs.dirs:
            for path in log_dir.unfinished_deletions():
                self.remove_directory(path)

    def remove_directory(self, path: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._remove_tree, path)

    def _remove_tree(self, path: str) -> None:
        try:
            self._files.remove_tree(path)
        except DiskError as e:
            logger.warning("logs.not_removed", path=path, reason=str(e))

    def clear_strays(self, image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
        """Delete or set aside the logs of topics that were deleted, or moved to other brokers, while this broker was away.

        They are deleted only if the metadata log provably continues the one that this directory last saw: the last clean shutdown
        wrote a broker epoch (an offset of that log) below the present one, and the image has one of our topics by its id.
        Otherwise they are set aside. A quorum that lost its log and starts again under the same cluster id knows no topic, and
        must not make brokers delete data. After an unclean stop there is no broker epoch to compare, so the logs are kept for
        `log.stray.retention.ms` (`storage/directory/strays.py`).
        """
        for log_dir in self._log_dirs.online:
            try:
                self._clear_strays(log_dir, image, broker_id, broker_epoch)
            except DiskError as e:
                self._on_disk_error(e)

    def _clear_strays(self, log_dir: LogDir, image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
        existing = log_dir.existing_logs()
        witness_id = next((topic_id for _, _, topic_id in existing if topic_id in image.topics_by_id), None)
        proven = witness_id is not None and 0 <= log_dir.previous_broker_epoch < broker_epoch
        stray = None if witness_id is None else StrayMetadata(self._wall_clock_ms(), witness_id)
        for topic, index, topic_id in existing:
            registration = image.partition((topic_id, index))
            if registration is not None and broker_id in registration.replicas:
                continue
            logger.warning("logs.stray_found", topic_id=topic_id.hex(), log=f"{topic}-{index}", deleted=proven)
            path = log_dir.delete_log(topic, index, topic_id) if proven else None
            if path is not None:
                self.remove_directory(path)
            elif not proven:
                log_dir.set_aside(topic, index, "the cluster does not know it, or has assigned it to other brokers", stray)

    def remove_strays(self, image: MetadataImage, broker_id: int, retention_ms: int) -> None:
        """Remove, on a thread, the strays that are older than `retention_ms` (-1: none) and proven to be of this cluster.

        `image`: the published metadata. An image that is still empty says nothing about any log.
        """
        if retention_ms >= 0 and image.offset >= 0:
            for log_dir in self._log_dirs.online:
                self._aside(partial(self._remove_strays, log_dir, image, broker_id, self._wall_clock_ms() - retention_ms))

    def _remove_strays(self, log_dir: LogDir, image: MetadataImage, broker_id: int, before_ms: int) -> None:
        try:
            paths = stray_paths(self._files, log_dir.path)
        except DiskError as e:
            logger.warning("logs.not_removed", path=log_dir.path, reason=str(e))
            return
        for path in paths:
            try:
                self._remove_stray(path, image, broker_id, before_ms)
            except DiskError as e:
                logger.warning("logs.not_removed", path=path, reason=str(e))

    def _remove_stray(self, path: str, image: MetadataImage, broker_id: int, before_ms: int) -> None:
        stray = read_stray(self._files, path)
        if stray is None or stray.since_ms > before_ms:
            return
        registration = image.partition((stray.topic_id, stray.partition))
        is_ours = registration is not None and broker_id in registration.replicas
        if not is_ours and not self._files.exists(stray.deletion_path):
            self._files.rename(path, stray.deletion_path)
            logger.warning("logs.stray_removed", path=path, topic_id=stray.topic_id.hex(), since_ms=stray.since_ms)
            self._remove_tree(stray.deletion_path)


def _flush(work: list[tuple[Log, FlushWork]]) -> None:
    for _, item in work:
        item.run()
