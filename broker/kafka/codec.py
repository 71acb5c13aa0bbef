"""Kafka's binary encoding: from the description of a message to functions that read and write it.

    int8 int16 int32 int64 uint16 float64   big-endian
    bool                                    one byte
    uuid                                    16 bytes, zeros for none
    error_code                              int16; our own codes are written as Kafka's (`errors.py`)
    string, bytes                           length, bytes     length int16 / int32; flexible: unsigned varint of length + 1
    array                                   count, items      count int32;          flexible: unsigned varint of count + 1
    null                                    length or count -1;                     flexible: 0
    nullable struct                         int8: -1 null, 1 not
    tagged fields (flexible structs)        varint count, then { varint tag, varint size, bytes } by ascending tag

`schemas.py` describes a message as a `Struct` of `Field`s. A message that was read is a `Fields`, an object with the fields as
attributes. A message to write is a dict, which may lack fields that have a default. So code that reads several versions gets a
newer field with `Fields.get`, and code that writes them names the fields of all versions.

Requests come from clients that may lie, so the reader allocates no memory for a claimed length alone. An array has at
most as many items as bytes are left, and all arrays of a message together at most `ITEMS_MAX` (of some requests fewer, see
`schemas.py`), because an item takes a hundred times the memory of its bytes. A struct has at most `TAGS_MAX` tagged fields.
(Kafka 4.4 has such limits, too: a million items for each array.) Readers raise `PeerError` at the first violation. A string of
Strandline's that is longer than Kafka's protocol allows is cut when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct as Pack
from types import SimpleNamespace
from typing import Any, NamedTuple

from strandline.broker.kafka.errors import kafka_code
from strandline.protocol.errors import PeerError

Buffer = bytes | bytearray | memoryview
Read = Callable[[Buffer, int], tuple[Any, int]]
"""Reads a value at an offset, and returns it with the offset after it. Raises IndexError or struct.error if the bytes end before
the value does."""
Write = Callable[[bytearray, Any], None]
"""Appends a value to the bytes."""

ITEMS_MAX = 200_000
"""The maximum number of items in all arrays of a message. Handlers accept 100,000 partitions. Decoding a million items would
block the event loop for fourteen seconds."""
TAGS_MAX = 10_000
STRING_BYTES_MAX = 0x7FFF
WRITTEN_BYTES_MAX = 128 << 20
"""The maximum size of a response in bytes: a small request can name the same large thing many times."""
REQUIRED = object()
"""Stands for "no default": the field must have a value."""


class TooLargeError(Exception):
    """A message to write has more bytes than `WRITTEN_BYTES_MAX`."""


class Field(NamedTuple):
    """One field of a struct. `kind`: the name of a primitive, or a Struct. `tag`: -1 for an ordinary field."""

    name: str
    kind: str | Struct
    is_array: bool = False
    is_nullable: bool = False
    tag: int = -1
    default: Any = REQUIRED


class Struct(NamedTuple):
    """A message, or a part of one."""

    name: str
    is_flexible: bool
    fields: tuple[Field, ...]


class Fields(SimpleNamespace):
    """A struct that was read: its fields are attributes."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` if this version does not have it."""
        return self.__dict__.get(name, default)


# -- primitives -------------------------------------------------------------------------------------------------------

_INT16, _INT32 = Pack(">h"), Pack(">i")


def read_varint(buffer: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                raise PeerError("a varint has more than 32 bits")
            return value, at
        shift += 7
        if shift > 28:
            raise PeerError("a varint has more than five bytes")


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _fixed(pack: Pack) -> tuple[Read, Write]:
    unpack_from, size, pack_value = pack.unpack_from, pack.size, pack.pack

    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        return unpack_from(buffer, at)[0], at + size

    def write(out: bytearray, value: Any) -> None:
        out += pack_value(value)

    return read, write


def _write_error_code(out: bytearray, code: int) -> None:
    out += _INT16.pack(kafka_code(code))


def _read_uuid(buffer: Buffer, at: int) -> tuple[bytes, int]:
    return _take(buffer, at, 16)


def _write_uuid(out: bytearray, value: bytes) -> None:
    if len(value) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(value)}")
    out += value


def _take(buffer: Buffer, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(buffer):
        raise PeerError(f"{size} bytes are announced, {len(buffer) - at} are left")
    return bytes(buffer[at:end]), end


_FIXED: dict[str, tuple[Read, Write]] = {
    "int8": _fixed(Pack(">b")),
    "int16": _fixed(_INT16),
    "int32": _fixed(_INT32),
    "int64": _fixed(Pack(">q")),
    "uint16": _fixed(Pack(">H")),
    "float64": _fixed(Pack(">d")),
    "bool": _fixed(Pack("?")),
    "uuid": (_read_uuid, _write_uuid),
    "error_code": (_fixed(_INT16)[0], _write_error_code),
}


# -- lengths: of strings, bytes and arrays ----------------------------------------------------------------------------


def read_compact_length(buffer: Buffer, at: int) -> tuple[int, int]:
    """A length or count of flexible versions; -1: null."""
    length, at = read_varint(buffer, at)
    return length - 1, at


def _read_length(is_flexible: bool, pack: Pack) -> Read:
    return read_compact_length if is_flexible else _fixed(pack)[0]


def _write_length(is_flexible: bool, pack: Pack) -> Write:
    if not is_flexible:
        return _fixed(pack)[1]
    return lambda out, length: write_varint(out, length + 1)


def _blob(kind: str, is_flexible: bool, is_nullable: bool) -> tuple[Read, Write]:
    """Strings and bytes."""
    is_text = kind == "string"
    read_length = _read_length(is_flexible, _INT16 if is_text else _INT32)
    write_length = _write_length(is_flexible, _INT16 if is_text else _INT32)

    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        length, at = read_length(buffer, at)
        if length < 0:
            _refuse_null(length, is_nullable)
            return None, at
        if is_text and length > STRING_BYTES_MAX:
            raise PeerError(f"a string of {length} bytes; at most {STRING_BYTES_MAX} are accepted")
        value, at = _take(buffer, at, length)
        return (value.decode() if is_text else value), at

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            _check_null(is_nullable)
            write_length(out, -1)
            return
        data = _encoded(value) if is_text else value
        write_length(out, len(data))
        out += data

    return read, write


def _encoded(text: str) -> bytes:
    data = text.encode()
    return data if len(data) <= STRING_BYTES_MAX else data[:STRING_BYTES_MAX].decode(errors="ignore").encode()


def _refuse_null(length: int, is_nullable: bool) -> None:
    if length != -1:
        raise PeerError(f"the length {length} is negative")
    if not is_nullable:
        raise PeerError("a field that must not be null is null")


def _check_null(is_nullable: bool) -> None:
    if not is_nullable:
        raise ValueError("None for a field that must not be null")


class EncodedItems(NamedTuple):
    """The items of an array, already encoded: useful if many rows of a response have the same items."""

    amount: int
    data: bytes


class _Budget:
    """The number of items that the message may still have while it is read. Each codec of a message has one budget."""

    __slots__ = ("items",)

    def __init__(self, items_max: int) -> None:
        self.items = items_max


def _array(item: tuple[Read, Write], is_flexible: bool, is_nullable: bool, budget: _Budget) -> tuple[Read, Write]:
    read_item, write_item = item
    read_length, write_length = _read_length(is_flexible, _INT32), _write_length(is_flexible, _INT32)

    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        count, at = read_length(buffer, at)
        if count < 0:
            _refuse_null(count, is_nullable)
            return None, at
        budget.items -= count
        if count > len(buffer) - at or budget.items < 0:
            raise PeerError(f"an array of {count} items is announced, {len(buffer) - at} bytes are left")
        items = []
        for _ in range(count):
            value, at = read_item(buffer, at)
            items.append(value)
        return items, at

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            _check_null(is_nullable)
            write_length(out, -1)
            return
        if type(value) is EncodedItems:
            write_length(out, value.amount)
            out += value.data
            return
        write_length(out, len(value))
        for part in value:
            write_item(out, part)
            if len(out) > WRITTEN_BYTES_MAX:
                raise TooLargeError(f"more than {WRITTEN_BYTES_MAX} bytes")

    return read, write


# -- structs ----------------------------------------------------------------------------------------------------------


def struct_codec(struct: Struct, items_max: int = ITEMS_MAX) -> tuple[Read, Write]:
    """The functions that read and write a message, or a part of one that is read alone. All its arrays together have at most
    `items_max` items."""
    budget = _Budget(items_max)
    read_struct, write = _struct_codec(struct, budget)

    def read(buffer: Buffer, at: int) -> tuple[Fields, int]:
        budget.items = items_max
        fields: Fields
        fields, at = read_struct(buffer, at)
        return fields, at

    return read, write


def _struct_codec(struct: Struct, budget: _Budget) -> tuple[Read, Write]:
    plain = [(field, *_field_codec(field, struct.is_flexible, budget)) for field in struct.fields if field.tag < 0]
    tagged = {field.tag: (field, *_field_codec(field, True, budget)) for field in struct.fields if field.tag >= 0}
    readers = [(field.name, read) for field, read, _ in plain]
    writers = [(field.name, field.default, write) for field, _, write in plain]
    by_tag = sorted(tagged.items())
    defaults = {field.name: field.default for field, _, _ in tagged.values()}

    def read(buffer: Buffer, at: int) -> tuple[Fields, int]:
        fields = Fields()
        values = fields.__dict__
        for name, read_field in readers:
            values[name], at = read_field(buffer, at)
        if struct.is_flexible:
            values.update(defaults)
            at = _read_tagged(buffer, at, tagged, values)
        return fields, at

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        for name, default, write_field in writers:
            value = values.get(name, default)
            if value is REQUIRED:
                raise KeyError(f"{struct.name}.{name} has no value")
            write_field(out, value)
        if struct.is_flexible:
            _write_tagged(out, by_tag, values)

    return read, write


def _field_codec(field: Field, is_flexible: bool, budget: _Budget) -> tuple[Read, Write]:
    if not field.is_array:
        return _value_codec(field.kind, is_flexible, field.is_nullable, budget)
    return _array(_value_codec(field.kind, is_flexible, False, budget), is_flexible, field.is_nullable, budget)


def _value_codec(kind: str | Struct, is_flexible: bool, is_nullable: bool, budget: _Budget) -> tuple[Read, Write]:
    if isinstance(kind, Struct):
        codec = _struct_codec(kind, budget)
        return _nullable_struct(codec) if is_nullable else codec
    return _FIXED[kind] if kind in _FIXED else _blob(kind, is_flexible, is_nullable)


def _nullable_struct(codec: tuple[Read, Write]) -> tuple[Read, Write]:
    read_struct, write_struct = codec

    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        return read_struct(buffer, at + 1) if buffer[at] < 0x80 else (None, at + 1)

    def write(out: bytearray, value: Any) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            write_struct(out, value)

    return read, write


def _read_tagged(buffer: Buffer, at: int, known: dict[int, tuple[Field, Read, Write]], values: dict[str, Any]) -> int:
    count, at = read_varint(buffer, at)
    if count > TAGS_MAX:
        raise PeerError(f"a struct with {count} tagged fields; at most {TAGS_MAX} are accepted")
    last = -1
    for _ in range(count):
        tag, at = read_varint(buffer, at)
        size, at = read_varint(buffer, at)
        end = at + size
        if tag <= last or end > len(buffer):
            raise PeerError("tagged fields are out of order, or longer than the message")
        if tag in known:
            field, read, _ = known[tag]
            values[field.name], at = read(buffer, at)
            if at != end:
                raise PeerError(f"the tagged field {field.name} does not have its announced size")
        last, at = tag, end
    return at


def skip_tagged(buffer: Buffer, at: int) -> int:
    """The offset behind the tagged fields of a header."""
    return _read_tagged(buffer, at, {}, {})


def _write_tagged(out: bytearray, known: list[tuple[int, tuple[Field, Read, Write]]], values: Mapping[str, Any]) -> None:
    """Append the tagged fields that do not have their default."""
    present = [(tag, write, values.get(field.name)) for tag, (field, _, write) in known if _is_present(field, values)]
    write_varint(out, len(present))
    for tag, write, value in present:
        body = bytearray()
        write(body, value)
        write_varint(out, tag)
        write_varint(out, len(body))
        out += body


def _is_present(field: Field, values: Mapping[str, Any]) -> bool:
    value = values.get(field.name, REQUIRED)
    if value is REQUIRED:
        return False
    default = field.default
    if default == ():
        return value is None or len(value) > 0
    return bool(value != (default.__dict__ if isinstance(default, Fields) else default))
