"""One secure cluster of processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from strandline.local_cluster import LocalCluster


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path_factory.mktemp("cluster"), secure=True) as cluster:
        yield cluster
