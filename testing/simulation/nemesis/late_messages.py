"""Messages that are held back and arrive when their content is out of date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from strandline.protocol import apis
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.network import Hold, Message
from strandline.testing.simulation.kernel.world import OutOfTime
from strandline.testing.simulation.nemesis.connections import BREAKABLE
from strandline.testing.simulation.nemesis.cuts import cut
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan

HOLDABLE = (*BREAKABLE, apis.VOTE, apis.LIST_OFFSETS, apis.OFFSET_FOR_LEADER_EPOCH)
AMBUSHED = (
    *[(apis.ALTER_PARTITION, True)] * 5,
    (apis.ALTER_PARTITION, False),
    (apis.FETCH, True),
    (apis.FETCH, False),
    (apis.PRODUCE, True),
    (apis.BROKER_HEARTBEAT, False),
)
"""Messages about a state that may have changed when they arrive."""
AMBUSHES = {"crash": "is to crash", "pause": "is to be paused", "cut": "is to be cut off"}
LURK_S, FENCED_S = 3.0, 4.0
"""Longest waits, in seconds: for such a message (plus the duration of the fault), and until a broker is fenced or unfenced."""


@kind("hold")
def _hold(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Hold messages of one kind for a while, and everything behind them on their connections."""
    api_key, is_request, limit = draw.choice(HOLDABLE), draw.random() < 0.5, draw.choice((1, 1, 3, -1))
    node = draw.choice(nemesis.nodes)
    if not nemesis.budget.may_touch(nemesis.nodes):
        return None

    def matches(message: Message) -> bool:
        return message.api_key == api_key and message.is_request == is_request and node in (message.source, message.target)

    hold = nemesis.network.hold(matches, limit)
    what = {"api": apis.api_name(api_key), "is_request": is_request, "victim": node, "limit": limit}
    return Effect(what, tuple(nemesis.nodes), hold.release)


@kind("ambush")
def _ambush(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Hold the next message of one kind until something has happened to another broker. Two separate faults would rarely coincide
    like that, and most checks of epochs exist for this case."""
    (api_key, is_request), how = draw.choice(AMBUSHED), draw.choice(("crash", "crash", "pause", "cut"))
    hold = nemesis.network.hold(lambda m: m.api_key == api_key and m.is_request == is_request, 1)
    nemesis.spawn(_lurk(nemesis, fault, hold, how, draw), f"ambush {fault.number}")
    name = f"{apis.api_name(api_key)} {'request' if is_request else 'response'}"
    return Effect({"text": f"the next {name} is held, and meanwhile a broker that has not sent it {AMBUSHES[how]}"})


async def _lurk(nemesis: Nemesis, fault: FaultPlan, hold: Hold, how: str, draw: Random) -> None:
    try:
        await nemesis.world.until(lambda: hold.has, LURK_S + fault.duration_s, "a message to be held")
        if not hold.has:
            return  # its connection has ended, and the message is lost
        message = hold.held[0]
        with nemesis.budget.touching(message.source, message.target):  # Later messages wait as well, heartbeats too.
            others = [n for n in nemesis.cluster.broker_ids if n != message.source]
            victim = nemesis.victim(draw, nemesis.running(others))
            if victim is not None and nemesis.budget.may_touch((victim, message.source, message.target)):
                await _strike(nemesis, victim, how)
                await asyncio.sleep(draw.choice((0.0, 0.0, 0.01, 0.1)))
    except OutOfTime:
        pass
    finally:
        hold.release()


async def _strike(nemesis: Nemesis, victim: int, how: str) -> None:
    """Crash or silence the broker, and wait until the controller has fenced and unfenced it, if it does."""
    cluster, until = nemesis.cluster, nemesis.world.until
    before = _broker_epoch(cluster, victim)
    with nemesis.budget.touching(victim):
        if how == "crash":
            cluster.crash(victim)
            nemesis.start(victim)
        else:
            undo = _silence(nemesis, victim, how)
            try:
                await until(lambda: _broker_epoch(cluster, victim) < 0, FENCED_S, "it is fenced")
            finally:
                undo()
        await until(lambda: _broker_epoch(cluster, victim) >= before + (how == "crash"), FENCED_S, "it is unfenced")


def _silence(nemesis: Nemesis, victim: int, how: str) -> Callable[[], object]:
    """Pause the broker, or cut its links. Returns the function that ends this."""
    if how == "pause":
        machine = nemesis.cluster.machines[victim]
        machine.pause()
        return machine.resume
    return cut(nemesis, nemesis.links_of(victim))


def _broker_epoch(cluster: SimCluster, broker: int) -> int:
    """The broker epoch of the broker, if it is registered and unfenced; otherwise -1."""
    known = None if cluster.active_controller is None else cluster.image().brokers.get(broker)
    return -1 if known is None or known.fenced else int(known.broker_epoch)
