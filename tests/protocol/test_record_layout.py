"""The layout of a batch, which the log cleaner reads: it agrees with the reader of whole records, also at malformed ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.compression import Codec
from strandline.protocol.records.layout import Layout, LayoutReader, record_starts, timestamp_delta
from strandline.protocol.records.reader import decode_columns

TIME = 1_700_000_000_000

values = st.none() | st.sampled_from([0, 1, 50, 57, 63, 64, 130]).map(lambda n: b"v" * n)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
record = st.tuples(st.none() | st.binary(max_size=70), values, headers, st.sampled_from([TIME, TIME - 70, TIME + 9000]))
alike = st.tuples(st.integers(1, 200), st.none() | st.binary(max_size=70), values, st.sampled_from([TIME, TIME + 70]))
batches = st.one_of(
    st.lists(record, min_size=1, max_size=20),
    alike.map(lambda run: [(run[1], run[2], [], run[3])] * run[0]),
    st.tuples(alike, st.lists(record, max_size=3)).map(lambda both: [(both[0][1], both[0][2], [], TIME)] * both[0][0] + both[1]),
)


def read(reader: LayoutReader, batch: bytes) -> Layout | None:
    """The layout; None if the batch is refused, always with CORRUPT_MESSAGE."""
    code = ErrorCode.NONE
    try:
        return reader.read(batch, v2.read_header(batch))
    except BrokerError as e:
        code = e.code
    assert code == ErrorCode.CORRUPT_MESSAGE
    return None


def agrees(layout: Layout, batch: bytes) -> bool:
    """Whether the reader of whole records finds the same tombstones, offsets and keys. Asserts most of it."""
    header = v2.read_header(batch)
    columns = decode_columns(batch, 0, header, check_crc=False)
    times = columns.timestamps or [columns.base_timestamp] * header.record_count
    assert [header.base_timestamp + timestamp_delta(layout.data, start) for start in layout.starts[:-1]] == list(times)
    assert layout.starts == record_starts(layout.data, header.record_count)
    assert list(layout.offsets(header.base_offset)) == list(columns.offsets())
    assert layout.tombstones == [row for row, value in enumerate(columns.values) if value is None]
    return layout.keys == (columns.keys or [None] * header.record_count)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_layout_agrees_with_the_reader_of_records(rows: list[list[tuple[object, ...]]], codec: Codec) -> None:
    """One reader reads several batches, so it also meets records that differ from the shape that it remembers."""
    reader = LayoutReader()
    for each in rows:
        batch = bytes(encode_batch(each, codec=codec))  # type: ignore[arg-type]
        layout = read(reader, batch)
        assert layout is not None
        assert agrees(layout, batch)


@settings(max_examples=examples(500), deadline=None)
@given(batches, st.data())
def test_malformed_records_are_refused(rows: list[tuple[object, ...]], data: st.DataObject) -> None:
    """Whichever value a byte is changed to, the layout refuses the records, or reads them as the reader of records does."""
    reader, batch = LayoutReader(), bytearray(encode_batch(rows))  # type: ignore[arg-type]
    assert read(reader, bytes(batch)) is not None
    at = data.draw(st.integers(v2.HEADER_SIZE, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    layout = read(reader, bytes(batch))
    assert layout is None or agrees(layout, bytes(batch))


def test_gaps_that_compaction_left_are_read() -> None:
    rows = [(b"key %d" % n, b"value", [], TIME) for n in range(100)]
    whole = bytes(encode_batch(rows))
    header = v2.read_header(whole)
    starts = record_starts(whole[v2.HEADER_SIZE :], 100)
    kept = [0, 3, 70, 99]
    records = [whole[v2.HEADER_SIZE + starts[row] : v2.HEADER_SIZE + starts[row + 1]] for row in kept]
    batch = v2.with_records(header, records, len(kept))
    layout = read(LayoutReader(), batch)
    assert layout is not None
    assert agrees(layout, batch)
    assert layout.offset_deltas == kept


@pytest.mark.parametrize("count", [63, 64, 65, 200, 8193, 8300])
def test_many_records_of_one_shape_are_read(count: int) -> None:
    """The offset delta's varint grows at 64 and at 8192."""
    batch = bytes(encode_batch([(b"%05d" % n, b"value", [], TIME) for n in range(count)]))
    layout = read(LayoutReader(), batch)
    assert layout is not None
    assert agrees(layout, batch)


def test_timestamp_of_more_than_64_bits_is_refused() -> None:
    batch = bytes(encode_batch([(b"key", b"value", [], TIME), (b"key", b"value", [], TIME + 9000)]))
    header = v2.read_header(batch)
    assert read(LayoutReader(), v2.with_records(header, [batch[v2.HEADER_SIZE :]], 2)) is not None
    late = header._replace(base_timestamp=2**63 - 9000)
    assert read(LayoutReader(), v2.with_records(late, [batch[v2.HEADER_SIZE :]], 2)) is None
