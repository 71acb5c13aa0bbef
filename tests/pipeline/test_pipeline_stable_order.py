"""`rowOrder=stable` is the user's promise, and it may be wrong: rows are skipped only if nothing contradicts it.

If an attempt skips rows that the log does not hold, these rows are lost and the query reports success. So each test breaks the
promise in one way, and the log must hold each row once, or the attempt must fail before it writes.

The tests use the writer of a task without Spark, on a cluster of one broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from stored import rows_of

from strandline.client import Producer
from strandline.pipeline.earlier_rows import hash_of_first
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.options import WriteOptions, write_options
from strandline.pipeline.sink import TaskWriter, Written
from strandline.pipeline.write_identity import WriteNote
from strandline.testing import Cluster


class Task:
    """The attempts of one task, each with its own rows."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        given = {"bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "rowOrder": "stable"}
        self.options: WriteOptions = write_options(given)

    async def attempt(self, rows: list[bytes], until: int | None = None) -> Written | None:
        """Writes all rows; or writes some of the first rows, and is then killed."""
        batch = pa.record_batch({"key": pa.array(rows, pa.binary()), "value": pa.array(rows, pa.binary())})
        async with self.cluster.consumer() as consumer:
            partitions = len(await consumer.partitions_for_topic(self.topic))
        first_row = hash_of_first(batch, include_headers=True)
        note = WriteNote(self.topic, None, partitions=partitions, first_row=first_row)
        servers = self.cluster.bootstrap_servers
        async with Producer(bootstrap_servers=servers, producer_name="task", producer_note=note.encode()) as producer:
            writer = TaskWriter(self.options, producer, task=0)
            await writer.write(batch.slice(0, until))
            if until is None:
                return await writer.finish()
            await producer.flush()
        return None


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
async def task(cluster: Cluster) -> Task:
    return Task(cluster, await cluster.create_topic(partitions=1))


def rows(first: int, count: int) -> list[bytes]:
    return [b"row %d" % n for n in range(first, first + count)]


async def stored(task: Task) -> Counter[Any]:
    return Counter(row.value for row in await rows_of(task.cluster, task.topic))


async def test_same_rows_in_the_same_order_are_skipped_without_a_comparison(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.pipeline.sink.read_back", None)
    await task.attempt(rows(0, 100), until=40)
    written = await task.attempt(rows(0, 100))
    assert written is not None
    assert (written.rows, written.found) == (100, 40)
    assert await stored(task) == Counter(rows(0, 100))


async def test_rows_of_another_range_are_never_skipped(task: Task) -> None:
    """This happens if a stream with a producerName lost its checkpoint and starts at the latest offsets: its batch 0 has other
    rows than the earlier batch 0. It also happens if a batch job with a producerName runs again on the next day."""
    await task.attempt(rows(0, 100))
    with pytest.raises(RowsDiffer, match=r"are not among the rows of task \d+ now: .*nothing was written"):
        await task.attempt(rows(100, 150))
    assert await stored(task) == Counter(rows(0, 100))


async def test_rows_in_another_order_are_compared(task: Task) -> None:
    """After a shuffle, the rows do not have the promised order."""
    await task.attempt(rows(0, 100), until=40)
    await task.attempt(rows(0, 100)[::-1])
    assert await stored(task) == Counter(rows(0, 100))


@pytest.mark.parametrize("grown", [False, True])
async def test_rows_that_differ_after_the_first_one_are_never_skipped(task: Task, grown: bool) -> None:
    """The first row may be equal by accident: after a lost checkpoint, if a partition with more records now has a task of its
    own, or after a change of the query's filter."""
    partition_0, partition_1, later = rows(0, 50), rows(1000, 50), rows(50, 100)
    await task.attempt(partition_0 + partition_1)
    with pytest.raises(RowsDiffer, match="although rowOrder=stable promises the same rows"):
        await task.attempt(partition_0 + later if grown else rows(0, 100)[::2] + rows(0, 100)[1::2])
    assert await stored(task) == Counter(partition_0 + partition_1)


async def test_deleted_rows_are_skipped(task: Task) -> None:
    """The first row is equal, and nothing else is left to compare, so the attempt must trust the promise."""
    await task.attempt(rows(0, 100), until=40)
    for partition in task.cluster.nodes.server(1).replicas.partitions.values():
        partition.log.increment_log_start_offset(40)
    written = await task.attempt(rows(0, 100))
    assert written is not None
    assert written.found == 40
    assert await stored(task) == Counter(rows(40, 60))


async def test_rows_are_stored_once_after_partitions_were_added(task: Task) -> None:
    """With more partitions a key goes to another one, so a partition's first rows are not those of the earlier attempt."""
    await task.attempt(rows(0, 100), until=20)
    async with task.cluster.admin() as admin:
        await admin.create_partitions(task.topic, 3)
    await task.attempt(rows(0, 100))
    assert await stored(task) == Counter(rows(0, 100))


async def test_later_attempt_without_rows_fails(task: Task) -> None:
    await task.attempt(rows(0, 100), until=40)
    with pytest.raises(RowsDiffer, match="an earlier attempt"):
        await task.attempt([])
    assert await stored(task) == Counter(rows(0, 40))


async def test_topic_recreated_with_fewer_partitions_gets_all_rows(cluster: Cluster) -> None:
    """The note of the first attempt has more partitions than the topic."""
    task = Task(cluster, await cluster.create_topic(partitions=3))
    await task.attempt(rows(0, 100), until=40)
    async with cluster.admin() as admin:
        await admin.delete_topics([task.topic])
    await cluster.create_topic(task.topic, partitions=1)
    await task.attempt(rows(0, 100))
    assert await stored(task) == Counter(rows(0, 100))
