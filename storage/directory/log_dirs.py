"""The data directories of one broker (`log.dirs`), each on a disk of its own (KIP-112).

Every directory has its own identity, lock, checkpoints and clean-shutdown marker (`log_dir.py`), so it fails, and returns after a
restart, without the others. A partition has one log, in one directory. A new log goes to the online directory with the fewest
logs. A *cordoned* directory gets none as long as another one is left (KIP-1066); the logs that it has stay.

A directory is *offline* if it could not be used at the start, or has failed since. Its content is not known then. So while a
directory is offline, a log that may lie in it must not be created in another one: the new log would lack the records of the old
one, and the two would conflict when the directory returns (`may_be_offline`).

A log moves to another directory by a future replica there (`future_logs.py`). If a future replica is found at the start without
the log that it copies, that log is in a directory that is offline or lost, and the copy may lack records of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.storage.checkpoints import read_if_present
from strandline.storage.directory.future_logs import REPLACED_LOG, FutureKey, decode_replaced
from strandline.storage.directory.log_dir import ExistingLog, LogDir, RecordLoss
from strandline.storage.disk import DiskError, Files, join
from strandline.storage.log.log import Log, LogConfig, TailBudget
from strandline.storage.log_names import log_name
from strandline.storage.metrics import LogMetrics

logger = get_logger(__name__)

ALL_LOG_DIRS = "*"
"""The value in `cordoned.log.dirs` that stands for every directory."""


class PlacedLog(NamedTuple):
    """A log and the directory that has it."""

    log_dir: LogDir
    log: ExistingLog


class LogDirs:
    """The open data directories of a broker, at least one, and those that could not be opened."""

    def __init__(self, dirs: Sequence[LogDir], unusable: Mapping[str, str] | None = None) -> None:
        """`unusable`: path -> reason of each directory that could not be used at the start."""
        self.dirs = tuple(dirs)
        """The directories that were opened, in the order of the configuration; some may have failed since."""
        self.unusable = dict(unusable or {})
        self._cordoned: tuple[LogDir, ...] = ()
        self.budget: TailBudget = dirs[0].budget
        """All directories share this memory for recent batches, and the counters in `metrics`."""
        self.metrics: LogMetrics = dirs[0].metrics
        for log_dir in self.dirs:
            log_dir.budget, log_dir.metrics = self.budget, self.metrics

    # -- the directories ----------------------------------------------------------------------------------------------

    @property
    def files(self) -> Files:
        return self.dirs[0].files

    @property
    def online(self) -> list[LogDir]:
        """The directories that were opened and have not failed since."""
        return [log_dir for log_dir in self.dirs if log_dir.offline is None]

    def cordon(self, paths: Sequence[str]) -> None:
        """Place no new log in these directories from now on, and allow new logs in all others again. A path that is not a
        directory of this broker is logged and ignored."""
        wanted = {path.rstrip("/") for path in paths}
        before, self._cordoned = self._cordoned, tuple(one for one in self.dirs if {one.path, ALL_LOG_DIRS} & wanted)
        unknown = sorted(wanted - {one.path for one in self.dirs} - set(self.unusable) - {ALL_LOG_DIRS})
        if self._cordoned != before or unknown:
            logger.info("log_dir.cordoned", log_dirs=[one.path for one in self._cordoned], unknown=unknown)

    def is_cordoned(self, log_dir: LogDir) -> bool:
        """Whether the directory gets no new logs."""
        return log_dir in self._cordoned

    @property
    def cordoned_ids(self) -> tuple[bytes, ...]:
        """The ids of the cordoned directories, in the order of the configuration."""
        return tuple(one.directory_id for one in self._cordoned)

    @property
    def are_several(self) -> bool:
        """Whether the broker is configured with more than one directory."""
        return len(self.dirs) + len(self.unusable) > 1

    @property
    def has_offline(self) -> bool:
        """Whether a directory is offline."""
        return bool(self.unusable) or any(log_dir.offline is not None for log_dir in self.dirs)

    @property
    def offline(self) -> dict[str, str]:
        """Path -> reason of each offline directory."""
        failed = {log_dir.path: str(log_dir.offline) for log_dir in self.dirs if log_dir.offline is not None}
        return {**self.unusable, **failed}

    @property
    def was_clean(self) -> bool:
        """Whether the last process that used the directories stopped in order, as far as every configured directory shows."""
        return not self.unusable and all(log_dir.was_clean for log_dir in self.dirs)

    @property
    def in_doubt(self) -> bool:
        """Whether a log of any directory may have lost records and has not followed a leader or led since."""
        return any(log_dir.in_doubt for log_dir in self.dirs)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last clean shutdown; -1 unless all directories have the same one (KIP-966)."""
        epochs = {log_dir.previous_broker_epoch for log_dir in self.dirs}
        return -1 if self.unusable or len(epochs) > 1 else epochs.pop()

    @property
    def logs(self) -> Iterator[Log]:
        """The open logs of all directories, also of failed ones."""
        return (log for log_dir in self.dirs for log in log_dir.logs.values())

    def of(self, log: Log) -> LogDir:
        """The directory of an open log."""
        return next(log_dir for log_dir in self.dirs if log_dir.failure is log.failure)

    def of_error(self, error: DiskError) -> list[LogDir]:
        """The directories that a disk error takes offline: the one that contains its path. An error at any other path may concern
        every disk, so it takes all of them offline."""
        found = [log_dir for log_dir in self.dirs if log_dir.offline is error or _is_inside(error.path, log_dir.path)]
        return found or list(self.dirs)

    def check_duplicates(self) -> None:
        """Raise UsageError, in one sentence, if two directories hold the same partition."""
        seen: dict[ExistingLog, LogDir] = {}
        for log_dir, log in self.existing_logs():
            other = seen.setdefault(log, log_dir)
            if other is not log_dir:
                name = log_name(log.topic, log.partition)
                raise UsageError(
                    f"{name} is in two data directories, {other.path}/{name} and {log_dir.path}/{name}: "
                    "move the one with fewer records out of its directory, and start again"
                )

    def finish_moves(self) -> None:
        """Finish the moves between directories that the end of the last process has interrupted after their point of no return:
        delete each log that another one has replaced. A log in an offline directory stays until the directory returns."""
        for log_dir in self.dirs if self.are_several else ():
            for log in log_dir.existing_logs():
                self.settle_replaced(log_dir, log)

    def settle_replaced(self, log_dir: LogDir, log: ExistingLog) -> bool:
        """If this log was moved here, delete the log that it has replaced, then its own `replaced-log`. False if the replaced log
        is in an offline directory, or the disk fails; the next start or move tries again."""
        note = join(join(log_dir.path, log_name(log.topic, log.partition)), REPLACED_LOG)
        try:
            data = read_if_present(log_dir.files, note)
            if data is None:
                return True
            source = self._with_id(decode_replaced(data))
            if source is None:
                return False
            if source is not log_dir:
                source.later_removed(source.delete_log(*log))
                source.files.fsync_dir(source.path)
            log_dir.files.remove(note)
            log_dir.files.fsync_dir(join(log_dir.path, log_name(log.topic, log.partition)))
        except DiskError as e:
            for each in self.of_error(e):
                each.fail(e)
            return False
        return True

    def _with_id(self, directory_id: bytes | None) -> LogDir | None:
        return next((one for one in self.online if one.directory_id == directory_id), None)

    def at(self, path: str) -> LogDir | None:
        """The directory of this path that was opened; None if there is none."""
        return next((one for one in self.dirs if one.path == path.rstrip("/")), None)

    def record_loss(self, *, trust_only_clean_stops: bool = False) -> RecordLoss | None:
        """The loss of records in all directories, as `LogDir.record_loss` returns it for one; None if nothing is lost."""
        losses = [each.record_loss(trust_only_clean_stops=trust_only_clean_stops) for each in self.online]
        found = [loss for loss in losses if loss is not None]
        if abandoned := self.abandoned_futures():
            found.append(RecordLoss(True, tuple(abandoned)))
        if not found:
            return None
        concerns_all = any(not loss.partitions for loss in found)
        partitions = () if concerns_all else tuple(key for loss in found for key in loss.partitions)
        return RecordLoss(any(loss.is_certain for loss in found), partitions)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def existing_logs(self) -> list[PlacedLog]:
        """The logs that have a directory here, by data directory, topic and partition."""
        return [PlacedLog(log_dir, log) for log_dir in self.dirs for log in log_dir.existing_logs()]

    def abandoned_futures(self) -> list[FutureKey]:
        """The future replicas without the log that they copy. The metadata may name their directory already."""
        if not any(len(log_dir.futures) for log_dir in self.dirs):
            return []
        present = {(log.topic_id, log.partition) for _, log in self.existing_logs()}
        return [key for log_dir in self.dirs for key in log_dir.futures.keys if key not in present]

    def future_of(self, key: FutureKey) -> LogDir | None:
        """The directory with the partition's future replica; None if it has none."""
        return next((one for one in self.dirs if key in one.futures), None)

    def find(self, topic: str, partition: int, topic_id: bytes) -> LogDir | None:
        """The directory that has a log of the partition; None if no directory that was opened has one."""
        return next((one for one in self.dirs if one.topic_id_of(topic, partition) == topic_id), None)

    def may_be_offline(self, topic: str, partition: int, topic_id: bytes) -> bool:
        """Whether the partition's log is in an offline directory, or may be in one."""
        found = self.find(topic, partition, topic_id)
        return self.has_offline if found is None else found.offline is not None

    def open_log(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, now_ms: int, *, may_be_new: bool = True
    ) -> Log:
        """Open the partition's log in its directory, or create it; see `LogDir.open_log`."""
        log_dir = self.find(topic, partition, topic_id) or self._place(topic, partition)
        return log_dir.open_log(topic, partition, topic_id, config, now_ms, may_be_new=may_be_new)

    def _place(self, topic: str, partition: int) -> LogDir:
        """The directory for a new log. If a directory has a log of this name, but of another topic id, it is chosen, because its
        log must be set aside first."""
        online = self.online or list(self.dirs)
        stale = next((one for one in online if one.topic_id_of(topic, partition) is not None), None)
        return stale or min(online, key=lambda one: (self.is_cordoned(one), one.log_count))

    def delete_log(self, topic: str, partition: int, topic_id: bytes) -> str | None:
        """Rename the log's directory; see `LogDir.delete_log`."""
        log_dir = self.find(topic, partition, topic_id)
        return None if log_dir is None else log_dir.delete_log(topic, partition, topic_id)

    def set_aside(self, topic: str, partition: int, reason: str) -> None:
        """Rename the logs of this name, in all online directories; see `LogDir.set_aside`."""
        for log_dir in self.online:
            log_dir.set_aside(topic, partition, reason)

    # -- end ----------------------------------------------------------------------------------------------------------

    def on_registered(self) -> None:
        """Called when a controller has registered the broker with the result of `record_loss`. Raises DiskError."""
        for log_dir in self.online:
            log_dir.on_registered()

    def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all directories; see `LogDir.close`. Raises the first DiskError after all are closed."""
        self._close_each(lambda log_dir: log_dir.close(clean, broker_epoch))

    def close_as_found(self) -> None:
        """Close all directories after a start that has failed, each with the marker that it had."""
        self._close_each(lambda log_dir: log_dir.close(log_dir.was_clean, log_dir.previous_broker_epoch))

    def _close_each(self, close: Callable[[LogDir], None]) -> None:
        errors: list[DiskError] = []
        for log_dir in self.dirs:
            try:
                close(log_dir)
            except DiskError as e:
                errors.append(e)
        if errors:
            raise errors[0]


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
