"""Messages as kafka-python reads and writes them: a second implementation of Kafka's encoding, from Kafka's own schemas.

It has the APIs for clients and tools, and not those for brokers and controllers only."""

from __future__ import annotations

import io
import uuid
from functools import cache
from importlib import resources
from typing import Any

from kafka.protocol.data_container import DataContainer
from kafka.protocol.schemas import BaseField, StructField, load_json
from random_messages import plain

from strandline.broker.kafka.codec import Field, Struct

Key = tuple[int, str]
"""An API key, and "request" or "response"."""


class TheirSchema:
    """One message in all its versions."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.versions: tuple[int, int] = BaseField.parse_versions(schema["validVersions"])
        self._flexible: tuple[int, int] = BaseField.parse_versions(schema["flexibleVersions"])
        self.struct = StructField(schema)
        type(schema["name"], (DataContainer,), {"_struct": self.struct})  # creates the classes of the structs inside it
        self.struct.set_data_class(type(schema["name"], (DataContainer,), {"_struct": self.struct}))

    def is_flexible(self, version: int) -> bool:
        return self._flexible[0] <= version <= self._flexible[1]

    def encode(self, struct: Struct, version: int, values: dict[str, Any]) -> bytes:
        is_flexible = self.is_flexible(version)
        data = _to_theirs(self.struct, struct, version, values)
        return bytes(self.struct.encode(data, version=version, compact=is_flexible, tagged=is_flexible))

    def decode(self, struct: Struct, version: int, raw: bytes) -> dict[str, Any]:
        is_flexible = self.is_flexible(version)
        data = self.struct.decode(io.BytesIO(raw), version=version, compact=is_flexible, tagged=is_flexible)
        return _to_ours(struct, data)


@cache
def their_schemas() -> dict[Key, TheirSchema]:
    """All requests and responses."""
    names = [path.name for path in resources.files("kafka.protocol.schemas.resources").iterdir()]
    schemas = [load_json(name.removesuffix(".json")) for name in sorted(names) if name.endswith(".json")]
    return {(schema["apiKey"], schema["type"]): TheirSchema(schema) for schema in schemas if "apiKey" in schema}


def _to_theirs(theirs: Any, ours: Struct, version: int, values: dict[str, Any]) -> Any:
    kinds = {field.name: field for field in ours.fields}
    given = {
        name: _value_to_theirs(theirs.fields[name], kinds[name], version, value)
        for name, value in values.items()
        if not _is_left_out(kinds[name], value)
    }
    return theirs(version=version, **given)


def _is_left_out(field: Field, value: Any) -> bool:
    """Whether the field is left out: Kafka omits a tagged field with its default. kafka-python has no defaults of structs and
    uuids."""
    return field.tag >= 0 and value == plain(field.default)


def _value_to_theirs(their_field: Any, field: Field, version: int, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(field.kind, Struct):
        return [_primitive(field, item) for item in value] if field.is_array else _primitive(field, value)
    if not field.is_array:
        return _to_theirs(their_field, field.kind, version, value)
    return [_to_theirs(their_field.array_of, field.kind, version, item) for item in value]


def _primitive(field: Field, value: Any) -> Any:
    return uuid.UUID(bytes=value) if field.kind == "uuid" else value


def _to_ours(struct: Struct, data: Any) -> dict[str, Any]:
    return {field.name: _value_to_ours(field, getattr(data, field.name)) for field in struct.fields}


def _value_to_ours(field: Field, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_value_to_ours(field, item) for item in value]
    if value is None:
        return _absent(field)
    if isinstance(field.kind, Struct):
        return _to_ours(field.kind, value)
    return value.bytes if isinstance(value, uuid.UUID) else value


def _absent(field: Field) -> Any:
    """Our value for None in kafka-python, which has None for an absent tagged struct and for a uuid of zeros."""
    if field.kind == "uuid":
        return bytes(16)
    if field.tag >= 0 and isinstance(field.kind, Struct) and field.default is not None:
        return {inner.name: inner.default for inner in field.kind.fields}
    return None
