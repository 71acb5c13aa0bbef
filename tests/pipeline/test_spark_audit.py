"""An audit with a real Spark: it accepts a correct lake, and names each fault of lakes, ledgers and copies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
import pytest

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs import audit_frames as frames
from strandline.pipeline.jobs.audit import BOUNDS, audit, gaps_of
from strandline.pipeline.jobs.audit_ledger import Ledger
from strandline.pipeline.jobs.audit_result import BAD, NOTES, Audit, Partition
from strandline.pipeline.jobs.lake import DataFile, encode
from strandline.pipeline.jobs.lake_folder import Folder, checksum
from strandline.pipeline.jobs.offload import offload

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import DataFrame, SparkSession

    from strandline.testing import ThreadedCluster

COUNT = 40
"""Number of records of each partition in the lake."""


class AuditedTopic:
    """A topic with two partitions, a lake with all of its records, and a ledger with every acknowledgement."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, folder: Path) -> None:
        self.spark, self.log, self.folder = spark, log, folder
        self.lake, self.ledger = folder / "lake", folder / "acks.jsonl"
        self.topic = log.create_topic(partitions=2)

    def send(self, count: int, topic: str = "", prefix: bytes = b"") -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                with Ledger(self.ledger) as ledger:
                    for partition in (0, 1):
                        values = [prefix + b"%d" % n for n in range(count)]
                        first = await producer.send_and_wait(topic or self.topic, values[0], b"k", partition)
                        rest = await producer.send_many(topic or self.topic, values[1:], partition=partition)
                        if not topic:
                            ledger.add(first, values[0])
                            for acknowledged in rest:
                                ledger.add(acknowledged)

        self.log.run(send())

    def offload(self) -> None:
        assert offload(self.spark, self.log.bootstrap_servers, self.topic, self.lake).awaitTermination(120)

    def audit(self, **more: Any) -> Audit:
        given = {"lake": self.lake, "ledger": [self.ledger], **more}
        return audit(self.spark, self.log.bootstrap_servers, self.topic, **given)

    # -- harm ---------------------------------------------------------------------------------------------------------

    def rewrite(self, change: Callable[[pyarrow.Table], pyarrow.Table]) -> DataFile:
        """Changes the rows in the file of partition 0, and its manifest entry accordingly."""
        folder = Folder(self.lake)
        manifest = folder.manifest(0)
        file = next(file for file in manifest.files if file.partition == 0)
        path = self.lake / file.path
        table = change(pyarrow.parquet.read_table(path, partitioning=None))
        pyarrow.parquet.write_table(table, path)
        entry = replace(file, bytes=path.stat().st_size, crc32c=checksum(path), count=table.num_rows)
        files = tuple(entry if one.path == file.path else one for one in manifest.files)
        (self.lake / "_manifest" / f"{0:020}.json").write_bytes(encode(replace(manifest, files=files)))
        return entry


@pytest.fixture
def sent(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> AuditedTopic:
    """An audited topic without a lake. A test may change all of it."""
    audited = AuditedTopic(spark, log, tmp_path)
    audited.send(COUNT)
    return audited


@pytest.fixture
def audited(sent: AuditedTopic) -> AuditedTopic:
    """An audited topic with a lake. A test may change all of it."""
    sent.offload()
    return sent


@pytest.fixture(scope="module")
def whole(spark: SparkSession, log: ThreadedCluster, tmp_path_factory: pytest.TempPathFactory) -> AuditedTopic:
    audited = AuditedTopic(spark, log, tmp_path_factory.mktemp("whole"))
    audited.send(COUNT)
    audited.offload()
    return audited


@pytest.fixture
def harmed(whole: AuditedTopic, tmp_path: Path) -> AuditedTopic:
    """An audited topic whose lake and ledger a test may damage. It shares its topic with other tests."""
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    audited = copy(whole)
    audited.folder, audited.lake, audited.ledger = tmp_path, tmp_path / "lake", tmp_path / "acks.jsonl"
    return audited


def kinds(found: Audit) -> dict[str, int]:
    return {finding.kind: finding.count for finding in found.findings}


def test_names_of_folders_are_not_patterns(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> None:
    """Spark would not find the files, or read those of another folder, too."""
    (folder := tmp_path / "audited[1]*").mkdir()
    audited = AuditedTopic(spark, log, folder)
    audited.send(3)
    audited.offload()
    found = audited.audit()
    assert (found.is_ok, [found.count(source) for source in found.sources]) == (True, [6, 6, 6])


def test_records_after_the_end_of_the_lake_are_pending(audited: AuditedTopic) -> None:
    audited.send(5)
    found = audited.audit()
    assert (found.is_ok, kinds(found)) == (True, {"pending": 5})
    assert [(p.log_start, p.log_end, p.lake_end) for p in found.partitions] == [(0, COUNT + 5, COUNT)] * 2
    assert [found.count(source) for source in found.sources] == [90, 80, 90]
    first = found.intervals[0]
    assert (first.topic, first.partition) == (audited.topic, 0)
    assert (first.seen["lake"].first, first.seen["lake"].last) == (0, COUNT - 1)
    assert first.at_s is not None
    assert first.at_s <= first.seen["log"].first_ms / 1000 <= first.at_s + 3600
    assert audited.audit(is_complete=True).counts("lost_in_lake") == 10


def test_each_wrong_row_of_the_lake_is_found(harmed: AuditedTopic) -> None:
    """Manifest and checksums fit the file, so only the records show the faults."""

    def change(table: pyarrow.Table) -> pyarrow.Table:
        rows = table.to_pylist()
        rows[7]["value"] = b"other"
        rows[20] = rows[21]
        rows[30]["offset"] = 1000
        return pyarrow.Table.from_pylist(rows, schema=table.schema)

    file = harmed.rewrite(change)
    found = harmed.audit()
    place = f"{harmed.topic}-0"
    bad = {finding.kind: (finding.where, finding.count, finding.examples) for finding in found.bad}
    assert bad == {
        "differs": (place, 1, (f"offset 7, {file.path}",)),
        "lost_in_lake": (place, 2, ("offset 20", "offset 30")),
        "doubled_in_lake": (place, 1, (f"offset 21, {file.path}",)),
        "foreign_in_lake": (place, 1, ("offset 1000",)),
    }


def test_rows_of_a_truncated_file_are_lost(harmed: AuditedTopic) -> None:
    file = next(file for file in Folder(harmed.lake).manifest(0).files if file.partition == 1)
    os.truncate(harmed.lake / file.path, file.bytes - 100)
    found = harmed.audit()
    assert [finding.sentence for finding in found.bad if finding.kind == "damaged"] == [
        f"the lake is damaged: {file.path} has {file.bytes - 100} bytes, but its manifest says {file.bytes}"
    ]
    assert found.counts("lost_in_lake") == COUNT


def test_rows_of_a_file_listed_twice_are_doubled(harmed: AuditedTopic) -> None:
    folder = Folder(harmed.lake)
    manifest = folder.manifest(0)
    again = replace(manifest, number=1, after=manifest.ends, batch=1)
    (harmed.lake / "_manifest" / f"{1:020}.json").write_bytes(encode(again))
    found = harmed.audit()
    assert found.counts("doubled_in_lake") == 2 * COUNT
    assert any("overlaps" in finding.sentence for finding in found.bad)


def test_acknowledged_record_missing_in_the_log_is_lost(harmed: AuditedTopic) -> None:
    with harmed.ledger.open("a") as ledger:
        ledger.write(json.dumps({"topic": harmed.topic, "partition": 0, "offset": COUNT, "count": 3}) + "\n")
        ledger.write(json.dumps({"topic": harmed.topic, "partition": 1, "offset": 0, "crc32": 1}) + "\n")
        ledger.write('{"topic": "torn')
    found = harmed.audit()
    assert kinds(found) == {"lost_in_log": 3, "acknowledged_twice": 1, "acknowledged_other": 1, "torn_ledger": 0}
    assert found.bad[0].examples == tuple(f"offset {COUNT + n}" for n in range(3))


ROWS = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"


def test_gaps_and_deleted_records_are_notes(spark: SparkSession, tmp_path: Path) -> None:
    """The log begins at 10, has no records 12 to 14, and ends at 20."""

    def records(offsets: list[int]) -> DataFrame:
        at = datetime.fromtimestamp(1_763_791_200, UTC)
        return spark.createDataFrame([("orders", 0, offset, at, None, b"%d" % offset) for offset in offsets], ROWS)

    ledger = tmp_path / "acks.jsonl"
    ledger.write_text("".join(json.dumps({"topic": "orders", "partition": 0, "offset": n}) + "\n" for n in (3, 6, 12, 15)))
    rows = frames.log_rows(records([10, 11, *range(15, 20)]), has_ledger=True)
    rows = rows.unionByName(frames.lake_rows(records([*range(5, 12), 15])))
    rows = rows.unionByName(frames.ledger_rows(frames.ledger_lines(spark, [str(ledger)]), ["orders"]))
    bounds = spark.createDataFrame([("orders", 0, 10, 20, 5, 16, 16, False)], BOUNDS)
    collected = frames.by_interval(frames.by_offset(frames.superseded(rows, []), bounds), 3600).collect()
    counts = {kind: sum(row[kind] for row in collected) for kind in (*BAD, *NOTES)}
    assert {kind: count for kind, count in counts.items() if count} == {
        "lost_in_log": 1, "lost_in_lake": 1, "pending": 4, "expired": 5, "unheld": 1, "gaps": 3,
    }  # fmt: skip
    partition = Partition(topic="orders", partition=0, log_start=10, log_end=20, lake_end=16)
    assert gaps_of(collected, [partition]) == {TopicPartition("orders", 0): 2}


KEYS = {0: b"a", 1: b"b", 2: b"a", 3: None, 4: b"c", 5: b"d", 6: b"d", 7: b"e"}


@pytest.mark.parametrize("is_compacted", [True, False])
def test_record_that_compaction_removed_is_no_loss(spark: SparkSession, tmp_path: Path, is_compacted: bool) -> None:
    """The log has only 2 and 8. It lacks 4, the only record of "c": that one is lost. The deletions at 1 and 6 were removed when
    they were old, with the records that they deleted. 9 is only in the ledger."""

    def records(offsets: list[int], deletions: tuple[int, ...] = ()) -> DataFrame:
        at = datetime.fromtimestamp(1_763_791_200, UTC)
        values = {n: None if n in deletions else b"%d" % n for n in offsets}
        return spark.createDataFrame([("orders", 0, n, at, {**KEYS, 8: b"e"}[n], values[n]) for n in offsets], ROWS)

    ledger = tmp_path / "acks.jsonl"
    ledger.write_text("".join(json.dumps({"topic": "orders", "partition": 0, "offset": n}) + "\n" for n in range(10)))
    rows = frames.log_rows(records([2, 8]), has_ledger=True)
    rows = rows.unionByName(frames.lake_rows(records([0, 1, 2, 3, 4, 5, 6, 7, 8], deletions=(1, 6))))
    rows = rows.unionByName(frames.ledger_rows(frames.ledger_lines(spark, [str(ledger)]), ["orders"]))
    bounds = spark.createDataFrame([("orders", 0, 0, 10, 0, 10, 10, is_compacted)], BOUNDS)
    judged = frames.superseded(rows, ["orders"] if is_compacted else [])
    collected = frames.by_interval(frames.by_offset(judged, bounds), 3600).collect()
    counts = {kind: sum(row[kind] for row in collected) for kind in (*BAD, *NOTES)}
    found = {kind: count for kind, count in counts.items() if count and kind != "gaps"}
    if is_compacted:
        assert found == {"lost_in_log": 1, "foreign_in_lake": 1, "compacted": 7}
        assert {row.offset for row in frames.examples(frames.by_offset(judged, bounds)).collect()} == {4}
    else:
        assert found == {"lost_in_log": 8, "lost_in_lake": 1, "foreign_in_lake": 7}


def test_copy_is_compared_by_content(sent: AuditedTopic, log: ThreadedCluster) -> None:
    """A copy may have other partitions and another order. A record that is in the source twice must be in the copy twice."""
    copy = log.create_topic(partitions=1)
    records = [(record.key, record.value) for record in log.read_all(sent.topic)]

    async def send(what: list[tuple[bytes | None, bytes | None]]) -> None:
        async with log.cluster.producer() as producer:
            for key, value in what:
                await producer.send(copy, value, key)

    log.run(send(records[::-1]))
    well = sent.audit(lake=None, ledger=[], copies={sent.topic: copy})
    assert well.is_ok
    assert [(row.count, row.copied) for row in well.copies] == [(2 * COUNT, 2 * COUNT)]
    log.run(send([records[3], (None, b"foreign")]))
    sent.send(1, prefix=b"late")
    found = sent.audit(lake=None, ledger=[], copies={sent.topic: copy})
    assert kinds(found) == {"lost_in_copy": 2, "doubled_in_copy": 1, "foreign_in_copy": 1}
    assert sent.audit(lake=None, ledger=[], copies={sent.topic: copy}, grace_ms=3_600_000).counts("lost_in_copy") == 0


def test_command_writes_a_report_and_exits_with_3(harmed: AuditedTopic, command: Callable[..., Result], tmp_path: Path) -> None:
    words = ["--bootstrap-servers", harmed.log.bootstrap_servers, "--topic", harmed.topic, "--lake", str(harmed.lake)]
    well = command("audit", *words, "--complete")
    assert (well.exit_code, f"{2 * COUNT} records in the log" in well.output) == (0, True), well.output
    file = next(file for file in Folder(harmed.lake).manifest(0).files if file.partition == 1)
    os.truncate(harmed.lake / file.path, file.bytes - 100)
    done = command("audit", *words, "--ledger", str(harmed.ledger), "--html", str(tmp_path / "report.html"))
    assert done.exit_code == 3, done.output
    assert f"the lake is damaged: {file.path} has {file.bytes - 100} bytes" in done.stdout
    assert f"{harmed.topic}-1: {COUNT} records missing in the lake" in done.stdout
    assert f"problems found: damaged, {COUNT} lost in lake; {2 * COUNT} records in the log" in done.stderr
    assert "<svg" in (tmp_path / "report.html").read_text()
