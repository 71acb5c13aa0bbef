"""Eligible leader replicas (KIP-966): S25 and S26, and S64 to S67 with kills, changes of the min ISR, and a lost disk.

A replica that left the ISR when it had become smaller than the min ISR still has every committed record, and may lead if the ISR
is empty. A replica whose machine has lost power may not, before it has caught up."""

from __future__ import annotations

import asyncio

from strandline.protocol import apis
from strandline.protocol.messages.admin import (
    CONFIG_SET,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from strandline.testing.simulation.scenarios.stage import Stage, scenario


def elr(stage: Stage, index: int = 0) -> set[int]:
    return set(stage.registration(index).elr)


def min_isr_of(stage: Stage) -> str | None:
    """The min ISR that is set on the topic in the controller's metadata."""
    value: str | None = stage.cluster.image().config(RESOURCE_TOPIC, stage.topic).get("min.insync.replicas")
    return value


async def _stand_alone(stage: Stage) -> None:
    """Brokers 3 and 2 leave, in this order; broker 1 is alone in the ISR."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(10)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 10, what="all replicas have HW 10")
    stage.says("Broker 3 dies while two replicas suffice to commit records. Five more are written, which broker 3 lacks.")
    stage.crash(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 has left the ISR")
    await stage.append(5)
    stage.says("Broker 2 dies. From now on nothing is committed, so it may be elected.")
    stage.crash(2)
    await stage.until(lambda: stage.isr() == {1}, what="broker 1 is alone")
    stage.must(elr(stage) == {2}, "the ELR is broker 2, not broker 3")


@scenario("S25", "Last replica standing", source="KIP-966, motivation; Vanlightly's TLA+ models of it")
async def s25(stage: Stage) -> None:
    """The last member of the ISR loses power, and loses records that the other replicas still have. It returns first."""
    await _stand_alone(stage)
    produce = stage.start_produce(1, b"never", timeout_ms=1000)
    await stage.until(produce.done, what="a write to broker 1 is answered")
    stage.must(produce.exception() or produce.result().error_code, "broker 1 acknowledges nothing alone")
    stage.says("The machine of broker 1 loses power, and its page cache.")
    stage.crash(1, lossy=True)
    await stage.until(lambda: stage.leader() == -1, what="the partition has no leader")
    stage.must((stage.isr(), elr(stage)) == (set(), {1, 2}), "ISR empty, ELR 1 and 2: no node has detected the loss yet")
    stage.says("Broker 1 returns, and reports that it may have lost records.")
    stage.start(1)
    await stage.until(lambda: elr(stage) == {2}, what="broker 1 has left the ELR")
    stage.says("Broker 3, which lacks five records, returns.")
    stage.start(3)
    await stage.until(lambda: 3 in stage.cluster.brokers and stage.cluster.brokers[3].ready.is_set(), what="broker 3 is unfenced")
    await stage.sleep(1.0)
    stage.must(stage.leader() == -1, "neither of them leads")
    stage.says("Broker 2 returns. It only died, so it has every record.")
    stage.start(2)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    await stage.at_rest()


@scenario("S26", "Power fails everywhere", source="KIP-966, section on unclean shutdowns")
async def s26(stage: Stage) -> None:
    """Every machine loses power. No replica is eligible, and with the strategy `none` the partition waits for an operator."""
    await stage.open(replicas=[1, 2, 3], unclean_recovery_strategy="none")
    stage.permit_loss("all machines lose power at once")
    await stage.append(10)
    stage.says("All three machines lose power.")
    for node in (1, 2, 3):
        stage.crash(node, lossy=True)
    for node in (3, 1, 2):
        stage.start(node)
    await stage.until(
        lambda: len(stage.cluster.brokers) == 3 and all(broker.ready.is_set() for broker in stage.cluster.brokers.values()),
        what="all brokers are back",
    )
    await stage.until(lambda: not elr(stage), what="none is eligible")
    await stage.sleep(2.0)
    stage.must((stage.leader(), stage.isr(), elr(stage)) == (-1, set(), set()), "the partition waits")
    stage.must(len(stage.registration().last_known_elr) == 1, "its last leader is recorded")

    async def delete() -> None:
        async with stage.client.admin() as admin:
            await admin.delete_topics([stage.topic])

    stage.says("The operator deletes the topic.")
    await stage.client.run(delete())
    stage.topics.remove(stage.topic)


@scenario("S64", "All replicas are killed, one after the other and at once", source="KIP-966; kill -9 keeps the page cache")
async def s64(stage: Stage) -> None:
    """A killed process loses nothing, so the first member of the ELR that returns leads, whichever it is."""
    await stage.open(replicas=[1, 2, 3])
    for order in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
        await stage.append(3)
        stage.says(f"All are killed, and return in the order {', '.join(map(str, order))}.")
        for node in (1, 2, 3):
            stage.crash(node)
        await stage.leaderless()
        eligible = elr(stage)
        stage.must(len(eligible) >= 2, f"two replicas are eligible ({sorted(eligible)})")
        for node in order:
            stage.start(node)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in the ISR")
        await stage.until(lambda: stage.leads(stage.leader()), what="it is led")
    await stage.at_rest()


@scenario("S65", "The min ISR is raised, lowered and raised while there is an ELR", source="KAFKA-16540, PR 17952")
async def s65(stage: Stage) -> None:
    """Under a lower min ISR the leader commits records that the ELR lacks. So the ELR must not return with the higher min ISR."""
    await _stand_alone(stage)

    async def set_value(value: int) -> None:
        async def change() -> None:
            async with stage.client.admin() as admin:
                await admin.alter_configs("topic", stage.topic, {"min.insync.replicas": str(value)})

        stage.says(f"min.insync.replicas becomes {value}.")
        await stage.client.run(change())

    await set_value(3)
    await set_value(2)
    stage.must(elr(stage) == {2}, "broker 2 is still eligible")
    await set_value(1)
    stage.must(elr(stage) == set(), "broker 2 is no longer eligible")
    await stage.append(5)
    await set_value(3)
    await set_value(2)
    stage.must(elr(stage) == set(), "broker 2 lacks the five records, and is not eligible")
    stage.says("Broker 1 dies. Broker 2 returns, and waits for it.")
    stage.crash(1)
    await stage.leaderless()
    stage.start(2)
    await stage.until(lambda: 2 in stage.cluster.brokers and stage.cluster.brokers[2].ready.is_set(), what="broker 2 is unfenced")
    await stage.sleep(1.0)
    stage.must((stage.leader(), elr(stage)) == (-1, {1}), "broker 1 is eligible")
    stage.start(1)
    stage.start(3)
    await stage.until(lambda: stage.leader() == 1, what="broker 1 leads")
    await stage.at_rest()


@scenario("S67", "A leader that has not applied the raised min ISR", source="own: AlterPartition overtakes the metadata log")
async def s67(stage: Stage) -> None:
    """The controller applies the new min ISR and makes the removed member eligible, while the leader still uses the old one."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1, settings={"replica.lag.time.max.ms": 1000})
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == 5, what="both replicas have HW 5")
    stage.says("Broker 2 stops fetching, and broker 1 proposes to remove it from the ISR.")
    silent = stage.hold("Fetch", source=2, target=1)
    parked = stage.hold("Fetch", source=1, target=2, response=True)
    proposals = stage.hold("AlterPartition", source=1)
    produce = stage.start_produce(1, b"s67", timeout_ms=8000)
    await stage.until(lambda: proposals.has, what="the proposal is on its way")
    stage.says("min.insync.replicas becomes 2, and broker 1 receives the change late.")
    metadata = stage.hold("Fetch", source=101, target=1, response=True)

    value = AlterableConfig("min.insync.replicas", CONFIG_SET, "2")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(RESOURCE_TOPIC, stage.topic, [value])])
    changing = asyncio.get_running_loop().create_task(stage.ask(2, apis.INCREMENTAL_ALTER_CONFIGS, request), name="change")
    await stage.until(lambda: min_isr_of(stage) == "2", what="the controller has the new value")
    proposals.release()
    await stage.until(lambda: stage.knows_isr(1, {1}), what="broker 1 has applied that it is alone in the ISR")
    stage.must(elr(stage) == {2}, "broker 2 is eligible")
    await stage.sleep(0.2)
    is_refused = not produce.done() or produce.exception() or produce.result().error_code
    stage.must(stage.hw(1) == 5 and is_refused, "the HW does not move, and nothing is acknowledged")
    stage.says("Broker 1 dies, and broker 2 leads.")
    stage.crash(1)
    for hold in (metadata, silent, parked):
        hold.release()
    await changing
    await stage.until(lambda: stage.leader() == 2, what="broker 2 leads")
    stage.start(1)
    await stage.at_rest((1, 2))


@scenario("S66", "An eligible replica returns with an empty disk", source="KIP-966; KAFKA-18106")
async def s66(stage: Stage) -> None:
    """The disk of an eligible replica was replaced, and its process died once more before it could report that. The boot id is
    the same as before, so it does not reveal the loss."""
    await _stand_alone(stage)
    stage.wipe(2)
    stage.start(2)
    await stage.until(lambda: elr(stage) == set(), what="broker 2 has left the ELR")
    stage.crash(1)
    await stage.leaderless()
    stage.must(elr(stage) <= {1, 2}, "broker 2 is eligible only if it has caught up since")
    stage.start(1)
    await stage.until(lambda: stage.leader() in (1, 2), what="a replica leads")
    stage.start(3)
    await stage.at_rest()
