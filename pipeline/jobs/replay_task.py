"""What a task of a replay does: one partition of the source after the other, each under its own name.

A partition is read from the beginning of its range in every run. The producer says how many rows each partition of the target
holds of this name; so many are passed over, and writing goes on behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from strandline.client import Producer, Receipt, TopicPartition
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.jobs.lake_writer import COLUMNS as LAKE_COLUMNS
from strandline.pipeline.jobs.lake_writer import HEADERS
from strandline.pipeline.jobs.replay_pace import Pace
from strandline.pipeline.jobs.replay_plan import Plan
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
    """Where a range lies in a lake. Around midnight files of two dates may hold offsets in turns, and they may be joined between
    two runs: what counts is the order of the log, whatever files it is in."""

    range: Range
    files: tuple[tuple[int, str], ...]
    """First offset and path, in the order of the first offsets."""

    def read(self) -> Iterator[pyarrow.RecordBatch]:
        waiting, heads = deque(self.files), list[_Head]()
        while waiting or heads:
            bound = min((head.last for head in heads), default=-1)
            if waiting and (not heads or waiting[0][0] <= bound):
                heads += _Head.of(waiting.popleft()[1])
                continue
            parts = [head.take(bound) for head in heads]
            heads = [head for head in heads if head.is_there()]
            rows = pyarrow.concat_batches(parts) if len(parts) > 1 else parts[0]
            yield _clipped(rows.sort_by("offset") if len(parts) > 1 else rows, self.range)


@dataclass(slots=True)
class _Head:
    """A file that is being read, and what of it is read ahead: never nothing."""

    batches: Iterator[pyarrow.RecordBatch]
    ahead: pyarrow.RecordBatch

    @classmethod
    def of(cls, path: str) -> list[_Head]:
        """None for a file without rows."""
        file = pyarrow.parquet.ParquetFile(path)
        columns = [name for name in LAKE_ROWS.names if name in file.schema_arrow.names]
        batches = (_with_headers(batch) for batch in file.iter_batches(ROWS, columns=columns) if batch.num_rows)
        return [cls(batches, first) for first in islice(batches, 1)]

    @property
    def last(self) -> int:
        return int(self.ahead.column("offset")[-1].as_py())

    def take(self, bound: int) -> pyarrow.RecordBatch:
        """The rows up to this offset."""
        count = pc.sum(pc.less_equal(self.ahead.column("offset"), bound)).as_py()
        rows, self.ahead = self.ahead.slice(0, count), self.ahead.slice(count)
        return rows

    def is_there(self) -> bool:
        """Whether there is more; it is read then."""
        if not self.ahead.num_rows and (following := next(self.batches, None)) is not None:
            self.ahead = following
        return bool(self.ahead.num_rows)


def _with_headers(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Of one type, whether a file has a column for the headers or not."""
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
        return self.reader.read(self.range)


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Pickled, so plain values."""

    plan: Plan
    sources: Sequence[LogRange | LakeRange]
    client: Mapping[str, Any]
    """Of the producer."""
    pace: Pace
    timeout_ms: int

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
        producer = Producer(**{**SENDING, **self.client, "producer_name": name, "producer_work_epoch": 0})
        writer = _Writer(self.plan, partition, producer, self.pace, self.timeout_ms)
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
    """Of one partition of the source."""

    plan: Plan
    partition: int
    producer: Producer
    pace: Pace
    timeout_ms: int
    records: int = 0
    """That were read; those that a former run or attempt had written included."""
    found: int = 0
    bytes: int = 0
    """Of those that were written now."""
    _skip: dict[int, int] = field(default_factory=dict)
    """Rows of each partition of the target that are there and come again."""
    _receipts: dict[Any, Receipt] = field(default_factory=dict)
    """One of each batch that is on its way."""

    async def begin(self) -> None:
        await self.producer.start()
        places = [self.partition] if self.plan.place == "same" else range(self.plan.count)
        there = await self.producer.written([TopicPartition(self.plan.to, p) for p in places], timeout_ms=self.timeout_ms)
        self._skip = {place.partition: count for place, count in there.items() if count}
        self.found = sum(self._skip.values())

    def write(self, here: Session, batch: pyarrow.RecordBatch) -> None:
        step = self.pace.step(ROWS)
        for first in range(0, batch.num_rows, step):
            here.run(self._write(records_of(batch.slice(first, step)), here))

    async def _write(self, records: Iterator[Record], here: Session) -> None:
        count = size = 0
        for record in records:
            self.records += 1
            place = self.plan.place_of(self.partition, record.key)
            if skip := self._skip.get(place):
                self._skip[place] = skip - 1
                continue
            sent = (record.value, record.key, place, record.headers, record.timestamp_ms)
            receipt = await self.producer.send(self.plan.to, *sent)
            self._receipts[receipt.batch] = receipt
            count, size = count + 1, size + record.size
        self.bytes += size
        self._look_at_receipts()
        if count:
            await self._keep_pace(count, size, here.loop.time())

    async def _keep_pace(self, count: int, size: int, now: float) -> None:
        import asyncio

        if (wait_s := self.pace.wait_s(count, size, now)) > 0:
            await asyncio.sleep(wait_s)

    async def finish(self) -> None:
        await self.producer.flush(self.timeout_ms)
        self._look_at_receipts()
        if any(self._skip.values()):
            text = f"partition {self.partition} has fewer records than a former run has written: the source is not the same"
            raise RowsDiffer(text, topic=self.plan.to, partition=self.partition)

    def _look_at_receipts(self) -> None:
        """Raises what became of the first that failed."""
        for batch, receipt in list(self._receipts.items()):
            if receipt.done:
                receipt.result()
                del self._receipts[batch]


def records_of(batch: pyarrow.RecordBatch) -> Iterator[Record]:
    """Timestamps in milliseconds again, as the log had them."""
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    times = [us // 1000 for us in batch.column("timestamp").cast(pyarrow.int64()).to_pylist()]
    headers: list[Any] = [None] * batch.num_rows
    if "headers" in batch.schema.names:
        headers = [each and [(h["key"], h["value"]) for h in each] for each in batch.column("headers").to_pylist()]
    return map(Record, keys, values, times, headers)
