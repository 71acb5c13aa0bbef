"""The columns of the source: names and types of Spark's Kafka connector, in the Arrow types that Spark expects.

    key binary | value binary | topic string | partition int | offset long | timestamp timestamp | timestampType int
    [| headers array<struct<key: string, value: binary>>]                             with `includeHeaders`

`timestampType` is 0 for the producer's time and 1 for the broker's (`message.timestamp.type=LogAppendTime`).
"""

from __future__ import annotations

_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_HEADERS = "headers array<struct<key: string, value: binary>>"


def read_schema(include_headers: bool) -> str:
    """The schema as Spark's DDL."""
    return f"{_COLUMNS}, {_HEADERS}" if include_headers else _COLUMNS
