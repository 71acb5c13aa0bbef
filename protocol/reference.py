"""Generates the protocol reference from the message classes: `python -m strandline.protocol.reference > docs/protocol.md`.

The classes are the schema, so the page says what the code does; a test compares the two.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect as schema

from strandline.protocol import errors, frames
from strandline.protocol.apis import APIS, Api
from strandline.protocol.messages.common import Message

_INTRODUCTION = """\
# The protocol

Generated from the message classes by `python -m strandline.protocol.reference`; do not edit.

API names, keys, field names and error codes are Kafka's if Kafka has them. Integers, texts and the lists of partitions of the
data path have bounds; a value outside is answered with `INVALID_REQUEST`. New fields are appended with defaults: a reader ignores
fields that a newer writer appended, and fills in fields that an older writer left out.

## Frames

"""

_RECORDS = """\
`bin batches` are whole record batches in Kafka's format, version 2: one `bin` value per partition of the message, in the same
order. They are always the last field.
"""

_AUTHENTICATION = """
## Authentication

On a listener with TLS (security protocols SSL and SASL_SSL) the TLS handshake comes first; TLS 1.2 is the oldest version. On
a listener with SASL (SASL_PLAINTEXT and SASL_SSL) a connection then sends SaslHandshake with a mechanism, and
SaslAuthenticate once per message of the mechanism, until the mechanism is complete. Before that, ApiVersions is the only
other request that is served: another one closes the connection, and so does a frame above `sasl.server.max.receive.size`.

The last response may say that the session ends after `session_lifetime_ms`. To keep the connection, the client authenticates
again before, by the same requests, with the same mechanism and as the same user, and sends nothing else meanwhile (KIP-368).
A plaintext listener answers a TLS hello with the TLS alert `unexpected_message`.
"""


def reference() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _drawing(frames), "\n", _RECORDS, _AUTHENTICATION, "\n## APIs\n\n", *_table_of_apis()]
    for api in APIS.values():
        parts += _describe_api(api)
    parts += _table_of_errors()
    return "".join(parts)


def _drawing(module: Any) -> str:
    """The indented drawing in a module's docstring."""
    lines = inspect.cleandoc(module.__doc__).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("    "))
    last = next(i for i in range(first, len(lines)) if not lines[i].strip())
    return "```\n" + "".join(f"{line[4:]}\n" for line in lines[first:last]) + "```\n"


def _table_of_apis() -> Iterator[str]:
    yield "| key | API | versions | served by |\n|---:|---|---|---|\n"
    for api in APIS.values():
        versions = str(api.max_version) if api.min_version == api.max_version else f"{api.min_version}-{api.max_version}"
        yield f"| {api.key} | [{api.name}](#{api.name.lower()}) | {versions} | {', '.join(api.served_by)} |\n"


def _describe_api(api: Api) -> Iterator[str]:
    yield f"\n## {api.name}\n"
    for cls in (api.request, api.response):
        yield f"\n### {cls.__name__}\n\n"
        yield from _describe_fields(cls)
        for part in _parts(cls):
            yield f"\n#### {part.__name__}\n\n"
            yield from _describe_fields(part)


def _describe_fields(cls: type[msgspec.Struct]) -> Iterator[str]:
    text = _doc(cls)
    if text:
        yield text + "\n\n"
    fields = _struct(cls).fields
    if not fields:
        yield "No fields.\n"
        return
    yield "| field | type | default |\n|---|---|---|\n"
    for field in fields:
        yield f"| {field.name} | {_type_name(field.type)} | {_default(field)} |\n"


def _struct(cls: type[msgspec.Struct]) -> schema.StructType:
    kind = schema.type_info(cls)
    assert isinstance(kind, schema.StructType)
    return kind


def _doc(cls: type[msgspec.Struct]) -> str:
    """A class's own docstring as one paragraph."""
    return " ".join(inspect.cleandoc(cls.__doc__).split()) if cls.__doc__ and "__doc__" in vars(cls) else ""


def _parts(cls: type[Message]) -> list[type[msgspec.Struct]]:
    """The structures inside a message, each once, in the order of their first use."""
    found: list[type[msgspec.Struct]] = []

    def walk(kind: Any) -> None:
        match kind:
            case schema.StructType():
                if kind.cls is not cls and kind.cls not in found:
                    found.append(kind.cls)
                for field in kind.fields:
                    walk(field.type)
            case schema.ListType():
                walk(kind.item_type)
            case schema.UnionType():
                for one in kind.types:
                    walk(one)

    walk(_struct(cls))
    return found


def _type_name(kind: Any) -> str:
    match kind:
        case schema.NoneType():
            return "nil"
        case schema.BoolType():
            return "bool"
        case schema.IntType():
            return f"int {_number(kind.ge)}..{_number(kind.le)}"
        case schema.FloatType():
            return "float 64"
        case schema.StrType():
            return f"str, up to {kind.max_length}"
        case schema.BytesType():
            return f"bin {kind.max_length}" if kind.min_length == kind.max_length else "bin"
        case schema.MemoryViewType():
            return "bin batches"
        case schema.ListType():
            bound = f", up to {kind.max_length}" if kind.max_length is not None else ""
            return f"array of {_type_name(kind.item_type)}{bound}"
        case schema.UnionType():
            return " or ".join(_type_name(one) for one in kind.types)
        case schema.StructType():
            return kind.cls.__name__
    raise errors.InternalError(f"a field type without a name: {kind}")


def _number(bound: int | float | None) -> str:
    """A bound, written as a power of two if it is one."""
    if bound is None:
        return "?"
    for bits in (15, 31, 63):
        if bound == 2**bits - 1:
            return f"2^{bits}-1"
        if bound == -(2**bits):
            return f"-2^{bits}"
    return str(bound)


def _default(field: schema.Field) -> str:
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    match field.default:
        case None:
            return "nil"
        case bytes() as raw:
            return "zeros" if not any(raw) else raw.hex()
        case str() as text:
            return f'"{text}"'
        case msgspec.Struct():
            return "its defaults"
        case bool() as flag:
            return str(flag).lower()
    return str(field.default)


def _table_of_errors() -> Iterator[str]:
    yield "\n## Error codes\n\n| code | name | retriable | refresh metadata | meaning |\n|---:|---|---|---|---|\n"
    for code, flags in sorted(errors.ERRORS.items()):
        marks = ["yes" if flag else "" for flag in (flags.retriable, flags.refresh_metadata)]
        yield f"| {int(code)} | {code.name} | {marks[0]} | {marks[1]} | {flags.meaning} |\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
