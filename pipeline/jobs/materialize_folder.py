"""The folder of a snapshot: versions of a table with the last value of each key of a topic. Needs neither Spark nor pyarrow.

    ROOT/_manifest/<version, 20 digits>.json
    ROOT/v<version>-<16 hex digits>/table-0000.parquet    the rows for readers
    ROOT/v<version>-<16 hex digits>/rest-0000.parquet     rows that only the next run needs (see materialize.py)

Each version has a manifest, which lists its files. The newest manifest is the current version:

    {"v": 1, "version": 7, "topic": "orders", "across": "refuse",
     "until": {"v": 1, "topics": {"orders": {"0": 1200}}, "epochs": {"orders": {"0": 3}}},    offsets.py
     "table": [{"path": "v7-91b2.../table-0000.parquet", "rows": 812, "bytes": 40117}], "rest": []}

A manifest appears by a rename when all of its files are on the disk, and these files never change. So a reader of a manifest can
read its version to the end, even if new versions are written. Only the newest `keep` versions stay: a reader that takes longer
than that many runs finds files missing. A run that dies leaves a folder that no manifest names, and the next run deletes it. A
file lock allows one run at a time (`flock`: the system releases it when a process dies).
"""

from __future__ import annotations

import json
import os
import re
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
"""Prefix of the folder into which Spark writes; readers skip names that begin with a dot."""
_OURS = re.compile(rf"(v\d+-|{re.escape(WORK)})[0-9a-f]{{16}}", re.ASCII)
"""Names of the folders that a run makes, for a version or for Spark. Other folders in the root are the user's."""
Across = Literal["refuse", "timestamp"]
"""The rule for a key with records in several partitions: an error, or the record with the latest timestamp wins."""


class SnapshotDamaged(StrandlineError):
    """A manifest cannot be read, or a file that it lists is missing or has another size."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    path: str
    """Relative to the snapshot's root."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the snapshot, as its manifest describes it."""

    number: int
    """The first version has number 1."""
    topic: str
    across: Across
    until: ReadPositions
    """For each partition, the offset at which the next run begins, and the leader epoch before it."""
    table: tuple[SnapshotFile, ...] = ()
    rest: tuple[SnapshotFile, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows in `table`: one for each key that has a value, none for a key that was deleted."""
        return sum(file.rows for file in self.table)

    @property
    def folders(self) -> set[str]:
        """The names of the folders that hold the files of this version."""
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
    """Parses a manifest. Raises SnapshotDamaged if the data is not a manifest with this name."""
    try:
        document = json.loads(data)
        format_, version = document["v"], _version(document) if document["v"] == VERSION else None
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as e:
        raise SnapshotDamaged(f"manifest {name} cannot be read: {type(e).__name__}: {e}") from e
    if version is None:
        raise SnapshotDamaged(f"manifest {name} has format {format_}; this program knows format {VERSION}")
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
    """The versions in the folder of one snapshot. The object caches nothing: each call reads the disk, because another process
    may have written a version or deleted one."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = local_path(root)
        self._manifests = self.root / MANIFESTS

    # -- reading ------------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """The numbers of the versions that exist, sorted."""
        names = os.listdir(self._manifests) if self._manifests.is_dir() else []
        return sorted(number for name in names if (number := manifest_number(name)) is not None)

    def newest(self) -> Version | None:
        numbers = self.numbers()
        return self._version(numbers[-1]) if numbers else None

    def version(self, number: int | None = None) -> Version:
        """The version with this number, by default the newest. Raises UsageError if it does not exist, SnapshotDamaged if its
        manifest cannot be read, or one of its files is missing or has another size."""
        numbers = self.numbers()
        if not numbers:
            raise UsageError(f"there is no snapshot in {self.root}")
        if number is not None and number not in numbers:
            raise UsageError(f"the snapshot {self.root} has no version {number}; it has {', '.join(map(str, numbers))}")
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
            raise SnapshotDamaged(f"{path} has {size} bytes, but its manifest says {file.bytes}")

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Holds the lock of a run, and deletes what an earlier run left behind. Raises UsageError if another run holds the
        lock."""
        make_folders(self._manifests)
        otherwise = f"another run uses the snapshot {self.root}; wait until it is done"
        with alone(self._manifests / ".lock", otherwise):
            self._sweep(keep=None)
            yield

    def work_folder(self) -> Path:
        """The path of a new folder, which does not exist yet, for the files that Spark writes in this run."""
        return self.root / f"{WORK}{secrets.token_hex(8)}"

    def bring(self, number: int, kind: str, written: Sequence[Path], rows: Sequence[int], token: str) -> tuple[SnapshotFile, ...]:
        """Moves files that Spark has written to their final names, and returns their entries. `rows` has the number of rows of
        each file. Readers see the files after `publish`."""
        folder = self.root / f"v{number}-{token}"
        make_folders(folder)
        files = []
        for i, (path, count) in enumerate(zip(written, rows, strict=True)):
            to = folder / f"{kind}-{i:04}.parquet"
            move(path, to)
            files.append(SnapshotFile(str(to.relative_to(self.root)), count, to.stat().st_size))
        return tuple(files)

    def publish(self, version: Version, keep: int) -> None:
        """Makes this version the current one, and deletes all but the newest `keep` versions."""
        with appearing(self._manifests / manifest_name(version.number)) as new:
            new.write_bytes(encode(version))
        self._sweep(keep)

    def _sweep(self, keep: int | None) -> None:
        """Deletes the manifests of all but the newest `keep` versions (None: of no version), then folders of runs that no
        manifest names."""
        numbers = self.numbers()
        for number in numbers[: -keep if keep else 0]:
            (self._manifests / manifest_name(number)).unlink(missing_ok=True)
        named = {folder for number in self.numbers() for folder in self._version(number).folders}
        for path in self.root.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in named:
                shutil.rmtree(path, ignore_errors=True)
