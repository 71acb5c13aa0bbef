"""Plays a scenario: as it is written, with other delays, or with a fault that its author did not think of.

The seed selects:

    0 .. 99             as written; only what asyncio and the network leave open differs
    100 and up, even    delays, clocks, disks and turns drawn from the seed: every `must` still holds
    100 and up, odd     the same, and one random fault at a random moment: the story may fail because of it, and then ends

After the story, in every case, the faults end, all nodes run, and the cluster must come to rest with every acknowledged record
(I24).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.world import ProcessGone, World
from strandline.testing.simulation.scenarios.stage import Broken, Scenario, Stage

AS_WRITTEN = 100
"""Seeds below this one perturb nothing."""
REST_S = 60.0
CLIENTS = 200
"""All machines of clients have numbers above this one."""
ASTRAY = (Broken, OutOfTime, StrandlineError, ProcessGone, AttributeError, KeyError, RuntimeError, TypeError)
"""Errors of a story that finds a state which it does not expect."""


def is_perturbed(seed: int) -> bool:
    return seed >= AS_WRITTEN


def has_fault(seed: int) -> bool:
    return seed >= AS_WRITTEN and seed % 2 == 1


async def play(world: World, scenario: Scenario, seed: int, *, on_stage: Callable[[Stage], object] | None = None) -> Stage:
    """Play the story and bring the cluster to rest. Raises `Broken`, `OutOfTime` or a violation. `on_stage` is called with the
    stage when it is created."""
    stage = Stage(world, perturbed=has_fault(seed))
    if on_stage is not None:
        on_stage(stage)
    random = world.stream("perturbation")
    if is_perturbed(seed):
        perturb_delays(world, random)
        stage.on_machines = lambda machines: perturb_machines(machines, world, random)
    world.trace.emit("scenario.begins", 0, number=scenario.number, title=scenario.title, source=scenario.source)
    if not has_fault(seed):
        await scenario.story(stage)
    else:
        await _with_a_fault(stage, scenario, random)
    await come_to_rest(stage)
    return stage


def perturb_delays(world: World, random: Random) -> None:
    """Draw the delays of a sane network."""
    network = world.network
    network.delay_s = random.choice((0.000_02, 0.000_1, 0.001, 0.01))
    network.jitter_s = random.choice((0.0, 0.000_1, 0.001, 0.01))


def perturb_machines(machines: Iterable[Machine], world: World, random: Random) -> None:
    fragments = random.random() < 0.2
    for machine in machines:
        machine.clock_rate = random.uniform(0.95, 1.05)
        if fragments:
            world.network.fragment(machine.id, 0.1, random.choice((1, 7, 100)))


async def _with_a_fault(stage: Stage, scenario: Scenario, random: Random) -> None:
    fault = asyncio.get_running_loop().create_task(_fault(stage, random), name="fault")
    try:
        await scenario.story(stage)
    except ASTRAY as e:
        stage.world.trace.emit("scenario.astray", 0, reason=f"{type(e).__name__}: {e}")
    finally:
        fault.cancel()


async def _fault(stage: Stage, random: Random) -> None:
    """Cause one fault, some time after the cluster is up."""
    await stage.world.until(lambda: stage.topic, 120.0, "the stage is set")
    await asyncio.sleep(random.expovariate(1.0) * 2.0)
    nodes = [*stage.cluster.broker_ids, *stage.cluster.controller_ids]
    node, kind = random.choice(nodes), random.choice(("crash", "pause", "cut", "reset", "delay", "one-way"))
    lasts_s = random.choice((0.01, 0.5, 5.0)) * random.random() * 2
    emit = stage.world.trace.emit
    emit("fault.begin", node, fault=kind, lasts_s=round(lasts_s, 6))
    machine, network = stage.cluster.machines[node], stage.world.network
    if kind == "crash" and machine.is_up:
        stage.crash(node)
        await asyncio.sleep(lasts_s)
        if not stage.cluster.machines[node].is_up:
            stage.start(node)
    elif kind == "pause":
        machine.pause()
        await asyncio.sleep(lasts_s)
        machine.resume()
    elif kind in ("cut", "one-way"):
        stage.cluster.isolate(node, inbound=kind == "cut")
        await asyncio.sleep(lasts_s)
        stage.cluster.rejoin(node, inbound=kind == "cut")
    elif kind == "reset":
        network.reset_between(node, random.choice([n for n in nodes if n != node]))
    else:
        other = random.choice([n for n in nodes if n != node])
        network.link(node, other).delay_s += lasts_s
    emit("fault.end", node, fault=kind)


async def come_to_rest(stage: Stage) -> None:
    """End all faults and start all nodes, and wait until the cluster has healed."""
    if not stage.topic:
        return
    cluster, network = stage.cluster, stage.world.network
    stage.world.trace.emit("phase", 0, name="heal")
    network.heal()
    for machine in list(stage.world.machines.values()):
        if machine.id > CLIENTS and machine is not stage.client.machine:
            machine.crash()  # a story that went astray has not stopped its load
    for machine in cluster.machines.values():
        machine.resume()

    def are_back() -> bool:
        for node, machine in cluster.machines.items():
            if not machine.is_up:  # also a second time: an earlier fault may end a process only now
                cluster.start(node)
        return len(cluster.brokers) == len(cluster.broker_ids) and cluster.is_ready()

    await stage.until(are_back, REST_S, "all brokers are back")
    for topic in sorted(stage.topics):
        stage.topic = topic
        for index, partition in sorted(cluster.image().topic(topic).partitions.items()):
            await stage.at_rest(partition.replicas, index, REST_S)
