"""Cut links: of a pair, of a node, or between two sides."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from strandline.testing.simulation.kernel.scheduler import cancel
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan


def cut(nemesis: Nemesis, links: list[tuple[int, int]]) -> Callable[[], None]:
    """Cut the links. Returns the function that mends them."""
    for link in links:
        nemesis.network.cut(*link)

    def mend() -> None:
        for link in links:
            nemesis.network.mend(*link)

    return mend


@kind("cut_node")
def _cut_node(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    return Effect({"victim": node}, (node,), cut(nemesis, nemesis.links_of(node)))


def _pair(nemesis: Nemesis, draw: Random) -> tuple[int, int] | None:
    if len(nemesis.nodes) < 2:
        return None
    one, other = draw.sample(nemesis.nodes, 2)
    return (one, other) if nemesis.budget.may_touch((one, other)) else None


@kind("cut_pair")
def _cut_pair(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    pair = _pair(nemesis, draw)
    if pair is None:
        return None
    one, other = pair
    return Effect({"victims": [one, other]}, pair, cut(nemesis, [(one, other), (other, one)]))


@kind("cut_one_way")
def _cut_one_way(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    pair = _pair(nemesis, draw)
    return None if pair is None else Effect({"source": pair[0], "target": pair[1]}, pair, cut(nemesis, [pair]))


@kind("half_open")
def _half_open(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """One direction of all links of a node carries nothing, and no process is notified."""
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    outbound = draw.random() < 0.5
    links = [(node, other) if outbound else (other, node) for other in nemesis.everyone_but(node)]
    return Effect({"victim": node, "direction": "out" if outbound else "in"}, (node,), cut(nemesis, links))


@kind("partition")
def _partition(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Two sides that cannot reach each other; the clients are on both."""
    everyone = nemesis.everyone_but()
    side = [n for n in everyone if draw.random() < draw.choice((0.3, 0.5))]
    rest = [n for n in everyone if n not in side]
    held_up = tuple(n for n in nemesis.nodes if n in side) if len(side) < len(rest) else tuple(nemesis.nodes)
    if not side or not rest or not nemesis.budget.may_touch(held_up):
        return None
    links = [link for one in side for other in rest for link in ((one, other), (other, one))]
    return Effect({"side": side}, tuple(nemesis.nodes), cut(nemesis, links))


@kind("swizzle")
def _swizzle(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Some nodes are cut off one by one, and reconnected one by one in another order."""
    nodes = [n for n in nemesis.nodes if draw.random() < 0.6]
    if not nodes or not nemesis.budget.may_touch(nodes):
        return None
    draw.shuffle(nodes)
    order = draw.sample(nodes, len(nodes))
    step_s = fault.duration_s / (2 * len(nodes) + 1)
    mends: dict[int, Callable[[], None]] = {}
    """Node that is cut off at present -> the function that reconnects it."""

    def go(node: int) -> None:
        mends[node] = cut(nemesis, nemesis.links_of(node))

    def come(node: int) -> None:
        if node in mends:
            mends.pop(node)()

    after = nemesis.world.scheduler.after
    entries = [after(step_s * index, go, node) for index, node in enumerate(nodes)]
    entries += [after(step_s * (len(nodes) + index), come, node) for index, node in enumerate(order)]

    def undo() -> None:
        for entry in entries:
            cancel(entry)
        for node in list(mends):
            come(node)

    return Effect({"victims": nodes, "back": order}, tuple(nodes), undo)
