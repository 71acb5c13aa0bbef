"""The segments source on the directories of a running cluster returns the records that the client reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.pipeline.segments.options import segment_options
from strandline.pipeline.segments.plan import plan
from strandline.pipeline.segments.task import read_part
from strandline.testing import Cluster, ThreadedCluster

RECORDS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[ThreadedCluster]:
    """Three brokers that roll their segments after 16 KB."""
    with Cluster.running_in_thread(files="disk", folder=folder, brokers=3, log_segment_bytes=16_384) as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: ThreadedCluster) -> str:
    name = cluster.create_topic(partitions=2)

    async def fill() -> None:
        async with cluster.cluster.producer(linger_ms=0) as producer:
            for n in range(RECORDS):
                headers = [("n", b"%d" % n)] if n % 7 == 0 else []
                key = None if n % 3 else b"key %d" % n
                await producer.send(name, b"value %d" % n + b"." * 100, key=key, headers=headers, partition=n % 2)
                if n % 40 == 0:
                    await producer.flush()
            await producer.flush()

    cluster.run(fill())
    return name


def read(folder: Path, **written: str) -> list[dict[str, Any]]:
    options = segment_options({"path": str(folder), **written})
    return [row for task in plan(options) for part in task for some in read_part(part, options) for row in some.to_pylist()]


def client_rows(cluster: ThreadedCluster, topic: str) -> list[tuple[Any, ...]]:
    rows = []

    async def consume() -> None:
        async with cluster.cluster.consumer(topic) as consumer:
            while len(rows) < RECORDS:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    rows.extend((r.partition, r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for r in records)

    cluster.run(consume())
    return sorted(rows)


def segment_row(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return row["partition"], row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"], headers


def test_each_replica_has_the_records_that_the_client_reads(cluster: ThreadedCluster, folder: Path, topic: str) -> None:
    """Segments may be read while the brokers have them open."""
    expected = client_rows(cluster, topic)
    for split in ("4k", "64m"):
        rows = read(folder, rows="record", topics=topic, splitBytes=split)
        assert [row["damage"] for row in rows] == [None] * 3 * RECORDS
        for broker in cluster.brokers:
            assert sorted(segment_row(row) for row in rows if row["broker"] == broker) == expected
        assert len({row["topicId"] for row in rows}) == 1
        assert len({row["segmentBase"] for row in rows}) > 1


def test_batches_account_for_all_records_and_bytes(cluster: ThreadedCluster, folder: Path, topic: str) -> None:
    batches = read(folder, topics=topic)
    assert sum(row["recordCount"] for row in batches) == 3 * RECORDS
    assert sum(row["sizeBytes"] for row in batches) == sum(path.stat().st_size for path in folder.rglob(f"{topic}-*/*.log"))
    assert all(row["damage"] is None and row["crcStored"] == row["crcComputed"] for row in batches)
    assert {row["leaderEpoch"] for row in batches} == {0}
    assert all(row["producerId"] >= 0 and row["baseSequence"] >= 0 for row in batches)


def test_metadata_log_of_a_controller_is_sound(cluster: ThreadedCluster, folder: Path) -> None:
    rows = read(folder, topics="__cluster_metadata")
    assert rows
    assert {row["damage"] for row in rows} <= {None}
