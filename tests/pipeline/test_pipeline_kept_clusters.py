"""Writing tasks, one after the other in one worker process: connections are kept between them, and no change in the meantime
causes a lost row or an error. The tasks run in the test's process, without Spark, and their event loop does not run between
two tasks."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.client import TopicPartition
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.consumer.partition_state import LATEST
from strandline.pipeline import sink
from strandline.pipeline.kept_clusters import KEPT, KeptClusters
from strandline.pipeline.options import write_options
from strandline.pipeline.session import session
from strandline.pipeline.write_identity import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strandline.testing import ThreadedCluster

PARTITIONS = 4


class TaskContext:
    """Stands in for Spark's `TaskContext`: the properties of the current task."""

    def __init__(self, query: str, batch: int) -> None:
        self._properties = {QUERY_ID: query, BATCH_ID: str(batch)}

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return 0


class Tasks:
    """The tasks of one query, each in a batch of its own, with their own topic."""

    def __init__(self, log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, connected: list[Any], **options: str) -> None:
        self.log, self.topic, self.batch, self.written = log, log.create_topic(partitions=PARTITIONS), 0, list[bytes]()
        self._patch, self._connected = monkeypatch, connected
        self.options = {"bootstrap.servers": log.bootstrap_servers, "topic": self.topic, **options}

    def write(self) -> int:
        """Writes a row to each partition; returns the number of new connections."""
        rows = [b"%d-%d" % (self.batch, partition) for partition in range(PARTITIONS)]
        batch = {"value": pa.array(rows, pa.binary()), "partition": pa.array(range(PARTITIONS), pa.int32())}
        context = TaskContext(self.topic, self.batch)
        self._patch.setattr(sink.TaskContext, "get", lambda: context)
        self._connected.clear()
        written = sink.write_task(write_options(self.options), "", iter([pa.record_batch(batch)]), is_stream=True)
        assert written == sink.Written(PARTITIONS, 0)
        self.batch, self.written = self.batch + 1, [*self.written, *rows]
        return len(self._connected)

    def some_task_connects_to_no_broker(self) -> bool:
        """Whether one of four tasks opens no connection. On a busy machine a broker may be silent for so long that the client
        replaces a connection."""
        return 0 in [self.write() for _ in range(4)]

    def stored(self) -> Counter[bytes | None]:
        return Counter(record.value for record in self.log.run(self.log.cluster.read_all(self.topic)))


def wait_for_rows(log: ThreadedCluster, topic: str, count: int) -> None:
    """A batch of rows for which the task must wait: it waits on a thread, and sends earlier rows meanwhile."""

    async def stored() -> int:
        async with log.cluster.admin() as admin:
            places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            return sum(end.offset for end in (await admin.list_offsets(dict.fromkeys(places, LATEST))).values() if end)

    for _ in range(1000):
        if log.run(stored()) >= count:
            return
    raise AssertionError(f"{count} rows were not written")


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[ConnectionState]:
    """Counts attempts to connect."""
    attempts: list[ConnectionState] = []
    begin = ConnectionState._begin

    def count(state: ConnectionState) -> Any:
        attempts.append(state)
        return begin(state)

    monkeypatch.setattr(ConnectionState, "_begin", count)
    return attempts


@pytest.fixture(params=["unknown", "stable"])
def tasks(
    log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, connected: list[ConnectionState], request: pytest.FixtureRequest
) -> Iterator[Tasks]:
    tasks = Tasks(log, monkeypatch, connected, rowOrder=request.param)
    tasks.write()
    yield tasks
    assert tasks.stored() == Counter(tasks.written)


def test_next_task_connects_to_no_broker(tasks: Tasks) -> None:
    assert tasks.some_task_connects_to_no_broker()


def test_connections_are_not_used_again_after_an_error(tasks: Tasks) -> None:
    tasks.options["strandline.client_id"] = f"client of {tasks.topic}"  # The task gets connections of its own.
    assert tasks.write() > 0

    def failing() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise OSError("the executor was lost")

    with pytest.raises(OSError, match="executor"):
        sink.write_task(write_options(tasks.options), "", failing(), is_stream=True)
    assert tasks.write() > 0
    assert tasks.some_task_connects_to_no_broker()


def test_attempt_without_input_does_not_fence_another(tasks: Tasks) -> None:
    """A worker that Spark starts late, for an attempt that has already failed, must not fence the attempt that replaced it."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise OSError("the executor was lost")

    context = TaskContext(tasks.topic, tasks.batch)
    tasks._patch.setattr(sink.TaskContext, "get", lambda: context)
    with pytest.raises(OSError, match="executor"):
        sink.write_task(write_options(tasks.options), "", failing(), is_stream=True)
    rows = pa.record_batch({"value": pa.array([b"row"], pa.binary())})
    assert not sink.write_task(write_options(tasks.options), "", iter([rows]), is_stream=True).is_retry
    tasks.written.append(b"row")


def test_task_finds_the_new_leader_after_a_kill(tasks: Tasks, log: ThreadedCluster) -> None:
    leader = log.run(log.cluster.leader_of(tasks.topic))
    log.run(log.cluster.kill(leader))
    try:
        tasks.write()
        tasks.write()
    finally:
        log.run(log.cluster.restart(leader))
    tasks.write()


def test_recreated_topic_is_written_from_its_beginning(tasks: Tasks, log: ThreadedCluster) -> None:
    async def delete() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([tasks.topic])

    log.run(delete())
    log.create_topic(tasks.topic, partitions=PARTITIONS)
    tasks.written.clear()
    tasks.write()


def test_forked_process_opens_its_own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork inherits the sockets of its parent, and must not use them."""
    parent = session()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert session().clusters is not parent.clusters


async def test_number_of_kept_clusters_is_limited() -> None:
    kept = KeptClusters()
    lent = []
    for number in range(KEPT + 1):
        async with kept.lend({"client_id": f"client-{number}", "acks": 1}) as cluster:
            lent.append(cluster)
    async with kept.lend({"client_id": "client-1"}) as cluster:
        assert cluster is lent[1]
    assert [cluster.cluster.closed for cluster in lent] == [True] + [False] * KEPT
    for cluster in lent[1:]:
        await cluster.close()


def test_retry_after_partitions_were_added_writes_each_row_once(
    log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, connected: list[ConnectionState]
) -> None:
    """With `rowOrder=stable` an attempt skips the rows that an earlier one wrote to each partition. So each row must go to the
    partition that the earlier attempt chose, although its key would now go to another one."""
    tasks = Tasks(log, monkeypatch, connected, rowOrder="stable")
    keys = [b"key-%d" % number for number in range(400)]
    rows = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})
    options = write_options(tasks.options)
    monkeypatch.setattr(sink.TaskContext, "get", lambda: TaskContext(tasks.topic, 0))

    def half() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 200)
        wait_for_rows(log, tasks.topic, 200)
        raise OSError("the executor was lost")

    with pytest.raises(OSError, match="executor"):
        sink.write_task(options, "", half(), is_stream=True)

    async def add_partitions() -> None:
        async with log.cluster.admin() as admin:
            await admin.create_partitions(tasks.topic, 2 * PARTITIONS)

    log.run(add_partitions())
    assert sink.write_task(options, "", iter([rows]), is_stream=True) == sink.Written(400, 200)
    assert tasks.stored() == Counter(keys)
