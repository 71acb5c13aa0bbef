"""`packing.py`: every offset is read by exactly one task, and the same batch always has the same tasks."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.offsets import ReadPosition, from_json, to_json
from strandline.pipeline.options import read_options
from strandline.pipeline.packing import SMALL_OFFSETS, TASK_OFFSETS, TASKS, Packing, packed
from strandline.pipeline.planning import Range
from strandline.protocol.errors import UsageError

sizes = st.lists(st.integers(0, 60) | st.integers(0, 3 * TASK_OFFSETS), max_size=60)
packings = st.builds(
    Packing,
    st.integers(0, 20),
    st.none() | st.integers(20, 40),
    st.none() | st.integers(1_000, 2 * TASK_OFFSETS),
    st.integers(0, 1),
)


def ranges_of(sizes: list[int]) -> list[Range]:
    return [Range("orders", partition, 7, 7 + size) for partition, size in enumerate(sizes)]


@given(sizes, packings)
def test_tasks_have_every_offset_once_and_each_partition_in_order(sizes: list[int], packing: Packing) -> None:
    tasks = packed(ranges_of(sizes), packing)
    pieces = sorted((r.partition, r.start, r.end) for task in tasks for r in task)
    assert [(p, start) for p, start, _ in pieces if start == 7] == [(p, 7) for p, size in enumerate(sizes) if size]
    for (partition, _, end), (next_partition, start, _) in pairwise(pieces):
        assert start == (end if partition == next_partition else 7)
    assert {p: end for p, _, end in pieces} == {p: 7 + size for p, size in enumerate(sizes) if size}


@given(sizes, packings)
def test_task_has_at_most_one_range_of_a_partition(sizes: list[int], packing: Packing) -> None:
    """A consumer has one position per partition, so the task could not fetch both ranges at the same time."""
    for task in packed(ranges_of(sizes), packing):
        assert len({r.tp for r in task}) == len(task)
        assert list(task) == sorted(task, key=lambda r: r.tp)


@given(sizes, packings)
def test_limits_of_the_options_hold(sizes: list[int], packing: Packing) -> None:
    tasks = packed(ranges_of(sizes), packing)
    assert len(tasks) >= min(packing.min_tasks, sum(sizes))
    if packing.max_offsets is not None:
        assert all(sum(r.size for r in task) <= packing.max_offsets for task in tasks)
    elif packing.max_tasks is not None and packing.rule:
        assert len(tasks) <= packing.max_tasks


def test_many_small_ranges_share_few_tasks_of_similar_size() -> None:
    tasks = packed(ranges_of([2_000] * 100), Packing())
    assert len(tasks) == TASKS
    assert {sum(r.size for r in task) for task in tasks} == {24_000, 26_000}
    assert len(packed(ranges_of([40] * 100), Packing(max_tasks=2))) == 2
    assert len(packed(ranges_of([40] * 100), Packing(min_tasks=20))) == 20


def test_small_batch_has_one_task_per_10_000_offsets() -> None:
    """Four tasks of 500 rows each took 190 ms, one task of 2,000 rows took 80 ms."""
    assert [len(task) for task in packed(ranges_of([500] * 4), Packing())] == [4]
    assert [len(task) for task in packed(ranges_of([SMALL_OFFSETS // 2] * 4), Packing())] == [2, 2]
    assert [len(task) for task in packed(ranges_of([500] * 4), Packing(min_tasks=4))] == [1] * 4


def test_large_ranges_have_a_task_each() -> None:
    """Each large partition is read in parallel, as with Kafka's connector."""
    assert [len(task) for task in packed(ranges_of([TASK_OFFSETS] * 40), Packing())] == [1] * 40
    assert [len(task) for task in packed(ranges_of([SMALL_OFFSETS] * TASKS), Packing())] == [1] * TASKS


def test_large_range_is_not_delayed_by_small_ones() -> None:
    tasks = packed(ranges_of([900_000] + [10] * 30), Packing(max_tasks=4))
    assert [len(task) for task in tasks] == [1, 10, 10, 10]


# -- the same tasks again ---------------------------------------------------------------------------------------------


def options(**written: int) -> Packing:
    texts = {name: str(value) for name, value in written.items()}
    return read_options({"bootstrap.servers": "a:1", "subscribe": "orders", **texts}, is_stream=True).packing


@given(packings, packings)
def test_batch_keeps_its_packing_when_options_change(begun: Packing, now: Packing) -> None:
    """An exactly-once sink names its producers by task. With other tasks, rows would be skipped or written twice."""
    stored = json.loads(json.dumps(to_json({TopicPartition("orders", 0): ReadPosition(5)}, begun.to_json())))
    assert now.of_batch(stored) == begun
    assert from_json(stored) == {TopicPartition("orders", 0): ReadPosition(5)}


def test_batch_of_an_earlier_release_is_not_packed() -> None:
    """That release began the batch with one task per range, and some of these tasks may have written."""
    packing = options(minPartitions=20, maxPartitions=30, maxRecordsPerPartition=9).of_batch(to_json({}))
    assert packing == Packing(20, None, 9, rule=0)
    assert [len(task) for task in packed(ranges_of([1] * 100), packing)] == [1] * 100


def test_tasks_of_rule_1_do_not_change() -> None:
    """Checkpoints hold batches that were planned by rule 1. Another division needs a rule with a new number."""
    tasks = packed(ranges_of([5, 900, 20, 20, 300, 0, 7, 60_000, 20, 1, 1, 44_000]), Packing(rule=1))
    assert [[r.partition for r in task] for task in tasks] == [[0, 6, 9, 10], [1], [2], [3], [4], [7], [8], [11]]


@pytest.mark.parametrize("damaged", [7, [], {"rule": "1"}, {"rule": 1, "minPartitions": "x"}, {"rule": True}])
def test_damaged_packing_is_rejected(damaged: object) -> None:
    with pytest.raises(UsageError, match="does not say how a batch is divided into tasks"):
        Packing().of_batch({"packing": damaged})


def test_rule_of_a_newer_release_is_rejected() -> None:
    with pytest.raises(UsageError, match="by rule 2, and this release knows rules up to 1"):
        Packing().of_batch({"packing": {"rule": 2}})


def test_contradicting_options_are_rejected() -> None:
    assert options(minPartitions=3, maxPartitions=3) == Packing(3, 3)
    with pytest.raises(UsageError, match=r"option maxPartitions is 2, which is less than minPartitions \(3\)"):
        options(minPartitions=3, maxPartitions=2)
