"""Random histories of a log with transactions, compared with a model that knows every batch.

Whatever happened to the log (rolls, truncations, deleted segments, orderly stops, kills, power cuts), a reader of committed
records sees exactly the records of decided, committed transactions below the model's last stable offset. So does a reader of a
follower that has replicated the log, of one that began at the leader's log start, and of a copy in another directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import NOW_MS, batch, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import read_header
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.memory.memory_files import MemoryFiles

PIDS = (7, 8, 9)
PLAIN = -1
Step = tuple[str, int, int]

steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("data"), st.sampled_from(PIDS), st.integers(1, 3))] * 3,
        *[st.tuples(st.just("end"), st.sampled_from(PIDS), st.integers(0, 3))] * 3,
        st.tuples(st.just("plain"), st.integers(1, 2), st.just(0)),
        *[st.tuples(st.just("commit"), st.integers(1, 8), st.just(0))] * 2,
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("flush"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(1, 8), st.integers(0, 1)),
        st.tuples(st.just("delete"), st.integers(1, 6), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("expire"), st.just(0), st.just(0)),
        st.tuples(st.just("follow"), st.integers(0, 2), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@dataclass(frozen=True)
class Written:
    """One batch of the model."""

    first: int
    end: int
    pid: int
    epoch: int = -1
    sequence: int = -1
    """The sequence of its last record."""
    marker: str = ""


def transactions(history: list[Written]) -> list[tuple[int, int, int, bool]]:
    """The transactions as (producer id, first offset, offset of the marker, whether it is a commit); 2^62 as the marker of an
    open one."""
    found, ongoing = [], {}
    for each in history:
        if each.pid == PLAIN:
            continue
        if each.marker and each.pid in ongoing:
            found.append((each.pid, ongoing.pop(each.pid), each.first, each.marker == "commit"))
        elif not each.marker:
            ongoing.setdefault(each.pid, each.first)
    return found + [(pid, first, 1 << 62, False) for pid, first in ongoing.items()]


def stable_offset(history: list[Written], start: int, high_watermark: int) -> int:
    unstable = [first for _, first, marker, _ in transactions(history) if marker >= high_watermark]
    return max(start, min([*unstable, high_watermark]))


def visible(history: list[Written], offset: int, end: int) -> list[int]:
    """The first offsets of the batches that a reader of committed records sees whole."""
    committed = [(pid, first, marker) for pid, first, marker, is_commit in transactions(history) if is_commit]
    return [
        each.first
        for each in history
        if offset < each.end <= end
        and not each.marker
        and (each.pid == PLAIN or any(pid == each.pid and first <= each.first < marker for pid, first, marker in committed))
    ]


def seen(log: Log, offset: int, end: int) -> list[int]:
    """The offsets that Kafka's consumer returns from a fetch response: it drops the batches of an aborted producer, from the
    first offset of the transaction until the ABORT marker."""
    aborted = list(log.aborted_transactions(offset, end))
    assert aborted == sorted(aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    found = []
    for data in read_all(log, offset, end):
        header = read_header(data)
        while aborted and aborted[0].first_offset <= header.last_offset:
            dropped.add(aborted.pop(0).producer_id)
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in dropped:
            found.append(header.base_offset)
    return found


class World:
    def __init__(self, seed: int) -> None:
        self.files = MemoryFiles(Random(seed))
        self.files.make_dirs("data")
        self.files.fsync_dir("")
        self.epoch = 0
        self.random = Random(seed)
        self.history: list[Written] = []
        self.stable = 0
        self.config = LogConfig(producer_id_expiration_ms=1000)
        self.now_ms = NOW_MS
        self.log = open_log(self.files, config=self.config)
        self.log.on_lowered = self.checkpoint
        self.checkpoint()
        self.follower = open_log()

    def checkpoint(self, *_: int) -> None:
        log = self.log
        self.saved = (log.log_start_offset, log.high_watermark, log.recovery_point)

    # -- steps --------------------------------------------------------------------------------------------------------

    def producer(self, pid: int) -> tuple[int, int]:
        """A producer's epoch and the sequence of its next record."""
        own = [each for each in self.history if each.pid == pid]
        epoch = own[-1].epoch if own else 0
        return epoch, next((each.sequence + 1 for each in reversed(own) if not each.marker and each.epoch == epoch), 0)

    def data(self, pid: int, count: int) -> None:
        epoch, sequence = self.producer(pid)
        records = batch(*[b"v"] * count, producer=(pid, epoch, sequence), is_transactional=True)
        try:
            first = self.log.append_as_leader(records, self.epoch, NOW_MS, is_transactional=True).first_offset
        except BrokerError as e:
            # The log may know only a marker of a producer whose batches were deleted.
            if e.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not self.log.segments[0].base_offset:
                raise
            return
        self.history.append(Written(first, first + count, pid, epoch, sequence + count - 1))

    def end(self, pid: int, kind: int) -> None:
        epoch = self.producer(pid)[0] + kind // 2
        is_commit = bool(kind % 2)
        info = self.log.append_marker(EndTransactionMarker(is_commit, 0), pid, epoch, self.epoch, NOW_MS, kind // 2 + 1)
        self.history.append(Written(info.first_offset, info.first_offset + 1, pid, epoch, -1, "commit" if is_commit else "abort"))

    def plain(self, count: int, _: int) -> None:
        info = self.log.append_as_leader(batch(*[b"v"] * count), self.epoch, NOW_MS)
        self.history.append(Written(info.first_offset, info.last_offset + 1, PLAIN))

    def commit(self, count: int, _: int) -> None:
        self.log.update_high_watermark(self.log.high_watermark + count)

    def roll(self, *_: int) -> None:
        self.log.roll()

    def flush(self, is_partial: int, _: int) -> None:
        work = self.log.flush_work(with_last=False) if is_partial else None
        if work is not None:
            work.run()
            self.log.on_flushed(work)
        elif not is_partial:
            self.log.flush()

    def truncate(self, back: int, is_unclean: int) -> None:
        log = self.log
        target = log.log_end_offset - back
        high_watermark = log.high_watermark
        log.truncate_to(max(target, log.log_start_offset if is_unclean else high_watermark))
        if log.high_watermark < high_watermark:
            self.stable = 0
        self.cut()

    def cut(self) -> None:
        """Remove the batches that the log has lost from the history."""
        self.history = [each for each in self.history if each.end <= self.log.log_end_offset]
        self.follower.truncate_to(min(self.follower.log_end_offset, self.log.log_end_offset))

    def delete(self, forward: int, at_once: int) -> None:
        log = self.log
        log.increment_log_start_offset(log.log_start_offset + forward)
        self.checkpoint()
        paths = log.delete_old_segments(NOW_MS)
        for path in paths if at_once else ():
            self.files.remove(path)

    def restart(self, kind: int, _: int) -> None:
        """Restart after an orderly stop, a kill, or a power cut."""
        log = self.log
        if not kind:
            log.close()
            self.checkpoint()
        else:
            log.abandon()
        if kind == 2:
            self.files.crash()
        start, high_watermark, point = self.saved
        self.log = open_log(
            self.files,
            clean=not kind,
            config=self.config,
            log_start_offset=start,
            high_watermark=high_watermark,
            recovery_point=point,
        )
        assert self.log.log_end_offset >= point
        if self.log.corrupt_at is not None:  # A replica would copy the rest from its leader.
            self.log.truncate_to(self.log.corrupt_at)
        self.log.on_lowered = self.checkpoint
        self.checkpoint()
        self.cut()
        self.stable = 0  # The checkpoint of the high watermark may be an old one.
        self.epoch += 1

    def expire(self, *_: int) -> None:
        """Let idle producers expire; those with an open transaction stay."""
        for _ in range(2):
            self.now_ms += 5000
            self.log.expire_producers(self.now_ms)

    def follow(self, kind: int, _: int) -> None:
        log = self.log
        if kind:
            follower, start = open_log(), log.log_start_offset
            states = log.producers.before(start) if kind == 2 else ProducerStates.from_leader(log.producers.describe(), start)
            follower.truncate_fully_and_start_at(start, states)
            self.replicate(follower)
        elif self.follower.log_end_offset < log.segments[0].base_offset:
            self.follower = open_log()
        else:
            self.replicate(self.follower)

    def replicate(self, follower: Log) -> None:
        if follower.log_end_offset < self.log.log_start_offset:
            return
        for data in read_all(self.log, follower.log_end_offset):
            follower.append_as_follower(data, self.epoch)
        follower.update_high_watermark(self.log.high_watermark)
        follower.increment_log_start_offset(self.log.log_start_offset)
        self.check(follower)

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self, log: Log) -> None:
        start = log.log_start_offset
        known = stable_offset(self.history, start, log.high_watermark)
        present = stable_offset([each for each in self.history if each.end > start], start, log.high_watermark)
        # The log may forget a transaction of which it has no record.
        assert known <= log.last_stable_offset <= present
        stable = log.last_stable_offset
        assert seen(log, start, stable) == visible(self.history, start, stable)
        offset = self.random.randint(start, stable)
        end = self.random.randint(offset, stable)
        assert seen(log, offset, end) == visible(self.history, offset, end)

    def check_monotonic(self) -> None:
        assert self.log.last_stable_offset >= self.stable
        self.stable = self.log.last_stable_offset


def perform(plan: list[Step], seed: int) -> None:
    world = World(seed)
    for name, first, second in plan:
        getattr(world, name)(first, second)
        world.check(world.log)
        world.check_monotonic()


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(0, 2**32))
def test_readers_of_committed_records_see_what_the_model_sees(plan: list[Step], seed: int) -> None:
    perform(plan, seed)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(steps, st.integers(0, 2**32))
def test_readers_of_committed_records_see_it_in_many_histories(plan: list[Step], seed: int) -> None:
    perform(plan, seed)
