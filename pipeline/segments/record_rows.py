"""One row per record: decodes batches into columns with the client's code, and joins small batches into one Arrow batch.

A batch that is damaged, or whose records cannot be decoded, becomes one row without an offset and with the fault in `damage`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client.consumer.arrow import arrow_form
from strandline.client.consumer.batches import FetchedBatch, fetched_batch
from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.segments.arrow_types import arrow_schema
from strandline.pipeline.segments.batch_rows import constant, file_values
from strandline.pipeline.segments.committed import Committed
from strandline.pipeline.segments.layout import SegmentFile
from strandline.pipeline.segments.walk import Found, Walk
from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import COMPRESSION_MASK, HEADER_SIZE, MAX_SEQUENCE, BatchHeader, record_bytes
from strandline.protocol.records.compression import CannotDecompress

ARROW_BYTES_MAX = 16 << 20
"""Batches are joined up to this size of their keys, values and headers together."""


RECORDS_BYTES_MAX = 256 << 20
"""The largest size of the records of one batch after decompression. A broker of Strandline accepts less, one of
Apache Kafka any size."""


class Piece(NamedTuple):
    """Decoded records of one batch, at most as many as an Arrow batch may have rows."""

    header: BatchHeader
    position: int
    records: FetchedBatch


class Offsets(NamedTuple):
    """The range of offsets to read: `start` <= offset < `end`. `end` None: no upper bound."""

    start: int
    end: int | None


def record_rows(
    walk: Walk, file: SegmentFile, names: Sequence[str], rows: int, wanted: Offsets, committed: Committed | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches of at most `rows` rows, with the columns `names`. With `committed`, only of committed records."""
    form = _RecordRows(file, names)
    group: list[Piece] = []
    count = size = 0
    for found in walk:
        if committed is not None and found.header is not None and found.damage is None and not committed.has(found.header):
            continue
        pieces = _pieces(walk, found, file, rows, wanted)
        if isinstance(pieces, str):
            if group:
                yield form.of_records(group)
            group, count, size = [], 0, 0
            yield form.of_damage(found, pieces)
            continue
        for piece in pieces:
            length, nbytes = len(piece.records), piece.records.nbytes
            if group and (count + length > rows or size + nbytes > ARROW_BYTES_MAX):
                yield form.of_records(group)
                group, count, size = [], 0, 0
            group.append(piece)
            count, size = count + length, size + nbytes
    if group:
        yield form.of_records(group)


def _pieces(walk: Walk, found: Found, file: SegmentFile, rows: int, wanted: Offsets) -> Iterable[Piece] | str:
    """The decoded records of a batch in the wanted range, or the text for `damage` if they cannot be decoded."""
    header = found.header
    if header is not None and _is_outside(header, wanted):
        return ()
    if found.damage is not None or header is None:
        return found.damage or ""
    try:
        records = _decoded(walk.batch(found), header, TopicPartition(file.topic, file.partition), wanted)
    except CannotDecompress as e:
        return f"codec: {e}"
    except BrokerError as e:
        return f"records: {e.message or e}"
    return [Piece(header, found.position, piece) for piece in records.pieces(rows) if len(piece)]


def _is_outside(header: BatchHeader, wanted: Offsets) -> bool:
    return header.last_offset < wanted.start or (wanted.end is not None and header.base_offset >= wanted.end)


def _decoded(batch: memoryview, header: BatchHeader, tp: TopicPartition, wanted: Offsets) -> FetchedBatch:
    if header.compression:
        data = bytes(HEADER_SIZE) + record_bytes(batch, 0, header, RECORDS_BYTES_MAX)
        plain = header._replace(size=len(data), attributes=header.attributes & ~COMPRESSION_MASK)
        records = fetched_batch(tp, data, 0, plain, from_offset=wanted.start, check_crc=False)
    else:
        records = fetched_batch(tp, batch, 0, header, from_offset=wanted.start, check_crc=False)
    return records if wanted.end is None else records.clip(wanted.start, wanted.end)


_NUMBERS = {"position", "baseOffset", "producerId", "leaderEpoch", "producerEpoch"}
_OF_CLIENT = {"offset", "timestamp", "timestampType", "key", "value", "headers"}


class _RecordRows:
    """Builds Arrow batches with the wanted columns from the records of one file."""

    def __init__(self, file: SegmentFile, names: Sequence[str]) -> None:
        self._file = file_values(file)
        self._names = names
        self._schema = arrow_schema("record", names)
        self._wants_headers = "headers" in names

    def of_damage(self, found: Found, damage: str) -> pa.RecordBatch:
        """One row for a damaged batch, with the fields of its header if that is possible."""
        values = dict(self._file) | {"position": found.position, "sizeBytes": found.size, "damage": damage}
        if (header := found.header) is not None:
            values |= {
                "leaderEpoch": header.leader_epoch,
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "baseOffset": header.base_offset,
                "isTransactional": header.is_transactional,
                "isControl": header.is_control,
            }
        columns = [constant(values.get(name), self._schema.field(name).type, 1) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def of_records(self, group: list[Piece]) -> pa.RecordBatch:
        batches = [piece.records for piece in group]
        client = arrow_form().record_batch(batches, self._wants_headers)
        columns = [self._column(name, group, client) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, group: list[Piece], client: pa.RecordBatch) -> Any:
        kind = self._schema.field(name).type
        if name in _OF_CLIENT:
            return client.column(name)
        if name in self._file:
            return constant(self._file[name], kind, client.num_rows)
        if name == "damage":
            return pa.nulls(client.num_rows, kind)
        if name == "sequence":
            return _numbers(chain.from_iterable(map(_sequences, group)), kind)
        if name == "sizeBytes":
            return _sizes(group, client)
        if name == "isControl":
            return _per_batch([piece.header.is_control for piece in group], group, kind)
        if name == "isTransactional":
            return _per_batch([piece.header.is_transactional for piece in group], group, kind)
        assert name in _NUMBERS, name
        return _per_batch([_number(name, piece) for piece in group], group, kind)


def _number(name: str, piece: Piece) -> int:
    header = piece.header
    return {
        "position": piece.position,
        "baseOffset": header.base_offset,
        "producerId": header.producer_id,
        "leaderEpoch": header.leader_epoch,
        "producerEpoch": header.producer_epoch,
    }[name]


def _per_batch(values: list[Any], group: list[Piece], kind: Any) -> Any:
    """A column in which each record has the value of its batch."""
    counts = [len(piece.records) for piece in group]
    if values.count(values[0]) == len(values):
        return constant(values[0], kind, sum(counts))
    of_records = chain.from_iterable(map(repeat, values, counts))
    return pa.array(list(of_records), kind) if kind == pa.bool_() else _numbers(of_records, kind)


def _numbers(values: Iterable[int], kind: Any) -> Any:
    numbers = array("i" if kind == pa.int32() else "q", values)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _sequences(piece: Piece) -> Iterable[int]:
    """The sequence of each record: the base sequence plus the record's distance from the base offset. As in Kafka, 0 follows
    `MAX_SEQUENCE`."""
    header, records = piece.header, piece.records
    if header.base_sequence < 0:
        return array("i", [-1]) * len(records)
    first = header.base_sequence + records.first_offset - header.base_offset
    if records.last_offset - records.first_offset == len(records) - 1 and first + len(records) <= MAX_SEQUENCE:
        return range(first, first + len(records))
    return [(header.base_sequence + offset - header.base_offset) & MAX_SEQUENCE for offset in records.offsets]


def _sizes(group: list[Piece], client: pa.RecordBatch) -> Any:
    """The size in bytes of each record's key, value and headers together."""
    parts = [pc.fill_null(pc.cast(pc.binary_length(client.column(name)), pa.int64()), 0) for name in ("key", "value")]
    sizes = pc.add(*parts)
    if all(piece.records.headers is None for piece in group):
        return sizes
    of_headers: list[int] = []
    for piece in group:
        headers = piece.records.headers
        count = len(piece.records)
        of_headers += [0] * count if headers is None else [_headers_size(headers[i]) for i in range(count)]
    return pc.add(sizes, pa.array(of_headers, pa.int64()))


def _headers_size(headers: Sequence[tuple[str, bytes | None]]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)
