"""The heads of Kafka's frames."""

from __future__ import annotations

import pytest

from strandline.broker.kafka.heads import RequestHead, raw_frame, read_head, response_frame, response_frames
from strandline.protocol.errors import PeerError


def test_request_head_is_read():
    assert read_head(bytearray(b"\0\x12\0\3\0\0\0\7\0\2me\0rest")) == RequestHead(18, 3, 7, "me", 12)
    assert read_head(bytearray(b"\0\x12\0\3\xff\xff\xff\xff\xff\xff")) == RequestHead(18, 3, -1, None, 10)
    assert read_head(bytearray(b"\0\0\0\0\0\0\0\0\0\0")) == RequestHead(0, 0, 0, "", 10)
    assert read_head(bytearray(b"\x7f\xff\x80\0\0\0\0\1\xff\xff")) == RequestHead(0x7FFF, -0x8000, 1, None, 10)


MALFORMED = (b"", b"\0" * 9, b"\0\x12\0\3\0\0\0\7\0\3me", b"\0\x12\0\3\0\0\0\7\xff\xfeme", b"\0\x12\0\3\0\0\0\7\0\2\xc3\x28")


@pytest.mark.parametrize("raw", MALFORMED)
def test_malformed_head_is_refused(raw):
    with pytest.raises(PeerError):
        read_head(bytearray(raw))


@pytest.mark.parametrize("is_tagged", [False, True])
def test_response_frame_has_length_and_correlation_id(is_tagged):
    """Its length counts what follows it; the buffers of the body are not copied."""
    records = memoryview(bytes(1000))
    buffers = response_frames(-2, is_tagged, [b"head", records, b""])
    assert buffers[2] is records
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:8] == b"\xff\xff\xff\xfe"
    assert frame[8:] == (b"\0" if is_tagged else b"") + b"head" + bytes(1000)
    assert b"".join(response_frame(1, is_tagged, b"")) == (b"\0\0\0\5\0\0\0\1\0" if is_tagged else b"\0\0\0\4\0\0\0\1")


def test_frame_without_a_head_has_only_a_length():
    assert b"".join(raw_frame(b"abc")) == b"\0\0\0\3abc"
