"""A follower has a fork, and its leader has deleted the records that would show it.

Found by I4 (seed 17 of a torment with `log.retention.bytes`): the histories diverge below the leader's log start, so the leader
answers with its log start, and the follower keeps what it has below. Its own log start moves there with the next response. But
the new log start is saved later, and the files are deleted later still; a fork that a crash brings back must not be covered by a
high watermark.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.observation.probes import Probes
from strandline.testing.simulation.scenarios.stage import Stage

SETTINGS = {
    "broker.session.timeout.ms": 1000,
    "broker.heartbeat.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 600_000,
    "log.retention.check.interval.ms": 3_600_000,
    "log.segment.bytes": 400,
}


async def a_fork_below_the_leaders_log_start(stage: Stage) -> None:
    await stage.open(replicas=[1, 2, 3], settings=SETTINGS, controller_settings={"broker.session.timeout.ms": 1000})
    stage.says("Broker 1 leads. It is cut off, and takes fifty more records with acks=1.")
    await stage.append(10)
    stage.cut(1, [2, 3, 101])
    await stage.append(50, acks=1, broker=1)
    await stage.until(lambda: stage.leader() not in (1, -1) and stage.leads(stage.leader()))
    leader = stage.leader()
    stage.says("Another broker leads, goes on from offset 10, and lets go of all but its newest records.")
    await stage.append(60)
    log = stage.replica(leader).log
    log.config = replace(log.config, retention_bytes=1500)
    server = stage.cluster.brokers[leader]
    stage.cluster.machines[leader].call(server.log_manager_tasks.delete_old_segments, server.replicas)
    stage.must(10 < log.log_start_offset < 60, "its log starts behind the place where the histories part, within the fork")
    stage.says("Broker 1 is back, follows, and checkpoints its high watermark; then its process dies, and starts again.")
    stage.mend(1, [2, 3, 101])
    await stage.until(lambda: stage.end(1) == stage.end(leader))
    await asyncio.sleep(0.25)
    stage.crash(1)
    stage.start(1)
    await stage.until(lambda: stage.has(1), 30.0)
    await stage.at_rest([1, 2, 3])


def test_a_fork_below_the_leaders_log_start_is_gone_for_good():
    world = World(1)
    invariants = Invariants(world.trace, on_violation=world.scheduler.fail)
    world.scheduler.after_step.append(invariants.after_step)
    try:
        with Probes(invariants):
            world.run(a_fork_below_the_leaders_log_start(Stage(world)), limit_s=200.0)
    finally:
        world.close()
