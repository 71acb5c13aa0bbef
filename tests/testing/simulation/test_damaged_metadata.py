"""The disk of a controller lies (the metadata log's side of S42): what the quorum has committed survives one lying disk and the
death of any process."""

from __future__ import annotations

import pytest

from strandline.controller.raft.metadata_log import DamagedMetadataLog
from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.observation.probes import Probes

LOG = "/data/__cluster_metadata-0/00000000000000000000.log"


def _active(cluster: SimCluster) -> int:
    active = cluster.active_controller
    assert active is not None
    return active.config.node_id


async def _create(cluster: SimCluster, topic: str) -> None:
    """Sends the request again if the response to the first attempt was lost."""
    while topic not in cluster.image().topics_by_name:
        try:
            await cluster.create_topic(topic, partitions=1, replication_factor=3)
        except StrandlineError:
            await cluster.world.until(lambda: cluster.active_controller is not None, 20)


async def _until_down(cluster: SimCluster, node: int) -> None:
    """Wait until the controller's process has ended because of its damaged log."""
    await cluster.world.until(lambda: not cluster.machines[node].is_up, 20, f"controller {node} does not start")
    assert isinstance(cluster.failures[-1][2], DamagedMetadataLog), cluster.failures
    assert cluster.failures[-1][1] == node


async def _lost_commit(world: World, cluster: SimCluster) -> None:
    """Two of three controllers commit a topic. One of them is killed, a bit of its flushed log flips, and it is started again;
    then the other one is killed. If the damaged voter has cut its log, it and the third elect a leader without the topic."""
    await cluster.start_all()
    first = _active(cluster)
    damaged, third = [n for n in cluster.controller_ids if n != first]
    await world.until(lambda: all(cluster.controllers[n].quorum.has_vote for n in cluster.controller_ids), 20, "all vote")
    cluster.isolate(third)
    await _create(cluster, "payments")
    assert _active(cluster) == first
    cluster.crash(damaged)
    disk = cluster.machines[damaged].files
    end = len(disk.read(LOG))
    assert disk.rot(LOG, offsets=range(end - 3, end - 2))
    cluster.start(damaged)
    await _until_down(cluster, damaged)
    cluster.crash(first)
    cluster.rejoin(third)
    cluster.start(damaged)
    await _until_down(cluster, damaged)
    cluster.start(first)
    await world.until(lambda: cluster.active_controller is not None, 30, "the two good ones elect")
    assert "payments" in cluster.image().topics_by_name
    cluster.start(damaged, wiped=True)
    await world.until(lambda: len(cluster.controllers) == 3 and cluster.controllers[damaged].has_quorum, 30, "it starts")
    await world.until(lambda: cluster.controllers[damaged].quorum.has_vote, 30, "it has learned, and votes")
    learned = cluster.controllers[damaged].controller
    await world.until(lambda: "payments" in learned.committed.topics_by_name, 10, "it knows the topic")


async def _stale_start(world: World, cluster: SimCluster) -> None:
    """A read returns old bytes while a controller starts. The controller takes that for damage and changes nothing, so the next
    start succeeds."""
    await cluster.start_all()
    await _create(cluster, "payments")
    victim = next(n for n in cluster.controller_ids if n != _active(cluster))
    await world.until(
        lambda: cluster.controllers[victim].quorum.log_end_offset == cluster.active_controller.quorum.log_end_offset,  # type: ignore[union-attr]
        20,
    )
    cluster.crash(victim)
    disk = cluster.machines[victim].files
    before = disk.read(LOG)
    # The first read only looks for the level of the metadata. It is tried last, because a start rewrites the end of the log.
    for skip in (1, 2, 3, 4, 0):
        fault = disk.stale_reads(LOG)
        fault.skip = skip
        cluster.start(victim)
        await world.until(lambda: _is_decided(cluster, victim), 20, "it starts, or ends")
        fault.end()
        assert all(isinstance(error, DamagedMetadataLog) for _, _, error in cluster.failures)
        cluster.crash(victim)
        assert disk.read(LOG)[: len(before)] == before
    assert cluster.failures, "a stale read of what is checked ends the process"
    cluster.start(victim)
    await world.until(lambda: victim in cluster.controllers and cluster.controllers[victim].has_quorum, 20, "it starts")


def _is_decided(cluster: SimCluster, node: int) -> bool:
    return not cluster.machines[node].is_up or (node in cluster.controllers and cluster.controllers[node].has_quorum)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("story", [_lost_commit, _stale_start])
def test_a_lying_disk_of_a_controller_costs_no_committed_metadata(seed: int, story) -> None:
    world = World(seed)
    cluster = SimCluster(world, controllers=3, brokers=3)
    invariants = Invariants(world.trace, on_violation=world.scheduler.fail)
    world.scheduler.after_step.append(invariants.after_step)
    try:
        with Probes(invariants):
            world.run(story(world, cluster))
    finally:
        world.close()
