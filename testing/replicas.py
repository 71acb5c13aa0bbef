"""Compares the logs of all replicas of a topic on their disks, byte by byte.

Replicas roll their segments at different times, so all segments of a partition are compared as one run of bytes. The logs are
equal when the cluster is at rest: every replica is in the ISR, and no records are being sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

CHUNK = 1 << 20


class ReplicaLog(NamedTuple):
    """Size of one replica's log in bytes, and its SHA-256 in hexadecimal."""

    replica: str
    size: int
    digest: str


class Comparison(NamedTuple):
    """The logs of one partition's replicas; `equal` if all hold the same bytes."""

    partition: str
    """For example `orders-0`."""
    logs: tuple[ReplicaLog, ...]

    @property
    def equal(self) -> bool:
        return len({log.digest for log in self.logs}) == 1

    def __str__(self) -> str:
        logs = ", ".join(f"{log.replica}: {log.size} bytes {log.digest[:12]}" for log in self.logs)
        return f"{self.partition}: {'equal' if self.equal else 'DIFFERENT'} ({logs})"


def compare_replicas(data_dirs: Mapping[str, Path], topic: str) -> list[Comparison]:
    """Compare the logs of the topic's partitions in these data directories (name of the replica -> directory).

    Returns one `Comparison` per partition that lies in any of the directories, sorted by index; none if there is no such
    topic. A replica without a directory of the partition is left out. OSError: a segment cannot be read.
    """
    found: dict[str, list[ReplicaLog]] = {}
    for replica, data in data_dirs.items():
        for folder in sorted(data.glob(f"{topic}-*")):
            if folder.name.rpartition("-")[2].isdigit() and folder.name.rpartition("-")[0] == topic:
                found.setdefault(folder.name, []).append(ReplicaLog(replica, *_digest(sorted(folder.glob("*.log")))))
    return [Comparison(name, tuple(found[name])) for name in sorted(found, key=lambda n: int(n.rpartition("-")[2]))]


def _digest(segments: Iterable[Path]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for segment in segments:
        with segment.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
    return size, digest.hexdigest()
