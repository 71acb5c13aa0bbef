"""Fillers, the batches without records that compaction leaves: every part of the storage steps over them."""

from __future__ import annotations

from random import Random

import pytest
from storage_kit import NOW_MS, batch, forget_tail, open_log, read_all
from structlog.testing import capture_logs

from strandline.protocol.errors import BrokerError
from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import HEADER_SIZE, BatchHeader, iter_headers, read_header, stamp
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.filler import OFFSETS_MAX, is_filler, make_fillers, without_filled_before
from strandline.protocol.records.varint import decode_varint
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles


def data(
    base_offset: int, count: int, *, epoch: int = 0, timestamp_ms: int = NOW_MS, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    made = batch(*[b"%d" % (base_offset + n) for n in range(count)], timestamp_ms=timestamp_ms, producer=producer)
    stamp(made, 0, base_offset, epoch)
    return bytes(made)


def large(base_offset: int) -> bytes:
    """A batch with one record of 1.5 MiB."""
    made = batch(Random(base_offset).randbytes(3 << 19))
    stamp(made, 0, base_offset, 0)
    return bytes(made)


def filler(first: int, end: int, *, epoch: int = 0) -> bytes:
    return b"".join(make_fillers(first, end, epoch))


def emptied(first: int, end: int, *, timestamp_ms: int = NOW_MS) -> bytes:
    """The last batch of producer 7, from sequence 10 on, after compaction has removed its records."""
    return v2.assemble(
        [],
        base_offset=first,
        leader_epoch=0,
        attributes=0,
        last_offset_delta=end - first - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=7,
        producer_epoch=1,
        base_sequence=10,
        record_count=0,
    )


def ranges(log: Log) -> list[tuple[int, int, int]]:
    """First offset, end and record count of every batch, as a reader gets them."""
    headers = [read_header(each) for each in read_all(log)]
    return [(h.base_offset, h.next_offset, h.record_count) for h in headers]


def log_of(*batches: bytes, files: MemoryFiles | None = None, config: LogConfig | None = None) -> Log:
    log = open_log(files, config=config)
    for each in batches:
        log.append_as_follower(bytearray(each), 9)
    log.update_high_watermark(log.log_end_offset)
    return log


SHAPES = {
    "between": [data(0, 5), filler(5, 10), data(10, 3)],
    "adjacent": [data(0, 2), filler(2, 5), filler(5, 9), data(9, 1)],
    "first": [filler(0, 4), data(4, 2)],
    "last": [data(0, 2), filler(2, 100)],
    "alone": [filler(0, 50)],
    "of two epochs": [data(0, 1), filler(1, 4), filler(4, 9, epoch=2), data(9, 2, epoch=2)],
    "the largest": [data(0, 1), filler(1, 1 + OFFSETS_MAX), data(1 + OFFSETS_MAX, 2)],
}


def test_filler_is_a_header_with_the_offsets_and_the_epoch() -> None:
    (made,) = make_fillers(7, 12, 3)
    header = read_header(made)
    assert (len(made), header.base_offset, header.last_offset, header.leader_epoch) == (HEADER_SIZE, 7, 11, 3)
    assert (header.record_count, header.max_timestamp, header.producer_id) == (0, -1, -1)
    assert is_filler(header)


def test_long_run_takes_a_filler_per_two_to_the_31_offsets() -> None:
    headers = [header for _, header in iter_headers(filler(5, 5 + 2 * OFFSETS_MAX + 10))]
    assert [header.last_offset_delta for header in headers] == [2**31 - 1, 2**31 - 1, 9]
    assert [header.base_offset for header in headers] == [5, 5 + OFFSETS_MAX, 5 + 2 * OFFSETS_MAX]
    assert make_fillers(5, 5, 0) == []


def test_batches_that_say_more_than_offsets_are_no_fillers() -> None:
    plain: BatchHeader = read_header(data(0, 1))
    empty = read_header(filler(0, 1))
    assert not is_filler(plain)
    assert not is_filler(empty._replace(producer_id=7))
    assert not is_filler(empty._replace(attributes=0x20))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_reads_and_recovery_step_over_fillers(shape: str, clean: bool) -> None:
    files = MemoryFiles(Random(0))
    log = log_of(*SHAPES[shape], files=files)
    expected = [(h.base_offset, h.next_offset, h.record_count) for _, h in iter_headers(b"".join(SHAPES[shape]))]
    assert ranges(log) == expected
    forget_tail(log)
    assert ranges(log) == expected
    epochs = log.epochs.entries
    if clean:
        log.close()
    else:
        log.flush()
        files.crash()
    again = open_log(files, clean=clean, recovery_point=0, high_watermark=log.high_watermark)
    assert again.corrupt_at is None
    assert again.epochs.entries == epochs
    assert ranges(again) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_read_may_begin_inside_a_filler(shape: str) -> None:
    log = log_of(*SHAPES[shape])
    for forget in (False, True):
        if forget:
            forget_tail(log)
        for first, end, _ in ranges(log):
            for offset in {first, (first + end) // 2, end - 1}:
                read = log.read(offset, 1, log.log_end_offset)
                assert read_header(read.buffers[0]).base_offset == read.first_offset == first


@pytest.mark.parametrize(("target", "end"), [(12, 10), (10, 10), (7, 5), (5, 5), (3, 0)])
def test_truncation_cuts_before_the_filler_that_contains_the_target(target: int, end: int) -> None:
    log = log_of(*SHAPES["between"])
    assert log.end_after_truncation(target) == end
    log.truncate_to(target)
    assert log.log_end_offset == end
    assert [first for first, _, _ in ranges(log)] == [first for first in (0, 5, 10) if first < end]


def test_torn_filler_at_the_end_is_cut_off() -> None:
    files = MemoryFiles(Random(0))
    log = log_of(data(0, 3), filler(3, 9), files=files)
    log.segments[-1].file.truncate(log.segments[-1].size - 1)
    files.crash(lossy=False)
    again = open_log(files)
    assert again.log_end_offset == 3
    assert again.possible_data_loss


# -- damage near fillers ----------------------------------------------------------------------------------------------

NEAR_2_32 = 2**32 - 100


def damaged_log(batches: list[bytes], damaged: list[int], *, start: int = 0, segment_bytes: int = 1 << 30) -> Log:
    """Open the log of these batches after a crash. One bit in each of the batches `damaged` is wrong, and all are committed."""
    files = MemoryFiles(Random(0))
    config = LogConfig(segment_bytes=segment_bytes)
    log = open_log(files, config=config, log_start_offset=start)
    for each in batches:
        log.append_as_follower(bytearray(each), 9)
    end = log.log_end_offset
    for index in damaged:
        offset = read_header(batches[index]).base_offset
        segment = log.segments[log.segment_for(offset)]
        found = segment.position_of(offset)
        assert found is not None
        files.flip_bit(segment.file.path, (found[0] + v2.CRC_POS) * 8)
    log.flush()
    files.crash(lossy=False)
    return open_log(files, config=config, log_start_offset=start, recovery_point=0, high_watermark=end)


DAMAGED = {
    "the largest filler": ([*SHAPES["the largest"]], [1], 0),
    "before the largest filler": ([*SHAPES["the largest"]], [0], 0),
    "several of the largest fillers": (
        [data(0, 1), *(filler(1 + n * OFFSETS_MAX, 1 + (n + 1) * OFFSETS_MAX) for n in range(5)), data(1 + 5 * OFFSETS_MAX, 2)],
        [1, 2, 3, 4],
        0,
    ),
    "a filler across 2^32": (
        [data(NEAR_2_32, 2), filler(NEAR_2_32 + 2, 2**32 + 50), data(2**32 + 50, 2), data(2**32 + 52, 1)],
        [1],
        NEAR_2_32,
    ),
    "before a filler across 2^32": (
        [data(NEAR_2_32, 2), filler(NEAR_2_32 + 2, 2**32 + 50), data(2**32 + 50, 2), data(2**32 + 52, 1)],
        [0, 1],
        NEAR_2_32,
    ),
    "data across 2^32": (
        [data(NEAR_2_32, 90), data(NEAR_2_32 + 90, 20), data(NEAR_2_32 + 110, 5)],
        [1],
        NEAR_2_32,
    ),
    "a batch larger than the pieces of the search": (
        [data(NEAR_2_32, 2), large(NEAR_2_32 + 2), filler(NEAR_2_32 + 3, 2**32 + 50), data(2**32 + 50, 2)],
        [1, 2],
        NEAR_2_32,
    ),
}


@pytest.mark.parametrize("segment_bytes", [14, 200, 1 << 30])
@pytest.mark.parametrize("shape", DAMAGED)
def test_committed_batches_after_damage_and_fillers_are_not_cut(shape: str, segment_bytes: int) -> None:
    """A filler may span 2^31 offsets, and there may be several, so the next valid batch may have a far higher offset."""
    batches, damaged, start = DAMAGED[shape]
    log = damaged_log(batches, damaged, start=start, segment_bytes=segment_bytes)
    assert log.corrupt_at == read_header(batches[damaged[0]]).base_offset
    assert log.log_end_offset == read_header(batches[-1]).next_offset


@pytest.mark.parametrize("shape", ["the largest filler", "a filler across 2^32"])
def test_damage_is_a_torn_tail_if_only_damage_follows(shape: str) -> None:
    batches, damaged, start = DAMAGED[shape]
    log = damaged_log(batches, list(range(damaged[0], len(batches))), start=start)
    assert log.corrupt_at is None
    assert log.log_end_offset == read_header(batches[damaged[0]]).base_offset
    assert log.possible_data_loss


def test_damaged_begin_of_the_next_segment_does_not_hide_the_batches_after_it() -> None:
    """The last batch of the first segment and the first one of the second segment are damaged."""
    batches = [data(0, 1), data(1, 1), data(2, 1), data(3, 1), data(4, 1)]
    log = damaged_log(batches, [1, 2], segment_bytes=2 * len(batches[0]))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert (log.corrupt_at, log.log_end_offset) == (1, 5)
    log = damaged_log(batches, [1, 2, 4], segment_bytes=2 * len(batches[0]))
    assert (log.corrupt_at, log.log_end_offset) == (1, 4)


def test_search_after_damage_accepts_no_batch_outside_of_its_segment() -> None:
    """A record may contain the bytes of a batch. Its CRC is right, but its offsets belong to another segment or another log."""
    for foreign in (data(0, 1), data(4, 1), data(100, 1), filler(5, 2**31 + 9), data(2**32 + 7, 1)):
        holder = bytearray(batch(b"before" + foreign + b"after"))
        stamp(holder, 0, 4, 0)
        batches = [data(0, 4), bytes(holder), filler(5, 9), data(9, 1)]
        with capture_logs() as events:
            log = damaged_log(batches, [1], segment_bytes=len(batches[0]) + len(holder) + HEADER_SIZE)
        assert [segment.base_offset for segment in log.segments] == [0, 9]
        assert (log.corrupt_at, log.log_end_offset) == (4, 10)
        assert [event["valid_again_at"] for event in events if event["event"] == "log.damaged_below_hw"] == [5]


@pytest.mark.parametrize("between", ["filler", "emptied"])
def test_lookup_by_time_never_finds_a_batch_without_records(between: str) -> None:
    """A producer's emptied batch keeps its timestamp: it is newer than the record after it, and as new as the lookup asks for."""
    empty = filler(2, 9) if between == "filler" else emptied(2, 9, timestamp_ms=NOW_MS + 50)
    log = log_of(data(0, 2, timestamp_ms=NOW_MS), empty, data(9, 1, timestamp_ms=NOW_MS + 10))
    assert log.offset_for_timestamp(NOW_MS + 5) == (NOW_MS + 10, 9, 0)
    assert log.offset_for_timestamp(NOW_MS + 20) is None
    assert log.max_timestamp_offset() == (NOW_MS + 10, 9, 0)


def test_newest_record_of_a_log_with_fillers_alone_is_not_known() -> None:
    assert log_of(filler(0, 9)).max_timestamp_offset() is None


def test_lookup_by_time_skips_removed_records_of_a_batch_with_append_time() -> None:
    """Offset 0 was removed from a batch of offsets 0 to 2 with LogAppendTime."""
    encoded = bytearray(encode_batch([(b"k", b"v", (), NOW_MS)] * 3))
    size, at = decode_varint(encoded, HEADER_SIZE)
    del encoded[HEADER_SIZE : at + size]
    encoded[8:12] = (len(encoded) - 12).to_bytes(4, "big")
    encoded[57:61] = (2).to_bytes(4, "big")
    v2.stamp(encoded, 0, 0, 0)
    v2.stamp_log_append_time(encoded, 0, len(encoded), NOW_MS + 7)
    log = log_of(bytes(encoded))
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS + 7, 1, 0)


# -- followers --------------------------------------------------------------------------------------------------------


def test_follower_takes_the_rest_of_a_filler_that_begins_before_its_end() -> None:
    log = log_of(data(0, 5))
    log.append_as_follower(bytearray(filler(2, 20, epoch=0) + data(20, 2)), 9)
    assert ranges(log) == [(0, 5, 5), (5, 20, 0), (20, 22, 2)]


def test_follower_still_refuses_a_batch_with_records_that_begins_before_its_end() -> None:
    log = log_of(data(0, 5))
    with pytest.raises(BrokerError, match="offset 3 where 5 was expected"):
        log.append_as_follower(bytearray(data(3, 5)), 9)


@pytest.mark.parametrize("change", ["checksum", "gap", "behind"])
def test_follower_refuses_a_filler_that_does_not_continue_its_log(change: str) -> None:
    log = log_of(data(0, 5))
    sent = bytearray({"checksum": filler(2, 20), "gap": filler(6, 20), "behind": filler(1, 4)}[change])
    if change == "checksum":
        sent[26] ^= 1
    with pytest.raises(BrokerError):
        log.append_as_follower(sent, 9)
    assert log.log_end_offset == 5


def test_follower_appends_no_more_offsets_at_once_than_a_segment_holds() -> None:
    log = log_of(data(0, 5))
    fetched = filler(5, 5 + OFFSETS_MAX) + data(5 + OFFSETS_MAX, 2)
    info = log.append_as_follower(bytearray(fetched), 9)
    assert info is not None
    assert log.log_end_offset == 5 + OFFSETS_MAX
    log.append_as_follower(bytearray(fetched[HEADER_SIZE:]), 9)
    assert [segment.base_offset for segment in log.segments] == [0, 5, 5 + OFFSETS_MAX]
    assert log.log_end_offset == 7 + OFFSETS_MAX


def test_records_are_the_same_object_unless_a_filler_is_shortened() -> None:
    sent = filler(5, 9) + data(9, 1)
    assert without_filled_before(sent, 5) is sent
    assert without_filled_before(sent, 9) is sent
    assert without_filled_before(b"short", 9) == b"short"
    assert without_filled_before(sent, 7) == filler(7, 9) + data(9, 1)


def test_emptied_batch_keeps_the_state_of_its_producer() -> None:
    """Compaction may remove all records of a producer's last batch, but not its sequence numbers."""
    files = MemoryFiles(Random(0))
    log = log_of(data(0, 5), emptied(5, 10), files=files)
    log.flush()
    files.crash()
    again = open_log(files, recovery_point=0)
    assert [(p.producer_id, p.last_sequence) for p in again.producers.describe()] == [(7, 14)]
    again.append_as_leader(batch(b"next", producer=(7, 1, 15)), 0, NOW_MS)
    assert again.log_end_offset == 11
