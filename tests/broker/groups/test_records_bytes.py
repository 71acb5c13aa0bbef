"""The bytes of the records: round trips of any record, and refusal of what is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.broker.groups.records.codec import MalformedRecord, UnknownRecordType, decode_record, encode_record
from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    ClassicMemberMetadata,
    ClassicMemberValue,
    ClassicProtocol,
    CommittedOffset,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupMetadataRecord,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    MemberState,
    OffsetCommitRecord,
    RegularExpressionRecord,
    RegularExpressionValue,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.broker.groups.records.wire import Reader, Writer
from strandline.protocol.errors import BrokerError, ErrorCode

GOLDEN = json.loads((Path(__file__).parent / "golden_records.json").read_text())
RECORDS = {
    name: (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    for part in ("written", "read")
    for name, (key, value) in GOLDEN[part].items()
    if not name.startswith("type")
}
"""Kafka's bytes of every type and version that we read."""

# -- any record -------------------------------------------------------------------------------------------------------

int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
nullable_text, texts, blob = st.none() | text, st.lists(text, max_size=5).map(tuple), st.binary(max_size=200)
uuid, partition = st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1)
partitions = st.dictionaries(uuid, st.frozensets(partition, min_size=1, max_size=40), max_size=4)
epochs = st.dictionaries(uuid, st.dictionaries(partition, int32, min_size=1, max_size=40), max_size=4)
classic_members = st.builds(
    ClassicMemberValue, text, nullable_text, text, text, int32.filter(lambda timeout: timeout != -1), int32, blob, blob
)
classic_metadata = st.builds(
    ClassicMemberMetadata, int32, st.lists(st.builds(ClassicProtocol, text, blob), max_size=3).map(tuple)
)
committed = st.builds(CommittedOffset, int64, int32, text, int64, topic_id=uuid) | st.builds(
    CommittedOffset, int64, metadata=text, commit_timestamp=int64, expire_timestamp=int64
)
"""An offset that expires has neither a leader epoch nor a topic id."""
classic_groups = st.builds(
    ClassicGroupValue, text, int32, nullable_text, nullable_text, int64, st.lists(classic_members, max_size=3).map(tuple)
)
members = st.builds(
    MemberMetadataValue,
    nullable_text,
    nullable_text,
    text,
    text,
    texts,
    nullable_text,
    int32,
    nullable_text,
    st.none() | classic_metadata,
)
assignments = st.builds(CurrentAssignmentValue, int32, int32, st.sampled_from(MemberState), epochs, epochs)
records = st.one_of(
    st.builds(OffsetCommitRecord, text, text, int32, st.none() | committed),
    st.builds(GroupMetadataRecord, text, st.none() | classic_groups),
    st.builds(ConsumerGroupMetadataRecord, text, st.none() | st.builds(ConsumerGroupMetadataValue, int32, int64)),
    st.builds(MemberMetadataRecord, text, text, st.none() | members),
    st.builds(TargetAssignmentMetadataRecord, text, st.none() | st.builds(TargetAssignmentMetadataValue, int32, int64)),
    st.builds(TargetAssignmentMemberRecord, text, text, st.none() | partitions),
    st.builds(CurrentAssignmentRecord, text, text, st.none() | assignments),
    st.builds(RegularExpressionRecord, text, text, st.none() | st.builds(RegularExpressionValue, texts, int64, int64)),
)


@settings(max_examples=examples(2000))
@given(records)
def test_any_record_is_read_as_it_was_written(record: GroupRecord) -> None:
    assert decode_record(*encode_record(record)) == record


@settings(max_examples=examples(400))
@given(st.dictionaries(uuid, st.dictionaries(partition, int32, min_size=1), min_size=2, max_size=4), st.randoms())
def test_equal_assignments_have_equal_bytes(assigned: dict[bytes, dict[int, int]], random: object) -> None:
    """A simulation must write the same bytes in each run, whatever the order in which an assignment was built."""
    reversed_ = {topic: dict(reversed(of_topic.items())) for topic, of_topic in reversed(assigned.items())}
    target = {topic: frozenset(of_topic) for topic, of_topic in assigned.items()}
    for one, other in (
        (CurrentAssignmentValue(1, 0, MemberState.STABLE, value, {}) for value in (assigned, reversed_)),
        (target, dict(reversed(target.items()))),
    ):
        record = CurrentAssignmentRecord if isinstance(one, CurrentAssignmentValue) else TargetAssignmentMemberRecord
        assert encode_record(record("g", "m", one)) == encode_record(record("g", "m", other))  # type: ignore[arg-type]


# -- damaged bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_every_shorter_key_or_value_is_refused(name: str) -> None:
    """No field is guessed: a coordinator with half an assignment would answer wrongly."""
    key, value = RECORDS[name]
    for end in range(len(key)):
        with pytest.raises(MalformedRecord):
            decode_record(key[:end], value)
    for end in range(len(value or b"")):
        with pytest.raises(MalformedRecord):
            decode_record(key, (value or b"")[:end])


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_after_the_last_field_are_refused(name: str) -> None:
    key, value = RECORDS[name]
    with pytest.raises(MalformedRecord, match="1 bytes are left over"):
        decode_record(key + b"\0", value)
    if value is not None:
        with pytest.raises(MalformedRecord):
            decode_record(key, value + b"\0")


def changed(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        for byte in {0x00, 0x7F, 0x80, 0xFF, data[position] ^ 1}:
            yield data[:position] + bytes((byte,)) + data[position + 1 :]


@pytest.mark.parametrize("name", RECORDS)
def test_any_changed_byte_gives_a_record_or_a_refusal(name: str) -> None:
    """No other exception ends a load, and no length makes the reader allocate or loop: the test would not end."""
    key, value = RECORDS[name]
    for one in [(other, value) for other in changed(key)] + [(key, other) for other in changed(value or b"")]:
        try:
            decode_record(*one)
        except (MalformedRecord, UnknownRecordType):
            continue


@settings(max_examples=examples(2000))
@given(st.sampled_from([1, 2, 3, 5, 6, 7, 8, 16]), st.integers(0, 4), st.binary(max_size=60))
def test_any_bytes_give_a_record_or_a_refusal(type_: int, version: int, data: bytes) -> None:
    key = next(key for key, _ in RECORDS.values() if key[1] == type_)
    try:
        decode_record(key, version.to_bytes(2, "big") + data)
    except MalformedRecord:
        pass


def test_record_without_a_key_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="no key"):
        decode_record(None, b"\0\0")


@pytest.mark.parametrize("version", [5, -1, 32767])
def test_unknown_version_of_a_value_is_refused(version: int) -> None:
    """Skipping it would leave an older state of the group in force; so Kafka's load fails, too."""
    key, value = RECORDS["an offset"]
    assert value is not None
    with pytest.raises(MalformedRecord, match=f"version {version}"):
        decode_record(key, version.to_bytes(2, "big", signed=True) + value[2:])


def test_unknown_state_of_a_member_is_refused() -> None:
    key, value = RECORDS["an empty current assignment"]
    assert value is not None
    with pytest.raises(MalformedRecord, match="unknown state 3"):
        decode_record(key, value[:10] + b"\3" + value[11:])


def test_text_beyond_what_a_record_holds_is_refused_to_the_asker() -> None:
    """Strings in requests may have 32767 characters, which can take four times as many bytes."""
    for fits in ("x" * 32767, "ä" * 16383):
        record = OffsetCommitRecord(fits, fits, 0, CommittedOffset(1, metadata=fits))
        assert decode_record(*encode_record(record)) == record
    for record in (
        OffsetCommitRecord("ä" * 16384, "t", 0, None),
        OffsetCommitRecord("g", "t", 0, CommittedOffset(1, metadata="x" * 32768)),
        OffsetCommitRecord("g", "t", 0, CommittedOffset(1, metadata="x" * 32768, expire_timestamp=1)),
    ):
        with pytest.raises(BrokerError) as caught:
            encode_record(record)
        assert caught.value.code == ErrorCode.INVALID_REQUEST


# -- field types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "data"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16384, "808001"), (2**31 - 1, "ffffffff07")]
)
def test_varint_has_seven_bits_in_each_byte(number: int, data: str) -> None:
    writer = Writer()
    writer.varint(number)
    assert writer.data.hex() == data
    assert Reader(bytes.fromhex(data)).varint() == number


@pytest.mark.parametrize("data", ["ffffffff08", "ffffffff7f", "ffffffffff00", "8080808080", "80808080"])
def test_varint_of_more_than_31_bits_is_refused(data: str) -> None:
    """Read as a signed number, it would be a negative length."""
    with pytest.raises(MalformedRecord):
        Reader(bytes.fromhex(data)).varint()


@pytest.mark.parametrize("is_flexible", [False, True])
def test_null_is_refused_where_a_field_must_have_a_value(is_flexible: bool) -> None:
    null = b"\0" if is_flexible else b"\xff" * 4
    for read in (Reader.text, Reader.blob, lambda reader: reader.items(reader.int8)):
        with pytest.raises(MalformedRecord, match="null"):
            read(Reader(null, is_flexible=is_flexible))


@pytest.mark.parametrize("is_flexible", [False, True])
def test_count_beyond_the_end_is_refused_before_an_item_is_read(is_flexible: bool) -> None:
    claim = bytes.fromhex("ffffffff07" if is_flexible else "7fffffff")
    with pytest.raises(MalformedRecord, match="items do not fit"):
        Reader(claim + b"\1\2", is_flexible=is_flexible).items(lambda: pytest.fail("an item was read"))


@pytest.mark.parametrize("data", ["0003ab", "7fff", "0001"])
def test_text_beyond_the_end_is_refused(data: str) -> None:
    """The text is refused at its own field, so the error of a failed load names the right position."""
    with pytest.raises(MalformedRecord, match="at position 2"):
        Reader(bytes.fromhex(data)).text()


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="not UTF-8"):
        Reader(b"\0\2\xc3\x28").text()


def test_string_longer_than_kafka_reads_is_refused() -> None:
    """A flexible length can be larger than 32767; Kafka's classes refuse it, and the tools that read our log would, too."""
    writer = Writer(is_flexible=True)
    writer.varint(32768 + 1)
    with pytest.raises(MalformedRecord, match="longer than 32767"):
        Reader(writer.data + bytes(32768), is_flexible=True).text()
