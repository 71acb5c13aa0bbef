"""A snapshot on a file system: the last value of each key of a topic, in versions. No Spark, no pyarrow.

    ROOT/_manifest/<version, 20 digits>.json
    ROOT/v<version>-<letters>/table-0000.parquet          what a reader reads
    ROOT/v<version>-<letters>/rest-0000.parquet           what the next run needs besides (see materialize.py)

A version is a manifest, which lists the files that belong to it, and the newest manifest is the snapshot:

    {"v": 1, "version": 7, "topic": "orders", "across": "refuse",
     "until": {"v": 1, "topics": {"orders": {"0": 1200}}, "epochs": {"orders": {"0": 3}}},    offsets.py
     "table": [{"path": "v7-91b2.../table-0000.parquet", "rows": 812, "bytes": 40117}], "rest": []}

A manifest appears at once, by a rename, when all of its files are on the disk; nothing that it lists is ever written again. So
a reader that has read a manifest reads that version to its end, whatever is written meanwhile. The newest few versions stay
(`keep`), and whoever reads for longer than so many runs meets files that are gone. A run that dies leaves a folder that no
manifest names; the next run takes it away. Runs take turns by a lock (`flock`: the system gives it back when a process dies).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from strandline.pipeline.jobs.lake import MANIFESTS, manifest_name, manifest_number
from strandline.pipeline.jobs.lake_folder import alone, appearing, local_path, make_folders, move
from strandline.pipeline.offsets import ReadPositions, from_json, to_json
from strandline.protocol.errors import StrandlineError, UsageError

VERSION = 1
WORK = ".work-"
"""What a folder's name begins with while Spark writes into it; readers pass over such names."""
Across = Literal["refuse", "timestamp"]
"""What a key with records in several partitions is: an error, or the youngest of their last records."""


class SnapshotDamaged(StrandlineError):
    """A manifest cannot be read, or a file that it lists is not there as it was."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    path: str
    """Relative to the snapshot's root."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    number: int
    """From 1 on."""
    topic: str
    across: Across
    until: ReadPositions
    """The next offset to read, of each partition, with the leader epoch before it."""
    table: tuple[SnapshotFile, ...] = ()
    rest: tuple[SnapshotFile, ...] = ()

    @property
    def rows(self) -> int:
        """Keys that have a value."""
        return sum(file.rows for file in self.table)

    @property
    def folders(self) -> set[str]:
        """That hold its files."""
        return {file.path.split("/")[0] for file in (*self.table, *self.rest)}


def encode(version: Version) -> bytes:
    document = {
        "v": VERSION,
        "version": version.number,
        "topic": version.topic,
        "across": version.across,
        "until": to_json(version.until),
        "table": [asdict(file) for file in version.table],
        "rest": [asdict(file) for file in version.rest],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def decode(name: str, data: bytes) -> Version:
    """Raises SnapshotDamaged when these are not the bytes of a manifest with this name."""
    try:
        document = json.loads(data)
        format_, version = document["v"], _version(document) if document["v"] == VERSION else None
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as e:
        raise SnapshotDamaged(f"manifest {name} cannot be read: {type(e).__name__}: {e}") from e
    if version is None:
        raise SnapshotDamaged(f"manifest {name} is of format {format_}; this program knows {VERSION}")
    if manifest_name(version.number) != name:
        raise SnapshotDamaged(f"manifest {name} says that it is version {version.number}")
    return version


def _version(document: Any) -> Version:
    return Version(
        number=int(document["version"]),
        topic=str(document["topic"]),
        across="timestamp" if document["across"] == "timestamp" else "refuse",
        until=from_json(document["until"]),
        table=tuple(SnapshotFile(**file) for file in document["table"]),
        rest=tuple(SnapshotFile(**file) for file in document["rest"]),
    )


class SnapshotFolder:
    """Holds nothing but its path."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = local_path(root)
        self._manifests = self.root / MANIFESTS

    # -- reading ------------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Of the versions that are there."""
        names = os.listdir(self._manifests) if self._manifests.is_dir() else []
        return sorted(number for name in names if (number := manifest_number(name)) is not None)

    def newest(self) -> Version | None:
        numbers = self.numbers()
        return self._version(numbers[-1]) if numbers else None

    def version(self, number: int | None = None) -> Version:
        """This one, or the newest, with its files looked at. UsageError when it is not there."""
        numbers = self.numbers()
        if not numbers:
            raise UsageError(f"{self.root} holds no snapshot")
        if number is not None and number not in numbers:
            raise UsageError(f"{self.root} has the versions {', '.join(map(str, numbers))}, and {number} is not among them")
        version = self._version(numbers[-1] if number is None else number)
        for file in (*version.table, *version.rest):
            self._check(file)
        return version

    def paths(self, files: Sequence[SnapshotFile]) -> list[str]:
        return [str(self.root / file.path) for file in files]

    def _version(self, number: int) -> Version:
        name = manifest_name(number)
        return decode(name, (self._manifests / name).read_bytes())

    def _check(self, file: SnapshotFile) -> None:
        path = self.root / file.path
        if not path.is_file():
            raise SnapshotDamaged(f"{path} is missing")
        if (size := path.stat().st_size) != file.bytes:
            raise SnapshotDamaged(f"{path} has {size} bytes, and its manifest says {file.bytes}")

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One run at a time. Raises UsageError while there is another."""
        make_folders(self._manifests)
        otherwise = f"another run is at work on the snapshot {self.root}; wait until it is done"
        with alone(self._manifests / ".lock", otherwise):
            self._sweep(keep=None)
            yield

    def work_folder(self) -> Path:
        """A name for what this run writes, which is not there yet."""
        return self.root / f"{WORK}{secrets.token_hex(8)}"

    def bring(self, number: int, kind: str, written: Sequence[Path], rows: Sequence[int], token: str) -> tuple[SnapshotFile, ...]:
        """Files that Spark has written, under the names that they keep. They count with `publish`."""
        folder = self.root / f"v{number}-{token}"
        make_folders(folder)
        files = []
        for i, (path, count) in enumerate(zip(written, rows, strict=True)):
            to = folder / f"{kind}-{i:04}.parquet"
            move(path, to)
            files.append(SnapshotFile(str(to.relative_to(self.root)), count, to.stat().st_size))
        return tuple(files)

    def publish(self, version: Version, keep: int) -> None:
        """From here on this is the snapshot, and all but the newest `keep` versions are gone."""
        with appearing(self._manifests / manifest_name(version.number)) as new:
            new.write_bytes(encode(version))
        self._sweep(keep)

    def _sweep(self, keep: int | None) -> None:
        """Manifests of old versions, then every folder that no manifest names."""
        numbers = self.numbers()
        for number in numbers[: -keep if keep else 0]:
            (self._manifests / manifest_name(number)).unlink(missing_ok=True)
        named = {folder for number in self.numbers() for folder in self._version(number).folders}
        for path in self.root.iterdir():
            is_ours = path.name.startswith(WORK) or (path.name.startswith("v") and "-" in path.name)
            if is_ours and path.name not in named:
                shutil.rmtree(path, ignore_errors=True)
