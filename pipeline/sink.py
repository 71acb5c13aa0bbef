"""Writes batches and streams so that the log holds each row once, whatever happens to the task that writes it.

Spark runs a task again after a failure, runs a batch again after a crash or a failed commit, and may run two attempts at the same
time. So every task writes as a *named* producer; write_identity.py defines its name and work epoch. The producer's sequence
numbers count the rows of a task in each partition. An attempt fences the attempts before it, asks how many of the rows the log
already holds, and continues after them. `commit` only checks that an earlier run of the batch did not have more tasks.

Skipping rows by number requires that every attempt has the same rows in the same order. Rows read from a log or from files do;
after a shuffle the order changes. By default (`rowOrder=unknown`) an attempt that finds rows of an earlier one compares the rows
before it writes (earlier_rows.py), so that no row is lost or duplicated. With `rowOrder=stable` it compares only if its first row
differs from that of the first attempt, which breaks the promise. Else it skips the rows that the log holds, and fails if the last
skipped row differs from the one in the log.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.client import Admin, Producer, Receipt, TopicPartition
from strandline.client.cluster.shared_cluster import SharedCluster
from strandline.pipeline.earlier_rows import Comparison, first_note, hash_of_first, last_rows, read_back
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.options import WriteOptions, admin_options
from strandline.pipeline.placement import partitions_of, split_by_partition
from strandline.pipeline.rows import by_topic, check_columns, columns_of
from strandline.pipeline.session import Session, session
from strandline.pipeline.write_identity import WriteIdentity, decode_note, options_of, write_identity
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow

SENDING = {"batch_size": 262_144, "buffer_memory": 67_108_864, "linger_ms": 20, "max_request_size": 8_388_608}
"""Default client options of the sink. Batches are large, because a task writes as fast as it can."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of one task, sent to the driver."""

    rows: int
    """All rows of the task, including those that an earlier attempt wrote."""
    found: int
    """Rows that an earlier attempt wrote."""
    is_retry: bool = field(default=False, compare=False)
    """Whether an earlier attempt began, even if it wrote no rows."""
    name: str = field(default="", compare=False)
    """The producer name of the write, without the task's number."""
    work_epoch: int = field(default=0, compare=False)


@dataclass(slots=True)
class TaskWriter:
    """One attempt of one task: chooses partitions, skips or compares the rows that the log holds, and sends the others."""

    options: WriteOptions
    producer: Producer
    task: int
    _counts: dict[str, int] = field(default_factory=dict)
    """Number of partitions of each topic that this attempt has begun to write to."""
    _numbers: dict[str, int] = field(default_factory=dict)
    """Number of rows of each topic so far."""
    _skip: dict[TopicPartition, int] = field(default_factory=dict)
    """Number of rows to skip next in each partition, because the log already holds them."""
    _last_rows: dict[TopicPartition, bytes] = field(default_factory=dict)
    """Hash of the last row to skip in each partition, if it could be read."""
    _comparisons: dict[str, Comparison] = field(default_factory=dict)
    """Comparison with the rows in the log, for each topic with rows of an earlier attempt in unknown order. Nothing is written to
    such a topic until all rows of the task are compared."""
    _by_partition: bool = False
    """Whether the rows have a column `partition`."""
    _first_row: bytes = b""
    """Hash of the first row of this attempt; empty before there is one."""
    _receipts: dict[Any, Receipt] = field(default_factory=dict)
    """One receipt for each batch in flight."""
    rows: int = 0
    found: int = 0

    async def write(self, batch: pyarrow.RecordBatch) -> None:
        """Sends, skips or compares the rows of this batch. Raises RowsDiffer, and the error of any batch that was not written."""
        self._by_partition = "partition" in batch.schema.names
        if not self.rows and not self._is_the_first():
            self._first_row = hash_of_first(batch, include_headers=self.options.include_headers)
        for topic, rows in by_topic(batch, self.options.topic):
            if topic not in self._counts:
                await self._begin_topic(topic)
            targets = partitions_of(rows, self._numbers.get(topic, 0), self.task, self._counts[topic])
            self._numbers[topic] = self._numbers.get(topic, 0) + rows.num_rows
            if (comparison := self._comparisons.get(topic)) is not None:
                comparison.take(rows, columns_of(rows, self.options.include_headers), targets)
                continue
            for partition, run in split_by_partition(rows, targets):
                await self._send(topic, partition, self._rows_to_send(TopicPartition(topic, partition), run))
        self.rows += batch.num_rows
        self._check_receipts()

    def _rows_to_send(self, tp: TopicPartition, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """The rows without those at the beginning that the log already holds."""
        in_log = min(self._skip.get(tp, 0), rows.num_rows)
        if in_log:
            self._skip[tp] -= in_log
            if not self._skip[tp]:
                self._check_last(tp, rows.slice(in_log - 1, 1))
        return rows.slice(in_log)

    def _check_last(self, tp: TopicPartition, row: pyarrow.RecordBatch) -> None:
        """Raises RowsDiffer if this row, the last to skip, differs from the last row that the earlier attempt wrote."""
        last = self._last_rows.get(tp)
        if last is not None and last != hash_of_first(row, include_headers=self.options.include_headers):
            raise RowsDiffer(
                f"the rows of task {self.task} for this partition differ from those that an earlier attempt wrote, although "
                "rowOrder=stable promises the same rows in the same order; without this option the next attempt compares rows",
                topic=tp.topic,
                partition=tp.partition,
            )

    async def _send(self, topic: str, partition: int, rows: pyarrow.RecordBatch) -> None:
        values, keys, headers = columns_of(rows, self.options.include_headers)
        for receipt in (await self.producer.send_columns(topic, values, keys, headers, partition=partition)).firsts():
            self._receipts[receipt.batch] = receipt

    def _check_receipts(self) -> None:
        """Raises the error of the first batch that failed, and drops the receipts of finished batches."""
        for batch, receipt in list(self._receipts.items()):
            if receipt.done:
                receipt.result()
                del self._receipts[batch]

    async def _begin_topic(self, topic: str) -> None:
        """Before the first row of a topic: finds the rows of this task that the log holds, to be skipped or compared."""
        partitions = await self.producer.partitions_for(topic)
        self._counts[topic] = min(self._noted_partitions() or len(partitions), len(partitions))
        if self._is_the_first():
            return
        await self.producer.flush(self.options.write_timeout_ms)
        must_compare = not self._is_order_stable()
        in_log = await self._rows_in_log(topic, partitions, alone=must_compare)
        found = sum(in_log.values())
        self.found += found
        if found and must_compare:
            self._comparisons[topic] = await self._compare(in_log)
        else:
            self._skip.update({tp: count for tp, count in in_log.items() if count})
            self._last_rows.update(await last_rows(self.options, self.producer.producer_id, in_log) if found else {})

    def _noted_partitions(self) -> int | None:
        """The number of partitions over which the first attempt distributed its rows; None if its note does not say. A recreated
        topic may have fewer partitions, and holds none of the rows."""
        note = decode_note(self.producer.note) if self.options.delivery == "exactly-once" else None
        return None if note is None or note.partitions < 0 else note.partitions

    def _is_order_stable(self) -> bool:
        """Whether the user promises a stable order, and the first row agrees with that of the first attempt."""
        note = decode_note(self.producer.note)
        return self.options.row_order == "stable" and note is not None and note.is_followed_by(self._first_row)

    async def _rows_in_log(self, topic: str, partitions: list[int], *, alone: bool) -> dict[TopicPartition, int]:
        """The number of rows of this task that the log holds in each partition. `alone` fences earlier attempts in all of
        them."""
        # All partitions: if the order of the rows has changed, an earlier attempt that still runs may write to other partitions.
        tps = [TopicPartition(topic, partition) for partition in partitions]
        return await self.producer.written(tps, alone=alone, timeout_ms=self.options.write_timeout_ms)

    async def _compare(self, in_log: dict[TopicPartition, int]) -> Comparison:
        note, by_partition, producer_id = decode_note(self.producer.note), self._by_partition, self.producer.producer_id
        return Comparison(await read_back(self.options, producer_id, in_log, note, by_partition), by_partition)

    async def finish(self) -> Written:
        """Writes the rows that a comparison found missing, and waits until all rows are acknowledged. Raises RowsDiffer if the
        log holds rows that this attempt does not have."""
        if not self._is_the_first():
            await self._begin_topics_without_rows()
        for topic, comparison in self._comparisons.items():
            comparison.check(self.task, topic)
        for topic, comparison in self._comparisons.items():
            await self._write_missing(topic, comparison)
        await self.producer.flush(self.options.write_timeout_ms)
        self._check_receipts()
        if any(self._skip.values()):
            missing = ", ".join(f"{count} of {tp}" for tp, count in self._skip.items() if count)
            text = f"task {self.task} has fewer rows than an earlier attempt wrote (missing {missing}): its input has changed"
            raise RowsDiffer(text)
        return Written(self.rows, self.found)

    async def _begin_topics_without_rows(self) -> None:
        """Checks the topics for which this attempt has no rows: an earlier attempt may have written some."""
        topics = [self.options.topic] if self.options.topic is not None else await self._all_topics()
        for topic in topics:
            if topic not in self._counts:
                await self._begin_topic(topic)

    async def _all_topics(self) -> list[str]:
        async with Admin(**admin_options(self.options.client)) as admin:
            return sorted(await admin.list_topics())

    def _is_the_first(self) -> bool:
        return self.options.delivery == "at-least-once" or self.producer.is_first_attempt

    async def _write_missing(self, topic: str, comparison: Comparison) -> None:
        for rows in comparison.missing.drain():
            for partition, run in split_by_partition(rows, rows.column("target_partition")):
                await self._send(topic, partition, run)
            self._check_receipts()


def write_task(options: WriteOptions, job: str, batches: Iterator[pyarrow.RecordBatch], *, is_stream: bool) -> Written:
    """Writes the rows of one task; called in the task by the batch sink and by the stream sink.

    `job` identifies a batch write. Raises UsageError, WriteNotDistinct, RowsDiffer, or the client's error."""
    context = TaskContext.get()
    if context is None:
        raise UsageError("the sink writes only inside a task of Spark")
    here = session()
    identity = note = None
    if options.delivery == "exactly-once":
        identity = write_identity(
            context.getLocalProperty,
            is_stream=is_stream,
            job=job,
            topic=options.topic,
            producer_name=options.producer_name,
            write_name=options.write_name,
            batch_id=options.batch_id,
        )
        note = first_note(options, identity)

    async def named(cluster: SharedCluster, first: pyarrow.RecordBatch | None) -> dict[str, Any]:
        if identity is None or note is None:
            return {}
        count = -1 if options.topic is None else await cluster.partition_count(options.topic)
        is_stable = options.row_order == "stable"
        row = hash_of_first(first, include_headers=options.include_headers) if is_stable and first is not None else b""
        return options_of(identity, context.partitionId(), replace(note, partitions=count, first_row=row))

    async def write_in(cluster: SharedCluster) -> Written:
        # Wait for the first rows before the producer is registered, because that fences the other attempts. Spark may start the
        # worker of a failed attempt late, when the attempt that replaced it already writes; a failed attempt gets no rows.
        first = await asyncio.to_thread(next, batches, None)
        async with Producer(cluster=cluster, **{**SENDING, **options.client, **await named(cluster, first)}) as producer:
            if identity is not None:
                await check_distinct(options, identity, producer, cluster)
            writer = TaskWriter(options, producer, context.partitionId())
            if first is not None:
                await writer.write(first)
            # A thread waits for Spark's rows, so that the producer can send earlier rows meanwhile.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await writer.write(batch)
            written = await writer.finish()
            if identity is None:
                return written
            is_retry = not producer.is_first_attempt
            return Written(written.rows, written.found, is_retry, identity.name, identity.work_epoch)

    async def write_all() -> Written:
        topics = [] if options.topic is None else [options.topic]
        async with here.clusters.lend(options.client, topics) as cluster:
            return await write_in(cluster)

    return here.run(write_all())


async def check_distinct(
    options: WriteOptions, identity: WriteIdentity, producer: Producer, cluster: SharedCluster | None = None
) -> None:
    """Raises WriteNotDistinct if the rows that this task would skip may be those of another write of the batch."""
    if producer.is_first_attempt or not identity.must_claim(decode_note(producer.note)):
        return
    name, job = identity.claim_name, identity.job.encode()
    claim = {"producer_name": name, "producer_work_epoch": identity.work_epoch, "producer_note": job}
    async with Producer(cluster=cluster, **{**options.client, **claim}) as claiming:
        identity.check_claim((claiming.note or b"").decode())


def check_same_tasks(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Before the commit: raises RowsDiffer if an earlier run of the write had more tasks, and one of the surplus tasks wrote
    rows. Its rows now belong to other tasks, and may have been written twice.

    The check runs only if a task had an earlier attempt and the topic is not a column."""
    retried = [message for message in messages if isinstance(message, Written) and message.is_retry and message.name]
    if retried and options.topic is not None:
        here, write = session(), retried[0]
        here.run(_check_no_more_tasks(here, options, options.topic, write, len(messages)))


async def _check_no_more_tasks(here: Session, options: WriteOptions, topic: str, write: Written, tasks: int) -> None:
    named = {"producer_name": f"{write.name}/{tasks}", "producer_work_epoch": write.work_epoch}
    async with (
        here.clusters.lend(options.client, [topic]) as cluster,
        Producer(cluster=cluster, **{**options.client, **named}) as producer,
        Admin(**admin_options(options.client)) as admin,
    ):
        tps = [TopicPartition(topic, partition) for partition in await producer.partitions_for(topic)]
        if not producer.is_first_attempt:  # Fences the first surplus task, which may still run.
            await producer.written(tps, alone=True, timeout_ms=options.write_timeout_ms)
        described = await admin.describe_producers(tps, timeout_ms=options.write_timeout_ms)
    counts: Counter[str] = Counter()
    for found in described.values():
        for known in found.producers:
            if known.is_named and known.work_epoch == write.work_epoch and _task_of(known.name, write.name) >= tasks:
                counts[known.name or ""] += known.last_sequence + 1
    if counts:
        text = (
            f"this batch was run before with more tasks, and {', '.join(sorted(counts))} wrote {counts.total()} rows then: the "
            f"{tasks} tasks of this run may have written these rows again, so they may be in the topic twice; how to go on is "
            "in docs/spark-recipes.md, under RowsDiffer"
        )
        raise RowsDiffer(text, topic=topic)


def _task_of(producer_name: str | None, write: str) -> int:
    """The number of the task with this producer name; -1 if the name belongs to another write."""
    head, _, task = (producer_name or "").rpartition("/")
    return int(task) if head == write and task.isdecimal() else -1


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("strandline")`. A retried task belongs to the same write. The same job, started again, is another write
    and appends its rows again, unless the option `producerName` gives it an identity."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError('a log is only ever appended to: write with .mode("append")')
        check_columns(schema, options.topic)
        self._options = options
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_task(self._options, self._job, iterator, is_stream=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Only checks the tasks: the rows were written and acknowledged by then."""
        check_same_tasks(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: rows that the tasks have written stay in the log."""


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream.format("strandline")`. A row is identified by query id, batch id, task, and its number in the task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        if options.batch_id is not None:
            raise UsageError("option batchId is for writes in foreachBatch and for batch jobs: a stream knows its batches")
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_task(self._options, "", iterator, is_stream=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Only checks the tasks: the rows were written and acknowledged by then."""
        check_same_tasks(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: Spark runs the batch again under the same names, and its tasks find the rows that were written."""
