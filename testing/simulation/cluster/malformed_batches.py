"""Record batches that are wrong in one place each; the checksum is right unless it is the wrong place.

A broker refuses every one of them and appends nothing. The fuzzing client sends them to live brokers (`fuzzing_client.py`), and
tests pass them to a log. Each shape has a name, so that a report says what was accepted.

    shapes = malformed_batches(1_700_000_000_000)
    shapes["an offset delta is repeated"]        # bytes, as in a Produce request
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from random import Random

from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_values
from strandline.protocol.records.compression import Codec, compress
from strandline.protocol.records.varint import encode_varint

_INT64_MAX = 2**63 - 1
CODECS = tuple(codec for codec in Codec if codec is not Codec.NONE)
_TWO = {"record_count": 2, "last_offset_delta": 1}


def encode_record(
    delta: int | bytes,
    value: bytes = b"value",
    *,
    timestamp_delta: int | bytes = 0,
    key_length: int | bytes = -1,
    key: bytes = b"",
    value_length: int | bytes | None = None,
    headers: bytes = b"\0",
    attributes: int = 0,
    length_off_by: int = 0,
    length: bytes | None = None,
) -> bytes:
    """One record with the given fields: numbers are encoded, bytes are taken as they are."""
    size = len(value) if value_length is None else value_length
    body = b"".join(
        (bytes((attributes,)), *map(_varint, (timestamp_delta, delta, key_length)), key, _varint(size), value, headers)
    )
    return (encode_varint(len(body) + length_off_by) if length is None else length) + body


def _varint(field: int | bytes) -> bytes:
    return encode_varint(field) if isinstance(field, int) else field


def assemble(records: Sequence[bytes], now_ms: int, **header: int) -> bytes:
    """A batch of these records, with a header that fits them except for the given fields."""
    fields = {
        "base_offset": 0,
        "leader_epoch": -1,
        "attributes": 0,
        "last_offset_delta": len(records) - 1,
        "base_timestamp": now_ms,
        "max_timestamp": now_ms,
        "producer_id": v2.NO_PRODUCER_ID,
        "producer_epoch": v2.NO_PRODUCER_EPOCH,
        "base_sequence": v2.NO_SEQUENCE,
        "record_count": len(records),
    }
    return v2.assemble(list(records), **{**fields, **header})  # type: ignore[arg-type]


def overlong_varint(number: int, size: int) -> bytes:
    """The zigzag varint of a small number >= 0, extended to `size` bytes."""
    z = number << 1
    groups = [z >> 7 * i & 0x7F for i in range(size)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


@functools.lru_cache(4)
def malformed_batches(now_ms: int) -> Mapping[str, bytes]:
    """Every shape by name. `now_ms`: a timestamp that the topic's limits accept."""
    return {
        **_whole_batches(now_ms),
        **_headers_that_lie(now_ms),
        **_forbidden_attributes(now_ms),
        **_compressed_batches(now_ms),
        **_records_that_do_not_fit(now_ms),
        **_fields_that_do_not_fit(now_ms),
        **_varints_that_are_none(now_ms),
    }


def bad_checksum(batch: bytes) -> bytes:
    """The same batch with another checksum."""
    crc: int = v2.read_header(batch).crc ^ 1
    return batch[: v2.CRC_POS] + crc.to_bytes(4, "big") + batch[v2.ATTRIBUTES_POS :]


def _with_length(batch: bytes, length: int) -> bytes:
    return batch[:8] + length.to_bytes(4, "big", signed=True) + batch[12:]


def _with_magic(batch: bytes, magic: int) -> bytes:
    return batch[: v2.MAGIC_POS] + bytes((magic,)) + batch[v2.MAGIC_POS + 1 :]


def _whole_batches(now_ms: int) -> dict[str, bytes]:
    good = encode_values([b"one", b"two"], now_ms)
    length = len(good) - v2.LENGTH_PREFIX
    return {
        "no bytes at all": b"",
        "half a header": good[:30],
        "the last byte is missing": good[:-1],
        "the checksum is wrong": bad_checksum(good),
        "the length is one too large": _with_length(good, length + 1),
        "the length is one too small": _with_length(good, length - 1),
        "the length is smaller than a header": _with_length(good, 40),
        "the length is negative": _with_length(good, -1),
        "format 0": _with_magic(good, 0),
        "format 1": _with_magic(good, 1),
        "format 3": _with_magic(good, 3),
        "bytes behind the batch": good + b"\0",
        "the second of two batches has a wrong checksum": good + bad_checksum(good),
        "the second of two batches repeats an offset delta": good + assemble([encode_record(0), encode_record(0)], now_ms),
    }


def _headers_that_lie(now_ms: int) -> dict[str, bytes]:
    two = [encode_record(0), encode_record(1)]
    return {
        "no records": assemble([], now_ms, last_offset_delta=0),
        "no records for no offsets": assemble([], now_ms, last_offset_delta=-1),
        "the count is zero": assemble(two, now_ms, record_count=0),
        "the count is negative": assemble(two, now_ms, record_count=-1),
        "one record less than both counts": assemble(two, now_ms, record_count=3, last_offset_delta=2),
        "one record more than both counts": assemble(two, now_ms, record_count=1, last_offset_delta=0),
        "more offsets than records": assemble(two, now_ms, last_offset_delta=2),
        "more records than offsets": assemble(two, now_ms, last_offset_delta=0),
        "a negative last offset delta": assemble(two, now_ms, last_offset_delta=-1),
        "a billion records": assemble(two, now_ms, record_count=10**9, last_offset_delta=10**9 - 1),
        "a record whose timestamp is negative": assemble(
            [encode_record(0), encode_record(1, timestamp_delta=-now_ms - 5)], now_ms
        ),
        "a record whose timestamp is beyond 64 bits": assemble(
            [encode_record(0, timestamp_delta=_INT64_MAX)], now_ms, max_timestamp=now_ms
        ),
        "producer id -2": assemble(two, now_ms, producer_id=-2, producer_epoch=0, base_sequence=0),
        "a producer id without a sequence number": assemble(two, now_ms, producer_id=7, producer_epoch=0),
        "a negative base timestamp": assemble(two, now_ms, base_timestamp=-5, max_timestamp=-5),
    }


def _forbidden_attributes(now_ms: int) -> dict[str, bytes]:
    two = [encode_record(0), encode_record(1)]
    bits = {
        "the timestamp type is the broker's": v2.TIMESTAMP_TYPE_MASK,
        "transactional": v2.TRANSACTIONAL_MASK,
        "a control batch": v2.CONTROL_MASK,
        "a delete horizon": v2.DELETE_HORIZON_MASK,
        "attribute bit 7": 0x80,
        "attribute bit 15": -0x8000,
    }
    shapes = {name: assemble(two, now_ms, attributes=mask) for name, mask in bits.items()}
    shapes |= {f"codec {codec}, which does not exist": assemble(two, now_ms, attributes=codec) for codec in (5, 6, 7)}
    return shapes


def _compressed_batches(now_ms: int) -> dict[str, bytes]:
    two = [encode_record(0), encode_record(1)]
    wrong: dict[str, tuple[list[bytes], dict[str, int]]] = {
        "the count is one too large": (two, {"record_count": 3, "last_offset_delta": 2}),
        "the count is one too small": (two, {"record_count": 1, "last_offset_delta": 0}),
        "an offset delta is repeated": ([encode_record(0), encode_record(0)], {}),
        "noise as records": ([Random(1).randbytes(200)], {"record_count": 20, "last_offset_delta": 19}),
        "bytes behind the last record": ([*two, b"\0"], {"record_count": 2, "last_offset_delta": 1}),
        "no records": ([], {"last_offset_delta": 0}),
    }
    shapes = {
        f"{codec.name.lower()}: the records are not compressed": assemble(two, now_ms, attributes=codec) for codec in CODECS
    }
    shapes |= {
        f"{codec.name.lower()}: {name}": assemble(records, now_ms, codec=codec, **header)
        for codec in CODECS
        for name, (records, header) in wrong.items()
    }
    torn = {codec: assemble([compress(codec, b"".join(two))[:-1]], now_ms, attributes=codec, **_TWO) for codec in CODECS}
    return shapes | {f"{codec.name.lower()}: the last byte is missing": raw for codec, raw in torn.items()}


def _records_that_do_not_fit(now_ms: int) -> dict[str, bytes]:
    def of_deltas(*deltas: int) -> bytes:
        return assemble([encode_record(delta) for delta in deltas], now_ms)

    alike = [encode_record(i, b"%08d" % i) for i in range(200)]
    swapped = [*alike[:150], alike[151], alike[150], *alike[152:]]
    two = [encode_record(0), encode_record(1)]
    return {
        "offset deltas begin at 1": of_deltas(1, 2),
        "an offset delta is repeated": of_deltas(0, 0),
        "offset deltas with a gap": of_deltas(0, 2),
        "offset deltas go backwards": of_deltas(1, 0),
        "a negative offset delta": of_deltas(-1, 0),
        "two of 200 alike records are swapped": assemble(swapped, now_ms),
        "one of 200 alike records is longer inside": assemble(
            [*alike[:100], encode_record(100, b"12345678", value_length=9), *alike[101:]], now_ms
        ),
        "noise as records": assemble([Random(1).randbytes(200)], now_ms, record_count=20, last_offset_delta=19),
        "zeros as records": assemble([bytes(200)], now_ms, record_count=20, last_offset_delta=19),
        "bytes behind the last record": assemble([*two, b"\0"], now_ms, record_count=2, last_offset_delta=1),
        "a third record that is not counted": assemble([*two, encode_record(2)], now_ms, record_count=2, last_offset_delta=1),
    }


def _fields_that_do_not_fit(now_ms: int) -> dict[str, bytes]:
    header = b"\1k\1v".replace(b"\1", b"\2")
    wrong = {
        "a record's length is one too large": {"length_off_by": 1},
        "a record's length is one too small": {"length_off_by": -1},
        "a record's length is negative": {"length": b"\x01"},
        "a record's length is 0": {"length": b"\x00"},
        "a record's length is 1 GiB": {"length": encode_varint(2**30)},
        "the key length is -2": {"key_length": -2},
        "the key is longer than its record": {"key_length": 1000},
        "the value length is -2": {"value_length": -2},
        "the value is longer than its record": {"value_length": 1000},
        "the value is shorter than its record": {"value_length": 2},
        "the header count is negative": {"headers": encode_varint(-1)},
        "one header more than there is": {"headers": encode_varint(2) + header},
        "one header less than there is": {"headers": encode_varint(0) + header},
        "a billion headers": {"headers": encode_varint(10**9)},
        "a header without a name": {"headers": encode_varint(1) + b"\1\2v"},
        "a header's name has the length -2": {"headers": encode_varint(1) + b"\3\2v"},
        "a header's name is longer than its record": {"headers": encode_varint(1) + encode_varint(900) + b"k\2v"},
        "a header's value has the length -2": {"headers": encode_varint(1) + b"\2k\3"},
        "a header's value is longer than its record": {"headers": encode_varint(1) + b"\2k" + encode_varint(900)},
    }
    # Alone, and after a good record: a reader treats the first record of a batch and the later ones in different ways.
    alone = {name: assemble([encode_record(0, **fields)], now_ms) for name, fields in wrong.items()}  # type: ignore[arg-type]
    second = {
        f"{name}, in the second record": assemble([encode_record(0), encode_record(1, **fields)], now_ms)  # type: ignore[arg-type]
        for name, fields in wrong.items()
    }
    return alone | second


def _varints_that_are_none(now_ms: int) -> dict[str, bytes]:
    endless = b"\x80" * 20 + b"\0"
    wrong: dict[str, dict[str, bytes]] = {
        "a length of six bytes": {"length": overlong_varint(11, 6)},
        "a length beyond 32 bits": {"length": b"\x80\x80\x80\x80\x10"},
        "an offset delta of six bytes": {"delta": overlong_varint(0, 6)},
        "an offset delta beyond 32 bits": {"delta": b"\x80\x80\x80\x80\x10"},
        "a key length of six bytes": {"key_length": overlong_varint(0, 6)},
        "a value length of six bytes": {"value_length": overlong_varint(5, 6)},
        "a header count of six bytes": {"headers": overlong_varint(0, 6)},
        "a timestamp delta of eleven bytes": {"timestamp_delta": overlong_varint(0, 11)},
        "a timestamp delta beyond 64 bits": {"timestamp_delta": b"\x80" * 9 + b"\x02"},
        "a varint without an end": {"timestamp_delta": endless},
    }
    return {name: assemble([encode_record(**{"delta": 0, **fields})], now_ms) for name, fields in wrong.items()}  # type: ignore[arg-type]
