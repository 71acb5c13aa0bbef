"""Tasks that write, one after the other in one worker process: connections are kept, and nothing that happens between two tasks
costs a row or an error. Without Spark: the tasks run here, and the loop of their session stands still between them."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from strandline.client import StrandlineError
from strandline.client.links import Link
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
    """What Spark says to the task that runs now."""

    def __init__(self, query: str, batch: int) -> None:
        self._properties = {QUERY_ID: query, BATCH_ID: str(batch)}

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return 0


class Tasks:
    """Of one query, a batch each. A topic of its own."""

    def __init__(self, log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, connected: list[Any], **options: str) -> None:
        self.log, self.topic, self.batch, self.written = log, log.create_topic(partitions=PARTITIONS), 0, list[bytes]()
        self._patch, self._connected = monkeypatch, connected
        self.options = {"bootstrap.servers": log.bootstrap_servers, "topic": self.topic, **options}

    def write(self, *, topic: str | None = None) -> int:
        """A row for each partition; returns how many connections that took."""
        rows = [b"%d-%d" % (self.batch, partition) for partition in range(PARTITIONS)]
        batch = {"value": pa.array(rows, pa.binary()), "partition": pa.array(range(PARTITIONS), pa.int32())}
        context = TaskContext(self.topic, self.batch)
        self._patch.setattr(sink.TaskContext, "get", lambda: context)
        self._connected.clear()
        options = write_options({**self.options, "topic": topic or self.topic})
        written = sink.write_task(options, "", iter([pa.record_batch(batch)]), is_stream=True)
        assert written == sink.Written(PARTITIONS, 0)
        self.batch, self.written = self.batch + 1, [*self.written, *rows]
        return len(self._connected)

    def stored(self) -> Counter[bytes | None]:
        return Counter(record.value for record in self.log.run(self.log.cluster.read_all(self.topic)))


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Link]:
    """Attempts to connect."""
    attempts: list[Link] = []
    begin = Link._begin

    def count(link: Link) -> Any:
        attempts.append(link)
        return begin(link)

    monkeypatch.setattr(Link, "_begin", count)
    return attempts


@pytest.fixture(params=["unknown", "stable"])
def tasks(
    log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, connected: list[Link], request: pytest.FixtureRequest
) -> Iterator[Tasks]:
    tasks = Tasks(log, monkeypatch, connected, rowOrder=request.param)
    tasks.write()
    yield tasks
    assert tasks.stored() == Counter(tasks.written)


def test_next_task_connects_to_no_broker(tasks: Tasks) -> None:
    assert [tasks.write() for _ in range(4)] == [0, 0, 0, 0]


def test_connections_are_not_used_again_after_an_error(tasks: Tasks) -> None:
    tasks.options["strandline.max_block_ms"] = "200"  # Another client, whose error leaves the first one's connections alone.
    with pytest.raises(StrandlineError):
        tasks.write(topic="missing")
    assert tasks.write() > 0
    assert tasks.write() == 0


def test_leader_that_was_killed_between_tasks_is_replaced(tasks: Tasks, log: ThreadedCluster) -> None:
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


def test_forked_process_keeps_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fork inherits are its parent's sockets."""
    parent = session()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert session().clusters is not parent.clusters


async def test_clusters_of_few_sets_of_options_are_kept() -> None:
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
