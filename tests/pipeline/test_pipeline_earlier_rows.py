"""A retried task whose rows have another order: the attempt compares its rows with those in the log, or writes nothing.

The tests use the writer of a task without Spark, on a cluster of one broker.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from strandline.client import Producer, TopicPartition
from strandline.client.errors import ProducerFenced
from strandline.pipeline.earlier_rows import CLOCK_SKEW_MS, Spool
from strandline.pipeline.errors import RowsDiffer
from strandline.pipeline.options import WriteOptions, write_options
from strandline.pipeline.sink import TaskWriter, Written
from strandline.pipeline.write_identity import WriteNote
from strandline.testing import Cluster

Rows = Sequence[tuple[bytes | None, bytes]]
"""Key and value."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=1) as cluster:
        yield cluster


class Task:
    """The attempts of one task, one after the other."""

    def __init__(self, cluster: Cluster, topic: str, **options: str) -> None:
        self.cluster, self.topic = cluster, topic
        written = {"bootstrap.servers": cluster.bootstrap_servers, "topic": topic, **options}
        self.options: WriteOptions = write_options(written)

    async def note(self) -> bytes:
        async with self.cluster.consumer() as consumer:
            places = [TopicPartition(self.topic, p) for p in sorted(await consumer.partitions_for_topic(self.topic))]
            ends = await consumer.end_offsets(places)
        return msgspec.msgpack.encode([self.topic, [ends[place] for place in places]])

    def producer(self, note: bytes | None, **options: Any) -> Producer:
        servers = self.cluster.bootstrap_servers
        return Producer(bootstrap_servers=servers, producer_name="task", producer_note=note, batch_size=500, **options)

    async def attempt(self, rows: Rows, **columns: pa.Array) -> Written:
        async with self.producer(await self.note()) as producer:
            writer = TaskWriter(self.options, producer, task=0)
            whole = pa.record_batch(
                {
                    "key": pa.array([key for key, _ in rows], pa.binary()),
                    "value": pa.array([value for _, value in rows], pa.binary()),
                    **columns,
                }
            )
            for first in range(0, len(rows), 100):
                await writer.write(whole.slice(first, 100))
            return await writer.finish()

    async def die_in_the_middle(self, rows: Rows, note: bytes | None = b"?") -> None:
        """Makes an attempt that is killed after it has written these rows."""
        async with self.producer(await self.note() if note == b"?" else note) as producer:
            writer = TaskWriter(self.options, producer, task=0)
            keys, values = zip(*rows, strict=True)
            await writer.write(pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))
            await producer.flush()


async def records(cluster: Cluster, topic: str) -> Counter[tuple[bytes | None, bytes | None]]:
    return Counter((record.key, record.value) for record in await cluster.read_all(topic))


def some_rows(count: int, keyed: bool) -> list[tuple[bytes | None, bytes]]:
    """`count` rows; every tenth row occurs twice."""
    return [(b"k%d" % (n % 7) if keyed else None, b"row %d" % (n - n % 10 if n % 10 == 1 else n)) for n in range(count)]


@pytest.mark.parametrize("keyed", [True, False])
async def test_rows_in_another_order_are_stored_once(cluster: Cluster, keyed: bool) -> None:
    """The topic also has records of another producer, and the second attempt dies as well."""
    topic = await cluster.create_topic(partitions=3)
    task, shuffle = Task(cluster, topic), random.Random(5).shuffle
    rows = some_rows(1000, keyed)
    others = Counter((None, b"not ours %d" % n) for n in range(300))

    async def write_others(which: slice) -> None:
        async with cluster.producer() as producer:
            await producer.send_many(topic, [value for _, value in list(others)[which]])

    await write_others(slice(0, 100))
    shuffle(rows)
    await task.die_in_the_middle(rows[:400])
    await write_others(slice(100, 200))
    shuffle(rows)
    with pytest.raises(ConnectionError):
        await failing_attempt(task, rows, sends=2)
    await write_others(slice(200, 300))
    shuffle(rows)
    written = await task.attempt(rows)
    assert written.rows == 1000
    assert 400 < written.found < 1000
    assert await records(cluster, topic) == Counter(rows) + others


async def failing_attempt(task: Task, rows: Rows, sends: int) -> None:
    """An attempt that fails after it has sent `sends` runs of missing rows."""
    async with task.producer(await task.note()) as producer:
        writer = TaskWriter(task.options, producer, task=0)
        send, left = producer.send_columns, sends

        async def dying(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if not left:
                raise ConnectionError("this attempt dies here")
            left -= 1
            return await send(*args, **kwargs)

        producer.send_columns = dying  # type: ignore[method-assign]
        keys, values = zip(*rows, strict=True)
        for first in range(0, len(rows), 100):
            part = slice(first, first + 100)
            await writer.write(
                pa.record_batch({"key": pa.array(keys[part], pa.binary()), "value": pa.array(values[part], pa.binary())})
            )
        await writer.finish()


@pytest.mark.parametrize("change", ["another value", "one missing", "none"])
async def test_nothing_is_written_if_an_earlier_row_is_missing_now(cluster: Cluster, change: str) -> None:
    topic = await cluster.create_topic(partitions=2)
    task, rows = Task(cluster, topic), some_rows(300, keyed=True)
    await task.die_in_the_middle(rows[:200])
    again = {"another value": [(b"k", b"new"), *rows[1:]], "one missing": rows[1:], "none": []}[change]
    with pytest.raises(RowsDiffer, match=r"rows that an earlier attempt wrote are not among the rows of task 0 now"):
        await task.attempt(again)
    assert await records(cluster, topic) == Counter(rows[:200])
    assert (await task.attempt(rows)).found == 200


async def test_row_for_another_partition_is_another_row(cluster: Cluster) -> None:
    """This holds only if a column `partition` says where each row goes."""
    topic = await cluster.create_topic(partitions=2)
    task, rows = Task(cluster, topic), [(None, b"a"), (None, b"a"), (None, b"b")]
    places = [pa.array(each, pa.int32()) for each in ([0, 0, 1], [1, 0, 0])]
    await task.attempt(rows, partition=places[0])
    with pytest.raises(RowsDiffer, match="2 rows that an earlier attempt"):
        await task.attempt(rows, partition=places[1])
    assert (await task.attempt([rows[2], *rows[:2]], partition=pa.array([1, 0, 0], pa.int32()))).found == 3


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("behind", "rows that an earlier attempt wrote to .* have been deleted since"),
        ("beyond", "can no longer be read"),
    ],
)
async def test_attempt_fails_if_earlier_rows_cannot_be_found(cluster: Cluster, note: Any, told: str) -> None:
    """The log has no row of the task after the offset in the note."""
    topic = await cluster.create_topic(partitions=1)
    task, rows = Task(cluster, topic), some_rows(100, keyed=False)
    if isinstance(note, str):
        note = msgspec.msgpack.encode([topic, [100 if note == "behind" else 5000]])
    await task.die_in_the_middle(rows, note)
    with pytest.raises(RowsDiffer, match=told):
        await task.attempt(rows)
    assert await records(cluster, topic) == Counter(rows)


async def test_comparison_fences_earlier_attempts_in_all_partitions(cluster: Cluster) -> None:
    """Rows without a key may go to other partitions in the later attempt, so partitions to which it writes nothing count as
    well."""
    topic = await cluster.create_topic(partitions=3)
    task, rows = Task(cluster, topic), some_rows(50, keyed=False)
    async with task.producer(await task.note()) as zombie:
        await zombie.written([(topic, p) for p in range(3)])
        await (await zombie.send_columns(topic, [value for _, value in rows], partition=0))
        await task.attempt(rows)
        with pytest.raises(ProducerFenced):
            await zombie.send_and_wait(topic, b"too late", partition=2)
    assert await records(cluster, topic) == Counter(rows)


def test_spool_returns_rows_in_order_from_memory_and_file() -> None:
    for bytes_max in (1_000_000, 100, 0):
        spool = Spool(bytes_max)
        batches = [pa.record_batch({"value": [b"%d" % n] * 5}) for n in range(10)]
        for batch in batches:
            spool.add(batch)
        assert pa.Table.from_batches(spool.drain()) == pa.Table.from_batches(batches)
        assert list(spool.drain()) == []


@pytest.mark.parametrize("note", ["none", "another topic", "time", "time of a fast clock"])
async def test_rows_are_found_without_offsets_in_the_note(cluster: Cluster, note: str) -> None:
    """The note has none if the topic is a column or has very many partitions. A wrong clock only means that the log is read
    from its start."""
    topic = await cluster.create_topic(partitions=2)
    async with cluster.producer() as producer:
        await producer.send_many(topic, [b"before %d" % n for n in range(50)])
    first = await cluster.read_all(topic)
    task, rows = Task(cluster, topic), some_rows(300, keyed=True)
    began_at_ms = max(record.timestamp_ms for record in first)
    notes = {
        "none": None,
        "another topic": WriteNote("another", [0]).encode(),
        "time": WriteNote(None, None, began_at_ms).encode(),
        "time of a fast clock": WriteNote(None, None, began_at_ms + 3 * CLOCK_SKEW_MS).encode(),
    }
    await task.die_in_the_middle(rows[:200], notes[note])
    assert (await task.attempt(rows[::-1])).found == 200
    assert await records(cluster, topic) == Counter(rows) + Counter((record.key, record.value) for record in first)


class ByColumn(Task):
    """The attempts of a task whose rows name their topics."""

    def __init__(self, cluster: Cluster, **options: str) -> None:
        self.cluster = cluster
        self.options = write_options({"bootstrap.servers": cluster.bootstrap_servers, **options})

    async def note(self) -> bytes:
        return WriteNote(None, None, 0).encode()

    async def write(self, rows: Sequence[tuple[str, bytes]]) -> Written:
        async with self.producer(await self.note()) as producer:
            writer = TaskWriter(self.options, producer, task=0)
            topics, values = zip(*rows, strict=True)
            await writer.write(pa.record_batch({"topic": pa.array(topics), "value": pa.array(values, pa.binary())}))
            return await writer.finish()


async def test_rows_of_several_topics_are_written_once_in_any_order(cluster: Cluster) -> None:
    """Otherwise a stream whose topic is a column could never complete a batch after a retry."""
    topics = [await cluster.create_topic(partitions=2) for _ in range(3)]
    task = ByColumn(cluster)
    rows = [(topics[n % 3], b"row %d" % (n // 2)) for n in range(90)]
    await task.write(rows[:40])
    random.Random(7).shuffle(rows)
    assert (await task.write(rows)).found == 40
    assert (await task.write(rows[::-1])).found == 90
    there = [(topic, record.value) for topic in topics for record in await cluster.read_all(topic)]
    assert Counter(there) == Counter(rows)


@pytest.mark.parametrize("row_order", ["unknown", "stable"])
async def test_topic_without_rows_in_the_retry_is_noticed(cluster: Cluster, row_order: str) -> None:
    """Otherwise the rows of the earlier attempt would stay in that topic beside those of this one."""
    orders, refunds = [await cluster.create_topic(partitions=1) for _ in range(2)]
    task = ByColumn(cluster, rowOrder=row_order)
    await task.write([(orders, b"1"), (refunds, b"2")])
    with pytest.raises(RowsDiffer, match="an earlier attempt"):
        await task.write([(orders, b"1")])
    assert [record.value for record in await cluster.read_all(orders)] == [b"1"]
