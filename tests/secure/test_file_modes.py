"""Other users of the machine cannot read the files of a secure cluster."""

from __future__ import annotations

import stat

import pytest

from strandline.local_cluster import LocalCluster


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="session")
async def test_data_of_a_secure_cluster_is_for_its_owner(cluster: LocalCluster) -> None:
    """The metadata log has the credentials that verify passwords, and brokers' logs have the records that rights protect."""
    folders = [cluster.folder / "security", *(node.folder for node in cluster.nodes.values())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
