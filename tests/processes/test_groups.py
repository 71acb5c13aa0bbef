"""Members of a consumer group and nodes of the cluster are killed at random under load, as real processes (`group_trial.py`).

Five members read a topic of twelve partitions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from group_trial import perform

from strandline.local_cluster import LocalCluster

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]


async def test_group_reads_everything_while_processes_are_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    """Every acknowledged record is processed, no commit regresses, and no partition has two owners."""
    await perform(cluster, tmp_path, "killed-group", 12.0)


@pytest.mark.slow
async def test_group_reads_everything_in_five_minutes_of_kills(cluster: LocalCluster, tmp_path: Path) -> None:
    """The same for longer."""
    await perform(cluster, tmp_path, "killed-long-group", 300.0)
