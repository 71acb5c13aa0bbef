"""The cores of a table: its contents, the changes that wait for watchers, the file of a snapshot, and the age of its data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.table.changes import Watcher
from strandline.client.table.progress import Progress, tombstones_are_there
from strandline.client.table.rows import Row, Rows
from strandline.client.table.snapshot import BadSnapshot, Place, decode, encode, read_place

DAY_MS = 86_400_000
Records = list[tuple[bytes, bytes | None]]


def apply(rows: Rows, partition: int, records: Records, first: int = 0) -> None:
    keys, values = [key for key, _ in records], [value for _, value in records]
    rows.apply(partition, keys, values, range(first, first + len(records)))


def loaded(*partitions: Records, home: int = 0) -> Rows:
    rows = Rows(lambda key: home)
    for partition, records in enumerate(partitions):
        rows.begin(partition)
        apply(rows, partition, records)
        rows.finish(partition)
    return rows


def shown(rows: Rows) -> dict[bytes, Row]:
    return dict(rows.items())


# -- contents -----------------------------------------------------------------------------------------------------------


def test_later_records_win_and_tombstones_delete() -> None:
    rows = loaded([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"c", b"4")])
    assert shown(rows) == {b"a": Row(b"3", 2, 0), b"c": Row(b"4", 4, 0)}
    assert (len(rows), b"a" in rows, b"b" in rows) == (2, True, False)


def test_contents_are_the_old_ones_until_a_load_is_finished() -> None:
    rows = loaded([(b"a", b"1"), (b"b", b"2")])
    rows.begin(0)
    apply(rows, 0, [(b"c", b"3"), (b"a", b"4")], 10)
    assert set(rows.keys()) == {b"a", b"b"}
    rows.finish(0)
    assert shown(rows) == {b"c": Row(b"3", 10, 0), b"a": Row(b"4", 11, 0)}


def test_key_of_two_partitions_has_the_row_of_its_home() -> None:
    """Partitions were added to the topic, and the key belongs to another one since."""
    for home, value in ((0, b"old"), (1, b"new"), (2, b"new")):
        rows = loaded([(b"a", b"old")], [(b"a", b"new")], home=home)
        row = rows.get(b"a")
        assert row is not None
        assert row.value == value
        assert rows.partitions_of(b"a") == [0, 1]
        assert len(rows.everything()) == 2
    apply(rows, 1, [(b"a", None)], 1)
    assert shown(rows) == {b"a": Row(b"old", 0, 0)}
    assert rows.partitions_of(b"a") == [0]
    apply(rows, 0, [(b"a", None)], 1)
    assert shown(rows) == {}


def test_dropped_partition_takes_its_keys_along() -> None:
    rows = loaded([(b"a", b"1")], [(b"b", b"2")])
    rows.drop(1)
    rows.drop(7)
    assert shown(rows) == {b"a": Row(b"1", 0, 0)}


RECORDS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"dd"]), st.none() | st.sampled_from([b"1", b"2"])), max_size=12)


@given(first=RECORDS, second=RECORDS, cut=st.integers(0, 12), home=st.integers(0, 1))
def test_contents_follow_from_the_log_alone(first: Records, second: Records, cut: int, home: int) -> None:
    """The contents are those of a load of everything, whatever was loaded, whatever was read later, and in which order."""
    rows = Rows(lambda key: home)
    rows.begin(1)
    apply(rows, 1, second)
    rows.begin(0)
    apply(rows, 0, first[:cut])
    rows.finish(0)
    rows.finish(1)
    apply(rows, 0, first[cut:], cut)
    assert shown(rows) == shown(loaded(first, second, home=home))
    rows.begin(0)
    apply(rows, 0, second)
    rows.finish(0)
    assert shown(rows) == shown(loaded(second, second, home=home))


@given(before=RECORDS, after=RECORDS)
def test_changes_lead_from_the_old_contents_to_the_new_ones(before: Records, after: Records) -> None:
    """This holds also if the partition is read again from its beginning."""
    for again in (False, True):
        rows = loaded(before)
        mirror = {key: row.value for key, row in rows.items()}
        watcher = Watcher(None, b"", lambda: None)
        rows.watch(watcher)
        if again:
            rows.begin(0)
        apply(rows, 0, after, 100)
        if again:
            rows.finish(0)
        while (change := watcher.take()) is not None:
            assert mirror.get(change.key) == change.old
            mirror.pop(change.key, None)
            if change.new is not None:
                mirror[change.key] = change.new
        assert mirror == {key: row.value for key, row in rows.items()}


# -- watchers -----------------------------------------------------------------------------------------------------------


def test_changes_of_a_key_are_merged_and_keep_their_place() -> None:
    rows = loaded([(b"a", b"0")])
    woken: list[None] = []
    watcher = Watcher(None, b"", lambda: woken.append(None))
    rows.watch(watcher)
    apply(rows, 0, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"a", b"4")], 1)
    assert len(watcher) == 2
    assert watcher.take() == (b"a", b"0", b"4", 5, 2)
    assert watcher.take() == (b"b", None, None, 4, 1)
    assert watcher.take() is None
    assert len(woken) == 5


@pytest.mark.parametrize(("key", "prefix", "expected"), [(b"ab", b"", [b"ab"]), (None, b"a", [b"ab", b"a"]), (None, b"c", [])])
def test_watcher_gets_only_what_it_watches(key: bytes | None, prefix: bytes, expected: list[bytes]) -> None:
    rows, watcher = loaded([]), Watcher(key, prefix, lambda: None)
    rows.watch(watcher)
    apply(rows, 0, [(b"ab", b"1"), (b"b", b"2"), (b"a", b"3")])
    found = []
    while (change := watcher.take()) is not None:
        found.append(change.key)
    assert found == expected


# -- the file of a snapshot -----------------------------------------------------------------------------------------------

PLACE = Place(bytes(range(16)), 3, 42, 7, 1_700_000_000_000)
ROWS = [(b"a", Row(b"1", 40, 3)), (b"", Row(b"", 7, 3)), (b"key", Row(bytes(300), 41, 3))]


def test_snapshot_returns_what_was_written() -> None:
    data = b"".join(encode(PLACE, ROWS))
    assert decode(data) == (PLACE, dict(ROWS))
    assert decode(b"".join(encode(PLACE, []))) == (PLACE, {})


def test_rows_below_the_log_start_are_left_out() -> None:
    """A table without a snapshot would not have them."""
    assert decode(b"".join(encode(PLACE, ROWS)), 40)[1].keys() == {b"a", b"key"}


def test_every_damage_is_noticed() -> None:
    data = b"".join(encode(PLACE, ROWS))
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        with pytest.raises(BadSnapshot):
            decode(damaged)
    for size in range(len(data)):
        with pytest.raises(BadSnapshot):
            decode(data[:size])
    with pytest.raises(BadSnapshot, match="does not begin like a snapshot"):
        read_place(b"something else")


# -- progress -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fresh_at_ms", "now_ms", "kept_ms", "expected"),
    [
        (0, 1000, DAY_MS, True),
        (0, DAY_MS, DAY_MS, False),
        (0, 80_000_000, DAY_MS, False),  # too close to the end
        (1000, 0, DAY_MS, False),  # the clock was set back
        (0, 0, None, False),
        (0, 0, 0, False),
    ],
)
def test_age_says_whether_tombstones_are_there(fresh_at_ms: int, now_ms: int, kept_ms: float | None, expected: bool) -> None:
    assert tombstones_are_there(fresh_at_ms, now_ms, kept_ms) == expected


@pytest.mark.parametrize(
    ("loading_ms", "later_ms", "kept_ms", "expected"),
    [
        (1000, 80_000_000, DAY_MS, True),
        (1000, 60_000, DAY_MS, False),
        (DAY_MS, 0, DAY_MS, True),  # suspended while it was loading
        (60_000, 0, 0, False),
        (0, 4000, 0, False),
        (0, 5000, 0, True),
        (0, -1, DAY_MS, True),  # the clock was set back
        (0, DAY_MS, None, False),
    ],
)
def test_partition_is_read_again_after_it_was_cut_off(
    loading_ms: int, later_ms: int, kept_ms: float | None, expected: bool
) -> None:
    progress = Progress(bytes(16))
    progress.load(10, 0)
    progress.go_live(10, loading_ms)
    assert progress.may_have_missed_tombstones(loading_ms + later_ms, kept_ms) == expected


def test_partition_that_always_loads_slowly_is_not_loaded_for_ever() -> None:
    """If reading a topic takes longer than it keeps tombstones, another loading would prove no more than the last one."""
    progress, now_ms = Progress(bytes(16)), 0
    checks = []
    for _ in range(3):
        progress.load(10, now_ms)
        now_ms += 60_000
        progress.go_live(10, now_ms)
        checks.append(progress.may_have_missed_tombstones(now_ms + 1000, 60_000))
    assert checks == [True, True, False]
    progress.confirm(now_ms)
    assert progress.may_have_missed_tombstones(now_ms + 60_000, 60_000)


def test_leader_epoch_is_that_of_the_record_before_the_position() -> None:
    """The position may have passed a record that no program sees, whose epoch is not known."""
    progress = Progress(bytes(16))
    progress.load(10, 5)
    progress.read(3, 9)
    progress.go_live(9, 6)
    assert progress.applied_epoch == 3
    progress.go_live(10, 6)
    assert progress.applied_epoch == -1
    progress.restart()
    assert (progress.applied, progress.applied_epoch) == (-1, -1)
