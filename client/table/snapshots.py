"""Loads and saves the snapshots of a table, one file per partition, on a thread.

A snapshot is used if it belongs to the same topic (by id), the log still has the offset at which it ends, and no later tombstone
can be gone (snapshot.py). Rows whose records have been deleted from the log (`retention.ms`, trimmed by hand) are left out, so
that the table has the same contents as without a snapshot. A file that cannot be used is ignored; the next snapshot replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.records import TopicPartition
from strandline.client.table.progress import Phase, Progress, tombstones_are_there
from strandline.client.table.rows import Row, Rows
from strandline.client.table.snapshot import BadSnapshot, Place, decode, encode, read_place
from strandline.client.table.snapshot_files import SnapshotFiles
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


class Snapshots:
    """The snapshots of one table."""

    def __init__(self, folder: str, topic: str, now_ms: Callable[[], int]) -> None:
        self._files = SnapshotFiles(folder, topic)
        self._topic = topic
        self._now_ms = now_ms
        self._writing: asyncio.Future[None] | None = None
        """The last write. Its thread continues if the call that waits for it is cancelled."""
        self.written = 0

    async def load(self, consumer: Consumer, tombstones_kept_ms: float | None) -> dict[int, tuple[Place, dict[bytes, Row]]]:
        """The snapshots that can be used, by partition."""
        partitions = sorted(await consumer.partitions_for_topic(self._topic))
        topic_id = consumer.topic_ids([self._topic]).get(self._topic)
        starts = await consumer.beginning_offsets([TopicPartition(self._topic, index) for index in partitions])
        loop = asyncio.get_running_loop()
        found = {}
        for index in partitions:
            start = starts[TopicPartition(self._topic, index)]
            snapshot = await loop.run_in_executor(None, self._read, index, topic_id, start, tombstones_kept_ms)
            if snapshot is not None:
                found[index] = snapshot
        return found

    def _read(
        self, partition: int, topic_id: bytes | None, log_start: int, tombstones_kept_ms: float | None
    ) -> tuple[Place, dict[bytes, Row]] | None:
        """The snapshot of a partition; None if there is none that can be used. Called on a thread."""
        path = self._files.path(partition)
        try:
            data = self._files.read(partition)
            if data is None:
                return None
            reason = self._why_not(read_place(data), partition, topic_id, log_start, tombstones_kept_ms)
            if reason is None:
                return decode(data, log_start)
        except (BadSnapshot, OSError) as e:
            reason = str(e)
        logger.warning("table.snapshot_rejected", topic=self._topic, partition=partition, path=path, reason=reason)
        return None

    def _why_not(
        self, place: Place, partition: int, topic_id: bytes | None, log_start: int, tombstones_kept_ms: float | None
    ) -> str | None:
        if place.topic_id != topic_id or place.partition != partition:
            return "it is of another topic, or the topic was recreated"
        if place.next_offset < log_start:
            return f"it ends at offset {place.next_offset}, and the log begins at {log_start}"
        if not tombstones_are_there(place.fresh_at_ms, self._now_ms(), tombstones_kept_ms):
            return "it is so old that tombstones after it may have been removed (delete.retention.ms)"
        return None

    async def save(self, rows: Rows, progress: Mapping[int, Progress]) -> None:
        """Write all partitions that are not being loaded. An OSError is logged and not raised, because the table works without
        snapshots."""
        places = {
            partition: Place(each.topic_id, partition, each.applied, each.applied_epoch, each.fresh_at_ms)
            for partition, each in progress.items()
            if each.phase is Phase.LIVE
        }
        everything = rows.everything()
        # Places and rows were taken in one step. The rows are immutable, so the thread may read them while the table changes.
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, places, everything)
        try:
            await asyncio.shield(self._writing)
        except OSError as e:
            logger.warning("table.snapshot_failed", topic=self._topic, path=self._files.path(0), reason=str(e))

    def _write(self, places: Mapping[int, Place], everything: list[tuple[bytes, Row]]) -> None:
        by_partition: dict[int, list[tuple[bytes, Row]]] = {partition: [] for partition in places}
        for item in everything:
            found = by_partition.get(item[1].partition)
            if found is not None:
                found.append(item)
        for partition, place in places.items():
            self._files.write(partition, encode(place, by_partition[partition]))
            self.written += 1
