"""The columns: those of Spark's Kafka connector, of the same types, and in Arrow exactly as Spark wants them.

    key binary | value binary | topic string | partition int | offset long | timestamp timestamp | timestampType int
    [| headers array<struct<key: string, value: binary>>]                             with `includeHeaders`

`timestampType`: 0 the producer's time, 1 the broker's (`message.timestamp.type=LogAppendTime`).
"""

from __future__ import annotations

_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_HEADERS = "headers array<struct<key: string, value: binary>>"


def read_schema(include_headers: bool) -> str:
    """As Spark's DDL."""
    return f"{_COLUMNS}, {_HEADERS}" if include_headers else _COLUMNS
