"""Transactions in one log: markers, the last stable offset, and the indexes of aborted transactions."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from real_kafka import dump, kafka_tools
from storage_kit import DIR, NOW_MS, batch, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.marker import EndTransactionMarker, encode_marker, is_marker
from strandline.storage.disk import Files
from strandline.storage.files import RealFiles
from strandline.storage.log.log import AppendInfo, Log, LogConfig
from strandline.storage.log.transaction_index import AbortedTransaction
from strandline.storage.memory.memory_files import MemoryFiles

COMMIT, ABORT = EndTransactionMarker(True, 0), EndTransactionMarker(False, 0)


def write(log: Log, pid: int, sequence: int, *, epoch: int = 0, values: int = 1, transactional: bool = True) -> AppendInfo:
    records = batch(*[b"%d" % pid] * values, producer=(pid, epoch, sequence), is_transactional=transactional)
    return log.append_as_leader(records, 0, NOW_MS, is_transactional=transactional)


def end(log: Log, pid: int, marker: EndTransactionMarker, epoch: int = 0, version: int = 0) -> int:
    return log.append_marker(marker, pid, epoch, 0, NOW_MS, version).first_offset


def refused(log: Log, *args: object, **given: object) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(BrokerError) as caught:
        end(log, *args, **given)  # type: ignore[arg-type]
    assert log.log_end_offset == before
    return caught.value.code


def commit_all(log: Log) -> None:
    log.update_high_watermark(log.log_end_offset)


def first_offsets(log: Log, offset: int = 0, until: int = 1 << 40) -> list[tuple[int, int, int]]:
    return [each[:3] for each in log.aborted_transactions(offset, until)]


def follow(leader: Log, follower: Log) -> None:
    for data in read_all(leader, follower.log_end_offset):
        follower.append_as_follower(data, 0)


# -- the last stable offset -------------------------------------------------------------------------------------------


def test_an_open_transaction_holds_the_last_stable_offset() -> None:
    log = open_log()
    log.append_as_leader(batch(b"before"), 0, NOW_MS)
    write(log, 7, 0, values=2)
    log.append_as_leader(batch(b"after"), 0, NOW_MS)
    assert log.last_stable_offset == log.high_watermark == 0
    commit_all(log)
    assert log.last_stable_offset == 1
    write(log, 7, 2)
    assert end(log, 7, COMMIT) == 5
    assert log.last_stable_offset == 1, "the marker is not committed, so it may be truncated"
    log.update_high_watermark(5)
    assert log.last_stable_offset == 1
    log.update_high_watermark(6)
    assert log.last_stable_offset == 6


def test_the_oldest_of_several_transactions_counts() -> None:
    log = open_log()
    for pid in (7, 8, 9):
        write(log, pid, 0)
    end(log, 8, COMMIT)
    end(log, 7, ABORT)
    commit_all(log)
    assert log.last_stable_offset == 2
    end(log, 9, ABORT)
    commit_all(log)
    assert log.last_stable_offset == log.log_end_offset == 6
    assert log.aborted_transactions(0, 6) == [AbortedTransaction(7, 0, 4, 2), AbortedTransaction(9, 2, 5, 6)]


def test_a_later_transaction_does_not_hide_an_uncommitted_marker() -> None:
    """The unreplicated transaction with the smallest first offset counts, not the one that ended first."""
    log = open_log()
    write(log, 7, 0)
    write(log, 8, 0)
    end(log, 8, COMMIT)
    end(log, 7, COMMIT)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 0
    log.update_high_watermark(4)
    assert log.last_stable_offset == 4


def test_records_outside_of_transactions_move_the_last_stable_offset() -> None:
    log = open_log()
    write(log, 7, 0, transactional=False)
    assert end(log, 8, ABORT) == 1
    commit_all(log)
    assert log.last_stable_offset == 2
    assert log.aborted_transactions(0, 2) == []


def test_the_last_stable_offset_is_not_below_the_log_start() -> None:
    log = open_log()
    write(log, 7, 0)
    write(log, 7, 1)
    commit_all(log)
    log.increment_log_start_offset(1)
    assert log.last_stable_offset == 1


# -- markers ----------------------------------------------------------------------------------------------------------


def test_a_marker_is_stored_as_a_control_batch() -> None:
    log = open_log()
    write(log, 7, 0)
    end(log, 7, ABORT)
    data = read_all(log)[-1]
    assert data == encode_marker(ABORT, 7, 0, NOW_MS, base_offset=1, leader_epoch=0)
    assert is_marker(v2.read_header(data))
    assert v2.read_header(read_all(log)[0]).is_transactional


def test_a_marker_without_a_transaction_is_harmless() -> None:
    """KAFKA-19999: the coordinator repeats a marker whose answer was lost. If the marker were refused, it would be repeated
    forever."""
    log = open_log()
    write(log, 7, 0)
    for version in (0, 2, 2):
        end(log, 7, ABORT, epoch=1, version=version)
    commit_all(log)
    assert log.last_stable_offset == 4
    assert first_offsets(log) == [(7, 0, 1)]


def test_a_marker_of_an_older_coordinator_is_fenced() -> None:
    log = open_log()
    write(log, 7, 0)
    end(log, 7, EndTransactionMarker(True, 5))
    write(log, 7, 1)
    assert refused(log, 7, EndTransactionMarker(False, 4)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end(log, 7, EndTransactionMarker(False, 5))
    end(log, 7, EndTransactionMarker(False, 6))


def test_a_marker_with_an_older_producer_epoch_is_refused() -> None:
    log = open_log()
    write(log, 7, 0, epoch=3)
    assert refused(log, 7, COMMIT, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 7, COMMIT, epoch=3)


def test_a_marker_of_version_2_has_a_higher_epoch() -> None:
    """KIP-890: an old marker must not end the transaction that came after it. Version 1 ends one with its own epoch."""
    log = open_log()
    write(log, 7, 0, epoch=3)
    assert refused(log, 7, COMMIT, epoch=3, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 7, COMMIT, epoch=4, version=2)
    assert refused(log, 7, COMMIT, epoch=3, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(BrokerError) as caught:
        write(log, 7, 1, epoch=3)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH, "a late batch of the ended transaction"


def test_sequences_begin_at_0_after_a_marker_that_raised_the_epoch() -> None:
    log = open_log()
    write(log, 7, 0)
    end(log, 7, COMMIT, epoch=1, version=2)
    with pytest.raises(BrokerError) as caught:
        write(log, 7, 1, epoch=1)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(log, 7, 0, epoch=1)


def test_sequences_continue_after_a_marker_of_the_same_epoch() -> None:
    log = open_log()
    write(log, 7, 0)
    end(log, 7, COMMIT)
    assert write(log, 7, 0).duplicate
    write(log, 7, 1)
    with pytest.raises(BrokerError) as caught:
        write(log, 7, 3)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    log = open_log()
    write(log, 7, 0)
    with pytest.raises(BrokerError) as caught:
        write(log, 7, 1, transactional=False)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    end(log, 7, COMMIT)
    write(log, 7, 1, transactional=False)


def test_an_epoch_may_rise_within_a_transaction() -> None:
    """The first batch of a higher epoch neither ends nor restarts the transaction."""
    log = open_log()
    write(log, 7, 0, epoch=0)
    write(log, 7, 0, epoch=1)
    end(log, 7, ABORT, epoch=1)
    assert first_offsets(log) == [(7, 0, 2)]


def test_a_transaction_that_is_open_for_too_long_is_noticed() -> None:
    """No coordinator has this transaction. The timestamps of its records do not show its age: they may be those of last year."""
    log = open_log()
    write(log, 7, 0)
    for at, is_late in [(0, False), (99, False), (100, True)]:
        log.expire_producers(NOW_MS + at)
        assert log.producers.has_transaction_since(NOW_MS + at - 100) is is_late
    end(log, 7, ABORT)
    assert not log.producers.has_transaction_since(NOW_MS)
    write(log, 7, 0, epoch=1)
    log.expire_producers(NOW_MS + 150)
    assert not log.producers.has_transaction_since(NOW_MS + 149)
    assert log.producers.has_transaction_since(NOW_MS + 150)


def test_transactional_batches_need_a_transaction_and_a_plain_producer() -> None:
    log = open_log()
    for records, is_transactional in [
        (batch(b"x", producer=(7, 0, 0), is_transactional=True), False),
        (batch(b"x", is_transactional=True), True),
        (batch(b"x", producer=(1 << 62, 0, 0), is_transactional=True), True),
        (batch(b"x", producer=(7, 0, 0), is_transactional=True, is_control=True), True),
    ]:
        with pytest.raises(BrokerError) as caught:
            log.append_as_leader(records, 0, NOW_MS, is_transactional=is_transactional)
        assert caught.value.code == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0
    for producer_id in (-1, 1 << 62):
        assert refused(log, producer_id, ABORT) == ErrorCode.INVALID_RECORD


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    log = open_log(config=LogConfig(producer_id_expiration_ms=1000))
    write(log, 7, 0)
    write(log, 8, 0)
    end(log, 8, COMMIT)
    for later in (0, 5000, 10_000):
        log.expire_producers(NOW_MS + later)
    assert set(log.producers.dump()) == {7, 8}, "the marker of 8 may still be truncated"
    commit_all(log)
    assert log.last_stable_offset == 0
    end(log, 7, ABORT)
    commit_all(log)
    assert log.last_stable_offset == log.log_end_offset
    for later in (20_000, 30_000):
        log.expire_producers(NOW_MS + later)
    assert not len(log.producers)


# -- the indexes ------------------------------------------------------------------------------------------------------


def segmented(files: Files | None = None) -> Log:
    """A log with four aborted transactions and one that was committed, in three segments."""
    log = open_log(files)
    write(log, 7, 0)
    write(log, 8, 0)
    end(log, 7, ABORT)
    log.roll()
    write(log, 7, 1)
    write(log, 9, 0)
    end(log, 7, ABORT)
    end(log, 9, COMMIT)
    log.roll()
    end(log, 8, ABORT)
    write(log, 9, 1)
    end(log, 9, ABORT)
    return log


ABORTED = [(7, 0, 2), (8, 1, 7), (7, 3, 5), (9, 8, 9)]


def test_aborted_transactions_are_found_by_range_and_sorted() -> None:
    log = segmented()
    assert first_offsets(log) == ABORTED
    assert first_offsets(log, 3) == ABORTED[1:]
    assert first_offsets(log, 0, 3) == ABORTED[:2]
    assert first_offsets(log, 6, 8) == [(8, 1, 7)]
    assert first_offsets(log, 8, 9) == [(9, 8, 9)]


def test_the_index_has_kafkas_bytes() -> None:
    files = MemoryFiles(Random(0))
    log = segmented(files)
    log.close()
    data = files.read(f"{DIR}/{0:020d}.txnindex")
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (7, 0, 2, 1))
    assert len(files.read(f"{DIR}/{7:020d}.txnindex")) == 2 * 34


def test_a_segment_without_aborted_transactions_has_no_index() -> None:
    files = MemoryFiles(Random(0))
    log = open_log(files)
    write(log, 7, 0)
    end(log, 7, COMMIT)
    log.roll()
    log.close()
    assert not [name for name in files.list(DIR) if name.endswith(".txnindex")]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("point", [0, 3, 7, 10])
def test_a_start_finds_the_aborted_transactions(clean: bool, point: int) -> None:
    files = MemoryFiles(Random(0))
    log = segmented(files)
    write(log, 7, 2)
    commit_all(log)
    if clean:
        log.close()
    again = open_log(files, clean=clean, recovery_point=point, high_watermark=11)
    assert first_offsets(again) == ABORTED
    assert again.last_stable_offset == 10
    assert again.producers == log.producers
    assert [segment.aborted and bytes(segment.aborted.entries) for segment in again.segments] == [
        segment.aborted and bytes(segment.aborted.entries) for segment in log.segments
    ]


@pytest.mark.parametrize("damage", [b"", b"\0", b"\0\0" + bytes(32), b"\0\1" + bytes(32), b"\xff" * 34])
def test_a_damaged_index_is_rebuilt(damage: bytes) -> None:
    files = MemoryFiles(Random(0))
    segmented(files).close()
    path = f"{DIR}/{3:020d}.txnindex"
    whole = files.read(path)
    files.write(path, damage or whole + whole)
    again = open_log(files, clean=True)
    assert first_offsets(again) == ABORTED
    assert files.read(path) == whole


def test_a_rebuilt_index_survives_the_next_power_cut() -> None:
    """The recovery point passes the segments that were rebuilt, so no later start rebuilds them."""
    files = MemoryFiles(Random(0))
    files.make_dirs("data")
    files.fsync_dir("")
    log = segmented(files)
    log.flush()
    log.abandon()
    for name in (0, 3):
        files.remove(f"{DIR}/{name:020d}.txnindex")
    log = open_log(files)
    log.flush()
    log.abandon()
    files.crash()
    assert first_offsets(open_log(files, recovery_point=10)) == ABORTED


def test_the_index_of_a_vanished_segment_is_removed() -> None:
    files = MemoryFiles(Random(0))
    segmented(files).close()
    files.write(f"{DIR}/{100:020d}.txnindex", bytes(34))
    open_log(files, clean=True).close()
    assert not files.exists(f"{DIR}/{100:020d}.txnindex")


@pytest.mark.parametrize("cut", range(11))
def test_a_truncation_opens_transactions_again(cut: int) -> None:
    """A truncated log has the same state as a log to which the removed batches were never appended."""
    log, other = segmented(), open_log()
    for data in read_all(log, 0, cut):
        other.append_as_follower(data, 0)
    log.truncate_to(cut)
    assert log.log_end_offset == other.log_end_offset
    assert first_offsets(log) == first_offsets(other)
    assert log.producers == other.producers
    for each in (log, other):
        commit_all(each)
    assert log.last_stable_offset == other.last_stable_offset


def test_a_follower_knows_what_its_leader_knows() -> None:
    leader, follower = segmented(), open_log()
    follow(leader, follower)
    assert follower.aborted_transactions(0, 99) == leader.aborted_transactions(0, 99)
    assert follower.producers == leader.producers
    commit_all(follower)
    assert follower.last_stable_offset == 10


def test_deleted_segments_take_their_indexes_along() -> None:
    files = MemoryFiles(Random(0))
    log = segmented(files)
    commit_all(log)
    log.increment_log_start_offset(7)
    for path in log.delete_old_segments(NOW_MS):
        files.remove(path)
    assert first_offsets(log) == [(8, 1, 7), (9, 8, 9)]
    assert not files.exists(f"{DIR}/{0:020d}.txnindex")


def test_a_restart_does_not_forget_an_uncommitted_marker() -> None:
    """A snapshot of the producers has no transaction that has ended. If it were used here, readers would see records of a
    transaction whose marker may be truncated."""
    files = MemoryFiles(Random(0))
    log = open_log(files)
    write(log, 7, 0, values=3)
    log.update_high_watermark(2)
    end(log, 7, COMMIT)
    log.roll()
    write(log, 8, 0)
    assert log.last_stable_offset == 0
    log.close()
    again = open_log(files, clean=True, high_watermark=2, recovery_point=5)
    assert again.last_stable_offset == 0
    again.update_high_watermark(4)
    assert again.last_stable_offset == 4


def test_a_marker_of_an_operator_is_as_uncommitted_as_any_other() -> None:
    """An operator who ends a hanging transaction may name no coordinator epoch (-1). Even then a restart must find the marker in
    the log, because a truncation can remove it."""
    files = MemoryFiles(Random(0))
    log = open_log(files)
    write(log, 7, 0, values=3)
    log.update_high_watermark(2)
    for _ in range(2):
        end(log, 7, EndTransactionMarker(False, -1))
    log.close()
    again = open_log(files, clean=True, high_watermark=2, recovery_point=5)
    assert again.last_stable_offset == 0
    again.truncate_to(3)
    again.update_high_watermark(3)
    assert again.last_stable_offset == 0


# -- Kafka's tool -----------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kafka_reads_markers_indexes_and_snapshots(tmp_path: Path) -> None:
    script = kafka_tools()
    directory = tmp_path / "orders-0"
    log = open_log(RealFiles(), str(directory))
    write(log, 7, 0)
    write(log, 8, 0)
    end(log, 7, EndTransactionMarker(False, 3))
    end(log, 8, EndTransactionMarker(True, 4), epoch=1, version=2)
    write(log, 9, 0)
    log.close()
    base = f"{0:020d}"
    text = dump(script, [directory / f"{base}.log", directory / f"{base}.txnindex", directory / f"{5:020d}.snapshot"])
    assert "endTxnMarker: ABORT coordinatorEpoch: 3" in text
    assert "endTxnMarker: COMMIT coordinatorEpoch: 4" in text
    assert text.count("isTransactional: true isControl: true") == 2
    assert "version: 0 producerId: 7 firstOffset: 0 lastOffset: 2 lastStableOffset: 1" in text
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("producerId:")}
    assert "coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong.empty" in lines["7"]
    assert "producerEpoch: 1 coordinatorEpoch: 4" in lines["8"]
    assert "currentTxnFirstOffset: OptionalLong[4]" in lines["9"]
