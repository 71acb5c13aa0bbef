"""Jobs on topics with transactions, with a real Spark: only committed records leave the log, and no other one counts as lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import transactions
from transactions import COMMITTED, UNCOMMITTED

from strandline.pipeline.jobs.audit import audit
from strandline.pipeline.jobs.audit_result import Audit
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.pipeline.jobs.materialize import materialize, read_snapshot
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.jobs.replay import replay
from strandline.pipeline.jobs.verify import verify
from strandline.protocol.errors import UsageError
from strandline.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

VALUES = {3: "yes 3", 4: "yes 4", 5: "yes 5", 7: "yes 7", 11: "yes 11"}


@pytest.fixture(scope="module")
def topic(log: ThreadedCluster) -> str:
    name = log.create_topic(partitions=1)
    transactions.written(log, name)
    return name


def ledger_of(folder: Path, topic: str, offsets: list[int]) -> Path:
    """A ledger of a producer that got an acknowledgement for every append, whether the transaction was committed or not."""
    path = folder / "acks.jsonl"
    path.write_text("".join(json.dumps({"topic": topic, "partition": 0, "offset": n}) + "\n" for n in offsets))
    return path


def kinds(found: Audit) -> dict[str, int]:
    return {finding.kind: finding.count for finding in found.findings}


def test_lake_of_committed_records_passes_audit(spark: SparkSession, log: ThreadedCluster, topic: str, tmp_path: Path) -> None:
    lake, ledger = tmp_path / "lake", ledger_of(tmp_path, topic, UNCOMMITTED)
    assert offload(spark, log.bootstrap_servers, topic, lake).awaitTermination(120)
    assert sum(file.count for file in read_manifest(lake).files) == len(COMMITTED)
    found = audit(spark, log.bootstrap_servers, topic, lake=lake, ledger=[ledger], is_complete=True)
    assert (found.is_ok, found.counts("uncommitted")) == (True, len(UNCOMMITTED) - len(COMMITTED)), found.findings
    assert found.count("log") == found.count("lake") == len(COMMITTED)


def test_acknowledged_record_that_is_in_no_transaction_is_still_lost(
    spark: SparkSession, log: ThreadedCluster, topic: str, tmp_path: Path
) -> None:
    """Offset 6 is a marker, so no record has it."""
    ledger = ledger_of(tmp_path, topic, [*UNCOMMITTED, 6])
    found = audit(spark, log.bootstrap_servers, topic, ledger=[ledger])
    assert {kind: count for kind, count in kinds(found).items() if kind != "gaps"} == {"lost_in_log": 1, "uncommitted": 5}


def test_aborted_records_in_a_lake_are_foreign(spark: SparkSession, log: ThreadedCluster, topic: str, tmp_path: Path) -> None:
    uncommitted = {"isolation.level": "read_uncommitted"}
    assert offload(spark, log.bootstrap_servers, topic, tmp_path / "lake", options=uncommitted).awaitTermination(120)
    found = audit(spark, log.bootstrap_servers, topic, lake=tmp_path / "lake")
    assert found.counts("foreign_in_lake") == len(UNCOMMITTED) - len(COMMITTED)
    assert audit(spark, log.bootstrap_servers, topic, lake=tmp_path / "lake", options=uncommitted).is_ok


def test_last_values_are_of_committed_records(spark: SparkSession, log: ThreadedCluster, topic: str, tmp_path: Path) -> None:
    materialize(spark, log.bootstrap_servers, topic, tmp_path)
    assert sorted(row.offset for row in read_snapshot(spark, tmp_path).collect()) == COMMITTED


def test_replay_writes_committed_records(spark: SparkSession, log: ThreadedCluster, topic: str, tmp_path: Path) -> None:
    """A run that continues must read the same rows, so it cannot have another isolation level."""
    target = log.create_topic(partitions=1)
    assert replay(spark, log.bootstrap_servers, topic, target, tmp_path).records == len(COMMITTED)
    rows = spark.read.format("strandline").option("bootstrap.servers", log.bootstrap_servers).option("subscribe", target).load()
    assert sorted(bytes(row.value).decode() for row in rows.collect()) == sorted(VALUES.values())
    with pytest.raises(UsageError, match=r"was started with isolation\.level = 'read_committed', not 'read_uncommitted'"):
        replay(spark, log.bootstrap_servers, topic, target, tmp_path, options={"kafka.isolation.level": "read_uncommitted"})


def test_verification_at_rest_counts_no_uncommitted_record_as_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Markers and sequences of transactions are not reported as findings either."""
    ledger = ledger_of(tmp_path, "orders", UNCOMMITTED)
    with Cluster.running_in_thread(brokers=3, files="disk", folder=tmp_path / "cluster") as log:
        log.create_topic("orders", partitions=1)
        transactions.written(log, "orders")
        assert offload(spark, log.bootstrap_servers, "orders", tmp_path / "lake").awaitTermination(120)
        log.run(log.cluster.stop(*log.cluster.brokers))
    given = {"lake": tmp_path / "lake", "ledger": [ledger], "is_complete": True, "reads_records": True}
    found = verify([tmp_path / "cluster"], ["orders"], spark=spark, **given)
    assert (found.bad, found.is_ok) == ((), True), found.compared
    assert found.comparison is not None
    assert found.comparison.counts("uncommitted") == len(UNCOMMITTED) - len(COMMITTED)
