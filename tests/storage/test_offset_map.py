"""The offset map: the newest offset per key, in a fixed number of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.protocol.errors import UsageError
from strandline.storage.cleaner.offset_map import NOT_FOUND, SLOT_BYTES, OffsetMap


def test_newest_offset_of_a_key_counts() -> None:
    offset_map = OffsetMap(100 * SLOT_BYTES)
    assert offset_map.put([b"a", b"b", b"a", None], [5, 6, 7, 8])
    assert offset_map.put([b"b"], [9])
    assert offset_map.get([b"a", b"b", b"c", None], without_key=-7) == [7, 9, NOT_FOUND, -7]
    assert (len(offset_map), offset_map.latest_offset) == (2, 9)


def test_full_map_stops_before_the_first_key_that_does_not_fit() -> None:
    offset_map = OffsetMap(3 * SLOT_BYTES, load_factor=1.0)
    assert offset_map.capacity == 3
    assert not offset_map.put([b"a", b"b", b"a", b"c", b"d", b"a"], [10, 11, 12, 13, 14, 15])
    assert offset_map.latest_offset == 13
    assert offset_map.get([b"a", b"b", b"c", b"d"]) == [12, 11, 13, NOT_FOUND]
    assert offset_map.put([b"c"], [20]), "a known key needs no room"


def test_load_factor_leaves_slots_free() -> None:
    assert OffsetMap(1_000 * SLOT_BYTES, 0.9).capacity == int(997 * 0.9)
    with pytest.raises(UsageError):
        OffsetMap(SLOT_BYTES - 1)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.lists(st.tuples(st.none() | st.integers(0, 30), st.integers(1, 3)), max_size=80))
def test_map_agrees_with_a_dict(slots: int, given_rows: list[tuple[int | None, int]]) -> None:
    """They agree up to the first key that does not fit. A table that is nearly full of other keys loses none."""
    offset_map = OffsetMap(slots * SLOT_BYTES, load_factor=1.0)
    reference: dict[bytes, int] = {}
    offset, is_full = 0, False
    for key, step in given_rows:
        offset += step
        name = None if key is None else b"key %d" % key
        is_full = name is not None and name not in reference and len(reference) >= offset_map.capacity
        assert offset_map.put([name], [offset]) is not is_full
        if is_full:
            assert offset_map.latest_offset == offset - 1
            break
        if name is not None:
            reference[name] = offset
        assert offset_map.latest_offset == offset
    names = [b"key %d" % key for key in range(31)]
    assert offset_map.get(names) == [reference.get(name, NOT_FOUND) for name in names]
    assert len(offset_map) == len(reference)
