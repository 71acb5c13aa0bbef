"""A log in normal operation: appended batches are read back, limits hold, and nothing is half done."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import DIR, NOW_MS, batch, check_order, fill, forget_tail, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import iter_headers, read_header
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.storage.disk import ColdRead, DiskError
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig, TailBudget
from strandline.storage.memory.memory_files import MemoryFile, MemoryFiles

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def refused(log: Log, records: bytes | bytearray, epoch: int = 0) -> ErrorCode:
    """Check that the append is refused and changes nothing; returns the error code."""
    before = (log.log_end_offset, log.size_bytes, log.producers.dump(), log.epochs.entries)
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(bytearray(records), epoch, NOW_MS)
    assert (log.log_end_offset, log.size_bytes, log.producers.dump(), log.epochs.entries) == before
    return caught.value.code


def test_batches_are_stamped_in_place_and_otherwise_untouched() -> None:
    log = open_log()
    fill(log, 3)
    original = batch(b"a", b"b")
    buffer = bytearray(original)
    info = log.append_as_leader(memoryview(buffer), 9, NOW_MS)
    header = read_header(buffer)
    assert (header.base_offset, header.leader_epoch) == (6, 9)
    assert buffer[16:] == original[16:]
    assert buffer[8:12] == original[8:12]
    assert (info.first_offset, info.last_offset, info.size, info.duplicate) == (6, 7, len(buffer), False)
    assert read_all(log, 6) == [bytes(buffer)]


def test_read_only_buffers_are_copied_not_refused() -> None:
    log = open_log()
    log.append_as_leader(bytes(batch(b"a")), 0, NOW_MS)
    log.append_as_leader(memoryview(bytes(batch(b"b"))), 0, NOW_MS)
    assert log.log_end_offset == 2


def test_several_batches_are_appended_as_one() -> None:
    log = open_log()
    info = log.append_as_leader(batch(b"a", b"b") + batch(b"c", timestamp_ms=NOW_MS + 5) + batch(b"d"), 3, NOW_MS)
    assert (info.first_offset, info.last_offset, info.max_timestamp) == (0, 3, NOW_MS + 5)
    forget_tail(log)
    records = [r.value for r in iter_records(b"".join(log.read(0, 1 << 20, 4).buffers))]
    assert records == [b"a", b"b", b"c", b"d"]


def _with_bad_crc() -> bytearray:
    data = batch(b"abc")
    data[-1] ^= 1
    return data


def _count_does_not_match() -> bytearray:
    from strandline.protocol.records.batch import compute_crc

    data = batch(b"a", b"b")
    data[57:61] = (1).to_bytes(4, "big")
    data[17:21] = compute_crc(data, 0, len(data)).to_bytes(4, "big")
    return data


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"garbage", ErrorCode.CORRUPT_MESSAGE),
        (bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a") + b"x", ErrorCode.CORRUPT_MESSAGE),
        (_with_bad_crc(), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"fine") + _with_bad_crc(), ErrorCode.CORRUPT_MESSAGE),
        (_count_does_not_match(), ErrorCode.INVALID_RECORD),
        (batch(b"x" * 300), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"x" * 100) * 5, ErrorCode.RECORD_LIST_TOO_LARGE),
        (batch(b"a", is_control=True), ErrorCode.INVALID_RECORD),
        (batch(b"a", timestamp_ms=NOW_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        (batch(b"a", timestamp_ms=NOW_MS - 10_001), ErrorCode.INVALID_TIMESTAMP),
        (batch(b"a", timestamp_ms=-5), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_bad_batches_are_refused_before_anything_is_written(records: bytes | bytearray, code: ErrorCode) -> None:
    """F13."""
    log = open_log(config=LogConfig(segment_bytes=700, max_message_bytes=200, message_timestamp_before_max_ms=10_000))
    fill(log, 1)
    assert refused(log, records) == code


def test_a_leader_of_an_older_epoch_cannot_append() -> None:
    log = open_log()
    log.assign_epoch_start_offset(5, 0)
    assert refused(log, batch(b"a"), epoch=4) == ErrorCode.FENCED_LEADER_EPOCH


def test_log_append_time_is_the_time_of_every_record() -> None:
    log = open_log(config=LogConfig(message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(batch(b"a", b"b", timestamp_ms=12345), 0, NOW_MS)
    assert (info.log_append_time_ms, info.max_timestamp) == (NOW_MS, NOW_MS)
    assert [r.timestamp_ms for r in iter_records(log.read(0, 1000, 2).buffers[0])] == [NOW_MS, NOW_MS]
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 0, 0)
    log.abandon()


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(0, 2000), st.booleans(), st.booleans(), st.data())
def test_a_read_is_the_longest_run_of_whole_batches_that_fits(
    counts: list[int], max_bytes: int, cold: bool, min_one: bool, data: st.DataObject
) -> None:
    """The read is compared with the list of appended batches, over several segments, from the tail and from the file."""
    log = open_log(config=SMALL, budget=TailBudget(1000))
    held: list[tuple[int, int, bytes]] = []
    for count in counts:
        start = log.log_end_offset
        held += [(start, start + count, b) for b in fill(log, 1, records=count)]
    if cold:
        forget_tail(log)
    offset = data.draw(st.integers(0, log.log_end_offset))
    end = data.draw(st.integers(0, log.log_end_offset + 3))
    read = log.read(offset, max_bytes, end, min_one=min_one)
    got = b"".join(read.buffers)
    assert len(got) == read.size
    whole = [b for b in held if b[1] > offset and b[1] <= end]
    expected: list[bytes] = []
    for start, _, content in whole if offset < end else []:
        size = sum(map(len, expected)) + len(content)
        if size > max_bytes and (expected or not min_one):
            break
        expected.append(content)
        if not read.first_offset <= start:
            raise AssertionError((read.first_offset, start))
    assert b"".join(expected).startswith(got), "nothing else than what was appended, in order"
    if expected:
        assert read.size, "what fits is served; it may end with a segment"
        assert read.first_offset == whole[0][0] <= offset


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3)), min_size=1, max_size=30), st.integers(-1, 52))
def test_timestamps_lead_to_the_first_record_that_is_not_older(plan: list[tuple[int, int]], asked: int) -> None:
    """Timestamps need not increase; the first matching record in offset order counts."""
    log = open_log(config=SMALL)
    stamps: list[int] = []
    for timestamp, count in plan:
        log.append_as_leader(batch(*[b"x" * 20] * count, timestamp_ms=NOW_MS + timestamp), 0, NOW_MS)
        stamps += [NOW_MS + timestamp] * count
    expected = next(((t, offset, 0) for offset, t in enumerate(stamps) if t >= NOW_MS + asked), None)
    assert log.offset_for_timestamp(NOW_MS + asked) == expected
    assert log.max_timestamp_offset() == (max(stamps), stamps.index(max(stamps)), 0)
    log.close()


def test_records_within_a_batch_are_found_by_their_own_timestamp() -> None:
    log = open_log()
    records = [(None, b"%d" % i, [], NOW_MS + i * 10) for i in range(5)]
    log.append_as_leader(bytearray(encode_batch(records)), 2, NOW_MS)
    assert log.offset_for_timestamp(NOW_MS + 21) == (NOW_MS + 30, 3, 2)
    assert open_log().max_timestamp_offset() is None


@pytest.mark.parametrize("offset", [-5, -1, 4, 61, 2**62])
def test_offsets_outside_of_the_log_are_refused(offset: int) -> None:
    """F14. A read at the log end is no error, because a record may be appended there."""
    log = open_log(config=SMALL)
    fill(log, 30)
    log.update_high_watermark(60)
    log.increment_log_start_offset(5)
    with pytest.raises(BrokerError) as caught:
        log.read(offset, 100, 60)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(60, 100, 60).size == 0
    assert log.read(5, 0, 60).size > 0
    assert log.read(5, 2**31, 60).size > 0


def test_a_roll_exposes_nothing_above_the_high_watermark() -> None:
    """S34 (KAFKA-9196): HW = LEO at the moment of the roll, then one uncommitted batch."""
    log = open_log()
    fill(log, 5)
    log.update_high_watermark(10)
    log.roll()
    fill(log, 1)
    for forget in (False, True):
        if forget:
            forget_tail(log)
        assert log.read(10, 1 << 20, log.high_watermark).size == 0
        assert read_all(log, 0, log.high_watermark) == read_all(log)[:5]


def test_the_high_watermark_only_rises_and_at_most_to_the_end() -> None:
    """I5, I10."""
    log = open_log()
    fill(log, 5)
    assert log.update_high_watermark(4)
    assert not log.update_high_watermark(3)
    assert log.update_high_watermark(99)
    assert log.high_watermark == 10
    assert not log.update_high_watermark(100)


def test_a_full_truncation_takes_the_high_watermark_along() -> None:
    """S11 (KAFKA-9491): the follower restarts at the leader's start and may lead at once."""
    log = open_log()
    fill(log, 10)
    log.update_high_watermark(20)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (100, 100, 100)
    assert log.epochs.entries == []
    assert log.read(100, 100, 100).size == 0
    assert log.append_as_leader(batch(b"a"), 3, NOW_MS).first_offset == 100
    assert read_all(log) == [bytes(b) for b in log.read(100, 100, 101).buffers]


def test_the_log_start_never_passes_the_high_watermark() -> None:
    """S36: a leader's DeleteRecords beyond what the follower has."""
    log = open_log()
    fill(log, 5, epoch=1)
    log.update_high_watermark(4)
    log.increment_log_start_offset(50)
    assert (log.log_start_offset, log.epochs.entries) == (4, [(1, 4)])
    check_order(log)


def test_retention_keeps_uncommitted_segments() -> None:
    """S37 (KAFKA-5634)."""
    files = MemoryFiles()
    log = open_log(files, config=LogConfig(segment_bytes=300, retention_ms=1000))
    held = fill(log, 30)
    log.update_high_watermark(10)
    later = NOW_MS + 10**9
    gone = log.delete_old_segments(later)
    assert gone
    assert 0 < log.log_start_offset <= 10
    for path in gone:
        assert path.endswith(".deleted")
        files.remove(path)
    assert read_all(log) == held[log.log_start_offset // 2 :]
    log.update_high_watermark(60)
    log.delete_old_segments(later)
    assert (len(log.segments), log.size_bytes) == (1, 0)
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    check_order(log)


def test_retention_empties_an_idle_log() -> None:
    """The last segment takes no more appends that would close it, and its records are as old as any (KAFKA-16414)."""
    files = MemoryFiles()
    for limits in ({"retention_ms": 1000}, {"retention_ms": -1, "retention_bytes": 0}):
        config = LogConfig(**limits)
        log = open_log(files, "data/idle-0", config=config)
        fill(log, 5)
        log.update_high_watermark(log.log_end_offset - 1)
        assert log.delete_old_segments(NOW_MS + 2000) == [], "its last record is not committed yet"
        log.update_high_watermark(log.log_end_offset)
        assert log.delete_old_segments(NOW_MS + 2000)
        assert log.delete_old_segments(NOW_MS + 2000) == [], "an empty segment is not deleted again and again"
        end = log.log_end_offset
        assert (log.log_start_offset, end, log.size_bytes, len(log.segments)) == (end, end, 0, 1)
        log.append_as_leader(batch(b"next"), 0, NOW_MS + 3000)
        assert read_all(log)
        log.close()
        again = open_log(files, "data/idle-0", config=config, clean=True, log_start_offset=end)
        assert (again.log_start_offset, again.log_end_offset) == (end, end + 1)
        again.delete()


def test_a_young_last_segment_is_not_deleted() -> None:
    log = open_log(config=LogConfig(retention_ms=1000, retention_bytes=10_000))
    fill(log, 5)
    log.update_high_watermark(log.log_end_offset)
    assert log.delete_old_segments(NOW_MS + 500) == []


def test_the_age_of_records_without_timestamps_is_that_of_their_file(tmp_path: Path) -> None:
    """Some clients send -1. If such records had no age, they would stay forever (Kafka uses the file's time, too)."""
    log = open_log(RealFiles(), f"{tmp_path}/orders-0", config=LogConfig(retention_ms=1000))
    log.append_as_leader(batch(b"a", timestamp_ms=-1), 0, NOW_MS)
    log.update_high_watermark(1)
    written_ms = (tmp_path / "orders-0" / f"{0:020d}.log").stat().st_mtime_ns // 1_000_000
    assert log.delete_old_segments(written_ms + 900) == []
    assert log.delete_old_segments(written_ms + 1100)
    assert log.log_start_offset == 1


def test_retention_by_size_and_by_log_start() -> None:
    by_size = open_log(config=LogConfig(segment_bytes=300, retention_ms=-1, retention_bytes=700))
    fill(by_size, 30)
    by_size.update_high_watermark(60)
    assert by_size.delete_old_segments(NOW_MS)
    assert 700 <= by_size.size_bytes < 1000
    by_start = open_log(config=LogConfig(segment_bytes=300, retention_ms=-1))
    fill(by_start, 30)
    by_start.update_high_watermark(60)
    assert by_start.delete_old_segments(NOW_MS) == []
    by_start.increment_log_start_offset(31)
    by_start.delete_old_segments(NOW_MS)
    assert by_start.segments[0].base_offset <= 31 < by_start.segments[1].base_offset
    assert by_start.log_start_offset == 31


def test_one_record_from_the_future_does_not_delete_its_neighbours() -> None:
    """S54: retention counts from the newest record of a segment, so a future timestamp only keeps it longer."""
    log = open_log(config=LogConfig(segment_bytes=300, retention_ms=1000, message_timestamp_after_max_ms=10**15))
    fill(log, 3)
    log.append_as_leader(batch(b"f" * 20, timestamp_ms=NOW_MS + 10**12), 0, NOW_MS)
    fill(log, 10)
    log.update_high_watermark(log.log_end_offset)
    log.delete_old_segments(NOW_MS + 2000)
    assert log.segments[0].base_offset <= 6 < log.log_end_offset


FAR_MS = NOW_MS + 10**10


@pytest.mark.parametrize(
    ("limits", "first_ms", "found"),
    [
        ({"retention_ms": 1000}, FAR_MS, FAR_MS),
        ({"retention_ms": 1000}, NOW_MS + 3_600_000, -1),
        ({"retention_ms": 1000}, NOW_MS - 1001, -1),
        ({"retention_ms": -1}, FAR_MS, -1),
        ({"retention_ms": 1000, "retention_bytes": 0}, FAR_MS, -1),
    ],
    ids=["far", "as far as clocks differ", "old", "no limit by age", "deleted by size"],
)
def test_a_timestamp_that_keeps_the_log_is_known(limits: dict[str, int], first_ms: int, found: int) -> None:
    """Otherwise the disk fills, and no line says why."""
    log = open_log(config=LogConfig(segment_bytes=300, message_timestamp_after_max_ms=2**62, **limits))
    log.append_as_leader(batch(b"f" * 200, timestamp_ms=first_ms), 0, NOW_MS)
    fill(log, 3)
    log.update_high_watermark(log.log_end_offset)
    log.delete_old_segments(NOW_MS)
    assert log.future_timestamp_ms == found


def test_a_log_that_was_deleted_has_no_timestamp_that_keeps_it() -> None:
    log = open_log(config=LogConfig(retention_ms=1000, message_timestamp_after_max_ms=2**62))
    log.append_as_leader(batch(b"f", timestamp_ms=FAR_MS), 0, NOW_MS)
    log.update_high_watermark(1)
    assert (log.delete_old_segments(NOW_MS), log.future_timestamp_ms) == ([], FAR_MS)
    assert log.delete_old_segments(FAR_MS + 1001)
    assert log.future_timestamp_ms == -1


def test_segments_roll_by_size_and_by_age() -> None:
    log = open_log(config=LogConfig(segment_bytes=300))
    fill(log, 10)
    assert all(segment.size <= 300 for segment in log.segments)
    assert len(log.segments) > 3
    aged = open_log(config=LogConfig(segment_ms=1000))
    for timestamp in (0, 500, 1000, 1001, 1500, 2002):
        aged.append_as_leader(batch(b"a", timestamp_ms=NOW_MS + timestamp), 0, NOW_MS)
    assert [segment.base_offset for segment in aged.segments] == [0, 3, 5]


def rolled_after(jitter_ms: int, random: Random, seconds: int = 40) -> list[int]:
    """The time from the first batch of a segment to the first batch of the next one, for each segment that ends by age."""
    log = open_log(config=LogConfig(segment_ms=1000, segment_jitter_ms=jitter_ms), random=random)
    first, waits = NOW_MS, []
    for timestamp in range(NOW_MS, NOW_MS + seconds * 1000, 10):
        before = len(log.segments)
        log.append_as_leader(batch(b"a", timestamp_ms=timestamp), 0, timestamp)
        if len(log.segments) > before:
            waits.append(timestamp - first)
            first = timestamp
    return waits


def test_jitter_ends_each_segment_at_a_time_of_its_own() -> None:
    """Otherwise the segments of partitions that were created together end together, and so do their fsyncs."""
    waits = rolled_after(400, Random(1))
    assert all(600 < wait <= 1010 for wait in waits)
    assert len(set(waits)) > 10
    assert rolled_after(400, Random(1)) == waits != rolled_after(400, Random(2))
    assert set(rolled_after(0, Random(1))) == {1010}


def test_jitter_larger_than_segment_ms_leaves_every_segment_some_time() -> None:
    waits = rolled_after(10**9, Random(3))
    assert all(0 < wait <= 1010 for wait in waits)
    assert max(waits) > 500


def test_the_jitter_of_a_segment_does_not_change() -> None:
    """A new draw for each append would end every segment early."""
    log = open_log(config=LogConfig(segment_ms=1000, segment_jitter_ms=900), random=Random(4))
    for _ in range(2):
        log.append_as_leader(batch(b"a"), 0, NOW_MS)
    drawn = log.segments[-1].roll_jitter_ms
    assert drawn is not None
    for _ in range(50):
        log.append_as_leader(batch(b"a", timestamp_ms=NOW_MS + 1000 - drawn), 0, NOW_MS)
    assert [segment.roll_jitter_ms for segment in log.segments] == [drawn]


def test_a_segment_never_holds_an_offset_beyond_its_index() -> None:
    """Relative offsets are 31 bits in Kafka's format."""
    log = open_log()
    log.truncate_fully_and_start_at(5)
    fill(log, 1)
    log.log_end_offset = 5 + 2**31 - 1
    fill(log, 1, records=1)
    log.append_as_leader(batch(b"x"), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [5, 5 + 2**31]


def test_a_follower_takes_only_the_prefix_of_known_epochs() -> None:
    """S12 (KAFKA-18723)."""
    leader, follower = open_log(), open_log()
    for epoch in (1, 1, 3):
        fill(leader, 1, epoch=epoch, records=1)
    response = bytearray(b"".join(leader.read(0, 1 << 20, 3).buffers))
    info = follower.append_as_follower(response, 1)
    assert info is not None
    assert (info.first_offset, info.last_offset, follower.log_end_offset) == (0, 1, 2)
    assert follower.epochs.entries == [(1, 0)]
    assert follower.append_as_follower(response[info.size :], 1) is None
    follower.append_as_follower(response[info.size :], 3)
    assert read_all(follower) == read_all(leader)


def test_a_follower_refuses_batches_that_do_not_continue_its_log() -> None:
    """A gap, a repetition, an older epoch, a bad checksum, a torn batch: nothing of the response is appended."""
    leader = open_log()
    held = fill(leader, 4, epoch=5, records=1)
    follower = open_log()
    follower.append_as_follower(held[0], 5)
    older = bytearray(held[1])
    older[12:16] = (4).to_bytes(4, "big")
    flipped = bytearray(held[1])
    flipped[-1] ^= 1
    for bad in (held[2], held[0], held[1] + held[3], bytes(older), bytes(flipped), held[1][:-1], held[1] + b"x"):
        with pytest.raises(BrokerError) as caught:
            follower.append_as_follower(bad, 5)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert follower.log_end_offset == 1
    follower.append_as_follower(held[1] + held[2], 5)
    assert follower.log_end_offset == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=25), st.integers(0, 80), st.booleans())
def test_truncation_is_as_if_the_rest_had_never_been_written(plan: list[tuple[int, int]], target: int, cold: bool) -> None:
    log, model = open_log(config=SMALL), open_log(config=SMALL)
    epoch, ends = 0, [0]
    for count, bump in plan:
        epoch += bump
        fill(log, 1, records=count, epoch=epoch)
        ends.append(log.log_end_offset)
    kept = max(end for end in ends if end <= target)
    held = read_all(log)
    if cold:
        forget_tail(log)
    log.update_high_watermark(log.log_end_offset)
    log.truncate_to(target)
    for data in held[: ends.index(kept)]:
        model.append_as_follower(data, epoch)
    assert (log.log_end_offset, log.high_watermark) == (kept, kept)
    assert read_all(log) == read_all(model)
    assert log.epochs.entries == model.epochs.entries
    assert log.offset_for_timestamp(NOW_MS) == model.offset_for_timestamp(NOW_MS)
    assert fill(log, 3, epoch=epoch) == fill(model, 3, epoch=epoch)
    forget_tail(log)
    assert read_all(log) == read_all(model)


def test_truncating_below_the_first_segment_restarts_the_log_there() -> None:
    log = open_log(config=SMALL)
    fill(log, 20)
    log.update_high_watermark(40)
    log.increment_log_start_offset(30)
    log.delete_old_segments(NOW_MS)
    log.truncate_to(3)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 3, 3)
    log.truncate_to(-1)
    assert log.log_end_offset == 0


def test_recent_batches_are_served_by_reference() -> None:
    """Nothing between a producer's buffer and a reader copies the bytes or reads the file."""
    log = open_log()
    buffer = batch(b"a" * 100)
    log.append_as_leader(memoryview(buffer), 0, NOW_MS)
    served = log.read(0, 1000, 1).buffers[0]
    assert isinstance(served, memoryview)
    assert served.obj is buffer


def test_the_tails_of_all_logs_share_one_budget() -> None:
    budget = TailBudget(1000)
    logs = [open_log(budget=budget) for _ in range(3)]
    for _ in range(30):
        for log in logs:
            fill(log, 1)
            assert budget.bytes <= 1000
    logs[0].truncate_to(0)
    logs[1].close()
    assert 0 <= budget.bytes <= 1000
    assert read_all(logs[2])[-1] == bytes(logs[2].read(58, 1000, 60).buffers[0])
    logs[2].close()
    assert budget.bytes == 0


def test_a_nonblocking_cold_read_names_the_range_to_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    log = open_log(files)
    held = fill(log, 10)
    forget_tail(log)
    cold = {True}
    pread = MemoryFile.pread

    def sometimes_cold(file: MemoryFile, size: int, position: int, *, may_block: bool = True) -> memoryview:
        if not may_block and cold:
            raise ColdRead(files, file.path, size, position)
        return pread(file, size, position, may_block=may_block)

    monkeypatch.setattr(MemoryFile, "pread", sometimes_cold)
    with pytest.raises(ColdRead) as caught:
        log.read(4, 100, 20, may_block=False)
    caught.value.warm()
    cold.clear()
    assert bytes(log.read(4, 100, 20, may_block=False).buffers[0]) == held[2]


# -- a failing disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [False, True])
def test_a_full_disk_leaves_no_partial_append_readable(torn: bool) -> None:
    """S45 (KAFKA-10778): the error in the middle of a batch, with and without the clean-up succeeding."""
    files = MemoryFiles(Random(3))
    files.leave_torn_writes = torn
    log = open_log(files)
    held = fill(log, 3)
    files.fail_next("write", "*.log", errno.ENOSPC, short_write=40)
    with pytest.raises(DiskError) as caught:
        log.append_as_leader(batch(b"lost"), 0, NOW_MS)
    assert caught.value.is_full
    assert (log.log_end_offset, read_all(log)) == (6, held)
    forget_tail(log)
    assert read_all(log) == held
    assert refused(log, batch(b"later")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure.error is caught.value
    files.crash(lossy=False)
    again = open_log(files)
    assert read_all(again) == held
    assert again.append_as_leader(batch(b"now"), 0, NOW_MS).first_offset == 6


def test_a_failed_fsync_is_final() -> None:
    """S46 (fsyncgate): the second fsync would succeed and prove nothing, so there is none."""
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 3)
    files.fail_next("fsync", "*.log", errno.EIO)
    with pytest.raises(DiskError):
        log.flush()
    assert log.recovery_point == 0
    fsyncs = files.fsyncs
    with pytest.raises(BrokerError) as caught:
        log.flush()
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    log.close()
    assert (log.recovery_point, files.fsyncs) == (0, fsyncs)
    assert refused(log, batch(b"a")) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("operation", ["open", "write"])
@pytest.mark.parametrize("pattern", ["*.log", "*.index", "*.snapshot", "*leader-epoch*"])
def test_an_error_at_a_roll_or_a_checkpoint_appends_nothing(operation: str, pattern: str) -> None:
    """F19: ENOSPC at append, roll, index, snapshot, epoch checkpoint."""
    files = MemoryFiles()
    log = open_log(files, config=LogConfig(segment_bytes=100))
    held = fill(log, 1, records=1)
    files.fail_next(operation, pattern, errno.ENOSPC)
    failed = False
    try:
        log.append_as_leader(batch(b"y" * 30), 1, NOW_MS)
    except DiskError as e:
        failed = e.is_full
    assert log.log_end_offset == (1 if failed else 2)
    assert failed or operation == "open"
    assert read_all(log)[:1] == held
    held = read_all(log)
    files.crash(lossy=False)
    again = open_log(files, config=LogConfig(segment_bytes=100))
    assert read_all(again) == held
    check_order(again)


def test_flush_by_count_and_by_time() -> None:
    log = open_log(config=LogConfig(flush_messages=5))
    fill(log, 2)
    assert log.recovery_point == 0
    fill(log, 1)
    assert log.recovery_point == 6
    timed = open_log(config=LogConfig(flush_ms=1000))
    fill(timed, 1)
    assert not timed.maybe_flush(NOW_MS + 999)
    assert timed.maybe_flush(NOW_MS + 1000)
    assert timed.recovery_point == 2
    assert not timed.maybe_flush(NOW_MS + 5000)


def test_closed_segments_are_flushed_by_separate_work() -> None:
    """The work may run on a thread. If the log is truncated meanwhile, the result is not used."""
    files = MemoryFiles()
    log = open_log(files, config=SMALL)
    fill(log, 20)
    work = log.flush_work()
    assert work is not None
    work.run()
    log.on_flushed(work)
    assert log.recovery_point == log.segments[-1].base_offset > 0
    assert log.flush_work() is None
    fill(log, 10)
    stale = log.flush_work()
    assert stale is not None
    log.truncate_to(log.recovery_point + 1)
    before = log.recovery_point
    log.on_flushed(stale)
    assert log.recovery_point == before


def test_a_lowered_recovery_point_is_reported_before_the_next_append() -> None:
    """Otherwise recovery would trust bytes that were written after the truncation and never flushed."""
    log = open_log()
    fill(log, 5)
    log.flush()
    reported: list[int] = []
    log.on_lowered = lambda: reported.append(log.recovery_point)
    log.truncate_to(4)
    assert (reported, log.recovery_point) == ([0], 0), "the cut of the segment is not durable either"
    fill(log, 1)
    log.truncate_to(5)
    assert reported == [0]


def test_an_orderly_close_keeps_the_log() -> None:
    files = MemoryFiles()
    log = open_log(files, config=SMALL)
    held = fill(log, 20, epoch=2)
    log.close()
    again = open_log(files, clean=True, config=SMALL, recovery_point=40, high_watermark=40)
    assert read_all(again) == held
    assert (again.high_watermark, again.recovery_point) == (40, 40)
    before = {name: files.read(f"{DIR}/{name}") for name in files.list(DIR)}
    again.close()
    assert {name: files.read(f"{DIR}/{name}") for name in files.list(DIR)} == before
    assert [h.leader_epoch for _, h in iter_headers(b"".join(held))] == [2] * 20


def test_indexes_of_closed_segments_do_not_stay_in_memory() -> None:
    """A log of a terabyte has gigabytes of them. A read loads them again, even after a failed save."""
    log = open_log(config=SMALL)
    filled = fill(log, 30)
    forget_tail(log)
    log.drop_indexes()
    assert len(log.segments) > 3
    assert all(segment._offset_index is None and segment._time_index is None for segment in log.segments[:-1])
    assert log.segments[-1]._offset_index is not None
    assert read_all(log) == filled
    assert log.offset_for_timestamp(NOW_MS + 7) is not None
    log.truncate_to(log.segments[1].base_offset + 1)
    check_order(log)
    assert read_all(log) == filled[: len(read_all(log))]


def test_a_batch_beyond_the_read_limit_is_not_served() -> None:
    """Only whole batches are served. If the high watermark lies inside a batch, no record of it is served yet."""
    log = open_log()
    filled = fill(log, 3, records=3)
    for is_recent in (True, False):
        if not is_recent:
            forget_tail(log)
        assert read_all(log, end=5) == filled[:1]
        assert read_all(log, start=3, end=5) == []
        assert read_all(log, end=6) == filled[:2]


def test_a_flush_before_a_truncation_does_not_raise_the_recovery_point() -> None:
    """The bytes there now were written after the fsync. With a recovery point above them, recovery would not scan them."""
    log = open_log(config=SMALL)
    fill(log, 20)
    work = log.flush_work()
    assert work is not None
    work.run()
    log.truncate_to(2)
    fill(log, 30, epoch=1)
    assert log.log_end_offset > work.end_offset > 2
    log.on_flushed(work)
    assert log.recovery_point <= 2
