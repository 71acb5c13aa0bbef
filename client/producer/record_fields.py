"""The fields of a record as a program gives them, checked and turned into what a batch holds."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

from strandline.client.arguments import check_encodes
from strandline.client.options import Serializer
from strandline.client.producer.batch import Headers
from strandline.protocol.errors import UsageError


def to_bytes(what: str, data: Any) -> bytes | None:
    """A key or value as bytes. `what`: its name in the UsageError."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise UsageError(f"a {what} is bytes or None, not {type(data).__name__}; give the producer a {what}_serializer")


def serialized(what: str, column: Sequence[Any], serializer: Serializer | None) -> Sequence[bytes | None]:
    """Keys or values as bytes."""
    if serializer is not None:
        column = [None if data is None else serializer(data) for data in column]
    if set(map(type, column)) <= {bytes, NoneType}:
        return column
    return [to_bytes(what, data) for data in column]


def checked_headers(headers: Headers | None) -> Headers | None:
    """Headers as a list of (name, value) pairs; None if there are none. UsageError if they are no such pairs, if a name is no str
    or cannot be encoded in UTF-8, and if a value is neither bytes nor None."""
    if not headers:
        return None
    try:
        checked = [(name, value) for name, value in headers]
    except (TypeError, ValueError):
        raise UsageError(f"headers are a list of (str, bytes) pairs, not {headers!r}") from None
    for name, value in checked:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise UsageError(f"a header is a (str, bytes or None) pair, not {(name, value)!r}")
        check_encodes("the name of a header", name)
    return checked
