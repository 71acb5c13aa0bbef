"""Writes a snapshot of the listener's state when enough was committed since the last one, one at a time.

A snapshot that the disk rejects is dropped, because no promise depends on it, and the next one is written after a pause. The log
before a snapshot is cleaned after the snapshot is complete. An error in the cleaning is fatal, because the log is a promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.listener import QuorumListener
from strandline.controller.raft.listener_feed import Applied
from strandline.controller.raft.metadata_log import MetadataLog
from strandline.controller.raft.snapshots import SnapshotWriter, in_batches
from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import SnapshotId
from strandline.storage.files import DiskError

logger = get_logger(__name__)

SnapshotTask = asyncio.Task[SnapshotId | None]


class SnapshotTaker:
    """Writes a snapshot whenever enough was committed since the last one, one at a time."""

    def __init__(
        self,
        log: MetadataLog,
        applied: Applied,
        listener: QuorumListener,
        *,
        node_id: int,
        config: RaftConfig,
        wall_clock_ms: Callable[[], int],
        schedule: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`schedule` makes the shell call `maybe_start` again soon. `on_error` gets an error after which the node must stop."""
        self._log = log
        self._applied = applied
        self._listener = listener
        self._node_id = node_id
        self._config = config
        self._wall_clock_ms = wall_clock_ms
        self._schedule = schedule
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._task: SnapshotTask | None = None
        self._retry: asyncio.TimerHandle | None = None
        """A snapshot failed: the next one is written when this is due."""

    def maybe_start(self) -> None:
        """Start to write a snapshot if enough was committed since the last one, none is being written, and no retry waits."""
        applied, config = self._applied, self._config
        due = (
            applied.bytes_since_snapshot >= config.snapshot_after_bytes
            or applied.records_since_snapshot >= config.snapshot_after_records
        )
        if due and self._task is None and self._retry is None:
            self._start()

    async def take(self) -> SnapshotId | None:
        """Write a snapshot now, or wait for the one that is being written. None if nothing was committed since the last one, a
        newer one was installed meanwhile, or the disk rejected it."""
        return await (self._task or self._start())

    async def stop(self) -> None:
        """Cancel the snapshot that is being written; its part file is removed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()

    def _start(self) -> SnapshotTask:
        applied, latest = self._applied, self._log.latest_snapshot_id
        snapshot_id = SnapshotId(applied.end_offset, applied.epoch)
        is_new = snapshot_id.end_offset > (latest.end_offset if latest else 0)
        records = self._listener.snapshot_records() if is_new else ()
        counted = applied.bytes_since_snapshot, applied.records_since_snapshot
        applied.bytes_since_snapshot = applied.records_since_snapshot = 0
        writing = self._try(snapshot_id, records, *counted) if is_new else _nothing()
        self._task = self._loop.create_task(writing, name="write a metadata snapshot")
        self._task.add_done_callback(self._on_done)
        return self._task

    async def _try(
        self, snapshot_id: SnapshotId, records: Iterable[bytes], bytes_before: int, records_before: int
    ) -> SnapshotId | None:
        """`bytes_before` and `records_before` are the counters that this snapshot has reset. They are restored if the disk
        rejects the snapshot (because it is full, for example) or returns other bytes than were written."""
        try:
            size = await self._write(snapshot_id, records)
        except (DiskError, BrokerError) as e:
            self._applied.bytes_since_snapshot += bytes_before
            self._applied.records_since_snapshot += records_before
            self._retry_later(snapshot_id, e)
            return None
        if size is None:
            return None
        # From here on the files of the log itself change, so an error is fatal.
        self._log.clean(self._wall_clock_ms())
        end = snapshot_id.end_offset
        logger.info("quorum.snapshot_written", node_id=self._node_id, metadata_offset=end, size_bytes=size)
        return snapshot_id

    def _retry_later(self, snapshot_id: SnapshotId, error: Exception) -> None:
        end, retry_ms = snapshot_id.end_offset, self._config.snapshot_retry_ms
        self._retry = self._loop.call_later(retry_ms / 1000, self._on_retry)
        reason = f"{error}; the next attempt is in {retry_ms} ms"
        logger.warning("quorum.snapshot_failed", node_id=self._node_id, metadata_offset=end, reason=reason)

    def _on_retry(self) -> None:
        self._retry = None
        self._schedule()

    async def _write(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> int | None:
        """Write one batch per event-loop iteration, so that a large image delays no other work. Returns the snapshot's size, or
        None if a newer snapshot was installed meanwhile."""
        sink = self._log.create_snapshot(snapshot_id)
        try:
            writer = SnapshotWriter(sink, snapshot_id.epoch, self._applied.timestamp_ms)
            for batch in in_batches(records):
                writer.write(batch)
                await asyncio.sleep(0)
            if snapshot_id.end_offset <= self._log.start_offset:
                return None  # a newer one was installed meanwhile
            writer.finish()
        finally:
            sink.discard()
        return sink.size

    def _on_done(self, task: SnapshotTask) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)


async def _nothing() -> None:
    return None
