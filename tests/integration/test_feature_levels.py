"""The level of the metadata: rolling upgrades, clusters of two versions, and nodes that are too old (KIP-584, KIP-778).

`level_0_cluster.tar.gz` holds the data directories of three controllers and three brokers that a version without levels wrote:
20 records with keys, one of a named producer and one without broker 3 in topic `orders`, a deleted topic, two later topics, a
changed configuration, a snapshot of the metadata and the log after it.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.client import RequestFailed
from strandline.controller.metadata.features import LEVEL_0_ONLY, SUPPORTED, Levels
from strandline.controller.metadata.records import LEVEL_MAX
from strandline.protocol.errors import ErrorCode
from strandline.testing import Cluster
from strandline.testing.kit.hosted import HostedNodes
from strandline.testing.kit.nodes import KitError, Nodes

RECORDED = Path(__file__).parent / "level_0_cluster.tar.gz"
LEVEL = "metadata.version"


class VersionedCluster(WireCluster):
    """A cluster whose nodes begin as an older version of the software: they support level 0 alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"controllers": 3, "brokers": 3, **options})

    def _hosted(self) -> Nodes:
        nodes = super()._hosted()
        assert isinstance(nodes, HostedNodes)
        for node in nodes.nodes.values():
            node.levels = LEVEL_0_ONLY
        return nodes

    async def install(self, node: int, levels: Levels = SUPPORTED) -> None:
        """Restart a node with a version that supports these levels."""
        await self.stop(node)
        self.hosted.nodes[node].levels = levels
        await self.start(node)

    async def level(self) -> int:
        async with self.admin() as admin:
            return (await admin.describe_features()).levels[LEVEL]

    async def upgrade(self, level: int = 1, **options: Any) -> None:
        async with self.admin() as admin:
            await admin.update_features(level, **options)

    async def refusal(self, level: int = 1, **options: Any) -> RequestFailed:
        with pytest.raises(RequestFailed) as e:
            await self.upgrade(level, **options)
        return e.value

    async def is_well(self, *values: str) -> None:
        """A record can be written and read, and a topic can be created."""
        topic = await self.create(f"topic-{'-'.join(values)}", replication_factor=3)
        await self.produce(topic, *values)
        await self.in_step(topic.topic_id, self.brokers)

    def everything_on(self, node: int) -> dict[str, bytes]:
        """All bytes on the node's disk."""
        files, folder = self.disk(node), f"{self.hosted.folder}/{self.hosted.nodes[node].name}"
        found: dict[str, bytes] = {}
        folders = [folder]
        while folders:
            here = folders.pop()
            for name in files.list(here):
                path = f"{here}/{name}"
                if files.is_dir(path):
                    folders.append(path)
                elif name != ".lock":
                    found[path] = bytes(files.read(path))
        return found


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path)
    return tmp_path


async def read_all(cluster: Cluster, count: int) -> set[str]:
    async with cluster.consumer() as consumer:
        await consumer.assign([("orders", 0), ("orders", 1)])
        found: set[str] = set()

        async def more() -> bool:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found.update(str(bytes(record.value or b""), "utf-8") for record in records)
            return len(found) >= count

        for _ in range(100):
            if await more():
                break
        return found


BEFORE = {*(f"before {number}" for number in range(20)), "before named", "before without 3"}


async def test_data_of_a_version_without_levels_is_upgraded(recorded: Path) -> None:
    """The new version starts on the old data and works at level 0, before and after restarts. After the upgrade and a rolling
    restart it has level 1, a second upgrade needs no restart, and every record is still there."""
    async with Cluster(controllers=3, files="disk", folder=recorded) as cluster:
        async with cluster.admin() as admin:
            found = await admin.describe_features()
            assert found.levels == {LEVEL: 0}
            assert [(b.broker_id, b.supported and b.supported[LEVEL].max_level) for b in found.brokers] == [
                (1, LEVEL_MAX),
                (2, LEVEL_MAX),
                (3, LEVEL_MAX),
            ]
            assert sorted(await admin.list_topics()) == ["more-0", "more-1", "orders"]
            assert (await admin.describe_configs("topic", "orders", ["retention.ms"]))[0].value == "-1"
            await admin.create_topics([_topic("at-level-0")])
        assert await read_all(cluster, len(BEFORE)) == BEFORE
        await cluster.restart(*cluster.controllers, 1)
        async with cluster.admin() as admin:
            assert (await admin.describe_features()).levels == {LEVEL: 0}
            await admin.update_features(1)
            assert (await admin.describe_features()).levels == {LEVEL: 1}
            await admin.create_topics([_topic("at-level-1")])
        async with cluster.producer(acks="all") as producer:
            await producer.send_and_wait("orders", b"after", partition=0)
        await cluster.restart(*cluster.controllers, *cluster.brokers)
        async with cluster.admin() as admin:
            assert (await admin.describe_features()).levels == {LEVEL: 1}
            await admin.update_features(LEVEL_MAX)
            assert (await admin.describe_features()).levels == {LEVEL: LEVEL_MAX}
            assert {"at-level-0", "at-level-1"} < set(await admin.list_topics())
        assert await read_all(cluster, len(BEFORE) + 1) == {*BEFORE, "after"}


def _topic(name: str) -> Any:
    from strandline.client import NewTopic

    return NewTopic(name, partitions=1, replication_factor=3)


async def test_a_new_cluster_begins_at_the_newest_level() -> None:
    async with Cluster(controllers=3) as cluster, cluster.admin() as admin:
        assert (await admin.describe_features()).levels == {LEVEL: LEVEL_MAX}


async def test_one_old_controller_prevents_the_upgrade() -> None:
    """This holds whether the old controller leads the quorum or follows. The cluster continues to work, and after the last
    controller has the new version the upgrade succeeds."""
    async with VersionedCluster() as cluster:
        for node in (1, 2, 3, 102, 103):
            await cluster.install(node)
        error = await cluster.refusal()
        assert error.code == ErrorCode.INVALID_UPDATE_VERSION
        assert "supports metadata.version 0, not 1" in str(error)
        await cluster.is_well("mixed")
        assert await cluster.level() == 0
        await cluster.install(101)
        await cluster.upgrade(validate_only=True)
        assert await cluster.level() == 0
        await cluster.upgrade()
        assert await cluster.level() == 1
        await cluster.is_well("upgraded")


async def test_one_old_broker_prevents_the_upgrade() -> None:
    async with VersionedCluster() as cluster:
        for node in (1, 2, 101, 102, 103):
            await cluster.install(node)
        error = await cluster.refusal()
        assert error.code == ErrorCode.INVALID_UPDATE_VERSION
        assert "broker 3 supports metadata.version 0, not 1: install the new version there first" in str(error)
        await cluster.is_well("mixed")


@pytest.mark.parametrize("node", [3, 103])
async def test_a_node_that_is_down_prevents_the_upgrade(node: int) -> None:
    """It may be of the old version. Its registration does not show it, because level 0 has no ranges."""
    async with VersionedCluster() as cluster:
        for other in (1, 2, 101, 102, *({3, 103} - {node})):
            await cluster.install(other)
        await cluster.stop(node)
        error = await cluster.refusal()
        assert error.code == ErrorCode.FEATURE_UPDATE_FAILED
        assert f"{'broker' if node == 3 else 'controller'} {node} supports are not known" in str(error)
        cluster.hosted.nodes[node].levels = SUPPORTED
        await cluster.start(node)
        await cluster.upgrade()
        assert await cluster.level() == 1


async def test_a_level_is_not_lowered_and_an_unknown_one_is_refused() -> None:
    async with VersionedCluster(controllers=1) as cluster:
        for node in (1, 2, 3, 101):
            await cluster.install(node)
        await cluster.upgrade()
        lower, higher, other = [
            await cluster.refusal(0),
            await cluster.refusal(7),
            await cluster.refusal(1, feature="kraft.version"),
        ]
        assert {e.code for e in (lower, higher, other)} == {ErrorCode.INVALID_UPDATE_VERSION}
        assert "cannot be lowered from 1 to 0" in str(lower)
        assert "this controller supports metadata.version 0 to 2, not 7" in str(higher)
        assert "there is no feature 'kraft.version'" in str(other)
        await cluster.upgrade(1)  # the level that it has already
        assert await cluster.level() == 1


@pytest.mark.parametrize("node", [2, 102])
async def test_a_node_that_is_too_old_refuses_to_start_and_changes_nothing(node: int) -> None:
    """It says so in one sentence. Installed with the new version, it takes part again."""
    async with VersionedCluster() as cluster:
        for each in (1, 2, 3, 101, 102, 103):
            await cluster.install(each)
        await cluster.upgrade()
        await cluster.is_well("upgraded")
        await cluster.stop(node)
        before = cluster.everything_on(node)
        cluster.hosted.nodes[node].levels = LEVEL_0_ONLY
        with pytest.raises(
            KitError, match=r"has level 1 \(metadata.version\), and this version of Strandline supports 0: start the"
        ):
            await cluster.start(node)
        await until(lambda: not cluster.hosted.nodes[node].is_up, "its process has ended")
        assert cluster.everything_on(node) == before
        cluster.hosted.nodes[node].levels = SUPPORTED
        await cluster.start(node)
        await cluster.is_well("again")


async def test_a_voter_that_is_too_old_and_fetches_the_level_stops_with_a_sentence() -> None:
    """Its disk did not show the level: it was emptied. It stops when the leader sends the level, and the others work on."""
    async with VersionedCluster() as cluster:
        for each in (1, 2, 3, 101, 102, 103):
            await cluster.install(each)
        await cluster.upgrade()
        await cluster.stop(103)
        files, folder = cluster.disk(103), f"{cluster.hosted.folder}/controller-103"
        files.remove_tree(folder)
        cluster.hosted.nodes[103].levels = LEVEL_0_ONLY
        await cluster.start(103, wait=False)
        await until(lambda: cluster.hosted.nodes[103].state == "failed", "controller 103 stops")
        assert "this version of Strandline supports 0" in cluster.hosted.nodes[103].note
        await cluster.is_well("without 103".replace(" ", "-"))


async def test_the_ranges_of_the_brokers_are_in_the_metadata_from_level_1_on() -> None:
    async with VersionedCluster(controllers=1) as cluster:
        for node in (1, 2, 3, 101):
            await cluster.install(node)
        assert {b.features for b in cluster.server(101).controller.committed.brokers.values()} == {()}
        await cluster.upgrade()
        ranges = [b.features for _, b in sorted(cluster.server(101).controller.committed.brokers.items())]
        assert ranges == [SUPPORTED.features] * 3
        await until(lambda: all(cluster.server(node).ready.is_set() for node in (1, 2, 3)), "no broker is fenced by it")
