"""Processes that end or are paused: one, all at once, or one after the other."""

from __future__ import annotations

import asyncio
from random import Random

from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan


def _take_down(nemesis: Nemesis, node: int, *, lossy: bool) -> Effect:
    if lossy and node in nemesis.cluster.broker_ids:
        nemesis.budget.lost(node)
    nemesis.cluster.crash(node, lossy=lossy)
    return keep_down(nemesis, node)


def keep_down(nemesis: Nemesis, node: int) -> Effect:
    """The effect of a fault that has ended the process of the node: it is not restarted until the fault ends."""
    nemesis.down[node] += 1

    def undo() -> None:
        nemesis.down[node] -= 1
        nemesis.start(node)

    return Effect({"victim": node}, (node,), undo)


@kind("crash")
def _crash(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    return None if node is None else _take_down(nemesis, node, lossy=False)


@kind("power")
def _power(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.may_lose(nemesis.role_weighted(draw)))
    return None if node is None else _take_down(nemesis, node, lossy=True)


@kind("controller_kill")
def _controller_kill(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    active = nemesis.cluster.active_controller
    return None if active is None else _take_down(nemesis, active.config.node_id, lossy=draw.random() < 0.5)


@kind("stop")
def _stop(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, [n for n in nemesis.running(nemesis.role_weighted(draw)) if n not in nemesis.stopping])
    if node is None:
        return None

    async def stop() -> None:
        await nemesis.stop(node)
        nemesis.start(node)

    nemesis.down[node] += 1
    task = asyncio.get_running_loop().create_task(stop(), name=f"stop {node}")

    def undo() -> None:
        nemesis.down[node] -= 1
        if task.done():
            nemesis.start(node)

    return Effect({"victim": node}, (node,), undo)


@kind("stop_power")
def _stop_power(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A broker is stopped in order and started again, and soon its machine loses its power: then the clean-shutdown marker of
    the orderly stop is no longer true."""
    stoppable = [
        n for n in nemesis.running(nemesis.cluster.broker_ids) if n not in nemesis.stopping and nemesis.budget.may_lose(n)
    ]
    node = nemesis.victim(draw, stoppable)
    if node is None:
        return None
    nemesis.spawn(_stop_and_cut(nemesis, node, draw), f"stop and power {fault.number}")
    return Effect({"victim": node})


async def _stop_and_cut(nemesis: Nemesis, node: int, draw: Random) -> None:
    nemesis.down[node] += 1
    try:
        await nemesis.stop(node)
    finally:
        nemesis.down[node] -= 1
    nemesis.start(node)
    await asyncio.sleep(draw.choice((0.3, 1.0, 2.0)) * draw.uniform(0.3, 1.5))
    if nemesis.budget.may_lose(node) and nemesis.budget.may_touch((node,)):
        nemesis.budget.lost(node)
        nemesis.cluster.crash(node, lossy=True)
        nemesis.start(node)


@kind("pause")
def _pause(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    machine = nemesis.cluster.machines[node]
    machine.pause()
    return Effect({"victim": node}, (node,), machine.resume)


@kind("blackout")
def _blackout(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """All brokers, all controllers, or all nodes die at once, and each is restarted at its own time. Only controllers may lose
    their power in this way: all state that they have reported is on their disks."""
    victims = draw.choice(("brokers", "controllers", "all"))
    cluster = nemesis.cluster
    nodes = [n for n in nemesis.nodes if victims == "all" or (n in cluster.broker_ids) == (victims == "brokers")]
    nodes = nemesis.running(nodes)
    if not nodes or not nemesis.budget.may_touch(nodes):
        return None
    for node in nodes:
        lossy = draw.random() < 0.5 if node in cluster.controller_ids else False
        cluster.crash(node, lossy=lossy)
        nemesis.down[node] += 1
        nemesis.spawn(_come_back(nemesis, node, draw.uniform(0, fault.duration_s)), f"{node} comes back")
    return Effect({"victims": nodes})


@kind("power_many")
def _power_many(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Two or more brokers die within a moment, most of them by a loss of power, and each is restarted at its own time. Now and
    then one of them has an empty disk then. This happens only where losses are permitted, and if no disk rots, because a
    partition of which only the rotten replica is left cannot recover."""
    running = nemesis.running(nemesis.cluster.broker_ids)
    if nemesis.budget.enforced or nemesis.budget.rotten or len(running) < 2 or nemesis.cluster.active_controller is None:
        return None
    nodes = draw.sample(running, draw.randint(2, len(running)))
    wiped = draw.choice(nodes) if draw.random() < 0.2 else None
    gap_s = draw.choice((0.0, 0.0, 0.01, 0.2, 1.0))
    nemesis.spawn(_lose_power(nemesis, nodes, wiped, gap_s, fault, draw), f"power of many {fault.number}")
    return Effect({"victims": nodes})


async def _lose_power(
    nemesis: Nemesis, nodes: list[int], wiped: int | None, gap_s: float, fault: FaultPlan, draw: Random
) -> None:
    for node in nodes:
        nemesis.budget.lost(node)
        nemesis.cluster.crash(node, lossy=draw.random() < 0.8 or node == wiped)
        if node == wiped:
            nemesis.cluster.machines[node].files.wipe()
        nemesis.down[node] += 1
        nemesis.spawn(_come_back(nemesis, node, draw.uniform(0, fault.duration_s)), f"{node} comes back")
        await asyncio.sleep(draw.uniform(0, gap_s))


async def _come_back(nemesis: Nemesis, node: int, after_s: float) -> None:
    await asyncio.sleep(after_s)
    nemesis.down[node] -= 1
    nemesis.start(node)


@kind("rolling")
def _rolling(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Every node is stopped in order and started again, one after the other, as in a rolling upgrade."""
    nodes = draw.choice((nemesis.cluster.broker_ids, nemesis.cluster.controller_ids, nemesis.nodes))
    nemesis.spawn(_roll(nemesis, list(nodes)), "rolling restart")
    return Effect({"nodes": nodes})


async def _roll(nemesis: Nemesis, nodes: list[int]) -> None:
    for node in nodes:
        is_up = nemesis.cluster.machines[node].loop is not None and node not in nemesis.stopping
        if not is_up or not nemesis.budget.may_touch((node,)):
            continue
        with nemesis.budget.touching(node):
            nemesis.down[node] += 1
            try:
                await nemesis.stop(node)
            finally:
                nemesis.down[node] -= 1
            nemesis.start(node)
            await asyncio.sleep(0.5)
