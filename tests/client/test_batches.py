"""Batches by column: the same rows as records, whatever shape they have, and Spark's columns when they become Arrow."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client import arrow_batches, arrow_schema
from strandline.client.consumer.arrow import arrow_form
from strandline.client.consumer.batches import CREATE_TIME, LOG_APPEND_TIME, FetchedBatch, fetched_batch
from strandline.client.consumer.columns import BinaryColumn
from strandline.client.consumer.records import TopicPartition, decode_records
from strandline.client.errors import UsageError
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.varint import decode_varint

ORDERS = TopicPartition("orders", 3)
TIME = 1_700_000_000_000
BASE = 1000

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

small = st.binary(max_size=12)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | small), max_size=3)
timestamps = st.just(TIME) | st.integers(TIME - 9, TIME + 10_000) | st.integers(0, 2**62)
anything = st.tuples(st.none() | small, st.none() | st.binary(max_size=200), headers, timestamps)
plain = st.tuples(st.none(), st.binary(max_size=200), st.just([]), st.just(TIME))
keyed = st.tuples(small, st.none() | small, st.just([]), st.just(TIME))


@st.composite
def runs_of_one_shape(draw: st.DrawFn) -> list[Record]:
    key_size, size, count = draw(st.none() | st.integers(0, 70)), draw(st.integers(0, 130)), draw(st.integers(8, 150))
    time = draw(st.sampled_from([TIME, TIME + 70]))
    return [(None if key_size is None else b"k" * key_size, bytes((i % 256,)) * size, [], time) for i in range(count)]


runs = st.one_of(runs_of_one_shape(), *(st.lists(kind, min_size=1, max_size=20) for kind in (anything, plain, keyed)))
batches = st.lists(runs, min_size=1, max_size=3).map(lambda several: [record for run in several for record in run])


def encoded(records: list[Record], base: int = BASE) -> bytearray:
    return bytearray(encode_batch(records, base_offset=base, leader_epoch=7))


def seal(raw: bytearray) -> bytearray:
    raw[8:12] = (len(raw) - v2.LENGTH_PREFIX).to_bytes(4, "big")
    raw[v2.CRC_POS : v2.CRC_POS + 4] = v2.compute_crc(raw, 0, len(raw)).to_bytes(4, "big")
    return raw


def compacted(raw: bytearray, kept: set[int]) -> bytearray:
    """The batch without the records whose index is not `kept`; its header keeps the range of offsets."""
    cuts = [v2.HEADER_SIZE]
    while cuts[-1] < len(raw):
        size, at = decode_varint(bytes(raw), cuts[-1])
        cuts.append(at + size)
    parts = [raw[start:end] for index, (start, end) in enumerate(pairwise(cuts)) if index in kept]
    header = raw[: v2.HEADER_SIZE]
    header[57:61] = len(parts).to_bytes(4, "big")
    return seal(header + b"".join(parts))


def read(raw: bytearray, from_offset: int = 0) -> FetchedBatch:
    return fetched_batch(ORDERS, raw, 0, v2.read_header(raw), from_offset=from_offset, check_crc=True)


def of(values: list[bytes], base: int = BASE, place: TopicPartition = ORDERS) -> FetchedBatch:
    raw = encoded([(None, value, [], TIME) for value in values], base)
    return fetched_batch(place, raw, 0, v2.read_header(raw), from_offset=0, check_crc=True)


Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def rows(batch: FetchedBatch) -> list[Row]:
    shown = [list(row) for row in batch.headers] if batch.headers is not None else [[]] * len(batch)
    return list(zip(batch.offsets, batch.timestamps_ms, batch.keys, batch.values, shown, strict=True))


def rows_of_records(raw: bytearray, from_offset: int = 0) -> list[Row]:
    records = decode_records(ORDERS, raw, 0, v2.read_header(raw), from_offset=from_offset, check_crc=True)
    return [(r.offset, r.timestamp_ms, r.key, r.value, [tuple(h) for h in r.headers]) for r in records]


def rows_of_arrow(table: pa.RecordBatch) -> list[Row]:
    table.validate(full=True)
    names = ["offset", "timestamp", "key", "value", "headers"]
    assert table.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    table = table.set_column(5, "timestamp", table.column("timestamp").cast(pa.int64()))
    found = [[row[name] for name in names] for row in table.to_pylist()]
    shown = [None if h is None else [(item["key"], item["value"]) for item in h] for *_, h in found]
    assert [] not in shown, "no headers are null, as in Spark"
    return [(*row[:4], h or []) for row, h in zip(found, shown, strict=True)]


def in_microseconds(row: Row) -> Row:
    return (row[0], min(row[1], (2**63 - 1) // 1000) * 1000, *row[2:])


# -- the same rows ----------------------------------------------------------------------------------------------------


@given(batches, st.integers(0, 100), st.data())
@settings(max_examples=150, deadline=None)
def test_columns_hold_what_records_hold(records, skipped, data):
    """Any shape, with and without gaps, from any offset on; and Arrow holds what the columns hold."""
    raw = encoded(records)
    if data.draw(st.booleans(), "compacted"):
        raw = compacted(raw, data.draw(st.sets(st.integers(0, len(records) - 1)), "kept"))
    batch = read(raw, BASE + skipped)
    expected = rows_of_records(raw, BASE + skipped)
    assert rows(batch) == expected
    assert len(batch) == len(batch.keys) == len(batch.values) == len(expected)
    assert batch.next_offset == BASE + len(records)
    assert (batch.first_offset, batch.last_offset) == (expected[0][0], expected[-1][0]) if expected else True
    assert rows_of_arrow(batch.to_arrow(include_headers=True)) == list(map(in_microseconds, expected))


@given(batches, st.integers(-5, 120), st.integers(-5, 120))
@settings(max_examples=80, deadline=None)
def test_clip_has_the_rows_between_its_offsets(records, first, last):
    raw = encoded(records)
    whole = read(compacted(raw, set(range(0, len(records), 3)) | {1}))
    clip = whole.clip(BASE + first, BASE + last)
    expected = [row for row in rows(whole) if BASE + first <= row[0] < BASE + last]
    assert rows(clip) == expected
    assert rows_of_arrow(clip.to_arrow(include_headers=True)) == list(map(in_microseconds, expected))
    assert rows(clip.clip(BASE + first + 2, BASE + last)) == [row for row in expected if row[0] >= BASE + first + 2]
    assert clip.nbytes == sum(len(key or b"") + len(value or b"") + size_of(shown) for *_, key, value, shown in expected)


def size_of(shown: list[tuple[str, bytes | None]]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in shown)


def test_clip_of_everything_and_of_nothing():
    whole = of([b"a", b"b", b"c"])
    assert whole.clip(0, 2000) is whole
    part = whole.clip(BASE + 1, BASE + 2)
    assert (part.first_offset, part.last_offset, part.next_offset) == (BASE + 1, BASE + 1, BASE + 2)
    for nothing in (whole.clip(BASE + 3, 9999), whole.clip(0, BASE), whole.clip(BASE + 2, BASE + 1)):
        assert len(nothing) == 0
        assert nothing.to_arrow().num_rows == 0


def test_what_a_batch_says_of_itself():
    batch = read(encoded([(b"k", b"value", [("h", b"x")], TIME)]))
    assert (batch.topic, batch.partition, batch.leader_epoch, batch.timestamp_type) == ("orders", 3, 7, CREATE_TIME)
    assert batch.nbytes == 8


def test_log_append_time_is_the_time_of_every_record():
    raw = encoded([(None, b"a", [], TIME), (None, b"b", [], TIME + 5)])
    v2.stamp_log_append_time(raw, 0, len(raw), TIME + 99)
    batch = read(raw)
    assert (batch.timestamp_type, batch.timestamps_ms.tolist()) == (LOG_APPEND_TIME, [TIME + 99] * 2)
    assert batch.to_arrow().column("timestampType").to_pylist() == [1, 1]


def test_a_batch_without_records_has_no_rows():
    empty = read(compacted(encoded([(None, b"a", [], TIME)]), set()))
    assert (len(empty), empty.first_offset, empty.last_offset, empty.next_offset) == (0, BASE + 1, BASE, BASE + 1)
    assert empty.to_arrow(include_headers=True).num_rows == 0


def test_a_corrupt_batch_is_refused():
    raw = encoded([(None, b"abc", [], TIME)])
    raw[-2] ^= 1
    with pytest.raises(BrokerError, match="checksum") as e:
        read(raw)
    assert e.value.code is ErrorCode.CORRUPT_MESSAGE
    raw[-1] = 9
    with pytest.raises(BrokerError, match="malformed"):
        read(seal(raw))


def test_buffers_cannot_be_written_to():
    batch = read(encoded([(b"k", b"v%03d" % i, [], TIME + i) for i in range(100)]))
    numbers = [batch.offsets, batch.timestamps_ms, batch.values.offsets, of([b"a"] * 100).values.offsets]
    assert [buffer.readonly for buffer in numbers] == [True] * 4


@pytest.mark.parametrize("size", [0, 100, 70_000])
@pytest.mark.parametrize("count", [1, 8, 8192, 8193])
def test_bounds_of_equal_fields_are_ordinary(size, count):
    fields = [b""] * (count - 1) + [b"x" * size] if size > 100 else [b"x" * size] * count
    known = BinaryColumn.of(fields, size if size <= 100 else None)
    assert known.offsets == BinaryColumn.of(fields).offsets
    assert len(known.offsets) == count + 1


def test_column_is_a_sequence():
    column = BinaryColumn.of([b"a", None, b""])
    assert list(column) == [b"a", None, b""]
    assert list(column.slice(1, 3)) == [None, b""]
    for outside in (3, -1):
        with pytest.raises(IndexError):
            column[outside]
    assert list(BinaryColumn.nulls(9)) == [None] * 9


# -- Arrow ------------------------------------------------------------------------------------------------------------

SPARK = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
SPARK_HEADERS = (
    "headers",
    pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
)


def test_the_columns_are_those_of_sparks_kafka_source():
    """The expected schemas are what pyspark 4.3 converts Spark's schema to (`to_arrow_schema`); it compares names, order and
    types."""
    batch = read(encoded([(b"k", None, [("h", None)], TIME)]))
    for include, fields in ((False, SPARK), (True, [*SPARK, SPARK_HEADERS])):
        schema = pa.schema(fields)
        assert arrow_schema(include_headers=include).equals(schema, check_metadata=True)
        assert batch.to_arrow(include_headers=include).schema.equals(schema, check_metadata=True)
        assert of([b"plain"]).to_arrow(include_headers=include).schema.equals(schema, check_metadata=True)
    assert all(field.nullable for field in arrow_schema(include_headers=True))


def test_a_row_in_arrow():
    batch = read(encoded([(b"k", None, [("h", None), ("g", b"x")], TIME + 1), (None, b"", [], TIME)]))
    first, second = batch.to_arrow(include_headers=True).to_pylist()
    assert first.pop("timestamp").timestamp() * 1000 == TIME + 1
    shown = [{"key": "h", "value": None}, {"key": "g", "value": b"x"}]
    place = {"topic": "orders", "partition": 3, "timestampType": 0}
    assert first == {"key": b"k", "value": None, "offset": BASE, "headers": shown} | place
    assert (second["key"], second["value"], second["headers"]) == (None, b"", None)


def several(sizes: list[int], **more: TopicPartition) -> list[FetchedBatch]:
    made, base = [], BASE
    for size in sizes:
        made.append(of([b"%d" % i for i in range(size)], base, **more))
        base += size
    return made


@pytest.mark.parametrize(
    ("sizes", "wanted", "got"),
    [
        ([], 10, []),
        ([3, 3, 3, 3], 10, [9, 3]),
        ([4, 6, 1], 10, [10, 1]),
        ([25], 10, [10, 10, 5]),
        ([1, 25, 1], 10, [1, 10, 10, 6]),
        ([70] * 3, 10_000, [210]),
        ([17_000], 20_000, [17_000]),
    ],
)
def test_batches_are_joined_up_to_the_wanted_rows(sizes, wanted, got):
    made = list(arrow_batches(several(sizes), rows=wanted, include_headers=True))
    assert [batch.num_rows for batch in made] == got
    offsets = [offset for batch in made for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(BASE, BASE + sum(sizes)))
    assert [row for batch in made for row in rows_of_arrow(batch)] == [
        in_microseconds(row) for batch in several(sizes) for row in rows(batch)
    ]


@given(st.lists(batches, min_size=1, max_size=4), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_joining_and_dividing_keeps_rows(several, wanted):
    fetched = [read(encoded(records, BASE * (index + 1))) for index, records in enumerate(several)]
    made = list(arrow_batches(fetched, rows=wanted, include_headers=True))
    assert all(0 < batch.num_rows <= wanted for batch in made)
    assert [row for batch in made for row in rows_of_arrow(batch)] == [in_microseconds(r) for b in fetched for r in rows(b)]


def test_another_partition_begins_another_arrow_batch():
    other = TopicPartition("orders", 4)
    made = list(arrow_batches([of([b"a"]), of([b"b"]), of([b"c"], place=other), of([b"d"])]))
    assert [batch.column("partition").to_pylist() for batch in made] == [[3, 3], [4], [3]]


def test_a_join_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("strandline.client.consumer.batches.ARROW_BYTES_MAX", 10)
    made = list(arrow_batches([of([b"x" * 4]), of([b"x" * 6]), of([b"x"]), of([b"x" * 50])]))
    assert [batch.num_rows for batch in made] == [2, 1, 1]


def test_timestamp_types_are_each_batchs_own():
    raw = encoded([(None, b"a", [], TIME)] * 2, BASE + 1)
    v2.stamp_log_append_time(raw, 0, len(raw), TIME)
    (made,) = arrow_batches([of([b"a"]), read(raw)])
    assert made.column("timestampType").to_pylist() == [0, 1, 1]


def test_no_rows_at_a_time_are_refused():
    with pytest.raises(UsageError, match="at least 1 row"):
        list(arrow_batches([], rows=0))


def test_without_pyarrow_only_arrow_is_missing(monkeypatch):
    arrow_form.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    batch = of([b"a"])
    assert list(batch.values) == [b"a"]
    with pytest.raises(UsageError, match="pip install pyarrow"):
        batch.to_arrow()


def test_the_client_is_imported_without_pyarrow():
    code = "import sys, strandline.client; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
