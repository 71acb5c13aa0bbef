"""The log cleaner and transactions: aborted records go and supersede nothing, open ones stay, markers stay."""

from __future__ import annotations

from cleaner_kit import clean
from storage_kit import NOW_MS, open_log, read_all

from strandline.protocol.records.batch import read_header
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker, is_marker
from strandline.protocol.records.reader import iter_records
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


def end(log: Log, pid: int, *, commit: bool) -> None:
    log.append_marker(EndTransactionMarker(commit, 0), pid, 0, 0, NOW_MS, 0)


def close_segment(log: Log) -> None:
    log.roll()
    log.update_high_watermark(log.log_end_offset)


def rows(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    data = b"".join(each for each in read_all(log) if not read_header(each).is_control)
    return [(record.offset, record.key, record.value) for record in iter_records(data)]


def test_aborted_records_are_removed_and_supersede_nothing() -> None:
    """Else the committed value of a key would be lost with the aborted one."""
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
    """Readers, and a new replica that reads the cleaned batches. The emptied last batch of a producer begins no transaction."""
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
