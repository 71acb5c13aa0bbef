"""A record as a line of JSON: the format that `consume --json` writes and `produce --json` reads.

    {"topic": "orders", "partition": 0, "offset": 7, "leader_epoch": 0, "timestamp_ms": 1767268800000,
     "key": "alice", "value": {"base64": "/+8="}, "headers": [["source", "till-3"]]}

A key, a value or a header's value is a string if the bytes are UTF-8, {"base64": ...} if they are not, and null if there
are none. So each line is exact: a record that was read can be written again, byte for byte.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client.consumer.records import ConsumerRecord


_UNICODE_LINE_BREAK = re.compile("[\x85\u2028\u2029]")


def encode(record: ConsumerRecord) -> bytes:
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "key": _encoded(record.key),
        "value": _encoded(record.value),
        "headers": [[name, _encoded(value)] for name, value in record.headers],
    }
    return one_line(document).encode() + b"\n"


def one_line(document: Any) -> str:
    """Encode a document as JSON that is one line for every reader. JSON escapes only the line breaks of ASCII, but Python's
    `splitlines` and some editors also end a line at Unicode's NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR."""
    text = json.dumps(document, ensure_ascii=False)
    return _UNICODE_LINE_BREAK.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _encoded(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


Data = str | Base64 | None


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of input. Names that `encode` does not write are refused, because a misspelt "value" would lose the value."""

    value: Data
    key: Data = None
    headers: list[tuple[str, Data]] = []
    timestamp_ms: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)] | None = None
    """Milliseconds since 1970; -1 is Kafka's code for no timestamp."""
    partition: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] | None = None
    topic: str | None = None
    offset: int | None = None
    leader_epoch: int | None = None


_decoder = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line:
    """Parse a line. Raises UsageError with the reason if it is no record."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"it is not a record in JSON: {e}") from None


def to_bytes(data: Data) -> bytes | None:
    if data is None:
        return None
    return data.encode() if isinstance(data, str) else data.base64
