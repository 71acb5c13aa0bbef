"""The Arrow type of each column: the one that Spark expects for the column's Spark type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.pipeline.segments.columns import Rows, columns_of

_ARROW: dict[str, Any] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<key:string,value:binary>>": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}


def arrow_schema(rows: Rows, names: Sequence[str]) -> pa.Schema:
    types = columns_of(rows)
    return pa.schema([(name, _ARROW[types[name]]) for name in names])
