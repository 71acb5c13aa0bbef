"""Cleaned logs: S47, and S57 to S62."""

from __future__ import annotations

import errno
import re
from functools import partial
from typing import Any

from strandline.client import TopicPartition
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest, ProduceResponse
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.storage.log.log import Log
from strandline.testing.simulation.kernel.disk_faults import Moment
from strandline.testing.simulation.scenarios.stage import Stage, scenario

BACKOFF_MS = 50
FOLDER = "/data/orders-0"

Row = tuple[str, str | None]
"""Key and value of a record; None deletes the key."""


async def _open(stage: Stage, *, min_insync: int = 2, settings: dict[str, Any] | None = None, **configs: str) -> None:
    """A compacted topic with about three records in a segment, which is cleaned as soon as a segment is closed."""
    usual: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_bytes": "300",
        "min_cleanable_dirty_ratio": "0",
        "file_delete_delay_ms": "0",
    }
    await stage.open(
        replicas=[1, 2, 3],
        min_insync=min_insync,
        settings={"log.cleaner.backoff.ms": BACKOFF_MS, **(settings or {})},
        **{**usual, **configs},
    )


async def _put(stage: Stage, *rows: Row, acks: int = -1, broker: int | None = None) -> int:
    """Write each record in a batch of its own; returns the last offset."""
    last = -1
    for key, value in rows:
        record: Any = (key.encode(), None if value is None else value.encode(), [], stage.world.machine.wall_clock_ms())
        partition = ProducePartition(stage.cluster.topic_id(stage.topic), 0)
        request = ProduceRequest(None, acks, 20_000, [partition], [])
        target = stage.leader() if broker is None else broker
        response: ProduceResponse = await stage.ask(target, apis.PRODUCE, request, [[encode_batch([record])]], 30_000)
        answer = response.partitions[0]
        if answer.error_code:
            stage.must(False, f"broker {target} accepts {key}={value} (it answers {ErrorCode(answer.error_code).name})")
        last = answer.base_offset
    return last


def _filling(count: int) -> list[Row]:
    """Records of one more key, which close the segments of the records before."""
    return [("filling", f"{n}") for n in range(count)]


def _log(stage: Stage, broker: int) -> Log:
    return stage.replica(broker).log


def _is_clean(stage: Stage, broker: int) -> bool:
    """Whether the cleaner has cleaned every segment that it may clean."""
    if not stage.has(broker):
        return False
    log = _log(stage, broker)
    return log.high_watermark == log.log_end_offset and log.first_dirty_offset >= log.segments[-1].base_offset


def _is_out(stage: Stage, broker: int) -> bool:
    return broker not in stage.isr()


def _values(stage: Stage, broker: int) -> dict[str, str]:
    """The last value of each key that is not deleted, for a reader that reads this broker's log from the beginning."""
    found: dict[str, str] = {}
    for record in iter_records(stage.log_bytes(broker)):
        key = (record.key or b"").decode()
        found.pop(key, None)
        if record.value is not None:
            found[key] = record.value.decode()
    return found


def _offsets(stage: Stage, broker: int) -> list[int]:
    return [record.offset for record in iter_records(stage.log_bytes(broker))]


async def _all_clean(stage: Stage, brokers: tuple[int, ...] = (1, 2, 3)) -> None:
    for broker in brokers:
        await stage.until(partial(_is_clean, stage, broker), what=f"broker {broker} has cleaned its log")


@scenario("S47", "A crash in each step of a swap", source="KAFKA-6264; LogLoaderTest")
async def s47(stage: Stage) -> None:
    """The cleaner writes a new segment, and puts it in the place of the old ones in a dozen steps. At whichever step the process
    dies, the next one finds the old segments or the new one: every offset is covered once, and the last value of each key is
    there."""
    await _open(stage)
    await _put(stage, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), *_filling(4))
    await _all_clean(stage)
    steps = await _steps_of_a_cleaning(stage, 2)
    kinds = {suffix.rpartition(".")[2] for _, suffix in steps}
    stage.must({"cleaned", "swap"} <= kinds, f"there are steps to die in: {steps}")
    for number, (operation, suffix) in enumerate(steps):
        moments: tuple[Moment, ...] = ("before", "half") if operation == "write" else ("before",)
        for moment in moments:
            stage.says(f"Broker 2 dies at step {number} of a cleaning: {operation} of {suffix or 'the directory'}, {moment}.")
            pattern = f"{FOLDER}/*{suffix}" if suffix else FOLDER
            stage.cluster.machines[2].files.crash_at(1, operation=operation, pattern=pattern, moment=moment)
            await _put(stage, ("a", f"{number} {moment}"), ("b", f"{number}"), *_filling(4))
            await stage.until(lambda: not stage.cluster.machines[2].is_up, what="broker 2 is dead")
            stage.start(2)
            await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.has(2), what="broker 2 is back")
            await _all_clean(stage)
            stage.must(_values(stage, 2) == _values(stage, 1), f"broker 2 has the last values: {_values(stage, 2)}")
            left = [path for path in stage.cluster.machines[2].files.contents(f"{FOLDER}/*") if _is_temporary(path)]
            stage.must(not left, f"nothing half-done is left: {left}")
    stage.must(_values(stage, 2)["c"] == "1", "a value that was written only once is there")


async def _steps_of_a_cleaning(stage: Stage, broker: int) -> list[tuple[str, str]]:
    """(operation, suffix of the path) of the steps of one cleaning, each once, in order. No suffix: the directory."""
    operations = stage.cluster.machines[broker].files.record()
    begin = len(operations)
    await _put(stage, ("a", "3"), ("b", "2"), *_filling(4))
    await _all_clean(stage)
    found: dict[tuple[str, str], None] = {}
    is_cleaning = False
    for operation, path in operations[begin:]:
        if not path.startswith(FOLDER):
            continue
        is_cleaning = is_cleaning or path.endswith(".cleaned")
        if is_cleaning and (_is_temporary(path) or (operation == "rename") or path == FOLDER):
            found[operation, re.sub(r".*/\d{20}", "", path.removeprefix(FOLDER))] = None
    return list(found)


def _is_temporary(path: str) -> bool:
    return path.endswith((".cleaned", ".swap"))


@scenario("S57", "Records are deleted up to the middle of a batch, and an empty follower joins", source="KAFKA-6975")
async def s57(stage: Stage) -> None:
    """The log of a new follower begins where the leader's begins, inside a batch. The first batch that it gets begins before
    that."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Two batches of ten records. Everything below offset 5 is deleted.")
    for first in (0, 10):
        await stage.produce(1, *(b"%d" % n for n in range(first, first + 10)))
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {20}, what="all replicas have HW 20")

    async def delete() -> int:
        async with stage.client.admin() as admin:
            place = TopicPartition("orders", 0)
            return int((await admin.delete_records({place: 5}))[place].low_watermark)

    low = await stage.client.run(delete())
    stage.must(low == 5, f"the low watermark is 5: {low}")
    for broker in (2, 3):
        stage.says(f"Broker {broker} gets an empty disk.")
        stage.crash(broker)
        await stage.until(partial(_is_out, stage, broker), what=f"broker {broker} is out of the ISR")
        stage.wipe(broker)
        stage.start(broker)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what=f"broker {broker} is back")
        log = _log(stage, broker)
        stage.must((log.log_start_offset, log.log_end_offset) == (5, 20), f"its log is {log!r}")
    stage.says("Broker 2 is restarted, and its log still begins at 5. Then broker 1 dies, and another broker leads.")
    await stage.stop(2)
    stage.start(2)
    await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.has(2), what="broker 2 is back")
    stage.must(_log(stage, 2).log_start_offset == 5, "its log begins at 5")
    stage.crash(1)
    await stage.until(lambda: stage.leader() in (2, 3) and stage.leads(stage.leader()), what="another leads")
    answer, _ = await stage.fetch(stage.leader(), 4)
    stage.must(answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "offset 4 is out of range")
    _, read = await stage.fetch(stage.leader(), 5)
    stage.must([offset for offset, _ in read] == list(range(5, 20)), f"a consumer reads from 5: {read}")
    stage.start(1)
    await stage.at_rest()


@scenario("S58", "A log is truncated while it is cleaned", source="LogCleaningAborted; KAFKA-3123")
async def s58(stage: Stage) -> None:
    """A cleaning began before a truncation, so the segments that it has read have changed. Its result is dropped."""
    await _open(stage, settings={"log.cleaner.io.max.bytes.per.second": 400})
    await _put(stage, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), *_filling(8))
    stage.says("Broker 1 leads and cleans its log, slowly. It appends two records that no follower gets, and is cut off.")
    held = stage.hold("Fetch", source=1, response=True)
    await _put(stage, ("a", "lost"), ("b", "lost"), acks=1)
    await stage.until(lambda: _cleans(stage, 1), what="broker 1 cleans its log")
    stage.cut(1)
    held.release()
    await stage.until(lambda: stage.leader() in (2, 3) and stage.leads(stage.leader()), what="another leads")
    await _put(stage, ("a", "3"), ("b", "2"))
    before = _log(stage, 1).truncations
    stage.says("Broker 1 returns, and truncates its log.")
    stage.mend(1)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 1 is back")
    stage.must(_log(stage, 1).truncations > before, "it has truncated its log")
    await _put(stage, *_filling(4))
    await _all_clean(stage)
    for broker in (1, 2, 3):
        found = _values(stage, broker)
        stage.must((found["a"], found["b"], found["c"]) == ("3", "2", "1"), f"broker {broker} has the last values: {found}")
    left = [path for path in stage.cluster.machines[1].files.contents(f"{FOLDER}/*") if _is_temporary(path)]
    stage.must(not left, f"nothing half-done is left: {left}")
    await stage.at_rest()


def _cleans(stage: Stage, broker: int) -> bool:
    server = stage.cluster.brokers.get(broker)
    return server is not None and bool(server.log_cleaner.in_progress)


@scenario("S59", "A deleted key must not reappear", source="redpanda-data/redpanda#26795")
async def s59(stage: Stage) -> None:
    """A follower is down for longer than tombstones are kept. It has the value; the leader no longer has the value or the
    tombstone. If the follower continued to fetch from its log end, it would keep the value forever, and serve it as a leader."""
    await _open(stage, min_insync=1, delete_retention_ms="100")
    stage.says("The key a has a value on all replicas. Then broker 3 dies.")
    await _put(stage, ("a", "1"), ("b", "1"))
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {2}, what="all replicas have HW 2")
    stage.crash(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")

    stage.says("a is deleted. The cleaners remove the value, and later the tombstone.")
    tombstone = await _put(stage, ("a", None))
    while any(tombstone in _offsets(stage, broker) for broker in (1, 2)):
        await _put(stage, *_filling(3))
        await stage.sleep(0.2)
    stage.must(_log(stage, 1).tombstones_removed_below > tombstone, "broker 1 reports that the tombstone is removed")

    stage.says("Broker 3 returns, joins the ISR, and is the last one alive.")
    stage.start(3)
    await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.has(3), what="broker 3 is back")
    stage.must("a" not in _values(stage, 3), f"broker 3 does not have the key: {_values(stage, 3)}")
    for broker in (1, 2):
        stage.crash(broker)
        await stage.until(partial(_is_out, stage, broker), what=f"broker {broker} is out")
    await stage.until(lambda: stage.leader() == 3 and stage.leads(3), what="broker 3 leads")
    _, read = await stage.fetch(3, 0)
    stage.must((0, b"1") not in read, f"a reader does not find the value that was deleted: {read}")
    stage.must(_values(stage, 3)["b"] == "1", "the other key is there")
    for broker in (1, 2):
        stage.start(broker)
    await stage.at_rest()


@scenario("S60", "The map of the cleaner is too small for the keys", source="KAFKA-2163")
async def s60(stage: Stage) -> None:
    """The map has room for a few dozen keys, and the log has more. Each round cleans as far as its map reaches, and removes
    nothing above that."""
    await _open(stage, settings={"log.cleaner.dedupe.buffer.size": 1024}, segment_bytes="4000")
    rows = [(f"k{n}", f"{n}") for n in range(120)]
    newer = [(f"k{n}", f"{n} again") for n in range(0, 120, 2)]
    gone: list[Row] = [(f"k{n}", None) for n in range(0, 120, 3)]
    await _put(stage, *rows, *newer, *gone, *_filling(60))
    await _all_clean(stage)
    expected = {key: value for key, value in {**dict(rows), **dict(newer), **dict(gone)}.items() if value is not None}
    for broker in (1, 2, 3):
        found = {key: value for key, value in _values(stage, broker).items() if key != "filling"}
        stage.must(found == expected, f"broker {broker} has the last value of {len(found)} of {len(expected)} keys")
        stage.must(len(_offsets(stage, broker)) < 280, "records were removed")
    await stage.at_rest()


@scenario("S61", "The disk is full while a log is cleaned", source="KAFKA-5413, KAFKA-7322")
async def s61(stage: Stage) -> None:
    """A cleaning needs space on the disk before it frees some. If there is none, the log stays as it is and the broker continues;
    no partly written file is left, which would take even more space."""
    await _open(stage)
    disk = stage.cluster.machines[2].files
    stage.says("There is no room for another segment on the disk of broker 2.")
    full = disk.fail("write", "*.cleaned", errno.ENOSPC)
    await _put(stage, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), *_filling(8))
    await _all_clean(stage, (1, 3))
    await stage.sleep(10 * BACKOFF_MS / 1000)
    stage.must(stage.cluster.machines[2].is_up and 2 in stage.isr(), "broker 2 keeps running")
    stage.must(_offsets(stage, 2) == list(range(12)), "its log is as it was")
    left = [path for path in disk.contents(f"{FOLDER}/*") if _is_temporary(path)]
    stage.must(not left, f"nothing half-done is left: {left}")
    stage.says("The operator frees disk space.")
    full.end()
    await _all_clean(stage)
    stage.must(_offsets(stage, 2) == _offsets(stage, 1), "broker 2 has cleaned its log")
    await stage.at_rest()


@scenario("S62", "A tombstone above the map of the cleaner", source="Kafka's Cleaner: offsets above map.latestOffset")
async def s62(stage: Stage) -> None:
    """A follower copies a value before its leader cleans, and the tombstone, whose delete horizon is set, afterwards. The map of
    the follower's cleaner ends before both. If that cleaner removed the tombstone for its age, the value would be visible
    again."""
    settings = {
        "log.cleaner.dedupe.buffer.size": 1024,
        "replica.lag.time.max.ms": 1000,
        "replica.fetch.max.bytes": 400,
        "log.cleaner.backoff.ms": 500,
    }
    await _open(stage, settings=settings, segment_bytes="4000", delete_retention_ms="100")
    stage.says("Forty keys, more than the map has room for, and then the key a. All replicas have them.")
    await _put(stage, *((f"k{n}", "1") for n in range(40)), ("a", "1"))
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {41}, what="all replicas have HW 41")
    stage.says("Broker 3 gets no more responses, and leaves the ISR. a is deleted, and brokers 1 and 2 clean their logs.")
    held = stage.hold("Fetch", target=3, response=True)
    tombstone = await _put(stage, ("b", "1"), ("a", None))
    await _put(stage, *_filling(20))
    await _all_clean(stage, (1, 2))
    stage.must(
        tombstone in _offsets(stage, 1) and 40 not in _offsets(stage, 1), "the value is removed, and its tombstone remains"
    )
    stage.must(40 in _offsets(stage, 3), "broker 3 has the value")
    stage.says("Broker 3 copies the rest, and cleans its log as far as its map reaches, then further.")
    held.release()
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 3 is back")
    await _put(stage, *_filling(40))
    await _all_clean(stage, (3,))
    stage.must("a" not in _values(stage, 3), f"the key has not reappeared: {_values(stage, 3)}")
    await stage.at_rest()
