"""Turns rows of a DataFrame into records: checks the columns and converts them for the producer. Pure.

    value binary|string | key binary|string | headers array<struct<key: string, value: binary>> | topic string | partition int

The columns are those of Spark's Kafka connector. `value` is required, the others are optional.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import pairwise
from struct import unpack
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from strandline.client.producer.columns import Columns
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
    """Checks the schema before anything is written. Raises WrongColumns, which names the column and what to do about it."""
    if "value" not in schema.names:
        raise WrongColumns(f"a column value (binary or string) is needed{_instead_of_value(schema.names)}")
    if topic is None and "topic" not in schema.names:
        near = _near("topic", schema.names)
        add = f"rename the column {near!r} to 'topic'" if near else "add a column topic"
        raise WrongColumns(f"no topic is given: set the option topic, or {add}")
    for field in schema.fields:
        if field.name not in _TYPES:
            raise WrongColumns(_surplus(field.name, schema.names))
        types, text = _TYPES[field.name]
        if not any(_same(field.dataType, each) for each in types):
            raise WrongColumns(f"column {field.name} must be {text}, not {field.dataType.simpleString()}")


def _instead_of_value(names: list[str]) -> str:
    if near := _near("value", names):
        return f"; rename the column {near!r} to 'value'"
    return f", and there are {', '.join(names)}; select one as value" if names else ", and there are no columns"


def _surplus(name: str, names: list[str]) -> str:
    meant = next((wanted for wanted in _TYPES if wanted not in names and _near(wanted, [name])), None)
    advice = f"rename it to {meant!r}" if meant else "drop it, or put it into value, key or headers"
    return f"a sink has no column {name!r}; {advice} (it takes {', '.join(_TYPES)})"


def _near(wanted: str, names: list[str]) -> str | None:
    """The column that the user most likely meant to name `wanted`, if any; it may differ only in case, which Arrow
    distinguishes."""
    by_lower = {name.lower(): name for name in names if name not in _TYPES}
    near = difflib.get_close_matches(wanted, list(by_lower), n=1, cutoff=0.75)
    return by_lower[near[0]] if near else None


def _same(found: DataType, wanted: DataType) -> bool:
    """Whether the types are the same. Nullability does not count."""
    return found.simpleString() == wanted.simpleString()


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Splits the rows by topic, in their order. The option `topic` takes precedence over the column. Raises WrongColumns if the
    column has a null."""
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column("topic")
    if topics.null_count:
        count = f"{topics.null_count} row{'s have' if topics.null_count > 1 else ' has'}"
        raise WrongColumns(f"{count} null in the column topic; filter such rows, or set the option topic for all rows")
    for name in topics.unique().to_pylist():
        yield name, batch.filter(pc.equal(topics, name))


def columns_of(rows: pa.RecordBatch, include_headers: bool) -> Columns:
    """The rows as the producer's `send_columns` takes them. Raises WrongColumns for a null header or one without a key."""
    names = rows.schema.names
    keys = rows.column("key") if "key" in names else None
    headers = rows.column("headers") if include_headers and "headers" in names else None
    return Columns(
        fields_of(rows.column("value")),
        None if keys is None or keys.null_count == len(keys) else fields_of(keys),
        None if headers is None or headers.null_count == len(headers) else list(map(_headers, headers.to_pylist())),
    )


def fields_of(column: pa.Array) -> list[bytes | None]:
    """The bytes of each field (UTF-8 for strings). Fields of one size are cut by a single `unpack`."""
    if column.null_count:
        return [field.encode() if type(field) is str else field for field in column.to_pylist()]
    count = len(column)
    if not count:
        return []
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())  # With the setting useLargeVarTypes, Spark sends 64-bit bounds.
    _, bounds, data = column.buffers()
    ends = memoryview(bounds).cast("i")[column.offset : column.offset + count + 1].tolist()
    first, last = ends[0], ends[-1]
    size = (last - first) // count
    if size and ends == list(range(first, first + size * count + 1, size)):
        return list(unpack(f"{size}s" * count, memoryview(data)[first:last]))
    whole = b"" if data is None else memoryview(data)[first:last].tobytes()
    return [whole[start - first : stop - first] for start, stop in pairwise(ends)]


def _headers(written: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]] | None:
    if not written:
        return None
    pairs = [(header["key"], header["value"]) if header is not None else _no_header() for header in written]
    for key, value in pairs:
        if key is None:
            raise WrongColumns(_without_key(value))
    return pairs


def _no_header() -> NoReturn:
    raise WrongColumns("column headers has null in place of a header; remove it with filter(headers, h -> h is not null)")


def _without_key(value: bytes | None) -> str:
    has = "is null" if value is None else f"has {len(value)} byte{'' if len(value) == 1 else 's'}"
    return (
        f"column headers has a header without a key (its value {has}); give it a key, or remove it with "
        "filter(headers, h -> h.key is not null)"
    )
