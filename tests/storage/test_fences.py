"""The fencing token of a log: no append with a lower token follows one with a higher token, whatever happens to the log."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from cleaner_kit import clean, keyed, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from real_kafka import dump, kafka_tools
from storage_kit import DIR, NOW_MS, batch, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.producer_names import WORK_EPOCH_MAX, number_of
from strandline.protocol.records.batch import check_crc, iter_headers, read_header
from strandline.protocol.records.fence import (
    FENCING_TOKEN_MAX,
    FIRST_FENCE,
    NO_TOKEN,
    is_fence,
    make_fence,
    producer_id_of,
    sequence_of,
    token_of,
)
from strandline.protocol.records.reader import iter_records
from strandline.storage.disk import DiskError, parent
from strandline.storage.files import RealFiles
from strandline.storage.log.appending import FencedToken, UnexpectedLogEnd
from strandline.storage.log.fences import FENCES_KEPT, Fence, Fences
from strandline.storage.log.log import AppendInfo, Log, LogConfig
from strandline.storage.log.log_config import LOG_APPEND_TIME
from strandline.storage.log.producer_state import ProducerStates, snapshot_rows
from strandline.storage.memory.memory_files import MemoryFiles

SMALL = LogConfig(segment_bytes=400, retention_bytes=400)


def send(log: Log, token: int = NO_TOKEN, *values: bytes, expected: int = -1, epoch: int = 1) -> AppendInfo:
    records = batch(*values or (b"x",))
    return log.append_as_leader(records, epoch, NOW_MS, expected_offset=expected, fencing_token=token)


def kept(log: Log) -> list[tuple[int, int]]:
    return [tuple(fence) for fence in log.producers.fences]


def token(log: Log) -> int:
    return log.producers.fences.token


def commit(log: Log) -> None:
    log.update_high_watermark(log.log_end_offset)


# -- the batch --------------------------------------------------------------------------------------------------------


@given(st.integers(0, FENCING_TOKEN_MAX))
def test_a_fence_is_an_empty_control_batch_that_contains_the_token(number: int) -> None:
    data = make_fence(number, 7, 3)
    header = read_header(data)
    assert check_crc(data, 0, len(data))
    assert (header.base_offset, header.next_offset, header.leader_epoch, header.record_count) == (7, 8, 3, 0)
    assert header.is_control
    assert is_fence(header)
    assert token_of(header.producer_id, header.base_sequence) == number
    assert (producer_id_of(number), sequence_of(number)) == (header.producer_id, header.base_sequence)
    assert header.producer_id < 2**63
    assert not list(iter_records(data))


def test_ids_of_fences_belong_to_no_name() -> None:
    assert number_of(FIRST_FENCE) == number_of(producer_id_of(FENCING_TOKEN_MAX)) == 2**31 - 1
    assert producer_id_of(FENCING_TOKEN_MAX) == FIRST_FENCE + WORK_EPOCH_MAX == 2**63 - 1


# -- appends ----------------------------------------------------------------------------------------------------------


def test_fence_is_written_right_before_the_batch_that_raises_the_token() -> None:
    log = open_log()
    assert (token(log), send(log).first_offset) == (NO_TOKEN, 0)
    info = send(log, 5, b"a", b"b")
    assert (info.first_offset, info.last_offset) == (2, 3)
    assert send(log, 5, b"c").first_offset == 4, "only a raise takes an offset"
    assert send(log, 2**40, b"d").first_offset == 6
    assert (kept(log), token(log)) == ([(5, 1), (2**40, 5)], 2**40)
    headers = [read_header(data) for data in read_all(log)]
    assert [(header.base_offset, is_fence(header)) for header in headers] == [
        (0, False), (1, True), (2, False), (4, False), (5, True), (6, False),
    ]  # fmt: skip
    assert all(check_crc(data, 0, len(data)) for data in read_all(log))
    assert {header.leader_epoch for header in headers} == {1}


def test_lower_token_is_refused_and_leaves_no_trace() -> None:
    log = open_log()
    send(log, 7)
    before = log.log_end_offset, log.producers.dump()
    with pytest.raises(FencedToken, match="fencing token 6 is fenced: an append with token 7 came before") as caught:
        send(log, 6)
    assert (caught.value.code, caught.value.fencing_token, caught.value.reason_end) == (ErrorCode.FENCED_TOKEN, 7, 1)
    assert (log.log_end_offset, log.producers.dump()) == before
    send(log)
    send(log, 7)
    with pytest.raises(FencedToken):
        send(log, 0)


def test_expected_offset_is_compared_with_the_log_end() -> None:
    """So a record that raises the token gets the offset after it. A rejected record raises no token."""
    log = open_log()
    with pytest.raises(UnexpectedLogEnd):
        send(log, 5, expected=1)
    assert token(log) == NO_TOKEN
    assert send(log, 5, expected=0).first_offset == 1
    assert send(log, 5, expected=2).first_offset == 2
    with pytest.raises(FencedToken):
        send(log, 4, expected=0)


def test_retry_of_a_written_batch_is_a_duplicate_after_the_token_was_raised() -> None:
    log = open_log()

    def mine(sequence: int) -> AppendInfo:
        return log.append_as_leader(batch(b"mine", producer=(9, 0, sequence)), 1, NOW_MS, fencing_token=3)

    assert mine(0).first_offset == 1
    send(log, 8)
    again = mine(0)
    assert (again.duplicate, again.first_offset) == (True, 1)
    with pytest.raises(FencedToken):
        mine(1)
    with pytest.raises(FencedToken):
        mine(2)  # The batch before it was fenced as well: "out of order" would only cause the producer an extra round trip.
    assert mine(0).duplicate


def test_batch_whose_fate_is_unknown_is_not_called_fenced() -> None:
    """It was appended longer ago than the log remembers, so the leader cannot claim that it was not written."""
    log = open_log()
    for sequence in range(10):
        log.append_as_leader(batch(b"x", producer=(9, 0, sequence)), 1, NOW_MS, fencing_token=3)
    send(log, 8)
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(batch(b"x", producer=(9, 0, 0)), 1, NOW_MS, fencing_token=3)
    assert caught.value.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_producer_cannot_write_a_fence() -> None:
    log = open_log()
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(bytearray(make_fence(99, 0, 1)), 1, NOW_MS)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    with pytest.raises(BrokerError, match="is that of a fence") as caught:
        log.append_as_leader(batch(b"x", producer=(FIRST_FENCE, 0, 99)), 1, NOW_MS)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert (log.log_end_offset, token(log)) == (0, NO_TOKEN)


def test_failed_write_raises_nothing() -> None:
    files = MemoryFiles(Random(1))
    log = open_log(files)
    send(log, 1)
    files.fail_next("write", "*.log", errno.ENOSPC)
    with pytest.raises(DiskError):
        send(log, 2)
    assert (kept(log), log.log_end_offset) == ([(1, 0)], 2)


def test_broker_sets_the_time_of_records_only() -> None:
    """With LogAppendTime: a fence has no timestamp, so that a search by time finds records."""
    log = open_log(config=LogConfig(message_timestamp_type=LOG_APPEND_TIME))
    send(log, 5)
    fence, data = (read_header(each) for each in read_all(log))
    assert (fence.max_timestamp, fence.is_log_append_time) == (-1, False)
    assert (data.max_timestamp, data.is_log_append_time) == (NOW_MS, True)
    assert log.offset_for_timestamp(0) == (NOW_MS, 1, 1)
    assert log.max_timestamp_offset() == (NOW_MS, 1, 1)


# -- what happens to the log ------------------------------------------------------------------------------------------


def test_follower_learns_tokens_from_the_batches() -> None:
    leader, follower = open_log(), open_log()
    for number in (3, 3, 2**31, 2**33):
        send(leader, number)
    for buffer in leader.read(0, 1 << 20, leader.log_end_offset).buffers:
        follower.append_as_follower(buffer, 1)
    assert follower.producers == leader.producers
    assert kept(follower) == [(3, 0), (2**31, 3), (2**33, 5)]


def test_token_is_gone_with_the_record_that_raised_it() -> None:
    log = open_log()
    send(log, 3)
    end = log.log_end_offset
    send(log, 9)
    send(log, 10)
    log.truncate_to(end + 1)
    assert (token(log), log.log_end_offset) == (9, end + 1), "a fence without the record behind it"
    log.truncate_to(end)
    assert token(log) == 3
    assert send(log, 4).first_offset == end + 1


def delete_records(log: Log) -> None:
    """Write batches without a token until retention has deleted all earlier records."""
    start = log.log_end_offset
    while log.log_start_offset < start:
        send(log, NO_TOKEN, b"x" * 100)
        commit(log)
        for path in log.delete_old_segments(NOW_MS):
            log.files.remove(path)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("stop", ["orderly", "killed", "power cut"])
def test_token_outlives_its_record(stop: str, seed: int) -> None:
    files = MemoryFiles(Random(seed))
    files.make_dirs(parent(DIR))
    files.fsync_dir("/")
    log = open_log(files, config=SMALL)
    send(log, 5)
    send(log, 6)
    delete_records(log)
    log.flush()
    log.close() if stop == "orderly" else log.abandon()
    if stop == "power cut":
        files.crash()
    again = open_log(files, config=SMALL, clean=stop == "orderly")
    assert again.log_start_offset > 0
    assert token(again) == 6
    with pytest.raises(FencedToken):
        send(again, 5)


def test_token_outlives_even_the_last_record() -> None:
    files = MemoryFiles(Random(3))
    log = open_log(files)
    send(log, 5)
    commit(log)
    log.increment_log_start_offset(2)
    log.roll()
    log.delete_old_segments(NOW_MS)
    log.close()
    assert token(open_log(files, clean=True, log_start_offset=2)) == 5


def test_token_is_not_forgotten_in_silence() -> None:
    log = open_log(config=LogConfig(producer_id_expiration_ms=1000))
    send(log, 5)
    for passed_ms in (0, 1001, 10**9):
        log.expire_producers(NOW_MS + passed_ms)
    assert token(log) == 5


@pytest.mark.parametrize("stop", ["none", "killed", "power cut"])
def test_follower_that_starts_after_deleted_records_asks_for_the_tokens(stop: str) -> None:
    """It takes only the token of the deleted fence: the later fence is in the log, and may still be truncated."""
    files = MemoryFiles(Random(1))
    files.make_dirs(parent(DIR))
    files.fsync_dir("/")
    leader, follower = open_log(config=SMALL), open_log(files, config=SMALL)
    send(follower, 1, b"of a former life")
    send(leader, 5)
    send(leader, 6)
    delete_records(leader)
    start = leader.log_start_offset
    send(leader, 9)
    follower.truncate_fully_and_start_at(start, ProducerStates.from_leader(leader.producers.describe(), start))
    assert token(follower) == 6
    if stop != "none":
        follower.flush()
        follower.abandon()
        if stop == "power cut":
            files.crash()
        follower = open_log(files, config=SMALL)
        assert (token(follower), follower.log_start_offset) == (6, start)
    while follower.log_end_offset < leader.log_end_offset:
        for buffer in leader.read(follower.log_end_offset, 1 << 20, leader.log_end_offset).buffers:
            follower.append_as_follower(buffer, 1)
    assert token(follower) == 9


def test_snapshot_lists_each_fence() -> None:
    """Older versions and Kafka's tools read the fences as batches of producers, and keep the last one of each id."""
    log = open_log()
    for number in (5, 6, 2**31 + 7):
        send(log, number)
    data = log.producers.encode()
    assert ProducerStates.decode(data) == log.producers
    assert snapshot_rows(data) == [
        (FIRST_FENCE, 0, 5, 0, 0, -1, -1, -1),
        (FIRST_FENCE, 0, 6, 2, 0, -1, -1, -1),
        (FIRST_FENCE + 1, 0, 7, 4, 0, -1, -1, -1),
    ]


# -- many tokens ------------------------------------------------------------------------------------------------------


def test_only_the_newest_fences_are_kept() -> None:
    """Otherwise a program that raises the token with each record would make snapshots as large as the log."""
    log = open_log()
    for number in range(100):
        send(log, number)
    assert len(kept(log)) == FENCES_KEPT
    assert token(log) == 99


def test_forgotten_fence_is_replaced_by_the_oldest_one_that_is_known() -> None:
    """A replica that starts at an offset whose token is forgotten must not start without any token."""
    fences = Fences()
    for number in range(FENCES_KEPT + 5):
        fences.add(number, 10 * number)
    oldest = next(iter(fences))
    assert oldest == Fence(5, 50)
    assert list(fences.before(61)) == [Fence(5, 50), Fence(6, 60)]
    assert list(fences.before(50)) == [Fence(5, 49)]
    assert list(fences.before(0)) == [], "nothing lies before the first offset"
    few = Fences([Fence(3, 30)])
    assert list(few.before(30)) == [], "it is the first one, so no token counted there"


def test_fence_of_a_known_token_takes_its_place() -> None:
    fences = Fences([Fence(5, 49)])
    fences.add(5, 60)
    fences.add(4, 70)
    assert (list(fences), fences.token) == ([Fence(5, 60)], 5)


# -- compaction -------------------------------------------------------------------------------------------------------


def test_cleaner_keeps_the_newest_fences() -> None:
    log = open_log()
    for number in range(FENCES_KEPT + 10):
        log.append_as_leader(keyed([(b"k", b"%d" % number)]), 1, NOW_MS, fencing_token=number)
    log.roll()
    log.append_as_leader(keyed([(b"open", b"1")]), 1, NOW_MS)
    commit(log)
    assert clean(log).replaced == 1
    assert [key for _, key, _ in rows(log)] == [b"k", b"open"]
    fences = [header.base_offset for data in read_all(log) for _, header in iter_headers(data) if is_fence(header)]
    assert fences == [offset for _, offset in kept(log)]
    assert len(fences) == FENCES_KEPT
    assert token(log) == FENCES_KEPT + 9
    before = log.producers.dump()
    log.abandon()
    again = open_log(log.files)
    assert again.producers.dump() == before, "a replay of the cleaned log finds the same"


# -- any history ------------------------------------------------------------------------------------------------------

Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 6)),
        st.tuples(st.just("raise"), st.integers(1, 2**32)),
        st.tuples(st.just("plain"), st.just(0)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("truncate"), st.integers(0, 10)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 10)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("late follower"), st.just(0)),
    ),
    max_size=50,
)


class History:
    """A log, and all raises of its token that were not truncated, whether or not they are still in the log."""

    def __init__(self) -> None:
        self.files = MemoryFiles(Random(1))
        self.files.make_dirs(parent(DIR))
        self.files.fsync_dir("/")
        self.log = open_log(self.files)
        self.raises: list[tuple[int, int]] = []

    @property
    def token(self) -> int:
        return self.raises[-1][0] if self.raises else NO_TOKEN

    def send(self, number: int) -> None:
        if number < self.token:
            with pytest.raises(FencedToken):
                send(self.log, number)
            return
        end = self.log.log_end_offset
        assert send(self.log, number).first_offset == end + (number > self.token)
        if number > self.token:
            self.raises.append((number, end))

    def truncate(self, back: int) -> None:
        log = self.log
        self.cut(max(log.high_watermark, log.log_end_offset - back))

    def cut(self, end: int) -> None:
        self.log.truncate_to(end)
        self.raises = [each for each in self.raises if each[1] < end]

    def delete(self, forward: int) -> None:
        self.log.increment_log_start_offset(self.log.log_start_offset + forward)
        for path in self.log.delete_old_segments(NOW_MS):
            self.files.remove(path)

    def restart(self, kind: int) -> None:
        """Restart after an orderly stop, a kill, or a power cut, which loses unflushed writes."""
        log = self.log
        start, committed = log.log_start_offset, log.high_watermark
        if kind == 2:
            log.flush()
            committed = log.recovery_point
        log.abandon() if kind else log.close()
        if kind == 2:
            self.files.crash()
        point = committed if kind == 2 else 0
        self.log = open_log(
            self.files, clean=not kind, log_start_offset=start, high_watermark=log.high_watermark, recovery_point=point
        )
        assert self.log.log_end_offset == log.log_end_offset

    def check_late_follower(self) -> None:
        """A follower that starts late has the leader's token as soon as it has the leader's records, and until then none that may
        be truncated."""
        leader, follower = self.log, open_log()
        start = leader.log_start_offset
        follower.truncate_fully_and_start_at(start, ProducerStates.from_leader(leader.producers.describe(), start))
        while follower.log_end_offset < leader.log_end_offset:
            end, known = follower.log_end_offset, follower.producers.fences.token
            exact = max((number for number, offset in self.raises if offset < end), default=NO_TOKEN)
            assert known == exact or (len(self.raises) > FENCES_KEPT and known > exact)
            for buffer in leader.read(end, 1, leader.log_end_offset).buffers:
                follower.append_as_follower(buffer, 9)
        assert token(follower) == self.token


@settings(max_examples=150, deadline=None)
@given(steps)
def test_token_is_always_the_highest_one_that_was_not_truncated(plan: list[Step]) -> None:
    history = History()
    for kind, number in plan:
        log = history.log
        if kind == "send":
            history.send(max(0, history.token - number))
        elif kind == "raise":
            history.send(history.token + number)
        elif kind == "plain":
            send(log)
        elif kind == "commit":
            log.update_high_watermark(log.high_watermark + number)
        elif kind == "truncate":
            history.truncate(number)
        elif kind == "roll":
            log.roll()
        elif kind == "delete":
            history.delete(number)
        elif kind == "restart":
            history.restart(number)
        else:
            history.check_late_follower()
        assert token(history.log) == history.token
        assert kept(history.log)[-1:] == history.raises[-1:]
        assert ProducerStates.decode(history.log.producers.encode()) == history.log.producers


# -- Kafka's tool -----------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kafka_reads_a_log_with_fences_without_a_complaint(tmp_path: Path) -> None:
    """The fences are between batches, at the end of the log, and in the snapshot of the producers."""
    script = kafka_tools()
    folder = tmp_path / "orders-0"
    log = open_log(RealFiles(), str(folder), config=LogConfig(segment_bytes=400, index_interval_bytes=0))
    for number in (0, 5, 5, 2**31 + 5, FENCING_TOKEN_MAX):
        send(log, number, b"x" * 50)
    log.truncate_to(log.log_end_offset - 1)
    log.close()
    logs, snapshots = sorted(folder.glob("*.log")), sorted(folder.glob("*.snapshot"))
    text = dump(script, [*logs, *sorted(folder.glob("*.index")), *sorted(folder.glob("*.timeindex")), snapshots[-1]])
    assert text.count("isControl: true") == 4
    assert text.count("isvalid: true") == 8
    assert f"baseOffset: 7 lastOffset: 7 count: 0 baseSequence: {2**31 - 1} " in text
    assert f"producerId: {2**63 - 1} " in text
