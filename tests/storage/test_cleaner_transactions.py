"""The log cleaner and transactions: aborted records are removed and supersede nothing, open ones stay, markers stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from cleaner_kit import DAY_MS, clean
from real_kafka import dump, kafka_tools
from storage_kit import NOW_MS, open_log, read_all

from strandline.protocol.records.batch import DELETE_HORIZON_MASK, read_header
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker, is_marker, read_marker
from strandline.protocol.records.reader import iter_records
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log


def keyed_log() -> Log:
    return open_log()


def put(log: Log, pid: int, sequence: int, key: bytes, value: bytes | None) -> None:
    records = encode_batch(
        [(key, value, [], NOW_MS)],
        producer_id=pid,
        producer_epoch=min(pid, 0),
        base_sequence=sequence,
        is_transactional=pid >= 0,
    )
    log.append_as_leader(bytearray(records), 0, NOW_MS, is_transactional=pid >= 0)


def end(log: Log, pid: int, *, commit: bool, epoch: int = 0) -> None:
    log.append_marker(EndTransactionMarker(commit, 0), pid, epoch, 0, NOW_MS, 0)


def close_segment(log: Log) -> None:
    log.roll()
    log.update_high_watermark(log.log_end_offset)


def rows(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    data = b"".join(each for each in read_all(log) if not read_header(each).is_control)
    return [(record.offset, record.key, record.value) for record in iter_records(data)]


def test_aborted_records_are_removed_and_supersede_nothing() -> None:
    """Otherwise the committed value of a key would be lost with the aborted one."""
    log = keyed_log()
    put(log, -1, -1, b"a", b"old")
    put(log, 7, 0, b"a", b"aborted")
    put(log, 7, 1, b"b", None)
    end(log, 7, commit=False)
    put(log, 7, 2, b"b", b"committed")
    end(log, 7, commit=True)
    close_segment(log)
    clean(log)
    assert rows(log) == [(0, b"a", b"old"), (4, b"b", b"committed")]
    assert [read_header(data).base_offset for data in read_all(log) if is_marker(read_header(data))] == [3, 5]
    assert log.tombstones_removed_below == 0


def test_committed_records_supersede_older_ones() -> None:
    log = keyed_log()
    put(log, 7, 0, b"a", b"1")
    end(log, 7, commit=True)
    put(log, 7, 1, b"a", b"2")
    end(log, 7, commit=True)
    close_segment(log)
    clean(log)
    assert rows(log) == [(2, b"a", b"2")]


def test_nothing_at_or_above_the_last_stable_offset_is_cleaned() -> None:
    log = keyed_log()
    put(log, -1, -1, b"a", b"1")
    close_segment(log)
    put(log, -1, -1, b"a", b"2")
    put(log, 7, 0, b"a", b"open")
    close_segment(log)
    put(log, -1, -1, b"a", b"3")
    close_segment(log)
    assert clean(log).next_dirty == 1
    assert len(rows(log)) == 4
    end(log, 7, commit=False)
    close_segment(log)
    clean(log)
    assert rows(log) == [(3, b"a", b"3")]


def test_a_cleaned_log_still_knows_its_transactions() -> None:
    """Readers see them, and so does a new replica that reads the cleaned batches. The emptied last batch of a producer begins no
    transaction."""
    log = keyed_log()
    for pid in (7, 8):
        put(log, pid, 0, b"k", b"%d" % pid)
    end(log, 7, commit=False)
    log.roll()
    end(log, 8, commit=False)
    put(log, 9, 0, b"k", b"9")
    end(log, 9, commit=True)
    close_segment(log)
    put(log, 9, 1, b"x", b"open")
    log.update_high_watermark(log.log_end_offset)
    clean(log)
    assert rows(log) == [(4, b"k", b"9"), (6, b"x", b"open")]
    assert [each[:3] for each in log.aborted_transactions(0, 6)] == [(7, 0, 2), (8, 1, 3)]
    replica = open_log()
    for data in read_all(log):
        replica.append_as_follower(data, 0)
    replica.update_high_watermark(log.high_watermark)
    assert replica.last_stable_offset == log.last_stable_offset == 6
    assert replica.aborted_transactions(0, 6) == []
    again = open_log(log.files, recovery_point=0, high_watermark=7)
    assert again.last_stable_offset == 6


# -- markers ----------------------------------------------------------------------------------------------------------


def markers(log: Log) -> list[int]:
    return [header.base_offset for header in map(read_header, read_all(log)) if is_marker(header)]


def horizons(log: Log) -> list[int]:
    """The markers that have a delete horizon."""
    headers = map(read_header, read_all(log))
    return [header.base_offset for header in headers if is_marker(header) and header.attributes & DELETE_HORIZON_MASK]


def forget_producers(log: Log) -> None:
    """Let the producers be silent for longer than `producer.id.expiration.ms`."""
    for times in (2, 4):
        log.expire_producers(NOW_MS + times * log.config.producer_id_expiration_ms)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_goes_when_its_records_are_gone_and_its_delete_horizon_has_passed(commit: bool) -> None:
    """Otherwise a log with many small transactions would in the end consist of markers. A reader that has read a record of the
    transaction before it was removed has until the horizon to find the marker."""
    log = keyed_log()
    put(log, 7, 0, b"a", b"in the transaction")
    end(log, 7, commit=commit)
    put(log, -1, -1, b"a", b"newer")
    close_segment(log)
    forget_producers(log)
    clean(log)
    assert (markers(log), horizons(log)) == ([1], [])
    clean(log)
    assert (markers(log), horizons(log)) == ([1], [1])
    (marker,) = [data for data in read_all(log) if is_marker(read_header(data))]
    assert read_marker(marker, 0, read_header(marker)) == EndTransactionMarker(commit, 0)
    assert [record.timestamp_ms for record in iter_records(marker)] == [NOW_MS]
    clean(log, now_ms=NOW_MS + DAY_MS - 1)
    assert (markers(log), log.tombstones_removed_below) == ([1], 0)
    clean(log, now_ms=NOW_MS + DAY_MS)
    assert (markers(log), log.tombstones_removed_below) == ([], 2)
    assert rows(log) == [(2, b"a", b"newer")]


def test_a_marker_stays_while_a_record_of_its_transaction_stays() -> None:
    """A replica that copied the record would have an open transaction forever."""
    log = keyed_log()
    put(log, 7, 0, b"a", b"the newest")
    put(log, 7, 1, b"b", b"old")
    end(log, 7, commit=True)
    put(log, -1, -1, b"b", b"new")
    close_segment(log)
    forget_producers(log)
    for day in range(4):
        clean(log, now_ms=NOW_MS + day * DAY_MS)
    assert markers(log) == [2]


def test_a_marker_of_a_producer_goes_though_its_other_transactions_stay() -> None:
    """They are different transactions, whose markers come later."""
    log = keyed_log()
    for sequence, value in enumerate([b"1", b"2"]):
        put(log, 7, sequence, b"a", value)
        end(log, 7, commit=True)
    close_segment(log)
    for day in range(4):
        clean(log, now_ms=NOW_MS + day * DAY_MS)
    assert markers(log) == [3]
    assert rows(log) == [(2, b"a", b"2")]


def test_the_marker_with_the_epoch_of_an_active_producer_stays() -> None:
    """In version 2 every marker raises the epoch. Without the marker, the log would accept batches of the older epoch after a
    restart."""
    log = keyed_log()
    put(log, 7, 0, b"a", b"1")
    end(log, 7, commit=True, epoch=1)
    end(log, 7, commit=True, epoch=1)
    put(log, -1, -1, b"a", b"2")
    close_segment(log)
    for day in range(4):
        clean(log, now_ms=NOW_MS + day * DAY_MS)
    assert markers(log) == [2]
    assert open_log(log.files, recovery_point=0).producers.standing(7).epoch == 1
    forget_producers(log)
    for day in range(4, 7):
        clean(log, now_ms=NOW_MS + day * DAY_MS)
    assert markers(log) == []


def test_the_index_forgets_an_aborted_transaction_with_its_marker() -> None:
    """Otherwise a reader would drop records of this producer up to a marker that the log no longer has."""
    log = keyed_log()
    for pid, key in ((7, b"a"), (8, b"b")):
        put(log, pid, 0, key, b"aborted")
        end(log, pid, commit=False)
        log.roll()
    put(log, -1, -1, b"x", b"1")
    close_segment(log)
    log.producers.expire(NOW_MS, -1, lambda _: False)
    forget_producers(log)
    path = log.segments[0].path(".txnindex")
    for day in range(2):
        clean(log, now_ms=NOW_MS + day * DAY_MS)
    assert [each[:3] for each in log.aborted_transactions(0, 5)] == [(7, 0, 1), (8, 2, 3)]
    clean(log, now_ms=NOW_MS + 3 * DAY_MS)
    assert log.aborted_transactions(0, 5) == []
    assert not log.files.exists(path)
    log.flush()
    again = open_log(log.files, recovery_point=5, high_watermark=5)
    assert again.aborted_transactions(0, 5) == []
    assert again.last_stable_offset == 5


@pytest.mark.kafka
def test_kafka_reads_the_cleaned_segments_and_their_index(tmp_path: Path) -> None:
    """A marker with a delete horizon, fillers instead of markers, and an index that has lost entries."""
    script = kafka_tools()
    log = open_log(RealFiles(), str(tmp_path / "orders-0"))
    for pid, key, commit in ((7, b"a", False), (8, b"a", True), (7, b"b", False), (9, b"b", True)):
        put(log, pid, int(key == b"b" and pid == 7), key, b"%d" % pid)
        end(log, pid, commit=commit)
        if key == b"a":
            log.roll()
    put(log, -1, -1, b"a", b"newest")
    close_segment(log)
    clean(log)
    forget_producers(log)
    clean(log)
    for now_ms in (NOW_MS, NOW_MS + DAY_MS):
        clean(log, now_ms=now_ms)
    assert markers(log) == [7]
    put(log, 5, 0, b"c", b"x")
    end(log, 5, commit=False)
    put(log, 6, 0, b"a", b"x")
    end(log, 6, commit=True)
    put(log, -1, -1, b"a", b"newer")
    close_segment(log)
    forget_producers(log)
    for _ in range(2):
        clean(log, now_ms=NOW_MS + DAY_MS)
    assert horizons(log)
    log.close()
    written = [path for suffix in (".log", ".index", ".timeindex", ".txnindex") for path in sorted(tmp_path.rglob(f"*{suffix}"))]
    text = dump(script, written, "--print-data-log")
    assert text.count("endTxnMarker: ") == len(markers(open_log(RealFiles(), str(tmp_path / "orders-0"))))
