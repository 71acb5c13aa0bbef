"""The leader's check of produced records: it accepts exactly what every reader of the format can read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_reader import Malformed, read_records
from thorough import examples

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch, encode_values
from strandline.protocol.records.check import check_records
from strandline.protocol.records.reader import decode_batch
from strandline.testing.simulation.cluster.malformed_batches import assemble, encode_record, overlong_varint

TIME = 1_700_000_000_000

sizes = st.sampled_from([0, 1, 4, 10, 50, 56, 57, 63, 64, 100, 130])
values = sizes.map(lambda n: b"v" * n)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
record = st.tuples(
    st.none() | st.binary(max_size=70), st.none() | values, headers, st.sampled_from([TIME, TIME - 70, TIME + 9000])
)
keyed = st.tuples(st.binary(max_size=70), values, st.just([]), st.just(TIME))
batches = st.one_of(
    st.lists(record, min_size=1, max_size=20),
    st.lists(values, min_size=1, max_size=90).map(lambda each: [(None, value, [], TIME) for value in each]),
    st.lists(keyed, min_size=1, max_size=90),
    st.tuples(st.integers(1, 200), values).map(lambda run: [(None, run[1], [], TIME)] * run[0]),
    st.tuples(st.integers(1, 200), st.binary(max_size=9), values).map(lambda run: [(run[1], run[2], [], TIME)] * run[0]),
)


def accepts(batch: bytes) -> bool:
    """Whether the leader accepts the records. For a malformed record it raises INVALID_RECORD, and no other exception."""
    header, code = v2.read_header(batch), ErrorCode.NONE
    try:
        v2.validate_records(batch, 0, header)
        check_records(batch, 0, header)
    except BrokerError as e:
        code = e.code
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD)
    return code == ErrorCode.NONE


def is_read_by_the_second_reader(batch: bytes) -> bool:
    try:
        read_records(batch)
    except Malformed:
        return False
    return True


def read_by_ours(batch: bytes) -> list[tuple[object, ...]]:
    header = v2.read_header(batch)
    return [
        (r.offset - header.base_offset, r.timestamp_ms, r.key, r.value, [(n, v) for n, v in r.headers])
        for r in decode_batch(batch, 0, header, check_crc=False)
    ]


def assert_all_agree(batch: bytes) -> None:
    """The leader accepts what the second reader reads, and then this package's reader reads the same."""
    is_accepted = accepts(batch)
    assert is_accepted == is_read_by_the_second_reader(batch)
    if is_accepted:
        theirs = [
            (delta, time, key, value, [(name.decode("utf-8", "replace"), each) for name, each in headers])
            for delta, time, key, value, headers in read_records(batch)
        ]
        assert read_by_ours(batch) == theirs


@given(batches)
@settings(max_examples=examples(200), deadline=None)
def test_every_batch_of_our_builder_is_accepted(records):
    batch = encode_batch(records)
    header = v2.read_header(batch)
    times = check_records(batch, 0, header)
    assert times == (min(r[3] for r in records), max(r[3] for r in records))
    assert_all_agree(batch)


@given(batches, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=examples(1500), deadline=None)
def test_changed_bytes_are_accepted_only_if_both_readers_accept_them(records, changes):
    """Fuzzing in both directions: a changed byte of a value is accepted, a changed byte of a length is not."""
    batch = bytearray(encode_batch(records))
    for at, byte in changes:
        batch[v2.HEADER_SIZE + at % (len(batch) - v2.HEADER_SIZE)] = byte
    assert_all_agree(bytes(batch))


@given(batches, st.integers(0, 10**6), st.integers(-3, 3))
@settings(max_examples=examples(500), deadline=None)
def test_a_count_that_is_not_the_number_of_records_is_refused(records, at, off_by):
    batch = bytearray(encode_batch(records))
    count = max(1, len(records) + off_by)
    batch[57:61] = count.to_bytes(4, "big")
    batch[23:27] = (count - 1).to_bytes(4, "big")
    assert_all_agree(bytes(batch))
    assert accepts(bytes(batch)) == (count == len(records))


@given(batches, st.integers(0, 10**6), st.integers(1, 40), st.binary(max_size=40))
@settings(max_examples=examples(700), deadline=None)
def test_inserted_or_removed_bytes_are_accepted_only_if_both_readers_accept_them(records, at, cut, inserted):
    batch = encode_batch(records)
    at = v2.HEADER_SIZE + at % (len(batch) - v2.HEADER_SIZE)
    body = batch[v2.HEADER_SIZE : at] + inserted + batch[at + cut :]
    assert_all_agree(assemble([body], TIME, record_count=len(records), last_offset_delta=len(records) - 1))


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 71, 72, 73, 8191, 8192, 8193, 8200, 20_000])
@pytest.mark.parametrize("size_of", [lambda i: 5, lambda i: i % 3], ids=["one size", "many sizes"])
def test_records_are_accepted_across_the_growth_of_the_offset_delta(count, size_of):
    batch = encode_values([b"x" * size_of(i) for i in range(count)], TIME)
    assert accepts(batch)
    # The last record's offset delta is wrong.
    wrong = encode_values([b"x" * size_of(i) for i in range(count - 1)], TIME)[v2.HEADER_SIZE :] if count > 1 else b""
    body = wrong + encode_record(count, b"x")
    assert not accepts(assemble([body], TIME, record_count=count, last_offset_delta=count - 1))


@pytest.mark.parametrize("place", [0, 1, 63, 64, 65, 150, 199])
@pytest.mark.parametrize("key", [b"", b"key"])
def test_one_wrong_record_among_alike_ones_is_found(place, key):
    """The strided comparison looks at every byte around every value."""
    length = len(key) or -1
    records = [encode_record(i, b"%08d" % i, key=key, key_length=length) for i in range(200)]
    assert accepts(assemble(records, TIME))
    for wrong in (
        encode_record(place + 1, b"%08d" % place, key=key, key_length=length),
        encode_record(place, b"%07d" % place, value_length=8, key=key, key_length=length),
        encode_record(place, b"%08d" % place, key=key, key_length=length, headers=b"\1"),
        encode_record(place, b"%08d" % place, key=key, key_length=length, length_off_by=1),
    ):
        batch = assemble([*records[:place], wrong, *records[place + 1 :]], TIME)
        assert not accepts(batch)
        assert not is_read_by_the_second_reader(batch)


def test_a_varint_may_have_unneeded_bytes_within_its_width():
    """As in Kafka: five bytes for 32 bits, ten for 64."""
    assert accepts(assemble([encode_record(0, length=overlong_varint(15, 5), value_length=overlong_varint(5, 5))], TIME))
    assert accepts(assemble([encode_record(0, timestamp_delta=overlong_varint(0, 10))], TIME))
    assert not accepts(assemble([encode_record(0, timestamp_delta=overlong_varint(0, 11))], TIME))
    assert not accepts(assemble([encode_record(0, length=overlong_varint(11, 6))], TIME))
