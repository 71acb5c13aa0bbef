"""Strays: logs of a data directory that the cluster deleted, or moved to other brokers, while this broker was down.

A stray is renamed at once (`LogDir.set_aside`), so that it is not served and does not block a topic that got its name. It is
removed after `log.stray.retention.ms`, but only if all of this proves that it may be removed (F23):

- the directory's name, its `partition.metadata` and its `stray.metadata` agree, so this broker set it aside;
- the metadata that did not list it listed another log of this directory by its topic id, so it was the metadata of the cluster in
  which the stray was written, and not that of a quorum that lost its disks and was started again;
- the current metadata does not assign the partition to this broker either.

Any other stray stays where it is, for an operator to examine.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from strandline.storage.checkpoints import PARTITION_METADATA, STRAY_METADATA, PartitionMetadata, StrayMetadata, read_if_present
from strandline.storage.disk import Files, join

_STRAY = re.compile(r"[a-zA-Z0-9._-]{1,249}-(\d{1,10})\.([0-9a-f]{32})(\.\d+)?-stray\Z", re.ASCII)


class Stray(NamedTuple):
    """A stray whose files prove that this broker set it aside."""

    path: str
    topic_id: bytes
    partition: int
    since_ms: int
    """Wall-clock time, in ms, at which the log was set aside."""

    @property
    def deletion_path(self) -> str:
        """Path of the stray log while it is removed. If the removal is interrupted, the next start continues it."""
        return self.path.removesuffix("-stray") + "-delete"


def stray_paths(files: Files, log_dir: str) -> list[str]:
    """The paths in a data directory that are named as strays. Raises DiskError if the directory cannot be read."""
    return [join(log_dir, name) for name in files.list(log_dir) if _STRAY.match(name)]


def read_stray(files: Files, path: str) -> Stray | None:
    """The stray at this path, None if this broker did not set it aside. Raises DiskError if that cannot be determined."""
    match = _STRAY.match(path.rpartition("/")[2])
    if match is None or not files.is_dir(path):
        return None
    metadata = read_if_present(files, join(path, PARTITION_METADATA))
    stray = read_if_present(files, join(path, STRAY_METADATA))
    topic_id = None if metadata is None else PartitionMetadata.decode(metadata)
    known = None if stray is None else StrayMetadata.decode(stray)
    if topic_id is None or known is None or topic_id.hex() != match[2]:
        return None
    return Stray(path, topic_id, int(match[1]), known.since_ms)
