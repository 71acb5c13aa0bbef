"""The leader-epoch cache against a plain model, and the scenarios behind its rules."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import NOW_MS, batch, fill, open_log

from strandline.storage.checkpoints import LeaderEpochCheckpoint
from strandline.storage.log.epoch_cache import UNKNOWN, LeaderEpochCache


def model_of(record_epochs: list[int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(record_epochs):
        cache.assign(epoch, offset)
    return cache


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=20).map(sorted), st.integers(-1, 8))
def test_end_of_an_epoch_is_where_the_next_newer_record_begins(record_epochs: list[int], asked: int) -> None:
    """The definition of KIP-101, applied to the records themselves."""
    cache = model_of(record_epochs)
    end = len(record_epochs)
    known = [epoch for epoch in record_epochs if epoch <= asked]
    newer = [offset for offset, epoch in enumerate(record_epochs) if epoch > asked]
    answer = cache.end_offset_for(asked, end)
    if asked < 0 or not record_epochs or asked > record_epochs[-1]:
        assert answer == UNKNOWN
    elif known:
        assert answer == (known[-1], newer[0] if newer else end)
    else:
        assert answer == (asked, 0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=20).map(sorted), st.integers(0, 25))
def test_truncation_leaves_what_the_remaining_records_would_have_built(record_epochs: list[int], end: int) -> None:
    cache = model_of(record_epochs)
    cache.truncate_from_end(end)
    assert cache.entries == model_of(record_epochs[:end]).entries


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=20).map(sorted), st.data())
def test_raising_the_log_start_keeps_every_remaining_record_s_epoch(record_epochs: list[int], data: st.DataObject) -> None:
    cache = model_of(record_epochs)
    start = data.draw(st.integers(0, len(record_epochs) - 1))
    cache.truncate_from_start(start)
    assert [cache.epoch_for_offset(o) for o in range(start, len(record_epochs))] == record_epochs[start:]
    assert cache.entries[0][1] >= start or start == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=30))
def test_epochs_increase_and_offsets_never_decrease_whatever_is_assigned(assignments: list[tuple[int, int]]) -> None:
    """I11, even if leaders contradict each other: the latest assignment wins."""
    cache = LeaderEpochCache()
    for epoch, start in assignments:
        cache.assign(epoch, start)
        entries = cache.entries
        assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(entries))
        assert cache.latest_epoch == epoch
    assert LeaderEpochCheckpoint.decode(LeaderEpochCheckpoint.encode(cache.entries)) == cache.entries


def test_epochs_without_records_are_remembered() -> None:
    """S05 (KAFKA-7415): B3 returns with 10@e1, and must get the answer that epoch 1 ended at 10."""
    log = open_log()
    for offset in range(10):
        log.append_as_leader(batch(b"%d" % offset), 1, NOW_MS)
    for epoch in (2, 3, 4):
        log.assign_epoch_start_offset(epoch, log.log_end_offset)
    log.append_as_leader(batch(b"ten"), 4, NOW_MS)
    assert log.epochs.entries == [(1, 0), (2, 10), (3, 10), (4, 10)]
    assert log.end_offset_for_epoch(1) == (1, 10)
    assert log.end_offset_for_epoch(3) == (3, 10)
    assert log.end_offset_for_epoch(4) == (4, 11)
    assert log.end_offset_for_epoch(5) == (-1, -1)


def test_truncating_to_the_log_end_drops_the_epoch_that_begins_there() -> None:
    """S06 (KAFKA-10706): otherwise follower and leader disagree forever about an epoch without records."""
    log = open_log()
    fill(log, 5, records=2, epoch=1)
    log.assign_epoch_start_offset(2, 10)
    assert not log.truncate_to(10)
    assert log.epochs.entries == [(1, 0)]
    assert log.log_end_offset == 10


def test_an_epoch_without_records_gives_way_to_records_of_an_older_one() -> None:
    """This replica led epoch 2 and wrote nothing; the leader of epoch 3 has a record of epoch 1 at offset 10."""
    leader, follower = open_log(), open_log()
    fill(leader, 6, records=2, epoch=1)
    for record in (leader.read(0, 1 << 20, 10)).buffers:
        follower.append_as_follower(record, 1)
    follower.assign_epoch_start_offset(2, 10)
    follower.append_as_follower(leader.read(10, 1 << 20, 12).buffers[0], 3)
    assert follower.epochs.entries == [(1, 0)]
    assert follower.log_end_offset == 12
