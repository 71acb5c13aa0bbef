"""`materialize` with a real Spark: the table equals a Python dictionary, however many runs read the records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_world import run

from strandline.pipeline.errors import DataLoss
from strandline.pipeline.jobs.materialize import Materialized, materialize, read_snapshot
from strandline.pipeline.jobs.materialize_folder import SnapshotFolder
from strandline.pipeline.jobs.offload import offload
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

Change = tuple[bytes | None, bytes | None, int | None, int | None]
"""key, value, partition, timestamp"""


class Table:
    """A snapshot of one topic."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, root: Path, partitions: int = 2) -> None:
        self.spark, self.log, self.root = spark, log, root
        self.topic = log.create_topic(partitions=partitions)

    def send(self, *changes: Change) -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                for key, value, partition, time in changes:
                    await producer.send(self.topic, value, key, partition, None, time)

        self.log.run(send())

    def recreate(self, partitions: int) -> None:
        async def delete() -> None:
            async with self.log.cluster.admin() as admin:
                await admin.delete_topics([self.topic])

        self.log.run(delete())
        self.log.create_topic(self.topic, partitions=partitions)

    def run(self, **options: Any) -> Materialized:
        return materialize(self.spark, self.log.bootstrap_servers, self.topic, self.root, **options)

    def rows(self, version: int | None = None) -> dict[bytes, bytes]:
        rows = read_snapshot(self.spark, self.root, version).collect()
        table = {bytes(row.key): bytes(row.value) for row in rows}
        assert len(table) == len(rows), "each key is in the table once"
        return table

    @property
    def model(self) -> dict[bytes, bytes]:
        """The expected table, computed with a dictionary."""
        table: dict[bytes, bytes] = {}
        for record in sorted(self.log.read_all(self.topic), key=lambda r: (r.partition, r.offset)):
            if record.key is not None:
                table.pop(record.key, None)
                if record.value is not None:
                    table[record.key] = record.value
        return table


@pytest.fixture
def table(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Table:
    return Table(spark, log, tmp_path / "snapshot")


def some(count: int, seed: int) -> list[Change]:
    draw = random.Random(seed)
    return [(b"k%d" % draw.randrange(40), None if draw.random() < 0.2 else b"%d" % n, None, None) for n in range(count)]


def test_table_equals_a_dictionary_after_each_run(table: Table) -> None:
    table.send(*some(300, 1), (None, b"no key", None, None))
    first = table.run()
    assert (first.version, first.records, first.without_key, first.rows) == (1, 301, 1, len(table.model))
    before = table.model
    table.send(*some(200, 2))
    second = table.run(options={"minPartitions": "4"})
    assert (second.version, second.records) == (2, 200)
    assert table.rows() == table.model
    assert table.rows(1) == before, "the previous version is still readable"
    again = table.run()
    assert (again.version, again.records, again.is_new) == (2, 0, False)


@pytest.mark.parametrize("dies_in", ["bring", "publish"])
def test_dead_run_leaves_the_previous_version(table: Table, monkeypatch: pytest.MonkeyPatch, dies_in: str) -> None:
    """The run dies after Spark wrote its files and before the manifest: its files are not part of the table."""
    table.send(*some(50, 3))
    table.run()
    before = table.rows()
    table.send(*some(50, 4))

    def die(*_: object) -> None:
        raise RuntimeError("dies here")

    monkeypatch.setattr(SnapshotFolder, dies_in, die)
    with pytest.raises(RuntimeError, match="dies here"):
        table.run()
    monkeypatch.undo()
    assert table.rows() == before
    assert table.run().version == 2
    assert table.rows() == table.model


def test_key_in_two_partitions_is_refused_or_the_latest_counts(table: Table, tmp_path: Path) -> None:
    """A key moves when partitions are added to its topic. With "timestamp" two runs must give the same table as one, so
    tombstones are kept."""
    table.send((b"alice", b"1", 0, 1_000), (b"bob", b"1", 0, 1_000))
    table.run()
    table.send((b"alice", b"2", 1, 2_000), (b"bob", None, 1, 2_000), (b"alice", b"late", 0, 1_500))
    with pytest.raises(UsageError, match=r"2 keys of .* have records in several partitions, such as b'bob' in 0 and 1"):
        table.run()
    assert table.rows() == {b"alice": b"1", b"bob": b"1"}
    table.run(across="timestamp")
    assert table.rows() == {b"alice": b"2"}
    table.send((b"bob", b"late", 0, 1_800), (b"alice", None, 1, 1_200))
    table.run()
    assert table.rows() == {b"alice": b"late"}
    at_once = Table(table.spark, table.log, tmp_path / "at once")
    at_once.topic = table.topic
    at_once.run(across="timestamp")
    assert at_once.rows() == table.rows()


def test_records_without_a_key_are_skipped_or_refused(table: Table) -> None:
    table.send((None, b"v", 0, None), (None, b"v", 1, None))
    assert (table.run().without_key, table.rows()) == (2, {}), "only records without a key give an empty table"
    table.send((b"k", b"v", None, None), (None, b"v", None, None))
    with pytest.raises(UsageError, match=r"1 of 2 new records .* have no key"):
        table.run(without_key="refuse")
    assert table.rows() == {}


def test_runs_may_alternate_between_lake_and_log(table: Table, tmp_path: Path) -> None:
    """A lake has the offsets of the log, so a run can continue where a run with the other source ended."""
    lake = tmp_path / "lake"

    def offloaded() -> None:
        assert offload(table.spark, table.log.bootstrap_servers, table.topic, lake).awaitTermination(120)

    table.send(*some(100, 5))
    offloaded()
    assert table.run(lake=lake).records == 100
    table.send(*some(30, 6))
    assert table.run().records == 30
    table.send(*some(20, 7))
    offloaded()
    assert table.run(lake=lake).records == 20
    assert table.rows() == table.model


def test_names_of_folders_are_not_patterns(table: Table, tmp_path: Path) -> None:
    """Spark would not find the files, or read those of another folder, too."""
    table.root, lake = tmp_path / "snapshot[1]", tmp_path / "lake{1,2}*"
    table.send(*some(50, 5))
    assert offload(table.spark, table.log.bootstrap_servers, table.topic, lake).awaitTermination(120)
    assert table.run(lake=lake).records == 50
    table.send(*some(30, 6))
    assert table.run().records == 30
    assert table.rows() == table.model


def test_recreated_topic_is_merged_only_if_the_user_accepts_it(table: Table) -> None:
    """The new records begin at offset 0 again, and still replace those of the previous version. The new topic may have fewer
    partitions."""
    table.send(*((key, b"old", partition, None) for partition, key in enumerate((b"a", b"b")) for _ in range(5)))
    table.run()
    table.recreate(partitions=1)
    table.send((b"a", b"new", 0, None), *((b"%d" % n, b"new", 0, None) for n in range(10)))
    with pytest.raises(DataLoss, match=f"{table.topic}-0 was read up to offset 5, and its topic was deleted and recreated since"):
        table.run(options={"minPartitions": "2"})
    assert table.run(options={"failOnDataLoss": "false"}).records == 11
    assert table.rows() == {b"a": b"new", b"b": b"old", **{b"%d" % n: b"new" for n in range(10)}}
    table.send((b"b2", b"new", 0, None))
    assert table.run().records == 1, "the snapshot is of the new topic"


def test_accepted_loss_is_reported_once(table: Table) -> None:
    """The recreated topic may have no records yet. The next run has to continue after the loss, not fail again."""
    table.send((b"a", b"old", 0, None))
    table.run()
    table.recreate(partitions=2)
    with pytest.raises(DataLoss, match="recreated since"):
        table.run()
    accepted = table.run(options={"failOnDataLoss": "false"})
    assert (accepted.version, accepted.records, accepted.is_new) == (2, 0, True)
    assert (table.run().is_new, table.rows()) == (False, {b"a": b"old"})


def test_second_topic_in_a_snapshot_is_refused(table: Table, spark: SparkSession, log: ThreadedCluster) -> None:
    table.run()
    assert table.rows() == {}, "an empty topic is an empty table"
    other = Table(spark, log, table.root)
    with pytest.raises(UsageError, match=f"is of topic {table.topic}, not of {other.topic}"):
        other.run()


def test_command_prints_one_sentence(command: Callable[..., Result], log: ThreadedCluster, tmp_path: Path) -> None:
    topic = log.create_topic(partitions=1)
    log.send(topic, b"1", b"2", key=b"alice")
    words = ["materialize", "--topic", topic, "--to", str(tmp_path), "--bootstrap-servers", log.bootstrap_servers]
    made = command(*words)
    assert (made.exit_code, made.stdout) == (
        0,
        f"{tmp_path} is at version 1, with 1 key: 2 records read, 0 tombstones among them\n",
    )
    assert f"{topic} has no new records; {tmp_path} stays at version 1, with 1 key" in command(*words).stdout
    assert json.loads(command(*words, "--json").stdout)["is_new"] is False
    wrong = run("pipeline", *words, "--across", "guess")
    assert (wrong.code, wrong.out) == (2, "")
    assert "--across must be refuse or timestamp, not 'guess'" in wrong.err
