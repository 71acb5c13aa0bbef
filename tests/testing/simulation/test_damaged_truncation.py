"""One flipped bit on one broker and one process crash of the leader: acks=all promises to survive both together.

The bit lies below the place to which a follower in the ISR has to truncate. A follower that cut its log at the bit instead
would be elected with the shorter log, and the third replica would truncate to follow it.
"""

from __future__ import annotations

import pytest

from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.scenarios.stage import Stage

LOG = "/data/orders-0/00000000000000000000.log"
COUNT = 20
BAD = 2
"""Offset of the damaged batch, which has acknowledged records behind it."""


async def _fork(stage: Stage) -> None:
    """Broker 2 leads for a while; then broker 1 leads again, without the last records of broker 2."""
    stage.crash(1)
    await stage.until(lambda: stage.leads(2), what="broker 2 leads")
    stage.start(1)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="the ISR is full again")
    holds = [stage.hold("Fetch", source=n, target=2) for n in (1, 3)]
    await stage.append(3, acks=1, broker=2)

    async def elect() -> None:
        async with stage.client.admin() as admin:
            await admin.elect_leaders()

    await stage.client.run(elect())
    await stage.until(lambda: stage.leads(1), what="broker 1 leads")
    for hold in holds:
        hold.release()


def _flip(stage: Stage) -> None:
    """Flip one bit in the highest byte of a length: whichever of the eight it is, the header is not plausible."""
    disk = stage.cluster.machines[2].files
    size = len(disk.read(LOG)) // stage.end(2)
    assert disk.rot(LOG, offsets=range(BAD * size + 8, BAD * size + 9))


async def _story(stage: Stage) -> None:
    await stage.open(replicas=[1, 2, 3])
    await stage.append(COUNT)
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {COUNT}, what="all know the high watermark")
    fetches = stage.hold("Fetch", source=2, target=1)
    await _fork(stage)
    _flip(stage)
    fetches.release()
    await stage.until(
        lambda: stage.end(2) < COUNT or stage.replica(2).log.corrupt_at is not None, what="broker 2 has met the damage"
    )
    stage.crash(1)
    await stage.until(lambda: stage.leader() in (2, 3) and stage.leads(stage.leader()), what="another one leads")
    await stage.until(lambda: len(stage.isr()) == 2 and stage.end(2) == stage.end(3), what="the two are in step")
    stage.must_have_all(stage.leader())
    stage.start(1)
    await stage.at_rest()
    stage.must(stage.replica(2).log.corrupt_at is None, "broker 2 is repaired")


@pytest.mark.parametrize("seed", range(5))
def test_damage_below_a_truncation_loses_no_record(seed: int) -> None:
    world = World(seed)
    try:
        world.run(_story(Stage(world)))
    finally:
        world.close()
