"""Frames: every message survives a round trip, any msgpack library can read it, and other bytes are refused."""

from __future__ import annotations

import random
import time
import tracemalloc

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_strategies import MESSAGE_CLASSES, messages

from strandline.protocol import frames
from strandline.protocol.apis import API_VERSIONS, APIS, CREATE_TOPICS, FETCH, METADATA, PRODUCE
from strandline.protocol.errors import ErrorCode, PeerError
from strandline.protocol.messages.admin import MetadataRequest
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import FetchResponse, ProducePartition, ProduceRequest

TOPIC_ID = bytes(range(16))


def take_records(message):
    """The message with empty `records`, as it is encoded, and the records."""
    if "records" not in message.__struct_fields__:
        return message, None
    records = message.records
    return msgspec.structs.replace(message, records=[]), [[bytes(r)] for r in records]


def plain(value):
    """A message as plain lists, as they are on the wire."""
    if isinstance(value, Message):
        return [plain(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, list):
        return [plain(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def framed(buffers):
    """The frame without its length, as a bytearray, as a server receives it."""
    raw = b"".join(buffers)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    return bytearray(raw[4:])


def body_frame(api_key, body):
    """A request frame with any msgpack value as its body."""
    return bytearray(msgpack.packb([api_key, 0, 1, "me", body]))


@pytest.mark.parametrize("api", list(APIS.values()), ids=lambda api: api.name)
def test_every_message_survives_the_wire_and_plain_msgpack_reads_it(api):
    """The independent reader knows no schema: it must see the fields in their order."""

    @given(messages(api.request), st.integers(0, 2**31 - 1), st.none() | st.text(max_size=8))
    @settings(max_examples=12, deadline=None)
    def requests(message, correlation_id, client_id):
        body, records = take_records(message)
        frame = framed(frames.encode_request(api.key, 0, correlation_id, client_id, body, records))
        assert frames.decode_request(frame) == frames.Request(api.key, 0, correlation_id, client_id, message)
        assert msgpack.unpackb(frame) == [api.key, 0, correlation_id, client_id, plain(message)]

    @given(messages(api.response), st.integers(0, 2**31 - 1))
    @settings(max_examples=12, deadline=None)
    def responses(message, correlation_id):
        body, records = take_records(message)
        frame = framed(frames.encode_response(correlation_id, body, records))
        assert frames.correlation_id_of(frame) == correlation_id
        assert frames.decode_response(api.key, frame) == (correlation_id, message)
        assert msgpack.unpackb(frame) == [correlation_id, plain(message)]

    requests()
    responses()


def test_records_are_the_last_field_of_every_message():
    """The encoder writes them after the packed head, so no field can follow."""
    with_records = [cls for cls in MESSAGE_CLASSES if "records" in cls.__struct_fields__]
    assert len(with_records) >= 3
    assert all(cls.__struct_fields__[-1] == "records" for cls in with_records)


@given(st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=40))
@settings(deadline=None)
def test_records_in_any_number_of_parts_are_one_value_per_partition(records):
    response = FetchResponse(0, 0, 0, [], [])
    frame = framed(frames.encode_response(1, response, records))
    _, decoded = frames.decode_response(FETCH, frame)
    assert [bytes(r) for r in decoded.records] == [b"".join(parts) for parts in records]


def test_batches_are_written_by_reference_and_read_in_place():
    """Neither side copies a byte of a batch, and a leader can stamp the received one."""
    batch = bytearray(b"b" * 1000)
    body = ProduceRequest(None, -1, 1000, [ProducePartition(TOPIC_ID, 0)], [])
    buffers = frames.encode_request(PRODUCE, 0, 1, "me", body, [[batch]])
    assert any(buffer is batch for buffer in buffers)
    frame = framed(buffers)
    received = frames.decode_request(frame).body.records[0]
    assert not received.readonly
    received[0:5] = b"stamp"
    assert frame.endswith(b"stamp" + b"b" * 995)


def test_a_message_with_records_in_its_head_cannot_be_encoded():
    with pytest.raises(ValueError, match="empty `records`"):
        frames.encode_response(1, FetchResponse(0, 0, 0, [], [memoryview(b"x")]), [[b"y"]])


@pytest.mark.parametrize("correlation_id", [0, 127, 128, 255, 256, 65535, 65536, 2**31 - 1])
def test_a_correlation_id_is_found_whatever_its_width(correlation_id):
    body = APIS[METADATA].response([], None, -1, [])
    assert frames.correlation_id_of(framed(frames.encode_response(correlation_id, body))) == correlation_id
    assert frames.correlation_id_of(framed(frames.encode_refusal(correlation_id, 42, None))) == correlation_id


def test_a_refusal_is_distinguished_from_a_response():
    frame = framed(frames.encode_refusal(7, ErrorCode.INVALID_REQUEST, "no"))
    assert frames.decode_response(PRODUCE, frame) == frames.Refusal(7, 42, "no")
    assert msgpack.unpackb(frame) == [7, None, 42, "no"]


def test_fields_that_a_newer_peer_appended_are_ignored():
    frame = body_frame(METADATA, [None, "new field", {"and": [1, 2]}])
    assert frames.decode_request(frame).body == MetadataRequest(None)
    newer_head = bytearray(msgpack.packb([5, [[], None, -1, [], 0, "new"]]))
    assert frames.decode_response(METADATA, newer_head)[0] == 5


def test_an_unknown_api_or_version_is_distinguished_from_garbage():
    with pytest.raises(frames.UnsupportedVersion) as e:
        frames.decode_request(bytearray(msgpack.packb([99, 3, 12, "me", []])))
    assert (e.value.head.api_key, e.value.head.correlation_id) == (99, 12)
    with pytest.raises(frames.UnsupportedVersion) as e:
        frames.decode_request(bytearray(msgpack.packb([API_VERSIONS, 77, 13, "me", ["a body", ["of the future"]]])))
    assert (e.value.head.api_key, e.value.head.api_version, e.value.head.correlation_id) == (API_VERSIONS, 77, 13)


# -- bad input --------------------------------------------------------------------------------------------------------

GOOD_PRODUCE = [None, -1, 1000, [[TOPIC_ID, 0]], [b"batch"]]


def produce_with(index, value):
    return [*GOOD_PRODUCE[:index], value, *GOOD_PRODUCE[index + 1 :]]


def test_the_unchanged_produce_body_is_accepted():
    assert frames.decode_request(body_frame(PRODUCE, GOOD_PRODUCE)).body.records[0] == b"batch"


@pytest.mark.parametrize(
    "body",
    [
        produce_with(1, "1"),
        produce_with(1, True),
        produce_with(1, 1.0),
        produce_with(1, 2**15),
        produce_with(2, -1),
        produce_with(2, 2**63),
        produce_with(0, b"bytes"),
        produce_with(0, "x" * 32_768),
        produce_with(3, None),
        produce_with(3, {"a": 1}),
        produce_with(3, [[TOPIC_ID, -1]]),
        produce_with(3, [[TOPIC_ID]]),
        produce_with(3, [[TOPIC_ID[:15], 0]]),
        produce_with(3, [[TOPIC_ID + b"x", 0]]),
        produce_with(3, [["0123456789abcdef", 0]]),
        produce_with(3, [[TOPIC_ID, 2**31]]),
        produce_with(4, ["text"]),
        produce_with(4, b"not a list"),
        GOOD_PRODUCE[:4],
        {},
        None,
        7,
        msgpack.ExtType(5, b"x"),
        produce_with(3, msgpack.Timestamp(1, 2)),
    ],
    ids=repr,
)
def test_msgpack_with_wrong_types_is_a_bad_body(body):
    """F11: the head is readable, so the answer is an error code and the connection stays open."""
    with pytest.raises(frames.BadBody) as e:
        frames.decode_request(body_frame(PRODUCE, body))
    assert e.value.head.correlation_id == 1


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x95",
        b"\x95\x00",
        b"\xc1",
        b"\x95\xc1",
        msgpack.packb([PRODUCE, 0, 1, "me"]),
        msgpack.packb([PRODUCE, 0, 1, "me", GOOD_PRODUCE, 1]),
        msgpack.packb({0: PRODUCE}),
        msgpack.packb([PRODUCE, 0, "1", "me", GOOD_PRODUCE]),
        msgpack.packb([PRODUCE, 0, 1, 5, GOOD_PRODUCE]),
        msgpack.packb([PRODUCE, 0, 1, "me", GOOD_PRODUCE]) + b"\x00",
        msgpack.packb([PRODUCE, 0, 1, "me", GOOD_PRODUCE])[:-1],
        b"\x95\x00\x00\x01\xa2\xff\xfe\xc0",
        msgpack.packb([PRODUCE, 0, 1, "me", [float("nan")] * 3])[:-9] + b"\xc1" * 9,
        b"\x95\x00\x00\x01\xc0\xdd\xff\xff\xff\xff",
        b"\x95\x00\x00\x01\xc0\x95\xa1\xff" + msgpack.packb([-1, 1])[1:],
    ],
    ids=lambda frame: frame[:12].hex() or "empty",
)
def test_a_frame_that_is_no_request_is_a_peer_error(frame):
    """F03, F10: PeerError for all of them, and no other exception."""
    with pytest.raises(PeerError) as e:
        frames.decode_request(bytearray(frame))
    assert not isinstance(e.value, frames.BadBody) or frame[:2] == b"\x95\x00"


def bombs(size):
    """Frames of about `size` bytes that claim far more than they hold."""
    head = b"\x95\x00\x00\x01\xa2me"
    yield "nested arrays", head + b"\x91" * size
    yield "nested array32 headers that claim 4 M elements each", head + b"\xdd\x00\x40\x00\x00" * (size // 5)
    yield "array of 4 G elements", head + b"\x95\xc0\xff\x00\xdd\xff\xff\xff\xff" + b"\x00" * size
    yield "map of 4 G entries", head + b"\xdf\xff\xff\xff\xff" + b"\x00" * size
    yield "nested maps", head + b"\x81\x00" * (size // 2)
    yield "bin that claims 4 GiB", head + b"\x95\xc0\xff\x00\x90\x91\xc6\xff\xff\xff\xff" + b"\x00" * size
    yield "nested in a field that is not ours", head + b"\x96\xc0\xff\x00\x90\x90" + b"\x91" * size
    yield "nested before the head", b"\x95\x00" + b"\x91" * size
    yield "many empty partitions", head + b"\x95\xc0\xff\x00\xdd" + (size // 1).to_bytes(4, "big") + b"\x90" * size


@pytest.mark.parametrize(("name", "frame"), list(bombs(1_000_000)), ids=lambda x: x if isinstance(x, str) else "")
def test_a_bomb_is_refused_quickly_without_allocation(name, frame):
    """F10: under 10 ms for a frame of 1 MB (here with room for a slow machine), memory under three times the frame."""
    frame = bytearray(frame)
    tracemalloc.start()
    with pytest.raises(PeerError):
        frames.decode_request(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(frame)
    assert min(refusal_cpu_s(frame) for _ in range(3)) < 0.1


def refusal_cpu_s(frame: bytearray) -> float:
    started = time.process_time()
    with pytest.raises(PeerError):
        frames.decode_request(frame)
    return time.process_time() - started


def test_random_bytes_never_raise_anything_but_peer_error():
    """F03: random bytes, and good frames with some changed bytes, through both decoders."""
    rnd = random.Random(3)
    good = [framed(frames.encode_request(PRODUCE, 0, 1, "me", ProduceRequest(None, -1, 5, [], []), [[b"xyz"]]))]
    good += [body_frame(METADATA, [[["orders", TOPIC_ID]], False]), bytearray(msgpack.packb([5, [[], None, -1, []]]))]
    keys = sorted(APIS)
    survived = 0
    for n in range(60_000):
        if n % 3:
            frame = bytearray(rnd.choice(good))
            for _ in range(rnd.randrange(1, 4)):
                frame[rnd.randrange(len(frame))] = rnd.randrange(256)
        else:
            frame = bytearray(rnd.randbytes(rnd.randrange(60)))
            if frame and n % 2:
                frame[0:2] = (0x95, rnd.choice(keys))
        try:
            frames.decode_request(frame)
            survived += 1
        except PeerError:
            pass
        try:
            frames.decode_response(rnd.choice(keys), frame)
        except PeerError:
            pass
    assert 1000 < survived < 30_000


def test_too_many_partitions_are_refused_before_they_are_decoded():
    """F11: the bound is checked at the array's header."""
    frame = bytearray(msgpack.packb([FETCH, 0, 1, "me", [-1, -1, 0, 0, 0, 0, 0, 0, [[TOPIC_ID, 0, 0, 0, 0, 0, 1]] * 200_000]]))
    tracemalloc.start()
    with pytest.raises(frames.BadBody, match="100000"):
        frames.decode_request(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000, f"{peak} bytes: its 200,000 partitions were made"


def test_a_large_request_of_tiny_parts_is_refused_before_it_is_decoded():
    """F10: its objects would take 30 times its bytes, and block the loop for a second per 10 MiB."""
    parts = 3_000_000
    topic = b"\x94\xa1t\x01\x01\xdd" + parts.to_bytes(4, "big") + b"\x92\x00\x90" * parts
    frame = bytearray(b"\x95" + bytes([CREATE_TOPICS]) + b"\x00\x07\xc0\x91\x91" + topic)
    tracemalloc.start()
    with pytest.raises(frames.BadBody, match="at most 8388608 are accepted") as e:
        frames.decode_request(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert e.value.head.correlation_id == 7, "it is answered"
    assert peak < 1_000_000


def test_a_produce_request_may_be_as_large_as_a_frame():
    batch = bytes(9 * 1024 * 1024)
    body = ProduceRequest(None, -1, 1000, [ProducePartition(TOPIC_ID, 0)], [])
    frame = bytearray(b"".join(frames.encode_request(PRODUCE, 0, 1, None, body, [[batch]]))[4:])
    assert len(frames.decode_request(frame).body.records[0]) == len(batch)
