"""The columns of both kinds of rows: names and Spark's types. Names and types are those of Spark's Kafka connector
where it has the column.

Times that are not set are -1 in the log, and so one millisecond before 1970 here; sequences and producer ids that are not set
are -1.
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
"""Of a row per batch, with Spark's types."""
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
    "isControl": "boolean",
    "sizeBytes": "bigint",
    "damage": "string",
}
"""Of a row per record, with Spark's types. `position`, `baseOffset`: of the record's batch. `sizeBytes`: of key, value and
headers; of a damaged batch the bytes in the file."""


def columns_of(rows: Rows) -> dict[str, str]:
    return BATCH_COLUMNS if rows == "batch" else RECORD_COLUMNS


def chosen(rows: Rows, names: Sequence[str]) -> tuple[str, ...]:
    """The columns as the tables spell them (Spark ignores case); all if `names` is empty. Raises UsageError for an unknown or
    repeated name."""
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
    """The columns as Spark's DDL."""
    types = columns_of(rows)
    return ", ".join(f"{name} {types[name]}" for name in names)
