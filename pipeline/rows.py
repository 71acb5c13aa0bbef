"""Rows of a DataFrame as records: which columns there are, which partition each row goes to. Nothing here waits.

    value binary|string | key binary|string | headers array<struct<key: string, value: binary>> | topic string | partition int

as with Spark's Kafka connector: `value` must be there, the others may be. A row without a partition goes where its key says
(murmur2, as everywhere in Strandline and Kafka). One without a key, too, goes to a block of rows at a time to the next
partition, by its number in the task alone: another attempt of the task must choose the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from strandline.client.partitioner import partition_for_key
from strandline.pipeline.errors import WrongColumns

if TYPE_CHECKING:
    import pyarrow

BLOCK_ROWS = 1000
"""So many rows without a key in a row go to one partition: enough for full batches."""

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, tuple[tuple[DataType, ...], str]] = {
    "key": ((BinaryType(), StringType()), "binary or string"),
    "value": ((BinaryType(), StringType()), "binary or string"),
    "topic": ((StringType(),), "string"),
    "partition": ((IntegerType(),), "int"),
    "headers": ((_HEADERS,), "array<struct<key: string, value: binary>>"),
}


class Row(NamedTuple):
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


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


def rows_of(batch: pyarrow.RecordBatch, topic: str | None, include_headers: bool) -> Iterator[Row]:
    """One Arrow batch, row by row. `topic` goes before the column."""
    count, names = batch.num_rows, batch.schema.names

    def column(name: str, default: Any = None) -> Any:
        return batch.column(name).to_pylist() if name in names else repeat(default, count)

    topics = repeat(topic, count) if topic is not None else column("topic")
    headers = map(_headers, column("headers")) if include_headers else repeat(None, count)
    columns = zip(topics, column("partition"), map(_bytes, column("key")), map(_bytes, column("value")), headers, strict=True)
    return map(Row._make, columns)


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if type(data) is str else data  # type: ignore[return-value]


def _headers(written: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return [(header["key"], header["value"]) for header in written] if written else None


def place_of(row: Row, number: int, task: int, partitions: int) -> int:
    """The partition of the row with this number in its task; the same in every attempt, as long as the topic does not grow."""
    if row.partition is not None:
        return row.partition
    if row.key is not None:
        return partition_for_key(row.key, partitions)
    return (task + number // BLOCK_ROWS) % partitions
