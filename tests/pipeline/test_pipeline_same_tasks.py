"""A batch that runs again with another number of tasks never doubles a row without an error. The segments are the judge.

Spark's adaptive execution chooses the number of shuffle partitions by the number of cores, so a restart on another machine may
change it. The tasks run in the test's process, one after the other, without Spark.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from stored import stored_values

from strandline.pipeline import sink
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.options import write_options
from strandline.pipeline.write_identity import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster

ROWS = [b"row %d" % n for n in range(60)]


class TaskContext:
    """Stands in for Spark's `TaskContext`: the properties of the current task."""

    def __init__(self, query: str, task: int) -> None:
        self._task, self._properties = task, {QUERY_ID: query, BATCH_ID: "7"}

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return self._task


class Batch:
    """One batch of a stream; each run of it has its own number of tasks."""

    def __init__(self, log: ThreadedCluster, patch: pytest.MonkeyPatch, row_order: str) -> None:
        self.log, self.topic, self._patch = log, log.create_topic(partitions=1), patch
        self.options = write_options({"bootstrap.servers": log.bootstrap_servers, "topic": self.topic, "rowOrder": row_order})

    def write(self, tasks: int) -> list[sink.Written]:
        return [self.write_task(task, len(ROWS) // tasks) for task in range(tasks)]

    def write_task(self, task: int, count: int) -> sink.Written:
        context = TaskContext(self.topic, task)
        self._patch.setattr(sink.TaskContext, "get", lambda: context)
        rows = pa.record_batch({"value": pa.array(ROWS[task * count : (task + 1) * count], pa.binary())})
        return sink.write_task(self.options, "", iter([rows]), is_stream=True)

    def commit(self, messages: list[sink.Written]) -> None:
        sink.check_same_tasks(self.options, messages)


@pytest.fixture(params=["unknown", "stable"])
def batch(log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Batch:
    return Batch(log, monkeypatch, request.param)


def test_commit_fails_if_an_earlier_run_had_more_tasks(batch: Batch) -> None:
    """The first task finds its earlier rows among its rows, and writes the others again, which other tasks of the earlier run
    have written."""
    batch.write(tasks=3)
    again = batch.write(tasks=1)
    with pytest.raises(RowsDiffer, match="was run before with more tasks"):
        batch.commit(again)


@pytest.mark.parametrize("written", [(0, 3), (3,)])
def test_commit_fails_whichever_surplus_task_wrote(batch: Batch, written: tuple[int, ...]) -> None:
    """Only some of the four tasks of the earlier run wrote rows. The others were killed before that, at their start or
    earlier."""
    for task in written:
        batch.write_task(task, 15)
    for task in {0, 1, 2} - set(written):
        batch.write_task(task, 0)
    again = batch.write(tasks=2)
    assert stored_values(batch.log, batch.topic) > Counter(ROWS)
    with pytest.raises(RowsDiffer, match=r"was run before with more tasks, and .*/3 wrote 15 rows then"):
        batch.commit(again)


def test_task_fails_if_an_earlier_run_had_fewer_tasks(batch: Batch) -> None:
    batch.write(tasks=1)
    with pytest.raises(RowsDiffer, match="earlier attempt"):
        batch.write(tasks=2)
    assert stored_values(batch.log, batch.topic) == Counter(ROWS)


def test_repeated_commit_of_the_same_tasks_succeeds(batch: Batch) -> None:
    for _ in range(3):
        batch.commit(batch.write(tasks=3))
    assert stored_values(batch.log, batch.topic) == Counter(ROWS)
