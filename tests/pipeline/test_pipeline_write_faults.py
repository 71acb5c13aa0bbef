"""Topics and brokers that change while a task writes: each row is stored once, or the task fails. The segments are the judge.

The tests use the writer of a task without Spark, on a cluster of three brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from stored import rows_of

from strandline.client import Consumer, Producer
from strandline.pipeline.earlier_rows import hash_of_first
from strandline.pipeline.options import WriteOptions, write_options
from strandline.pipeline.sink import TaskWriter, Written
from strandline.pipeline.write_identity import WriteNote
from strandline.protocol.errors import StrandlineError
from strandline.testing import Cluster

ROWS = [b"row %d" % n for n in range(100)]


class Task:
    """The attempts of one task, which always have the same rows."""

    def __init__(self, cluster: Cluster, topic: str, row_order: str) -> None:
        self.cluster, self.topic = cluster, topic
        given = {"bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "rowOrder": row_order}
        self.options: WriteOptions = write_options(given)

    async def attempt(self, dies_after: int | None = None, then: Any = None) -> Written | None:
        """Runs one attempt. It is killed after some rows; or it awaits `then` in the middle, and runs to its end."""
        batch = pa.record_batch({"value": pa.array(ROWS, pa.binary())})
        # The note has no end offsets: `first_note` would look them up in an event loop of its own.
        note = WriteNote(self.topic, None, partitions=1, first_row=hash_of_first(batch, include_headers=True))
        servers = self.cluster.bootstrap_servers
        async with Producer(bootstrap_servers=servers, producer_name="task", producer_note=note.encode()) as producer:
            writer = TaskWriter(self.options, producer, task=0)
            await writer.write(batch.slice(0, 40 if dies_after is None else dies_after))
            await producer.flush()
            if dies_after is not None:
                return None
            if then is not None:
                await then()
            await writer.write(batch.slice(40))
            return await writer.finish()

    async def recreate(self, others: int = 0) -> None:
        async with self.cluster.admin() as admin:
            await admin.delete_topics([self.topic])
        await self.cluster.create_topic(self.topic, partitions=1)
        if others:
            async with self.cluster.producer() as producer:
                await producer.send_many(self.topic, [b"other"] * others)

    async def stored(self) -> Counter[bytes | None]:
        return Counter(row.value for row in await rows_of(self.cluster, self.topic))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(params=["stable", "unknown"])
async def task(cluster: Cluster, request: pytest.FixtureRequest) -> Task:
    return Task(cluster, await cluster.create_topic(partitions=1), request.param)


@pytest.mark.parametrize("others", [0, 10, 500])
async def test_topic_recreated_since_the_first_attempt_gets_all_rows(task: Task, others: int) -> None:
    """The new log may be shorter or longer than the old one; it holds no row of this task in either case."""
    await task.attempt(dies_after=40)
    await task.recreate(others)
    written = await task.attempt()
    assert written is not None
    assert written.found == 0
    assert await task.stored() == Counter(ROWS) + Counter({b"other": others})


@pytest.mark.parametrize("others", [0, 500])
async def test_attempt_fails_if_its_topic_is_recreated_meanwhile(task: Task, others: int) -> None:
    """The first rows of the attempt were deleted with the topic. The next attempt writes all rows."""
    with pytest.raises(StrandlineError):
        await task.attempt(then=lambda: task.recreate(others))
    await task.attempt()
    assert await task.stored() == Counter(ROWS) + Counter({b"other": others})


async def test_leader_may_be_killed_while_an_attempt_compares(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(cluster, await cluster.create_topic(partitions=1), "unknown")
    await task.attempt(dies_after=40)
    fetch, killed = Consumer.fetch_batches, list[int]()

    async def fetch_without_leader(self: Consumer, **options: Any) -> Any:
        if not killed:
            killed.append(await cluster.leader_of(task.topic))
            await cluster.kill(killed[0])
        return await fetch(self, **options)

    monkeypatch.setattr(Consumer, "fetch_batches", fetch_without_leader)
    written = await task.attempt()
    assert written is not None
    assert (written.found, len(killed)) == (40, 1)
    await cluster.start(*killed)
    assert await task.stored() == Counter(ROWS)
