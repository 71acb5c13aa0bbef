"""A slow disk slows only its own node, a full disk stops its broker, and a dead process cannot use its disk."""

from __future__ import annotations

import asyncio
import errno

import pytest

from strandline.storage.files import DiskError, MemoryFiles
from strandline.testing import Cluster, caught_up, fenced, isr, leader
from strandline.testing.kit.hosted import HostedNodes

SLOW_MS = 150


async def took_s(work: object) -> float:
    now = asyncio.get_running_loop().time
    began = now()
    await work  # type: ignore[misc]
    return now() - began


async def test_slow_disk_delays_each_write(cluster: Cluster) -> None:
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"0")
        cluster.slow_disk(1, SLOW_MS)
        assert await took_s(producer.send_and_wait(topic, b"1")) >= SLOW_MS / 1000
        cluster.slow_disk(1, 0)
        assert await took_s(producer.send_and_wait(topic, b"2")) < SLOW_MS / 1000


async def test_slow_disk_stalls_only_its_own_node(cluster: Cluster) -> None:
    """The event loop is shared, but not the disk: waiting for it must not block the loop."""
    slow = await cluster.create_topic("slow", replicas=[[1]], min_insync_replicas=1)
    fast = await cluster.create_topic("fast", replicas=[[2]], min_insync_replicas=1)
    async with cluster.producer() as one, cluster.producer() as other:
        await one.send_and_wait(slow, b"0")
        await other.send_and_wait(fast, b"0")
        cluster.slow_disk(1, 1500)
        sending = asyncio.ensure_future(one.send_and_wait(slow, b"1"))
        await asyncio.sleep(0.05)
        await other.send_and_wait(fast, b"1")
        assert not sending.done()
        cluster.slow_disk(1, 0)
        await sending


async def test_a_follower_with_a_very_slow_disk_leaves_the_isr(cluster: Cluster) -> None:
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    cluster.slow_disk(3, 1300)
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
        assert (await cluster.describe(topic)).isr == {1, 2}
        cluster.slow_disk(3, 0)
        await cluster.until(caught_up(topic))


async def test_broker_with_a_full_disk_stops_and_restarts_when_there_is_room(cluster: Cluster) -> None:
    """The next leader acknowledges the record that met the full disk, and no record is lost."""
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
        cluster.fill_disk(1)
        assert "full disk" in cluster.node(1).note
        await producer.send_and_wait(topic, b"2")
    await cluster.until((leader(topic) != 1) & (isr(topic) == {2, 3}) & fenced(1))
    assert cluster.node(1).state in ("running", "failed")
    cluster.free_disk(1)
    async with asyncio.timeout(5):
        while cluster.node(1).state != "failed":
            await asyncio.sleep(0.01)
    assert "No space left" in cluster.node(1).note
    await cluster.start(1)
    await cluster.until(caught_up(topic))
    await cluster.assert_no_acked_loss()


@pytest.mark.parametrize("files", ["memory", "disk"])
async def test_a_dead_process_reaches_its_disk_no_more(files: str) -> None:
    """A thread of the dead process may still run: the next process must have the disk to itself."""
    async with Cluster(brokers=1, files=files) as cluster:  # type: ignore[arg-type]
        topic = await cluster.create_topic()
        nodes = cluster.nodes
        assert isinstance(nodes, HostedNodes)
        process = nodes.nodes[1].process
        assert process is not None
        folder = f"{nodes.folder}/broker-1/{topic}-0"
        (name,) = [name for name in process.files.list(folder) if name.endswith(".log")]
        file = process.files.open(f"{folder}/{name}", create=False)
        await cluster.kill(1)
        for operation in (lambda: file.append([b"late"]), file.fsync, lambda: process.files.write(f"{folder}/x", b"late")):
            with pytest.raises(DiskError) as refused:
                operation()
            assert refused.value.errno == errno.EBADF
        await cluster.start(1)


async def test_writes_of_a_killed_process_survive_in_the_page_cache(cluster: Cluster) -> None:
    topic = await cluster.create_topic(replicas=[[1]], min_insync_replicas=1)
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    await cluster.kill(1)
    await cluster.start(1)
    assert [record.value for record in await cluster.read_all(topic)] == [b"1"]
    nodes = cluster.nodes
    assert isinstance(nodes, HostedNodes)
    assert isinstance(nodes.nodes[1].disk.files, MemoryFiles)
