"""Faults around the nodes: a wrong clock, a client that is paused or cut off, elections that a user requests."""

from __future__ import annotations

from random import Random

from strandline.testing.simulation.nemesis.cuts import cut
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan


@kind("clock_jump")
def _clock_jump(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A wall clock is wrong for a while: by a second, or by an hour."""
    machine = draw.choice([m for n, m in nemesis.world.machines.items() if n])
    jump_ms = int(draw.choice((1_000, 60_000, 3_600_000)) * draw.uniform(-1, 1))
    machine.wall_jump_ms += jump_ms

    def undo() -> None:
        machine.wall_jump_ms -= jump_ms

    return Effect({"machine": machine.name, "jump_ms": jump_ms}, (), undo)


@kind("client_pause")
def _client_pause(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A client is paused: it reads nothing, and its responses pile up at the brokers."""
    clients = nemesis.clients
    if not clients:
        return None
    machine = draw.choice(clients)
    machine.pause()
    return Effect({"client": machine.name}, (), machine.resume)


@kind("client_cut")
def _client_cut(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    clients = nemesis.clients
    if not clients:
        return None
    machine, some = draw.choice(clients), draw.random() < 0.5
    nodes = [n for n in nemesis.nodes if not some or draw.random() < 0.5]
    links = [link for node in nodes for link in ((node, machine.id), (machine.id, node))]
    return Effect({"client": machine.name, "nodes": nodes}, (), cut(nemesis, links))


@kind("elect")
def _elect(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Request an election of the preferred leaders."""
    client = nemesis.cluster.client()

    async def ask() -> None:
        try:
            async with client.admin(request_timeout_ms=1000, max_block_ms=1000) as admin:
                await admin.elect_leaders(timeout_ms=2000)
        except Exception as e:
            nemesis.world.trace.emit("client.gave_up", client.machine.id, reason=repr(e))

    client.spawn(ask(), "elect")
    return Effect({})
