"""The frame reader alone: the same frames result from any division of the bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.protocol.errors import PeerError
from strandline.protocol.rpc.frame_reader import FrameReader, Scratch

LIMIT = 10_000_000


def feed(reader, raw, pieces, take):
    """Give `raw` to the reader in pieces of these sizes (then as large as possible), and call `take` after each."""
    pos, pieces = 0, list(pieces)
    while pos < len(raw):
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        size = min(pieces.pop(0) if pieces else len(buffer), len(buffer), len(raw) - pos)
        buffer[:size] = raw[pos : pos + size]
        reader.received(size)
        pos += size
        take()


def wire(bodies):
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def body(n):
    return bytes((n % 251,)) * n


sizes = st.one_of(st.integers(1, 300), st.sampled_from([4091, 4092, 4093, 16384, 65532, 65536, 70_000, 200_000]))


@given(st.lists(sizes, min_size=1, max_size=30), st.lists(st.integers(1, 5000), max_size=60))
@settings(max_examples=100, deadline=None)
def test_frames_are_independent_of_how_the_bytes_arrive(frame_sizes, pieces):
    bodies = [body(n) for n in frame_sizes]
    reader = FrameReader(LIMIT)
    got = []

    def take():
        while (frame := reader.next_frame()) is not None:
            assert isinstance(frame, bytearray)
            got.append(frame)

    feed(reader, wire(bodies), pieces, take)
    assert got == bodies
    assert not reader.is_mid_frame


@given(st.lists(sizes, min_size=1, max_size=20), st.lists(st.integers(1, 3000), max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_connections_share_one_scratch_and_keep_held_bytes(frame_sizes, pieces, rnd):
    """A reader that stops in the middle (back pressure) copies its bytes before another reader uses the scratch."""
    bodies = [body(n) for n in frame_sizes]
    scratch = Scratch()
    reader, other = FrameReader(LIMIT, scratch), FrameReader(LIMIT, scratch)
    got = []

    def take():
        while True:
            if rnd.random() < 0.3:
                reader.hold()
                feed(other, wire([b"other" * 700]), [], lambda: drain(other))
            frame = reader.next_frame()
            if frame is None:
                feed(other, wire([b"other" * 200_000]), [], lambda: drain(other))
                break
            got.append(frame)

    def drain(one):
        while one.next_frame() is not None:
            pass

    feed(reader, wire(bodies), pieces, take)
    assert got == bodies


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_divided_head_is_joined(cut):
    reader = FrameReader(LIMIT)
    got = []
    raw = wire([body(5), body(70_000)])
    feed(reader, raw, [4 + 5 + cut], lambda: got.extend(iter(reader.next_frame, None)))
    assert got == [body(5), body(70_000)]


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**31 - 1, 2**31, 2**32 - 1], ids=str)
def test_a_length_out_of_bounds_is_refused_before_anything_is_allocated(length):
    """F01; a length of -1 is 2^32-1 here."""
    reader = FrameReader(LIMIT)
    buffer = reader.get_buffer()
    buffer[:4] = length.to_bytes(4, "big")
    reader.received(4)
    tracemalloc.start()
    with pytest.raises(PeerError, match=str(length)):
        reader.next_frame()
    assert tracemalloc.get_traced_memory()[1] < 10_000
    tracemalloc.stop()


def test_the_largest_frame_allowed_is_read():
    reader = FrameReader(1000)
    got = []
    feed(reader, wire([body(1000)]), [], lambda: got.append(reader.next_frame()))
    assert [f for f in got if f] == [body(1000)]


def test_a_claimed_length_allocates_little_before_the_bytes_arrive():
    reader = FrameReader(100 << 20)
    tracemalloc.start()
    reader.get_buffer()[:4] = (100 << 20).to_bytes(4, "big")
    reader.received(4)
    assert reader.next_frame() is None
    assert reader.is_mid_frame
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


def test_a_very_large_frame_has_a_growing_buffer():
    whole = bytes(range(256)) * (20 << 12)
    reader = FrameReader(100 << 20)
    got = []
    feed(reader, wire([whole, b"next"]), [], lambda: got.extend(iter(reader.next_frame, None)))
    assert got == [whole, b"next"]


def test_a_large_frame_is_received_into_its_own_buffer():
    """Only the beginning of a large frame passes through the scratch, which makes it fast."""
    reader = FrameReader(LIMIT)
    raw = wire([body(1_000_000)])
    first = reader.get_buffer()
    first[:] = raw[: len(first)]
    reader.received(len(first))
    assert reader.next_frame() is None
    rest = reader.get_buffer()
    assert len(first) <= 4096
    assert len(rest) == len(raw) - len(first)
    rest[:] = raw[len(first) :]
    reader.received(len(rest))
    frame = reader.next_frame()
    assert frame == body(1_000_000)
    rest[-1] = 7
    assert frame[-1] == 7, "the buffer that was received into is the frame"
