"""A cluster that was closed leaves nothing behind: no task, no thread, no socket, no file, no route for log lines."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from strandline.protocol import loggers
from strandline.testing import Cluster, leader
from strandline.testing.kit.hosted import HostedNodes

DESCRIPTORS = Path("/proc/self/fd")


def descriptors() -> set[tuple[str, str]]:
    found = set()
    for entry in os.listdir(DESCRIPTORS):
        try:
            found.add((entry, os.readlink(DESCRIPTORS / entry)))
        except OSError:
            pass  # The descriptor of the listing itself.
    return found


async def quiet(cluster: Cluster) -> None:
    """Do nothing with the cluster."""


async def used(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer() as producer, cluster.consumer(topic) as consumer:
        await producer.send_and_wait(topic, b"1")
        await consumer.getone(timeout_ms=5000)


async def killed(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    first = await cluster.leader_of(topic)
    await cluster.kill(first)
    await cluster.until(leader(topic) != first)
    await cluster.start(first)
    await cluster.stop(first)


async def everything_at_once(cluster: Cluster) -> None:
    await used(cluster)
    cluster.partition([1], [2, 3])
    cluster.delay("Fetch", ms=10_000)
    cluster.drop("BrokerHeartbeat", silently=True)
    cluster.slow_disk(2, 5000)
    await cluster.pause(3)
    await cluster.kill(1)
    await asyncio.sleep(0.05)


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="counts open files by /proc, which this system does not have")
@pytest.mark.parametrize("files", ["memory", "disk"])
@pytest.mark.parametrize("story", [quiet, used, killed, everything_at_once])
async def test_a_closed_cluster_leaves_nothing_behind(
    story: Callable[[Cluster], Awaitable[None]],
    files: str,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    gc.collect()
    before = descriptors(), set(threading.enumerate()), asyncio.all_tasks()
    loops = []
    async with Cluster(files=files) as cluster:  # type: ignore[arg-type]
        await story(cluster)
        assert isinstance(cluster.nodes, HostedNodes)
        loops = list(cluster.nodes.remains)
        problems = [problem for loop in loops for problem in loop.problems]
    await asyncio.sleep(0)
    gc.collect()
    assert problems == []
    assert (descriptors(), set(threading.enumerate()), asyncio.all_tasks()) == before
    assert loggers.route is None
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [str(warning.message) for warning in recwarn] == []


async def test_cleanly_stopped_node_has_no_tasks_left(cluster: Cluster) -> None:
    """An orderly stop ends all tasks of the node, so the kit has none to close. It is the same in production."""
    await used(cluster)
    assert isinstance(cluster.nodes, HostedNodes)
    loops = {loop.speaker.node: loop for loop in cluster.nodes.remains}
    await cluster.stop()
    assert {name: [task.get_name() for task in loop.unfinished] for name, loop in loops.items()} == {name: [] for name in loops}


async def test_temporary_folder_is_removed_with_its_cluster() -> None:
    async with Cluster(brokers=1, files="disk") as cluster:
        assert isinstance(cluster.nodes, HostedNodes)
        folder = Path(cluster.nodes.folder)
        assert (folder / "broker-1").is_dir()
    assert not folder.exists()


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    """Its port is taken by the test, as if by another process."""
    import socket

    gc.collect()
    before = descriptors() if DESCRIPTORS.exists() else set()
    cluster = Cluster(brokers=1)
    nodes = cluster._hosted()
    cluster._nodes = nodes
    assert isinstance(nodes, HostedNodes)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", nodes.nodes[1].port.port))
        other.listen()
        with pytest.raises(Exception, match="broker-1: cannot listen"):
            await nodes.start_all()
    await cluster.close()
    assert (descriptors() if DESCRIPTORS.exists() else set()) == before
