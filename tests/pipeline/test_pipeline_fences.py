"""Every reader of records steps over fences, the batches that store fencing tokens: the client in each form, Spark's source, the
source of segment files, `verify`, and `log dump`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strandline.cli import log
from strandline.client import TokenFenced, TopicPartition, arrow_batches
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.jobs.verify import verify
from strandline.pipeline.options import Subscription
from strandline.pipeline.planning import Range
from strandline.pipeline.segments.options import segment_options
from strandline.pipeline.segments.plan import plan
from strandline.pipeline.segments.task import read_part
from strandline.pipeline.task_reader import TaskReader
from strandline.testing import Cluster, ThreadedCluster, caught_up

TOPIC = "orders"
PLACE = TopicPartition(TOPIC, 0)
WRITERS, RECORDS = 12, 5
FENCES = WRITERS

Rows = list[tuple[int, bytes]]
"""Offset and value of each record."""


async def write(cluster: Cluster) -> Rows:
    """Writes records through writers that take over from each other, also from broker to broker."""
    written = []
    await cluster.create_topic(TOPIC, partitions=1)
    for token in range(1, WRITERS + 1):
        async with cluster.producer(fencing_token=token) as producer:
            for n in range(RECORDS):
                value = b"%d of %d" % (n, token) + b"." * 50
                written.append(((await producer.send_and_wait(TOPIC, value, partition=0)).offset, value))
            with pytest.raises(TokenFenced):
                await producer.send_and_wait(TOPIC, b"late", partition=0, fencing_token=token - 1)
        if token % 4 == 0:
            await cluster.force_election(TOPIC)
    await cluster.until(caught_up(TOPIC))
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[ThreadedCluster]:
    """Segments are so short that some begin with a fence."""
    settings = {"log_segment_bytes": 1500, "log_index_interval_bytes": 200}
    with Cluster.running_in_thread(files="disk", folder=folder, brokers=3, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def written(cluster: ThreadedCluster) -> Rows:
    return cluster.run(write(cluster.cluster))


def test_raise_takes_one_offset_before_its_record(written: Rows) -> None:
    assert [offset for offset, _ in written] == [n + n // RECORDS + 1 for n in range(WRITERS * RECORDS)]


@pytest.mark.parametrize("form", ["records", "one by one", "columns", "arrow"])
def test_client_reads_the_records(cluster: ThreadedCluster, written: Rows, form: str) -> None:
    async def consume() -> Rows:
        found: Rows = []
        async with cluster.cluster.consumer(TOPIC) as consumer:
            while await consumer.position(PLACE) <= written[-1][0]:
                if form == "records":
                    batches = await consumer.getmany(timeout_ms=1000)
                    found += [(r.offset, r.value or b"") for records in batches.values() for r in records]
                elif form == "one by one":
                    record = await consumer.getone(timeout_ms=1000)
                    found.append((record.offset, record.value or b""))
                else:
                    columns = [each for some in (await consumer.fetch_batches(timeout_ms=1000)).values() for each in some]
                    if form == "arrow":
                        rows = [row for batch in arrow_batches(columns) for row in batch.to_pylist()]
                        found += [(row["offset"], row["value"]) for row in rows]
                    else:
                        found += [pair for each in columns for pair in zip(each.offsets, map(bytes, each.values), strict=True)]
        return found

    assert cluster.run(consume()) == written


def test_sparks_source_reads_the_records(cluster: ThreadedCluster, written: Rows) -> None:
    """Ranges may begin and end at a fence."""
    options = {"bootstrap_servers": cluster.bootstrap_servers}
    view = ClusterView(options, Subscription((TOPIC,)))
    view.partitions()
    end = written[-1][0] + 1
    for width in (1, RECORDS + 1, end):
        reader = TaskReader(options, False, True, 20_000, 10)
        ranges = [Range(TOPIC, 0, at, min(at + width, end), topic_id=view.topic_ids[TOPIC]) for at in range(0, end, width)]
        rows = [row for each in ranges for batch in reader.read(each) for row in batch.to_pylist()]
        assert [(row["offset"], row["value"]) for row in rows] == written


def test_source_of_segment_files_reads_the_records(cluster: ThreadedCluster, folder: Path, written: Rows) -> None:
    for split in ("200b", "64m"):
        options = segment_options({"path": str(folder), "topics": TOPIC, "rows": "record", "splitBytes": split})
        rows = [row for task in plan(options) for part in task for some in read_part(part, options) for row in some.to_pylist()]
        assert {row["damage"] for row in rows} == {None}
        for broker in cluster.brokers:
            assert sorted((row["offset"], row["value"]) for row in rows if row["broker"] == broker) == written


def test_source_of_batches_shows_the_fences(folder: Path, cluster: ThreadedCluster, written: Rows) -> None:
    options = segment_options({"path": str(folder), "topics": TOPIC})
    rows = [row for task in plan(options) for part in task for some in read_part(part, options) for row in some.to_pylist()]
    fences = [row for row in rows if row["isControl"]]
    assert len(fences) == FENCES * len(cluster.brokers)
    assert {row["recordCount"] for row in fences} == {0}
    assert {row["damage"] for row in rows} == {None}


def test_describe_producers_shows_the_token_apart(cluster: ThreadedCluster, written: Rows) -> None:
    async def ask() -> tuple[int | None, int]:
        async with cluster.cluster.admin() as admin:
            (found,) = (await admin.describe_producers([PLACE])).values()
            return found.fencing_token, len(found.producers)

    assert cluster.run(ask()) == (WRITERS, WRITERS)


def test_log_dump_shows_the_fences(cluster: ThreadedCluster, folder: Path, written: Rows) -> None:
    first = next(path for path in sorted(folder.rglob(f"{TOPIC}-0/*.log")) if path.stem == "0" * 20)
    result = CliRunner().invoke(log.app, ["dump", "--records", "-o", "json", str(first)])
    assert result.exit_code == 0, result.output
    assert '"fencing_token": 1' in result.output


def test_verify_finds_nothing(tmp_path: Path) -> None:
    """`verify` has no finding in a cluster that was stopped in order, nor in one whose records were deleted."""

    async def live(deletes: bool) -> Rows:
        folder = tmp_path / str(deletes)
        async with Cluster(brokers=3, files="disk", folder=folder, log_segment_bytes=1500) as cluster:
            written = await write(cluster)
            if deletes:
                async with cluster.admin() as admin:
                    await admin.delete_records({PLACE: written[-1][0]})
            await cluster.stop(*cluster.brokers)
            return written

    for deletes in (False, True):
        written = asyncio.run(live(deletes))
        found = verify([tmp_path / str(deletes)])
        assert (found.is_ok, found.all_findings) == (True, ())
        (partition,) = found.partitions
        assert {replica.end for replica in partition.replicas} == {written[-1][0] + 1}
        if not deletes:
            assert {replica.records for replica in partition.replicas} == {len(written)}
