"""Finds the segment files below a path, and the broker, topic and partition that each belongs to.

    cluster/                          a folder of several data directories, up to three levels deep
      broker-1/data/meta.properties   holds the broker's id, `node.id`
      broker-1/data/orders-0/         the log of a partition, named after topic and partition
        partition.metadata            holds the topic's id
        00000000000000000000.log      a segment, named after its base offset

Folders and files that are not named like logs and segments are ignored: `lost+found`, `orders-0.<id>-delete`, `-stray`,
`.log.deleted`. The metadata log, `__cluster_metadata-0`, belongs to a controller, so it is found only if its topic is named. Each
directory is listed once. A running broker may append, roll and delete segments after that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import META_PROPERTIES, PARTITION_METADATA, MetaProperties, PartitionMetadata, uuid_to_text
from strandline.storage.log_names import parse_log_name

METADATA_TOPIC = "__cluster_metadata"
_SEGMENT = re.compile(r"(\d{20})\.log\Z", re.ASCII)
_DEPTH_MAX = 3
"""Data directories are searched for down to this level below the path. `strandline up` creates them at the second level."""


class SegmentFile(NamedTuple):
    """A segment file, with the size that it had when its directory was listed."""

    path: str
    broker: int | None
    """`node.id` of the data directory. None: it has no readable `meta.properties`."""
    topic: str
    partition: int
    topic_id: str | None
    """The topic's id as Kafka writes ids (22 characters). None: the log has no readable `partition.metadata`."""
    base_offset: int
    size: int
    is_last: bool
    """Whether it has the highest base offset of its log. The broker appends to this segment."""

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(".log") + ".index"


def find_segments(paths: Iterable[str], topics: Collection[str] = (), partitions: Collection[int] = ()) -> list[SegmentFile]:
    """The segments of all logs below the paths, sorted by log and base offset. Empty `topics` or `partitions` select all, except
    the metadata log.

    Raises UsageError, with the path, if a path does not exist, cannot be read, or has no data directory below it.
    """
    found: dict[str, list[SegmentFile]] = {}
    for path in map(os.path.abspath, paths):  # Spark's workers may have another working directory.
        if os.path.isfile(path):
            found[path] = [_single(path)]
        else:
            for folder in _logs(path):
                found[folder] = segments_of(folder)
    segments = {segment.path: segment for of_log in found.values() for segment in of_log}  # Paths may overlap.
    wanted = [segment for segment in segments.values() if _is_wanted(segment, topics, partitions)]
    return sorted(wanted, key=lambda segment: (os.path.dirname(segment.path), segment.base_offset))


def _is_wanted(segment: SegmentFile, topics: Collection[str], partitions: Collection[int]) -> bool:
    in_topics = segment.topic in topics if topics else segment.topic != METADATA_TOPIC
    return in_topics and (not partitions or segment.partition in partitions)


def _logs(path: str) -> Iterator[str]:
    if _is_log(path):
        yield path
        return
    directories = list(_data_directories(path, _DEPTH_MAX))
    if not directories:
        raise UsageError(
            f"{path} holds no log: a broker's data directory has folders such as orders-0, and a file {META_PROPERTIES}"
        )
    for directory in directories:
        yield from filter(_is_log, _folders(directory))


def _is_log(folder: str) -> bool:
    """Whether the folder is named like a log and holds a segment. The name alone does not suffice: `broker-1` is a log's name."""
    is_named = parse_log_name(os.path.basename(folder)) is not None
    return is_named and any(map(_SEGMENT.match, _names(folder)))


def _data_directories(path: str, depth: int) -> Iterator[str]:
    folders = _folders(path)
    if os.path.isfile(os.path.join(path, META_PROPERTIES)) or any(map(_is_log, folders)):
        yield path
    elif depth:
        for folder in folders:
            with suppress(_Unreadable):
                yield from _data_directories(folder, depth - 1)


def _folders(path: str) -> list[str]:
    return [folder for name in _names(path) if os.path.isdir(folder := os.path.join(path, name))]


class _Unreadable(UsageError):
    pass


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as e:
        raise _Unreadable(f"{path} cannot be listed: {e.strerror}") from None


def segments_of(folder: str) -> list[SegmentFile]:
    """The segments of the log in this folder, in order."""
    name = parse_log_name(os.path.basename(folder))
    assert name is not None
    broker, topic_id = _broker(os.path.dirname(folder)), _topic_id(folder)
    bases = [int(match[1]) for match in map(_SEGMENT.match, _names(folder)) if match]
    segments = []
    for base in bases:
        path = os.path.join(folder, f"{base:020d}.log")
        with suppress(FileNotFoundError):  # The broker has deleted it since the listing.
            size = os.stat(path).st_size
            segments.append(SegmentFile(path, broker, *name, topic_id, base, size, base == bases[-1]))
    return segments


def _single(path: str) -> SegmentFile:
    match = _SEGMENT.match(os.path.basename(path))
    folder = os.path.dirname(path)
    if match is None or parse_log_name(os.path.basename(folder)) is None:
        raise UsageError(f"{path} is not a segment: segments are named like orders-0/00000000000000000000.log")
    return next(segment for segment in segments_of(folder) if segment.base_offset == int(match[1]))


def _broker(directory: str) -> int | None:
    path = os.path.join(directory, META_PROPERTIES)
    data = _read(path)
    if data is None:
        return None
    try:
        return MetaProperties.decode(data, path).node_id
    except UsageError:
        return None


def _topic_id(folder: str) -> str | None:
    data = _read(os.path.join(folder, PARTITION_METADATA))
    topic_id = None if data is None else PartitionMetadata.decode(data)
    return None if topic_id is None else uuid_to_text(topic_id)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return None
