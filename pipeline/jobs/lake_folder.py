"""A lake on a file system: `read_manifest` for readers, `Folder` for writers. No Spark, no pyarrow.

A file is written under a name that begins with a dot, which readers skip, and renamed when it is on the disk. Writers of
manifests take turns with a file lock (`flock`: the system releases it when a process dies).

    for file in read_manifest("/lake").files:
        table = pyarrow.parquet.read_table(f"/lake/{file.path}")
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from strandline.pipeline.jobs.lake import (
    MANIFESTS,
    DataFile,
    Ends,
    LakeDamaged,
    Manifest,
    base_name,
    base_number,
    based_on,
    decode,
    encode,
    following,
    join,
    manifest_name,
    manifest_number,
)
from strandline.protocol.errors import UsageError

DELTA_LOG = "_delta_log"
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.new")
_OTHER_SYSTEM = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Lake:
    """The contents of a lake that a reader may rely on."""

    root: Path
    number: int
    """Number of the newest manifest; -1: there is none."""
    files: tuple[DataFile, ...]
    """The valid files, by topic, partition and first offset."""
    ends: Ends


def read_manifest(root: str | os.PathLike[str], *, checksums: bool = False) -> Lake:
    """The valid files of a lake; none, and number -1, for a folder without manifests. Raises LakeDamaged on a gap or an overlap
    in the manifests, and if a file is missing or has another size. With `checksums`, every byte is read and a file with another
    CRC-32C is damaged, too. Raises UsageError for a URL or a Delta table."""
    folder = Folder(local_path(root))
    check_is_no_delta(folder.root, "this reads lakes of Parquet files; a Delta table is read by any Spark with Delta")
    base = folder.base()
    manifests = [folder.manifest(number) for number in folder.numbers(base)]
    files, ends = join(manifests, base)
    for file in files:
        folder.check(file, checksums)
    return Lake(folder.root, len(manifests) - 1 + (0 if base is None else base.number + 1), files, ends)


def local_path(root: str | os.PathLike[str]) -> Path:
    """The local path of a lake. Raises UsageError for a URL: a lake needs a file system with atomic renames."""
    text = os.fspath(root)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if match := _OTHER_SYSTEM.match(text):
        raise UsageError(f"a lake must be a folder of a local or mounted file system, which {match[1]}:// is not: {text}")
    return Path(text).absolute()


def is_delta(root: Path) -> bool:
    return (root / DELTA_LOG).is_dir()


def check_is_no_delta(root: Path, advice: str) -> None:
    """Raises UsageError for a Delta table: its files look like those of a lake, but only its own log says which are valid."""
    if is_delta(root):
        raise UsageError(f"{root} is a Delta table: {advice}")


class Folder:
    """The folder of one lake. It holds only the path; every method reads the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._manifests = root / MANIFESTS

    # -- reading ------------------------------------------------------------------------------------------------------

    def numbers(self, base: Manifest | None = None) -> list[int]:
        """The numbers of the manifests after a base, sorted."""
        numbers = (number for name in self.names() if (number := manifest_number(name)) is not None)
        return sorted(number for number in numbers if base is None or number > base.number)

    def names(self) -> list[str]:
        """The file names in the folder of manifests."""
        return os.listdir(self._manifests) if self._manifests.is_dir() else []

    def base(self) -> Manifest | None:
        """The newest base; None if there is none."""
        numbers = [number for name in self.names() if (number := base_number(name)) is not None]
        return self._read(base_name(max(numbers))) if numbers else None

    def every_base_file(self) -> Iterator[DataFile]:
        """The files of all bases, older ones included: a reader may still use one."""
        for name in self.names():
            if base_number(name) is not None:
                yield from self._read(name).files

    def manifest(self, number: int) -> Manifest:
        return self._read(manifest_name(number))

    def _read(self, name: str) -> Manifest:
        return decode(name, (self._manifests / name).read_bytes())

    def newest(self) -> Manifest | None:
        """The newest manifest that is not a base; None if there is none."""
        numbers = self.numbers()
        return self.manifest(numbers[-1]) if numbers else None

    def check(self, file: DataFile, checksums: bool) -> None:
        """Raises LakeDamaged if the file is missing, or its size or (with `checksums`) its CRC-32C is not that of its entry."""
        path = self.root / file.path
        if not path.is_file():
            raise LakeDamaged(f"{file.path} is missing")
        if (size := path.stat().st_size) != file.bytes:
            raise LakeDamaged(f"{file.path} has {size} bytes, but its manifest says {file.bytes}")
        if checksums and checksum(path) != file.crc32c:
            raise LakeDamaged(f"{file.path} has another checksum (CRC-32C) than its manifest says")

    # -- writing ------------------------------------------------------------------------------------------------------

    def publish(self, query: str, batch: int, files: Iterable[DataFile]) -> Manifest | None:
        """Writes the manifest that makes these files valid. None if the batch was published before and is run again."""
        make_folders(self._manifests)
        with self._locked():
            last = self.newest()
            if last is not None and last.is_done(query, batch):
                return None
            manifest = following(last, query, batch, files)
            path = self._manifests / manifest_name(manifest.number)
            with appearing(path) as new:
                new.write_bytes(encode(manifest))
        return manifest

    def publish_base(self, change: Callable[[tuple[DataFile, ...]], Iterable[DataFile]]) -> Manifest:
        """Writes a base: a manifest with all files, at which readers begin from now on. `change` gets the lake's files and
        returns those of the base. Raises UsageError if the folder has no lake, LakeDamaged if a manifest cannot be read, or if
        the new files do not cover the offsets of the old ones."""
        with self._locked():
            base, newest = self.base(), self.newest()
            if newest is None:
                raise UsageError(f"there is no lake in {self.root}")
            files, ends = join([self.manifest(number) for number in self.numbers(base)], base)
            made = based_on(newest, change(files), ends)
            with appearing(self._manifests / base_name(made.number)) as new:
                new.write_bytes(encode(made))
        return made

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Holds the lock of compactions. Raises UsageError if another compaction holds it."""
        with alone(self._manifests / ".compacting", f"another compaction of {self.root} is running; wait until it is done"):
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._manifests / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Holds a file lock. Raises UsageError with the text `otherwise` if another process holds it."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(otherwise) from None
        yield


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yields a temporary name to write to; afterwards renames it to `path`, synced to the disk. An error leaves no file."""
    new = temporary(path.parent)
    try:
        yield new
        move(new, path)
    finally:
        new.unlink(missing_ok=True)


def temporary(folder: Path) -> Path:
    """A unique name that readers skip."""
    return folder / f".{secrets.token_hex(8)}.new"


def is_temporary(path: Path) -> bool:
    """Whether `temporary` made this name."""
    return _TEMPORARY.fullmatch(path.name) is not None


def move(new: Path, path: Path) -> None:
    """Renames a file and syncs it: the data before the rename, and the rename before the method returns."""
    _sync(new)
    os.replace(new, path)
    _sync(path.parent)


def make_folders(path: Path) -> None:
    """Creates a folder and its parents, and syncs them to the disk."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> int:
    """CRC-32C of a file."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return crc32c(data)
