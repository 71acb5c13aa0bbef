"""Spark reads a compacted topic: exactly the records that are left, although offsets are missing, and past fillers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.client import NewTopic, TopicPartition
from strandline.pipeline.jobs.audit import audit
from strandline.pipeline.jobs.audit_ledger import Ledger
from strandline.pipeline.jobs.offload import offload
from strandline.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.testing import ThreadedCluster

PLACE = TopicPartition("users", 0)
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
KEYS, ROUNDS = 10, 40
END = KEYS * ROUNDS
ACTIVE_MAX = 25
"""More records than the active segment has."""

Row = tuple[int, bytes, bytes | None]


@pytest.fixture(scope="module")
def compacted() -> Iterator[ThreadedCluster]:
    """A cluster with a compacted topic: most of its offsets belong to fillers."""
    with Cluster.running_in_thread(brokers=1, controllers=1, log_cleaner_backoff_ms=50, min_insync_replicas=1) as cluster:
        cluster.run(_fill(cluster))
        cluster.run(_compacted(cluster))
        yield cluster


async def _fill(log: ThreadedCluster) -> None:
    async with log.cluster.admin() as admin:
        await admin.create_topics([NewTopic(PLACE.topic, 1, 1, configs=CONFIGS)])
    async with log.cluster.producer(linger_ms=0) as producer:
        for number in range(ROUNDS):
            for key in range(KEYS):
                is_last = number == ROUNDS - 1
                value = None if is_last and key == 0 else b"%d " % number * 20
                await producer.send_and_wait(PLACE.topic, value, key=b"k%d" % key, partition=0)


async def _compacted(log: ThreadedCluster) -> None:
    """Waits until no key is twice in the closed segments."""
    async with asyncio.timeout(20):
        while True:
            keys = [key for offset, key, _ in await _left(log) if offset < END - ACTIVE_MAX]
            if len(keys) == len(set(keys)):
                return


async def _left(log: ThreadedCluster) -> list[Row]:
    """The records that a consumer reads."""
    found: list[Row] = []
    async with log.cluster.consumer() as consumer:
        await consumer.assign([PLACE])
        consumer.seek(PLACE, 0)
        while await consumer.position(PLACE) < END:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += [(r.offset, bytes(r.key or b""), None if r.value is None else bytes(r.value)) for r in records]
    return found


def rows_of(df: DataFrame) -> list[Row]:
    rows = df.select("offset", "key", "value").collect()
    return sorted((r.offset, bytes(r.key), None if r.value is None else bytes(r.value)) for r in rows)


@pytest.mark.parametrize("partitions", [1, 7])
def test_batch_has_exactly_the_records_that_are_left(spark: SparkSession, compacted: ThreadedCluster, partitions: int) -> None:
    """With seven tasks, ranges begin and end inside fillers, and some have no record at all."""
    reader = spark.read.format("strandline").option("bootstrap.servers", compacted.bootstrap_servers)
    df = reader.option("subscribe", PLACE.topic).option("minPartitions", str(partitions)).load()
    found = rows_of(df)
    assert found == compacted.run(_left(compacted))
    assert len(found) < END / 4
    assert {key for _, key, value in found if value is not None} | {b"k0"} == {b"k%d" % n for n in range(KEYS)}


def test_range_that_is_all_filler_is_empty_and_no_loss(spark: SparkSession, compacted: ThreadedCluster) -> None:
    kept = [offset for offset, _, _ in compacted.run(_left(compacted))]
    gap = next((low + 1, high) for low, high in pairwise([-1, *kept]) if high - low > 10)
    reader = spark.read.format("strandline").option("bootstrap.servers", compacted.bootstrap_servers)
    bounds = zip(("startingOffsets", "endingOffsets"), gap, strict=True)
    df = reader.option("subscribe", PLACE.topic).options(**{name: json.dumps({"users": {"0": n}}) for name, n in bounds}).load()
    assert rows_of(df) == []


def test_stream_passes_fillers_and_ends_at_the_end(spark: SparkSession, compacted: ThreadedCluster, tmp_path: Path) -> None:
    """Each batch has at most 30 offsets, so some have no row, and the query goes on after them. `failOnDataLoss` is true."""
    reader = spark.readStream.format("strandline").option("bootstrap.servers", compacted.bootstrap_servers)
    df = reader.options(subscribe=PLACE.topic, startingOffsets="earliest", maxOffsetsPerTrigger="30").load()
    writer = df.select("offset", "key", "value").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == compacted.run(_left(compacted))
    numbers = [int(path.name) for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
    stored = (tmp_path / "checkpoint" / "offsets" / str(max(numbers))).read_text().splitlines()[2]
    assert json.loads(stored)["topics"]["users"]["0"] == END


def test_audit_of_a_lake_accepts_what_compaction_removed(spark: SparkSession, compacted: ThreadedCluster, tmp_path: Path) -> None:
    """The lake and the ledger have every record; then the topic is compacted."""
    topic = compacted.create_topic(partitions=1, segment_bytes=2000)
    acks = tmp_path / "acks.jsonl"

    async def fill() -> None:
        async with compacted.cluster.producer(linger_ms=0) as producer:
            with Ledger(acks) as ledger:
                for number in range(100):
                    value = b"%d " % number * 20
                    ledger.add(await producer.send_and_wait(topic, value, key=b"k%d" % (number % 5), partition=0), value)

    async def compact() -> None:
        async with compacted.cluster.admin() as admin:
            await admin.alter_configs("topic", topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})

    compacted.run(fill())
    assert offload(spark, compacted.bootstrap_servers, topic, tmp_path / "lake").awaitTermination(120)
    compacted.run(compact())
    deadline = time.monotonic() + 60
    while len(compacted.read_all(topic)) >= 50:
        assert time.monotonic() < deadline, "the topic was not compacted"
    found = audit(spark, compacted.bootstrap_servers, topic, lake=tmp_path / "lake", ledger=[acks])
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert found.counts("compacted") == 100 - len(compacted.read_all(topic)) > 50
