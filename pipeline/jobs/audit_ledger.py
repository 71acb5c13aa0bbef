"""A ledger: a file in which a producer's program lists the acknowledged records. An audit compares it with the log.

It has JSON lines, one for each acknowledgement, or it is a Parquet file with the same columns (long, int, string).

    {"topic": "orders", "partition": 0, "offset": 1200, "count": 64, "timestamp": 1763791200000}
    {"topic": "orders", "partition": 0, "offset": 1264, "timestamp": 1763791200017, "crc32": 3632233996}

`count`      number of acknowledged records from `offset` on; 1 by default
`timestamp`  timestamp of the first of these records, in ms since the epoch; optional
`crc32`      CRC-32 of the value (zlib's), if `count` is 1; optional. An audit compares it with the value in the log.

A line is written after the acknowledgement, never before. So a record that is in the ledger but not in the log is lost. A writer
that is killed may leave acknowledged records out, and its last line may be incomplete; an audit reports how many lines it cannot
read.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from strandline.client.producer.receipts import BatchMetadata, RecordMetadata

COLUMNS = "topic string, partition int, offset bigint, count bigint, timestamp bigint, crc32 bigint"
"""The columns of a ledger, as Spark's DDL."""


class Ledger:
    """Appends to a ledger file. Each line is one write, so that only the last line can be torn."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(Path(path), "ab", buffering=0)  # noqa: SIM115
        if self._file.tell() and not _ends_with_newline(Path(path)):
            self._file.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def add(self, acknowledged: RecordMetadata | BatchMetadata, value: bytes | None = None) -> None:
        """Writes a line for an acknowledgement, which is the result of awaiting a receipt. `value` is the value of a single
        record; with it, an audit can compare the value, too."""
        line: dict[str, Any] = {"topic": acknowledged.topic, "partition": acknowledged.partition, "offset": acknowledged.offset}
        if isinstance(acknowledged, BatchMetadata):
            line["count"] = acknowledged.records
        line["timestamp"] = acknowledged.timestamp_ms
        if value is not None:
            line["crc32"] = zlib.crc32(value)
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
