"""Replays with a real Spark: each record is written once and unchanged, also by a run that continues another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException

from strandline.pipeline.jobs import replay as job
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.jobs.replay import Replayed, replay
from strandline.pipeline.jobs.replay_plan import Checkpoint
from strandline.protocol.errors import StrandlineError, UsageError

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

    from strandline.client import ConsumerRecord
    from strandline.testing import ThreadedCluster

HOUR_MS = 3_600_000


class Source:
    """A topic with two partitions and records with known timestamps, and a target topic."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, folder: Path) -> None:
        self.spark, self.log, self.checkpoint = spark, log, folder / "checkpoint"
        self.topic = log.create_topic(partitions=2)
        self.to = log.create_topic(partitions=2)

    def fill(self, count: int, headers: bool = True) -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                for n in range(count):
                    more = [("n", b"%d" % n), ("empty", None)] if headers and n % 2 else None
                    key, value = (None if n % 5 == 0 else b"k%d" % (n % 7)), (None if n % 11 == 3 else b"%d" % n)
                    await producer.send(self.topic, value, key, n % 2, more, n * HOUR_MS)

        self.log.run(send())

    def run(self, **options: Any) -> Replayed:
        arguments = {"topic": self.topic, "to": self.to, "checkpoint": self.checkpoint, **options}
        return replay(self.spark, self.log.bootstrap_servers, **arguments)

    def expect_copy(self, since_ms: int = 0) -> None:
        """Compares all records of source and target, except for their offsets, in the order of each partition."""
        wanted = [r for r in self.log.read_all(self.topic) if r.timestamp_ms >= since_ms]
        assert by_partition(self.log.read_all(self.to)) == by_partition(wanted)


def by_partition(records: list[ConsumerRecord]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {0: [], 1: []}
    for r in sorted(records, key=lambda r: r.offset):
        found[r.partition].append((r.key, r.value, r.timestamp_ms, list(r.headers)))
    return found


@pytest.fixture
def source(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Source:
    return Source(spark, log, tmp_path)


def test_each_record_is_replayed_once_and_unchanged(source: Source, command: Callable[..., Result]) -> None:
    source.fill(120)
    first = source.run(name=f"copy of {source.topic}")
    assert (first.records, first.found) == (120, 0)
    source.expect_copy()
    source.log.send(source.topic, b"later", partition=0)
    words = ["--topic", source.topic, "--to", source.to, "--checkpoint", str(source.checkpoint)]
    printed = command("replay", *words, "--bootstrap-servers", source.log.bootstrap_servers).stdout
    found = f"{source.to} has the 120 records of replay {first.name}, 120 of them from an earlier run"
    assert printed == f"{found}: there was nothing left to write\n"
    again = source.run()
    assert (again.name, again.records, again.found) == (first.name, 120, 120), "what came later was not asked for"
    with pytest.raises(UsageError, match=r"already has 120 records of a replay named .*, and this checkpoint has no plan of it"):
        source.run(checkpoint=source.checkpoint.parent / "lost", name=first.name)
    with pytest.raises(UsageError, match="was started with place = 'auto', not 'key'"):
        source.run(place="key")


def test_run_continues_after_the_rows_of_the_last_one(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run wrote its plan and a part of each partition. Records that arrived later are not part of the replay."""
    source.fill(100)

    def die(*_: object) -> None:
        raise RuntimeError("dies here")

    monkeypatch.setattr(job, "_run", die)
    with pytest.raises(RuntimeError):
        source.run()
    monkeypatch.undo()
    plan = Checkpoint(source.checkpoint).plan()
    assert plan is not None
    records = sorted(source.log.read_all(source.topic), key=lambda r: r.offset)

    async def write_some() -> None:
        for partition, count in ((0, 37), (1, 11)):
            async with source.log.cluster.producer(producer_name=plan.producer_name(partition)) as producer:
                for r in [r for r in records if r.partition == partition][:count]:
                    await producer.send(source.to, r.value, r.key, partition, list(r.headers) or None, r.timestamp_ms)

    source.log.run(write_some())
    source.log.send(source.topic, b"later", partition=1)
    done = source.run()
    assert (done.records, done.found) == (100, 48)
    assert len(source.log.read_all(source.to)) == 100


def test_recreated_source_is_data_loss(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are others than those of the plan, also if it has as many."""
    source.fill(20)
    monkeypatch.setattr(job, "_run", Mock(side_effect=RuntimeError("dies here")))
    with pytest.raises(RuntimeError, match="dies here"):
        source.run()
    monkeypatch.undo()

    async def delete() -> None:
        async with source.log.cluster.admin() as admin:
            await admin.delete_topics([source.topic])

    source.log.run(delete())
    source.log.create_topic(source.topic, partitions=2)
    source.fill(30)
    with pytest.raises(PySparkException, match=f"{source.topic}-.: the source was deleted and recreated .* another topic") as e:
        source.run()
    assert "set the option failOnDataLoss to false" not in str(e.value.getMessage()), "a later run must have the same options"
    assert source.log.read_all(source.to) == []


def test_lake_is_replayed_into_fewer_partitions(source: Source, tmp_path: Path) -> None:
    """Spark must not take the name of the lake for a pattern."""
    source.fill(60)
    servers, lake = source.log.bootstrap_servers, tmp_path / "lake[1]"
    assert offload(source.spark, servers, source.topic, lake, include_headers=True).awaitTermination(120)
    since = {"startingTimestamp": str(20 * HOUR_MS)}
    assert source.run(lake=lake, options=since, records_per_s=1_000_000).records == 40
    source.expect_copy(20 * HOUR_MS)
    small = source.log.create_topic(partitions=1)
    assert source.run(lake=lake, to=small, checkpoint=tmp_path / "small").records == 60
    assert sorted(r.timestamp_ms for r in source.log.read_all(small)) == [n * HOUR_MS for n in range(60)]


def test_wrong_arguments_leave_no_plan(source: Source, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="into itself would double its records"):
        source.run(to=source.topic)
    with pytest.raises(UsageError, match="a limit must be a number above 0"):
        source.run(bytes_per_s=0)
    with pytest.raises(UsageError, match="has no records of topic"):
        source.run(lake=tmp_path / "nothing")
    with pytest.raises((StrandlineError, PySparkException), match="nowhere"):
        source.run(to="nowhere", options={"strandline.max_block_ms": "2000"})
    assert Checkpoint(source.checkpoint).plan() is None, "nothing is settled by a replay that did not begin"
