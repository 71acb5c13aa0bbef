"""Writes rows of a log to the files of a lake: one file for each partition and date of a task. Needs pyarrow.

Rows arrive in the order of the log, but timestamps may be out of order: around midnight two dates alternate. So files of several
dates are open at the same time, at most `OPEN_MAX`. Beyond that the least recently written file is closed, and later rows of its
date begin another file.

A file gets its name when it is closed, because only then its last offset is known. Row groups are cut by the number of rows, so
equal rows give equal bytes; only if rows are so large that `GROUP_BYTES` is reached first, the group ends with Spark's batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake import DataFile, Ends, check_is_new, check_topic, file_path
from strandline.pipeline.jobs.lake_folder import checksum, make_folders, move, temporary

OPEN_MAX = 16
GROUP_ROWS, GROUP_BYTES = 65_536, 67_108_864
COLUMNS = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", tz="UTC")),
        ("timestampType", pyarrow.int32()),
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
    ]
)
HEADERS = pyarrow.field("headers", pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])))
_Key = tuple[TopicPartition, str]


def file_schema(include_headers: bool) -> pyarrow.Schema:
    return COLUMNS.append(HEADERS) if include_headers else COLUMNS


@dataclass(slots=True)
class _OpenFile:
    """A file of one partition and date that is being written under a temporary name."""

    path: Path
    writer: pyarrow.parquet.ParquetWriter
    first: int
    last: int = -1
    count: int = 0
    _waiting: list[pyarrow.Table] = field(default_factory=list)
    """Rows for the next row group."""

    def add(self, rows: pyarrow.Table) -> None:
        self.last = rows["offset"][-1].as_py()
        self.count += rows.num_rows
        self._waiting.append(rows)
        waiting = pyarrow.concat_tables(self._waiting)
        while waiting.num_rows >= GROUP_ROWS:
            self._write_group(waiting.slice(0, GROUP_ROWS))
            waiting = waiting.slice(GROUP_ROWS)
        if waiting.nbytes >= GROUP_BYTES:
            self._write_group(waiting)
            waiting = waiting.slice(0, 0)
        self._waiting = [waiting] if waiting.num_rows else []

    def close(self) -> None:
        if self._waiting:
            self._write_group(pyarrow.concat_tables(self._waiting))
        self.writer.close()

    def _write_group(self, rows: pyarrow.Table) -> None:
        """Writes a row group in one piece, so that the pages do not depend on Spark's batches."""
        self.writer.write_table(rows.combine_chunks())


class LakeWriter:
    """Writes the rows of one attempt of one task."""

    def __init__(self, root: Path, include_headers: bool, ends: Ends) -> None:
        self._root = root
        self._schema = file_schema(include_headers)
        self._ends = ends
        """The ends of the lake's partitions before this batch."""
        self._open: dict[_Key, _OpenFile] = {}
        """Open files, the most recently written one last."""
        self._checked: set[TopicPartition] = set()
        """The partitions whose first rows were checked."""
        self._done: list[DataFile] = []

    def write(self, batch: pyarrow.RecordBatch) -> None:
        rows = pyarrow.Table.from_batches([batch]).select(self._schema.names).cast(self._schema)
        for tp, date, part in _parts(rows):
            self._check_first_rows(tp, part)
            self._file((tp, date), part).add(part)

    def finish(self) -> tuple[DataFile, ...]:
        """Closes all files and returns their manifest entries."""
        for key in list(self._open):
            self._close(key)
        return tuple(sorted(self._done, key=lambda f: f.order))

    def abort(self) -> None:
        """Deletes the unfinished files."""
        for file in self._open.values():
            file.writer.close()
            file.path.unlink(missing_ok=True)
        self._open.clear()

    def _check_first_rows(self, tp: TopicPartition, rows: pyarrow.Table) -> None:
        """Checks the first rows of each partition: the lake must not have these offsets yet. UsageError if it has them, or if the
        topic has no usable name."""
        if tp not in self._checked:
            check_topic(tp.topic)
            check_is_new(tp, rows["offset"][0].as_py(), self._ends)
            self._checked.add(tp)

    def _file(self, key: _Key, rows: pyarrow.Table) -> _OpenFile:
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            file = self._begin(key, rows["offset"][0].as_py())
        self._open[key] = file
        return file

    def _begin(self, key: _Key, first: int) -> _OpenFile:
        tp, date = key
        folder = (self._root / file_path(*tp, date, first, first)).parent
        make_folders(folder)
        path = temporary(folder)
        return _OpenFile(path, pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd"), first)

    def _close(self, key: _Key) -> None:
        (tp, date), file = key, self._open[key]
        file.close()
        path = file_path(*tp, date, file.first, file.last)
        size, crc = file.path.stat().st_size, checksum(file.path)
        move(file.path, self._root / path)
        del self._open[key]
        self._done.append(
            DataFile(
                path=path, topic=tp.topic, partition=tp.partition, date=date, first=file.first, last=file.last,
                count=file.count, bytes=size, crc32c=crc,
            )
        )  # fmt: skip


def _parts(rows: pyarrow.Table) -> Iterator[tuple[TopicPartition, str, pyarrow.Table]]:
    """Splits the rows by topic, partition and date; the order within each is kept."""
    keyed = rows.select(["topic", "partition"]).append_column("date", rows["timestamp"].cast(pyarrow.date32()))
    kinds = keyed.group_by(keyed.column_names, use_threads=False).aggregate([]).to_pylist()
    for kind in kinds:
        tp, date = TopicPartition(kind["topic"], kind["partition"]), kind["date"].isoformat()
        yield tp, date, rows if len(kinds) == 1 else rows.filter(_is(keyed, kind))


def _is(keyed: pyarrow.Table, kind: dict[str, object]) -> pyarrow.Expression:
    same = [pyarrow.compute.equal(keyed[name], value) for name, value in kind.items()]
    return pyarrow.compute.and_(pyarrow.compute.and_(same[0], same[1]), same[2])
