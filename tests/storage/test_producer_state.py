"""Idempotence per batch: S38-S40, I16."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import DIR, NOW_MS, batch, forget_tail, open_log

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import MAX_SEQUENCE
from strandline.storage.log.log import AppendInfo, Log, LogConfig
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.memory.memory_files import MemoryFiles

PID = 7


def send(log: Log, sequence: int, count: int = 1, *, epoch: int = 0, pid: int = PID) -> AppendInfo:
    values = [b"%d" % (sequence + i) for i in range(count)]
    return log.append_as_leader(batch(*values, producer=(pid, epoch, sequence)), 1, NOW_MS)


def refused(log: Log, sequence: int, count: int = 1, **given: int) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(BrokerError) as caught:
        send(log, sequence, count, **given)
    assert log.log_end_offset == end
    return caught.value.code


def test_a_retry_gets_the_offsets_of_the_first_append() -> None:
    """S38: the batch was committed, its response was lost."""
    log = open_log()
    send(log, 0, 5)
    first = send(log, 5, 5)
    again = send(log, 5, 5)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset) == (5, 9)
    assert log.log_end_offset == 10


def test_a_new_leader_recognises_a_retry() -> None:
    """S38 with a fail-over: the new leader has the sequences from the replicated batches."""
    leader, follower = open_log(), open_log()
    for sequence in range(8):
        send(leader, sequence)
    for buffer in leader.read(0, 1 << 20, 8).buffers:
        follower.append_as_follower(buffer, 1)
    assert follower.producers == leader.producers
    assert send(follower, 6).first_offset == 6
    assert follower.log_end_offset == 8


def test_the_last_five_batches_are_recognised_as_duplicates() -> None:
    """S39 (KAFKA-5494). An older one is refused with DUPLICATE_SEQUENCE_NUMBER."""
    log = open_log()
    for sequence in range(7):
        send(log, sequence)
    for sequence in (4, 2, 6, 3, 5):
        info = send(log, sequence)
        assert info.duplicate
        assert info.first_offset == sequence
    assert refused(log, 1) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refused(log, 8) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not send(log, 7).duplicate


def test_sequences_wrap_to_zero() -> None:
    """KAFKA-7692."""
    log = open_log()
    send(log, MAX_SEQUENCE - 1, 2)
    send(log, 0, 3)
    assert send(log, MAX_SEQUENCE - 1, 2).first_offset == 0
    send(log, 3)
    wrapping = open_log()
    send(wrapping, MAX_SEQUENCE, 3)
    assert refused(wrapping, 1) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert not send(wrapping, 2).duplicate


def test_a_new_epoch_fences_the_older_one_and_starts_at_zero() -> None:
    log = open_log()
    send(log, 0, epoch=1)
    assert refused(log, 1, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(log, 1, epoch=2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 0, epoch=2)
    assert refused(log, 1, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_batches_of_one_request_continue_the_sequence() -> None:
    log = open_log()
    both = batch(b"a", b"b", producer=(PID, 0, 0)) + batch(b"c", producer=(PID, 0, 2))
    assert log.append_as_leader(bytearray(both), 1, NOW_MS).last_offset == 2
    again = log.append_as_leader(bytearray(both), 1, NOW_MS)
    assert (again.duplicate, again.first_offset, again.last_offset) == (True, 0, 2)
    some = batch(b"c", producer=(PID, 0, 2)) + batch(b"d", producer=(PID, 0, 3))
    with pytest.raises(BrokerError, match="some batches of the request were appended before, others were not"):
        log.append_as_leader(bytearray(some), 1, NOW_MS)
    gap = batch(b"d", producer=(PID, 0, 3)) + batch(b"f", producer=(PID, 0, 5))
    with pytest.raises(BrokerError, match="OUT_OF_ORDER"):
        log.append_as_leader(bytearray(gap), 1, NOW_MS)
    assert log.log_end_offset == 3
    assert not send(log, 3).duplicate


Step = tuple[str, int, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("retry"), st.integers(0, 2), st.integers(0, 6)),
        st.tuples(st.just("truncate"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_states_are_always_those_of_a_full_replay(plan: list[Step]) -> None:
    """S40, I16: after appends, truncations, rolls and restarts (orderly or not), with and without snapshots."""
    files = MemoryFiles(Random(1))
    log = open_log(files)
    following = {0: 0, 1: 0, 2: 0}
    for kind, a, b in plan:
        if kind == "send":
            following[a] = following[a] if _knows(log, a) else 0
            info = send(log, following[a], b, pid=a)
            assert not info.duplicate
            following[a] += b
        elif kind == "retry":
            for known in log.producers.dump().get(a, (0, []))[1][b : b + 1]:
                again = send(log, known.first_sequence, known.offset_delta + 1, pid=a)
                assert (again.duplicate, again.first_offset, again.last_offset) == (True, known.first_offset, known.last_offset)
        elif kind == "truncate":
            log.truncate_to(a)
            for pid, (_, batches) in log.producers.dump().items():
                following[pid] = batches[-1].last_sequence + 1
        elif kind == "roll":
            log.roll()
        else:
            log.close() if a else log.abandon()
            log = open_log(files, clean=bool(a), recovery_point=log.recovery_point)
        assert log.producers == replay(log)


def _knows(log: Log, pid: int) -> bool:
    return pid in log.producers.dump()


def replay(log: Log) -> ProducerStates:
    """The states that follow from all batches of the log."""
    from strandline.protocol.records.batch import iter_headers

    states = ProducerStates()
    for segment in log.segments:
        for _, header in iter_headers(segment.file.pread(segment.size, 0)):
            states.update(header, header.last_offset)
    return states


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 600), st.integers(0, 7), st.booleans())
def test_a_damaged_snapshot_is_not_used(at: int, bit: int, cut: bool) -> None:
    """S40 (testLoadFromCorruptSnapshotFile): for any flip or cut, the states come from the log."""
    files = MemoryFiles()
    log = open_log(files)
    for sequence in range(9):
        send(log, sequence)
    live = log.producers.dump()
    log.close()
    path = f"{DIR}/{9:020d}.snapshot"
    data = bytearray(files.read(path))
    if cut:
        data = data[: at % len(data)]
    else:
        data[at % len(data)] ^= 1 << bit
    assert ProducerStates.decode(bytes(data)) is None
    files.write(path, data)
    assert open_log(files, clean=True).producers.dump() == live


def test_a_snapshot_has_kafkas_format() -> None:
    """Version, CRC-32C, count, then 46 bytes per batch. With one producer and one batch it is identical to Kafka's file."""
    log = open_log()
    send(log, 0, 3)
    data = log.producers.encode()
    assert data[:2] == b"\x00\x01"
    assert data[6:10] == b"\x00\x00\x00\x01"
    assert data[10:18] == PID.to_bytes(8, "big")
    assert data[18:24] == b"\x00\x00" + (2).to_bytes(4, "big")
    assert len(data) == 10 + 46
    assert ProducerStates.decode(data) == log.producers


def test_producers_expire() -> None:
    log = open_log(config=LogConfig(producer_id_expiration_ms=1000))
    send(log, 0)
    log.expire_producers(NOW_MS)
    log.expire_producers(NOW_MS + 1000)
    assert len(log.producers) == 1
    log.expire_producers(NOW_MS + 1001)
    assert len(log.producers) == 0
    assert not send(log, 41).duplicate


def test_a_producer_of_old_records_is_remembered_until_its_retry() -> None:
    """The producer copies records of last week, whose timestamps do not show when it last wrote."""
    log = open_log(config=LogConfig(producer_id_expiration_ms=1000))
    old = batch(b"0", timestamp_ms=NOW_MS - 10_000, producer=(PID, 0, 0))
    log.append_as_leader(bytearray(old), 1, NOW_MS)
    log.expire_producers(NOW_MS + 1)
    log.expire_producers(NOW_MS + 500)
    assert log.append_as_leader(bytearray(old), 1, NOW_MS + 500).duplicate
    log.expire_producers(NOW_MS + 1002)
    assert len(log.producers) == 0


def test_a_restarted_log_knows_no_producer() -> None:
    """The batches are gone, so the states that follow from them are, too."""
    log = open_log()
    send(log, 0)
    log.truncate_fully_and_start_at(100)
    assert len(log.producers) == 0
    assert send(log, 41).first_offset == 100


def test_orderly_stops_do_not_accumulate_snapshots() -> None:
    files = MemoryFiles(Random(0))
    for sequence in range(5):
        log = open_log(files, clean=True)
        send(log, sequence)
        log.close()
    assert len([name for name in files.list(DIR) if name.endswith(".snapshot")]) <= 2


def test_old_duplicates_are_found_without_the_tail() -> None:
    log = open_log()
    first = send(log, 0)
    forget_tail(log)
    assert send(log, 0).first_offset == first.first_offset


def test_next_sequence_continues_what_the_log_has() -> None:
    """The group coordinator writes on behalf of transactional producers, and takes the sequences from the log."""
    log = open_log()
    states = log.producers
    assert states.next_sequence(PID, 0) == 0
    send(log, MAX_SEQUENCE - 1, 1)
    assert states.next_sequence(PID, 0) == MAX_SEQUENCE
    send(log, MAX_SEQUENCE, 1)
    assert states.next_sequence(PID, 0) == 0
    assert states.next_sequence(PID, 1) == 0
    send(log, 0, 3, epoch=1)
    assert states.next_sequence(PID, 1) == 3
