"""Named producers in a log: each row is written once, whichever process of the name writes it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import DIR, NOW_MS, batch, open_log

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.producer_names import (
    FIRST_NAMED,
    NUMBER_MAX,
    WORK_EPOCH_MAX,
    family_of,
    is_named,
    named_producer_id,
    number_of,
    work_epoch_of,
)
from strandline.protocol.records.batch import MAX_SEQUENCE, iter_headers
from strandline.storage.disk import parent
from strandline.storage.log.log import AppendInfo, Log, LogConfig
from strandline.storage.log.producer_state import KnownProducer, ProducerStates
from strandline.storage.memory.memory_files import MemoryFiles

C = ErrorCode
SMALL = LogConfig(segment_bytes=400, retention_bytes=400)


def send(log: Log, first: int, count: int = 1, *, epoch: int = 0, work_epoch: int = 0, number: int = 7) -> AppendInfo:
    values = [b"%d" % (first + i) for i in range(count)]
    producer = (named_producer_id(number, work_epoch), epoch, first)
    return log.append_as_leader(batch(*values, producer=producer), 1, NOW_MS)


def refused(log: Log, first: int, count: int = 1, **given: int) -> ErrorCode:
    before = log.log_end_offset, log.producers.dump()
    with pytest.raises(BrokerError) as caught:
        send(log, first, count, **given)
    assert (log.log_end_offset, log.producers.dump()) == before
    return caught.value.code


def known(log: Log, number: int = 7) -> tuple[int, int, int] | None:
    """(work epoch, epoch, last row) of a name."""
    found = list(log.producers.describe([named_producer_id(number, 0)]))
    return (work_epoch_of(found[0].producer_id), found[0].epoch, found[0].last_sequence) if found else None


def replay(log: Log) -> ProducerStates:
    states = ProducerStates()
    for segment in log.segments:
        for _, header in iter_headers(segment.file.pread(segment.size, 0)):
            states.update(header, header.last_offset)
    return states


# -- the id -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, NUMBER_MAX), st.integers(0, WORK_EPOCH_MAX))
def test_an_id_contains_the_number_of_the_name_and_the_work_epoch(number: int, work_epoch: int) -> None:
    producer_id = named_producer_id(number, work_epoch)
    assert FIRST_NAMED <= producer_id < 2**63
    assert (is_named(producer_id), number_of(producer_id), work_epoch_of(producer_id)) == (True, number, work_epoch)
    assert family_of(producer_id) == named_producer_id(number, 0)


@given(st.integers(0, FIRST_NAMED - 1))
def test_an_id_without_a_name_is_its_own_family(producer_id: int) -> None:
    assert (is_named(producer_id), family_of(producer_id), work_epoch_of(producer_id)) == (False, producer_id, 0)


# -- what may follow what ---------------------------------------------------------------------------------------------


def test_the_next_epoch_continues_after_the_last_one_and_fences_it() -> None:
    log = open_log()
    send(log, 0, 5)
    assert refused(log, 0, epoch=1) == C.DUPLICATE_SEQUENCE_NUMBER, "a producer without a name would begin at 0 again"
    assert refused(log, 6, epoch=1) == C.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 5, 3, epoch=1)
    assert known(log) == (0, 1, 7)
    assert refused(log, 8, epoch=0) == C.INVALID_PRODUCER_EPOCH
    send(log, 8, epoch=1)


def test_rows_of_a_lower_epoch_are_refused_even_as_the_same_batch() -> None:
    """The sender believed that the rows were not written. An acknowledgement would hide its mistake; it must ask for the last
    row."""
    log = open_log()
    send(log, 0, 5)
    for first, count in ((0, 5), (3, 2), (4, 5), (0, 9)):
        assert refused(log, first, count, epoch=1) == C.DUPLICATE_SEQUENCE_NUMBER
    send(log, 5, epoch=0)


def test_a_retry_gets_its_offsets_and_other_batches_of_its_rows_are_refused() -> None:
    log = open_log()
    for row in range(0, 14, 2):
        send(log, row, 2)
    assert send(log, 4, 2).first_offset == 4
    assert send(log, 12, 2).duplicate
    assert refused(log, 0, 2) == C.DUPLICATE_SEQUENCE_NUMBER, "longer ago than five batches"
    assert refused(log, 11, 2) == C.DUPLICATE_SEQUENCE_NUMBER
    assert refused(log, 13, 4) == C.DUPLICATE_SEQUENCE_NUMBER, "half of it is new"
    assert refused(log, 15) == C.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_work_epoch_begins_at_row_0_and_fences_the_old_one() -> None:
    log = open_log()
    send(log, 0, 5, epoch=3)
    assert refused(log, 5, work_epoch=1) == C.UNKNOWN_PRODUCER_ID
    send(log, 5, epoch=3)
    send(log, 0, 2, work_epoch=1)
    assert refused(log, 6, epoch=3) == C.INVALID_PRODUCER_EPOCH
    assert refused(log, 6, epoch=9) == C.INVALID_PRODUCER_EPOCH
    assert (len(log.producers), known(log)) == (1, (1, 0, 1))


def test_an_unknown_name_begins_at_row_0() -> None:
    """Its earlier rows may have been written before this log began, or to another topic, so row 3 would leave a gap."""
    log = open_log()
    assert refused(log, 3) == C.UNKNOWN_PRODUCER_ID
    send(log, 0, 3, epoch=4)
    send(log, 3, epoch=4)


def test_names_are_independent() -> None:
    log = open_log()
    send(log, 0, 2, number=1, work_epoch=5)
    send(log, 0, 2, number=2, work_epoch=4)
    send(log, 2, number=1, work_epoch=5)
    assert (known(log, 1), known(log, 2), known(log, 3)) == ((5, 0, 2), (4, 0, 1), None)


def test_row_numbers_do_not_wrap() -> None:
    log = open_log()
    states, header = log.producers, next(iter_headers(bytes(batch(b"x", producer=(named_producer_id(7, 0), 0, MAX_SEQUENCE)))))[1]
    states.update(header, 0)
    assert refused(log, MAX_SEQUENCE, 2, epoch=1) == C.INVALID_RECORD
    assert refused(log, 0, epoch=1) == C.DUPLICATE_SEQUENCE_NUMBER


def test_batches_of_one_request_may_have_several_work_epochs() -> None:
    log = open_log()
    one, two = named_producer_id(7, 1), named_producer_id(7, 2)
    rows = batch(b"a", producer=(one, 0, 0)) + batch(b"b", producer=(one, 1, 1)) + batch(b"c", producer=(two, 0, 0))
    assert log.append_as_leader(bytearray(rows), 1, NOW_MS).last_offset == 2
    back = batch(b"d", producer=(two, 0, 1)) + batch(b"e", producer=(one, 9, 2))
    with pytest.raises(BrokerError, match="work epoch 1 is fenced"):
        log.append_as_leader(bytearray(back), 1, NOW_MS)
    assert log.log_end_offset == 3


def test_a_follower_learns_the_states_from_the_batches() -> None:
    leader, follower = open_log(), open_log()
    send(leader, 0, 3)
    send(leader, 3, epoch=2)
    send(leader, 0, work_epoch=1)
    for buffer in leader.read(0, 1 << 20, 9).buffers:
        follower.append_as_follower(buffer, 1)
    assert follower.producers == leader.producers
    assert refused(follower, 4, epoch=2) == C.INVALID_PRODUCER_EPOCH


def test_a_producer_is_described_by_its_newest_batch() -> None:
    log = open_log()
    send(log, 0, 3, work_epoch=2)
    log.append_as_leader(batch(b"x", producer=(5, 1, 0)), 1, NOW_MS)
    named = KnownProducer(named_producer_id(7, 2), 0, 2, 2, NOW_MS)
    assert set(log.producers.describe()) == {named, KnownProducer(5, 1, 0, 3, NOW_MS)}
    assert list(log.producers.describe([named_producer_id(7, 9), 5, 6])) == [named, KnownProducer(5, 1, 0, 3, NOW_MS)]
    assert list(log.producers.describe([])) == []


# -- how long it is known ---------------------------------------------------------------------------------------------


def test_a_name_is_kept_as_long_as_the_cluster_knows_it() -> None:
    log = open_log(config=LogConfig(producer_id_expiration_ms=1000))
    send(log, 0)
    log.append_as_leader(batch(b"x", producer=(5, 0, 0)), 1, NOW_MS)
    for passed_ms in (0, 1001, 10**9):
        log.expire_producers(NOW_MS + passed_ms, lambda number: number == 7)
    assert (len(log.producers), known(log)) == (1, (0, 0, 0))
    log.expire_producers(NOW_MS + 10**9 + 1, lambda number: False)
    assert known(log), "its silence begins now"
    log.expire_producers(NOW_MS + 10**9 + 1002, lambda number: False)
    assert known(log) is None


def let_records_go(log: Log) -> None:
    """Let another producer write until retention has deleted all earlier records."""
    start = log.log_end_offset
    while log.log_start_offset < start:
        log.append_as_leader(batch(b"x" * 100), 1, NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        for path in log.delete_old_segments(NOW_MS):
            log.files.remove(path)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("stop", ["orderly", "killed", "power cut"])
def test_a_name_outlives_its_records(stop: str, seed: int) -> None:
    files = MemoryFiles(Random(seed))
    files.make_dirs(parent(DIR))
    files.fsync_dir("/")
    log = open_log(files, config=SMALL)
    send(log, 0, 5, epoch=2)
    let_records_go(log)
    log.flush()
    assert known(log) == (0, 2, 4)
    log.close() if stop == "orderly" else log.abandon()
    if stop == "power cut":
        files.crash()
    again = open_log(files, config=SMALL, clean=stop == "orderly")
    assert again.log_start_offset > 0
    assert known(again) == (0, 2, 4)
    assert refused(again, 0, epoch=3) == C.DUPLICATE_SEQUENCE_NUMBER
    send(again, 5, epoch=3)


@pytest.mark.parametrize("seed", range(5))
def test_a_name_outlives_an_orderly_stop_and_a_power_cut(seed: int) -> None:
    """The stop writes the snapshot of an empty log again, under the name of the durable one."""
    files = MemoryFiles(Random(seed))
    files.make_dirs(parent(DIR))
    files.fsync_dir("/")
    log = open_log(files)
    send(log, 0, 5)
    log.update_high_watermark(5)
    log.increment_log_start_offset(5)
    log.delete_old_segments(NOW_MS)
    log.flush()
    log.close()
    again = open_log(files, clean=True, log_start_offset=5)
    assert known(again) == (0, 0, 4)
    again.close()
    files.crash()
    assert known(open_log(files, log_start_offset=5, recovery_point=5)) == (0, 0, 4)


def test_a_name_outlives_even_the_last_record() -> None:
    files = MemoryFiles(Random(3))
    log = open_log(files)
    send(log, 0, 5)
    log.update_high_watermark(5)
    log.increment_log_start_offset(5)
    log.roll()
    log.delete_old_segments(NOW_MS)
    log.close()
    assert known(open_log(files, clean=True, log_start_offset=5)) == (0, 0, 4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stop", ["killed", "power cut"])
def test_the_leaders_states_of_names_are_kept_when_a_log_restarts(stop: str, seed: int) -> None:
    """The leader has deleted the rows, so the follower's own log will never contain a batch of them."""
    files = MemoryFiles(Random(seed))
    files.make_dirs(parent(DIR))
    files.fsync_dir("/")
    leader, log = open_log(MemoryFiles(Random(1)), config=SMALL), open_log(files, config=SMALL)
    send(leader, 0, 5, epoch=2, work_epoch=3)
    let_records_go(leader)
    send(leader, 0, 1, number=8)
    log.append_as_leader(batch(b"of a former life"), 1, NOW_MS)
    log.truncate_fully_and_start_at(
        leader.log_start_offset, ProducerStates.from_leader(leader.producers.describe(), leader.log_start_offset)
    )
    assert (known(log), known(log, 8)) == ((3, 2, 4), None), "the other name's row is known from its batch"
    log.flush()
    log.abandon()
    if stop == "power cut":
        files.crash()
    again = open_log(files, config=SMALL)
    assert (again.log_start_offset, known(again)) == (leader.log_start_offset, (3, 2, 4))
    assert refused(again, 0, 5, epoch=2, work_epoch=3) == C.DUPLICATE_SEQUENCE_NUMBER
    assert refused(again, 4, epoch=3, work_epoch=3) == C.DUPLICATE_SEQUENCE_NUMBER
    send(again, 5, epoch=3, work_epoch=3)


def test_a_truncation_frees_its_rows_and_keeps_deleted_ones() -> None:
    log = open_log(config=SMALL)
    send(log, 0, 5, number=1)
    log.flush()
    let_records_go(log)
    end = log.log_end_offset
    send(log, 5, 2, number=1, epoch=1)
    send(log, 0, 2, number=2)
    log.truncate_to(end)
    assert (known(log, 1), known(log, 2)) == ((0, 0, 4), None)
    send(log, 5, number=1)


Step = tuple[str, int, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("attempt"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("work_epoch"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("zombie"), st.integers(0, 2), st.integers(0, 6)),
        st.tuples(st.just("truncate"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
    ),
    max_size=40,
)


class Writers:
    """The current (work epoch, epoch) of three names. A new process asks the log for the last row, as a client does."""

    def __init__(self) -> None:
        self.holders = dict.fromkeys(range(3), (0, 0))

    def next_row(self, log: Log, name: int) -> int:
        found = known(log, name)
        return found[2] + 1 if found is not None and found[0] == self.holders[name][0] else 0

    def send(self, log: Log, name: int, count: int) -> None:
        work_epoch, epoch = self.holders[name]
        assert not send(log, self.next_row(log, name), count, number=name, work_epoch=work_epoch, epoch=epoch).duplicate

    def zombie(self, log: Log, name: int, back: int) -> None:
        """A fenced process continues. None of its rows may be appended after a newer process has written."""
        found = known(log, name)
        if found is not None and found[1] > 0:
            assert refused(log, max(0, found[2] + 1 - back), number=name, work_epoch=found[0], epoch=found[1] - 1) == (
                C.INVALID_PRODUCER_EPOCH
            )
        if found is not None and found[0] > 0:
            code = refused(log, max(0, found[2] + 1 - back), number=name, work_epoch=found[0] - 1, epoch=99)
            assert code == C.INVALID_PRODUCER_EPOCH


@settings(max_examples=60, deadline=None)
@given(steps)
def test_states_are_always_those_of_a_full_replay(plan: list[Step]) -> None:
    """S40, I16 with names; a snapshot restores them unchanged."""
    files = MemoryFiles(Random(1))
    log, writers = open_log(files), Writers()
    for kind, a, b in plan:
        if kind == "send":
            writers.send(log, a, b)
        elif kind == "attempt":
            work_epoch, epoch = writers.holders[a]
            writers.holders[a] = work_epoch, epoch + 1
        elif kind == "work_epoch":
            writers.holders[a] = writers.holders[a][0] + 1, 0
        elif kind == "zombie":
            writers.zombie(log, a, b)
        elif kind == "truncate":
            log.truncate_to(a)
        elif kind == "roll":
            log.roll()
        else:
            log.close() if a else log.abandon()
            log = open_log(files, clean=bool(a), recovery_point=log.recovery_point)
        assert log.producers == replay(log)
        assert ProducerStates.decode(log.producers.encode()) == log.producers


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 60))
def test_states_before_an_offset_and_a_replay_from_there_are_complete(plan: list[Step], offset: int) -> None:
    """The states that are kept when records are deleted are sufficient."""
    log, writers = open_log(), Writers()
    for kind, a, b in plan:
        if kind == "send":
            writers.send(log, a, b)
        elif kind in ("attempt", "work_epoch"):
            work_epoch, epoch = writers.holders[a]
            writers.holders[a] = (work_epoch, epoch + 1) if kind == "attempt" else (work_epoch + 1, 0)
    states = log.producers.before(offset)
    for _, header in iter_headers(log.segments[0].file.pread(log.segments[0].size, 0)):
        if header.last_offset >= offset:
            states.update(header, header.last_offset)
    assert states == log.producers


def test_a_snapshot_of_names_has_kafkas_format() -> None:
    log = open_log()
    send(log, 0, 3, work_epoch=2, epoch=1)
    data = log.producers.encode()
    assert data[10:18] == named_producer_id(7, 2).to_bytes(8, "big")
    assert len(data) == 10 + 46
    log.close()
    assert log.files.read(f"{DIR}/{3:020d}.snapshot") == data
