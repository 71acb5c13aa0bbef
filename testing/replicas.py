"""Compares the logs of all replicas of a topic on their disks, byte by byte; those of a compacted topic record by record.

Replicas roll their segments at different times, so all segments of a partition are compared as one run of bytes. The logs are
equal when the cluster is at rest: every replica is in the ISR, and no records are being sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.testing.comparison import cleaned_logs_differ

CHUNK = 1 << 20


class ReplicaLog(NamedTuple):
    """Size of one replica's log in bytes, and its SHA-256 in hexadecimal."""

    replica: str
    size: int
    digest: str


class Comparison(NamedTuple):
    """The logs of one partition's replicas; `equal` if all hold the same bytes, or for a compacted topic the same records."""

    partition: str
    """For example `orders-0`."""
    logs: tuple[ReplicaLog, ...]
    difference: str | None = None
    """How the records differ, empty if they do not. None: the bytes were compared."""

    @property
    def equal(self) -> bool:
        if self.difference is not None:
            return not self.difference
        return len({log.digest for log in self.logs}) == 1

    def __str__(self) -> str:
        logs = ", ".join(f"{log.replica}: {log.size} bytes {log.digest[:12]}" for log in self.logs)
        more = f"; {self.difference}" if self.difference else ""
        return f"{self.partition}: {'equal' if self.equal else 'DIFFERENT'} ({logs}{more})"


def compare_replicas(data_dirs: Mapping[str, Path], topic: str, *, compacted: bool = False) -> list[Comparison]:
    """Compare the logs of the topic's partitions in these data directories (name of the replica -> directory).

    `compacted`: each replica's cleaner may have removed other records. Then two replicas must have the same record at each offset
    that both have, and all must have the same last value of each key.

    Returns one `Comparison` per partition that lies in any of the directories, sorted by index; none if there is no such
    topic. A replica without a directory of the partition is left out. OSError: a segment cannot be read.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    for replica, data in data_dirs.items():
        for folder in sorted(data.glob(f"{topic}-*")):
            if folder.name.rpartition("-")[2].isdigit() and folder.name.rpartition("-")[0] == topic:
                found.setdefault(folder.name, {})[replica] = sorted(folder.glob("*.log"))
    names = sorted(found, key=lambda name: int(name.rpartition("-")[2]))
    return [_compare(name, found[name], compacted) for name in names]


def _compare(partition: str, replicas: Mapping[str, Sequence[Path]], compacted: bool) -> Comparison:
    logs = tuple(ReplicaLog(replica, *_digest(segments)) for replica, segments in replicas.items())
    same = len({log.digest for log in logs}) == 1
    return Comparison(partition, logs, None if same or not compacted else _difference(replicas))


def _difference(replicas: Mapping[str, Sequence[Path]]) -> str:
    """How the records differ, from the highest offset on at which a replica's log starts."""
    start = max((int(segments[0].stem) for segments in replicas.values() if segments), default=0)
    logs = {replica: b"".join(segment.read_bytes() for segment in segments) for replica, segments in replicas.items()}
    try:
        return cleaned_logs_differ(logs, start)
    except BrokerError as e:
        return f"a log cannot be read: {e}"


def _digest(segments: Iterable[Path]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for segment in segments:
        with segment.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
    return size, digest.hexdigest()
