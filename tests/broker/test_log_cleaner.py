"""The log cleaner of a broker: which log comes next, and what ends a round early."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld, config, remove_topic
from structlog.testing import capture_logs
from waiting import until

from strandline.broker.log_cleaner.choice import assess, choose
from strandline.broker.log_cleaner.metrics import CleanerMetrics
from strandline.broker.log_cleaner.runner import IDLE_SLICE_BYTES, NO_ROOM_S, PAUSE_S, SLICE_BYTES, CleanerSettings, LogCleaner
from strandline.broker.log_cleaner.throttle import RequestLoad, Throttle
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.storage.log.log import Log

DAY_MS = 86_400_000
OTHER: TopicIdPartition = (b"topic-id-number2", 0)
Work = Callable[[], None]


class Slices:
    """Runs each slice at once. Calls `action` before slice number `at`."""

    def __init__(self) -> None:
        self.count = 0
        self.at = -1
        self.action: Callable[[], object] = lambda: None

    def __call__(self, work: Work, then: Work) -> None:
        if self.count == self.at:
            self.action()
        self.count += 1
        work()
        then()


class Bench:
    """One broker with a compacted topic and a cleaner without threads."""

    def __init__(self, settings: CleanerSettings | None = None, **configs: Any) -> None:
        self.world = ReplicaWorld()
        self.world.topic(replicas=(1,), **{"cleanup_policy": "compact", "segment_bytes": 2000, **configs})
        self.node: Node = self.world[1]
        self.slices = Slices()
        self.removed: list[str] = []
        self.requests_served = 0
        self.now_ms = NOW_MS
        self.now = 0.0
        manager = self.node.manager
        self.cleaner = LogCleaner(
            self.node.log_dirs,
            manager.directory,
            manager.failures,
            settings or CleanerSettings(),
            files=self.node.files,
            run_blocking=self.slices,
            remove_later=lambda log, paths: self.removed.extend(paths),
            apply_retention=lambda log: self.removed.extend(log.delete_old_segments(self.now_ms)),
            wall_clock_ms=lambda: self.now_ms,
            stopwatch=lambda: self.now,
            requests_served=lambda: self.requests_served,
        )

    @property
    def log(self) -> Log:
        return self.node.p.log

    def write(self, *values: bytes | None, key: bytes = b"k", timestamp_ms: int = NOW_MS, to: TopicIdPartition = P) -> None:
        """Write each value into a closed segment of its own."""
        log = self.node.manager.directory.partitions[to].log
        for value in values:
            self.node.produce(bytearray(encode_batch([(key, value, [], timestamp_ms)])), acks=1, key=to)
            log.roll(NOW_MS)
            log.update_high_watermark(log.log_end_offset)

    def records(self) -> list[tuple[int, bytes | None]]:
        data = b"".join(self.log.read(self.log.log_start_offset, 1 << 20, self.log.log_end_offset).buffers)
        return [(record.offset, record.value) for record in iter_records(data)]

    async def clean(self) -> bool | None:
        """Run one round on the log that is due. Returns None if no log is due."""
        found = self.cleaner._choose()
        return None if found is None else await self.cleaner._clean(0, found)

    def unfinished(self) -> list[str]:
        return [name for name in self.node.files.list(self.log.dir) if name.endswith((".cleaned", ".swap"))]


# -- choice -----------------------------------------------------------------------------------------------------------


def test_log_is_due_above_the_dirty_ratio() -> None:
    bench = Bench(min_cleanable_dirty_ratio=0.5)
    bench.write(b"1", b"2", b"3", b"4")
    bench.log.first_dirty_offset = 2
    found = assess(P, bench.log, NOW_MS)
    assert (found.first_dirty, found.dirty_ratio, found.is_due) == (2, 0.5, False), "as in Kafka, more than the ratio"
    bench.write(b"5")
    assert assess(P, bench.log, NOW_MS).is_due


def test_first_dirty_offset_outside_the_log_counts_as_the_start() -> None:
    bench = Bench()
    bench.write(b"1", b"2")
    bench.log.first_dirty_offset = 99
    assert assess(P, bench.log, NOW_MS).first_dirty == 0


def test_young_segments_are_left_out() -> None:
    bench = Bench(min_compaction_lag_ms=1000, max_compaction_lag_ms=10_000)
    bench.write(b"1", timestamp_ms=NOW_MS - 2000)
    bench.write(b"2", timestamp_ms=NOW_MS - 500)
    bench.write(b"3", timestamp_ms=NOW_MS - 2000)
    assert assess(P, bench.log, NOW_MS).end == 1
    assert assess(P, bench.log, NOW_MS + 500).end == 3


def test_overdue_log_is_due_whatever_its_ratio_and_comes_before_dirtier_ones() -> None:
    bench = Bench(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    bench.write(b"1", timestamp_ms=NOW_MS - 900)
    assert not assess(P, bench.log, NOW_MS).is_due
    late = assess(P, bench.log, NOW_MS + 200)
    assert (late.overdue_ms, late.is_due) == (100, True)
    dirtier = late._replace(overdue_ms=0, log=Bench(min_cleanable_dirty_ratio=0.1).log, key=(TOPIC, 1), dirty_bytes=10**9)
    assert choose([dirtier, late]) is late
    later = late._replace(overdue_ms=200, key=(TOPIC, 2))
    assert choose([later, late]) is later
    assert choose([]) is None


def test_log_whose_round_was_cut_short_comes_first() -> None:
    """Replicas that copy it wait until it is clean beyond its removed tombstones."""
    bench = Bench(min_cleanable_dirty_ratio=1.0)
    bench.write(b"1", b"2")
    bench.log.first_dirty_offset = 1
    assert not assess(P, bench.log, NOW_MS).is_due
    bench.log.tombstones_removed_below = 2
    assert assess(P, bench.log, NOW_MS).is_due


def test_throttle_keeps_the_rate_of_all_steps_together() -> None:
    throttle = Throttle(1000)
    assert throttle.delay_s(500, now=10.0) == pytest.approx(0.5)
    assert throttle.delay_s(500, now=10.0) == pytest.approx(1.0)
    assert throttle.delay_s(100, now=20.0) == pytest.approx(0.1), "time without work earns nothing"


def test_broker_is_busy_from_a_few_requests_until_a_moment_after_the_last() -> None:
    load = RequestLoad()
    assert not load.is_busy(0, now=5.0)
    assert not load.is_busy(1, now=5.0), "one request"
    assert load.is_busy(500, now=5.1)
    assert load.is_busy(500, now=5.15)
    assert not load.is_busy(500, now=5.21)


def test_fetches_of_waiting_followers_leave_a_broker_idle() -> None:
    load = RequestLoad()
    assert not any(load.is_busy(int(second * 20), now=second) for second in [tick / 1000 for tick in range(5000)])


def test_falling_number_of_requests_is_no_load() -> None:
    load = RequestLoad()
    load.is_busy(1000, now=1.0)
    assert not load.is_busy(10, now=2.0), "a fetcher has ended with its counter"
    assert load.is_busy(12, now=2.0)


# -- rounds -----------------------------------------------------------------------------------------------------------


async def test_round_keeps_the_newest_value_and_remembers_where_it_ended() -> None:
    bench = Bench(file_delete_delay_ms=0)
    bench.write(b"1", b"2", b"3")
    assert await bench.clean() is True
    assert bench.records() == [(2, b"3")]
    assert bench.log.first_dirty_offset == 3
    assert await bench.clean() is None
    assert len(bench.removed) == 11, "log and indexes of three segments, and the producer snapshots of two"
    assert bench.node.files.read("/data/cleaner-offset-checkpoint") == b"0\n1\norders 0 3\n"


BATCHES = 96
"""Batches of half a small slice each: more than the first slice takes, which is large because no request was sent before it."""
FLUSH_AND_CHECKPOINTS = 3
"""The thread also flushes the log, and writes the checkpoints of the cleaner before the first replacement and after the round."""


async def _slices_and_pauses(requests_per_slice: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[float]]:
    bench = Bench(segment_bytes=1 << 20)
    value = bytes(SLICE_BYTES // 2)
    for _ in range(BATCHES):
        bench.node.produce(bytearray(encode_batch([(b"k", value, [], NOW_MS)])), acks=1)
    bench.log.roll(NOW_MS)
    bench.log.update_high_watermark(bench.log.log_end_offset)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def count_requests(work: Work, then: Work) -> None:
        bench.requests_served += requests_per_slice
        bench.slices(work, then)

    monkeypatch.setattr(bench.cleaner, "_pause", pause)
    monkeypatch.setattr(bench.cleaner, "_run_blocking", count_requests)
    assert await bench.clean() is True
    return bench.slices.count, pauses


async def test_idle_broker_cleans_in_large_slices_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slices, pauses = await _slices_and_pauses(0, monkeypatch)
    assert pauses == []
    assert slices - FLUSH_AND_CHECKPOINTS <= 2 * (BATCHES * (SLICE_BYTES // 2) // IDLE_SLICE_BYTES + 1)


async def test_broker_with_requests_cleans_in_small_slices_with_a_pause_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    slices, pauses = await _slices_and_pauses(3, monkeypatch)
    assert slices - FLUSH_AND_CHECKPOINTS <= len(pauses) <= slices
    assert len(pauses) >= 20
    assert set(pauses) == {PAUSE_S}


async def test_bound_of_removed_tombstones_is_durable_before_the_tombstone_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(delete_retention_ms=1000, min_cleanable_dirty_ratio=0)
    bench.write(b"1", None, b"other")
    bench.write(b"1", key=b"z")
    bench.write(None, key=b"z")
    await bench.clean()
    bench.now_ms += 2000
    bench.write(b"2", key=b"y")
    seen: list[bytes] = []
    replace = Log.replace_segments

    def spy(log: Log, *given: Any) -> list[str]:
        path = "/data/removed-tombstones-checkpoint"
        seen.append(bench.node.files.read(path) if bench.node.files.exists(path) else b"")
        return replace(log, *given)

    monkeypatch.setattr(Log, "replace_segments", spy)
    assert await bench.clean() is True
    assert seen[0] == b"0\n1\norders 0 5\n"
    assert bench.log.tombstones_removed_below == 5


async def test_superseding_records_are_durable_before_the_superseded_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a power cut, or a new leader, takes a record away that has superseded another one, the log shows that it lacks both."""
    bench = Bench()
    bench.write(b"1", b"2", b"3")
    files, seen = bench.node.files, []
    replace = Log.replace_segments

    def spy(log: Log, *given: Any) -> list[str]:
        seen.append((log.recovery_point, files.read("/data/superseding-records-checkpoint")))
        return replace(log, *given)

    monkeypatch.setattr(Log, "replace_segments", spy)
    assert bench.log.recovery_point == 0
    assert await bench.clean() is True
    end = bench.log.first_dirty_offset
    assert seen[0] == (end, f"0\n1\norders 0 {end}\n".encode())
    assert bench.log.superseded_below == end


@pytest.mark.parametrize("change", ["truncated", "policy", "topic", "segments", "stop"])
@pytest.mark.parametrize("at", [0, 1])
async def test_round_ends_when_its_log_changes(change: str, at: int) -> None:
    bench = Bench()
    bench.write(b"1", b"2", b"3")
    log, world = bench.log, bench.world
    bench.slices.at = at
    bench.slices.action = {
        "truncated": lambda: log.truncate_to(2),
        "policy": lambda: world.change(config("orders", "cleanup.policy", "delete")),
        "topic": lambda: world.change(remove_topic()),
        "segments": lambda: (log.increment_log_start_offset(2), log.delete_old_segments(NOW_MS)),
        "stop": bench.cleaner.kill,
    }[change]
    with capture_logs() as lines:
        assert await bench.clean() is False
    assert [line["event"] for line in lines if line["event"].startswith("log_cleaner")] == ["log_cleaner.aborted"]
    assert log.first_dirty_offset == 0
    assert not bench.cleaner.uncleanable
    assert bench.node.manager.disk_error is None
    if change != "topic":
        assert not bench.unfinished()


@pytest.mark.parametrize("is_cut_short", [False, True])
async def test_retention_waits_for_the_end_of_the_round(is_cut_short: bool) -> None:
    """If retention deleted segments during a round, the round would be lost, and a log whose segments are often deleted would
    never be clean."""
    bench = Bench(cleanup_policy="compact,delete", retention_ms=1000)
    bench.write(b"1", b"2", b"3")
    seen: list[bool] = []
    bench.slices.at = 0
    bench.slices.action = lambda: (seen.append(bench.log.is_being_cleaned), is_cut_short and bench.log.truncate_to(2))
    bench.now_ms += 2000
    assert await bench.clean() is not is_cut_short
    assert seen == [True]
    assert not bench.log.is_being_cleaned
    assert bench.log.log_start_offset == bench.log.log_end_offset


async def test_round_that_ends_early_leaves_a_log_that_can_be_copied() -> None:
    """A replica that copies a log waits until the log is clean beyond its removed tombstones. If the topic is no longer
    compacted, no further round cleans it, so the round that ends early must record how far it came."""
    lacking = 0
    for at in range(1, 12):
        bench = Bench(delete_retention_ms=1000, min_cleanable_dirty_ratio=0)
        bench.write(b"live" * 400, key=b"first")
        for n in range(4):
            bench.write(b"old" * 200, None, key=b"%d" % n)
            bench.write(b"live" * 300, key=b"live %d" % n)
        await bench.clean()
        assert bench.log.tombstones_removed_below == 0
        bench.now_ms += 2000
        bench.log.first_dirty_offset = 1
        bench.slices.at = bench.slices.count + at
        bench.slices.action = lambda world=bench.world: world.change(config("orders", "cleanup.policy", "delete"))
        await bench.clean()
        below = bench.log.tombstones_removed_below
        lacking += 0 < below < bench.log.log_end_offset - 1
        assert bench.log.first_dirty_offset >= below, at
        assert not below or saved(bench, "cleaner-offset-checkpoint") >= saved(bench, "removed-tombstones-checkpoint") == below
    assert lacking > 1, "rounds that had removed some tombstones, and not all"


def saved(bench: Bench, name: str) -> int:
    return int(bench.node.files.read(f"/data/{name}").split()[-1])


async def test_round_ends_in_the_middle_of_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a low rate limit a pause may last for hours, and the operator may change the topic's policy meanwhile."""
    monkeypatch.setattr("strandline.broker.log_cleaner.runner.LOOK_S", 0.01)
    bench = Bench(CleanerSettings(io_max_bytes_per_second=0.001))
    bench.write(b"1", b"2", b"3")
    cleaning = asyncio.create_task(bench.clean())
    while not bench.slices.count:
        await asyncio.sleep(0)
    bench.world.change(config("orders", "cleanup.policy", "delete"))
    assert await asyncio.wait_for(cleaning, 5) is False


async def test_another_rate_ends_a_long_pause() -> None:
    bench = Bench(CleanerSettings(io_max_bytes_per_second=0.001))
    bench.write(b"1", b"2", b"3")
    cleaning = asyncio.create_task(bench.clean())
    while not bench.slices.count:
        await asyncio.sleep(0)
    bench.cleaner.use_settings(CleanerSettings())
    assert await asyncio.wait_for(cleaning, 10) is True


async def test_number_of_threads_follows_the_settings() -> None:
    bench = Bench()
    cleaner = bench.cleaner
    cleaner.use_settings(CleanerSettings(threads=3))
    assert not cleaner._tasks, "it was not started"
    cleaner.start()
    assert sorted(cleaner._tasks) == [0, 1, 2]
    for threads in (1, 2):
        cleaner.use_settings(CleanerSettings(threads=threads))
        await until(lambda n=threads: sorted(cleaner._tasks) == list(range(n)))
        assert cleaner.dead_threads == 0
    await asyncio.wait_for(cleaner.stop(), 10)
    cleaner.use_settings(CleanerSettings(threads=3))
    assert all(task.done() for task in cleaner._tasks.values())


async def test_another_backoff_applies_at_once() -> None:
    bench = Bench(CleanerSettings(backoff_ms=3_600_000))
    bench.cleaner.start()
    await until(lambda: bench.cleaner._wake._waiters)  # type: ignore[attr-defined]
    bench.write(b"1", b"2", b"3")
    bench.cleaner.use_settings(CleanerSettings(backoff_ms=3_600_001))
    await until(lambda: bench.records() == [(2, b"3")])
    await asyncio.wait_for(bench.cleaner.stop(), 10)


async def test_full_disk_ends_the_round_and_loses_nothing() -> None:
    bench = Bench()
    bench.write(b"1", b"2", b"3")
    before = bench.node.files.list(bench.log.dir)
    bench.node.files.fail_next("write", "*.cleaned", errno.ENOSPC)
    with capture_logs() as lines:
        assert await bench.clean() is False
    assert "log_cleaner.disk_full" in [line["event"] for line in lines]
    assert bench.node.files.list(bench.log.dir) == before
    assert bench.node.manager.disk_error is None
    assert await bench.clean() is True, "it is tried again"
    assert bench.records() == [(2, b"3")]


async def test_log_without_room_does_not_hold_up_the_others() -> None:
    """The dirtiest log is tried again until its disk has room. The others may be on another disk, or need less room."""
    bench = Bench()
    bench.world.topic(replicas=(1,), topic_id=OTHER[0], name="other", cleanup_policy="compact", segment_bytes="2000")
    bench.write(b"1", b"2", b"3")
    other = bench.node.manager.directory.partitions[OTHER].log
    bench.write(b"1", b"2", b"3", to=OTHER)
    bench.node.files.fail_next("write", f"{other.dir}/*.cleaned", errno.ENOSPC, times=2)
    assert await bench.clean() is False
    assert await bench.clean() is True
    assert bench.records() == [(2, b"3")]
    assert await bench.clean() is False, "no other log is due"
    assert await bench.clean() is True
    assert other.first_dirty_offset == 3


async def test_log_without_room_is_tried_again_although_another_one_is_always_due() -> None:
    """Its disk may have room by then, and under a steady load the cleaner may never be idle."""
    bench = Bench()
    bench.world.topic(replicas=(1,), topic_id=OTHER[0], name="other", cleanup_policy="compact", segment_bytes="2000")
    other = bench.node.manager.directory.partitions[OTHER].log
    bench.write(b"1", b"2", b"3", to=OTHER)
    bench.node.files.fail_next("write", f"{other.dir}/*.cleaned", errno.ENOSPC)
    assert await bench.clean() is False
    bench.write(b"1", b"2")
    bench.now += NO_ROOM_S
    assert await bench.clean() is True
    assert other.first_dirty_offset == 3


async def test_many_logs_without_room_do_not_hold_up_the_others() -> None:
    """Each failed round costs a pause of 15 seconds. A full disk may have more logs than can fail in a minute. The first of them
    must not be tried again before the logs of the other disks."""
    bench = Bench()
    bench.write(b"1", b"2", b"3")
    for number in range(2, 9):
        key = f"topic-id-number{number}".encode(), 0
        bench.world.topic(replicas=(1,), topic_id=key[0], name=f"full-{number}", cleanup_policy="compact", segment_bytes="2000")
        bench.write(b"1", b"2", to=key)
    bench.node.files.fail_next("write", "*full-*.cleaned", errno.ENOSPC, times=100)
    rounds = 0
    while bench.records() != [(2, b"3")] and rounds < 20:
        rounds += 1
        if await bench.clean() is not True:
            bench.now += bench.cleaner._settings.backoff_ms / 1000
    assert rounds < 20


async def test_logs_without_room_are_tried_again_in_turn() -> None:
    """The dirtiest one may need more room than its disk will ever have, while another one fits. After a failed attempt, the other
    logs have a minute; after a successful one, the next log without room is tried at once."""
    bench = Bench()
    full = [(f"topic-id-number{number}".encode(), 0) for number in (3, 2)]
    for key in full:
        bench.world.topic(
            replicas=(1,), topic_id=key[0], name=f"full-{key[0][-1]}", cleanup_policy="compact", segment_bytes="2000"
        )
        bench.write(b"1", b"2", to=key)
    bench.node.files.fail_next("write", "*.cleaned", errno.ENOSPC, times=3)
    tried = []
    for _ in range(3):
        bench.write(b"1", b"2")
        for _ in range(2):
            found = bench.cleaner._choose()
            assert found is not None
            tried.append((found.key, await bench.cleaner._clean(0, found)))
        bench.now += NO_ROOM_S
    first, second = full
    assert tried == [(first, False), (second, False), (first, False), (P, True), (second, True), (first, True)]


async def test_other_disk_error_takes_the_directory_offline() -> None:
    bench = Bench()
    bench.write(b"1", b"2", b"3")
    bench.node.files.fail_next("write", "*.cleaned", errno.EIO)
    assert await bench.clean() is False
    assert bench.node.manager.disk_error is not None


async def test_damaged_batch_makes_its_log_uncleanable_and_the_others_go_on() -> None:
    bench = Bench()
    bench.write(b"1", b"2", b"3")
    segment = bench.log.segments[1]
    bench.node.files.flip_bit(segment.path(".log"), 8 * (segment.size - 2))
    assert await bench.clean() is False
    assert bench.log.corrupt_at == 1
    (found,) = bench.cleaner.uncleanable_now()
    assert (found.topic, found.partition) == ("orders", 0)
    assert "offset 1 is damaged" in found.reason
    assert await bench.clean() is None, "not again and again"
    bench.log.truncate_to(1)
    assert bench.cleaner.uncleanable_now() == [], "a repair truncates the log"
    assert not bench.cleaner._is_uncleanable(P)


async def test_small_map_cleans_in_several_rounds() -> None:
    three_keys_and_their_marks = 24 * 3 + 4
    bench = Bench(
        CleanerSettings(dedupe_buffer_size=three_keys_and_their_marks, io_buffer_load_factor=1.0), min_cleanable_dirty_ratio=0
    )
    for n in range(8):
        bench.write(b"old", key=b"%d" % n)
    for n in range(8):
        bench.write(b"new", key=b"%d" % n)
    rounds = 0
    while await bench.clean():
        rounds += 1
    assert rounds == 6
    assert [value for _, value in bench.records()] == [b"new"] * 8


def test_removed_bytes_never_decrease() -> None:
    """A round that only adds delete horizons writes more than it reads. To Prometheus, a lower counter is a restart."""
    metrics = CleanerMetrics()
    metrics.on_cleaned(0, 1.0, 0.5, read=5000, written=1000)
    metrics.on_cleaned(0, 1.0, 0.5, read=1285, written=1549)
    assert metrics.bytes_removed == 4000
