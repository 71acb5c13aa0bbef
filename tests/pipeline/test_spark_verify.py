"""`verify` compares lake, ledger and copy with segment files, with a real Spark and without a broker."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from strandline.cli import pipeline
from strandline.pipeline.jobs.audit_ledger import Ledger
from strandline.pipeline.jobs.lake import encode
from strandline.pipeline.jobs.lake_folder import Folder, checksum
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.jobs.verify import verify
from strandline.pipeline.jobs.verify_page import page
from strandline.protocol.errors import UsageError
from strandline.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

TOPIC, COPY, COUNT = "orders", "orders-copy", 30


async def fill(cluster: Cluster, ledger: Path) -> None:
    async with cluster.producer() as producer:
        with Ledger(ledger) as acknowledged:
            for partition in (0, 1):
                for number in range(COUNT):
                    value = b"%d" % number
                    for topic in (TOPIC, COPY):
                        receipt = await producer.send_and_wait(topic, value, b"k", partition)
                        if topic == TOPIC:
                            acknowledged.add(receipt, value)


@pytest.fixture(scope="module")
def dead(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a cluster that no longer runs: `cluster` (its directories), `lake` and `acks.jsonl` (the ledger)."""
    folder = tmp_path_factory.mktemp("dead")

    def live(log: ThreadedCluster) -> None:
        for topic in (TOPIC, COPY):
            log.create_topic(topic, partitions=2)
        log.run(fill(log.cluster, folder / "acks.jsonl"))
        assert offload(spark, log.bootstrap_servers, TOPIC, folder / "lake").awaitTermination(120)
        log.run(log.cluster.stop(*log.cluster.brokers))  # A clean shutdown writes the high watermarks.

    with Cluster.running_in_thread(brokers=3, files="disk", folder=folder / "cluster") as log:
        live(log)
    return folder


@pytest.fixture
def world(dead: Path, tmp_path: Path) -> Path:
    shutil.copytree(dead, tmp_path / "world")
    return tmp_path / "world"


def check(spark: SparkSession, world: Path, **more: Any) -> tuple[str, ...]:
    """The kinds of all bad findings, sorted."""
    given = {"lake": world / "lake", "ledger": [world / "acks.jsonl"], "copies": {TOPIC: COPY}, "is_complete": True, **more}
    found = verify([world / "cluster"], [TOPIC], spark=spark, **given)
    assert found.is_ok == (not found.bad and not found.compared)
    text = page(found)
    assert all(finding.sentence.split(":")[0] in text for finding in found.compared)
    return tuple(sorted(finding.kind for finding in (*found.bad, *found.compared)))


def test_lake_ledger_and_copy_agree_with_the_segments(spark: SparkSession, world: Path) -> None:
    assert check(spark, world) == ()


def test_changed_row_in_the_lake_is_found(spark: SparkSession, world: Path) -> None:
    """The manifest has the checksum of the changed file, so only the records show the change."""
    folder = Folder(world / "lake")
    manifest = folder.manifest(0)
    file = manifest.files[0]
    path = world / "lake" / file.path
    table = pyarrow.parquet.read_table(path, partitioning=None)
    values = table["value"].to_pylist()
    other = pyarrow.array([*values[:-1], b"other"], table.schema.field("value").type)
    table = table.set_column(table.schema.get_field_index("value"), table.schema.field("value"), other)
    pyarrow.parquet.write_table(table, path)
    entry = replace(file, bytes=path.stat().st_size, crc32c=checksum(path))
    (world / "lake" / "_manifest" / f"{0:020}.json").write_bytes(encode(replace(manifest, files=(entry, *manifest.files[1:]))))
    assert check(spark, world, copies={}) == ("differs",)


def test_records_cut_from_every_replica_are_lost(spark: SparkSession, world: Path) -> None:
    """All logs are equal, so only checkpoints, ledger and lake show which records are missing."""
    for log in world.glob(f"cluster/**/{TOPIC}-0/{0:020}.log"):
        log.write_bytes(log.read_bytes()[: -log.stat().st_size // 2])
    kinds = check(spark, world)
    assert {"lost", "missing_below_hw", "lost_in_log", "foreign_in_lake", "doubled_in_copy"} <= set(kinds), kinds


def test_path_may_have_commas(spark: SparkSession, world: Path) -> None:
    world.rename(world.with_name("a, b"))
    assert check(spark, world.with_name("a, b")) == ()


def test_log_without_a_segment_is_compared(spark: SparkSession, world: Path) -> None:
    """Every replica lost all segment files of the partition, and only its folder exists."""
    for log in world.glob(f"cluster/**/{TOPIC}-1/{0:020}.*"):
        log.unlink()
    kinds = check(spark, world)
    assert {"lost", "missing_below_hw", "lost_in_log", "foreign_in_lake"} <= set(kinds), kinds


def test_executors_find_the_same_as_one_process(spark: SparkSession, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `verify --master`, each partition is a task of Spark. The result must not depend on it."""
    log = next(world.glob(f"cluster/**/{TOPIC}-1/{0:020}.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    here = json.loads(json.dumps(verify([world / "cluster"]).document))
    masters: list[tuple[str, str]] = []

    def session(job: str, master: str) -> AbstractContextManager[SparkSession]:
        """The session that tests share, which is not stopped."""
        masters.append((job, master))
        return nullcontext(spark)

    monkeypatch.setattr("strandline.cli.pipeline_verify.spark_for", session)
    result = CliRunner().invoke(pipeline.app, ["verify", str(world / "cluster"), "--master", "local[2]", "--json"])
    assert (result.exit_code, masters) == (3, [("verify", "local[2]")]), result.output
    assert json.loads(result.stdout) | {"made_at": ""} == here | {"made_at": ""}
    assert any(finding["kind"] == "damaged" for partition in here["partitions"] for finding in partition["findings"])


def test_comparison_without_spark_is_refused(dead: Path) -> None:
    with pytest.raises(UsageError, match="compared only with Spark"):
        verify([dead / "cluster"], [TOPIC], lake=dead / "lake")
