"""The cleaner against a model: random keyed writes and cleanings, with a crash at any file operation.

The model is the list of all records that were appended. Whatever happens, the log shows a part of them, unchanged and in order,
without a gap in the offsets; the newest record of every key is there (a tombstone may go after its delete horizon); and after a
whole cleaning no cleaned record has a newer one of its key.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from cleaner_kit import Cleaned, clean, keyed, records
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from storage_kit import DIR, NOW_MS, TOPIC_ID, open_log, read_all

from strandline.protocol.records.batch import read_header
from strandline.protocol.records.compression import Codec
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.disk import DiskError, make_dirs_durably
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

DELETE_RETENTION_MS = 1_000
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=100)


class PowerCut(BaseException):
    """Raised when the machine dies in this file operation."""


class CountingFiles(MemoryFiles):
    """A disk on which the machine dies at the n-th operation that changes something."""

    CHANGES = ("write", "truncate", "fsync", "create", "rename", "unlink")

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.armed = True
        self.left: int | None = None
        """Number of operations until the power cut; None for no power cut."""
        self.operations = 0

    def maybe_fail(self, operation: str, path: str) -> None:
        self._count(operation)
        super().maybe_fail(operation, path)

    def take_fault(self, operation: str, path: str) -> Any:
        if operation in ("write", "fsync"):
            self._count(operation)
        return super().take_fault(operation, path)

    def _count(self, operation: str) -> None:
        if operation not in self.CHANGES:
            return
        self.operations += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise PowerCut

    def crash(self, *, lossy: bool = True) -> None:
        super().crash(lossy=lossy)
        self.armed, self.left = True, None


class Model:
    """A log, and the records that were appended to it."""

    def __init__(self, seed: int = 0) -> None:
        self.files = CountingFiles(Random(seed))
        make_dirs_durably(self.files, DIR)
        self.log: Log = open_log(self.files, config=CONFIG)
        self.appended: list[tuple[bytes | None, bytes | None, int]] = []
        """Key, value and timestamp of the record at each offset."""
        self.now_ms = NOW_MS
        self.first_dirty = 0
        self.first_cleaned_at: dict[int, int] = {}
        """The time at which the cleaner can have seen a tombstone first, by its offset."""
        self.sequences: dict[int, int] = {}

    def append(self, rows: list[tuple[bytes | None, bytes | None]], codec: Codec, producer_id: int) -> None:
        producer = (-1, -1, -1)
        if producer_id >= 0:
            sequence = self.sequences.get(producer_id, 0)
            producer = (producer_id, 0, sequence)
            self.sequences[producer_id] = sequence + len(rows)
        self.log.append_as_leader(keyed(rows, timestamp_ms=self.now_ms, codec=codec, producer=producer), 0, self.now_ms)
        self.appended += [(key, value, self.now_ms + n) for n, (key, value) in enumerate(rows)]

    def clean(self, keys: int, marked: int = 10_000) -> Cleaned:
        end = self.log.segments[-1].base_offset
        for offset in range(min(end, self.log.high_watermark)):
            if self.appended[offset][1] is None:
                self.first_cleaned_at.setdefault(offset, self.now_ms)
        times = {"now_ms": self.now_ms, "delete_retention_ms": DELETE_RETENTION_MS}
        return clean(self.log, self.first_dirty, keys=keys, marked=marked, **times)

    def reopen(self, *, lossy: bool) -> None:
        """Crash, and open the log again, with the checkpoints of its last flush."""
        log = self.log
        self.files.crash(lossy=lossy)
        self.log = open_log(self.files, config=CONFIG, recovery_point=log.recovery_point, high_watermark=log.recovery_point)
        assert self.log.corrupt_at is None
        assert self.log.log_end_offset >= log.recovery_point
        self.forget_from(self.log.log_end_offset)

    def forget_from(self, end: int) -> None:
        del self.appended[end:]
        self.first_dirty = min(self.first_dirty, end)
        states = {p.producer_id: p.last_sequence + 1 for p in self.log.producers.describe()}
        self.sequences = {producer: states.get(producer, 0) for producer in self.sequences}
        self.first_cleaned_at = {offset: at for offset, at in self.first_cleaned_at.items() if offset < end}

    def check(self) -> None:
        found = records(self.log)
        for record in found:
            assert (record.key, record.value, record.timestamp_ms) == self.appended[record.offset]
        offsets = {record.offset for record in found}
        newest = {key: offset for offset, (key, _, _) in enumerate(self.appended) if key is not None}
        for offset in newest.values():
            horizon = self.first_cleaned_at.get(offset, self.now_ms) + DELETE_RETENTION_MS
            may_be_gone = self.appended[offset][1] is None and horizon <= self.now_ms
            assert offset in offsets or may_be_gone, f"the newest record of {self.appended[offset][0]!r} is lost"

    def check_cleaned(self, end: int) -> None:
        """Check that no record below `end` has a newer one of its key below `end`, and that none is without a key."""
        newest = {key: offset for offset, (key, _, _) in enumerate(self.appended[:end])}
        for record in records(self.log):
            if record.offset < end:
                assert record.key is not None
                assert newest[record.key] == record.offset


ROWS = st.lists(
    st.tuples(st.none() | st.sampled_from([b"k%d" % n for n in range(12)]), st.none() | st.binary(max_size=90)),
    min_size=1,
    max_size=6,
)


class CleanedLog(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.model = Model(seed)

    @rule(batches=st.lists(ROWS, min_size=1, max_size=6), codec=st.sampled_from(Codec), producer_id=st.integers(-2, 1))
    def append(self, batches: list[Any], codec: Codec, producer_id: int) -> None:
        for rows in batches:
            self.model.append(rows, codec, producer_id)

    @rule()
    def commit_and_roll(self) -> None:
        self.model.log.roll(NOW_MS)
        self.model.log.flush()
        self.model.log.update_high_watermark(self.model.log.log_end_offset)

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000]))
    def wait(self, ms: int) -> None:
        self.model.now_ms += ms

    @rule(keys=st.sampled_from([1, 2, 5, 1009]), marked=st.sampled_from([0, 7, 1009]))
    def clean(self, keys: int, marked: int) -> None:
        cleaned = self.model.clean(keys, marked)
        assert cleaned.next_dirty >= self.model.first_dirty
        self.model.first_dirty = cleaned.next_dirty
        self.model.check_cleaned(cleaned.next_dirty)

    @rule(keys=st.sampled_from([1, 5, 1009]), operations=st.integers(0, 40), lossy=st.booleans())
    def crash_in_cleaning(self, keys: int, operations: int, lossy: bool) -> None:
        self.model.log.flush()
        self.model.files.left = operations
        try:
            self.model.clean(keys)
        except PowerCut:
            pass
        self.model.reopen(lossy=lossy)

    @rule(operations=st.integers(0, 40), lossy=st.booleans())
    def crash_in_cleaning_and_again_in_recovery(self, operations: int, lossy: bool) -> None:
        model = self.model
        model.log.flush()
        model.files.left = operations
        try:
            model.clean(1009)
        except PowerCut:
            pass
        model.files.crash(lossy=lossy)
        model.files.left = operations % 7
        try:
            open_log(model.files, config=CONFIG, recovery_point=model.log.recovery_point)
        except PowerCut:
            pass
        model.reopen(lossy=lossy)

    @rule(lossy=st.booleans())
    def crash(self, lossy: bool) -> None:
        self.model.reopen(lossy=lossy)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        """Truncate the log, but not below the high watermark."""
        log = self.model.log
        log.truncate_to(max(log.high_watermark, log.log_end_offset - back))
        self.model.forget_from(log.log_end_offset)

    @rule()
    def restart(self) -> None:
        log = self.model.log
        log.close()
        end, watermark = log.log_end_offset, log.high_watermark
        self.model.log = open_log(self.model.files, clean=True, config=CONFIG, recovery_point=end, high_watermark=watermark)
        assert self.model.log.log_end_offset == end

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "model"):
            self.model.log.tail.clear()
            self.model.check()


TestCleanedLog = CleanedLog.TestCase
TestCleanedLog.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def _prepared(seed: int) -> Model:
    """Six segments of which one group becomes one, with producers, tombstones and compression."""
    model, random = Model(seed), Random(seed)
    for n in range(12):
        rows = [(b"k%d" % random.randrange(6), random.choice([None, b"v" * 20])) for _ in range(4)]
        model.append(rows, Codec(n % 5), n % 3 - 1)
        if n % 2:
            model.log.roll(NOW_MS)
    model.log.flush()
    model.log.update_high_watermark(model.log.log_end_offset)
    return model


@pytest.mark.parametrize("lossy", [True, False])
def test_crash_at_every_operation_leaves_the_old_or_the_new_log(lossy: bool) -> None:
    whole = _prepared(1)
    old = read_all(whole.log)
    before = whole.files.operations
    whole.clean(1009)
    operations = whole.files.operations - before
    whole.log.tail.clear()
    new = read_all(whole.log)
    assert operations > 20
    assert len(new) < len(old)
    seen = set()
    for at in range(operations):
        for seed in range(4):
            model = _prepared(1)
            model.files._random.seed(seed)
            model.files.left = at
            with pytest.raises(PowerCut):
                model.clean(1009)
            model.reopen(lossy=lossy)
            model.check()
            left = read_all(model.log)
            assert left in (old, new)
            seen.add(left == new)
            assert not [n for n in model.files.list(DIR) if n.endswith((".cleaned", ".swap", ".deleted"))]
            assert {p.producer_id for p in model.log.producers.describe()} == {0, 1}
    assert seen == {True, False}


def test_lost_new_segment_does_not_take_the_old_ones_along() -> None:
    """A disk that lies: it reports the new segment as fsynced, but damages it; the old segments are still there."""
    model = _prepared(1)
    old = read_all(model.log)
    model.files.fail_next("fsync", DIR, errno.EIO)
    with pytest.raises(DiskError):
        model.clean(1009)
    (swap,) = [name for name in model.files.list(DIR) if name.endswith(".swap")]
    model.files.flip_bit(f"{DIR}/{swap}", 8 * 100)
    model.reopen(lossy=False)
    assert read_all(model.log) == old
    assert all(read_header(each).record_count for each in old)


# -- the directory's checkpoints --------------------------------------------------------------------------------------


def open_cleaned(files: CountingFiles) -> tuple[LogDir, Log]:
    log_dir = LogDir.open(files, "data", node_id=1, cluster_id="c1", random=Random(1))
    return log_dir, log_dir.open_log("orders", 0, TOPIC_ID, CONFIG, NOW_MS)


def _prepared_dir() -> tuple[CountingFiles, LogDir, Log]:
    """Segments with values, tombstones and newer values, of which one cleaning has set the delete horizons."""
    files, random = CountingFiles(Random(1)), Random(2)
    log_dir, log = open_cleaned(files)
    for n in range(16):
        rows = [(b"k%d" % random.randrange(12), random.choice([None, b"v" * 60])) for _ in range(5)]
        log.append_as_leader(keyed(rows, timestamp_ms=NOW_MS, codec=Codec(n % 5)), 0, NOW_MS)
    log.roll(NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    clean(log, delete_retention_ms=DELETE_RETENTION_MS, save=log_dir.cleaner_checkpoint().write)
    log.append_as_leader(keyed([(b"k0", b"newest"), (b"k1", None)]), 0, NOW_MS)
    log.roll(NOW_MS)
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    log_dir.checkpoint_all()
    return files, log_dir, log


def _clean_and_checkpoint(log_dir: LogDir, log: Log) -> None:
    """Clean the log in the order of the broker's cleaner, without threads."""
    cleaned = clean(
        log,
        log.first_dirty_offset,
        now_ms=NOW_MS + 2 * DELETE_RETENTION_MS,
        delete_retention_ms=DELETE_RETENTION_MS,
        save=lambda: log_dir.cleaner_checkpoint().write(),
    )
    log.first_dirty_offset = cleaned.next_dirty
    log_dir.cleaner_checkpoint().write()


@pytest.mark.parametrize("lossy", [True, False])
def test_crash_at_every_operation_leaves_checkpoints_that_hold(lossy: bool) -> None:
    """A removed tombstone lies below the bound, whatever the crash has left, and the log has no older value of its key. A first
    dirty offset that survives is true: below it, no record is superseded."""
    files, log_dir, log = _prepared_dir()
    before = [(r.offset, r.key, r.value) for r in records(log)]
    old, count = read_all(log), files.operations
    _clean_and_checkpoint(log_dir, log)
    operations = files.operations - count
    log.tail.clear()
    new = read_all(log)
    bound, dirty = log.tombstones_removed_below, log.first_dirty_offset
    assert bound > 0
    assert dirty == log.segments[-1].base_offset
    seen = set()
    for at in range(operations):
        for seed in range(3):
            files, log_dir, log = _prepared_dir()
            files._random.seed(seed)
            files.left = at
            with pytest.raises(PowerCut):
                _clean_and_checkpoint(log_dir, log)
            files.crash(lossy=lossy)
            log_dir, log = open_cleaned(files)
            left = read_all(log)
            assert left in (old, new)
            offsets = {record.offset for record in records(log)}
            gone = [(offset, key) for offset, key, value in before if value is None and offset not in offsets]
            newest = {key: offset for offset, key, _ in before}
            for offset, key in gone:
                if newest[key] == offset:
                    assert offset < log.tombstones_removed_below
                assert not [each for each, k, _ in before if k == key and each < offset and each in offsets]
            assert log.tombstones_removed_below in (0, bound)
            assert log.first_dirty_offset in (0, dirty)
            assert log.first_dirty_offset == 0 or left == new
            assert not [n for n in files.list(log.dir) if n.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
            seen.add((left == new, log.tombstones_removed_below > 0, log.first_dirty_offset > 0))
    assert (False, False, False) in seen
    assert (False, True, False) in seen, "the bound is durable before the tombstone vanishes"
    assert (True, True, False) in seen
    assert {each for each in seen if each[0]} <= {(True, True, False), (True, True, True)}


def test_unfinished_segment_beside_one_that_replaces_others_is_dropped() -> None:
    """The cleaner writes the next segment while no other file of its group is on the disk; the broker dies when both exist."""
    whole = _prepared(1)
    whole.clean(1009)
    whole.log.tail.clear()
    new = read_all(whole.log)
    for suffix in (".log", ".index", ".timeindex"):
        model = _prepared(1)
        model.files.fail_next("fsync", DIR, errno.EIO)
        with pytest.raises(DiskError):
            model.clean(1009)
        swap = next(name for name in model.files.list(DIR) if name.endswith(".swap"))
        base = int(swap[:20])
        for other in (base, base + 4):
            model.files.write(f"{DIR}/{other:020d}{suffix}.cleaned", b"half of a segm")
        model.reopen(lossy=False)
        assert read_all(model.log) == new
        assert not [name for name in model.files.list(DIR) if name.endswith((".cleaned", ".swap", ".deleted"))]
