"""The columns of rows per batch and of rows per record: names and Spark's types. A column that Spark's Kafka connector has too
has the connector's name and type.

A timestamp, sequence or producer id that is not set is -1, as in the log; as a timestamp, -1 is one millisecond before 1970.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal

from strandline.protocol.errors import UsageError

Rows = Literal["batch", "record"]

_FILE = {"path": "string", "broker": "int", "topic": "string", "partition": "int", "topicId": "string", "segmentBase": "bigint"}
BATCH_COLUMNS = _FILE | {
    "position": "bigint",
    "baseOffset": "bigint",
    "lastOffset": "bigint",
    "leaderEpoch": "int",
    "recordCount": "int",
    "producerId": "bigint",
    "producerEpoch": "int",
    "baseSequence": "int",
    "baseTimestamp": "timestamp",
    "maxTimestamp": "timestamp",
    "timestampType": "int",
    "codec": "string",
    "isTransactional": "boolean",
    "isControl": "boolean",
    "sizeBytes": "bigint",
    "crcStored": "bigint",
    "crcComputed": "bigint",
    "damage": "string",
}
"""Columns with `rows=batch`, and their types in Spark."""
RECORD_COLUMNS = _FILE | {
    "position": "bigint",
    "leaderEpoch": "int",
    "producerId": "bigint",
    "producerEpoch": "int",
    "baseOffset": "bigint",
    "offset": "bigint",
    "sequence": "int",
    "timestamp": "timestamp",
    "timestampType": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "isTransactional": "boolean",
    "isControl": "boolean",
    "sizeBytes": "bigint",
    "damage": "string",
}
"""Columns with `rows=record`, and their types in Spark. `position` and `baseOffset` belong to the record's batch. `sizeBytes` is
the size of key, value and headers, or of a damaged batch its size in the file."""


def columns_of(rows: Rows) -> dict[str, str]:
    return BATCH_COLUMNS if rows == "batch" else RECORD_COLUMNS


def chosen(rows: Rows, names: Sequence[str]) -> tuple[str, ...]:
    """The columns with these names, which may differ in case; all columns if `names` is empty. Raises UsageError for an unknown
    or repeated name."""
    known = {name.lower(): name for name in columns_of(rows)}
    for name in names:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.5)
            hint = f"; did you mean {known[near[0]]!r}?" if near else ""
            raise UsageError(f"rows={rows} has no column {name!r}{hint}")
    found = [known[name.lower()] for name in names]
    for name in found:
        if found.count(name) > 1:
            raise UsageError(f"column {name} is named twice")
    return tuple(found) or tuple(columns_of(rows))


def ddl(rows: Rows, names: Sequence[str]) -> str:
    """The schema of these columns as Spark's DDL."""
    types = columns_of(rows)
    return ", ".join(f"{name} {types[name]}" for name in names)
