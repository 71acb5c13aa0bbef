"""One bit per offset, which tells the second pass of a cleaning what the first one has seen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.protocol.records.batch import BatchHeader, read_header
from strandline.protocol.records.builder import encode_batch
from strandline.storage.cleaner.offset_map import SLOT_BYTES, OffsetMap
from strandline.storage.cleaner.offset_marks import OffsetMarks


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 70), st.sets(st.integers(90, 180)), st.integers(100, 169), st.integers(0, 69))
def test_marks_agree_with_a_set(count: int, marked: set[int], first: int, more: int) -> None:
    marks = OffsetMarks(count)
    marks.first_offset = 100
    for offset in marked:
        marks.mark(offset)
    last = first + more
    assert marks.covers(first, last) == (last < 100 + count)
    if marks.covers(first, last):
        found = marks.between(first, last)
        assert [offset for offset in range(first, last + 1) if found >> (offset - first) & 1] == sorted(
            offset for offset in marked if first <= offset <= last
        )
        assert found < 1 << (last - first + 1)


def _map(marked_offsets: int = 100) -> OffsetMap:
    offset_map = OffsetMap(100 * SLOT_BYTES, marked_offsets=marked_offsets)
    offset_map.begin(10)
    assert offset_map.put([b"a", b"b", b"a", None, b"c"], range(10, 15))
    return offset_map


def _header(base_offset: int, count: int) -> BatchHeader:
    batch = encode_batch([(b"k", b"v", [], 0)] * count)
    return read_header(batch)._replace(base_offset=base_offset)


def test_rows_without_a_newer_record_are_known_from_the_marks() -> None:
    assert _map().kept_rows(_header(10, 3)) == [1, 2]
    assert _map().kept_rows(_header(12, 3)) == [0, 2], "a record without a key goes"
    assert _map().kept_rows(_header(14, 1)) == [0]


def test_batch_beyond_the_marks_is_not_known() -> None:
    assert _map().kept_rows(_header(12, 4)) is None, "offset 15 was not put"
    assert _map().kept_rows(_header(9, 2)) is None, "offset 9 is older than all that was put"
    assert _map(4).kept_rows(_header(12, 2)) == [0]
    assert _map(4).kept_rows(_header(12, 3)) is None, "only four offsets have marks"


def test_batch_with_a_tombstone_or_a_gap_is_not_known() -> None:
    offset_map = _map()
    assert offset_map.kept_rows(_header(10, 3)._replace(record_count=2)) is None
    offset_map.mark_tombstone(14)
    assert offset_map.kept_rows(_header(10, 4)) == [1, 2]
    assert offset_map.kept_rows(_header(10, 5)) is None
