"""Compares the logs of all replicas of a topic, byte by byte, as they lie on the disks.

Replicas roll their segments each in its own time, so what is compared is the run of all segments of a partition. They
are equal when the cluster is at rest: every replica in the ISR, and nothing being sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

CHUNK = 1 << 20


class ReplicaLog(NamedTuple):
    """One replica's log: how many bytes it has, and their SHA-256."""

    replica: str
    size: int
    digest: str


class Comparison(NamedTuple):
    partition: str
    """Such as `orders-0`."""
    logs: tuple[ReplicaLog, ...]

    @property
    def equal(self) -> bool:
        return len({log.digest for log in self.logs}) == 1

    def __str__(self) -> str:
        logs = ", ".join(f"{log.replica}: {log.size} bytes {log.digest[:12]}" for log in self.logs)
        return f"{self.partition}: {'equal' if self.equal else 'DIFFERENT'} ({logs})"


def compare_replicas(data_dirs: Mapping[str, Path], topic: str) -> list[Comparison]:
    """The topic's partitions over these data directories (replica name -> directory), each with its replicas' logs."""
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
