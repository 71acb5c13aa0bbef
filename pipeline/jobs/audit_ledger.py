"""A ledger: what a producer was told is safe, for an audit to hold against the log. Written by the client's side.

JSON lines, a line for each acknowledgement; or Parquet with the same columns (long, int, string).

    {"topic": "orders", "partition": 0, "offset": 1200, "count": 64, "timestamp": 1763791200000}
    {"topic": "orders", "partition": 0, "offset": 1264, "timestamp": 1763791200017, "crc32": 3632233996}

`count`     so many records from `offset` on were acknowledged; 1 where it is left out
`timestamp` milliseconds, of the first of them; may be left out
`crc32`     of the value (zlib's), where `count` is 1; may be left out. An audit compares it with the record that is there.

A line is written behind the acknowledgement, never before: what the ledger has and the log has not is lost. What a writer
that was killed did not get to write is no loss: nobody had been told yet, as far as anyone can prove. Its last line may be
torn; an audit counts lines that it cannot read, and says so.
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
"""As Spark reads it."""


class Ledger:
    """Appends to a file. A line is one write, so that it is whole or the last one."""

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
        """What awaiting a receipt has given. With the value of a single record an audit can compare it, too."""
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
