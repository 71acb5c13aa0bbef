"""Record batches: round trips of any records by every path, and refusal of damaged batches."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import BatchBuilder, encode_batch, encode_values
from strandline.protocol.records.control import (
    ControlType,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    decode_control,
    encode_control_batch,
    encode_control_key,
)
from strandline.protocol.records.reader import decode_batch, decode_columns, decode_values, iter_records
from strandline.protocol.records.varint import VARINTS, decode_varint, encode_varint, varint_size

TIME = 1_700_000_000_000


def sizes(limit):
    """Lengths around the values where a varint grows."""
    return st.one_of(
        st.integers(0, 70), st.sampled_from([62, 63, 64, 65, 127, 128, 8190, 8191, 8192, 8193]).filter(lambda n: n <= limit)
    )


def some_bytes(limit=8193):
    return sizes(limit).flatmap(lambda n: st.sampled_from([0, 1, 97, 255]).map(lambda byte: bytes((byte,)) * n))


headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
timestamps = st.one_of(st.just(TIME), st.integers(TIME - 10_000, TIME + 10_000), st.integers(0, 2**62))
record = st.tuples(st.none() | some_bytes(130), st.none() | some_bytes(), headers, timestamps)
plain = st.tuples(st.none(), some_bytes(130), st.just([]), st.just(TIME))
batches = st.one_of(
    st.lists(record, min_size=1, max_size=20),
    st.lists(plain, min_size=1, max_size=200),
    # runs of plain records with others between them
    st.lists(
        st.one_of(st.lists(plain, min_size=1, max_size=90), st.lists(record, min_size=1, max_size=2)), min_size=1, max_size=4
    ).map(lambda runs: [r for run in runs for r in run]),
)


def as_tuples(records):
    return [(r.key, r.value, [tuple(h) for h in r.headers], r.timestamp_ms) for r in records]


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_reads_back_and_has_its_predicted_size(n):
    raw = encode_varint(n)
    assert decode_varint(raw, 0) == (n, len(raw))
    assert varint_size(n) == len(raw)


def test_the_varint_table_agrees_with_the_general_encoder():
    for n in (0, 1, 63, 64, 65, 127, 128, 8190, 8191):
        assert decode_varint(VARINTS[n], 0) == (n, len(VARINTS[n]))
    assert [len(VARINTS[n]) for n in (63, 64, 8191)] == [1, 2, 2]
    assert len(encode_varint(8192)) == 3


@given(batches)
@settings(max_examples=150, deadline=None)
def test_records_of_every_encoding_path_read_back(records):
    raw = encode_batch(records, base_offset=1000)
    header = v2.read_header(raw)
    assert header.size == len(raw)
    assert v2.check_crc(raw, 0, len(raw))
    assert header.max_timestamp == max(r[3] for r in records)
    v2.validate_records(raw, 0, header)
    read = decode_batch(raw, 0, header)
    assert as_tuples(read) == records
    assert [r.offset for r in read] == list(range(1000, 1000 + len(records)))


@given(st.lists(some_bytes(130), min_size=1, max_size=200))
@settings(max_examples=80, deadline=None)
def test_the_plain_paths_encode_like_the_general_one(values):
    """Tables and joins must produce the bytes of the field-by-field encoder, which are those of the golden batches."""
    general = BatchBuilder()
    general.base_timestamp = general.max_timestamp = TIME
    for index, value in enumerate(values):
        general._append_general(b"\0\0", index, None, value, b"\0")
    one_by_one = BatchBuilder()
    one_by_one.append(None, values[0], (), TIME)
    for value in values[1:]:
        one_by_one.append_value(value)
    assert one_by_one.build() == encode_values(values, TIME) == general.build()


@given(batches)
@settings(deadline=None)
def test_records_by_column_have_the_bytes_of_records_one_by_one(records):
    one_by_one, by_column = BatchBuilder(1, 2, 3), BatchBuilder(1, 2, 3)
    for each in records:
        one_by_one.append(*each)
    by_column.extend_records(records)
    assert by_column.build() == one_by_one.build()
    assert by_column.size >= len(by_column.build())
    alike = [(key, value, own, TIME) for key, value, own, _ in records]
    by_column = BatchBuilder(1, 2, 3)
    by_column.extend_records(alike)
    assert by_column.build() == encode_batch(alike, producer_id=1, producer_epoch=2, base_sequence=3)
    assert by_column.size >= len(by_column.build())


@pytest.mark.parametrize("count", [63, 64, 65, 4096, 4097, 8191, 8192, 8193, 9000])
@pytest.mark.parametrize("size_of", [lambda i: 10, lambda i: i % 70], ids=["one size", "many sizes"])
def test_long_batches_read_back_across_the_growth_of_the_offset_delta(count, size_of):
    values = [bytes((i % 256,)) * size_of(i) for i in range(count)]
    raw = encode_values(values, TIME)
    header = v2.read_header(raw)
    assert decode_values(raw, 0, header) == values
    assert [r.offset for r in decode_batch(raw, 0, header)] == list(range(count))


@pytest.mark.parametrize("count", [8, 63, 64, 65, 71, 72, 128, 129, 300, 8193])
def test_keyed_records_of_one_size_read_back_wherever_their_run_ends(count):
    records = [(b"key-%08d" % i, b"%010d" % i, [], TIME) for i in range(count)]
    raw = encode_batch(records)
    assert as_tuples(decode_batch(raw, 0, v2.read_header(raw))) == records


def test_sizes_are_set_only_if_all_records_have_them():
    def sizes(*runs):
        raw = encode_batch([(key, value, [], TIME) for key, value, count in runs for _ in range(count)])
        return decode_columns(raw, 0, v2.read_header(raw)).sizes

    assert sizes((None, b"abc", 100)) == (-1, 3)
    assert sizes((b"k", b"abc", 100)) == (1, 3)
    assert sizes((b"k", b"abc", 50), (b"", b"abc", 50)) is None
    assert sizes((None, b"abc", 64), (None, b"abcd", 64)) is None
    assert sizes((None, b"abc", 100), (None, None, 1)) is None


@given(batches, st.integers(0, 250))
@settings(max_examples=60, deadline=None)
def test_columns_since_an_offset_are_the_rows_from_there_on(records, first):
    raw = encode_batch(records, base_offset=1000)
    columns = decode_columns(raw, 0, v2.read_header(raw))
    assert columns.since(1000 + first).records() == columns.records()[first:]


def test_a_timestamp_beyond_64_bits_is_refused():
    """Base and delta are signed 64-bit numbers on the wire; their sum may not fit."""
    raw = bytearray(encode_batch([(None, b"a", (), TIME), (None, b"b", (), TIME + 5)]))
    raw[27:35] = (2**63 - 4).to_bytes(8, "big")
    assert is_refused(raw)


def test_a_strided_run_that_breaks_off_is_read_by_the_other_ways():
    """A record of another shape, at any index, must not be read as one of the uniform ones."""
    for odd in range(0, 100, 7):
        for other in [(b"k", b"v" * 9, [], TIME), (None, b"v" * 11, [], TIME), (None, b"v" * 10, [("h", b"")], TIME)]:
            records = [(None, b"%010d" % i, [], TIME) for i in range(100)]
            records[odd] = other
            raw = encode_batch(records)
            assert as_tuples(decode_batch(raw, 0, v2.read_header(raw))) == records


def test_size_is_a_close_upper_bound():
    rnd = random.Random(1)
    builder = BatchBuilder()
    for i in range(2000):
        if i % 3:
            builder.append(None, rnd.randbytes(rnd.choice([0, 1, 63, 64, 5000])), (), TIME)
        else:
            builder.append(b"k" * (i % 100), None if i % 2 else b"v", [("h" * 200, b"x" * 300)], TIME + i)
        if i in (0, 1, 10, 1999):
            assert len(builder.build()) <= builder.size <= len(builder.build()) + 22 * (i + 1)


def test_a_batch_can_be_built_twice_and_extended():
    builder = BatchBuilder()
    builder.extend([b"a", b"b"], TIME)
    assert builder.build() == builder.build()
    builder.append_value(b"c")
    assert builder.count == 3
    assert builder.build() == encode_values([b"a", b"b", b"c"], TIME)


def test_stamping_leaves_the_checksum_valid():
    """A broker changes only base offset and leader epoch; any other change would break the clients' checks."""
    raw = bytearray(b"prefix" + encode_values([b"a", b"b"], TIME))
    v2.stamp(memoryview(raw), 6, 2**40, 77)
    header = v2.read_header(raw, 6)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (2**40, 2**40 + 1, 77)
    assert v2.check_crc(raw, 6, header.size)


def test_log_append_time_becomes_the_time_of_every_record():
    raw = bytearray(encode_batch([(None, b"a", (), TIME), (None, b"b", (), TIME + 5)]))
    v2.stamp_log_append_time(raw, 0, len(raw), TIME + 1000)
    header = v2.read_header(raw)
    assert header.is_log_append_time
    assert [r.timestamp_ms for r in decode_batch(raw, 0, header)] == [TIME + 1000] * 2


def test_several_batches_are_walked_by_their_headers():
    raws = [encode_values([b"x"] * n, TIME, base_offset=10 * n) for n in (1, 2, 3)]
    whole = memoryview(b"".join(raws))
    assert [(pos, h.base_offset, h.record_count) for pos, h in v2.iter_headers(whole)] == [
        (0, 10, 1),
        (len(raws[0]), 20, 2),
        (len(raws[0]) + len(raws[1]), 30, 3),
    ]
    assert [r.offset for r in iter_records(whole)] == [10, 20, 21, 30, 31, 32]


@pytest.mark.parametrize("cut", range(1, 74))
def test_a_torn_tail_is_refused(cut):
    whole = encode_values([b"first"], TIME) + encode_values([b"second"], TIME)
    with pytest.raises(BrokerError) as e:
        list(v2.iter_headers(whole[:-cut]))
    assert e.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("at", "field", "what"),
    [
        (0, (-1).to_bytes(8, "big", signed=True), "negative base offset"),
        (0, (2**63 - 1).to_bytes(8, "big"), "offsets past 2^63"),
        (8, (48).to_bytes(4, "big"), "smaller than its header"),
        (8, (-1).to_bytes(4, "big", signed=True), "negative length"),
        (8, (2**31 - 1).to_bytes(4, "big"), "longer than the buffer"),
        (16, b"\x01", "an older format"),
        (16, b"\x03", "a newer format"),
        (23, (-1).to_bytes(4, "big", signed=True), "negative last offset delta"),
        (57, (-1).to_bytes(4, "big", signed=True), "negative count"),
        (57, (4).to_bytes(4, "big"), "more records than offsets"),
    ],
)
def test_an_implausible_header_is_refused(at, field, what):
    raw = bytearray(encode_values([b"a", b"b", b"c"], TIME))
    raw[at : at + len(field)] = field
    with pytest.raises(BrokerError) as e:
        v2.read_header(raw)
    assert e.value.code is ErrorCode.CORRUPT_MESSAGE, what


def test_a_produced_batch_with_gaps_or_without_room_is_invalid():
    raw = bytearray(encode_values([b"a", b"b", b"c"], TIME))
    for last_delta, count in [(2, 2), (2, 0), (1000, 1001), (2**31 - 1, 3)]:
        raw[23:27] = last_delta.to_bytes(4, "big")
        raw[57:61] = count.to_bytes(4, "big")
        with pytest.raises(BrokerError) as e:
            v2.validate_records(raw, 0, v2.read_header(raw))
        assert e.value.code is ErrorCode.INVALID_RECORD


def test_every_flipped_bit_under_the_checksum_is_noticed():
    raw = bytearray(encode_batch([(b"key", b"value", [("h", b"x")], TIME)]))
    for bit in range(v2.CRC_POS * 8, len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        assert not v2.check_crc(raw, 0, len(raw))
        raw[bit // 8] ^= 1 << bit % 8
    assert v2.check_crc(raw, 0, len(raw))


def damaged_batches(rnd, count):
    """Valid batches with a few changed bytes after the header, or a wrong count, all with a valid CRC."""
    for _ in range(count):
        shape = rnd.randrange(3)
        n = rnd.randrange(1, 100)
        if shape == 0:
            raw = bytearray(encode_values([rnd.randbytes(10)] * n, TIME))
        elif shape == 1:
            raw = bytearray(encode_values([rnd.randbytes(rnd.randrange(90)) for _ in range(n)], TIME))
        else:
            raw = bytearray(encode_batch([(rnd.randbytes(3), rnd.randbytes(5), [("h", b"v")], TIME + i) for i in range(n)]))
        for _ in range(rnd.randrange(1, 4)):
            if rnd.randrange(4):
                raw[rnd.randrange(v2.HEADER_SIZE, len(raw))] = rnd.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rnd.randrange(256)])
            else:
                raw[57:61] = rnd.randrange(n + 1).to_bytes(4, "big")
        yield raw


def is_refused(raw):
    header = v2.read_header(raw)
    try:
        columns = decode_columns(raw, 0, header, check_crc=False)
    except BrokerError as e:
        if e.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return True
    assert len(columns.values) == len(columns.records()) == header.record_count
    return False


def test_damaged_records_raise_nothing_but_corrupt_message():
    """With a valid CRC over any bytes, the reader raises CORRUPT_MESSAGE or returns records, and does nothing else."""
    rnd = random.Random(7)
    refused = 0
    for raw in damaged_batches(rnd, 4000):
        refused += is_refused(raw)
    assert 1000 < refused < 4000


def lying(change, general):
    """A batch of three records with a changed second one, for the predicted way or the general one."""
    records = [(b"k" if general else None, b"first", (), TIME), (None, b"second", (), TIME), (None, b"third.", (), TIME)]
    raw = bytearray(encode_batch(records))
    at = raw.index(b"second") - 6
    assert raw[at] == (6 + 6) << 1, "here the second record starts, with its length"
    change(raw, at)
    return raw


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda raw, at: raw.__setitem__(at, raw[at] + 2),
        lambda raw, at: raw.__setitem__(at, raw[at] - 2),
        lambda raw, at: raw.__setitem__(at, raw[at] - 1),
        lambda raw, at: raw.__setitem__(at + 5, raw[at + 5] + 2),
        lambda raw, at: raw.__setitem__(at + 5, raw[at + 5] - 2),
        lambda raw, at: raw.__setitem__(at + 4, 3),
        lambda raw, at: raw.__setitem__(at + 12, 2),
        lambda raw, at: raw.__setitem__(at + 12, 1),
        lambda raw, at: raw.__setitem__(60, 2),
        lambda raw, at: raw.extend(b"\0") or raw.__setitem__(11, raw[11] + 1),
    ],
    ids=[
        "longer than its fields",
        "shorter than its fields",
        "a negative length",
        "a value that is longer",
        "a value that is shorter",
        "a key length of -2",
        "a header count without headers",
        "a negative header count",
        "fewer records counted than there are",
        "a byte behind the last record",
    ],
)
def test_a_record_with_wrong_lengths_is_refused(change, general):
    assert is_refused(lying(change, general))


def test_the_unchanged_batch_is_accepted():
    assert not is_refused(lying(lambda raw, at: None, False))
    assert not is_refused(lying(lambda raw, at: None, True))


def test_random_bytes_are_refused_as_records():
    rnd = random.Random(8)
    for _ in range(2000):
        raw = bytearray(encode_values([b""] * rnd.randrange(1, 50), TIME))
        raw[v2.HEADER_SIZE :] = rnd.randbytes(rnd.randrange(400))
        raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
        is_refused(raw)


def test_a_wrong_checksum_is_refused_by_the_reader():
    raw = bytearray(encode_values([b"abc"], TIME))
    raw[-2] ^= 1
    with pytest.raises(BrokerError, match="checksum"):
        list(iter_records(raw))
    assert [r.value for r in iter_records(raw, check_crc=False)] == [b"abb"]


def test_offsets_with_gaps_are_kept():
    """A compacted batch has fewer records than offsets."""
    records = [(None, b"a", (), TIME), (None, b"b", (), TIME), (None, b"c", (), TIME)]
    raw = bytearray(encode_batch(records, base_offset=100))
    at = v2.HEADER_SIZE + 3
    step = (len(raw) - v2.HEADER_SIZE) // 3
    for index, delta in enumerate((1, 4, 9)):
        raw[at + index * step] = delta << 1
    raw[23:27] = (9).to_bytes(4, "big")
    assert [r.offset for r in iter_records(raw, check_crc=False)] == [101, 104, 109]


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (LeaderChange(1, (1, 2, 3), (1, 3)), "00000002", "00000000000104000000010000000002000000000300030000000100000000030000"),
        (SnapshotHeader(TIME), "00000003", "00000000018bcfe5680000"),
        (SnapshotFooter(), "00000004", "000000"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_control_records_have_kafkas_bytes(record, key, value):
    """Written by hand from Kafka's message definitions (flexible version 0: compact arrays, tagged-field counts)."""
    raw = encode_control_batch(record, TIME, base_offset=5, leader_epoch=2)
    header = v2.read_header(raw)
    assert header.is_control
    assert (header.base_offset, header.leader_epoch, header.record_count) == (5, 2, 1)
    (read,) = decode_batch(raw, 0, header)
    assert read.key == bytes.fromhex(key)
    assert read.value == bytes.fromhex(value)
    assert decode_control(read.key, read.value) == record


def test_an_unknown_control_type_is_skipped_and_a_broken_one_refused():
    assert decode_control(b"\0\0\0\x63", b"") is None
    for key, value in [(b"\0", b""), (None, None), (encode_control_key(ControlType.LEADER_CHANGE), b"\0\0\0\0\0\1\4")]:
        with pytest.raises(BrokerError):
            decode_control(key, value)
