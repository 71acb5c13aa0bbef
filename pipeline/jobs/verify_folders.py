"""Finds brokers' data directories and reads their metadata: names of logs, checkpoints, ids. Nothing is written.

    /var/lib/strandline                      a data directory: it has meta.properties, or folders of logs
    ./cluster                                of `strandline up`: ./cluster/broker-1/data is found, controllers are skipped
    /backup                                  with copies from other machines: /backup/broker-7, /backup/broker-8/data

Checkpoints are read before logs, so a log that grows in between cannot end before its own checkpoint.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from strandline.pipeline.jobs.verify_checks import Facts
from strandline.pipeline.jobs.verify_log import segments
from strandline.pipeline.jobs.verify_result import Finding
from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import (
    BOOT_ID,
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REMOVED_TOMBSTONES,
    SUPERSEDING_RECORDS,
    LeaderEpochCheckpoint,
    MetaProperties,
    OffsetCheckpoint,
    PartitionMetadata,
    TopicPartition,
    uuid_to_text,
)
from strandline.storage.log_names import parse_log_name

METADATA_TOPIC = "__cluster_metadata"
LOCK = ".lock"
SET_ASIDE = ("-stray", "-delete")
OUR_FILES = {
    BOOT_ID, CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, META_PROPERTIES, LOCK, FIRST_DIRTY_OFFSETS,
    REMOVED_TOMBSTONES, SUPERSEDING_RECORDS,
}  # fmt: skip
DEPTH = 2
"""How many levels of folders below a given one are searched for data directories."""


@dataclass(slots=True)
class Directory:
    """One broker's data directory."""

    path: Path
    broker: str
    """The node id; the folder's name if the id is unknown. Two directories of one node have their paths added."""
    cluster_id: str | None = None
    is_clean: bool = False
    is_running: bool = False
    is_kafkas: bool = False
    """Whether only brokers of Apache Kafka have used the directory. A broker of ours leaves its machine's boot id there."""
    logs: dict[TopicPartition, Path] = field(default_factory=dict)
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    recovery_points: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    first_dirty_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    removed_tombstones: Mapping[TopicPartition, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def facts(self, tp: TopicPartition) -> Facts:
        """The metadata of one log of this directory."""
        folder = self.logs[tp]
        epochs = _read(folder / LEADER_EPOCHS)
        topic_id = PartitionMetadata.decode(_read(folder / PARTITION_METADATA) or b"")
        return Facts(
            broker=self.broker,
            path=str(folder),
            topic=tp[0],
            partition=tp[1],
            topic_id=None if topic_id is None else uuid_to_text(topic_id),
            high_watermark=self.high_watermarks.get(tp),
            recovery_point=self.recovery_points.get(tp),
            log_start=self.log_starts.get(tp),
            first_dirty=self.first_dirty_offsets.get(tp),
            tombstones_removed_below=self.removed_tombstones.get(tp),
            epochs=() if epochs is None else LeaderEpochCheckpoint.decode(epochs),
            is_clean=self.is_clean and not self.is_running,
            may_have_gaps=self.is_kafkas,
        )


def find(given: Iterable[str | os.PathLike[str]]) -> list[Directory]:
    """The data directories in these folders. Raises UsageError if a folder does not exist or has no logs."""
    paths: dict[Path, None] = {}
    for name in given:
        root = Path(name)
        if not root.exists():
            raise UsageError(f"there is no folder {os.fspath(name)}")
        if not root.is_dir():
            raise UsageError(f"{os.fspath(name)} is a file: give a broker's data directory, or the folder of `strandline up`")
        below = [path for path in _below(root, DEPTH) if not is_controllers(path)]
        if not any(map(_is_brokers, below)):
            raise UsageError(
                f"{os.fspath(name)} has no logs: give a broker's data directory (with folders such as orders-0), or a folder "
                "that has such directories in it"
            )
        paths |= dict.fromkeys(path.resolve() for path in below)
    return opened(paths)


def opened(paths: Iterable[Path]) -> list[Directory]:
    """Reads the metadata of these data directories as it is now."""
    directories = [_open(path) for path in paths]
    _make_names_unique(directories)
    return directories


def _below(root: Path, depth: int) -> Iterator[Path]:
    """The data directories in a folder, and empty folders, which may be data directories that lost everything. A data directory
    is not searched for others."""
    if (root / META_PROPERTIES).exists() or any(_logs(root)) or not any(root.iterdir()):
        yield root
    elif depth:
        for path in sorted(root.iterdir()):
            if path.is_dir():
                yield from _below(path, depth - 1)


def _is_brokers(path: Path) -> bool:
    """Whether it is a broker's data directory: it has logs, or a checkpoint that names logs, which are lost then."""
    return any(_logs(path)) or bool(OffsetCheckpoint.decode(_read(path / HIGH_WATERMARKS) or b""))


def is_controllers(path: Path) -> bool:
    """Whether it is a controller's data directory: its only log is that of the metadata."""
    return (path / f"{METADATA_TOPIC}-0").is_dir() and not _is_brokers(path)


def _logs(path: Path) -> Iterator[tuple[TopicPartition, Path]]:
    for folder in sorted(path.iterdir()):
        tp = parse_log_name(folder.name)
        with suppress(FileNotFoundError):  # Deleted since the listing.
            if tp is not None and tp[0] != METADATA_TOPIC and folder.is_dir() and _is_log(folder):
                yield tp, folder


def _is_log(folder: Path) -> bool:
    """Whether a folder has the files of a log. Its name proves nothing: `broker-1` could be partition 1 of a topic `broker`."""
    return (folder / PARTITION_METADATA).exists() or bool(segments(folder))


def _open(path: Path) -> Directory:
    name = path.parent.name if path.name == "data" else path.name
    directory = Directory(path, name)
    directory.is_clean = (path / CLEAN_SHUTDOWN).exists()
    directory.is_running = is_locked(path / LOCK)
    # Apache Kafka creates the cleaner's checkpoint in each data directory.
    directory.is_kafkas = (path / FIRST_DIRTY_OFFSETS).exists() and not (path / BOOT_ID).exists()
    _identify(directory)
    directory.high_watermarks = _offsets(directory, HIGH_WATERMARKS)
    directory.recovery_points = _offsets(directory, RECOVERY_POINTS)
    directory.log_starts = _offsets(directory, LOG_STARTS)
    directory.first_dirty_offsets = _offsets(directory, FIRST_DIRTY_OFFSETS)
    directory.removed_tombstones = _offsets(directory, REMOVED_TOMBSTONES, "tombstones_unreadable")
    directory.logs = dict(_logs(path))
    directory.findings += _entries(directory)
    if not directory.logs and not directory.high_watermarks:
        directory.findings.append(Finding(kind="no_logs", brokers=(directory.broker,), path=str(path), detail=str(path)))
    elif directory.is_running:
        directory.findings.append(Finding(kind="running", brokers=(directory.broker,), path=str(path)))
    elif not directory.is_clean:
        directory.findings.append(Finding(kind="unclean", brokers=(directory.broker,), path=str(path)))
    return directory


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a data directory. The test opens the file for reading and tries a shared lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def held(path: Path, node: str = "a broker") -> Iterator[None]:
    """Holds a shared lock on a data directory, so that no node starts on it. Raises UsageError if one runs on it."""
    try:
        file = (path / LOCK).open("rb")
    except FileNotFoundError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            other = ", or use `strandline pipeline verify`" if node == "a broker" else ""
            raise UsageError(f"{node} is running on {path}: stop it first{other}") from None
        yield


def _identify(directory: Directory) -> None:
    path = directory.path / META_PROPERTIES
    data = _read(path)
    if data is None:
        return
    try:
        meta = MetaProperties.decode(data, str(path))
    except UsageError as e:
        directory.findings.append(_unreadable(directory, META_PROPERTIES, str(e)))
        return
    directory.broker, directory.cluster_id = str(meta.node_id), meta.cluster_id


def cleaned(folder: Path) -> Iterable[TopicPartition]:
    """The logs of a data directory that the cleaner's checkpoint names. An unreadable checkpoint counts as empty, because it only
    holds derived values."""
    return OffsetCheckpoint.decode(_read(folder / FIRST_DIRTY_OFFSETS) or b"") or ()


def _offsets(directory: Directory, name: str, kind: str = "checkpoint_unreadable") -> Mapping[TopicPartition, int]:
    data = _read(directory.path / name)
    is_empty_of_kafka = (
        data == b"" and directory.is_kafkas
    )  # Kafka's broker takes a checkpoint of 0 bytes, which a kill may leave behind, for one without entries
    offsets = {} if data is None or is_empty_of_kafka else OffsetCheckpoint.decode(data)
    if offsets is None:
        directory.findings.append(_unreadable(directory, name, kind=kind))
    return offsets or {}


def _unreadable(directory: Directory, name: str, text: str = "", kind: str = "checkpoint_unreadable") -> Finding:
    path = str(directory.path / name)
    return Finding(kind=kind, brokers=(directory.broker,), detail=text or name, path=path)


def _entries(directory: Directory) -> Iterator[Finding]:
    """A note for each entry that is neither a log nor a file of the broker."""
    for path in sorted(directory.path.iterdir()):
        tp = parse_log_name(path.name)
        if path.name in OUR_FILES or path.suffix == ".tmp" or tp in directory.logs or (tp and tp[0] == METADATA_TOPIC):
            continue
        if path.name.endswith(SET_ASIDE) and path.is_dir():
            with suppress(FileNotFoundError):  # The broker is removing it.
                size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
                yield Finding(kind="stray", brokers=(directory.broker,), detail=f"{path.name}, {size:,} bytes", path=str(path))
        else:
            yield Finding(kind="unknown_entry", brokers=(directory.broker,), detail=path.name, path=str(path))


def _make_names_unique(directories: Sequence[Directory]) -> None:
    """Reports directories of the same node, and adds their paths to their names."""
    counts = Counter(directory.broker for directory in directories)
    for directory in directories:
        if counts[directory.broker] > 1:
            directory.findings.append(Finding(kind="node_id", brokers=(directory.broker,), detail=str(directory.path)))
            directory.broker = f"{directory.broker} ({directory.path})"


def across(directories: Sequence[Directory]) -> Iterator[Finding]:
    """The findings that need all directories: different clusters, and logs that a checkpoint names but that are missing."""
    ids = {directory.cluster_id for directory in directories if directory.cluster_id is not None}
    if len(ids) > 1:
        detail = "; ".join(f"broker {one.broker}: {one.cluster_id}" for one in directories)
        yield Finding(kind="cluster_id", brokers=tuple(one.broker for one in directories), detail=detail)
    everywhere = {tp for directory in directories for tp in directory.logs}
    for directory in directories:
        for tp, offset in sorted(directory.high_watermarks.items()):
            if offset and tp not in directory.logs:
                # At a clean shutdown the checkpoint names only logs that exist; until then it may still name a deleted topic.
                is_lost = tp in everywhere or (directory.is_clean and not directory.is_running)
                yield _missing("replica_missing" if is_lost else "log_missing", directory, tp, offset, directories)


def _missing(kind: str, directory: Directory, tp: TopicPartition, offset: int, directories: Sequence[Directory]) -> Finding:
    return Finding(
        kind=kind,
        topic=tp[0],
        partition=tp[1],
        brokers=(directory.broker,),
        first=0,
        end=offset,
        others=tuple(one.broker for one in directories if tp in one.logs),
        path=str(directory.path / f"{tp[0]}-{tp[1]}"),
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
