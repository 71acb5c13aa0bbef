"""Real brokers with two disks each, under load: replicas move between the disks, and a disk fails.

A disk that is taken away is a directory that is renamed; a disk that is full is a small tmpfs, which needs root. The broker goes
on with its other disk, nothing that was acknowledged is lost, and the disk is used again after a restart.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from load import Load, until

from strandline.client import Admin, LogDirDescription, TopicPartition
from strandline.local_cluster import LocalCluster, Node
from strandline.protocol.errors import StrandlineError
from strandline.testing.replicas import compare_replicas

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="function")]

BOUND_S = 120.0
PARTITIONS = 6
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": 200}
"""A broker notices soon that a directory has gone, also if it has its files open."""


@pytest.fixture(autouse=True)
def whole() -> None:
    """Replaces the fixture that heals the cluster of this folder: these tests have clusters of their own."""


class TwoDisks(LocalCluster):
    """Three brokers with two log directories each."""

    def __init__(self, folder: Path, second_of_1: Path | None = None) -> None:
        self._second_of_1 = second_of_1
        super().__init__(folder, controllers=1, settings=SETTINGS)

    def second(self, node: Node) -> Path:
        return self._second_of_1 if self._second_of_1 is not None and node.id == 1 else node.folder / "disk2"

    def _config(self, node: Node) -> dict[str, Any]:
        config = super()._config(node)
        return config if node.role != "broker" else {**config, "log.dirs": [str(node.data), str(self.second(node))]}

    async def restart(self, node: Node) -> None:
        self.kill(node.name)
        await self.wait_ended(node.name)
        await self.start_node(node.name)


async def dirs_of(admin: Admin, broker_id: int) -> dict[str, LogDirDescription]:
    """Path -> directory of a broker; empty if it does not answer."""
    try:
        found = await admin.describe_log_dirs([broker_id], timeout_ms=5000)
    except StrandlineError:
        return {}
    return {one.path: one for one in found.get(broker_id, [])}


async def until_offline(admin: Admin, path: Path) -> None:
    async def is_offline() -> bool:
        found = (await dirs_of(admin, 1)).get(str(path))
        return found is not None and bool(found.error)

    await until(is_offline, "broker 1 has noticed that its disk has failed", BOUND_S)


async def until_moved(admin: Admin, path: Path, wanted: set[TopicPartition]) -> None:
    async def has_moved() -> bool:
        found = (await dirs_of(admin, 1)).get(str(path))
        return found is not None and wanted <= set(found.replicas)

    await until(has_moved, f"broker 1 has moved its replicas to {path.name}", BOUND_S)


async def check(cluster: TwoDisks, load: Load) -> None:
    await load.stop()
    await load.fully_replicated()
    verdict = await load.verdict()
    assert verdict.good, str(verdict)
    assert load.failed == []
    dirs = {str(path): path for node in cluster.brokers for path in (node.data, cluster.second(node))}
    compared = compare_replicas(dirs, load.topic)
    assert len(compared) == PARTITIONS
    for comparison in compared:
        assert comparison.equal, str(comparison)
        assert len(comparison.logs) == 3, f"each broker has one log: {comparison}"


@pytest.mark.slow
async def test_replicas_move_under_load_while_their_broker_dies(tmp_path: Path) -> None:
    async with TwoDisks(tmp_path / "cluster") as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        load, node = Load(cluster, "moved", partitions=PARTITIONS), cluster.broker(1)
        everything = {TopicPartition("moved", index) for index in range(PARTITIONS)}
        async with load:
            await load.preload(2)
            for path in (cluster.second(node), node.data, cluster.second(node)):
                results = await admin.alter_replica_log_dirs(1, dict.fromkeys(everything, str(path)))
                assert [result for result in results if result.code] == []
                if path == node.data:
                    await cluster.restart(node)
                await load.progress(500, BOUND_S)
                await until_moved(admin, path, everything)
            await check(cluster, load)


async def test_a_disk_that_is_taken_away_takes_only_its_partitions(tmp_path: Path) -> None:
    async with TwoDisks(tmp_path / "cluster") as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        load, node = Load(cluster, "taken", partitions=PARTITIONS), cluster.broker(1)
        disk, away = cluster.second(node), tmp_path / "away"
        async with load:
            await load.progress(500, BOUND_S)
            disk.rename(away)
            await until_offline(admin, disk)
            await load.progress(500, BOUND_S)
            assert (await dirs_of(admin, 1))[str(node.data)].replicas, "the broker goes on with its other disk"
            away.rename(disk)
            await cluster.restart(node)
            await load.progress(500, BOUND_S)
            await check(cluster, load)
            assert (await dirs_of(admin, 1))[str(disk)].replicas, "the disk is used again"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    path = tmp_path / "small"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("a tmpfs cannot be mounted here, which needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)


async def test_a_full_disk_takes_only_its_partitions(tmp_path: Path, small_disk: Path) -> None:
    cluster = TwoDisks(tmp_path / "cluster", small_disk / "data")
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        load, node = Load(cluster, "full", partitions=PARTITIONS), cluster.broker(1)
        async with load:
            await load.progress(300, BOUND_S)
            await load.preload(8)
            await until_offline(admin, small_disk / "data")
            await load.progress(300, BOUND_S)
            assert (await dirs_of(admin, 1))[str(node.data)].replicas, "the broker goes on with its other disk"
            enlarge(small_disk)
            await cluster.restart(node)
            await load.progress(300, BOUND_S)
            await check(cluster, load)
            assert (await dirs_of(admin, 1))[str(small_disk / "data")].replicas, "the disk is used again"
