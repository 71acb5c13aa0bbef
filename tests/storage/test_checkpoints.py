"""Kafka's text formats; a file is used only if it is whole and of a known version (F18, S44)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import (
    CleanShutdown,
    LeaderEpochCheckpoint,
    MetaProperties,
    OffsetCheckpoint,
    PartitionMetadata,
    uuid_from_text,
    uuid_to_text,
)

OFFSETS = {("orders", 0): 1200, ("orders", 1): 7, ("a.b_c-1", 12): 2**63 - 1}


def test_offset_checkpoint_has_kafkas_format() -> None:
    assert OffsetCheckpoint.encode({("orders", 0): 1200, ("orders", 1): 7}) == b"0\n2\norders 0 1200\norders 1 7\n"
    assert LeaderEpochCheckpoint.encode([(0, 0), (3, 5000)]) == b"0\n2\n0 0\n3 5000\n"
    assert PartitionMetadata.encode(bytes(16)) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"


@settings(deadline=None)
@given(st.dictionaries(st.tuples(st.from_regex(r"\A[a-zA-Z0-9._-]{1,20}\Z"), st.integers(0, 999)), st.integers(0, 2**63 - 1)))
def test_offset_checkpoint_round_trip(offsets: dict[tuple[str, int], int]) -> None:
    assert OffsetCheckpoint.decode(OffsetCheckpoint.encode(offsets)) == offsets


@pytest.mark.parametrize("decode", [OffsetCheckpoint.decode, LeaderEpochCheckpoint.decode])
def test_a_half_written_checkpoint_is_rejected(decode) -> None:
    """A half-written file must not decode to smaller offsets, such as `1200` cut to `12`."""
    whole = (
        OffsetCheckpoint.encode(OFFSETS)
        if decode == OffsetCheckpoint.decode
        else LeaderEpochCheckpoint.encode([(1, 10), (3, 500)])
    )
    assert decode(whole)
    for length in range(len(whole)):
        assert decode(whole[:length]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1\n0\n",
        b"0\n-1\n",
        b"0\n1\norders 0\n",
        b"0\n1\norders 0 -5\n",
        b"0\n1\norders 0 1_0\n",
        b"0\n1\norders 0 9999999999999999999\n",
        b"0\n2\norders 0 1\norders 0 2\n",
        b"\xff\xfe\n",
        b"0\n1\norders \xd9\xa1 5\n",
        bytes(100),
    ],
)
def test_a_damaged_offset_checkpoint_is_rejected(data: bytes) -> None:
    assert OffsetCheckpoint.decode(data) is None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_parsers_survive_any_bytes(data: bytes) -> None:
    OffsetCheckpoint.decode(data)
    LeaderEpochCheckpoint.decode(data)
    PartitionMetadata.decode(data)
    CleanShutdown.decode(data)
    try:
        MetaProperties.decode(data, "meta.properties")
    except UsageError:
        pass


def test_impossible_epochs_are_rejected() -> None:
    assert LeaderEpochCheckpoint.decode(b"0\n2\n3 0\n2 10\n") is None
    assert LeaderEpochCheckpoint.decode(b"0\n2\n2 10\n3 5\n") is None


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_uuid_text_is_unpadded_base64url(raw: bytes) -> None:
    assert uuid_from_text(uuid_to_text(raw)) == raw
    assert len(uuid_to_text(raw)) == 22


@pytest.mark.parametrize("text", ["", "A", "A" * 21, "A" * 23, "A" * 21 + "B", "=" * 22, "ä" * 22, "AAAA AAAA"])
def test_a_uuid_has_one_spelling(text: str) -> None:
    assert uuid_from_text(text) is None


def test_meta_properties_round_trip_and_refusals() -> None:
    meta = MetaProperties("cluster-1", 3, bytes(range(16)))
    text = meta.encode()
    assert MetaProperties.decode(text, "m") == meta
    for broken, sentence in [
        (b"", "version"),
        (text.replace(b"version=1", b"version=2"), "newer release"),
        (text.replace(b"node.id=3", b"node.id=x"), "node.id"),
        (text[: len(text) // 2], "damaged"),
        (b"\xff", "not text"),
        (b"garbage", "not key=value"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            MetaProperties.decode(broken, "m")


def test_clean_shutdown_marker() -> None:
    assert CleanShutdown.decode(CleanShutdown.encode(17)) == 17
    assert CleanShutdown.decode(b"") is None
    assert CleanShutdown.decode(b'{"version":1}') is None
    assert CleanShutdown.decode(b'{"version":0,"brokerEpoch":"x"}') is None
