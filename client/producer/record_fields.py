"""Checks the fields of a record that the program passes, and converts them into those that a batch holds."""

from __future__ import annotations

from types import NoneType
from typing import Any

from strandline.client.arguments import check_encodes, checked_list
from strandline.client.options import Serializer
from strandline.client.producer.batch import Headers
from strandline.protocol.errors import UsageError


def to_bytes(what: str, data: Any) -> bytes | None:
    """A key or value as bytes. UsageError for any other type; `what` is the name of the field in the message."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise UsageError(f"a {what} is bytes or None, not {type(data).__name__}; give the producer a {what}_serializer")


def column_of(what: str, items: Any) -> list[Any]:
    """The values, keys or headers of many records, as a list of its own: a deque or an iterator cannot be sliced, and the program
    may change its list while the call waits. UsageError for a single str or bytes, for a mapping, and for anything that is not
    iterable."""
    return checked_list(f"the {what} of several records", items)


def serialized(what: str, column: Any, serializer: Serializer | None) -> list[bytes | None]:
    """Keys or values as bytes."""
    data = column_of(f"{what}s", column)
    if serializer is not None:
        data = [None if item is None else serializer(item) for item in data]
    if set(map(type, data)) <= {bytes, NoneType}:
        return data
    return [to_bytes(what, item) for item in data]


def checked_headers(headers: Headers | None) -> Headers | None:
    """Headers as a list of (name, value) pairs; None if there are none. UsageError if they are not such pairs, if a name is no
    str or cannot be encoded in UTF-8, or if a value is neither bytes nor None."""
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
