"""A task of a replay: writes partitions of the source to the target, one after the other, each with a producer name of its own.

Every run reads a partition from the beginning of its range. The producer asks how many rows of its name each partition of the
target has, skips that many rows, and writes the following ones. The last row that it skips must be the last one that the target
has: the source may lack earlier rows by now, for instance by compaction, and then later rows would be skipped in their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from strandline.client import Producer, Receipt, TopicPartition, TopicRecreated
from strandline.pipeline.earlier_rows import Hash, hash_of_row, last_rows
from strandline.pipeline.errors import DataLoss, RowsDiffer
from strandline.pipeline.jobs.lake_writer import COLUMNS as LAKE_COLUMNS
from strandline.pipeline.jobs.lake_writer import HEADERS
from strandline.pipeline.jobs.replay_pace import Pace
from strandline.pipeline.jobs.replay_plan import Plan
from strandline.pipeline.options import WriteOptions
from strandline.pipeline.planning import Range
from strandline.pipeline.session import Session, session
from strandline.pipeline.sink import SENDING
from strandline.pipeline.task_reader import TaskReader

if TYPE_CHECKING:
    Headers = list[tuple[str, bytes | None]]

RESULT = "partition int, records bigint, found bigint, bytes bigint"
RESULT_TYPES = pyarrow.schema(
    [("partition", pyarrow.int32()), *((name, pyarrow.int64()) for name in ("records", "found", "bytes"))]
)
LAKE_ROWS = pyarrow.schema([LAKE_COLUMNS.field(name) for name in ("offset", "key", "value", "timestamp")]).append(HEADERS)
ROWS = 10_000


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers | None

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class LakeRange:
    """A range of a partition in the files of a lake. Around midnight the offsets of two files may alternate, and a compaction may
    join files between two runs. So rows are read in the order of their offsets, whatever files contain them."""

    range: Range
    files: tuple[tuple[int, str], ...]
    """First offset and path of each file, sorted by the first offset."""

    def read(self) -> Iterator[pyarrow.RecordBatch]:
        waiting, heads = deque(self.files), list[_Head]()
        while waiting or heads:
            bound = min((head.last for head in heads), default=-1)
            if waiting and (not heads or waiting[0][0] <= bound):
                heads += _Head.of(waiting.popleft()[1])
                continue
            parts = [head.take(bound) for head in heads]
            heads = [head for head in heads if head.has_more()]
            rows = pyarrow.concat_batches(parts) if len(parts) > 1 else parts[0]
            yield _clipped(rows.sort_by("offset") if len(parts) > 1 else rows, self.range)


@dataclass(slots=True)
class _Head:
    """An open file, and the rows that were read ahead from it: at least one."""

    batches: Iterator[pyarrow.RecordBatch]
    ahead: pyarrow.RecordBatch

    @classmethod
    def of(cls, path: str) -> list[_Head]:
        """Opens a file; an empty list for a file without rows."""
        file = pyarrow.parquet.ParquetFile(path)
        columns = [name for name in LAKE_ROWS.names if name in file.schema_arrow.names]
        batches = (_with_headers(batch) for batch in file.iter_batches(ROWS, columns=columns) if batch.num_rows)
        return [cls(batches, first) for first in islice(batches, 1)]

    @property
    def last(self) -> int:
        """The last offset of the rows that were read ahead."""
        return int(self.ahead.column("offset")[-1].as_py())

    def take(self, bound: int) -> pyarrow.RecordBatch:
        """Removes and returns the rows up to the offset `bound`, inclusive."""
        count = pc.sum(pc.less_equal(self.ahead.column("offset"), bound)).as_py()
        rows, self.ahead = self.ahead.slice(0, count), self.ahead.slice(count)
        return rows

    def has_more(self) -> bool:
        """Whether the file has more rows. Reads ahead if no rows are left in memory."""
        if not self.ahead.num_rows and (following := next(self.batches, None)) is not None:
            self.ahead = following
        return bool(self.ahead.num_rows)


def _with_headers(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The rows with a headers column, which is null if the file has none, so that rows of all files have one schema."""
    if "headers" not in batch.schema.names:
        batch = batch.append_column(HEADERS, pyarrow.nulls(batch.num_rows, HEADERS.type))
    return batch.select(LAKE_ROWS.names).cast(LAKE_ROWS)


def _clipped(batch: pyarrow.RecordBatch, wanted: Range) -> pyarrow.RecordBatch:
    offsets = batch.column("offset")
    return batch.filter(pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end)))


@dataclass(frozen=True, slots=True)
class LogRange:
    range: Range
    reader: TaskReader

    def read(self) -> Iterator[pyarrow.RecordBatch]:
        tp = self.range.tp
        try:
            yield from self.reader.read(self.range)
        except DataLoss as e:
            if not isinstance(e.__cause__, TopicRecreated):
                raise
            text = (
                f"{tp}: the source was deleted and recreated after the replay had begun, so it has other records now; start "
                "another replay into another topic"
            )
            raise DataLoss(text, topic=tp.topic, partition=tp.partition, may_continue=False) from None


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """The partitions that one task replays. Spark pickles it, so it holds plain values."""

    plan: Plan
    sources: Sequence[LogRange | LakeRange]
    options: WriteOptions
    """The options of the producers."""
    pace: Pace

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        for source in self.sources:
            done = self._replay(source)
            rows = {
                "partition": [source.range.partition],
                "records": [done.records],
                "found": [done.found],
                "bytes": [done.bytes],
            }
            yield pyarrow.RecordBatch.from_pydict(rows, schema=RESULT_TYPES)

    def _replay(self, source: LogRange | LakeRange) -> _Writer:
        here, partition = session(), source.range.partition
        name = self.plan.producer_name(partition)
        producer = Producer(**{**SENDING, **self.options.client, "producer_name": name, "producer_work_epoch": 0})
        writer = _Writer(self.plan, partition, producer, self.options, self.pace)
        try:
            here.run(writer.begin())
            for batch in source.read():
                writer.write(here, batch)
            here.run(writer.finish())
        finally:
            here.run(producer.stop(timeout_ms=0))
        return writer


@dataclass(slots=True)
class _Writer:
    """Writes the rows of one partition of the source."""

    plan: Plan
    partition: int
    producer: Producer
    options: WriteOptions
    pace: Pace
    records: int = 0
    """Number of records that were read, with those that an earlier run or attempt wrote."""
    found: int = 0
    """Number of records that an earlier run or attempt wrote."""
    bytes: int = 0
    """Bytes of keys and values that this attempt wrote."""
    _skip: dict[int, int] = field(default_factory=dict)
    """For each partition of the target, how many of the next rows it already has."""
    _last_rows: dict[int, Hash] = field(default_factory=dict)
    """For each partition of the target, the hash of the last of these rows, if the target still has it."""
    _receipts: dict[Any, Receipt] = field(default_factory=dict)
    """A receipt for each batch that is not acknowledged yet."""

    async def begin(self) -> None:
        await self.producer.start()
        partitions = [self.partition] if self.plan.place == "same" else range(self.plan.count)
        targets = [TopicPartition(self.plan.to, p) for p in partitions]
        there = await self.producer.written(targets, timeout_ms=self.options.write_timeout_ms)
        self._skip = {tp.partition: count for tp, count in there.items() if count}
        self.found = sum(self._skip.values())
        if self.found:
            found = await last_rows(self.options, self.producer.producer_id, there)
            self._last_rows = {tp.partition: row for tp, row in found.items()}

    def write(self, here: Session, batch: pyarrow.RecordBatch) -> None:
        step = self.pace.step(ROWS)
        for first in range(0, batch.num_rows, step):
            here.run(self._write(records_of(batch.slice(first, step)), here))

    async def _write(self, records: Iterator[Record], here: Session) -> None:
        count = size = 0
        for record in records:
            self.records += 1
            target = self.plan.target_partition(self.partition, record.key)
            if skip := self._skip.get(target):
                self._skip[target] = skip - 1
                if skip == 1:
                    self._check_last(target, record)
                continue
            sent = (record.value, record.key, target, record.headers, record.timestamp_ms)
            receipt = await self.producer.send(self.plan.to, *sent)
            self._receipts[receipt.batch] = receipt
            count, size = count + 1, size + record.size
        self.bytes += size
        self._check_receipts()
        if count:
            await self._keep_pace(count, size, here.loop.time())

    def _check_last(self, target: int, record: Record) -> None:
        """Raises RowsDiffer if this record, the last to skip, is not the last one that an earlier run wrote."""
        last = self._last_rows.get(target)
        if last is not None and last != hash_of_row(record.key, record.value, record.headers):
            raise self._differs("other")

    def _differs(self, kind: str) -> RowsDiffer:
        text = (
            f"partition {self.partition} has {kind} records than an earlier run wrote: the source has changed, for instance by "
            "compaction; start another replay into another topic"
        )
        return RowsDiffer(text, topic=self.plan.to, partition=self.partition)

    async def _keep_pace(self, count: int, size: int, now: float) -> None:
        import asyncio

        if (wait_s := self.pace.wait_s(count, size, now)) > 0:
            await asyncio.sleep(wait_s)

    async def finish(self) -> None:
        await self.producer.flush(self.options.write_timeout_ms)
        self._check_receipts()
        if any(self._skip.values()):
            raise self._differs("fewer")

    def _check_receipts(self) -> None:
        """Forgets acknowledged batches. Raises the error of the first batch that failed."""
        for batch, receipt in list(self._receipts.items()):
            if receipt.done:
                receipt.result()
                del self._receipts[batch]


def records_of(batch: pyarrow.RecordBatch) -> Iterator[Record]:
    """The rows as records, with timestamps in milliseconds as in the log."""
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    times = [us // 1000 for us in batch.column("timestamp").cast(pyarrow.int64()).to_pylist()]
    headers: list[Any] = [None] * batch.num_rows
    if "headers" in batch.schema.names:
        headers = [each and [(h["key"], h["value"]) for h in each] for each in batch.column("headers").to_pylist()]
    return map(Record, keys, values, times, headers)
