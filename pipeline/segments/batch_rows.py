"""One row per record batch: builds the columns of an Arrow batch from batch headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from strandline.pipeline.segments.arrow_types import arrow_schema
from strandline.pipeline.segments.columns import columns_of
from strandline.pipeline.segments.layout import SegmentFile
from strandline.pipeline.segments.walk import Found
from strandline.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from strandline.protocol.records.compression import codec_name

MS_MAX = (2**63 - 1) // 1000
"""The largest timestamp in ms that still fits into 64 bits as microseconds."""

_CODECS = tuple(codec_name(number) for number in range(COMPRESSION_MASK + 1))

_OF_HEADER: dict[str, Callable[[BatchHeader], Any]] = {
    "baseOffset": lambda h: h[0],
    "lastOffset": lambda h: h[0] + h[6],
    "leaderEpoch": lambda h: h[2],
    "recordCount": lambda h: h[12],
    "producerId": lambda h: h[9],
    "producerEpoch": lambda h: h[10],
    "baseSequence": lambda h: h[11],
    "baseTimestamp": lambda h: h[7],
    "maxTimestamp": lambda h: h[8],
    "timestampType": lambda h: 1 if h[5] & TIMESTAMP_TYPE_MASK else 0,
    "codec": lambda h: _CODECS[h[5] & COMPRESSION_MASK],
    "isTransactional": lambda h: bool(h[5] & TRANSACTIONAL_MASK),
    "isControl": lambda h: bool(h[5] & CONTROL_MASK),
    "crcStored": lambda h: h[4],
}
_OF_FOUND: dict[str, Callable[[Found], Any]] = {
    "position": lambda f: f[0],
    "sizeBytes": lambda f: f[1],
    "crcComputed": lambda f: f[3],
    "damage": lambda f: f[4],
}


def file_values(file: SegmentFile) -> dict[str, Any]:
    """The values of the columns that are equal in all rows of the file."""
    return {
        "path": file.path,
        "broker": file.broker,
        "topic": file.topic,
        "partition": file.partition,
        "topicId": file.topic_id,
        "segmentBase": file.base_offset,
    }


def clipped(found: Iterable[Found], start_offset: int, end_offset: int | None) -> Iterator[Found]:
    """Drops the batches that lie outside of [`start_offset`, `end_offset`). Damage without a header is kept."""
    for each in found:
        header = each.header
        if header is None or (header.last_offset >= start_offset and (end_offset is None or header.base_offset < end_offset)):
            yield each


def batch_rows(found: Iterable[Found], file: SegmentFile, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches of at most `rows` rows, one row per batch or damage, with the columns `names`."""
    schema, remaining = arrow_schema("batch", names), iter(found)
    while some := list(islice(remaining, rows)):
        headers = [each.header for each in some]
        arrays = [_column(name, schema.field(name).type, some, headers, file) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(name: str, kind: Any, some: list[Found], headers: list[BatchHeader | None], file: SegmentFile) -> Any:
    if name in _OF_HEADER:
        read = _OF_HEADER[name]
        values = [None if header is None else read(header) for header in headers]
        return times(values) if columns_of("batch")[name] == "timestamp" else pa.array(values, kind)
    if name in _OF_FOUND:
        return pa.array(list(map(_OF_FOUND[name], some)), kind)
    return constant(file_values(file)[name], kind, len(some))


def constant(value: Any, kind: Any, count: int) -> Any:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def times(values: list[int | None]) -> Any:
    """Converts timestamps in ms to Spark's timestamps (us, UTC). A timestamp out of their range becomes the nearest one in it."""
    kind = pa.timestamp("us", tz="UTC")
    try:
        return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(kind)
    except pa.ArrowInvalid:
        near = [None if value is None else max(-MS_MAX, min(value, MS_MAX)) * 1000 for value in values]
        return pa.array(near, kind)
