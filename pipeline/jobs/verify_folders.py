"""Finds the data directories of brokers, and reads what they say of their logs: names, checkpoints, ids. Nothing is written.

    /var/lib/strandline                      a data directory: it has meta.properties, or folders of logs
    ./cluster                                of `strandline up`: ./cluster/broker-1/data is found, controllers are passed over
    /backup                                  with copies from other machines: /backup/broker-7, /backup/broker-8/data

The checkpoints are read before the logs: a log that grows meanwhile is then never behind its own checkpoint.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from strandline.pipeline.jobs.verify_checks import Facts
from strandline.pipeline.jobs.verify_log import segments
from strandline.pipeline.jobs.verify_result import Finding
from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import (
    BOOT_ID,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
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
OUR_FILES = {BOOT_ID, CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, META_PROPERTIES, LOCK}
SET_ASIDE = ("-stray", "-delete")
DEPTH = 2
"""How many folders below a given one data directories are looked for."""


@dataclass(slots=True)
class Directory:
    """One broker's data directory."""

    path: Path
    broker: str
    """Its node id; the folder's name if nothing says the id."""
    cluster_id: str | None = None
    is_clean: bool = False
    is_running: bool = False
    logs: dict[TopicPartition, Path] = field(default_factory=dict)
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    recovery_points: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def facts(self, place: TopicPartition) -> Facts:
        folder = self.logs[place]
        epochs = _read(folder / LEADER_EPOCHS)
        topic_id = PartitionMetadata.decode(_read(folder / PARTITION_METADATA) or b"")
        return Facts(
            broker=self.broker,
            path=str(folder),
            topic=place[0],
            partition=place[1],
            topic_id=None if topic_id is None else uuid_to_text(topic_id),
            high_watermark=self.high_watermarks.get(place),
            recovery_point=self.recovery_points.get(place),
            log_start=self.log_starts.get(place),
            epochs=() if epochs is None else LeaderEpochCheckpoint.decode(epochs),
            is_clean=self.is_clean and not self.is_running,
        )


def find(given: Iterable[str | os.PathLike[str]]) -> list[Directory]:
    """The data directories in these folders. UsageError if a folder does not exist or has none."""
    paths: dict[Path, None] = {}
    for name in given:
        root = Path(name)
        if not root.exists():
            raise UsageError(f"there is no folder {os.fspath(name)}")
        if not root.is_dir():
            raise UsageError(f"{os.fspath(name)} is a file; give a broker's data directory, or the folder of `strandline up`")
        below = [path for path in _below(root, DEPTH) if not _is_controllers(path)]
        if not any(map(_is_brokers, below)):
            raise UsageError(
                f"{os.fspath(name)} has no logs: give a broker's data directory (with folders such as orders-0), or a folder "
                "that has such directories in it"
            )
        paths |= dict.fromkeys(path.resolve() for path in below)
    return opened(paths)


def opened(paths: Iterable[Path]) -> list[Directory]:
    """These data directories, as they are now."""
    directories = [_open(path) for path in paths]
    _tell_apart(directories)
    return directories


def _below(root: Path, depth: int) -> Iterator[Path]:
    """The data directories in a folder, and empty folders, which may have been some; nothing is looked for inside of one."""
    if (root / META_PROPERTIES).exists() or any(_logs(root)) or not any(root.iterdir()):
        yield root
    elif depth:
        for path in sorted(root.iterdir()):
            if path.is_dir():
                yield from _below(path, depth - 1)


def _is_brokers(path: Path) -> bool:
    """A directory that has lost all its logs is a broker's, too, if its checkpoint names some."""
    return any(_logs(path)) or bool(OffsetCheckpoint.decode(_read(path / HIGH_WATERMARKS) or b""))


def _is_controllers(path: Path) -> bool:
    """A directory with the log of the metadata alone."""
    return (path / f"{METADATA_TOPIC}-0").is_dir() and not _is_brokers(path)


def _logs(path: Path) -> Iterator[tuple[TopicPartition, Path]]:
    for folder in sorted(path.iterdir()):
        place = parse_log_name(folder.name)
        with suppress(FileNotFoundError):  # Deleted since the listing.
            if place is not None and place[0] != METADATA_TOPIC and folder.is_dir() and _is_log(folder):
                yield place, folder


def _is_log(folder: Path) -> bool:
    """A folder of the right name is not enough: `broker-1` is the name of a log as well."""
    return (folder / PARTITION_METADATA).exists() or bool(segments(folder))


def _open(path: Path) -> Directory:
    name = path.parent.name if path.name == "data" else path.name
    directory = Directory(path, name)
    directory.is_clean = (path / CLEAN_SHUTDOWN).exists()
    directory.is_running = is_locked(path / LOCK)
    _identify(directory)
    directory.high_watermarks = _offsets(directory, HIGH_WATERMARKS)
    directory.recovery_points = _offsets(directory, RECOVERY_POINTS)
    directory.log_starts = _offsets(directory, LOG_STARTS)
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
    """Whether a process holds the lock of a data directory. The file is opened for reading, and a shared lock is tried."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


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


def _offsets(directory: Directory, name: str) -> Mapping[TopicPartition, int]:
    data = _read(directory.path / name)
    offsets = {} if data is None else OffsetCheckpoint.decode(data)
    if offsets is None:
        directory.findings.append(_unreadable(directory, name))
    return offsets or {}


def _unreadable(directory: Directory, name: str, text: str = "") -> Finding:
    path = str(directory.path / name)
    return Finding(kind="checkpoint_unreadable", brokers=(directory.broker,), detail=text or name, path=path)


def _entries(directory: Directory) -> Iterator[Finding]:
    """What else is in the directory."""
    for path in sorted(directory.path.iterdir()):
        place = parse_log_name(path.name)
        if path.name in OUR_FILES or path.suffix == ".tmp" or place in directory.logs or (place and place[0] == METADATA_TOPIC):
            continue
        if path.name.endswith(SET_ASIDE) and path.is_dir():
            with suppress(FileNotFoundError):  # The broker is removing it.
                size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
                yield Finding(kind="stray", brokers=(directory.broker,), detail=f"{path.name}, {size:,} bytes", path=str(path))
        else:
            yield Finding(kind="unknown_entry", brokers=(directory.broker,), detail=path.name, path=str(path))


def _tell_apart(directories: Sequence[Directory]) -> None:
    """Two directories of one node get a name each."""
    counts = Counter(directory.broker for directory in directories)
    for directory in directories:
        if counts[directory.broker] > 1:
            directory.findings.append(Finding(kind="node_id", brokers=(directory.broker,), detail=str(directory.path)))
            directory.broker = f"{directory.broker} ({directory.path})"


def across(directories: Sequence[Directory]) -> Iterator[Finding]:
    """What only shows when all directories are looked at together."""
    ids = {directory.cluster_id for directory in directories if directory.cluster_id is not None}
    if len(ids) > 1:
        told = "; ".join(f"broker {one.broker}: {one.cluster_id}" for one in directories)
        yield Finding(kind="cluster_id", brokers=tuple(one.broker for one in directories), detail=told)
    everywhere = {place for directory in directories for place in directory.logs}
    for directory in directories:
        for place, offset in sorted(directory.high_watermarks.items()):
            if offset and place not in directory.logs:
                # An orderly stop leaves only logs that exist in the checkpoint; before that a deleted topic may still be in it.
                is_lost = place in everywhere or (directory.is_clean and not directory.is_running)
                yield _missing("replica_missing" if is_lost else "log_missing", directory, place, offset, directories)


def _missing(kind: str, directory: Directory, place: TopicPartition, offset: int, directories: Sequence[Directory]) -> Finding:
    return Finding(
        kind=kind,
        topic=place[0],
        partition=place[1],
        brokers=(directory.broker,),
        first=0,
        end=offset,
        others=tuple(one.broker for one in directories if place in one.logs),
        path=str(directory.path / f"{place[0]}-{place[1]}"),
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
