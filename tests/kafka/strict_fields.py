"""Makes misspelt fields of responses errors in these tests. A field that no version of a response has would otherwise be left out
silently.

`install` wraps the writers of responses, for the tests of this folder and anything else in their process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from strandline.broker.kafka.codec import Struct
from strandline.broker.kafka.schemas import MessageCodec, Schemas

Names = dict[str, "Names"]
"""The names of the fields of a struct in all versions, with those inside them."""

misspelt: list[str] = []
"""The misspelt fields that were found since the list was cleared."""
_plain = Schemas()


def versions(api_key: int, kind: EntityType) -> list[int]:
    """The versions of a request or response."""
    known = schema_name_map[api_key_map[api_key]]
    return sorted(version for version in known if kind in known[version])


@cache
def names_in_responses(api_key: int) -> Names:
    names: Names = {}
    for version in versions(api_key, EntityType.response):
        _add(names, _plain.response(api_key, version).struct)
    return names


@cache
def names_in_requests(api_key: int) -> Names:
    names: Names = {}
    for version in versions(api_key, EntityType.request):
        _add(names, _plain.request(api_key, version).struct)
    return names


def _add(names: Names, struct: Struct) -> None:
    for field in struct.fields:
        inner = names.setdefault(field.name, {})
        if isinstance(field.kind, Struct):
            _add(inner, field.kind)


def unknown_names(names: Names, values: Mapping[str, Any], path: str) -> list[str]:
    found = []
    for name, value in values.items():
        if name not in names:
            found.append(f"{path}.{name}")
            continue
        parts = value if isinstance(value, (list, tuple)) else [value]
        for part in parts:
            if isinstance(part, Mapping):
                found += unknown_names(names[name], part, f"{path}.{name}")
    return found


def install() -> None:
    """Check every response that is written from now on."""
    plain = Schemas.response
    strict: dict[tuple[int, int], MessageCodec] = {}

    def response(self: Schemas, api_key: int, version: int) -> MessageCodec:
        codec = strict.get((api_key, version))
        if codec is None:
            codec = strict[api_key, version] = _strict(api_key, plain(self, api_key, version))
        return codec

    Schemas.response = response  # type: ignore[method-assign]


def _strict(api_key: int, codec: MessageCodec) -> MessageCodec:
    def write(out: bytearray, values: Any) -> None:
        misspelt.extend(unknown_names(names_in_responses(api_key), values, codec.struct.name))
        codec.write(out, values)

    return codec._replace(write=write)
