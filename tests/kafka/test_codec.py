"""Kafka's encoding: the bytes that are written, and that no bytes that are read can do harm. The bytes of whole messages are
compared with another implementation's in `test_schemas_golden.py`."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc

import pytest
from random_messages import plain, random_fields, with_defaults

from strandline.broker.kafka.codec import (
    ITEMS_MAX,
    STRING_BYTES_MAX,
    TAGS_MAX,
    Field,
    Fields,
    Struct,
    read_varint,
    skip_tagged,
    struct_codec,
    write_varint,
)
from strandline.broker.kafka.schemas import Schemas
from strandline.protocol.errors import ErrorCode, PeerError

REFUSED = (PeerError, IndexError, ValueError, struct.error)
"""The errors of readers. `call.read_body` turns them into a PeerError."""
SCHEMAS = Schemas()
OFFSET_FETCH, METADATA, HEARTBEAT = 9, 3, 12


def written(fields: Struct, values: dict) -> bytes:
    out = bytearray()
    struct_codec(fields)[1](out, values)
    return bytes(out)


def one(kind, is_flexible=True, **more) -> Struct:
    return Struct("S", is_flexible, (Field("x", kind, **more),))


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**21, 2**28 - 1, 2**28, 2**32 - 1])
def test_varints(value):
    out = bytearray()
    write_varint(out, value)
    assert read_varint(out + b"\xff", 0) == (value, len(out))
    assert len(out) == max(1, -(-value.bit_length() // 7))


def test_own_error_codes_are_written_as_kafkas():
    assert written(one("error_code", False), {"x": ErrorCode.FENCED_BROKER}) == b"\0\x06"
    assert written(one("error_code", False), {"x": -1}) == b"\xff\xff"


def test_a_field_without_a_value_or_default_is_a_bug():
    with pytest.raises(KeyError, match=r"S\.x has no value"):
        written(one("int32"), {})
    with pytest.raises(ValueError, match="must not be null"):
        written(one("string"), {"x": None})


def test_a_string_that_is_too_long_for_kafka_is_cut_between_characters():
    """Strandline's own protocol permits longer strings, for example names of groups. A client that lists groups must still get an
    answer."""
    for is_flexible in (False, True):
        schema = one("string", is_flexible)
        raw = written(schema, {"x": "a" + "é" * 20_000})
        fields, _ = struct_codec(schema)[0](raw, 0)
        assert fields.x == "a" + "é" * ((STRING_BYTES_MAX - 1) // 2)


def test_tagged_fields_with_their_default_are_left_out():
    inner = Struct("I", True, (Field("y", "int32", default=-1),))
    fields = Struct(
        "S",
        True,
        (
            Field("a", "int32", tag=2, default=7),
            Field("b", "string", is_nullable=True, tag=0, default=None),
            Field("c", inner, tag=1, default=Fields(y=-1)),
            Field("d", "int32", is_array=True, tag=3, default=()),
        ),
    )
    assert written(fields, {}) == b"\0"
    assert written(fields, {"a": 7, "b": None, "c": {"y": -1}, "d": []}) == b"\0"
    assert written(fields, {"d": [1], "b": ""}) == b"\2" + b"\0\1\1" + b"\3\5\2\0\0\0\1"
    read = struct_codec(fields)[0]
    assert plain(read(b"\0", 0)[0]) == {"a": 7, "b": None, "c": {"y": -1}, "d": []}


def test_nullable_structs():
    inner = Struct("I", True, (Field("y", "int8"),))
    fields = Struct("S", True, (Field("x", inner, is_nullable=True),))
    assert written(fields, {"x": None}) == b"\xff\0"
    assert written(fields, {"x": {"y": 5}}) == b"\1\5\0\0"
    for raw, value in ((b"\xff\0", None), (b"\1\5\0\0", {"y": 5})):
        assert plain(struct_codec(fields)[0](raw, 0)[0]) == {"x": value}


# -- what is refused --------------------------------------------------------------------------------------------------

VARINT_MAX = b"\xff\xff\xff\xff\x0f"
HOSTILE = {
    "null for a string": (one("string", False), b"\xff\xff"),
    "null for a compact string": (one("string"), b"\0\0"),
    "a negative length": (one("string", False, is_nullable=True), b"\xff\xfe"),
    "a string longer than the message": (one("string", False), b"\0\3ab"),
    "a compact string longer than the message": (one("string"), b"\4ab"),
    "a string of 4 GiB": (one("string"), VARINT_MAX + b"ab"),
    "a string longer than Kafka's": (one("string"), b"\x81\x80\x02" + bytes(32768) + b"\0"),
    "no UTF-8": (one("string", False), b"\0\2\xff\xfe"),
    "half a character": (one("string"), b"\2\xc3\0"),
    "bytes of 2 GiB": (one("bytes", False), b"\x7f\xff\xff\xff"),
    "bytes of a negative length": (one("bytes", False, is_nullable=True), b"\x80\0\0\0"),
    "null for an array": (one("int32", False, is_array=True), b"\xff\xff\xff\xff"),
    "an array of 2^31 - 1 items": (one("int32", False, is_array=True), b"\x7f\xff\xff\xff"),
    "an array of 4 G items": (one("int8", is_array=True), VARINT_MAX + bytes(100)),
    "an array of more items than bytes": (one("int8", is_array=True), b"\x05\0\0\0"),
    "half a number": (one("int64", False), bytes(7)),
    "half a uuid": (one("uuid"), bytes(15)),
    "nothing": (one("int8"), b""),
    "no tagged fields": (one("int8"), b"\0"),
    "a varint of six bytes": (one("string"), b"\xff\xff\xff\xff\xff\x01"),
    "a varint of 33 bits": (one("string"), b"\xff\xff\xff\xff\x1f"),
    "a varint that does not end": (one("string"), b"\xff"),
    "too many tagged fields": (one("int8"), b"\0" + b"\x91\x4e" + bytes(100_000)),
    "the same tag twice": (one("int8"), b"\0" + b"\2\5\0\5\0"),
    "tags out of order": (one("int8"), b"\0" + b"\2\5\0\4\0"),
    "a tagged field longer than the message": (one("int8"), b"\0" + b"\1\5\x02a"),
    "a tagged field of 4 GiB": (one("int8"), b"\0" + b"\1\5" + VARINT_MAX),
    "a known tagged field of another size": (one("int32", tag=5, default=0), b"\1\5\5\0\0\0\1\0"),
    "a known tagged field that is too short": (one("int32", tag=5, default=0), b"\1\5\3\0\0\0\1\0"),
}


@pytest.mark.parametrize(("fields", "raw"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused(fields, raw):
    for kind in (bytes, bytearray, memoryview):
        with pytest.raises(REFUSED):
            struct_codec(fields)[0](kind(raw), 0)


def test_the_bytes_that_abort_another_decoder_are_refused():
    """OffsetFetch version 1 with 2^31 - 1 topics: the decoder of kio asks for 128 GiB, and the process ends."""
    with pytest.raises(PeerError, match="an array of 2147483647 items"):
        SCHEMAS.request(OFFSET_FETCH, 1).read(b"\0\1g\x7f\xff\xff\xff", 0)


def test_as_many_tagged_fields_as_in_kafka_are_accepted():
    """Unknown tagged fields are skipped."""
    raw = bytearray()
    write_varint(raw, TAGS_MAX)
    for tag in range(TAGS_MAX):
        write_varint(raw, tag)
        raw += b"\1x"
    assert skip_tagged(raw, 0) == len(raw)
    with pytest.raises(PeerError, match="10001 tagged fields"):
        skip_tagged(b"\x91\x4e" + raw, 0)


def test_all_arrays_of_a_message_together_have_a_limit():
    """An array in each of many items could have as many items again. Each message has the whole limit."""
    inner = Struct("I", False, (Field("y", "int8", is_array=True),))
    fields = Struct("S", False, (Field("x", inner, is_array=True),))
    read, _ = struct_codec(fields)
    part = (20_000).to_bytes(4, "big") + bytes(20_000)

    def message(parts: int) -> bytes:
        return parts.to_bytes(4, "big") + part * parts

    for _ in range(2):
        assert len(read(message(9), 0)[0].x) == 9
    with pytest.raises(PeerError, match="an array of 20000 items"):
        read(message(10), 0)
    assert len(read(message(9), 0)[0].x) == 9
    assert ITEMS_MAX == 200_000


@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 1), (METADATA, 12), (OFFSET_FETCH, 8)])
def test_a_claimed_length_costs_no_memory(api_key, version):
    """Each count and length at the beginning of a message is as large as possible, with few bytes after it."""
    read = SCHEMAS.request(api_key, version).read
    read(_valid(api_key, version), 0)
    tracemalloc.start()
    try:
        for begin in (b"\x7f\xff\xff\xff", VARINT_MAX, b"\xff" * 1000, b"\x81\x80\x04"):
            for at in range(20):
                with contextlib.suppress(*REFUSED):
                    read(bytes([1] * at) + begin + bytes(1000), 0)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def _valid(api_key: int, version: int) -> bytes:
    codec = SCHEMAS.request(api_key, version)
    out = bytearray()
    codec.write(out, random_fields(random.Random(1), codec.struct))
    return bytes(out)


@pytest.mark.parametrize("api_key", [0, 1, 3, 8, 9, 11, 13, 14, 19, 28, 68])
def test_messages_that_end_too_early_are_refused(api_key):
    """The message is cut at every byte, in the oldest and the newest version."""
    rnd = random.Random(api_key)
    for version in (_first(api_key), _last(api_key)):
        codec = SCHEMAS.request(api_key, version)
        values = random_fields(rnd, codec.struct)
        out = bytearray()
        codec.write(out, values)
        fields, end = codec.read(out, 0)
        assert plain(fields) == with_defaults(codec.struct, values)
        for cut in range(end):
            with pytest.raises(REFUSED):
                codec.read(out[:cut], 0)


def _versions(api_key: int) -> list[int]:
    from strict_fields import EntityType, versions

    return versions(api_key, EntityType.request)


def _first(api_key: int) -> int:
    return _versions(api_key)[0]


def _last(api_key: int) -> int:
    return _versions(api_key)[-1]


def test_random_bytes_raise_only_codec_errors():
    """The bytes are either read or refused with one of these errors, so the connection closes without a traceback."""
    rnd = random.Random(9)
    for api_key in (0, 1, 3, 8, 9, 11, 13, 19, 28, 68):
        for version in (_first(api_key), _last(api_key)):
            codec = SCHEMAS.request(api_key, version)
            good = bytearray()
            codec.write(good, random_fields(rnd, codec.struct))
            for n in range(200):
                raw = bytearray(rnd.randbytes(rnd.randint(0, 60))) if n % 4 == 0 else bytearray(good)
                for _ in range(rnd.randint(0, 4)):
                    if raw:
                        raw[rnd.randrange(len(raw))] = rnd.choice((0, 0x7F, 0x80, 0xFF, rnd.randrange(256)))
                try:
                    codec.read(raw, 0)
                except REFUSED:
                    pass
