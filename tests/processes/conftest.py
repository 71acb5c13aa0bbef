"""One cluster of six real processes for all tests of this folder. It is healed after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from strandline.local_cluster import LocalCluster

FAST_SESSIONS = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 300}
"""A paused broker is noticed twice as fast as by default: the tests wait for it."""


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=FAST_SESSIONS) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def whole(cluster: LocalCluster) -> AsyncIterator[None]:
    """Restart and resume nodes after each test, so that the next one finds six running nodes."""
    yield
    for node in cluster.nodes.values():
        if node.running and node.paused:
            cluster.resume(node.name)
        if not node.running:
            await cluster.start_node(node.name)
    await cluster.wait_ready()
