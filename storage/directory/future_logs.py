"""The future replicas of a data directory: copies of logs that are being moved there from other directories of the broker.

    orders-0.<topic id>-future/    a copy in progress; it is never served
    orders-0/replaced-log          in a log that was moved here: the id of the directory whose log it replaces

The last steps of a move rename in two directories, on two disks, and the process may end between any two of them:

    1. target    orders-0.<id>-future/replaced-log is written     a start finds a future replica, and the old log counts
    2. target    orders-0.<id>-future  ->  orders-0               from here on the new log counts, because of `replaced-log`
    3. source    orders-0  ->  orders-0.<id>-delete               a start does this if it finds both logs
    4. target    orders-0/replaced-log is removed

Each step is durable before the next one. If step 2 fails, it may have been done nevertheless, so the old log takes no more
records. Step 4 comes before the next move of the log begins, because two logs that name each other could not be told apart.

A future replica outlives the process, but not the machine's page cache: it is not flushed before its move ends, so after a boot
it is removed.
"""

from __future__ import annotations

import re
from random import Random
from typing import Protocol

from strandline.storage.checkpoints import PARTITION_METADATA, PartitionMetadata, read_if_present, uuid_from_text, uuid_to_text
from strandline.storage.disk import Files, join
from strandline.storage.log.flushing import DirFailure
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.tail import TailBudget
from strandline.storage.log_names import log_name
from strandline.storage.metrics import LogMetrics

FUTURE_SUFFIX = "-future"
REPLACED_LOG = "replaced-log"
_FUTURE_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})\.[0-9a-f]{32}(\.\d+)?-future\Z", re.ASCII)

FutureKey = tuple[bytes, int]
"""Topic id and partition: a long topic name is shortened in the name of the directory."""


class DataDirectory(Protocol):
    """The part of a data directory (`LogDir`) that its future replicas use."""

    files: Files
    path: str
    budget: TailBudget
    failure: DirFailure
    metrics: LogMetrics
    random: Random | None
    is_same_boot: bool

    def free_name(self, name: str, topic_id: bytes, suffix: str) -> str: ...
    def rename_for_deletion(self, name: str, log: str, topic_id: bytes) -> str: ...
    def later_removed(self, path: str | None) -> None: ...
    def adopt(self, log: Log) -> None: ...
    def rename(self, source: str, target: str) -> None: ...


class FutureLogs:
    """The future replicas in one data directory."""

    def __init__(self, log_dir: DataDirectory) -> None:
        self._log_dir = log_dir
        self._names: dict[FutureKey, str] = {}
        """The directory names that were found or created, by key."""
        self.logs: dict[FutureKey, Log] = {}
        """The future replicas that are open."""

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: FutureKey) -> bool:
        return key in self._names

    @property
    def keys(self) -> list[FutureKey]:
        return sorted(self._names)

    def find(self, name: str) -> bool:
        """Take note of a directory if its name is that of a future replica. Returns whether it is. A future replica that cannot
        be identified is removed."""
        match, log_dir = _FUTURE_NAME.match(name), self._log_dir
        path = join(log_dir.path, name)
        if match is None or not log_dir.files.is_dir(path):
            return False
        data = read_if_present(log_dir.files, join(path, PARTITION_METADATA))
        topic_id = None if data is None else PartitionMetadata.decode(data)
        if topic_id is None or (topic_id, int(match[2])) in self._names:
            log_dir.later_removed(log_dir.rename_for_deletion(name, log_name(match[1], int(match[2])), topic_id or bytes(16)))
        else:
            self._names[topic_id, int(match[2])] = name
        return True

    def recover(self, now_ms: int) -> None:
        """Open the future replicas that an earlier process has left, or remove them if the page cache may have been lost since.
        Raises DiskError."""
        for key in self.keys:
            if not self._log_dir.is_same_boot:
                self._log_dir.later_removed(self.remove(key))
                continue
            self._open(key, _topic_of(self._names[key]), LogConfig(), now_ms)

    def create(self, topic: str, key: FutureKey, config: LogConfig, now_ms: int) -> Log:
        """Begin an empty future replica, which is in no metadata yet. Raises DiskError."""
        log_dir, files = self._log_dir, self._log_dir.files
        name = log_dir.free_name(log_name(topic, key[1]), key[0], FUTURE_SUFFIX)
        files.make_dirs(join(log_dir.path, name))
        files.write(join(join(log_dir.path, name), PARTITION_METADATA), PartitionMetadata.encode(key[0]))
        self._names[key] = name
        return self._open(key, topic, config, now_ms)

    def _open(self, key: FutureKey, topic: str, config: LogConfig, now_ms: int) -> Log:
        """A future replica keeps no recent batches in memory, and does not count in the metrics of the logs."""
        log_dir = self._log_dir
        path = join(log_dir.path, self._names[key])
        log = Log.open(
            log_dir.files,
            path,
            topic=topic,
            partition=key[1],
            topic_id=key[0],
            config=config,
            # Within one boot only the end of the last segment can be torn.
            recovery_point=_last_base_offset(log_dir.files.list(path)),
            clean_shutdown=False,
            now_ms=now_ms,
            budget=TailBudget(0, 0),
            failure=log_dir.failure,
            metrics=LogMetrics(),
            random=log_dir.random,
        )
        log.recovery_point = 0
        log.possible_data_loss = False
        log.unsynced[join(path, PARTITION_METADATA)] = None
        self.logs[key] = log
        return log

    def remove(self, key: FutureKey) -> str | None:
        """Give up a future replica: rename its directory. Returns the new path, which the caller removes outside the event loop;
        None if there is none. Raises DiskError."""
        log, name = self.logs.pop(key, None), self._names.pop(key, None)
        if log is not None:
            log.abandon()
        if name is None:
            return None
        return self._log_dir.rename_for_deletion(name, log_name(_topic_of(name), key[1]), key[0])

    def prepare(self, key: FutureKey, current: Log, source_id: bytes) -> Log:
        """Step 1 of the end of a move: give the future replica all state that its batches do not contain, durably. The current
        log, in the directory `source_id`, has the same records. If this raises DiskError, the current log still counts."""
        log_dir, log = self._log_dir, self.logs[key]
        log.take_over(current)
        log_dir.files.write_atomic(join(log.dir, REPLACED_LOG), encode_replaced(source_id))
        log.sync_names()
        log_dir.adopt(log)
        log.tail.budget, log.metrics = log_dir.budget, log_dir.metrics
        return log

    def promote(self, key: FutureKey) -> None:
        """Step 2: rename the prepared future replica. If this raises DiskError, the directory is offline, and it is not known
        which log counts: from then on, neither accepts records."""
        log_dir, log, name = self._log_dir, self.logs.pop(key), self._names.pop(key)
        target = join(log_dir.path, log_name(log.name, log.partition))
        log.relocate(target)
        log_dir.rename(join(log_dir.path, name), target)

    def close(self) -> None:
        """Release the files. The next process of this boot opens them again."""
        for log in self.logs.values():
            log.abandon()


def encode_replaced(directory_id: bytes) -> bytes:
    return f"version: 0\ndirectory_id: {uuid_to_text(directory_id)}\n".encode()


def decode_replaced(data: bytes) -> bytes | None:
    match = re.fullmatch(rb"version: 0\ndirectory_id: (\S+)\n", data)
    return None if match is None or not match[1].isascii() else uuid_from_text(match[1].decode("ascii"))


def _topic_of(name: str) -> str:
    """The topic in the name of a future replica's directory, which may be shortened."""
    return name.rpartition("-")[0].rpartition("-")[0]


def _last_base_offset(names: list[str]) -> int:
    return max((int(name[:-4]) for name in names if re.fullmatch(r"\d{20}\.log", name)), default=0)
