"""`verify` compares the index of aborted transactions with the batches: a wrong one shows aborted records to readers."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import transactions

from strandline.pipeline.jobs.verify import verify
from strandline.testing import Cluster

ENTRY = struct.Struct(">hqqqq")


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped broker with two aborted transactions, the first of which ends in an earlier segment."""
    folder = tmp_path_factory.mktemp("dead")
    with Cluster.running_in_thread(brokers=1, controllers=1, files="disk", folder=folder, log_segment_bytes=400) as log:
        log.create_topic("orders", partitions=1, replication_factor=1)
        transactions.written(log, "orders")
        log.run(log.cluster.stop(*log.cluster.brokers))
    return folder


@pytest.fixture
def cluster(dead: Path, tmp_path: Path) -> Path:
    shutil.copytree(dead, tmp_path / "cluster")
    return tmp_path / "cluster"


def indexes(cluster: Path) -> list[Path]:
    return sorted(cluster.rglob("orders-0/*.txnindex"))


def problems(cluster: Path) -> list[tuple[str, str]]:
    """Kind and detail of each bad finding."""
    return [(finding.kind, finding.detail.partition(": ")[2]) for finding in verify([cluster], ["orders"]).bad]


def test_log_with_transactions_has_no_finding(cluster: Path) -> None:
    """The markers and sequences of transactions are not reported."""
    assert len(indexes(cluster)) == 2
    found = verify([cluster], ["orders"], reads_records=True)
    assert (found.is_ok, [one.sentence for one in found.all_findings]) == (True, [])


def rewritten(change: Callable[[list[int]], list[int]]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(ENTRY.pack(*change(list(ENTRY.unpack(path.read_bytes())))))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (Path.unlink, "there is no entry for the transaction"),
        (lambda path: path.write_bytes(b""), "there is no entry for the transaction"),
        (lambda path: path.write_bytes(b"x"), "the file is damaged"),
        (rewritten(lambda entry: [1, *entry[1:]]), "the file is damaged"),
        (rewritten(lambda entry: [*entry[:2], entry[2] + 1, *entry[3:]]), "begins at offset"),
        (rewritten(lambda entry: [*entry[:3], entry[3] + 1, entry[4]]), "there is no entry for the transaction"),
        (lambda path: path.write_bytes(path.read_bytes() + ENTRY.pack(0, 1, 0, 3, 0)), "points to no marker"),
    ],
)
def test_wrong_index_of_aborted_transactions_is_found(cluster: Path, spoil: Callable[[Path], object], text: str) -> None:
    for path in indexes(cluster):
        spoil(path)
    found = problems(cluster)
    assert [kind for kind, _ in found] == ["transaction_index"] * 2
    assert all(text in detail for _, detail in found)


def test_old_index_after_a_kill_is_a_note(cluster: Path) -> None:
    """The broker saves the index of the last segment when it stops in order, and recovery rebuilds it after a kill."""
    (last,) = indexes(cluster)[-1:]
    last.unlink()
    for marker in cluster.rglob(".kafka_cleanshutdown"):
        marker.unlink()
    for checkpoint in cluster.rglob("recovery-point-offset-checkpoint"):
        checkpoint.unlink()
    assert problems(cluster) == []
    assert "index_old" in {finding.kind for finding in verify([cluster], ["orders"]).all_findings}


def test_transaction_that_began_before_the_log_is_no_finding(cluster: Path) -> None:
    """Retention has deleted the first segments, with the first records of the transaction."""
    first, *_ = sorted(cluster.rglob("orders-0/*.log"))
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    assert "transaction_index" not in {kind for kind, _ in problems(cluster)}
