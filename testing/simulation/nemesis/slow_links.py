"""Links on which everything arrives late: they are clogged, narrow or slow, or lose segments that are then sent again."""

from __future__ import annotations

from random import Random

from strandline.testing.simulation.kernel.links import FAST
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan

CLOG_S_MAX = 5.0
Slowed = tuple[list[tuple[int, int]], tuple[int, ...]]
"""The slow links, and the nodes whose messages they delay."""


def _slow(nemesis: Nemesis, found: Slowed | None, **to: float) -> Effect | None:
    """Set attributes of the links; the end of the fault restores the defaults."""
    if found is None:
        return None
    network, (links, touches) = nemesis.network, found
    for link in links:
        for name, value in to.items():
            setattr(network.link(*link), name, value)

    def undo() -> None:
        normal = {"delay_s": network.delay_s, "jitter_s": network.jitter_s, "loss": 0.0, "bytes_per_s": FAST}
        for link in links:
            for name in to:
                setattr(network.link(*link), name, normal[name])

    return Effect({"nodes": touches, **to}, touches, undo)


def _some_links(nemesis: Nemesis, draw: Random) -> Slowed | None:
    """One link, all links of a node, or all."""
    scope = draw.choice(("link", "node", "node", "all"))
    touches: tuple[int, ...]
    if scope == "link" and len(nemesis.nodes) > 1:
        one, other = draw.sample(nemesis.nodes, 2)
        links, touches = [(one, other)], (one, other)
    elif scope == "all":
        everyone = nemesis.everyone_but()
        links, touches = [(a, b) for a in everyone for b in everyone if a != b], tuple(nemesis.nodes)
    else:
        node = draw.choice(nemesis.nodes)
        links, touches = nemesis.links_of(node), (node,)
    return (links, touches) if nemesis.budget.may_touch(touches) else None


@kind("clog")
def _clog(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Segments that are sent from now on leave at the end of the fault."""
    found = _some_links(nemesis, draw)
    if found is None:
        return None
    links, touches = found
    for link in links:
        nemesis.network.clog(*link, min(fault.duration_s, CLOG_S_MAX))
    return Effect({"nodes": touches}, touches, lambda: None)


@kind("narrow")
def _narrow(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Links have little bandwidth."""
    return _slow(nemesis, _some_links(nemesis, draw), bytes_per_s=draw.choice((5_000, 50_000, 500_000)))


@kind("delay")
def _delay(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    return _slow(nemesis, _some_links(nemesis, draw), jitter_s=draw.choice((0.005, 0.02, 0.1)))


@kind("loss")
def _loss(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    return _slow(nemesis, _some_links(nemesis, draw), loss=draw.choice((0.01, 0.05, 0.3)))
