"""Replays without Spark: the plan, the speed limit, the progress, and the order of the rows of a lake."""

from __future__ import annotations

import json
import queue
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.consumer.records import TopicPartition
from strandline.client.producer.partitioner import partition_for_key
from strandline.pipeline.errors import DataLoss, RowsDiffer
from strandline.pipeline.jobs import replay_task, replay_watch
from strandline.pipeline.jobs.replay import _check_same, ranges_of
from strandline.pipeline.jobs.replay_pace import Pace, dealt
from strandline.pipeline.jobs.replay_plan import Checkpoint, Plan, chosen_place
from strandline.pipeline.jobs.replay_task import HEADERS, LAKE_ROWS, LakeRange, records_of
from strandline.pipeline.options import WriteOptions, read_options
from strandline.pipeline.planning import Range
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster

ZERO = TopicPartition("orders", 0)
PLAN = Plan(
    name="march",
    asked={"topic": "orders", "to": "again", "lake": None},
    place="key",
    count=3,
    ranges=(Range("orders", 0, 5, 9, 2, b"\x01\xff"), Range("orders", 1, 0, 7)),
    begun_ms=1,
)


def test_plan_is_read_as_written(tmp_path: Path) -> None:
    """With another plan, the second run would write other rows than the first."""
    checkpoint = Checkpoint(tmp_path / "new")
    assert checkpoint.plan() is None
    with checkpoint.at_work():
        checkpoint.write_plan(PLAN)
    assert checkpoint.plan() == PLAN


def test_plan_of_an_earlier_release_has_no_topic_id(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write_plan(PLAN)
    document = json.loads((tmp_path / "plan.json").read_text())
    for each in document["ranges"]:
        del each["topic_id"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert checkpoint.plan() == replace(PLAN, ranges=(Range("orders", 0, 5, 9, 2), Range("orders", 1, 0, 7)))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"v": 2}', '{"v": 1, "asked": {"topic": "orders"}, "name": "x"}'])
def test_damaged_plan_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json"):
        Checkpoint(tmp_path).plan()


def test_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    with (
        Checkpoint(tmp_path).at_work(),
        pytest.raises(UsageError, match="another run of the replay"),
        Checkpoint(tmp_path).at_work(),
    ):
        pass


def test_partition_stays_if_the_target_has_it() -> None:
    ranges = [Range("orders", 0, 0, 1), Range("orders", 3, 0, 1)]
    assert (chosen_place("auto", ranges, 4), chosen_place("auto", ranges, 3), chosen_place("key", ranges, 4)) == (
        "same",
        "key",
        "key",
    )
    with pytest.raises(UsageError, match="the target has 3 partitions, but there are records of partition 3"):
        chosen_place("same", ranges, 3)


def test_records_without_a_key_stay_together() -> None:
    assert PLAN.target_partition(7, b"alice") == partition_for_key(b"alice", 3)
    assert PLAN.target_partition(7, None) == 1
    assert replace(PLAN, place="same").target_partition(7, b"alice") == 7


# -- the pace ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 100_000), st.floats(0, 3)), min_size=1, max_size=50))
def test_limit_holds_in_every_interval(pieces: list[tuple[int, int, float]]) -> None:
    """Stalls between writes must not be followed by bursts."""
    pace, now, written = Pace(records_per_s=100, bytes_per_s=10_000), 0.0, []
    for records, size, stall_s in pieces:
        written.append((now, records, size))
        now += pace.wait_s(records, size, now) + stall_s
    for first in range(len(written)):
        for last in range(first, len(written)):
            seconds = written[last][0] - written[first][0]
            assert sum(records for _, records, _ in written[first:last]) <= seconds * 100 + 1e-6
            assert sum(size for _, _, size in written[first:last]) <= seconds * 10_000 + 1e-3


def test_slow_replay_writes_in_small_steps() -> None:
    assert (Pace(records_per_s=50).step(10_000), Pace(records_per_s=1).step(10_000), Pace().step(10_000)) == (5, 1, 10_000)
    assert Pace().wait_s(10**6, 10**9, 5.0) == 0.0


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 10_000), min_size=1), st.integers(1, 8))
def test_work_is_distributed_evenly_to_the_slots(sizes: dict[int, int], hands: int) -> None:
    tasks = dealt(sizes, hands)
    assert len(tasks) == min(hands, len(sizes))
    assert sorted(piece for task in tasks for piece in task) == sorted(sizes)
    loads = [sum(sizes[piece] for piece in task) for task in tasks]
    assert max(loads) - min(loads) <= max(sizes.values())


def test_shares_of_all_tasks_add_up_to_the_limit() -> None:
    whole = Pace(records_per_s=90, bytes_per_s=900)
    shares = [whole.share(part) for part in (1 / 2, 1 / 3, 1 / 6)]
    assert sum(pace.records_per_s or 0 for pace in shares) == pytest.approx(90)
    assert sum(pace.bytes_per_s or 0 for pace in shares) == pytest.approx(900)


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_the_number_of_rows_in_the_target(log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of earlier runs count, and rows of other producers do not. The name of another replay may begin with that of this
    one."""
    monkeypatch.setattr(replay_watch, "REPORT_EVERY_S", 0.01)
    plan = replace(PLAN, asked={**PLAN.asked, "to": log.create_topic(partitions=PLAN.count)})
    other = replace(plan, name=f"{plan.name}/second").producer_name(0)

    async def write() -> None:
        for name, count in ((plan.producer_name(0), 4), (plan.producer_name(1), 3), ("another", 9), (other, 9)):
            async with log.cluster.producer(producer_name=name) as producer:
                for number in range(count):
                    await producer.send_and_wait(plan.to, b"v", partition=number % plan.count)

    log.run(write())
    counts = queue.Queue[int]()
    with replay_watch.watching({"bootstrap_servers": log.bootstrap_servers}, plan, counts.put):
        assert counts.get(timeout=30) == 7


# -- a run that continues -------------------------------------------------------------------------------------------


def test_options_of_a_later_run_may_have_another_case() -> None:
    """Spark accepts the names of options in any case."""
    checkpoint, plan = Checkpoint("folder"), replace(PLAN, asked={"options": {"startingTimestamp": "5"}})

    def check(options: dict[str, str]) -> None:
        _check_same(checkpoint, plan, Mock(words={"options": options}), None)

    check({"STARTINGTIMESTAMP": "5"})
    for other in ({"startingTimestamp": "6"}, {}):
        with pytest.raises(UsageError, match=r"was started with options = \{'startingTimestamp': '5'\}, not"):
            check(other)


@dataclass(frozen=True)
class Rows:
    """A source with records of these numbers."""

    numbers: tuple[int, ...]
    range: Range = Range("orders", 0, 0, 20)  # noqa: RUF009 - it is frozen

    def read(self) -> Iterator[pyarrow.RecordBatch]:
        texts = [b"%d" % n for n in self.numbers]
        headers = [[{"key": "n", "value": text}] if n % 2 else None for n, text in zip(self.numbers, texts, strict=True)]
        columns = {"offset": self.numbers, "key": [b"k"] * len(texts), "value": texts, "timestamp": self.numbers}
        yield pyarrow.RecordBatch.from_pydict({**columns, "headers": headers}, schema=LAKE_ROWS)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [(tuple(range(12)), None), (tuple(range(2, 12)), "other records"), ((0, 1), "fewer records")],
    ids=["same", "compacted", "deleted"],
)
def test_changed_source_is_an_error(log: ThreadedCluster, numbers: tuple[int, ...], message: str | None) -> None:
    """A run that continues skips as many records as the target has. If compaction removed some of them from the source, it would
    skip records that no run wrote."""
    plan = replace(PLAN, name=log.create_topic(), place="same", asked={**PLAN.asked, "to": log.create_topic(partitions=1)})
    options = WriteOptions(client={"bootstrap_servers": log.bootstrap_servers})

    def run(*numbers: int) -> None:
        for _ in replay_task.ReplayTask(plan, [Rows(numbers)], options, Pace()).run():  # type: ignore[list-item]
            pass

    run(*range(5))
    if message is None:
        run(*numbers)
    else:
        with pytest.raises(RowsDiffer, match=f"partition 0 has {message} than an earlier run wrote"):
            run(*numbers)
    expected = range(5) if message else numbers
    assert [int(r.value or b"") for r in log.read_all(plan.to)] == list(expected)


# -- from where to where ----------------------------------------------------------------------------------------------


def ranges(options: dict[str, str]) -> list[Range]:
    written = read_options({"bootstrap.servers": "h:1", "subscribe": "orders", **options}, is_stream=False)
    return ranges_of(written, lambda times: {ZERO: 12 if times[ZERO] < 1000 else None}, {ZERO: 10}, {ZERO: 20})


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({}, 10, 20),
        ({"startingOffsets": '{"orders": {"0": 15}}', "endingOffsets": '{"orders": {"0": 17}}'}, 15, 17),
        ({"startingTimestamp": "500"}, 12, 20),
        ({"endingTimestamp": "500"}, 10, 12),
        ({"endingTimestamp": "1000"}, 10, 20),
        ({"startingOffsets": '{"orders": {"0": 3}}', "failOnDataLoss": "false"}, 10, 20),
        ({"startingOffsets": '{"orders": {"0": 15}}', "endingTimestamp": "500"}, 15, 15),
    ],
)
def test_range_follows_the_options(options: dict[str, str], start: int, end: int) -> None:
    assert ranges(options) == [Range("orders", 0, start, end)]


def test_deleted_start_offset_is_data_loss() -> None:
    with pytest.raises(DataLoss, match="the start offset 3 of orders-0 is not available: there are 10 to 20"):
        ranges({"startingOffsets": '{"orders": {"0": 3}}'})


# -- a lake -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 7))
def test_lake_is_read_in_the_order_of_the_log(dates: list[int], rows: int) -> None:
    """If timestamps are out of order, the files of several dates have alternating offsets. A run that continues relies on the
    order of the log."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_task, "ROWS", rows)
        files = []
        for date in sorted(set(dates)):
            offsets = [offset for offset, of in enumerate(dates) if of == date]
            columns = {"offset": offsets, "key": [b"k"] * len(offsets), "value": [b"%d" % n for n in offsets]}
            table = pyarrow.table({**columns, "timestamp": pyarrow.array(offsets, LAKE_ROWS.field("timestamp").type)})
            if date % 2:
                headers = pyarrow.array([[{"key": "n", "value": b"%d" % n}] for n in offsets], HEADERS.type)
                table = table.append_column("headers", headers)
            pyarrow.parquet.write_table(table, f"{folder}/{date}.parquet", row_group_size=5)
            files.append((offsets[0], f"{folder}/{date}.parquet"))
        source = LakeRange(Range("orders", 0, 2, len(dates) - 2), tuple(sorted(files)))
        found = [record for batch in source.read() for record in records_of(batch)]
    assert [int(record.value or b"") for record in found] == list(range(2, len(dates) - 2))
    assert all(
        (record.headers or []) == ([("n", record.value)] if dates[int(record.value or b"")] % 2 else []) for record in found
    )
