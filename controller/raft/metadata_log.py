"""The metadata log on the disk: a `Log` of the storage room, and the snapshots beside it.

    __cluster_metadata-0/
        00000000000000000000.log .index .timeindex         the storage log
        00000000000000001200-0000000005.checkpoint         a snapshot (`snapshots.py`); the two newest are kept
        quorum-state                                       `state_store.py`
        recovery-point-offset-checkpoint                   `flushed_point.py`: how far the log was flushed

The log starts at 0 or at the end of the older of the kept snapshots. So a follower that is behind by less than the distance of
two snapshots still catches up from the log.

A snapshot is installed in two steps, and a crash may fall between them: first it gets its name (durably), then the log is
emptied and restarted at the snapshot's end. So at the start, if the log does not reach the newest snapshot, it is restarted
there.

Damage (a flipped bit, a read that returned old bytes): every flushed record is a promise of this voter, because leaders count
its fetches and candidates its votes. If it cut off or fetched again a damaged record while it votes, the other voters could
elect a leader without that record although it was committed. So a voter that finds damage stops (`DamagedMetadataLog`), and
does not start again: nothing is cut or repaired. The operator decides what to do. With an emptied directory the voter starts
without a vote (`voter_recovery.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.controller.metadata.records import METADATA_TOPIC, METADATA_TOPIC_ID
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.flushed_point import FlushedPoint
from strandline.controller.raft.log import EpochEnd
from strandline.controller.raft.snapshots import PART_SUFFIX, check_snapshot, parse_snapshot_name, snapshot_name, sort_key
from strandline.protocol.errors import BrokerError, UsageError
from strandline.protocol.frames import Buffer
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import SnapshotId
from strandline.storage.disk import make_dirs_durably
from strandline.storage.files import Files, join
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.log_config import FOREVER
from strandline.storage.log.segment import DamagedBatch
from strandline.storage.metrics import LogMetrics

logger = get_logger(__name__)

DIRECTORY = f"{METADATA_TOPIC}-0"
SNAPSHOTS_KEPT = 2
HELP = "restore it, or, while a majority of the other controllers is healthy, empty this directory as a whole"


class DamagedMetadataLog(UsageError):
    """This voter's log differs from what was written. The node stops, because a repair could lose committed records."""


def _damaged(directory: str, offset: int) -> DamagedMetadataLog:
    return DamagedMetadataLog(f"the metadata log in {directory} is damaged at offset {offset}: {HELP}")


class MetadataLog:
    """`RaftLog` on the disk. Every method may raise `DamagedMetadataLog`; in that case it has changed nothing."""

    def __init__(self, files: Files, directory: str, log: Log, snapshots: list[SnapshotId], point: FlushedPoint) -> None:
        self._files = files
        self._directory = directory
        self.log = log
        """The storage log below. Other modules only read it: an append or a truncation there would miss the flushed point."""
        self._point = point
        self._snapshots = snapshots
        """The complete snapshots on the disk, by end offset."""
        self.flushed_offset = log.log_end_offset
        """Every record below is on the disk. Never above the log's end, because records appended there later are not flushed."""

    @classmethod
    def open(cls, files: Files, data_dir: str, config: RaftConfig, *, committed_offset: int, now_ms: int) -> MetadataLog:
        """Open the log and recover it after a crash; every record below `committed_offset` is known to be committed.

        Raises DamagedMetadataLog for damage below `committed_offset` or below what was flushed; damage above is cut off. Raises
        UsageError if the log does not start at 0 and there is no snapshot of the records before its start."""
        directory = join(data_dir, DIRECTORY)
        make_dirs_durably(files, directory)
        if not files.list(directory):
            files.fsync_dir(data_dir)  # an earlier start may have ended before this fsync
        snapshots = _find_snapshots(files, directory)
        point = FlushedPoint(files, directory)
        try:
            opened = cls._open(files, directory, config, snapshots, point, committed_offset, now_ms)
        except DamagedBatch as e:
            point.close()
            raise _damaged(directory, e.offset) from None
        except BaseException:
            point.close()
            raise
        try:
            opened._recover(committed_offset)
        except BaseException:
            opened.abandon()
            raise
        return opened

    @classmethod
    def _open(
        cls,
        files: Files,
        directory: str,
        config: RaftConfig,
        snapshots: list[SnapshotId],
        point: FlushedPoint,
        committed_offset: int,
        now_ms: int,
    ) -> MetadataLog:
        promised = max(committed_offset, point.offset)
        # Records that a complete snapshot covers may be damaged or partly removed: the log restarts at the snapshot's end.
        covered = snapshots[-1].end_offset if snapshots else 0
        # The new log start of a `clean` that may have been interrupted: the segments below may be partly removed.
        first = snapshots[-SNAPSHOTS_KEPT].end_offset if len(snapshots) >= SNAPSHOTS_KEPT else 0
        log = Log.open(
            files,
            directory,
            topic=METADATA_TOPIC,
            partition=0,
            topic_id=METADATA_TOPIC_ID,
            config=LogConfig(
                segment_bytes=config.segment_bytes,
                oversized_segments=True,  # a decision is one batch of any size
                max_message_bytes=config.batch_bytes_max,
                retention_ms=-1,  # only `clean` removes records
                message_timestamp_after_max_ms=FOREVER,  # metadata is accepted whatever the clocks say
            ),
            log_start_offset=first,
            recovery_point=first,
            high_watermark=promised,
            clean_shutdown=False,
            keep_below=promised if promised > covered else 0,  # damage below raises DamagedBatch and is not cut off
            now_ms=now_ms,
        )
        return cls(files, directory, log, snapshots, point)

    def _recover(self, committed_offset: int) -> None:
        if self.log.corrupt_at is not None:
            raise self._damaged(self.log.corrupt_at)
        end = max([self.log.log_end_offset, *[snapshot.end_offset for snapshot in self._snapshots]])
        if end < self._point.offset:
            raise DamagedMetadataLog(
                f"the metadata log in {self._directory} ends at offset {end}, but was flushed up to {self._point.offset}: "
                f"it has lost records that this voter has promised to keep; {HELP}"
            )
        latest = self.latest_snapshot_id
        if latest is not None and (self.log.latest_epoch < latest.epoch or self.log.log_end_offset < latest.end_offset):
            if self.log.log_end_offset > latest.end_offset or self.log.log_start_offset != latest.end_offset:
                self.install_snapshot(latest)
        elif self.start_offset > 0 and self.first_snapshot_id is None:
            raise UsageError(
                f"the metadata log in {self._directory} starts at offset {self.start_offset}, and no snapshot ends there"
            )
        if latest is not None:
            self.log.update_high_watermark(latest.end_offset)
        with self._undamaged():
            self.log.rewrite_from(max(committed_offset, self.start_offset))
        self.log.flush()
        self._flushed()
        self._point.sync()

    def _damaged(self, offset: int) -> DamagedMetadataLog:
        return _damaged(self._directory, offset)

    @contextmanager
    def _undamaged(self) -> Iterator[None]:
        """Raise DamagedMetadataLog if the log finds damage in this block, whether it raises an error or only sets its mark."""
        try:
            yield
        except BrokerError:
            if self.log.corrupt_at is None:
                raise
        if self.log.corrupt_at is not None:
            raise self._damaged(self.log.corrupt_at) from None

    def _flushed(self) -> None:
        self.flushed_offset = self.log.log_end_offset
        self._point.note(self.flushed_offset)

    # -- the log -------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def metrics(self) -> LogMetrics:
        return self.log.metrics

    @property
    def last_epoch(self) -> int:
        return max(self.log.latest_epoch, self._base_epoch)

    @property
    def _base_epoch(self) -> int:
        first = self.first_snapshot_id
        return first.epoch if first else 0

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        if epoch >= self.last_epoch:
            return EpochEnd(self.last_epoch, self.end_offset)
        known, end_offset = self.log.end_offset_for_epoch(epoch)
        if known < self._base_epoch or end_offset <= self.start_offset:
            return EpochEnd(self._base_epoch, self.start_offset)
        return EpochEnd(known, end_offset)

    def append_as_leader(self, records: memoryview, epoch: int) -> int:
        with self._undamaged():
            info = self.log.append_as_leader(records, epoch, 0)
        return info.last_offset

    def append_as_follower(self, records: memoryview, max_epoch: int) -> int:
        with self._undamaged():
            self.log.append_as_follower(records, max_epoch)
        return self.log.log_end_offset

    def read(self, offset: int, max_bytes: int) -> tuple[list[Buffer], int]:
        return self.read_below(offset, max_bytes, self.log.log_end_offset)

    def read_below(self, offset: int, max_bytes: int, end_offset: int) -> tuple[list[Buffer], int]:
        """Like `read`, but only batches below `end_offset`."""
        with self._undamaged():
            found = self.log.read(offset, max_bytes, end_offset)
        return list(found.buffers), found.size

    def truncate_to(self, offset: int) -> None:
        with self._undamaged():
            self._point.lower(self.log.end_after_truncation(offset))
            self.log.truncate_to(offset)
        self.flushed_offset = min(self.flushed_offset, self.log.log_end_offset)

    def update_high_watermark(self, offset: int) -> None:
        self.log.update_high_watermark(offset)

    def flush(self) -> None:
        """Flush the log, so that `flushed_offset` is its end."""
        assert self.flushed_offset <= self.log.log_end_offset, "what is counted as flushed is in the log"
        if self.flushed_offset < self.log.log_end_offset:
            self.log.flush()
            self._flushed()

    def close(self) -> None:
        """Flush and close the log of a clean stop. After an error use `abandon`."""
        self.flush()
        self._point.sync()
        self.log.close()
        self._point.close()

    def abandon(self) -> None:
        """Close the files of a failed log without writing to them."""
        self.log.abandon()
        self._point.close()

    # -- snapshots -----------------------------------------------------------------------------------------------------

    @property
    def first_snapshot_id(self) -> SnapshotId | None:
        for snapshot in self._snapshots:
            if snapshot.end_offset == self.start_offset:
                return snapshot
        return None

    @property
    def latest_snapshot_id(self) -> SnapshotId | None:
        return self._snapshots[-1] if self._snapshots else None

    def snapshot_path(self, snapshot_id: SnapshotId) -> str:
        return join(self._directory, snapshot_name(snapshot_id))

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        return self._files.size(self.snapshot_path(snapshot_id)) if snapshot_id in self._snapshots else None

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        file = self._files.open(self.snapshot_path(snapshot_id), create=False)
        try:
            return bytes(file.pread(max_bytes, position))
        finally:
            file.close()

    def load_snapshot(self, snapshot_id: SnapshotId) -> bytes:
        """The whole snapshot, after a check. Raises UsageError if it is damaged."""
        data = self._files.read(self.snapshot_path(snapshot_id))
        try:
            check_snapshot(data)
        except BrokerError as e:
            raise UsageError(f"{self.snapshot_path(snapshot_id)}: {e.message}. Restore it from another controller") from None
        return data

    def create_snapshot(self, snapshot_id: SnapshotId) -> FileSink:
        return FileSink(self, self._files, self.snapshot_path(snapshot_id), snapshot_id)

    def add_snapshot(self, snapshot_id: SnapshotId) -> None:
        """A snapshot has got its name: it can be read and counts for `latest_snapshot_id` from now on."""
        if snapshot_id not in self._snapshots:
            self._snapshots = sorted([*self._snapshots, snapshot_id], key=sort_key)

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        end, epoch = snapshot_id.end_offset, snapshot_id.epoch
        logger.info("quorum.log_restarted_at_snapshot", controller_epoch=epoch, metadata_offset=end)
        self._point.lower(snapshot_id.end_offset)
        self.log.truncate_fully_and_start_at(snapshot_id.end_offset)
        self.log.flush()
        self._flushed()
        self._remove_snapshots([older for older in self._snapshots if older != snapshot_id])

    def clean(self, now_ms: int) -> None:
        """Move the log's start to the older of the kept snapshots, and delete the segments and snapshots before it."""
        kept = self._snapshots[-SNAPSHOTS_KEPT:]
        if len(kept) == SNAPSHOTS_KEPT and kept[0].end_offset > self.start_offset:
            self.log.increment_log_start_offset(kept[0].end_offset)
            for path in self.log.delete_old_segments(now_ms):
                self._files.remove(path)
        self._remove_snapshots([old for old in self._snapshots[:-SNAPSHOTS_KEPT] if old.end_offset != self.start_offset])

    def _remove_snapshots(self, snapshots: list[SnapshotId]) -> None:
        for snapshot_id in snapshots:
            self._snapshots.remove(snapshot_id)
            self._files.remove(self.snapshot_path(snapshot_id))


class FileSink:
    """A snapshot that is being written. `freeze` gives it its name; before that, a crash leaves only a part file."""

    def __init__(self, log: MetadataLog, files: Files, path: str, snapshot_id: SnapshotId) -> None:
        self._log = log
        self.files = files
        self.path = path
        """The path of the snapshot once it is finished."""
        self._part = path.removesuffix(".checkpoint") + PART_SUFFIX
        self.snapshot_id = snapshot_id
        files.remove(self._part)
        self._file = files.open(self._part, create=True)
        self._is_open = True
        self._is_part = True
        """The part file exists."""
        self.size = 0

    def append(self, data: Buffer) -> None:
        self._file.append([data])
        self.size += len(data)

    def freeze(self) -> None:
        try:
            check_snapshot(self.files.read(self._part))
        except BrokerError:
            self.discard()
            raise
        self._file.fsync()
        self._close()
        self.files.rename(self._part, self.path)
        self._is_part = False
        self.files.fsync_dir(self.path.rpartition("/")[0])
        self._log.add_snapshot(self.snapshot_id)

    def discard(self) -> None:
        self._close()
        if self._is_part:
            self._is_part = False
            self.files.remove(self._part)

    def _close(self) -> None:
        if self._is_open:
            self._file.close()
            self._is_open = False


def _find_snapshots(files: Files, directory: str) -> list[SnapshotId]:
    found = []
    for name in files.list(directory):
        snapshot_id = parse_snapshot_name(name)
        if snapshot_id is not None:
            found.append(snapshot_id)
        elif name.endswith(PART_SUFFIX):
            files.remove(join(directory, name))
    return sorted(found, key=sort_key)
