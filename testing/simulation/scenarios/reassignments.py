"""Partitions that move to other brokers (KIP-455): S78 and S79."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.testing.simulation.scenarios.stage import Stage, scenario


async def _reassign(stage: Stage, target: Sequence[int] | None, throttle_rate: int | None = None) -> None:
    """Begin to move the partition to these brokers, or cancel its reassignment (None)."""

    async def alter() -> None:
        async with stage.client.admin() as admin:
            (result,) = await admin.alter_partition_reassignments({("orders", 0): target}, throttle_rate=throttle_rate)
            if result.code:
                stage.must(False, f"the reassignment to {target} is accepted ({result.message})")

    await stage.client.run(alter())


def _assignment(stage: Stage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The replicas, and those of them that are being added and removed."""
    found = stage.registration()
    return found.replicas, found.adding_replicas, found.removing_replicas


async def _append(stage: Stage, count: int) -> None:
    """Append through the leader, as soon as it has received its newest epoch."""

    def leads() -> bool:
        leader, epoch = stage.leader(), stage.registration().leader_epoch
        return stage.leads(leader) and stage.replica(leader).leader_epoch == epoch

    await stage.until(leads, what="the leader has applied its epoch")
    await stage.append(count)


@scenario("S78", "A reassignment is cancelled, and the next one is replaced", source="KIP-455; KAFKA-15665, KAFKA-19975")
async def s78(stage: Stage) -> None:
    """Replicas that are added copy the log in addition to the original ones. The original ones leave when enough replicas of the
    target are in the ISR, and not before, even if the target was replaced in between."""
    await stage.open(replicas=[1, 2], brokers=4)
    await stage.append(10)
    stage.says("The partition moves to brokers 3 and 4, but broker 4 gets no record.")
    held = stage.hold("Fetch", source=1, target=4, response=True)
    await _reassign(stage, [3, 4])
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 3 is in the ISR")
    stage.must(_assignment(stage) == ((3, 4, 1, 2), (3, 4), (1, 2)), "the reassignment is not complete")
    stage.says("It is cancelled.")
    await _reassign(stage, None)
    stage.must(_assignment(stage) == ((1, 2), (), ()) and stage.isr() == {1, 2}, "the original replicas are back")
    await stage.until(lambda: not stage.has(3) and not stage.has(4), what="brokers 3 and 4 have deleted their logs")
    await _append(stage, 5)
    stage.says("It moves to brokers 3 and 4 again, and then to 4 and 2 instead.")
    held.release()
    held = stage.hold("Fetch", source=1, target=4, response=True)
    await _reassign(stage, [3, 4])
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 3 is in the ISR")
    await _reassign(stage, [4, 2])
    stage.must(_assignment(stage)[1:] == ((4,), (3, 1)), "broker 3 leaves with broker 1")
    await stage.append(5)
    held.release()
    await stage.until(lambda: _assignment(stage) == ((4, 2), (), ()), what="the reassignment is complete")
    stage.must(stage.isr() == {2, 4}, "both replicas are in the ISR")
    await stage.until(lambda: not stage.has(1) and not stage.has(3), what="brokers 1 and 3 have deleted their logs")
    await _append(stage, 5)
    await stage.at_rest((2, 4))


@scenario("S79", "A throttled replica is in the ISR before its reassignment is complete", source="KIP-73")
async def s79(stage: Stage) -> None:
    """The throttle slows down the copies of a reassignment. It does not slow down a copy that is already in the ISR: producers
    wait for that one, and it would leave the ISR again."""
    await stage.open(replicas=[1, 2], brokers=4, settings={"replica.lag.time.max.ms": 2000})
    await stage.append(5)
    stage.says("The partition moves to brokers 3 and 4 with 2,000 bytes per second. Broker 4 gets no record.")
    held = stage.hold("Fetch", source=1, target=4, response=True)
    await _reassign(stage, [3, 4], throttle_rate=2000)
    await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.knows_isr(1, {1, 2, 3}), what="broker 3 is in the ISR")
    stage.says("Ten records of 1,000 bytes are written, which takes five seconds at that rate.")
    began = stage.world.now
    for _ in range(10):
        answer = await stage.produce(1, b"x" * 1000)
        stage.must(not answer.error_code, "a record is acknowledged")
    stage.must(stage.world.now - began < 2.5, f"no producer waits for the throttle ({stage.world.now - began:.1f} s)")
    stage.must(stage.isr() == {1, 2, 3}, "broker 3 is still in the ISR")
    stage.says("Broker 4 gets its records. It is not in the ISR yet, and is slowed down.")
    began = stage.world.now
    held.release()
    await stage.until(lambda: _assignment(stage) == ((3, 4), (), ()), within_s=120.0, what="the reassignment is complete")
    stage.must(stage.world.now - began > 2.5, f"broker 4 has waited for the throttle ({stage.world.now - began:.1f} s)")
    stage.must(stage.registration().throttle_rate == 0, "the throttle has ended with the reassignment")
    await stage.at_rest((3, 4))
