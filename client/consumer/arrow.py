"""Converts columns to Arrow. Arrow arrays share the columns' buffers; bytes are copied only if several batches become one.

pyarrow is imported by the first call and not by this module, so that a client without pyarrow works except for these calls. The
types are those of Spark's Kafka source; Spark rejects any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from strandline.client.consumer.columns import BinaryColumn, HeadersColumn
from strandline.client.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_MS_MAX = (2**63 - 1) // 1000
"""The latest time, in milliseconds, that 64 bits hold in microseconds: some 292,000 years from 1970."""
_CONSTANT_ROWS = 16_384
"""A constant column is built once with this many rows, and cut to size."""


class ColumnBatch(Protocol):
    """The part of a `FetchedBatch` that the conversion reads."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offsets(self) -> memoryview: ...
    @property
    def timestamps_ms(self) -> memoryview: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def keys(self) -> BinaryColumn: ...
    @property
    def values(self) -> BinaryColumn: ...
    @property
    def headers(self) -> HeadersColumn | None: ...
    def __len__(self) -> int: ...


@cache
def arrow_form() -> ArrowForm:
    """The form that all calls share. UsageError without pyarrow."""
    return ArrowForm()


class ArrowForm:
    """pyarrow, its types and schemas, and a cache of constant columns. UsageError without pyarrow."""

    def __init__(self) -> None:
        try:
            import pyarrow
        except ImportError as e:
            raise UsageError("rows in Arrow's form need pyarrow: pip install pyarrow") from e
        self._pa = pa = pyarrow
        self._milliseconds, self._microseconds = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
        self._header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        self._headers = pa.list_(pa.field("element", self._header))
        self._plain = pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", self._microseconds),
                ("timestampType", pa.int32()),
            ]
        )
        self._whole = self._plain.append(pa.field("headers", self._headers))
        self._constants: Callable[[Any, Any], Any] = lru_cache(maxsize=64)(self._make_constant)

    def schema(self, include_headers: bool) -> pa.Schema:
        return self._whole if include_headers else self._plain

    def record_batch(self, batches: Sequence[ColumnBatch], include_headers: bool) -> pa.RecordBatch:
        """All rows of these batches, which are of one partition."""
        pa = self._pa
        first, count = batches[0], sum(map(len, batches))
        columns = [
            self._joined([self._binary(batch.keys) for batch in batches]),
            self._joined([self._binary(batch.values) for batch in batches]),
            self._constant(first.topic, pa.string(), count),
            self._constant(first.partition, pa.int32(), count),
            self._numbers([batch.offsets for batch in batches], pa.int64()),
            self._times([batch.timestamps_ms for batch in batches]),
            self._joined(self._timestamp_types(batches, count)),
        ]
        if include_headers:
            columns.append(self._joined([self._headers_of(batch) for batch in batches]))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(include_headers))

    def _joined(self, arrays: list[Any]) -> Any:
        return arrays[0] if len(arrays) == 1 else self._pa.concat_arrays(arrays)

    # -- fields of bytes ----------------------------------------------------------------------------------------------

    def _binary(self, column: BinaryColumn, kind: Any = None) -> Any:
        pa = self._pa
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(kind or pa.binary(), column.count, buffers, offset=column.first)

    def _headers_of(self, batch: ColumnBatch) -> Any:
        headers = batch.headers
        if headers is None:
            return self._pa.nulls(len(batch), self._headers)
        return self._pa.Array.from_buffers(
            self._headers,
            headers.count,
            [self._pa.py_buffer(headers.validity), self._pa.py_buffer(headers.offsets)],
            offset=headers.first,
            children=[self._named_values(headers)],
        )

    def _named_values(self, headers: HeadersColumn) -> Any:
        columns = [self._binary(headers.names, self._pa.string()), self._binary(headers.values)]
        return self._pa.StructArray.from_arrays(columns, fields=list(self._header))

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _numbers(self, parts: list[memoryview], kind: Any) -> Any:
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._pa.Array.from_buffers(kind, sum(map(len, parts)), [None, self._pa.py_buffer(data)])

    def _times(self, parts: list[memoryview]) -> Any:
        """A time outside the range of microseconds becomes the nearest one inside."""
        try:
            return self._numbers(parts, self._milliseconds).cast(self._microseconds)
        except self._pa.ArrowInvalid:
            near = [max(-_MS_MAX, min(time, _MS_MAX)) * 1000 for part in parts for time in part]
            return self._pa.array(near, self._microseconds)

    def _timestamp_types(self, batches: Sequence[ColumnBatch], count: int) -> list[Any]:
        int32, kind = self._pa.int32(), batches[0].timestamp_type
        if all(batch.timestamp_type == kind for batch in batches):
            return [self._constant(kind, int32, count)]
        return [self._constant(batch.timestamp_type, int32, len(batch)) for batch in batches]

    def _constant(self, value: Any, kind: Any, count: int) -> Any:
        if count > _CONSTANT_ROWS:
            return self._pa.repeat(self._pa.scalar(value, kind), count)
        return self._constants(value, kind).slice(0, count)

    def _make_constant(self, value: Any, kind: Any) -> Any:
        return self._pa.repeat(self._pa.scalar(value, kind), _CONSTANT_ROWS)
