"""The sink of an offload: tasks write files, the driver lists them. A private data source, `strandline-lake`.

Each task writes the files of its rows and sends their manifest entries as its commit message. `commit` publishes them in one
manifest, under the batch number of the query. Spark runs a batch again if it does not know whether the batch was committed. Then
there are two cases:

    its manifest is missing      the tasks write files with the same names again and replace what the first run left
    its manifest exists          the tasks write nothing, and the commit finds that the batch is published

The names of Spark's local properties are its internals; the tests of the topic sink check that they still exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.pipeline.jobs.lake import DataFile, Ends
from strandline.pipeline.jobs.lake_folder import Folder, local_path
from strandline.pipeline.write_identity import BATCH_ID, QUERY_ID
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow

NAME = "strandline-lake"


@dataclass(frozen=True, slots=True)
class Landed(WriterCommitMessage):
    """The manifest entries of the files that one task wrote."""

    query: str
    files: tuple[DataFile, ...]


class LakeDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeSink:
        return LakeSink(str(self.options["path"]), "headers" in schema.names)


class LakeSink(DataSourceStreamArrowWriter):
    """Spark pickles it to each task and creates another one for the commit, which gets all it needs from the messages."""

    def __init__(self, root: str, include_headers: bool) -> None:
        self._root, self._include_headers = root, include_headers

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Landed:
        query, batch = _identity()
        newest = self._folder.newest()
        if newest is not None and newest.is_done(query, batch):
            for _ in iterator:  # Spark requires that a task consumes its rows.
                pass
            return Landed(query, ())
        return Landed(query, self._write_files(iterator, {} if newest is None else newest.ends))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        landed = [message for message in messages if isinstance(message, Landed)]
        files = [file for message in landed for file in message.files]
        if files:
            self._folder.publish(landed[0].query, batchId, files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: files that no manifest lists are not valid, and the next run of the batch replaces them."""

    def _write_files(self, batches: Iterator[pyarrow.RecordBatch], ends: Ends) -> tuple[DataFile, ...]:
        from strandline.pipeline.jobs.lake_writer import LakeWriter

        writer = LakeWriter(self._folder.root, self._include_headers, ends)
        try:
            for batch in batches:
                if batch.num_rows:
                    writer.write(batch)
            return writer.finish()
        except BaseException:
            writer.abort()
            raise

    @property
    def _folder(self) -> Folder:
        return Folder(local_path(self._root))


def _identity() -> tuple[str, int]:
    """The query and batch of this task."""
    context = TaskContext.get()
    query, batch = (context.getLocalProperty(name) if context else None for name in (QUERY_ID, BATCH_ID))
    if not query or not batch:
        raise UsageError(f"{NAME} writes in tasks of a stream")
    return query, int(batch)
