"""Random messages of Kafka's protocol, from the description of their fields."""

from __future__ import annotations

import random
from typing import Any

from strandline.broker.kafka.codec import REQUIRED, Field, Fields, Struct
from strandline.protocol.errors import ErrorCode

_TEXTS = ("", "a", "orders", "naïve ☕", "x" * 200)
_BLOBS = (b"", b"\0", b"\xff\xfe" * 70, b"record batches")
_ERROR_CODES = tuple(int(code) for code in ErrorCode if code < 200)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
ITEMS_MAX = 3


def random_fields(rnd: random.Random, struct: Struct) -> dict[str, Any]:
    """A message: numbers tend to the ends of their ranges, and tagged fields to be left out or to have their default."""
    values = {}
    for field in struct.fields:
        if field.tag >= 0 and rnd.random() < 0.3:
            continue
        if field.tag >= 0 and rnd.random() < 0.3:
            values[field.name] = plain(field.default)
        else:
            values[field.name] = _value(rnd, field)
    return values


def _value(rnd: random.Random, field: Field) -> Any:
    if field.is_nullable and rnd.random() < 0.2:
        return None
    if field.is_array:
        return [_item(rnd, field.kind) for _ in range(rnd.randint(0, ITEMS_MAX))]
    return _item(rnd, field.kind)


def _item(rnd: random.Random, kind: str | Struct) -> Any:
    if isinstance(kind, Struct):
        return random_fields(rnd, kind)
    return _PRIMITIVES[kind](rnd) if kind in _PRIMITIVES else _number(rnd, _BITS[kind])


def _number(rnd: random.Random, bits: int) -> int:
    most = (1 << bits - 1) - 1
    return rnd.choice((0, 1, -1, most, -most - 1, rnd.randint(-most, most), rnd.randint(0, min(most, 300))))


_PRIMITIVES: dict[str, Any] = {
    "string": lambda rnd: rnd.choice(_TEXTS),
    "bytes": lambda rnd: rnd.choice(_BLOBS),
    "uuid": lambda rnd: rnd.choice((bytes(16), rnd.randbytes(16))),
    "bool": lambda rnd: rnd.random() < 0.5,
    "uint16": lambda rnd: rnd.choice((0, 1, 0xFFFF, 9092)),
    "float64": lambda rnd: rnd.choice((0.0, -1.5, 1e300, rnd.random())),
    "error_code": lambda rnd: rnd.choice(_ERROR_CODES),
}


def with_defaults(struct: Struct, values: dict[str, Any]) -> dict[str, Any]:
    """The fields that are read after these were written: with all defaults, and with lists for arrays."""
    return {field.name: _read_back(field, values.get(field.name, field.default)) for field in struct.fields}


def _read_back(field: Field, value: Any) -> Any:
    assert value is not REQUIRED
    value = plain(value)
    if value is None or not isinstance(field.kind, Struct):
        return list(value) if field.is_array and value is not None else value
    if field.is_array:
        return [with_defaults(field.kind, item) for item in value]
    return with_defaults(field.kind, value)


def plain(value: Any) -> Any:
    """Fields as dicts, at any depth."""
    if isinstance(value, Fields):
        return {name: plain(part) for name, part in vars(value).items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any) -> Any:
    """A message with bytes as {"hex": ...}; `from_json` converts it back."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {name: to_json(part) for name, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list) else value


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else {name: from_json(part) for name, part in value.items()}
    return [from_json(part) for part in value] if isinstance(value, list) else value
