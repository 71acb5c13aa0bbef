"""The nemesis: does what the plan says, as far as the budget permits, and undoes it again.

Each kind of fault is a function that picks its victim, begins, and returns an `Effect`: what it did, whom it holds up,
and how it ends. What the plan wants and the budget refuses (or what finds no victim) is left out and counted.

Beside the plan there is an operator: a process that ended by itself, because it could not go on, is started again after
a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from strandline.protocol import apis
from strandline.testing.simulation.budget import Budget
from strandline.testing.simulation.cluster import SimCluster
from strandline.testing.simulation.options import FaultPlan, Options
from strandline.testing.simulation.world import ProcessGone

OPERATOR_S = (0.3, 2.0)
"""How long it takes until somebody starts a process again that ended by itself."""


@dataclass(slots=True)
class Effect:
    """A fault that has begun."""

    what: dict[str, Any]
    """For the trace: the victim and the numbers."""
    touches: tuple[int, ...] = ()
    """The nodes that it holds up."""
    undo: Callable[[], object] | None = None
    """None: it is over as soon as it happened."""
    fault: FaultPlan | None = None


class Nemesis:
    def __init__(self, cluster: SimCluster, options: Options, budget: Budget) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.network = cluster.world.network
        self.options = options
        self.budget = budget
        self.counts: Counter[str] = Counter()
        """What was done."""
        self.skipped: Counter[str] = Counter()
        """What was not, because the budget refused it or nobody was there to suffer it."""
        self.down: Counter[int] = Counter()
        """By how many faults a node is kept down."""
        self.draw = self.world.stream("nemesis")
        self._active: dict[int, Effect] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._failures = 0
        self.going = True

    # -- the plan -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The plan, from now until the end of the faults."""
        began = self.world.now
        self.spawn(self._operate(), "operator")
        for fault in self.options.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - self.world.now))
            self.spawn(self._one(fault), f"fault {fault.number}")
        await asyncio.sleep(max(0.0, began + self.options.faults_s - self.world.now))

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine, name=name))

    async def _one(self, fault: FaultPlan) -> None:
        effect = KINDS[fault.kind](self, fault, Random(fault.draw))
        if effect is None:
            self.skipped[fault.kind] += 1
            return
        self.counts[fault.kind] += 1
        effect.fault = fault
        self.world.trace.emit("fault.begin", next(iter(effect.touches), 0), fault=fault.kind, number=fault.number, **effect.what)
        if effect.undo is not None:
            self._active[fault.number] = effect
            self.budget.touched.update(effect.touches)
            await asyncio.sleep(fault.duration_s)
            self.end(fault.number)

    def end(self, number: int) -> None:
        effect = self._active.pop(number, None)
        if effect is None:
            return
        assert effect.undo is not None
        assert effect.fault is not None
        effect.undo()
        self.budget.touched.subtract(effect.touches)
        self.world.trace.emit("fault.end", next(iter(effect.touches), 0), fault=effect.fault.kind, number=number)

    async def _operate(self) -> None:
        """The operator, and the budget's regular look."""
        while self.going:
            await asyncio.sleep(0.1)
            self.budget.look()
            failures = self.cluster.failures
            while self._failures < len(failures):
                _, node, _ = failures[self._failures]
                self._failures += 1
                self.spawn(self._restart_later(node), f"operator starts {node}")

    async def _restart_later(self, node: int) -> None:
        await asyncio.sleep(self.draw.uniform(*OPERATOR_S))
        self.start(node)

    def start(self, node: int) -> None:
        """Unless it runs, or another fault keeps it down."""
        if self.cluster.machines[node].loop is None and self.down[node] <= 0:
            self.cluster.start(node)

    # -- the heal -----------------------------------------------------------------------------------------------------

    def heal(self, left_out: Iterable[int] = ()) -> None:
        """Every fault ends, and every node runs, but for those that are left out."""
        self.going = False
        for task in self._tasks:
            task.cancel()
        for number in list(self._active):
            self.end(number)
        self.network.heal()
        for node, machine in self.cluster.machines.items():
            if node not in left_out:
                self.down[node] = 0
                machine.resume()
                self.start(node)

    def watch(self) -> None:
        """After the heal: processes that end by themselves are still started again."""
        self.going = True
        self.spawn(self._operate(), "operator")

    def is_core_up(self, left_out: Iterable[int]) -> bool:
        return all(m.loop is not None for n, m in self.cluster.machines.items() if n not in set(left_out))

    # -- victims ------------------------------------------------------------------------------------------------------

    def running(self, nodes: Iterable[int]) -> list[int]:
        return [n for n in nodes if self.cluster.machines[n].loop is not None]

    @property
    def nodes(self) -> list[int]:
        return [*self.cluster.broker_ids, *self.cluster.controller_ids]

    def victim(self, draw: Random, nodes: Iterable[int]) -> int | None:
        """One of these that may be held up now."""
        candidates = [n for n in nodes if self.budget.may_touch((n,))]
        return draw.choice(candidates) if candidates else None

    def role_weighted(self, draw: Random) -> list[int]:
        """Mostly brokers: they are what is tested most."""
        return self.cluster.broker_ids if draw.random() < 0.75 else self.cluster.controller_ids


Kind = Callable[[Nemesis, FaultPlan, Random], Effect | None]
KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    def register(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return register


# -- processes --------------------------------------------------------------------------------------------------------


def _take_down(nemesis: Nemesis, node: int, *, lossy: bool) -> Effect:
    if lossy and node in nemesis.cluster.broker_ids:
        nemesis.budget.lost(node)
    nemesis.cluster.crash(node, lossy=lossy)
    return _keep_down(nemesis, node)


def _keep_down(nemesis: Nemesis, node: int) -> Effect:
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
    nodes = nemesis.role_weighted(draw)
    candidates = [n for n in nodes if n in nemesis.cluster.controller_ids or nemesis.budget.may_lose(n)]
    node = nemesis.victim(draw, candidates)
    return None if node is None else _take_down(nemesis, node, lossy=True)


@kind("controller_kill")
def _controller_kill(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    active = nemesis.cluster.active_controller
    return None if active is None else _take_down(nemesis, active.config.node_id, lossy=draw.random() < 0.5)


@kind("stop")
def _stop(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    cluster = nemesis.cluster

    async def stop() -> None:
        try:
            await cluster.stop(node)
        except ProcessGone:
            pass
        nemesis.start(node)

    nemesis.down[node] += 1
    task = asyncio.get_running_loop().create_task(stop(), name=f"stop {node}")
    assert task is not None

    def undo() -> None:
        nemesis.down[node] -= 1
        if task.done():
            nemesis.start(node)

    return Effect({"victim": node}, (node,), undo)


@kind("pause")
def _pause(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    machine = nemesis.cluster.machines[node]
    machine.pause()
    return Effect({"victim": node}, (node,), machine.resume)


# -- the network ------------------------------------------------------------------------------------------------------


def _cut(nemesis: Nemesis, links: list[tuple[int, int]], what: dict[str, Any], touches: tuple[int, ...]) -> Effect:
    for link in links:
        nemesis.network.cut(*link)

    def undo() -> None:
        for link in links:
            nemesis.network.mend(*link)

    return Effect(what, touches, undo)


def _everyone_but(nemesis: Nemesis, *nodes: int) -> list[int]:
    return [n for n in nemesis.world.machines if n and n not in nodes]


@kind("cut_node")
def _cut_node(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    links = [link for other in _everyone_but(nemesis, node) for link in ((node, other), (other, node))]
    return _cut(nemesis, links, {"victim": node}, (node,))


@kind("cut_pair")
def _cut_pair(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    if len(nemesis.nodes) < 2:
        return None
    one, other = draw.sample(nemesis.nodes, 2)
    if not nemesis.budget.may_touch((one, other)):
        return None
    return _cut(nemesis, [(one, other), (other, one)], {"victims": [one, other]}, (one, other))


@kind("cut_one_way")
def _cut_one_way(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    if len(nemesis.nodes) < 2:
        return None
    one, other = draw.sample(nemesis.nodes, 2)
    if not nemesis.budget.may_touch((one, other)):
        return None
    return _cut(nemesis, [(one, other)], {"source": one, "target": other}, (one, other))


@kind("half_open")
def _half_open(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """One direction of everything at a node is dead, and nobody is told."""
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    outbound = draw.random() < 0.5
    links = [(node, other) if outbound else (other, node) for other in _everyone_but(nemesis, node)]
    return _cut(nemesis, links, {"victim": node, "direction": "out" if outbound else "in"}, (node,))


@kind("partition")
def _partition(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Two sides that do not see each other; the clients are on either."""
    everyone = _everyone_but(nemesis)
    side = [n for n in everyone if draw.random() < draw.choice((0.3, 0.5))]
    rest = [n for n in everyone if n not in side]
    held_up = tuple(n for n in nemesis.nodes if n in side) if len(side) < len(rest) else tuple(nemesis.nodes)
    if not side or not rest or not nemesis.budget.may_touch(held_up):
        return None
    links = [link for one in side for other in rest for link in ((one, other), (other, one))]
    return _cut(nemesis, links, {"side": side}, tuple(nemesis.nodes))


@kind("swizzle")
def _swizzle(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Some nodes are cut off one by one, and come back one by one in another order."""
    nodes = [n for n in nemesis.nodes if draw.random() < 0.6]
    if not nodes or not nemesis.budget.may_touch(nodes):
        return None
    draw.shuffle(nodes)
    order = draw.sample(nodes, len(nodes))
    step_s = fault.duration_s / (2 * len(nodes) + 1)
    cut: dict[int, list[tuple[int, int]]] = {}

    def go(node: int) -> None:
        cut[node] = [link for other in _everyone_but(nemesis, node) for link in ((node, other), (other, node))]
        for link in cut[node]:
            nemesis.network.cut(*link)

    def come(node: int) -> None:
        for link in cut.pop(node, ()):
            nemesis.network.mend(*link)

    after = nemesis.world.scheduler.after
    entries = [after(step_s * index, go, node) for index, node in enumerate(nodes)]
    entries += [after(step_s * (len(nodes) + index), come, node) for index, node in enumerate(order)]

    def undo() -> None:
        for entry in entries:
            entry.cancel()
        for node in list(cut):
            come(node)

    return Effect({"victims": nodes, "back": order}, tuple(nodes), undo)


def _slow(nemesis: Nemesis, links: list[tuple[int, int]], what: dict[str, Any], touches: tuple[int, ...], **to: float) -> Effect:
    """Change links, and set them back to what is normal."""
    network = nemesis.network
    for link in links:
        for name, value in to.items():
            setattr(network.link(*link), name, value)

    def undo() -> None:
        normal = {"delay_s": network.delay_s, "jitter_s": network.jitter_s, "loss": 0.0, "bytes_per_s": 1e9}
        for link in links:
            for name in to:
                setattr(network.link(*link), name, normal[name])

    return Effect(what, touches, undo)


def _links_of(nemesis: Nemesis, draw: Random) -> tuple[list[tuple[int, int]], tuple[int, ...]] | None:
    """One link, all of a node, or all."""
    scope = draw.choice(("link", "node", "node", "all"))
    if scope == "link" and len(nemesis.nodes) > 1:
        one, other = draw.sample(nemesis.nodes, 2)
        links, touches = [(one, other)], (one, other)
    elif scope == "all":
        everyone = _everyone_but(nemesis)
        links, touches = [(a, b) for a in everyone for b in everyone if a != b], tuple(nemesis.nodes)
    else:
        node = draw.choice(nemesis.nodes)
        links = [link for other in _everyone_but(nemesis, node) for link in ((node, other), (other, node))]
        touches = (node,)
    return (links, touches) if nemesis.budget.may_touch(touches) else None


@kind("clog")
def _clog(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """What is sent now arrives late, all of it."""
    found = _links_of(nemesis, draw)
    delay_s = draw.choice((0.2, 0.5, 1.0, 3.0))
    return None if found is None else _slow(nemesis, found[0], {"nodes": found[1], "delay_s": delay_s}, found[1], delay_s=delay_s)


@kind("delay")
def _delay(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    found = _links_of(nemesis, draw)
    jitter_s = draw.choice((0.005, 0.02, 0.1))
    what = {"jitter_s": jitter_s}
    return None if found is None else _slow(nemesis, found[0], {"nodes": found[1], **what}, found[1], jitter_s=jitter_s)


@kind("loss")
def _loss(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    found = _links_of(nemesis, draw)
    loss = draw.choice((0.01, 0.05, 0.3))
    return None if found is None else _slow(nemesis, found[0], {"nodes": found[1], "loss": loss}, found[1], loss=loss)


@kind("reset")
def _reset(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Connections break, both ends are told."""
    node = nemesis.victim(draw, nemesis.nodes)
    if node is None:
        return None
    share = draw.choice((0.3, 1.0))
    others = [other for other in _everyone_but(nemesis, node) if draw.random() < share]
    count = sum(nemesis.network.reset_between(node, other) for other in others)
    return Effect({"victim": node, "connections": count}) if count else None


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


@kind("reset_response")
def _reset_response(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The connection breaks under the next messages of one API: a response that is lost makes a duplicate."""
    api_key, is_request, times = draw.choice(BREAKABLE), draw.random() < 0.25, draw.choice((1, 2, 5))
    breaks = nemesis.network.breaks
    nemesis.network.break_on(lambda m: m.api_key == api_key and m.is_request == is_request, times)
    entry = breaks[-1]

    def undo() -> None:
        if entry in breaks:
            breaks.remove(entry)

    return Effect({"api": apis.api_name(api_key), "is_request": is_request, "times": times}, (), undo)


@kind("fragment")
def _fragment(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = draw.choice(nemesis.nodes)
    chance, bytes_max = draw.choice(((0.1, 1), (0.5, 7), (0.9, 100)))
    nemesis.network.fragment(node, chance, bytes_max)
    undo = partial(nemesis.network.fragment, node, 0.0)
    return Effect({"victim": node, "chance": chance, "bytes": bytes_max}, (), undo)


# -- elections --------------------------------------------------------------------------------------------------------


@kind("elect")
def _elect(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Somebody asks for the preferred leaders."""
    client = nemesis.cluster.client()

    async def ask() -> None:
        try:
            async with client.admin(request_timeout_ms=1000, max_block_ms=1000) as admin:
                await admin.elect_leaders(timeout_ms=2000)
        except Exception as e:
            nemesis.world.trace.emit("client.gave_up", client.machine.id, reason=repr(e))

    client.spawn(ask(), "elect")
    return Effect({})


@dataclass(slots=True)
class Core:
    """Who is healed first."""

    left_out: tuple[int, ...]
    brokers: tuple[int, ...] = field(default=())
