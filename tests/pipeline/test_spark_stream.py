"""Streaming reads in a real Spark: batches are bounded, and each offset is in exactly one of them, also after changes of the
topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.options import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from strandline.testing import ThreadedCluster


class Stream:
    """A query that writes what it reads into a folder. A test starts it as often as it needs."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, folder: Path) -> None:
        self.spark, self.log, self.folder = spark, log, folder

    def start(self, topic: str, **options: Any) -> StreamingQuery:
        reader = self.spark.readStream.format("strandline").option("bootstrap.servers", self.log.bootstrap_servers)
        for name, value in {"subscribe": topic, "startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, str(value))
        df = reader.load().selectExpr("partition", "offset", "cast(value as string) value")
        writer = df.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.option("path", str(self.folder / "out")).trigger(availableNow=True).start()

    def run(self, topic: str, **options: Any) -> list[int]:
        """Runs until everything that existed is read; returns the rows of each batch."""
        query = self.start(topic, **options)
        assert query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    @property
    def seen(self) -> list[tuple[int, int]]:
        rows = self.spark.read.parquet(str(self.folder / "out")).collect()
        return sorted((row.partition, row.offset) for row in rows)

    def stored(self, number: int) -> dict[str, Any]:
        """The offsets of the source in the checkpoint."""
        text = (self.folder / "checkpoint" / "offsets" / str(number)).read_text()
        return json.loads(text.splitlines()[2])


@pytest.fixture
def stream(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Stream:
    return Stream(spark, log, tmp_path)


@pytest.fixture
def fill(log: ThreadedCluster) -> Callable[[str, int, int], None]:
    def fill(topic: str, partition: int, count: int) -> None:
        async def send() -> None:
            async with log.cluster.producer() as producer:
                await producer.send_many(topic, [b"%d" % n for n in range(count)], partition=partition)

        log.run(send())

    return fill


def topic_id_of(log: ThreadedCluster, topic: str) -> str:
    view = ClusterView({"bootstrap_servers": log.bootstrap_servers}, Subscription((topic,)))
    view.partitions()
    return view.topic_ids[topic].hex()


def test_batches_keep_the_limit_and_a_restart_continues(
    stream: Stream, log: ThreadedCluster, fill: Callable[[str, int, int], None]
) -> None:
    topic = log.create_topic(partitions=2)
    fill(topic, 0, 300)
    fill(topic, 1, 100)
    assert stream.run(topic, maxOffsetsPerTrigger=100) == [100, 100, 100, 100]
    assert stream.stored(0)["topics"] == {topic: {"0": 75, "1": 25}}
    offsets = {"topics": {topic: {"0": 300, "1": 100}}, "epochs": {topic: {"0": 0, "1": 0}}}
    ids = {topic: topic_id_of(log, topic)}
    assert stream.stored(3) == {"v": 1, "ids": ids, "packing": {"rule": 1}, **offsets}
    fill(topic, 1, 50)
    assert stream.run(topic, maxOffsetsPerTrigger=100) == [50]
    assert stream.run(topic) == []
    assert stream.seen == [(0, n) for n in range(300)] + [(1, n) for n in range(150)]


def test_new_partitions_are_read_from_their_first_record(
    stream: Stream, log: ThreadedCluster, fill: Callable[[str, int, int], None]
) -> None:
    topic = log.create_topic(partitions=1)
    fill(topic, 0, 10)
    stream.run(topic)

    async def grow() -> None:
        async with log.cluster.admin() as admin:
            await admin.create_partitions(topic, 2)

    log.run(grow())
    fill(topic, 1, 20)
    stream.run(topic)
    assert stream.seen == [(0, n) for n in range(10)] + [(1, n) for n in range(20)]


def test_leader_change_between_two_runs_does_not_matter(
    stream: Stream, log: ThreadedCluster, fill: Callable[[str, int, int], None]
) -> None:
    topic = log.create_topic(partitions=1)
    fill(topic, 0, 10)
    stream.run(topic)
    leader = log.leader_of(topic)
    log.kill(leader)
    fill(topic, 0, 10)
    log.start(leader)
    assert stream.run(topic) == [10]
    assert stream.seen == [(0, n) for n in range(20)]


def recreate(log: ThreadedCluster, topic: str) -> None:
    async def delete() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([topic])

    log.run(delete())
    log.create_topic(topic, partitions=1)


@pytest.mark.parametrize("count", [20, 50, 80])
def test_recreated_topic_is_a_loss(
    stream: Stream, log: ThreadedCluster, fill: Callable[[str, int, int], None], count: int
) -> None:
    """The new log is shorter than what was read, as long, or longer. Without the check, its first 50 records would be skipped."""
    topic = log.create_topic(partitions=1)
    fill(topic, 0, 50)
    stream.run(topic)
    recreate(log, topic)
    fill(topic, 0, count)
    with pytest.raises(
        StreamingQueryException, match=rf"{topic}-0 was read up to offset 50, and its topic was deleted and recreated"
    ):
        stream.run(topic)
    new = [count - 50] if count > 50 else []
    assert [n for n in stream.run(topic, failOnDataLoss="false") if n] == new, "as with Kafka's connector"
    fill(topic, 0, 5)
    assert stream.run(topic) == [5], "the checkpoint has the id of the new topic"


def test_damaged_checkpoint_is_rejected_in_one_sentence(
    stream: Stream, log: ThreadedCluster, fill: Callable[[str, int, int], None]
) -> None:
    topic = log.create_topic(partitions=1)
    fill(topic, 0, 10)
    stream.run(topic)
    offsets = stream.folder / "checkpoint" / "offsets" / "0"
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:2], '{"topics": {"orders": "nonsense"}}']))
    (stream.folder / "checkpoint" / "offsets" / ".0.crc").unlink(missing_ok=True)
    fill(topic, 0, 10)
    with pytest.raises(PySparkException, match="which are not offsets of the strandline source"):
        stream.run(topic)
    assert stream.seen == [(0, n) for n in range(10)]


def test_lag_is_reported(stream: Stream, log: ThreadedCluster, fill: Callable[[str, int, int], None]) -> None:
    """The query's progress has the end of the log beside the position of the query."""
    topic = log.create_topic(partitions=1)
    fill(topic, 0, 100)
    query = stream.start(topic, maxOffsetsPerTrigger=40)
    assert query.awaitTermination(120)
    (first, *_) = [p for p in query.recentProgress if p["numInputRows"]]
    source = first["sources"][0]
    places = [source[name] for name in ("endOffset", "latestOffset")]
    stored = [json.loads(place) if isinstance(place, str) else place for place in places]
    assert [place["topics"][topic]["0"] for place in stored] == [40, 100]
