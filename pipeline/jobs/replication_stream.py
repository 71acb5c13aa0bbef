"""The replication report as a stream over growing logs: each batch reads the appended lines and computes the report again.

    query = replication_stream(spark, "cluster/", "checkpoint/", lambda report: print(report.verdict))

Lines of different nodes arrive in different batches in any order, and an interval may begin in one batch and end in another. So
the checkpoint keeps no sums and no intervals, but the events about replication themselves, which are few. Each batch writes its
events into a file of the checkpoint (`events/`) that has the batch's number as its name. The report is then computed from all
files. A batch that runs again after a kill replaces its file with the same content, so a restarted stream reports the same as one
that was never killed.

Spark's own file source reads each file once, but log files grow. So the lines come from a private source, `strandline-log-lines`,
which stores for each file the end of the last complete line that was read. A file is identified by its inode and its first line.
The inode stays when the file is renamed. The first line, which has a timestamp, distinguishes the file from a later one with the
same inode, and from the same file after a rotation has emptied it (copytruncate).
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strandline.pipeline.jobs.replication import Events, log_files, read_events
from strandline.pipeline.jobs.replication_facts import Fact
from strandline.pipeline.jobs.replication_report import report_of
from strandline.pipeline.jobs.replication_result import Read, Replication
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "strandline-log-lines"
EVENTS_FOLDER = "events"
PATHS_FILE = "paths.json"
TAIL_BYTES = 1 << 16
HEAD_BYTES = 1 << 16
"""A file is identified by at most this many bytes of its first line."""


def replication_stream(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    checkpoint: str | os.PathLike[str],
    on_report: Callable[[Replication], None],
    *,
    every_s: float | None = None,
    topics: Sequence[str] = (),
) -> StreamingQuery:
    """Starts the stream and returns its query. After each batch, `on_report` is called on the driver with the report on all lines
    so far.

    `paths` are files and folders; files that appear later in a folder are read as well. `checkpoint` is a folder; a query with
    the same checkpoint continues where the last one ended. `every_s` is the time between batches in seconds; None: the query
    reads the lines that exist now, and ends. Raises UsageError if a path does not exist, or if the checkpoint belongs to other
    paths."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    names = [os.path.abspath(os.fspath(path)) for path in given]
    for name in names:
        if not os.path.exists(name):
            raise UsageError(f"there is no file or folder {name}")
    spark.dataSource.register(LogLines)
    kept = KeptEvents(Path(checkpoint, EVENTS_FOLDER))
    kept.claim(names)

    def on_batch(lines: DataFrame, batch_id: int) -> None:
        events = read_events(lines, with_partitions=True)
        events.frame.unpersist()
        kept.put(batch_id, events)
        on_report(kept.report(topics))

    lines = spark.readStream.format(NAME).option("paths", json.dumps(names)).load()
    writer = lines.writeStream.foreachBatch(on_batch).option("checkpointLocation", os.fspath(checkpoint))
    timed = writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    return timed.start()


class KeptEvents:
    """The events of all batches, in files on the driver's disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, paths: Sequence[str]) -> None:
        """Stores the paths of the logs in a new checkpoint. Raises UsageError if the checkpoint belongs to other paths, because
        its report would mix different logs."""
        file = self._folder / PATHS_FILE
        if not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(sorted(paths)))
        elif (known := json.loads(file.read_text())) != sorted(paths):
            raise UsageError(
                f"the checkpoint {self._folder.parent} belongs to the logs in {', '.join(known)}: use another one for these"
            )

    def put(self, batch_id: int, events: Events) -> None:
        """Writes the events of a batch, or replaces those of an earlier run of the batch; a reader sees the complete file or
        none. Raises UsageError if the file of the previous batch is missing, because the report would lack its events."""
        before = self._folder / f"{batch_id - 1:08}.json"
        if batch_id and not before.exists():
            raise UsageError(f"the checkpoint lacks {before}: delete the checkpoint to read the logs from their start")
        facts = sorted(fact.to_json() for fact in events.facts)
        document = {"facts": facts, "read": asdict(events.read), "range": [events.begin_us, events.end_us]}
        temporary = self._folder / f".{batch_id}.tmp"
        temporary.write_text(json.dumps(document))
        temporary.replace(self._folder / f"{batch_id:08}.json")

    def report(self, topics: Sequence[str] = ()) -> Replication:
        documents = [json.loads(path.read_text()) for path in sorted(self._folder.glob("[0-9]*.json"))]
        facts = [Fact.from_json(text) for document in documents for text in document["facts"]]
        ranges = [document["range"] for document in documents if document["range"][1]]
        read = _together([document["read"] for document in documents])
        begin, end = min((r[0] for r in ranges), default=0), max((r[1] for r in ranges), default=0)
        return report_of(facts, read, begin, end, topics=topics)


def _together(reads: Sequence[dict[str, Any]]) -> Read:
    counts = {name: sum(read[name] for read in reads) for name in ("lines", "events", "foreign", "cut")}
    files = max((read["files"] for read in reads), default=0)
    return Read(files=files, nodes=tuple(sorted({node for read in reads for node in read["nodes"]})), **counts)


# -- the source -------------------------------------------------------------------------------------------------------


class LogLines(DataSource):
    """A streaming source of the lines that are appended to files. Option `paths`: a JSON list of files and folders."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: StructType) -> LogLinesReader:
        return LogLinesReader(json.loads(self.options["paths"]))


class LogLinesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's `DataSourceStreamReader` of log lines. An offset maps each file id to the number of bytes read. A compressed file
    is read as a whole."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._stop_at: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_at = self._ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {**start, **(self._ends() if self._stop_at is None else self._stop_at)}

    def _ends(self) -> dict[str, int]:
        ends = {}
        for file_id, path in self._files().items():
            try:
                ends[file_id] = end_of_lines(path)
            except FileNotFoundError:  # The file was renamed since the listing. The next batch finds it under its new name.
                continue
        return ends

    def _files(self) -> dict[str, str]:
        try:
            files = log_files([path for path in self._paths if os.path.exists(path)])
        except UsageError:
            return {}
        return {file_id: path for path in files if (file_id := id_of_file(path)) is not None}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task for each file with new lines. Files that were deleted are skipped."""
        files = self._files()
        pieces = []
        for file_id, until in end.items():
            begin = start.get(file_id, 0)
            if until != begin and file_id in files:
                pieces.append(InputPartition((files[file_id], file_id, begin if begin < until else 0, until)))
        return pieces or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        if partition.value is None:
            return
        path, file_id, begin, until = partition.value
        found = _present_path(path, file_id)
        if found is None:
            return
        with open_log(found) as file:
            if is_compressed(found):
                yield from ((line.decode(errors="replace").rstrip("\n"),) for line in _decompressed_lines(file))
                return
            file.seek(begin)
            while file.tell() < until and (line := file.readline()):
                yield (line.decode(errors="replace").rstrip("\n"),)


def _present_path(path: str, file_id: str) -> str | None:
    """The path of the file now: a rotation may have renamed it since the batch was planned. None: the file was deleted."""
    folder = Path(path).parent
    beside = [str(folder / name) for name in sorted(os.listdir(folder))] if folder.is_dir() else []
    return next((name for name in (path, *beside) if os.path.isfile(name) and id_of_file(name) == file_id), None)


def is_compressed(path: str) -> bool:
    return path.endswith((".gz", ".bz2"))


def open_log(path: str) -> IO[bytes]:
    """Opens a log; a compressed one is decompressed while it is read."""
    if path.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path))
    return bz2.open(path) if path.endswith(".bz2") else open(path, "rb")


def _decompressed_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of a compressed file, up to its end or the point at which it breaks off. If the file is still being
    written, the next batch reads it again as a whole."""
    try:
        yield from file
    except (EOFError, OSError, zlib.error):
        return


def id_of_file(path: str) -> str | None:
    """Identifies a file by its inode and a checksum of its first line. None if the file has no complete line or was deleted."""
    try:
        with open_log(path) as file:
            inode, first = inode_of(path), file.readline(HEAD_BYTES)
    except (EOFError, OSError, zlib.error):
        return None
    is_whole = first.endswith(b"\n") or len(first) == HEAD_BYTES
    return f"{inode}-{zlib.crc32(first):08x}" if is_whole else None


def inode_of(path: str) -> int:
    return os.stat(path).st_ino


def end_of_lines(path: str) -> int:
    """The number of bytes up to the end of the last complete line; for a compressed file the size of the file."""
    size = os.path.getsize(path)
    if is_compressed(path):
        return size
    with open(path, "rb") as file:
        end = size
        while end > 0:
            begin = max(0, end - TAIL_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0
