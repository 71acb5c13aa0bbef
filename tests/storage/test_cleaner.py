"""The log cleaner: which records stay, what their batches look like, and how segments are replaced."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from cleaner_kit import DAY_MS, NONE, Cleaned, Producer, Row, clean, keyed, records, rows
from storage_kit import DIR, NOW_MS, TOPIC_ID, batch, forget_tail, open_log, read_all

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import DELETE_HORIZON_MASK, read_header
from strandline.protocol.records.compression import Codec
from strandline.protocol.records.control import LeaderChange, encode_control_batch
from strandline.storage.cleaner.batch_cleaning import Rules
from strandline.storage.cleaner.cleaning import SegmentGroup, build_map, groups, plan
from strandline.storage.cleaner.offset_map import SLOT_BYTES, OffsetMap
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.replacement import CleaningAborted
from strandline.storage.log.retention import newest_timestamp
from strandline.storage.memory.memory_files import MemoryFiles


def append(log: Log, *given: Row, codec: Codec = Codec.NONE, producer: Producer = NONE, epoch: int = 0) -> None:
    log.append_as_leader(keyed(given, codec=codec, producer=producer), epoch, NOW_MS)


def roll(log: Log) -> None:
    """Close the open segment, and commit all records."""
    log.roll(NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def headers(log: Log) -> list[tuple[int, int, int]]:
    """First offset, end and record count of every batch."""
    found = [read_header(each) for each in read_all(log)]
    return [(h.base_offset, h.next_offset, h.record_count) for h in found]


@pytest.fixture(autouse=True)
def _no_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all reads go to the files."""
    monkeypatch.setattr("strandline.storage.log.tail.RecentTail.read", lambda *_: None)


@pytest.mark.parametrize("codec", list(Codec))
def test_newest_record_of_each_key_stays(codec: Codec) -> None:
    log = open_log()
    append(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=codec)
    append(log, (b"a", b"2"), (b"b", b"2"), codec=codec)
    append(log, (b"a", b"3"), codec=codec)
    before = {record.offset: record for record in records(log)}
    roll(log)
    assert clean(log) == Cleaned(6, 1)
    assert rows(log) == [(2, b"c", b"1"), (4, b"b", b"2"), (5, b"a", b"3")]
    assert all(record == before[record.offset] for record in records(log)), "timestamps and headers stay"
    assert headers(log) == [(0, 3, 1), (3, 5, 1), (5, 6, 1)]
    assert [read_header(each).compression for each in read_all(log)] == [codec] * 3


def test_cleaned_batch_has_the_newest_time_of_what_is_left() -> None:
    log = open_log()
    append(log, (b"a", b"1"), (b"b", b"1"))
    append(log, (b"b", b"2"))
    roll(log)
    clean(log)
    first = read_header(read_all(log)[0])
    assert (first.base_timestamp, first.max_timestamp) == (NOW_MS, NOW_MS)
    assert log.max_timestamp_offset() == (NOW_MS, 0, 0)


def test_removed_batches_become_one_filler_per_epoch() -> None:
    log = open_log()
    for epoch in (0, 0, 1, 1, 1):
        append(log, (b"a", b"x"), (b"b", b"x"), epoch=epoch)
    append(log, (b"a", b"last"), (b"b", b"last"), (b"c", b"last"), epoch=1)
    roll(log)
    clean(log)
    assert headers(log) == [(0, 4, 0), (4, 10, 0), (10, 13, 3)]
    assert log.epochs.entries == [(0, 0), (1, 4)]


def test_fillers_of_several_rounds_are_merged() -> None:
    log = open_log()
    dirty = 0
    for round_ in range(4):
        append(log, (b"a", b"%d" % round_))
        append(log, (b"b", b"%d" % round_))
        roll(log)
        dirty = clean(log, dirty).next_dirty
    assert headers(log) == [(0, 6, 0), (6, 7, 1), (7, 8, 1)]
    assert len(log.segments) == 2


def test_unchanged_batches_are_copied_byte_for_byte_and_an_unchanged_segment_is_left() -> None:
    log = open_log()
    append(log, (b"a", b"1"), (b"b", b"1"), codec=Codec.ZSTD)
    roll(log)
    append(log, (b"c", b"1"))
    append(log, (b"c", b"2"))
    roll(log)
    before = read_all(log)
    clean(log)
    after = read_all(log)
    assert (after[0], after[2]) == (before[0], before[2])
    segments = list(log.segments)
    assert clean(log) == Cleaned(4, 0)
    assert log.segments == segments
    assert not [name for name in log.files.list(DIR) if "cleaned" in name]


def test_open_segment_and_uncommitted_records_are_not_cleaned() -> None:
    log = open_log()
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"))
    log.roll(NOW_MS)
    append(log, (b"a", b"3"))
    assert clean(log) == Cleaned(0, 0)
    log.update_high_watermark(1)
    assert clean(log) == Cleaned(0, 0)
    log.update_high_watermark(3)
    assert clean(log).next_dirty == 2
    assert rows(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


def test_records_without_key_are_dropped() -> None:
    log = open_log()
    append(log, (None, b"x"), (b"a", b"1"), (None, b"y"))
    log.append_as_leader(batch(b"plain", b"values"), 0, NOW_MS)
    roll(log)
    clean(log)
    assert headers(log) == [(0, 3, 1), (3, 5, 0)]
    assert rows(log) == [(1, b"a", b"1")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_tombstone_stays_until_its_delete_horizon(codec: Codec) -> None:
    log = open_log()
    append(log, (b"a", b"1"), (b"b", b"1"))
    append(log, (b"b", b"2"), (b"a", None), (b"c", b"1"), codec=codec)
    roll(log)
    times = [record.timestamp_ms for record in records(log)[2:]]
    dirty = clean(log, now_ms=NOW_MS).next_dirty
    assert rows(log) == [(2, b"b", b"2"), (3, b"a", None), (4, b"c", b"1")]
    header = read_header(read_all(log)[-1])
    assert header.attributes & DELETE_HORIZON_MASK
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert [record.timestamp_ms for record in records(log)] == times
    assert header.max_timestamp == times[-1]
    before = read_all(log)
    clean(log, dirty, now_ms=NOW_MS + DAY_MS - 1)
    assert read_all(log) == before, "nothing is dirty, and the horizon stays where it is"
    append(log, (b"d", b"1"))
    roll(log)
    clean(log, dirty, now_ms=NOW_MS + DAY_MS)
    assert rows(log) == [(2, b"b", b"2"), (4, b"c", b"1"), (5, b"d", b"1")]
    assert [record.timestamp_ms for record in records(log)[:2]] == [times[0], times[2]]


def test_largest_delete_retention_is_no_overflow() -> None:
    log = open_log()
    append(log, (b"a", None))
    roll(log)
    clean(log, delete_retention_ms=2**63 - 1)
    assert [(record.key, record.timestamp_ms) for record in records(log)] == [(b"a", NOW_MS)]


def test_superseded_tombstone_goes_at_once() -> None:
    log = open_log()
    append(log, (b"a", None))
    append(log, (b"a", b"2"))
    roll(log)
    clean(log)
    assert rows(log) == [(1, b"a", b"2")]


def test_last_batch_of_a_producer_stays_empty_for_its_sequences() -> None:
    files = MemoryFiles(Random(0))
    log = open_log(files)
    append(log, (b"a", b"1"), (b"b", b"1"), producer=(7, 2, 0))
    append(log, (b"a", b"2"), (b"b", b"2"), producer=(7, 2, 2), codec=Codec.GZIP)
    append(log, (b"a", b"3"), (b"b", b"3"))
    roll(log)
    clean(log)
    assert headers(log) == [(0, 2, 0), (2, 4, 0), (4, 6, 2)]
    last = read_header(read_all(log)[1])
    assert (last.producer_id, last.producer_epoch, last.base_sequence, last.last_sequence) == (7, 2, 2, 3)
    log.flush()
    files.crash()
    again = open_log(files, high_watermark=6)
    append(again, (b"a", b"4"), producer=(7, 2, 4))
    with pytest.raises(BrokerError, match="OUT_OF_ORDER"):
        append(again, (b"a", b"5"), producer=(7, 2, 9))


def test_superseded_batch_of_a_producer_goes_in_a_later_round() -> None:
    log = open_log()
    append(log, (b"a", b"1"), producer=(7, 0, 0))
    append(log, (b"a", b"2"))
    roll(log)
    clean(log)
    assert [read_header(each).producer_id for each in read_all(log)] == [7, -1]
    append(log, (b"b", b"1"), producer=(7, 0, 1))
    roll(log)
    clean(log)
    assert headers(log) == [(0, 1, 0), (1, 2, 1), (2, 3, 1)]
    assert [read_header(each).producer_id for each in read_all(log)] == [-1, -1, 7]


def test_batch_before_an_uncommitted_one_of_its_producer_stays() -> None:
    """A truncation may remove the producer's newest batch, and the state before it must still be there."""
    log = open_log()
    append(log, (b"a", b"1"), producer=(7, 0, 0))
    append(log, (b"a", b"2"))
    roll(log)
    append(log, (b"a", b"3"), producer=(7, 0, 1))
    clean(log)
    assert [read_header(each).producer_id for each in read_all(log)] == [7, -1, 7]


def test_control_batches_stay_untouched() -> None:
    log = Log.open(
        MemoryFiles(Random(0)),
        DIR,
        topic="__cluster_metadata",
        partition=0,
        topic_id=TOPIC_ID,
        config=LogConfig(),
        clean_shutdown=True,
        now_ms=NOW_MS,
    )
    control = bytearray(encode_control_batch(LeaderChange(1, (1,), (1,)), NOW_MS))
    log.append_as_leader(control, 0, NOW_MS)
    append(log, (b"\0\0\0\2", b"as the key of the control record"))
    log.append_as_leader(control[:], 0, NOW_MS)
    roll(log)
    before = read_all(log)
    clean(log)
    assert read_all(log) == before


@pytest.mark.parametrize("keys", [1, 2, 3, 5])
def test_small_map_cleans_in_several_rounds(keys: int) -> None:
    """A map that becomes full inside a batch decides nothing about later offsets."""
    log = open_log()
    for n in range(6):
        append(log, *[(b"k%d" % key, b"%d" % n) for key in range(4)])
        roll(log)
    dirty, rounds = 0, 0
    while dirty < log.log_end_offset:
        cleaned = clean(log, dirty, keys=keys)
        assert cleaned.next_dirty > dirty
        dirty, rounds = cleaned.next_dirty, rounds + 1
        assert [value for _, _, value in rows(log)[-4:]] == [b"5"] * 4
    assert rows(log) == [(20 + key, b"k%d" % key, b"5") for key in range(4)]
    assert (rounds == 1) == (keys >= 4)


# -- segments ---------------------------------------------------------------------------------------------------------


def segments(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_are_grouped_up_to_the_size_of_one() -> None:
    log = open_log(config=LogConfig(segment_bytes=1000))
    for n in range(8):
        append(log, (b"%d" % n, b"x" * 250))
        roll(log)
    assert len(log.segments) == 9
    size = log.segments[0].size
    assert 2 * size <= 1000 < 4 * size
    clean(log)
    assert segments(log) == [0, 1000 // size, *range(2 * (1000 // size), 8, 1000 // size), 8][: len(log.segments)]
    assert all(segment.size <= 1000 for segment in log.segments)
    assert len(rows(log)) == 8


def test_snapshot_of_producers_goes_with_its_segment() -> None:
    """The snapshot at the first base offset of a group stays, because a segment still begins there."""
    log = open_log(config=LogConfig(segment_bytes=400))
    for n in range(6):
        append(log, (b"%d" % n, b"x" * 90), producer=(7, 0, n))
        roll(log)
    clean(log)
    snapshots = [int(name[:20]) for name in log.files.list(DIR) if name.endswith(".snapshot")]
    assert snapshots == segments(log)[1:]
    assert len(snapshots) < 6


def test_group_spans_no_more_offsets_than_an_index_can_name() -> None:
    log = open_log()
    planned = plan(log, 0)
    from strandline.storage.cleaner.cleaning import ClosedSegment

    far = [ClosedSegment(log.segments[0], base, base + 2**30, 10, 0) for base in range(0, 4 * 2**30, 2**30)]
    found = groups(planned._replace(segments=far), 4 * 2**30)
    assert [[each.base_offset for each in group.members] for group in found] == [[0, 2**30], [2 * 2**30, 3 * 2**30]]


def test_reading_goes_on_through_a_replacement() -> None:
    """A cursor into an old segment is dropped, and the next read looks up its position in the new one."""
    log = open_log()
    for n in range(40):
        append(log, (b"%d" % (n % 4), b"x" * 500))
        if n % 10 == 9:
            roll(log)
    read = log.read(5, 600, log.log_end_offset)
    assert log.cursors
    clean(log)
    assert read_header(log.read(5 + len(read.buffers), 600, log.log_end_offset).buffers[0]).record_count == 0
    assert [offset for offset, _, _ in rows(log)] == [36, 37, 38, 39]


def test_indexes_of_a_cleaned_segment_are_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = f"{tmp_path_factory.mktemp('log')}/orders-0"
    log = open_log(RealFiles(), directory, config=LogConfig(index_interval_bytes=200))
    for n in range(300):
        log.append_as_leader(keyed([(b"%d" % (n % 70), b"y" * 30)], timestamp_ms=NOW_MS + n), 0, NOW_MS)
        if n % 50 == 49:
            roll(log)
    clean(log)
    segment = log.segments[0]
    before = bytes(segment.offset_index.entries), bytes(segment.time_index.entries)
    assert len(before[0]) > 8
    segment.rebuild_indexes(200)
    assert (bytes(segment.offset_index.entries), bytes(segment.time_index.entries)) == before
    assert log.offset_for_timestamp(NOW_MS + 10) == (NOW_MS + 230, 230, 0)
    assert log.max_timestamp_offset() == (NOW_MS + 299, 299, 0)


@pytest.mark.parametrize("disk", ["real", "memory"])
def test_rewritten_segment_is_as_old_as_the_last_of_the_old_ones(disk: str, tmp_path: Path) -> None:
    """Retention counts the age of records without timestamps from the time of their file. A cleaning must not make them young
    again, because then a topic that is cleaned often enough would never delete them."""
    files, directory = (RealFiles(), f"{tmp_path}/orders-0") if disk == "real" else (MemoryFiles(Random(0)), DIR)
    config = LogConfig(retention_ms=60_000)
    log = open_log(files, directory, config=config)
    for n in range(3):
        for value in (b"1", b"2"):
            log.append_as_leader(keyed([(b"k%d" % n, value)], timestamp_ms=-1), 0, NOW_MS)
        roll(log)
        files.set_modified_ms(log.segments[n].path(".log"), NOW_MS + 1_000 * n)
    assert clean(log).replaced == 1
    log.close()
    for again in (log, open_log(files, directory, clean=True, config=config, recovery_point=6, high_watermark=6)):
        assert newest_timestamp(again.segments[0]) == NOW_MS + 2_000
        assert again.delete_old_segments(NOW_MS + 62_000) == []
    assert again.delete_old_segments(NOW_MS + 62_001)


def rewritten(log: Log) -> tuple[SegmentGroup, int]:
    planned = plan(log, 0)
    offset_map = OffsetMap(100 * SLOT_BYTES)
    list(build_map(log.files, planned, offset_map))
    group = groups(planned, offset_map.latest_offset)[0]
    list(group.rewrite(log.files, Rules(offset_map, NOW_MS, DAY_MS, planned.last_batches)))
    return group, planned.truncations


@pytest.mark.parametrize("change", ["truncated", "restarted", "deleted", "damaged"])
def test_result_is_refused_if_the_log_has_changed(change: str) -> None:
    log = open_log(config=LogConfig(retention_ms=1))
    for n in range(3):
        append(log, (b"a", b"%d" % n))
        roll(log)
    group, truncations = rewritten(log)
    if change == "truncated":
        log.truncate_to(2)
        append(log, (b"a", b"other"))
        roll(log)
    elif change == "restarted":
        log.truncate_fully_and_start_at(0)
    elif change == "deleted":
        log.delete_old_segments(NOW_MS + DAY_MS)
    else:
        log.mark_corrupt(1)
    before = log.files.list(DIR)
    assert group.cleaned is not None
    with pytest.raises(CleaningAborted):
        log.replace_segments(group.old, group.cleaned, truncations)
    assert log.files.list(DIR) == before
    assert log.failure.error is None


def test_appends_and_rolls_do_not_disturb_a_cleaning() -> None:
    log = open_log()
    for n in range(3):
        append(log, (b"a", b"%d" % n))
        roll(log)
    group, truncations = rewritten(log)
    append(log, (b"a", b"3"))
    roll(log)
    append(log, (b"a", b"4"))
    assert group.cleaned is not None
    log.replace_segments(group.old, group.cleaned, truncations)
    assert rows(log) == [(2, b"a", b"2"), (3, b"a", b"3"), (4, b"a", b"4")]
    assert segments(log) == [0, 3, 4]


@pytest.mark.parametrize("where", ["dirty", "clean"])
def test_damaged_batch_fails_the_cleaning_and_changes_nothing(where: str) -> None:
    log = open_log()
    for n in range(3):
        append(log, (b"a", b"value %d" % n))
        roll(log)
    if where == "clean":
        clean(log)
        append(log, (b"a", b"value 3"))
        roll(log)
    files = log.files
    assert isinstance(files, MemoryFiles)
    files.flip_bit(log.segments[0].path(".log"), 8 * (log.segments[0].size - 3))
    before = files.list(DIR)
    with pytest.raises(BrokerError, match="damaged"):
        clean(log, 0 if where == "dirty" else 3)
    assert files.list(DIR) == before


@pytest.mark.parametrize("newest_bit", [0, 23])
def test_damaged_epoch_of_a_batch_fails_the_cleaning(newest_bit: int) -> None:
    """The checksum does not cover the epoch. A filler with a wrong epoch would be damage where the old segments had none."""
    log = open_log()
    for n in range(3):
        append(log, (b"a", b"value %d" % n))
        roll(log)
    files = log.files
    assert isinstance(files, MemoryFiles)
    files.flip_bit(log.segments[1].path(".log"), 8 * 15 - newest_bit)
    with pytest.raises(BrokerError, match="leader epoch"):
        clean(log)


def test_epochs_before_the_log_start_are_not_compared() -> None:
    """The epoch cache no longer has them; their segment is closed and stays until its last record is deleted."""
    log = open_log()
    append(log, (b"a", b"1"), epoch=1)
    append(log, (b"a", b"2"), epoch=2)
    append(log, (b"b", b"1"), epoch=2)
    roll(log)
    log.increment_log_start_offset(2)
    assert log.epochs.entries == [(2, 2)]
    assert clean(log) == Cleaned(3, 1)


def test_discarded_cleaning_leaves_no_file_behind() -> None:
    log = open_log()
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"))
    roll(log)
    planned = plan(log, 0)
    offset_map = OffsetMap(100 * SLOT_BYTES)
    list(build_map(log.files, planned, offset_map))
    group = groups(planned, offset_map.latest_offset)[0]
    steps = group.rewrite(log.files, Rules(offset_map, NOW_MS, DAY_MS, planned.last_batches))
    next(steps)
    steps.close()
    assert [name for name in log.files.list(DIR) if "cleaned" in name], "a dead process removes nothing"
    group.discard()
    assert not [name for name in log.files.list(DIR) if "cleaned" in name]


def test_truncation_and_appends_after_a_cleaning() -> None:
    log = open_log()
    for n in range(6):
        append(log, (b"a", b"%d" % n), (b"b", b"%d" % n))
        if n % 2:
            roll(log)
    clean(log)
    log.truncate_to(11)
    assert log.log_end_offset == 10
    log.truncate_to(5)
    assert (log.log_end_offset, rows(log)) == (0, [])
    append(log, (b"a", b"new"))
    forget_tail(log)
    assert rows(log) == [(0, b"a", b"new")]
