"""Rows of a DataFrame as records: which columns there are, and how they are handed to the producer. Nothing here waits.

    value binary|string | key binary|string | headers array<struct<key: string, value: binary>> | topic string | partition int

as with Spark's Kafka connector: `value` must be there, the others may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import unpack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from strandline.client.columns import Columns
from strandline.pipeline.errors import WrongColumns

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, tuple[tuple[DataType, ...], str]] = {
    "key": ((BinaryType(), StringType()), "binary or string"),
    "value": ((BinaryType(), StringType()), "binary or string"),
    "topic": ((StringType(),), "string"),
    "partition": ((IntegerType(),), "int"),
    "headers": ((_HEADERS,), "array<struct<key: string, value: binary>>"),
}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Before anything is written. Raises WrongColumns with the column and what it has to be."""
    if "value" not in schema.names:
        raise WrongColumns(f"a column value (binary or string) is needed; there are {', '.join(schema.names) or 'none'}")
    if topic is None and "topic" not in schema.names:
        raise WrongColumns("no topic is given: set the option topic, or add a column topic")
    for field in schema.fields:
        if field.name not in _TYPES:
            raise WrongColumns(f"there is no place for a column {field.name}; a sink takes {', '.join(_TYPES)}")
        types, text = _TYPES[field.name]
        if not any(_same(field.dataType, each) for each in types):
            raise WrongColumns(f"column {field.name} must be {text}, not {field.dataType.simpleString()}")


def _same(found: DataType, wanted: DataType) -> bool:
    """Whether a value may be null makes no difference."""
    return found.simpleString() == wanted.simpleString()


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Each topic's rows, in their order. `topic` goes before the column."""
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise WrongColumns(f"{topics.null_count} rows have no topic: their column topic is null")
    for name in topics.unique().to_pylist():
        yield name, batch.filter(pc.equal(topics, name))


def columns_of(rows: pa.RecordBatch, include_headers: bool) -> Columns:
    """What the producer takes."""
    names = rows.schema.names
    keys = rows.column("key") if "key" in names else None
    headers = rows.column("headers") if include_headers and "headers" in names else None
    return Columns(
        fields_of(rows.column("value")),
        None if keys is None or keys.null_count == len(keys) else fields_of(keys),
        None if headers is None or headers.null_count == len(headers) else list(map(_headers, headers.to_pylist())),
    )


def fields_of(column: pa.Array) -> list[bytes | None]:
    """Each field's bytes; a text's are UTF-8. By stride where all are of one size."""
    if column.null_count:
        return [field.encode() if type(field) is str else field for field in column.to_pylist()]
    count = len(column)
    if not count:
        return []
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())  # Spark may be told to use bounds of 64 bits (`useLargeVarTypes`).
    _, bounds, data = column.buffers()
    ends = memoryview(bounds).cast("i")[column.offset : column.offset + count + 1].tolist()
    first, last = ends[0], ends[-1]
    size = (last - first) // count
    if size and ends == list(range(first, first + size * count + 1, size)):
        return list(unpack(f"{size}s" * count, memoryview(data)[first:last]))
    whole = b"" if data is None else memoryview(data)[first:last].tobytes()
    return [whole[start - first : stop - first] for start, stop in pairwise(ends)]


def _headers(written: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return [(header["key"], header["value"]) for header in written] if written else None
