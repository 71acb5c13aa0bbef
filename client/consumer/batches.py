"""Record batches by column: what `Consumer.fetch_batches` returns.

    for tp, batches in (await consumer.fetch_batches(timeout_ms=1000)).items():
        for rows in arrow_batches(batches):
            ...

A `FetchedBatch` is one batch of the log, in columns (columns.py): no Python object per record is left, and nothing is
deserialized.

`to_arrow` and `arrow_batches` need pyarrow, which the first call imports (arrow.py). Their columns have the names, the order and
the types of those of Spark's Kafka source.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from strandline.client.consumer.arrow import arrow_form
from strandline.client.consumer.columns import BinaryColumn, HeadersColumn, int64s
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import UsageError
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.reader import Columns, decode_columns

ArrowBatch: TypeAlias = Any
"""pyarrow.RecordBatch. pyarrow has no type annotations, so its name in a public signature would be an error in each program that
pyright checks strictly."""
ArrowSchema: TypeAlias = Any
"""pyarrow.Schema."""

ROWS = 10_000
"""Rows of one Arrow batch: with fewer, the cost per batch is noticeable; with more, Spark becomes no faster."""
ARROW_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one Arrow batch that joins several batches. Its offsets are int32, so this could not be more than 2 GiB."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Timestamp types: the producer set the timestamps of a batch, or the broker that appended it (KIP-32)."""


class FetchedBatch(msgspec.Struct, frozen=True):
    """One batch of the log, or a part of it, by column: each column has a row per record."""

    topic: str
    partition: int
    leader_epoch: int
    """The epoch of the leader that appended the batch."""
    next_offset: int
    """The offset at which to continue reading: after the last row, and after any offsets behind it that compaction removed."""
    offsets: memoryview
    """int64, ascending; with gaps where records were removed."""
    timestamps_ms: memoryview
    """int64, milliseconds since 1970 (UTC)."""
    timestamp_type: int
    """CREATE_TIME or LOG_APPEND_TIME."""
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeadersColumn | None
    """None if no record has headers."""
    producer_id: int = -1
    """Id of the producer that wrote the batch; -1 if that producer is not idempotent."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def first_offset(self) -> int:
        """The offset of the first row; `next_offset` if there are no rows."""
        return self.offsets[0] if self.offsets else self.next_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last row; `next_offset` - 1 if there are no rows."""
        return self.offsets[-1] if self.offsets else self.next_offset - 1

    @property
    def nbytes(self) -> int:
        """The bytes of keys, values and headers."""
        return self.keys.nbytes + self.values.nbytes + (self.headers.nbytes if self.headers is not None else 0)

    def clip(self, from_offset: int, until_offset: int) -> FetchedBatch:
        """The rows with `from_offset` <= offset < `until_offset`, perhaps none. It copies nothing."""
        first, stop = bisect_left(self.offsets, from_offset), bisect_left(self.offsets, until_offset)
        if (first, stop) == (0, len(self.offsets)):
            return self
        return self._slice(first, max(first, stop), min(self.next_offset, until_offset))

    def _slice(self, first: int, stop: int, next_offset: int) -> FetchedBatch:
        return FetchedBatch(
            self.topic,
            self.partition,
            self.leader_epoch,
            next_offset,
            self.offsets[first:stop],
            self.timestamps_ms[first:stop],
            self.timestamp_type,
            self.keys.slice(first, stop),
            self.values.slice(first, stop),
            self.headers and self.headers.slice(first, stop),
            self.producer_id,
        )

    def pieces(self, rows: int) -> Iterator[FetchedBatch]:
        """The rows of this batch, in batches of at most `rows` rows."""
        count = len(self.offsets)
        if count <= rows:
            yield self
            return
        for first in range(0, count, rows):
            stop = min(first + rows, count)
            yield self._slice(first, stop, self.offsets[stop] if stop < count else self.next_offset)

    def to_arrow(self, *, include_headers: bool = False) -> ArrowBatch:
        """These rows as one Arrow record batch, in the form of `arrow_batches`. UsageError without pyarrow."""
        return arrow_form().record_batch([self], include_headers)


def fetched_batch(
    tp: TopicPartition,
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    from_offset: int,
    check_crc: bool,
) -> FetchedBatch:
    """Decode one batch from `from_offset` on. (A batch may begin before the offset that a fetch asked for.)"""
    columns = decode_columns(buf, pos, header, check_crc).since(from_offset)
    count = len(columns.values)
    key_size, value_size = columns.sizes or (None, None)
    return FetchedBatch(
        *tp,
        header.leader_epoch,
        header.next_offset,
        int64s(columns.offsets()),
        _timestamps(columns),
        LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME,
        BinaryColumn.nulls(count) if columns.keys is None else BinaryColumn.of(columns.keys, key_size),
        BinaryColumn.of(columns.values, value_size),
        None if columns.headers is None else HeadersColumn.of(columns.headers),
        header.producer_id,
    )


def _timestamps(columns: Columns) -> memoryview:
    times = array("q", [columns.base_timestamp]) * len(columns.values) if columns.timestamps is None else columns.timestamps
    return memoryview(times).toreadonly()


# -- Arrow ------------------------------------------------------------------------------------------------------------


def arrow_schema(*, include_headers: bool = False) -> ArrowSchema:
    """The schema of `arrow_batches`. key, value: binary; topic: string; partition: int32; offset: int64; timestamp: timestamp[us,
    tz=UTC]; timestampType: int32; and if asked for, headers: list<struct<key: string, value: binary>>, null for a record without
    headers. UsageError without pyarrow."""
    return arrow_form().schema(include_headers)


def arrow_batches(batches: Iterable[FetchedBatch], *, rows: int = ROWS, include_headers: bool = False) -> Iterator[ArrowBatch]:
    """The rows of these batches, in the same order, as Arrow record batches of at most `rows` rows and 64 MiB.

    Rows of another partition begin another Arrow batch. A batch of the log is divided only if it has more than `rows` rows.
    UsageError without pyarrow.
    """
    if rows < 1:
        raise UsageError(f"an Arrow batch has at least 1 row, not {rows}")
    form = arrow_form()
    for group in _groups(batches, rows):
        yield form.record_batch(group, include_headers)


def _groups(batches: Iterable[FetchedBatch], rows: int) -> Iterator[list[FetchedBatch]]:
    group: list[FetchedBatch] = []
    count = size = 0
    for piece in chain.from_iterable(batch.pieces(rows) for batch in batches):
        if group and (count + len(piece) > rows or size + piece.nbytes > ARROW_BYTES_MAX or not _same_partition(group[0], piece)):
            yield group
            group, count, size = [], 0, 0
        group.append(piece)
        count, size = count + len(piece), size + piece.nbytes
    if group:
        yield group


def _same_partition(a: FetchedBatch, b: FetchedBatch) -> bool:
    return a.partition == b.partition and a.topic == b.topic
