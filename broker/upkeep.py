"""What a broker does to its logs now and then: flush, delete old segments, write checkpoints, clear strays away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from strandline.broker.replica_manager import ReplicaManager
from strandline.controller.metadata.image import MetadataImage
from strandline.storage.files import DiskError, Files
from strandline.storage.log import Log
from strandline.storage.log_dir import LogDir

log = structlog.get_logger()

LOGS_PER_TURN = 50
"""So many logs are visited in one turn of the event loop; requests come in between."""


class LogUpkeep:
    def __init__(self, log_dir: LogDir, files: Files, *, wall_clock_ms: Callable[[], int]) -> None:
        self._log_dir = log_dir
        self._files = files
        self._wall_clock_ms = wall_clock_ms

    def checkpoint(self) -> None:
        """Recovery points and log starts."""
        self._log_dir.checkpoint_recovery_points()
        self._log_dir.checkpoint_log_starts()

    def flush_due(self, replicas: ReplicaManager) -> None:
        now_ms = self._wall_clock_ms()
        self._for_each(replicas, lambda log_: log_.maybe_flush(now_ms))

    def delete_old_segments(self, replicas: ReplicaManager) -> None:
        """Retention, and what was heard of producers long ago. Unlinking a big file may take 100 ms: on a thread."""
        now_ms = self._wall_clock_ms()

        def visit(log_: Log) -> None:
            log_.expire_producers(now_ms)
            paths = log_.delete_old_segments(now_ms)
            if paths:
                asyncio.get_running_loop().run_in_executor(None, self._unlink, paths)

        self._for_each(replicas, visit)

    def _unlink(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._files.remove(path)
            except DiskError as e:
                log.warning("segment.not_removed", path=path, reason=str(e))

    def _for_each(self, replicas: ReplicaManager, action: Callable[[Log], object]) -> None:
        """Some now, the rest in the next turns; a partition that is gone by then is passed over."""
        keys = list(replicas.partitions)

        def visit(start: int) -> None:
            for key in keys[start : start + LOGS_PER_TURN]:
                partition = replicas.partitions.get(key)
                if partition is not None:
                    action(partition.log)
            if start + LOGS_PER_TURN < len(keys):
                asyncio.get_running_loop().call_soon(visit, start + LOGS_PER_TURN)

        visit(0)

    def remove_leavings(self) -> None:
        """Directories that an earlier process had renamed and not yet removed."""
        for path in self._log_dir.leaving():
            self.remove_directory(path)

    def remove_directory(self, path: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._remove_tree, path)

    def _remove_tree(self, path: str) -> None:
        try:
            self._files.remove_tree(path)
        except DiskError as e:
            log.warning("log.not_removed", path=path, reason=str(e))

    def clear_strays(self, image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
        """Logs of topics that were deleted, or moved to others, while this broker was away.

        They are deleted only if the metadata log provably goes on from where this directory last saw it: its clean
        shutdown wrote a broker epoch (an offset of that log) that is below ours. Otherwise they are set aside: a quorum
        that lost its log and begins anew under the same cluster id knows no topic, and its word must not delete data.
        """
        proven = 0 <= self._log_dir.previous_broker_epoch < broker_epoch
        for topic, index, topic_id in self._log_dir.existing_logs():
            registration = image.partition((topic_id, index))
            if registration is not None and broker_id in registration.replicas:
                continue
            log.warning("log.stray", topic=topic, partition=index, topic_id=topic_id.hex(), deleted=proven)
            path = self._log_dir.delete_log(topic, index, topic_id) if proven else None
            if path is not None:
                self.remove_directory(path)
            elif not proven:
                self._log_dir.set_aside(topic, index, "the cluster does not know it, or has given it to others")
