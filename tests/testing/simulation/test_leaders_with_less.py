"""At level 0 of the metadata, without eligible leader replicas, the last in-sync replica leads again, whatever happened to its
disk. Then it must report a possible loss; without a report an operator believes that no record is lost (I20). From level 1 on the
broker reports the loss when it registers, and does not lead."""

from __future__ import annotations

import pytest

from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.scenarios.stage import Stage


async def _last_one(stage: Stage, harm: str) -> int:
    """Returns the number of times that the returned last in-sync replica reported a possible loss."""
    stage.on_machines = lambda machines: vars(stage.cluster).update(
        levels=dict.fromkeys(stage.cluster.controller_ids, LEVEL_0_ONLY)
    )
    await _lose(stage, harm)
    await stage.until(lambda: stage.leads(1), what="broker 1 leads")
    return stage.cluster.brokers[1].replicas.metrics.elected_with_missing_records


async def _lose(stage: Stage, harm: str) -> None:
    """Harm broker 1 while it is the last in-sync replica, and start it again."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == 5, what="all replicas have HW 5")
    stage.crash(2)
    await stage.until(lambda: stage.isr() == {1}, what="broker 1 is the last one")
    await stage.append(1)
    stage.crash(1, lossy=harm == "power lost")
    files = stage.cluster.machines[1].files
    if harm == "wiped":
        stage.wipe(1)
    elif harm == "torn":
        log = files.open("/data/orders-0/00000000000000000000.log", create=False)
        log.truncate(log.size - 5)
    stage.start(1)
    if harm == "wiped":  # and killed once more, when its disk shows only an empty log
        await stage.until(lambda: files.exists("/data/orders-0/partition.metadata"), what="its log is recreated")
        stage.crash(1)
        stage.start(1)


@pytest.mark.parametrize(("harm", "reports"), [("wiped", 1), ("torn", 1), ("power lost", 1), ("only killed", 0)])
def test_leader_with_missing_records_reports_it(harm: str, reports: int) -> None:
    world = World(7)
    try:
        assert world.run(_last_one(Stage(world), harm)) == reports
        assert world.trace.counts().get("log.partition.elected_with_missing_records", 0) == reports
    finally:
        world.close()


@pytest.mark.parametrize(("harm", "leads"), [("wiped", False), ("torn", False), ("power lost", False), ("only killed", True)])
def test_replica_that_may_lack_records_does_not_lead(harm: str, leads: bool) -> None:
    world = World(7)
    stage = Stage(world)

    async def story() -> None:
        await _lose(stage, harm)
        await stage.until(lambda: 1 in stage.cluster.brokers and stage.cluster.brokers[1].ready.is_set(), what="it is back")
        await stage.sleep(1.0)

    try:
        world.run(story())
        registration = stage.registration()
        assert (registration.leader, registration.isr, registration.elr) == ((1, (1,), ()) if leads else (-1, (), ()))
        assert world.trace.counts().get("log.partition.elected_with_missing_records", 0) == 0
    finally:
        world.close()


def test_a_new_partition_has_lost_nothing() -> None:
    """The leader creates its log in its first epoch, so it cannot have lost records."""
    world = World(8)

    async def story() -> int:
        stage = Stage(world)
        await stage.open(replicas=[1, 2, 3])
        await stage.append(1)
        stage.crash(1)
        await stage.until(lambda: stage.leads(2), what="broker 2 leads")
        return sum(broker.replicas.metrics.elected_with_missing_records for broker in stage.cluster.brokers.values())

    try:
        assert world.run(story()) == 0
    finally:
        world.close()
