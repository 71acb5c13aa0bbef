"""Writing, in batches and as streams: each row once, whatever becomes of the task that writes it.

Spark runs a task again after a failure, runs a batch again after a crash or a failed commit, and may run two attempts at a
time. So every task writes as a *named* producer: the name says which task of which query it is, the generation which batch.
The rows of a task are numbered per partition of the log, by the producer's own sequence numbers. An attempt asks how many
of them the log holds already, fences whoever wrote them, and goes on behind. `commit` has nothing left to do.

    name         spark/<query id>/<partition of Spark>           spark/<job>/<partition of Spark> in a batch job
    generation   the id of the micro-batch                       0

What this rests on is that an attempt brings the same rows in the same order as the one before. Straight from a log or from
files it does; behind a shuffle nobody promises it. The option `rowOrder` says which it is, and as long as it says nothing,
an attempt that finds rows of an earlier one writes nothing and fails: no row is lost or doubled by guessing.

The names of Spark's local properties are its internals; a test holds them down.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.client import Producer, Receipt, TopicPartition
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.options import WriteOptions
from strandline.pipeline.placement import by_place, places_of
from strandline.pipeline.rows import by_topic, check_columns, columns_of
from strandline.pipeline.session import session
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
SENDING = {"batch_size": 262_144, "buffer_memory": 67_108_864, "linger_ms": 20, "max_request_size": 8_388_608}
"""Where the user says nothing: large batches, since a task writes as fast as it can."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int
    """Of the task, those included that an earlier attempt had written."""
    found: int
    """Rows that an earlier attempt had written."""


@dataclass(slots=True)
class TaskWriter:
    """One attempt of one task."""

    options: WriteOptions
    producer: Producer
    task: int
    _counts: dict[str, int] = field(default_factory=dict)
    """Partitions of each topic that was met."""
    _numbers: dict[str, int] = field(default_factory=dict)
    """Rows of each topic so far."""
    _skip: dict[TopicPartition, int] = field(default_factory=dict)
    """Rows that are in the log and come again."""
    _receipts: dict[Any, Receipt] = field(default_factory=dict)
    """One of each batch that is on its way."""
    rows: int = 0
    found: int = 0

    async def write(self, batch: pyarrow.RecordBatch) -> None:
        for topic, rows in by_topic(batch, self.options.topic):
            if topic not in self._counts:
                await self._meet(topic)
            places = places_of(rows, self._numbers.get(topic, 0), self.task, self._counts[topic])
            self._numbers[topic] = self._numbers.get(topic, 0) + rows.num_rows
            for partition, run in by_place(rows, places):
                await self._send(topic, partition, self._not_yet_there(TopicPartition(topic, partition), run))
        self.rows += batch.num_rows
        self._look_at_receipts()

    def _not_yet_there(self, place: TopicPartition, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        there = min(self._skip.get(place, 0), rows.num_rows)
        if there:
            self._skip[place] -= there
        return rows.slice(there)

    async def _send(self, topic: str, partition: int, rows: pyarrow.RecordBatch) -> None:
        values, keys, headers = columns_of(rows, self.options.include_headers)
        for receipt in (await self.producer.send_columns(topic, values, keys, headers, partition=partition)).firsts():
            self._receipts[receipt.batch] = receipt

    def _look_at_receipts(self) -> None:
        """Raises what became of the first that failed."""
        for batch, receipt in list(self._receipts.items()):
            if receipt.done:
                receipt.result()
                del self._receipts[batch]

    async def _meet(self, topic: str) -> None:
        """The first row of a topic: what is there of this task already?"""
        partitions = await self.producer.partitions_for(topic)
        self._counts[topic] = len(partitions)
        if self.options.delivery == "at-least-once":
            return
        await self.producer.flush(self.options.write_timeout_ms)
        there = await self.producer.written([(topic, p) for p in partitions], timeout_ms=self.options.write_timeout_ms)
        self._skip.update({place: count for place, count in there.items() if count})
        self.found += sum(there.values())
        if self.found and self.options.row_order == "unknown":
            raise RowsDiffer(
                f"an earlier attempt of this task has written {self.found} rows to {topic}, and nobody has said that they "
                "come in the same order again: set the option rowOrder to stable if they do (no shuffle before the sink, or "
                "sorted within partitions)",
                topic=topic,
            )

    async def finish(self) -> Written:
        await self.producer.flush(self.options.write_timeout_ms)
        self._look_at_receipts()
        if any(self._skip.values()):
            places = ", ".join(f"{count} of {place}" for place, count in self._skip.items() if count)
            text = f"task {self.task} has fewer rows than an earlier attempt has written ({places}): its input is not the same"
            raise RowsDiffer(text)
        return Written(self.rows, self.found)


def write_task(options: WriteOptions, job: str, batches: Iterator[pyarrow.RecordBatch]) -> Written:
    """What both kinds of writers do, in a task."""
    context = TaskContext.get()
    if context is None:
        raise UsageError("a sink writes in tasks of Spark")
    here = session()
    producer = Producer(**{**SENDING, **options.client, **_identity(options, job, context)})

    async def write_all() -> Written:
        async with producer:
            writer = TaskWriter(options, producer, context.partitionId())
            # Spark's rows are waited for on a thread: what is there already goes on its way meanwhile.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await writer.write(batch)
            return await writer.finish()

    return here.run(write_all())


def _identity(options: WriteOptions, job: str, context: TaskContext) -> dict[str, Any]:
    if options.delivery == "at-least-once":
        return {}
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    name = options.query_name or query or job
    return {"producer_name": f"spark/{name}/{context.partitionId()}", "producer_generation": int(batch or 0)}


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("strandline")`. A task that is run again is the same job; the same job run again by hand is another."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError('a log is only ever appended to: write with .mode("append")')
        check_columns(schema, options.topic)
        self._options = options
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_task(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what was acknowledged is there."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: rows of tasks that were done, and of those that failed, stay."""


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream.format("strandline")`. Exactly once by (query id, batch id, task, row)."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_task(self._options, "", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what was acknowledged is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: the batch is run again, under the same names, and finds what is there."""
