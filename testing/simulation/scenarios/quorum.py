"""The controllers' quorum and its metadata: S48 to S51."""

from __future__ import annotations

import asyncio
from functools import partial

from strandline.broker.config import BrokerConfig
from strandline.broker.process.server import BrokerServer
from strandline.client import NewTopic
from strandline.client.errors import ClientError
from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import BROKER_PORT
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.scenarios.stage import Broken, Stage, scenario


def _one_leader_an_epoch(stage: Stage) -> None:
    """Check from here on that no two controllers lead in the same epoch, not even one after the other (I1)."""
    leaders: dict[int, int] = {}

    def holds() -> bool:
        for node, server in stage.cluster.controllers.items():
            if server.has_quorum and server.quorum.is_leader and leaders.setdefault(server.quorum.epoch, node) != node:
                return False
        return True

    stage.always(holds, "no two controllers lead in the same epoch (I1)")


def _is_down(stage: Stage, node: int) -> bool:
    return node not in stage.cluster.controllers


@scenario("S48", "A vote that was not made durable", source="confluentinc/kafka#302; KAFKA-10527")
async def s48(stage: Stage) -> None:
    """A voter that loses its vote may vote twice, and then one epoch has two leaders. So a vote is on the disk before it is sent.
    And a leader that restarts in its own epoch does not lead in it again."""
    await stage.open(controllers=3)
    _one_leader_an_epoch(stage)
    for step in range(1, 7):
        await stage.until(lambda: stage.active_controller() > 0, what="a controller is active")
        active = stage.active_controller()
        voter = next(n for n in stage.cluster.controller_ids if n != active)
        stage.says(f"Controller {active} dies. Controller {voter} loses its power at step {step} of what it writes then.")
        epoch = stage.cluster.controllers[active].quorum.epoch
        machine = stage.cluster.machines[voter]
        before = machine.on_death
        machine.on_death = partial(stage.cluster.crash, voter, lossy=True)
        machine.files.crash_at(step)
        stage.crash(active)
        try:
            await stage.until(partial(_is_down, stage, voter), 5.0)
        except AssertionError:
            stage.cluster.crash(voter, lossy=True)  # its vote took fewer steps
        machine.on_death = before
        machine.files.heal()
        stage.start(voter)
        stage.start(active)
        await stage.until(lambda: stage.active_controller() > 0, 30.0, "a controller is active again")
        now = stage.cluster.controllers[stage.active_controller()].quorum.epoch
        stage.must(now > epoch, f"it leads in a later epoch: {now} > {epoch}")
    await stage.append(1)


@scenario("S49", "Nodes die while a snapshot is installed", source="KAFKA-12460, KAFKA-14618, KIP-630")
async def s49(stage: Stage) -> None:
    """A controller that was down for long gets a snapshot instead of the log. It dies at some step of the installation; its
    leader dies in the middle of the transfer. Afterwards it has the same metadata as the others."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": 2000, "metadata.log.segment.bytes": 4096}
    await stage.open(controllers=3, controller_settings=settings)
    _one_leader_an_epoch(stage)
    client = stage.client
    made = 0

    async def topics(count: int) -> None:
        nonlocal made
        async with client.admin() as admin:
            for _ in range(count):
                made += 1
                try:
                    await admin.create_topics([NewTopic(f"t{made}", partitions=4, replication_factor=3)])
                except ClientError as e:
                    stage.must("exists" in str(e), f"topic t{made}: {e}")

    def same_image(node: int) -> bool:
        server = stage.cluster.controllers.get(node)
        leader = stage.cluster.active_controller
        if server is None or leader is None or not server.has_quorum:
            return False
        ours, theirs = server.controller.image, leader.controller.image
        return bool(ours.offset == theirs.offset and list(ours.to_records()) == list(theirs.to_records()))

    for step in (0, 3, 6, 9, 12, -1):
        await stage.until(lambda: stage.active_controller() > 0, what="a controller is active")
        away = next(n for n in stage.cluster.controller_ids if n != stage.active_controller())
        stage.says(f"Controller {away} is away while so much changes that the others write a snapshot and drop their old log.")
        stage.crash(away)
        await client.run(topics(12))
        if step > 0:
            stage.says(f"It returns, and dies at step {step} of what it writes while it installs the snapshot.")
            stage.cluster.machines[away].files.crash_at(step)
        elif step < 0:
            stage.says("It returns, and its leader dies in the middle of the transfer.")
            stage.world.network.break_on(lambda m: m.api == "FetchSnapshot" and not m.is_request)
        stage.start(away)
        if step < 0:
            leader = stage.active_controller()
            stage.crash(leader)
            stage.start(leader)
        await stage.sleep(1.0)
        if away not in stage.cluster.controllers:
            stage.start(away)
        stage.cluster.machines[away].files.heal()
        await stage.until(partial(same_image, away), 30.0, f"controller {away} has the same metadata as its leader")


@scenario("S50", "The active controller is cut off", source="KAFKA-15489, KIP-996")
async def s50(stage: Stage) -> None:
    """A controller that is cut off can commit nothing, and must reject requests instead of keeping them waiting. When it is back,
    its old epoch must not depose its successor."""
    await stage.open(controllers=3)
    _one_leader_an_epoch(stage)
    old = stage.active_controller()
    server = stage.cluster.controllers[old]
    others = [n for n in stage.cluster.controller_ids if n != old]
    stage.says(f"Controller {old}, the active one, is cut off from the other two. The brokers still reach it.")
    stage.cut(old, others)
    cut_at = stage.world.now
    await stage.until(lambda: not server.quorum.is_leader, 5.0, "it resigns")
    limit_s = stage.cluster.controllers[old].config.raft.fetch_timeout_ms * 1.5 / 1000
    stage.must(stage.world.now - cut_at <= limit_s + 0.1, f"within 1.5 fetch time-outs: {stage.world.now - cut_at:.3f} s")
    await stage.until(lambda: stage.active_controller() in others, 10.0, "another is active")
    successor = stage.active_controller()
    epoch = stage.cluster.controllers[successor].quorum.epoch
    stage.says("Minutes pass. A topic is created; the data path never stopped.")
    await stage.append(3)
    await stage.create("payments", [[1, 2, 3]])
    await stage.sleep(20.0)
    stage.says(f"Controller {old} is back.")
    stage.mend(old, others)
    await stage.sleep(10.0)
    now = stage.cluster.controllers[successor].quorum
    stage.must(now.is_leader and now.epoch == epoch, f"controller {successor} still leads, in epoch {epoch}")
    await stage.until(lambda: server.quorum.high_watermark == now.high_watermark, 10.0, f"controller {old} has caught up")


@scenario("S51", "Two brokers with one id, and one of another cluster", source="KAFKA-16952, KIP-631")
async def s51(stage: Stage) -> None:
    """As long as broker 1's session lasts, no other process is accepted as broker 1. And no node accepts a node of another
    cluster."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(3)
    epoch = stage.cluster.image().brokers[1].broker_epoch

    def imposter(node: int, **changes: object) -> tuple[Machine, BrokerServer, asyncio.Task[None]]:
        machine = stage.world.add_machine(60 + len(stage.world.machines), f"imposter-{len(stage.world.machines)}")
        loop, doors, files = machine.boot()
        values = {
            "node.id": node,
            "cluster.id": "simulated-cluster",
            "listeners": f"PLAINTEXT://{machine.address}:{BROKER_PORT}",
            "log.dirs": "/data",
            "controller.quorum.voters": stage.cluster.voters,
            "initial.broker.registration.timeout.ms": 5000,
            **changes,
        }
        with stage.world.within(loop):
            server = BrokerServer(BrokerConfig.from_mapping(values), doors, files)
        return machine, server, machine.spawn(server.start(), "start")

    async def try_to_be(node: int, **changes: object) -> StrandlineError:
        machine, _, starting = imposter(node, **changes)
        try:
            await stage.world.join(starting)
        except StrandlineError as e:
            return e
        finally:
            machine.end()
        raise Broken(f"a second broker {node} was registered")

    stage.says("Another process registers as broker 1.")
    error = await try_to_be(1)
    stage.must("1" in str(error), f"it is refused: {error}")
    stage.must(stage.cluster.image().brokers[1].broker_epoch == epoch, "broker 1's registration is unchanged")
    stage.says("A broker of another cluster has the addresses of our controllers.")
    error = await try_to_be(7, **{"cluster.id": "another-cluster"})
    stage.must("cluster" in str(error), f"it is refused: {error}")
    stage.must(7 not in stage.cluster.image().brokers, "no broker 7 is registered")
    stage.must(stage.leads(1), "broker 1 leads, as before")
    await stage.append(1)

    stage.says("Broker 1 is paused until its session expires, and another machine replaces it, with an empty disk.")
    stage.pause(1)
    await stage.until(lambda: stage.cluster.image().brokers[1].fenced, what="broker 1 is fenced")
    machine, _, starting = imposter(1)
    await stage.world.join(starting)
    second = stage.cluster.image().brokers[1].broker_epoch
    stage.must(second > epoch, f"it is registered in a later epoch, {second}")
    stage.says("That machine dies. Then the old broker 1 is resumed, and sends its own epoch.")
    machine.crash()
    await stage.until(lambda: stage.cluster.image().brokers[1].fenced, what="the second one is fenced")
    stage.resume(1)
    await stage.sleep(3.0)
    known = stage.cluster.image().brokers[1]
    stage.must(known.broker_epoch != second or known.fenced, "no heartbeat of the old one keeps the second one's session")
    await stage.until(lambda: 1 not in stage.cluster.brokers or stage.cluster.image().brokers[1].broker_epoch > second, 30.0)
