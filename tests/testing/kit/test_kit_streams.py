"""A stream is split where its frames begin, for every division of its bytes into reads, and keeps all bytes in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.protocol import apis, frames
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from strandline.protocol.messages.cluster import BrokerHeartbeatResponse
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.testing.kit.streams import UNKNOWN, FrameStream, Head, request_head, response_head


def request(api_key: int, correlation_id: int, body: object, records: list[list[bytes]] | None = None) -> bytes:
    return b"".join(frames.encode_request(api_key, 0, correlation_id, "test", body, records))  # type: ignore[arg-type]


PRODUCE = ProduceRequest(None, -1, 1000, [ProducePartition(bytes(16), 0)], [])
CORRELATION_IDS = [1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1]


def kafka_request(api_key: int, version: int, correlation_id: int) -> bytes:
    return pack(">ihhihs", 11, api_key, version, correlation_id, 1, b"c")


REQUESTS = [
    *((request(apis.METADATA, n, MetadataRequest(None)), Head(apis.METADATA, n)) for n in CORRELATION_IDS),
    (request(apis.PRODUCE, 5, PRODUCE, [[bytes(5000)]]), Head(apis.PRODUCE, 5)),
    (request(apis.API_VERSIONS, 6, ApiVersionsRequest("x", "1")), Head(apis.API_VERSIONS, 6)),
    *((kafka_request(apis.FETCH, 13, n), Head(apis.FETCH, n)) for n in CORRELATION_IDS),
]
RESPONSES = [
    *((b"".join(frames.encode_response(n, BrokerHeartbeatResponse(0))), Head(UNKNOWN, n)) for n in CORRELATION_IDS),
    (b"".join(frames.encode_refusal(300, 41, "no")), Head(UNKNOWN, 300)),
    (b"".join(frames.encode_response(7, ApiVersionsResponse(0, []))), Head(UNKNOWN, 7)),
    *((pack(">iih", 6, n, 0), Head(UNKNOWN, n)) for n in CORRELATION_IDS),
]


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(set(at)), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(("read", "known"), [(request_head, REQUESTS), (response_head, RESPONSES)], ids=["requests", "responses"])
@given(cuts=st.lists(st.integers(0, 6000), max_size=30), one_by_one=st.booleans())
def test_frames_are_found_however_the_bytes_come(
    read: object, known: list[tuple[bytes, Head]], cuts: list[int], one_by_one: bool
) -> None:
    data = b"".join(frame for frame, _ in known)
    stream = FrameStream(read)  # type: ignore[arg-type]
    chunks = [data[i : i + 1] for i in range(len(data))] if one_by_one else cut(data, (c for c in cuts if c < len(data)))
    pieces = [piece for chunk in chunks for piece in stream.feed(chunk)]
    assert b"".join(piece for _, piece in pieces) == data
    whole: list[bytes] = []
    for head, piece in pieces:
        if head is not None:
            whole.append(b"")
        whole[-1] += piece
    assert whole == [frame for frame, _ in known]
    assert [head for head, _ in pieces if head is not None] == [head for _, head in known]


@pytest.mark.parametrize("bad", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", bytes(30)])
def test_bytes_that_are_no_frame_pass_unchanged(bad: bytes) -> None:
    """The broker refuses such bytes, for example those of a browser, as it does without the kit."""
    for read in (request_head, response_head):
        pieces = list(FrameStream(read).feed(bad))
        assert b"".join(piece for _, piece in pieces) == bad[: len(b"".join(piece for _, piece in pieces))]
        assert all(head in (None, Head(UNKNOWN, UNKNOWN)) for head, _ in pieces)
