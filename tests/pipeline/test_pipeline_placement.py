"""Rows become records by column: partitions and bytes must be the same as those of code that handles row by row."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.producer.partitioner import partition_for_key
from strandline.pipeline.placement import BLOCK_ROWS, partitions_of, partitions_of_keys, split_by_partition
from strandline.pipeline.rows import columns_of, fields_of

short = st.lists(st.none() | st.binary(max_size=13), max_size=60)
long = st.lists(st.none() | st.binary(max_size=90), max_size=60)


@given(short | long, st.integers(0, 5), st.integers(1, 50))
def test_keys_go_where_every_client_sends_them(keys: list[bytes | None], cut: int, partitions: int) -> None:
    """If a key went to another partition than its earlier records, the order of its records would be lost."""
    column = pa.array(keys, pa.binary()).slice(cut)
    expected = [None if key is None else partition_for_key(key, partitions) for key in keys[cut:]]
    assert partitions_of_keys(column, partitions).to_pylist() == expected


def test_text_key_is_hashed_as_utf8() -> None:
    assert partitions_of_keys(pa.array(["dragon", "brûlée"]), 7).to_pylist() == [
        partition_for_key(key.encode(), 7) for key in ("dragon", "brûlée")
    ]


def test_partition_comes_from_column_then_key_then_row_number() -> None:
    rows = pa.record_batch(
        {
            "value": [b"a", b"b", b"c", b"d"],
            "key": pa.array([b"k", b"k", None, None], pa.binary()),
            "partition": pa.array([4, None, 2, None], pa.int32()),
        }
    )
    assert partitions_of(rows, 0, 3, 5).to_pylist() == [4, partition_for_key(b"k", 5), 2, 3]
    whole = partitions_of(pa.record_batch({"value": [b""] * (2 * BLOCK_ROWS)}), 500, 3, 5)
    pieces = [
        partitions_of(pa.record_batch({"value": [b""] * 500}), first, 3, 5) for first in range(500, 500 + 2 * BLOCK_ROWS, 500)
    ]
    assert whole.to_pylist() == pa.concat_arrays(pieces).to_pylist()
    assert set(whole.to_pylist()) == {3, 4, 0}


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.binary(max_size=5)), max_size=80))
def test_each_partition_keeps_the_order_of_its_rows(rows: list[tuple[int, bytes | None]]) -> None:
    batch = pa.record_batch({"value": pa.array([value for _, value in rows], pa.binary())})
    runs = dict(split_by_partition(batch, pa.array([place for place, _ in rows], pa.int32())))
    found = {place: run.column("value").to_pylist() for place, run in runs.items()}
    assert found == {place: [value for at, value in rows if at == place] for place in {place for place, _ in rows}}


@given(st.lists(st.binary(max_size=9)) | st.lists(st.none() | st.text(max_size=9)) | st.lists(st.binary(min_size=4, max_size=4)))
def test_fields_are_the_bytes_of_the_column(fields: list[bytes] | list[str | None]) -> None:
    kind = pa.string() if any(isinstance(field, str) for field in fields) else pa.binary()
    raw = [field.encode() if isinstance(field, str) else field for field in fields]
    column = pa.array(fields, kind)
    assert fields_of(column) == raw
    assert fields_of(column.slice(1)) == raw[1:]


@given(st.lists(st.text(max_size=9), min_size=1))
def test_columns_with_64_bit_bounds_are_read(fields: list[str]) -> None:
    """Spark sends such columns with `spark.sql.execution.arrow.useLargeVarTypes`. Read as 32 bits, every value would be wrong."""
    raw = [field.encode() for field in fields]
    for column in (pa.array(fields, pa.large_string()), pa.array(raw, pa.large_binary())):
        assert fields_of(column) == raw
        assert fields_of(column.slice(1)) == raw[1:]
        assert partitions_of_keys(column, 7).to_pylist() == [partition_for_key(key, 7) for key in raw]


def test_empty_columns_are_none_for_the_producer() -> None:
    """The producer has a faster path for rows that have only values."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch({"value": [b"v", b"w"], "key": pa.nulls(2, pa.binary()), "headers": pa.nulls(2, header)})
    assert columns_of(rows, include_headers=True) == ([b"v", b"w"], None, None)
    named = rows.set_column(2, "headers", pa.array([[("h", b"1")], None], header))
    assert columns_of(named, include_headers=True).headers == [[("h", b"1")], None]
