"""The stream reader, called as Spark calls it: the end of a batch, and its tasks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.pipeline.errors import DataLoss
from strandline.pipeline.options import read_options
from strandline.pipeline.stream_reader import StreamReader

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster

PARTITIONS = 20


@pytest.fixture
def topic(log: ThreadedCluster) -> str:
    """A topic with twenty partitions, which have 1, 2, 3, ... records."""
    name = log.create_topic(partitions=PARTITIONS)

    async def send() -> None:
        async with log.cluster.producer() as producer:
            for partition in range(PARTITIONS):
                await producer.send_many(name, [b"v"] * (partition + 1), partition=partition)

    log.run(send())
    return name


def reader(log: ThreadedCluster, topic: str, **written: object) -> StreamReader:
    """The reader of a query that is started, or restarted, with these options."""
    texts = {name: str(value) for name, value in written.items()}
    given = {"bootstrap.servers": log.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest", **texts}
    return StreamReader(read_options({name: value for name, value in given.items() if value}, is_stream=True))


def stored(offsets: dict[str, Any]) -> dict[str, Any]:
    """The offsets as Spark reads them back from the checkpoint."""
    return json.loads(json.dumps(offsets))


def tasks(query: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [str(task) for task in query.partitions(start, end)]


def test_restarted_batch_keeps_its_tasks_when_options_change(log: ThreadedCluster, topic: str) -> None:
    """The sink names its producers by task. With other tasks, rows would be skipped or written twice."""
    begun = reader(log, topic, maxPartitions=3)
    start = stored(begun.initialOffset())
    end = stored(begun.latestOffset(start, ReadAllAvailable()))
    planned = tasks(begun, start, end)
    assert len(planned) == 3
    assert tasks(reader(log, topic, minPartitions=12), start, end) == planned
    assert tasks(reader(log, topic), start, end) == planned


def test_batch_of_an_earlier_release_has_one_task_per_range(log: ThreadedCluster, topic: str) -> None:
    query = reader(log, topic, maxPartitions=3)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    del end["packing"]
    assert len(tasks(query, start, end)) == PARTITIONS


def test_changed_options_start_no_batch(log: ThreadedCluster, topic: str) -> None:
    """Spark compares offsets as text, and the text also holds the packing of the batch."""
    query = reader(log, topic)
    end = stored(query.latestOffset(query.initialOffset(), ReadAllAvailable()))
    restarted = reader(log, topic, maxPartitions=2)
    assert restarted.latestOffset(end, ReadAllAvailable()) == end


def test_tasks_of_several_ranges_return_each_record_once(log: ThreadedCluster, topic: str) -> None:
    query = reader(log, topic, minPartitions="8")
    start = query.initialOffset()
    planned = query.partitions(start, query.latestOffset(start, ReadAllAvailable()))
    assert len(planned) == 8
    rows = [(r["partition"], r["offset"]) for task in planned for batch in query.read(task) for r in batch.to_pylist()]
    assert sorted(rows) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(partition + 1)]


def test_topic_deleted_between_two_runs_is_a_loss(log: ThreadedCluster) -> None:
    """A pattern silently matches the remaining topics. Trigger.AvailableNow asks only once for the end, before the first
    batch."""
    kept, deleted = log.create_topic(partitions=1), log.create_topic(partitions=1)
    pattern = {"subscribe": "", "subscribePattern": f"{kept}|{deleted}"}
    end = stored(reader(log, "", **pattern).initialOffset())

    async def delete() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([deleted])

    log.run(delete())
    for is_available_now in (False, True):
        query = reader(log, "", **pattern)
        if is_available_now:
            query.prepareForTriggerAvailableNow()
        with pytest.raises(DataLoss, match=f"{deleted}-0 was read up to offset 0, and is gone"):
            query.latestOffset(end, ReadAllAvailable())
