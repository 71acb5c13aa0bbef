"""Compares the rows of a task with those that earlier attempts wrote, if the order of the rows is unknown.

The log counts the rows of a task, but after a shuffle a row's number does not identify the row. So a later attempt reads back the
rows of the earlier ones and compares the rows themselves before it writes anything:

    1. The first attempt stores a note with the cluster (write_identity.py): the end offset of each partition of the topic, or,
       if the topic is a column, the time at which the attempt began.
    2. A later attempt fences the earlier ones, and reads the batches of its producer name and work epoch from these offsets on.
       It must find as many rows as the log has counted, else it raises RowsDiffer.
    3. Each of its own rows is matched with one of the rows that were read. Rows without a match are kept in memory or in a file.
    4. If every row that was read has a match, the kept rows are written. Else this attempt has other rows than the earlier ones:
       it writes nothing and raises RowsDiffer, because a row would be lost or duplicated.

Two rows match if their keys, values and headers are equal, and their partitions if there is a column `partition`. Of each row
that was read, 16 bytes of hash are kept; two different rows have equal hashes about once in 10^20 tasks of 10^9 rows.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from strandline.client import (
    Admin,
    Consumer,
    LogTruncated,
    OffsetOutOfRange,
    RequestTimeout,
    TopicPartition,
    TopicRecreated,
    UnknownTopic,
)
from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.partition_state import LATEST
from strandline.client.producer.columns import Columns
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.options import WriteOptions, admin_options, consumer_options
from strandline.pipeline.rows import columns_of
from strandline.pipeline.session import session
from strandline.pipeline.write_identity import WriteIdentity, WriteNote

MEMORY_BYTES_MAX = 64 * 1024 * 1024
"""Rows without a match go to a file when they exceed this size."""
FETCH_WAIT_MS = 500

Hash = bytes
_NOT_READ = "the rows of an earlier attempt could not be read within writeTimeoutMs: check that the leaders are up, and retry"


# -- where to start ---------------------------------------------------------------------------------------------------

CLOCK_SKEW_MS = 15 * 60 * 1000
"""The largest expected difference between the clocks of two machines. If it is larger, the log is read from its start."""


def first_note(options: WriteOptions, identity: WriteIdentity) -> WriteNote:
    """The note of a first attempt. It has end offsets only with `rowOrder=unknown` and the option `topic`."""
    starts = None
    if options.topic is not None and options.row_order == "unknown":
        starts = _end_offsets(options, options.topic)
    return WriteNote(options.topic, starts, int(time.time() * 1000), identity.run_id, identity.job)


def hash_of_first(rows: pa.RecordBatch, *, include_headers: bool) -> bytes:
    """The hash of the first of these rows, without its partition; empty if there are none."""
    if not rows.num_rows:
        return b""
    values, keys, headers = columns_of(rows.slice(0, 1), include_headers)
    (row,) = zip(keys or (None,), values, headers or ((),), strict=True)
    return hash_of_row(*row)


def hash_of_row(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None) -> bytes:
    """The hash of a row without its partition."""
    return _hash(None, key, value, headers)


def _end_offsets(options: WriteOptions, topic: str) -> list[int]:
    """The end offset of each partition. Raises UnknownTopic, or RequestTimeout if a leader does not answer in
    `writeTimeoutMs`."""
    here, timeout_ms = session(), options.write_timeout_ms
    with here.client(Admin, admin_options(options.client)) as admin:
        (described,) = here.run(admin.describe_topics([topic]))
        tps = [TopicPartition(topic, partition.partition) for partition in described.partitions]
        found = here.run(admin.list_offsets(dict.fromkeys(tps, LATEST), timeout_ms=timeout_ms))
    for tp in tps:
        if found.get(tp) is None:
            text = (
                "the leader did not return the end offset of the partition within writeTimeoutMs: check that it is up, and retry"
            )
            raise RequestTimeout(text, topic=topic, partition=tp.partition, elapsed_ms=timeout_ms)
    return [end.offset for _, end in sorted(found.items()) if end is not None]


async def _offsets_to_read_from(
    consumer: Consumer, tps: Iterable[TopicPartition], note: WriteNote | None
) -> list[dict[TopicPartition, int]]:
    """The start offsets to try, the cheapest first. The next ones are tried if rows are missing.

    The end offsets of the note are exact, so nothing else is tried. Its time is not exact, because clocks differ.
    """
    tps = list(tps)
    if note is not None and note.starts is not None and {tp.topic for tp in tps} == {note.topic}:
        starts = note.starts
        return [{tp: starts[tp.partition] if tp.partition < len(starts) else 0 for tp in tps}]
    earliest = await consumer.beginning_offsets(tps)
    if note is None or note.started_at_ms < 0:
        return [earliest]
    since_ms = max(0, note.started_at_ms - CLOCK_SKEW_MS)
    young = await consumer.offsets_for_times(dict.fromkeys(tps, since_ms))
    return [{tp: earliest[tp] if (at := young[tp]) is None else at.offset for tp in tps}, earliest]


# -- reading back -----------------------------------------------------------------------------------------------------


async def read_back(
    options: WriteOptions, producer_id: int, written: Mapping[TopicPartition, int], note: WriteNote | None, by_partition: bool
) -> Counter[Hash]:
    """The hashes of the rows that this producer wrote; `written` has their number in each partition. Raises RowsDiffer if some of
    them were deleted, and RequestTimeout."""
    counts = {tp: count for tp, count in written.items() if count}
    async with Consumer(**{**consumer_options(options.client), "auto_offset_reset": "error"}) as consumer:
        await consumer.assign(list(counts))
        attempts = await _offsets_to_read_from(consumer, counts, note)
        for starts in attempts:
            earlier = _EarlierRows(producer_id, by_partition, dict(counts))
            try:
                await _read_from(consumer, starts, earlier, options.write_timeout_ms)
            except RowsDiffer:
                if starts is attempts[-1]:
                    raise
            else:
                return earlier.found
    raise AssertionError("there is at least one attempt")


async def last_rows(options: WriteOptions, producer_id: int, written: Mapping[TopicPartition, int]) -> dict[TopicPartition, Hash]:
    """The hash, without the partition, of the last row that this producer wrote to each partition. Rows that were deleted since
    are left out. Raises RequestTimeout."""
    async with Admin(**admin_options(options.client)) as admin:
        described = await admin.describe_producers(list(written), [producer_id], timeout_ms=options.write_timeout_ms)
    offsets = {
        tp: known.last_offset
        for tp, count in written.items()
        for known in described[tp].producers
        if known.producer_id == producer_id and known.last_sequence == count - 1
    }
    found: dict[TopicPartition, Hash] = {}
    if not offsets:
        return found
    async with Consumer(**{**consumer_options(options.client), "auto_offset_reset": "earliest"}) as consumer:
        await consumer.assign(list(offsets))
        for tp, offset in offsets.items():
            consumer.seek(tp, offset)
        try:
            async with asyncio.timeout(options.write_timeout_ms / 1000):
                while offsets:
                    for tp, batches in (await consumer.fetch_batches(timeout_ms=FETCH_WAIT_MS)).items():
                        if tp in offsets:
                            found.update(_row_at(offsets.pop(tp), tp, batches, producer_id))
                            consumer.pause(tp)
                    for tp in [tp for tp, offset in offsets.items() if await consumer.position(tp) > offset]:
                        del offsets[tp]
                        consumer.pause(tp)
        except TimeoutError:
            raise RequestTimeout(_NOT_READ, elapsed_ms=options.write_timeout_ms) from None
    return found


def _row_at(
    offset: int, tp: TopicPartition, batches: Iterable[FetchedBatch], producer_id: int
) -> Iterator[tuple[TopicPartition, Hash]]:
    for batch in batches:
        row = batch.clip(offset, offset + 1)
        if len(row) and batch.producer_id == producer_id:
            yield tp, next(_hashes_of(row, by_partition=False))


async def _read_from(consumer: Consumer, starts: Mapping[TopicPartition, int], earlier: _EarlierRows, timeout_ms: float) -> None:
    consumer.resume(*starts)
    for tp, offset in starts.items():
        consumer.seek(tp, offset)
    ends = await consumer.end_offsets(list(starts))
    while earlier.left:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not (fetched := await consumer.fetch_batches(timeout_ms=FETCH_WAIT_MS)):
                    await earlier.check_not_behind(consumer, ends)
        except (OffsetOutOfRange, LogTruncated, TopicRecreated, UnknownTopic) as e:
            raise RowsDiffer(f"the rows of an earlier attempt can no longer be read: {e}") from e
        except TimeoutError:
            raise RequestTimeout(_NOT_READ, elapsed_ms=timeout_ms) from None
        for tp in earlier.take(fetched):
            consumer.pause(tp)
        await earlier.check_not_behind(consumer, ends)


@dataclass(slots=True)
class _EarlierRows:
    producer_id: int
    by_partition: bool
    left: dict[TopicPartition, int]
    """Number of rows in each partition that are not found yet."""
    found: Counter[Hash] = field(default_factory=Counter)

    def take(self, fetched: Mapping[TopicPartition, list[FetchedBatch]]) -> Iterator[TopicPartition]:
        """Adds the producer's rows among those fetched. Yields the partitions of which all rows are found."""
        for tp, batches in fetched.items():
            for batch in batches:
                if batch.producer_id == self.producer_id and tp in self.left:
                    self.left[tp] -= len(batch)
                    self.found.update(_hashes_of(batch, self.by_partition))
            if self.left.get(tp) == 0:
                del self.left[tp]
                yield tp

    async def check_not_behind(self, consumer: Consumer, ends: Mapping[TopicPartition, int]) -> None:
        for tp, count in self.left.items():
            if await consumer.position(tp) >= ends[tp]:
                text = f"{count} rows that an earlier attempt wrote to {tp} have been deleted since"
                raise RowsDiffer(text, topic=tp.topic, partition=tp.partition)


def _hashes_of(batch: FetchedBatch, by_partition: bool) -> Iterator[Hash]:
    count = len(batch)
    headers = repeat(()) if batch.headers is None else map(batch.headers.__getitem__, range(count))
    keys, values = map(batch.keys.__getitem__, range(count)), map(batch.values.__getitem__, range(count))
    partition = batch.partition if by_partition else None
    return (_hash(partition, *row) for row in zip(keys, values, headers, strict=False))


def _hash(
    partition: int | None, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None
) -> Hash:
    return blake2b(msgspec.msgpack.encode((partition, key, value, list(headers or ()))), digest_size=16).digest()


# -- comparing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Comparison:
    """Matches the rows of this attempt with those that the log holds of earlier ones."""

    earlier: Counter[Hash]
    """Rows in the log that have no match yet."""
    by_partition: bool
    missing: Spool = field(default_factory=lambda: Spool())

    def take(self, rows: pa.RecordBatch, columns: Columns, partitions: pa.Array) -> None:
        """Matches some rows of the task; `partitions` are the partitions to which they go."""
        values, keys, headers = columns
        targets = partitions.to_pylist() if self.by_partition else repeat(None)
        is_missing = []
        for partition, key, value, own in zip(targets, keys or repeat(None), values, headers or repeat(None), strict=False):
            row = _hash(partition, key, value, own)
            known = self.earlier.get(row, 0)
            is_missing.append(not known)
            if known > 1:
                self.earlier[row] = known - 1
            elif known:
                del self.earlier[row]
        kept = rows.append_column("target_partition", partitions).filter(pa.array(is_missing, pa.bool_()))
        if kept.num_rows:
            self.missing.add(kept)

    def check(self, task: int, topic: str) -> None:
        """After all rows of the task: raises RowsDiffer if the log holds rows without a match."""
        if self.earlier:
            raise RowsDiffer(
                f"{self.earlier.total()} rows that an earlier attempt wrote are not among the rows of task {task} now: "
                "its input has changed; nothing was written; make the input repeatable (a checkpoint or a table before the sink)",
                topic=topic,
            )


class Spool:
    """Rows kept in memory, or in an unnamed temporary file when they exceed a bound."""

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: Any = None
        self._writer: Any = None

    def add(self, rows: pa.RecordBatch) -> None:
        self._kept.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._bytes_max:
            self._spill(rows.schema)

    def _spill(self, schema: pa.Schema) -> None:
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="strandline-rows-")  # noqa: SIM115  (it lives as long as the spool)
            self._writer = pa.ipc.new_stream(self._file, schema)
        for rows in self._kept:
            self._writer.write_batch(rows)
        self._kept, self._bytes = [], 0

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows in order. Afterwards the spool is empty."""
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)
            self.close()
        yield from self._kept
        self._kept = []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None
