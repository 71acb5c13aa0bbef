"""Compacted topics on real servers: what consumers read, what every replica holds, restarts, leader changes, stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from compacted_topic import COMPACTED, PLACE, create
from waiting import until
from wire_cluster import WireCluster

from strandline.client import Consumer, NewTopic, Producer
from strandline.storage.log.log import Log
from strandline.testing import Cluster


async def write(cluster: Cluster, rounds: range, keys: int = 5) -> dict[bytes, bytes]:
    """Write every key once a round, each record in a batch of its own; returns the last values."""
    last: dict[bytes, bytes] = {}
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer:
        for n in rounds:
            for key in range(keys):
                last[b"k%d" % key] = b"%d " % n * 30
                await producer.send_and_wait("users", last[b"k%d" % key], key=b"k%d" % key, partition=0)
    return last


async def read(cluster: Cluster) -> list[tuple[int, bytes, bytes | None]]:
    """Everything that a consumer reads from the start to the end."""
    found: list[tuple[int, bytes, bytes | None]] = []
    async with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        await consumer.assign([PLACE])
        await consumer.seek_to_beginning(PLACE)
        end = (await consumer.end_offsets([PLACE]))[PLACE]
        while await consumer.position(PLACE) < end:
            for records in (await consumer.getmany(timeout_ms=5000)).values():
                found += [(r.offset, bytes(r.key or b""), r.value and bytes(r.value)) for r in records]
    return found


def logs(cluster: WireCluster) -> list[Log]:
    return [p.log for node in cluster.running for p in cluster.server(node).replicas.partitions.values() if p.topic == "users"]


def is_clean(log: Log) -> bool:
    return len(log.segments) > 1 and log.first_dirty_offset == log.segments[-1].base_offset


async def compacted(cluster: WireCluster, replicas: int) -> None:
    """Wait until every replica has compacted its closed segments."""
    await until(lambda: len(logs(cluster)) == replicas and all(map(is_clean, logs(cluster))), within_s=20)


def closed_bytes(log: Log) -> int:
    return sum(segment.size for segment in log.segments[:-1])


@pytest.fixture
async def cluster() -> AsyncIterator[WireCluster]:
    made = WireCluster(brokers=3, log_cleaner_backoff_ms=50)
    await made.start()
    yield made
    await made.close()


async def test_every_replica_keeps_the_newest_record_of_each_key(cluster: WireCluster) -> None:
    await create(cluster)
    last = await write(cluster, range(60))
    await compacted(cluster, 3)
    assert all(closed_bytes(log) < 2500 for log in logs(cluster)), "15 segments have become one or two"
    found = await read(cluster)
    assert {key: value for _, key, value in found} == last
    assert len(found) < 60, "of 300 records"
    assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)


async def test_change_of_the_cleaners_backoff_takes_effect_without_a_restart() -> None:
    """Every broker waits for an hour by its file, and looks again as soon as the cluster gets another value."""
    async with WireCluster(brokers=3, log_cleaner_backoff_ms=3_600_000) as cluster:
        await create(cluster)
        await write(cluster, range(60))
        assert not any(log.first_dirty_offset for log in logs(cluster))
        async with cluster.admin() as admin:
            await admin.alter_configs("broker", "", {"log.cleaner.backoff.ms": 50, "log.cleaner.threads": 2})
            await compacted(cluster, 3)
            (found,) = await admin.describe_configs("broker", 2, ["log.cleaner.threads"])
        assert (found.value, found.source, [s.source for s in found.synonyms]) == ("2", "cluster", ["cluster", "default"])
        assert [cluster.server(node).log_cleaner.dead_threads for node in cluster.running] == [0, 0, 0]


async def test_compaction_goes_on_after_restarts_and_a_leader_change(cluster: WireCluster) -> None:
    await create(cluster)
    await write(cluster, range(30))
    await compacted(cluster, 3)
    leader = await cluster.leader_of("users")
    await cluster.kill(leader)
    await write(cluster, range(30, 60))
    await compacted(cluster, 2)
    await cluster.restart(leader)
    last = await write(cluster, range(60, 90))
    await compacted(cluster, 3)
    for node in cluster.brokers:
        await cluster.stop(node)
        await cluster.restart(node)
    await compacted(cluster, 3)
    found = await read(cluster)
    assert {key: value for _, key, value in found} == last
    assert len(found) < 90


async def test_policy_takes_effect_without_a_restart(cluster: WireCluster) -> None:
    await create(cluster, **{"cleanup.policy": "delete"})
    last = await write(cluster, range(30))
    async with cluster.admin() as admin:
        await admin.alter_configs("topic", "users", {"cleanup.policy": "compact"})
    await compacted(cluster, 3)
    assert {key: value for _, key, value in await read(cluster)} == last


async def test_processes_compact_their_logs(tmp_path: Path) -> None:
    """Real processes and files: killed in the middle, started again; the consumer reads the last values."""
    made = Cluster(brokers=3, processes=True, folder=tmp_path, log_cleaner_backoff_ms=50)
    await made.start()
    try:
        async with made.admin() as admin:
            await admin.create_topics([NewTopic("users", 1, 3, configs=COMPACTED)])
        await write(made, range(60))
        await made.kill(await made.leader_of("users"))
        last = await write(made, range(60, 120))
        for node in made.brokers:
            await made.restart(node)
        folders = list(tmp_path.rglob("users-0"))
        assert len(folders) == 3
        await until(lambda: all(segment_bytes(each) < 6000 for each in folders), "600 records of 230 bytes", within_s=30)
        assert {key: value for _, key, value in await read(made)} == last
    finally:
        await made.close()


def segment_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.log"))
