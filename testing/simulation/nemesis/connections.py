"""Connections that break, fall silent, deliver their bytes in pieces, or are read late."""

from __future__ import annotations

from functools import partial
from random import Random

from strandline.protocol import apis
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan

BREAKABLE = (
    apis.PRODUCE,
    apis.PRODUCE,
    apis.FETCH,
    apis.ALTER_PARTITION,
    apis.BROKER_HEARTBEAT,
    apis.BROKER_REGISTRATION,
    apis.INIT_PRODUCER_ID,
    apis.METADATA,
)


@kind("reset")
def _reset(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Connections break, and both ends are notified."""
    node = nemesis.victim(draw, nemesis.nodes)
    if node is None:
        return None
    share = draw.choice((0.3, 1.0))
    others = [other for other in nemesis.everyone_but(node) if draw.random() < share]
    count = sum(nemesis.network.reset_between(node, other) for other in others)
    return Effect({"victim": node, "connections": count}) if count else None


@kind("reset_response")
def _reset_response(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Connections break when they deliver the next messages of one API. After a lost response the sender repeats its request."""
    api_key, is_request, times = draw.choice(BREAKABLE), draw.random() < 0.25, draw.choice((1, 2, 5))
    breaks = nemesis.network.breaks
    after, chance = draw.random() < 0.3, draw.choice((1.0, 0.3))
    nemesis.network.break_on(lambda m: m.api_key == api_key and m.is_request == is_request, times, after=after, chance=chance)
    entry = breaks[-1]

    def undo() -> None:
        if entry in breaks:
            breaks.remove(entry)

    if api_key == apis.BROKER_REGISTRATION:
        _register_one(nemesis, draw)
    return Effect({"api": apis.api_name(api_key), "is_request": is_request, "times": times}, (), undo)


def _register_one(nemesis: Nemesis, draw: Random) -> None:
    """Restart a broker, because otherwise no message of this API would be sent while the fault lasts."""
    node = nemesis.victim(draw, nemesis.running(nemesis.cluster.broker_ids))
    if node is not None:
        nemesis.cluster.crash(node)
        nemesis.start(node)


@kind("fragment")
def _fragment(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = draw.choice(nemesis.nodes)
    chance, bytes_max = draw.choice(((0.1, 1), (0.5, 7), (0.9, 100)))
    nemesis.network.fragment(node, chance, bytes_max)
    undo = partial(nemesis.network.fragment, node, 0.0)
    return Effect({"victim": node, "chance": chance, "bytes": bytes_max}, (), undo)


@kind("slow_reader")
def _slow_reader(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A node or a client reads the bytes that have arrived with a delay."""
    nodes = [*nemesis.nodes, *(m.id for m in nemesis.clients)]
    node, delay_s = nemesis.victim(draw, nodes), draw.choice((0.01, 0.1, 1.0))
    if node is None:
        return None
    nemesis.network.slow_reader(node, delay_s)
    touches = (node,) if node in nemesis.nodes else ()
    return Effect({"victim": node, "delay_s": delay_s}, touches, partial(nemesis.network.slow_reader, node, 0.0))


@kind("mute")
def _mute(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The present connections of a node with some machines die without notice; new ones work."""
    node = nemesis.victim(draw, nemesis.nodes)
    if node is None:
        return None
    others = [other for other in nemesis.everyone_but(node) if draw.random() < 0.4]
    count = sum(nemesis.network.mute_between(node, other) for other in others)
    return Effect({"victim": node, "connections": count}, (node,), lambda: None) if count else None
