"""Rows that cannot become records: the error names the column, and says what to do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructField, StructType

from strandline.pipeline.errors import WrongColumns
from strandline.pipeline.rows import by_topic, check_columns, columns_of

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "long": LongType(),
    "pairs": ArrayType(StructType([StructField("k", StringType()), StructField("v", BinaryType())])),
}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(headers: list[Any]) -> pa.RecordBatch:
    values = pa.array([b"v"] * len(headers), pa.binary())
    return pa.RecordBatch.from_arrays([values, pa.array(headers, HEADERS)], names=["value", "headers"])


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("Value string", "a column value (binary or string) is needed; rename the column 'Value' to 'value'"),
        ("valu binary, key string", "a column value (binary or string) is needed; rename the column 'valu' to 'value'"),
        ("id long, name string", "a column value (binary or string) is needed, and there are id, name; select one as value"),
        ("value string, Key string", "a sink has no column 'Key'; rename it to 'key'"),
        ("value string, header string", "a sink has no column 'header'; rename it to 'headers'"),
        ("value string, offset long", "a sink has no column 'offset'; drop it, or put it into value, key or headers"),
        ("value string, Topic string", "no topic is given: set the option topic, or rename the column 'Topic' to 'topic'"),
        ("value long", "column value must be binary or string, not bigint"),
        ("value string, partition long", "column partition must be int, not bigint"),
        (
            "value string, headers pairs",
            "column headers must be array<struct<key: string, value: binary>>, not array<struct<k:string,v:binary>>",
        ),
    ],
)
def test_wrong_columns_are_rejected_with_advice(schema: str, told: str) -> None:
    columns = [column.split(" ") for column in schema.split(", ")]
    frame = StructType([StructField(name, TYPES[kind]) for name, kind in columns])
    with pytest.raises(WrongColumns) as error:
        check_columns(frame, None if "Topic" in schema else "orders")
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (
            [[{"key": "a", "value": b"1"}], [None]],
            "column headers has null in place of a header; remove it with filter(headers, h -> h is not null)",
        ),
        (
            [[{"key": "a", "value": b"1"}, {"key": None, "value": b"2"}]],
            "column headers has a header without a key (its value has 1 byte); give it a key, or remove it with "
            "filter(headers, h -> h.key is not null)",
        ),
        ([[{"key": None, "value": None}]], "column headers has a header without a key (its value is null); give it a key"),
    ],
)
def test_null_in_headers_is_rejected_with_advice(headers: list[Any], told: str) -> None:
    with pytest.raises(WrongColumns) as error:
        columns_of(rows(headers), include_headers=True)
    assert str(error.value).startswith(told)


def test_header_value_and_headers_may_be_null() -> None:
    columns = columns_of(rows([[{"key": "a", "value": None}], None, []]), include_headers=True)
    assert columns.headers == [[("a", None)], None, None]


def test_row_without_a_topic_is_rejected_with_advice() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", None])], names=["topic"])
    with pytest.raises(WrongColumns, match="1 row has null in the column topic; filter such rows, or set the option topic"):
        list(by_topic(batch, None))
