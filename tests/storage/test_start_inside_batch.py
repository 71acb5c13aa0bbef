"""A log start inside a batch, where DeleteRecords may put it: reads, timestamps, recovery, and a follower that begins there."""

from __future__ import annotations

from random import Random

import pytest
from storage_kit import NOW_MS, check_order, fill, forget_tail, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.producer_names import FIRST_NAMED
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.producer_state import KnownProducer, ProducerStates
from strandline.storage.memory.memory_files import MemoryFiles

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def trimmed(files: MemoryFiles, start: int = 5) -> tuple[Log, list[bytes]]:
    """A leader's log of eight batches of four records in two epochs, whose start was moved to `start`."""
    log = open_log(files, config=SMALL)
    whole = fill(log, 4, records=4) + fill(log, 4, records=4, epoch=3)
    log.update_high_watermark(log.log_end_offset)
    assert log.increment_log_start_offset(start)
    return log, whole


def test_read_at_the_start_returns_the_whole_batch() -> None:
    """A read from the file does so, too, although it compares the epoch of each batch with the epoch cache."""
    log, whole = trimmed(MemoryFiles(Random(0)))
    assert read_all(log) == whole[1:]
    forget_tail(log)
    assert read_all(log) == whole[1:]
    assert log.corrupt_at is None
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        log.read(4, 1000, log.log_end_offset)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_start_saved", [True, False])
def test_log_opens_with_start_inside_a_batch(is_clean: bool, is_start_saved: bool) -> None:
    """The epoch cache then has an epoch that begins inside a batch, which is no damage."""
    files = MemoryFiles(Random(0))
    log, whole = trimmed(files, 18)
    epochs, end = log.epochs.entries, log.log_end_offset
    assert epochs == [(3, 18)]
    log.close()
    again = open_log(
        files,
        config=SMALL,
        clean=is_clean,
        log_start_offset=18 if is_start_saved else 0,
        recovery_point=end if is_clean else 0,
        high_watermark=end,
    )
    assert (again.log_end_offset, again.corrupt_at, again.possible_data_loss) == (end, None, False)
    assert again.epochs.entries == (epochs if is_start_saved else [(0, 0), (3, 16)])
    assert read_all(again) == whole[4 if is_start_saved else 0 :]


def test_checkpoint_with_start_inside_a_batch_is_not_called_damaged(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles(Random(0))
    log, _ = trimmed(files, 18)
    log.close()
    open_log(files, config=SMALL, clean=True, log_start_offset=18, recovery_point=32, high_watermark=32)
    open_log(files, config=SMALL, log_start_offset=18, high_watermark=32)
    assert "epochs_damaged" not in caplog.text


def test_timestamps_of_deleted_records_are_not_found() -> None:
    """The newest record may be a deleted one, in the batch that the log start lies in or before it."""
    log = open_log(config=SMALL)
    for values in ([50, 1, 2, 3], [60, 40, 5, 20], [10, 11, 12, 13]):
        records = [(None, b"v" * 20, [], NOW_MS + value) for value in values]
        log.append_as_leader(bytearray(encode_batch(records)), 0, NOW_MS + 100)
    log.update_high_watermark(12)
    assert log.max_timestamp_offset() == (NOW_MS + 60, 4, 0)
    log.increment_log_start_offset(5)
    assert log.max_timestamp_offset() == (NOW_MS + 40, 5, 0)
    assert log.offset_for_timestamp(NOW_MS + 2) == (NOW_MS + 40, 5, 0)
    log.increment_log_start_offset(6)
    assert log.max_timestamp_offset() == (NOW_MS + 20, 7, 0)
    assert log.offset_for_timestamp(NOW_MS + 21) is None
    log.increment_log_start_offset(12)
    assert log.max_timestamp_offset() is None


# -- a follower that begins inside a batch ------------------------------------------------------------------------------


def beginning_at(files: MemoryFiles, start: int, producers: ProducerStates | None = None) -> Log:
    """The log of a follower that has started again: it is empty and begins at the leader's log start."""
    log = open_log(files, config=SMALL)
    log.truncate_fully_and_start_at(start, producers)
    return log


def test_empty_log_takes_a_first_batch_that_contains_its_start() -> None:
    """The leader sends the batch whole (KAFKA-6975). Its records before the log start are not readable."""
    leader, whole = trimmed(MemoryFiles(Random(0)), 18)
    files = MemoryFiles(Random(0))
    log = beginning_at(files, 18)
    log.append_as_follower(b"".join(leader.read(18, 1 << 20, 32).buffers), 3)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (18, 18, 32)
    assert log.epochs.entries == [(3, 18)]
    check_order(log)
    for read in range(2):
        assert read_all(log) == whole[4:], read
        forget_tail(log)
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        log.read(17, 1000, 32)


@pytest.mark.parametrize("is_clean", [True, False])
def test_log_that_begins_inside_its_first_batch_opens_again(is_clean: bool) -> None:
    leader, whole = trimmed(MemoryFiles(Random(0)), 18)
    files = MemoryFiles(Random(0))
    log = beginning_at(files, 18)
    log.flush()
    assert log.recovery_point == 18
    saved: list[tuple[int, int]] = []
    log.on_lowered = lambda: saved.append((log.segments[0].base_offset, log.recovery_point))
    log.append_as_follower(b"".join(leader.read(18, 1 << 20, 32).buffers), 3)
    assert saved == [(16, 16)], "the log start is not the segment's base offset any more: it has to be saved now"
    if is_clean:
        log.close()
    again = open_log(
        files,
        config=SMALL,
        clean=is_clean,
        log_start_offset=18,
        recovery_point=32 if is_clean else 16,
        high_watermark=32 if is_clean else 18,
    )
    assert (again.log_start_offset, again.log_end_offset, again.possible_data_loss) == (18, 32, False)
    assert again.epochs.entries == [(3, 18)]
    assert read_all(again) == whole[4:]


@pytest.mark.parametrize("is_clean", [True, False])
def test_named_producers_from_the_leader_survive(is_clean: bool) -> None:
    """No batch of this log knows the producer, so a snapshot at the start of the first segment must."""
    leader, _ = trimmed(MemoryFiles(Random(0)), 18)
    files = MemoryFiles(Random(0))
    log = beginning_at(files, 18, ProducerStates.from_leader([KnownProducer(FIRST_NAMED + 7, 0, 41, 9, NOW_MS)], 18))
    known = log.producers.dump()
    assert known
    log.append_as_follower(b"".join(leader.read(18, 1 << 20, 32).buffers), 3)
    assert log.producers.dump() == known
    if is_clean:
        log.close()
    again = open_log(files, config=SMALL, clean=is_clean, log_start_offset=18, recovery_point=32 if is_clean else 16)
    assert again.producers.dump() == known


def test_log_with_records_takes_no_batch_that_begins_before_its_end() -> None:
    leader, whole = trimmed(MemoryFiles(Random(0)), 18)
    log = beginning_at(MemoryFiles(Random(0)), 18)
    log.append_as_follower(whole[4], 3)
    for records in (whole[4], whole[4] + whole[5], whole[3]):
        with pytest.raises(BrokerError) as caught:
            log.append_as_follower(records, 3)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 20
    assert leader.log_end_offset == 32


def test_empty_log_refuses_batches_that_do_not_contain_its_start() -> None:
    """A batch after a gap, or one that ends before the log start, does not continue the log; nor does a second batch that begins
    too early."""
    _, whole = trimmed(MemoryFiles(Random(0)), 18)
    for records in (whole[3], whole[5], whole[4] + whole[4], whole[3] + whole[4]):
        log = beginning_at(MemoryFiles(Random(0)), 18)
        with pytest.raises(BrokerError) as caught:
            log.append_as_follower(records, 3)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.segments[0].base_offset) == (18, 18, 0, 18)


def test_segment_is_named_after_its_first_batch() -> None:
    """Kafka's tools expect that, and so does this log's own recovery."""
    leader, _ = trimmed(MemoryFiles(Random(0)), 18)
    files = MemoryFiles(Random(0))
    log = beginning_at(files, 18)
    log.append_as_follower(b"".join(leader.read(18, 1 << 20, 32).buffers), 3)
    data = b"".join(log.read(18, 1 << 20, 32).buffers)
    assert log.segments[0].base_offset == next(header.base_offset for _, header in iter_headers(data)) == 16
    assert [name for name in files.list(log.dir) if name.endswith(".log")] == [f"{16:020d}.log"]
