"""Compaction: joins small files of a lake into larger ones, and its manifests into one, while writers and readers continue.

    1. files of one partition and date that lie side by side in the log are joined, by tasks, up to about a size
    2. a base is published: from here on readers find the larger files, and open one manifest in the place of many
    3. files that no manifest names any longer are deleted after a delay

Only neighbours are joined, so reading the files one after another gives the records in the same order as before. A compaction
that dies before its second step leaves files that no manifest lists: the next compaction overwrites or deletes them.

These are deleted:

    manifests, bases   that a base replaces, if that base is older than `keep_s`: readers that began before it have ended
    data files         that no manifest and no base names, older than `keep_s`, and below the end of their partition. Files after
                       the end may belong to a batch that is being written, and are never deleted
    temporary files    older than `keep_s`
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake import (
    MANIFESTS,
    DataFile,
    LakeDamaged,
    base_number,
    file_path,
    file_place,
    manifest_number,
)
from strandline.pipeline.jobs.lake_folder import (
    Folder,
    check_is_no_delta,
    checksum,
    is_temporary,
    local_path,
    move,
    read_manifest,
    temporary,
)
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

TARGET_BYTES = 268_435_456
KEEP_S = 86_400
SCHEMA = "inputs array<string>, path string, count bigint, bytes bigint, crc32c bigint"


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction."""

    files_before: int
    files_after: int
    joined: int
    """Number of small files that were joined."""
    manifests: int
    """Number of manifests that the new base replaces."""
    deleted: int
    """Number of deleted files of any kind."""


def compact(
    spark: SparkSession,
    root: str | os.PathLike[str],
    *,
    topics: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    keep_s: float = KEEP_S,
) -> Compacted:
    """Joins files that are smaller than half of `target_bytes`, of these topics or of all, and deletes replaced files that are
    older than `keep_s` seconds. If the lake is damaged, raises LakeDamaged, and readers find the same files as before. Raises
    UsageError if there is no lake, or another compaction is running."""
    folder = check(root)
    with folder.compacting():
        lake, base = read_manifest(folder.root), folder.base()
        wanted = [file for file in lake.files if not topics or file.topic in topics]
        groups = neighbours(wanted, target_bytes)
        larger = _joined(spark, folder.root, groups) if groups else {}
        covered = len(folder.numbers(base))
        if larger or covered > 1:
            folder.publish_base(lambda files: replaced(files, larger))
        after = len(read_manifest(folder.root).files)
        joined = sum(len(inputs) for inputs in larger)
        return Compacted(len(lake.files), after, joined, covered if larger or covered > 1 else 0, sweep(folder, keep_s))


def check(root: str | os.PathLike[str]) -> Folder:
    """Raises UsageError if there is no lake in this folder."""
    folder = Folder(local_path(root))
    check_is_no_delta(folder.root, f"Delta joins small files itself, with OPTIMIZE delta.`{folder.root}`")
    if not folder.numbers():
        raise UsageError(f"there is no lake in {os.fspath(root)}")
    return folder


def neighbours(files: Sequence[DataFile], target_bytes: int) -> list[tuple[DataFile, ...]]:
    """Groups to be joined: small files of one partition and date with nothing of another date between them."""
    groups: list[tuple[DataFile, ...]] = []
    for _, run in groupby(sorted(files, key=lambda f: f.order), key=lambda f: (f.tp, f.date, f.bytes < target_bytes / 2)):
        group: list[DataFile] = []
        for file in run:
            if group and sum(one.bytes for one in group) + file.bytes > target_bytes:
                groups.append(tuple(group))
                group = []
            group.append(file)
        groups.append(tuple(group))
    return [group for group in groups if len(group) > 1 and group[0].bytes < target_bytes / 2]


def replaced(files: Iterable[DataFile], larger: Mapping[tuple[str, ...], DataFile]) -> list[DataFile]:
    """The list of files, with each larger file in place of the small ones that it contains."""
    gone = {path for inputs in larger for path in inputs}
    return [*(file for file in files if file.path not in gone), *larger.values()]


# -- joining ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinFiles:
    """A task that joins files whose rows follow one another. Files with other columns (headers, or none) are not joined."""

    root: Path
    files: tuple[DataFile, ...]

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        import pyarrow.parquet

        folder = Folder(self.root)
        for file in self.files:
            folder.check(file, checksums=True)  # Damaged data must not become part of a file that looks whole.
        for _, run in groupby(self.files, key=lambda f: pyarrow.parquet.read_schema(self.root / f.path)):
            group = list(run)
            if len(group) > 1:
                yield pyarrow.RecordBatch.from_pylist([self._join(group)], schema=_arrow_schema())

    def _join(self, group: Sequence[DataFile]) -> dict[str, object]:
        import pyarrow
        import pyarrow.parquet

        from strandline.pipeline.jobs.lake_writer import GROUP_ROWS

        first, last = group[0], group[-1]
        path = file_path(first.topic, first.partition, first.date, first.first, last.last)
        new = temporary((self.root / path).parent)
        try:
            with pyarrow.parquet.ParquetWriter(
                new, pyarrow.parquet.read_schema(self.root / first.path), compression="zstd"
            ) as out:
                for rows in _groups_of(self.root, group, GROUP_ROWS):
                    out.write_table(rows)
            count = pyarrow.parquet.read_metadata(new).num_rows
            if count != sum(file.count for file in group):
                raise LakeDamaged(f"{path} would have {count} rows, but its parts have {sum(file.count for file in group)}")
            entry = {"inputs": [f.path for f in group], "path": path, "count": count, "bytes": new.stat().st_size}
            crc = checksum(new)
            move(new, self.root / path)
        finally:
            new.unlink(missing_ok=True)
        return {**entry, "crc32c": crc}


def _groups_of(root: Path, group: Sequence[DataFile], rows: int) -> Iterator[pyarrow.Table]:
    """Yields row groups of `rows` rows, however the files were cut; memory holds one group."""
    import pyarrow
    import pyarrow.parquet

    waiting: list[pyarrow.RecordBatch] = []
    for file in group:
        for batch in pyarrow.parquet.ParquetFile(root / file.path).iter_batches(rows):
            waiting.append(batch)
            table = pyarrow.Table.from_batches(waiting)
            while table.num_rows >= rows:
                yield table.slice(0, rows).combine_chunks()
                table = table.slice(rows)
            waiting = table.to_batches()
    if waiting:
        yield pyarrow.Table.from_batches(waiting).combine_chunks()


def _arrow_schema() -> pyarrow.Schema:
    import pyarrow

    kinds = {"inputs": pyarrow.list_(pyarrow.string()), "path": pyarrow.string()}
    return pyarrow.schema([*kinds.items(), *((name, pyarrow.int64()) for name in ("count", "bytes", "crc32c"))])


def _joined(spark: SparkSession, root: Path, groups: Sequence[tuple[DataFile, ...]]) -> dict[tuple[str, ...], DataFile]:
    """Runs the tasks; returns the paths of the small files -> the larger file with their rows."""
    from strandline.pipeline.jobs.tasks import rows_of

    known = {file.path: file for group in groups for file in group}
    rows = rows_of(spark, [JoinFiles(root, group) for group in groups], SCHEMA).collect()
    return {tuple(row.inputs): entry_of(row.asDict(), known) for row in rows}


def entry_of(row: Mapping[str, Any], known: Mapping[str, DataFile]) -> DataFile:
    """The manifest entry of a larger file, from the row that its task returned."""
    first, last = known[row["inputs"][0]], known[row["inputs"][-1]]
    values = {name: row[name] for name in ("path", "count", "bytes", "crc32c")}
    return DataFile(
        topic=first.topic, partition=first.partition, date=first.date, first=first.first, last=last.last, **values
    )  # fmt: skip


# -- deleting ---------------------------------------------------------------------------------------------------------


def sweep(folder: Folder, keep_s: float) -> int:
    """Deletes files that no manifest names any longer. Returns their number.

    The ends are read before the names: a batch that is published in between is after these ends."""
    before = time.time() - keep_s
    newest = folder.newest()
    ends = {} if newest is None else newest.ends
    deleted = sum(_delete(path) for path in _manifests_to_go(folder, before))
    named = {file.path for number in folder.numbers() for file in folder.manifest(number).files}
    named |= {file.path for file in folder.every_base_file()}
    return deleted + sum(_delete(path) for path in _data_to_go(folder.root, named, ends, before))


def _manifests_to_go(folder: Folder, before: float) -> Iterator[Path]:
    """The manifests and bases that an old base replaces, except the manifest with the base's own number: writers begin at the
    newest manifest."""
    paths = [folder.root / MANIFESTS / name for name in folder.names()]
    old = [n for path in paths if (n := base_number(path.name)) is not None and path.stat().st_mtime <= before]
    for path in paths:
        numbers = (base_number(path.name), manifest_number(path.name))
        if old and any(number is not None and number < max(old) for number in numbers):
            yield path


def _data_to_go(root: Path, named: set[str], ends: Mapping[TopicPartition, int], before: float) -> Iterator[Path]:
    for path in root.glob("*/date=*/*"):
        is_named = str(path.relative_to(root)) in named
        if not is_named and (is_temporary(path) or _is_below(path, ends)) and _is_older(path, before):
            yield path


def _is_older(path: Path, before: float) -> bool:
    """Whether the file was last changed before this time. False for a temporary file that its writer has renamed meanwhile."""
    try:
        return path.stat().st_mtime <= before
    except FileNotFoundError:
        return False


def _is_below(path: Path, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether it is a data file of ours with offsets below the end of its partition, which no batch writes again."""
    found = file_place(path.name)
    return found is not None and found[0].topic == path.parent.parent.name and found[1] < ends.get(found[0], 0)


def _delete(path: Path) -> int:
    path.unlink(missing_ok=True)
    return 1
