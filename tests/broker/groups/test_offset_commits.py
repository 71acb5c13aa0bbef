"""OffsetCommit records that are decoded by position equal those of the general decoder, and so do the errors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.broker.groups.records import offset_commits
from strandline.broker.groups.records.codec import MalformedRecord, decode_record, encode_record
from strandline.broker.groups.records.offset_commits import decode_offset_commit, only_record
from strandline.broker.groups.records.types import CommittedOffset, OffsetCommitRecord
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.records.batch import HEADER_SIZE
from strandline.protocol.records.builder import encode_batch

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=40)
METADATA = st.one_of(TEXT, st.integers(120, 140).map(lambda size: "m" * size))
values = st.builds(
    CommittedOffset,
    INT64,
    INT32,
    METADATA,
    INT64,
    st.sampled_from((-1, 5)),
    st.one_of(st.just(ZERO_UUID), st.binary(min_size=16, max_size=16)),
)
records = st.builds(OffsetCommitRecord, TEXT, TEXT, INT32, st.one_of(st.none(), values))


def outcome(decode: object, key: bytes, value: bytes | None) -> object:
    try:
        return decode(key, value)  # type: ignore[operator]
    except MalformedRecord as e:
        return str(e)


@settings(max_examples=examples(1000), deadline=None)
@given(records)
def test_record_is_the_one_of_the_general_decoder(record: OffsetCommitRecord) -> None:
    key, value = encode_record(record)
    assert decode_offset_commit(key, value) == decode_record(key, value)


@settings(max_examples=examples(2000), deadline=None)
@given(records, st.data())
def test_damaged_record_has_the_same_outcome(record: OffsetCommitRecord, data: st.DataObject) -> None:
    """If the fast decoder read damaged bytes in another way, the state would depend on which decoder was used."""
    key, value = encode_record(record)
    fields = [bytearray(key), bytearray(value or b"")]
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from(fields))
        if field:
            at = data.draw(st.integers(0, len(field) - 1))
            if data.draw(st.booleans()):
                field[at] = data.draw(st.integers(0, 255))
            else:
                del field[at:]
    fields[0][:2] = b"\0\1"
    arguments = bytes(fields[0]), None if value is None else bytes(fields[1])
    assert outcome(decode_offset_commit, *arguments) == outcome(decode_record, *arguments)


@pytest.mark.parametrize("metadata", ["", "note"])
def test_record_with_one_other_byte_has_the_same_outcome(metadata: str) -> None:
    """Each byte gets each value, so each check of the fast decoder is needed."""
    record = OffsetCommitRecord("g", "orders", 3, CommittedOffset(700, 5, metadata, 99, topic_id=bytes(range(16))))
    for field in (0, 1):
        for at in range(2 if field == 0 else 0, len((encode_record(record)[field]) or b"")):
            for byte in range(256):
                parts = [bytearray(part or b"") for part in encode_record(record)]
                parts[field][at] = byte
                arguments = bytes(parts[0]), bytes(parts[1])
                assert outcome(decode_offset_commit, *arguments) == outcome(decode_record, *arguments)


def test_negative_size_does_not_lead_backwards() -> None:
    """With a group name of -4 bytes, the reader would go back and read the record type as the size of the topic."""
    with pytest.raises(MalformedRecord):
        decode_offset_commit(b"\0\0\xff\xfc\0\0", None)


@pytest.mark.parametrize("metadata", ["", "a note", "ü" * 60])
def test_usual_record_is_decoded_by_position(metadata: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every record could fall back to the general decoder, and no result would show it."""
    record = OffsetCommitRecord("group", "orders", 3, CommittedOffset(700, 5, metadata, 99, topic_id=bytes(range(16))))
    key, value = encode_record(record)
    monkeypatch.setattr(offset_commits, "decode_record", None)
    assert decode_offset_commit(key, value) == record
    assert decode_offset_commit(key, None) == OffsetCommitRecord("group", "orders", 3, None)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_only_record_of_a_batch(key: bytes, value: bytes) -> None:
    assert only_record(encode_batch([(key, value, [], 5)])[HEADER_SIZE:]) == (key, value)


@pytest.mark.parametrize(
    "row", [(None, b"v", [], 5), (b"k", None, [], 5), (b"k", b"v", [("h", b"")], 5), (b"k" * 10_000, b"v", [], 5)]
)
def test_record_of_another_form_is_left_to_the_reader(
    row: tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int],
) -> None:
    assert only_record(encode_batch([row])[HEADER_SIZE:]) is None


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=40))
def test_other_bytes_are_no_record(data: bytes) -> None:
    found = only_record(data)
    assert found is None or encode_batch([(*found, [], 5)])[HEADER_SIZE:][2:] == data[2:]
