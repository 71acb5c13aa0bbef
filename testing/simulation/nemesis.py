"""The nemesis: does what the plan says, as far as the budget permits, and undoes it again.

Each kind of fault is a function that picks its victim, begins, and returns an `Effect`: what it did, whom it holds up,
and how it ends. What the plan wants and the budget refuses (or what finds no victim) is left out and counted.

Beside the plan there is an operator: a process that ended by itself, because it could not go on, is started again after
a while.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from strandline.protocol import apis
from strandline.testing.simulation.budget import Budget
from strandline.testing.simulation.cluster import SimCluster
from strandline.testing.simulation.disk import Fault, Latency
from strandline.testing.simulation.links import FAST
from strandline.testing.simulation.machine import Machine
from strandline.testing.simulation.network import Hold, Message
from strandline.testing.simulation.options import FaultPlan, Options
from strandline.testing.simulation.world import OutOfTime, ProcessGone

CLOG_S_MAX = 5.0
FIRST_CLIENT = 200
"""Clients are numbered from behind it."""
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
        self._returning: dict[int, None] = {}
        """Nodes that the operator is about to start again."""
        self.going = True
        self.stopping: set[int] = set()
        """Nodes that are being stopped in order."""
        for node, machine in cluster.machines.items():
            machine.files.on_fault = partial(self._on_disk_fault, node)

    def _on_disk_fault(self, node: int, kind: str, operation: str, path: str) -> None:
        self.world.trace.emit("disk.fault", node, fault=kind, operation=operation, path=path)
        if (kind, operation) == ("error", "fsync") and node in self.cluster.broker_ids:
            self.budget.lost(node)

    async def stop(self, node: int) -> None:
        """SIGTERM; nobody sends it twice."""
        self.stopping.add(node)
        await asyncio.shield(asyncio.get_running_loop().create_task(self._stop(node), name=f"nemesis stops {node}"))

    async def _stop(self, node: int) -> None:
        try:
            await self.cluster.stop(node)
        except ProcessGone:
            pass
        finally:
            self.stopping.discard(node)

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
        self._tasks.append(asyncio.get_running_loop().create_task(self._guarded(coroutine), name=name))

    async def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """A mistake of the nemesis ends the run: else a fault would silently not happen, or never end."""
        try:
            await coroutine
        except Exception as e:
            self.world.scheduler.fail(e)
        finally:
            coroutine.close()  # cancelled before its first step, it would complain

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
            for node, machine in self.cluster.machines.items():
                if machine.loop is None and self.down[node] <= 0 and node not in self._returning:
                    self._returning[node] = None
                    self.spawn(self._restart_later(node), f"operator starts {node}")

    async def _restart_later(self, node: int) -> None:
        try:
            await asyncio.sleep(self.draw.uniform(*OPERATOR_S))
            self.start(node)
        finally:
            self._returning.pop(node, None)

    def start(self, node: int) -> None:
        """Unless it runs, or another fault keeps it down."""
        if self.cluster.machines[node].loop is None and self.down[node] <= 0:
            self.cluster.start(node)

    # -- the heal -----------------------------------------------------------------------------------------------------

    async def heal(self, left_out: Iterable[int] = ()) -> None:
        """Every fault ends, and every node runs, but for those that are left out. What a disk was busy with when its trouble
        ended, is waited for."""
        self.going = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for number in list(self._active):
            self.end(number)
        self.network.heal()
        for machine in self.world.machines.values():
            machine.wall_jump_ms = 0
            machine.resume()
        for node, machine in self.cluster.machines.items():
            machine.files.heal()
            if node not in left_out:
                self.down[node] = 0
                self.start(node)
        await asyncio.sleep(max(m.loop.busy_until for m in self.world.machines.values() if m.loop is not None) - self.world.now)

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
    node = nemesis.victim(draw, [n for n in nemesis.running(nemesis.role_weighted(draw)) if n not in nemesis.stopping])
    if node is None:
        return None

    async def stop() -> None:
        await nemesis.stop(node)
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
        normal = {"delay_s": network.delay_s, "jitter_s": network.jitter_s, "loss": 0.0, "bytes_per_s": FAST}
        for link in links:
            for name in to:
                setattr(network.link(*link), name, normal[name])

    return Effect(what, touches, undo)


def _links_of(nemesis: Nemesis, draw: Random) -> tuple[list[tuple[int, int]], tuple[int, ...]] | None:
    """One link, all of a node, or all."""
    scope = draw.choice(("link", "node", "node", "all"))
    touches: tuple[int, ...]
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
    """What is sent now leaves at the end, all of it."""
    found = _links_of(nemesis, draw)
    if found is None:
        return None
    for link in found[0]:
        nemesis.network.clog(*link, min(fault.duration_s, CLOG_S_MAX))
    return Effect({"nodes": found[1]}, found[1], lambda: None)


@kind("narrow")
def _narrow(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Little gets through in a second."""
    found = _links_of(nemesis, draw)
    rate = draw.choice((5_000, 50_000, 500_000))
    return (
        None if found is None else _slow(nemesis, found[0], {"nodes": found[1], "bytes_per_s": rate}, found[1], bytes_per_s=rate)
    )


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
    after, chance = draw.random() < 0.3, draw.choice((1.0, 0.3))
    nemesis.network.break_on(lambda m: m.api_key == api_key and m.is_request == is_request, times, after=after, chance=chance)
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


@kind("slow_reader")
def _slow_reader(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A node, or a client, reads late what has arrived."""
    nodes = [*nemesis.nodes, *(m.id for m in _clients(nemesis))]
    node, delay_s = nemesis.victim(draw, nodes), draw.choice((0.01, 0.1, 1.0))
    if node is None:
        return None
    nemesis.network.slow_reader(node, delay_s)
    touches = (node,) if node in nemesis.nodes else ()
    return Effect({"victim": node, "delay_s": delay_s}, touches, partial(nemesis.network.slow_reader, node, 0.0))


@kind("mute")
def _mute(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The connections that there are between two machines are dead, and nobody is told; new ones can be made."""
    node = nemesis.victim(draw, nemesis.nodes)
    if node is None:
        return None
    others = [other for other in _everyone_but(nemesis, node) if draw.random() < 0.4]
    count = sum(nemesis.network.mute_between(node, other) for other in others)
    return Effect({"victim": node, "connections": count}, (node,), lambda: None) if count else None


@kind("hold")
def _hold(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Messages of one kind stay where they are for a while, and what is behind them on their connections."""
    api_key, is_request, limit = draw.choice(HOLDABLE), draw.random() < 0.5, draw.choice((1, 1, 3, -1))
    node = draw.choice(nemesis.nodes)
    if not nemesis.budget.may_touch(nemesis.nodes):
        return None

    def matches(message: Message) -> bool:
        return message.api_key == api_key and message.is_request == is_request and node in (message.source, message.target)

    hold = nemesis.network.hold(matches, limit)
    what = {"api": apis.api_name(api_key), "is_request": is_request, "victim": node, "limit": limit}
    return Effect(what, tuple(nemesis.nodes), hold.release)


HOLDABLE = (*BREAKABLE, apis.VOTE, apis.LIST_OFFSETS, apis.OFFSET_FOR_LEADER_EPOCH)


# -- a message that comes too late --------------------------------------------------------------------------------------

AMBUSHED = (
    *[(apis.ALTER_PARTITION, True)] * 5,
    (apis.ALTER_PARTITION, False),
    (apis.FETCH, True),
    (apis.FETCH, False),
    (apis.PRODUCE, True),
    (apis.BROKER_HEARTBEAT, False),
)
"""Messages that say something of a state which may be another one when they arrive."""
AMBUSHES = {"crash": "is to crash", "pause": "is to stand still", "cut": "is to be cut off"}
LURK_S, FENCED_S = 3.0, 4.0
"""How long is waited for one, at least; and for the controller to notice what happened to a broker, at most."""


@kind("ambush")
def _ambush(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The next message of one kind is kept back until something has happened to another broker. Two faults would have to be
    lucky to meet like that, and it is what most guards of epochs are for."""
    (api_key, is_request), how = draw.choice(AMBUSHED), draw.choice(("crash", "crash", "pause", "cut"))
    hold = nemesis.network.hold(lambda m: m.api_key == api_key and m.is_request == is_request, 1)
    nemesis.spawn(_lurk(nemesis, fault, hold, how, draw), f"ambush {fault.number}")
    name = f"{apis.api_name(api_key)} {'request' if is_request else 'response'}"
    return Effect({"text": f"the next {name} is kept back, and meanwhile a broker that has not sent it {AMBUSHES[how]}"})


async def _lurk(nemesis: Nemesis, fault: FaultPlan, hold: Hold, how: str, draw: Random) -> None:
    try:
        await nemesis.world.until(lambda: hold.has, LURK_S + fault.duration_s, "a message to be kept back")
        others = [n for n in nemesis.cluster.broker_ids if n != hold.held[0].source]
        victim = nemesis.victim(draw, nemesis.running(others))
        if victim is not None:
            await _strike(nemesis, victim, how)
            await asyncio.sleep(draw.choice((0.0, 0.0, 0.01, 0.1)))
    except OutOfTime:
        pass
    finally:
        hold.release()


async def _strike(nemesis: Nemesis, victim: int, how: str) -> None:
    """Until the controller has counted it out and in again, if it does."""
    cluster, until = nemesis.cluster, nemesis.world.until
    before = _broker_epoch(cluster, victim)
    nemesis.budget.touched[victim] += 1
    try:
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
    finally:
        nemesis.budget.touched[victim] -= 1


def _silence(nemesis: Nemesis, victim: int, how: str) -> Callable[[], object]:
    """Returns what ends it."""
    if how == "pause":
        machine = nemesis.cluster.machines[victim]
        machine.pause()
        return machine.resume
    links = [link for other in _everyone_but(nemesis, victim) for link in ((victim, other), (other, victim))]
    undo = _cut(nemesis, links, {}, ()).undo
    assert undo is not None
    return undo


def _broker_epoch(cluster: SimCluster, broker: int) -> int:
    """Of the process that is registered and unfenced; -1: there is none."""
    known = None if cluster.active_controller is None else cluster.image().brokers.get(broker)
    return -1 if known is None or known.fenced else int(known.broker_epoch)


# -- many at once -----------------------------------------------------------------------------------------------------


@kind("blackout")
def _blackout(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """All brokers, all controllers, or everybody dies at once; they come back each at its own time. Only controllers may lose
    their power so: what they have told anybody is on their disks."""
    who = draw.choice(("brokers", "controllers", "all"))
    cluster = nemesis.cluster
    nodes = [n for n in nemesis.nodes if who == "all" or (n in cluster.broker_ids) == (who == "brokers")]
    nodes = nemesis.running(nodes)
    if not nodes or not nemesis.budget.may_touch(nodes):
        return None
    for node in nodes:
        lossy = draw.random() < 0.5 if node in cluster.controller_ids else False
        cluster.crash(node, lossy=lossy)
        nemesis.down[node] += 1
        nemesis.spawn(_come_back(nemesis, node, draw.uniform(0, fault.duration_s)), f"{node} comes back")
    return Effect({"victims": nodes})


async def _come_back(nemesis: Nemesis, node: int, after_s: float) -> None:
    await asyncio.sleep(after_s)
    nemesis.down[node] -= 1
    nemesis.start(node)


@kind("rolling")
def _rolling(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Every node is stopped in order and started again, one after the other, as an upgrade does it."""
    nodes = draw.choice((nemesis.cluster.broker_ids, nemesis.cluster.controller_ids, nemesis.nodes))
    nemesis.spawn(_roll(nemesis, list(nodes)), "rolling restart")
    return Effect({"nodes": nodes})


async def _roll(nemesis: Nemesis, nodes: list[int]) -> None:
    for node in nodes:
        is_up = nemesis.cluster.machines[node].loop is not None and node not in nemesis.stopping
        if not is_up or not nemesis.budget.may_touch((node,)):
            continue
        nemesis.down[node] += 1
        nemesis.budget.touched[node] += 1
        try:
            await nemesis.stop(node)
        finally:
            nemesis.down[node] -= 1
        nemesis.start(node)
        await asyncio.sleep(0.5)
        nemesis.budget.touched[node] -= 1


# -- disks ------------------------------------------------------------------------------------------------------------


@kind("crash_in_disk")
def _crash_in_disk(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The process dies inside one of its next operations on the disk."""
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    pattern = draw.choice(("*", "*", "*.log", "*checkpoint*", "*.snapshot", "*quorum*"))
    return _death(nemesis, node, draw.choice((1, 2, 5, 20)), pattern)


def _death(nemesis: Nemesis, node: int, n: int, pattern: str) -> Effect:
    files = nemesis.cluster.machines[node].files
    files.crash_at(n, pattern=pattern)

    def undo() -> None:
        files.crash_point = None
        files.rearm()

    return Effect({"victim": node, "operation": n, "pattern": pattern}, (node,), undo)


@kind("crash_in_start")
def _crash_in_start(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The process dies, and its successor dies while it starts."""
    node = nemesis.victim(draw, nemesis.running(nemesis.role_weighted(draw)))
    if node is None:
        return None
    nemesis.cluster.crash(node)
    nemesis.start(node)
    return _death(nemesis, node, draw.choice((1, 2, 3, 5, 8, 13, 21)), "*")


@kind("wipe")
def _wipe(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The machine comes back with an empty disk."""
    budget, cluster = nemesis.budget, nemesis.cluster
    if draw.random() < 0.7:
        node = nemesis.victim(draw, [n for n in cluster.broker_ids if budget.may_lose(n)])
        if node is not None:
            budget.lost(node)
    else:
        candidates = [n for n in cluster.controller_ids if budget.may_wipe_controller(n)]
        node = draw.choice(candidates) if candidates else None
        if node is not None:
            budget.wiped_controller(node)
    if node is None:
        return None
    cluster.crash(node, lossy=True)
    cluster.machines[node].files.wipe()
    return _keep_down(nemesis, node)


@kind("disk_slow")
def _disk_slow(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    files, factor = nemesis.cluster.machines[node].files, draw.choice((10, 100, 1000))
    before = files.latency
    files.take_time(Latency(spike_probability=draw.choice((0.0, 0.01)), spike_s=0.5 / factor))
    files.slow(factor)

    def undo() -> None:
        files.slow(1.0)
        files.take_time(before)

    return Effect({"victim": node, "factor": factor}, (node,), undo)


@kind("cold_reads")
def _cold_reads(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """What is read is often not in the page cache."""
    node = draw.choice(nemesis.nodes)
    files, probability = nemesis.cluster.machines[node].files, draw.choice((0.1, 0.5, 1.0))
    files.cold_reads(probability)
    return Effect({"probability": probability, "victim": node}, (), partial(files.cold_reads, 0.0))


def _armed(nemesis: Nemesis, node: int, fault: Fault, what: dict[str, Any]) -> Effect:
    files = nemesis.cluster.machines[node].files

    def undo() -> None:
        fault.end()
        files.rearm()

    return Effect({"victim": node, **what}, (node,), undo)


@kind("disk_stall")
def _disk_stall(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    seconds, operation = draw.choice((0.3, 1.0, 4.0)), draw.choice(("*", "write", "fsync", "read"))
    stall = nemesis.cluster.machines[node].files.stall(seconds, operation, times=draw.choice((1, 1, 3)))
    return _armed(nemesis, node, stall, {"operation": operation, "seconds": seconds})


ERRORS = (
    ("write", "*.log", errno.EIO),
    ("write", "*", errno.EIO),
    ("read", "*.log", errno.EIO),
    ("read", "*", errno.EIO),
    ("rename", "*", errno.EIO),
    ("create", "*", errno.EIO),
    ("truncate", "*", errno.EIO),
    ("unlink", "*", errno.EIO),
    ("write", "*", errno.EROFS),
)


@kind("disk_error")
def _disk_error(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    operation, pattern, error = draw.choice(ERRORS)
    failing = nemesis.cluster.machines[node].files.fail(operation, pattern, error, times=draw.choice((1, 1, 5)))
    what = {"operation": operation, "pattern": pattern, "error": errno.errorcode[error]}
    return _armed(nemesis, node, failing, what)


@kind("disk_fsync")
def _disk_fsync(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """An fsync fails, and takes with it what it should have written: no other one brings that back."""
    budget, cluster = nemesis.budget, nemesis.cluster
    nodes = nemesis.role_weighted(draw)
    node = nemesis.victim(draw, [n for n in nodes if n in cluster.controller_ids or budget.may_lose(n)])
    if node is None:
        return None
    files = cluster.machines[node].files
    failing = files.fail("fsync", draw.choice(("*", "*.log")), errno.EIO, times=1)
    effect = _armed(nemesis, node, failing, {"operation": "fsync"})
    if node in cluster.broker_ids:
        budget.arm(node)
        end = effect.undo
        assert end is not None

        def undo() -> None:
            end()
            budget.disarm(node)

        effect.undo = undo
    return effect


@kind("disk_full")
def _disk_full(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    node = nemesis.victim(draw, nemesis.role_weighted(draw))
    if node is None:
        return None
    files, room = nemesis.cluster.machines[node].files, draw.choice((0, 100, 3000))
    files.fill(room)
    return Effect({"victim": node, "room_bytes": room}, (node,), files.free)


# -- disks that lie: of one broker -------------------------------------------------------------------------------------

ROTTABLE = ("/data/*-*/*.log", "/data/*-*/*.log", "/data/*-*/*.index", "/data/*checkpoint*")


def _rotten(nemesis: Nemesis, draw: Random) -> int | None:
    brokers = [n for n in nemesis.cluster.broker_ids if nemesis.budget.may_rot(n)]
    return nemesis.victim(draw, brokers)


@kind("rot")
def _rot(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Bits flip in what lies on a disk."""
    node = _rotten(nemesis, draw)
    if node is None:
        return None
    files, pattern = nemesis.cluster.machines[node].files, draw.choice(ROTTABLE)
    damage = files.rot(pattern, flips=draw.choice((1, 1, 5)))
    if not damage:
        return None  # there is nothing to rot yet
    nemesis.budget.rots(node)
    if draw.random() < 0.5:
        _forget_tails(nemesis, node)
    return Effect({"victim": node, "pattern": pattern, "flips": len(damage)})


def _forget_tails(nemesis: Nemesis, node: int) -> None:
    """What the process holds in memory of its logs' ends, it has to read again."""
    broker = nemesis.cluster.brokers.get(node)
    if broker is not None and broker.has_logs:
        for partition in broker.replicas.partitions.values():
            partition.log.tail.clear()


@kind("misdirect")
def _misdirect(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A write is told to have succeeded, and went elsewhere."""
    node = _rotten(nemesis, draw)
    if node is None:
        return None
    nemesis.budget.rots(node)
    files, onto = nemesis.cluster.machines[node].files, draw.choice((None, "/data/*-*/*.log"))
    hidden = draw.random() < 0.5
    return _armed(nemesis, node, files.misdirect(ROTTABLE[0], onto, is_hidden=hidden), {"onto": onto, "hidden": hidden})


@kind("stale_read")
def _stale_read(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A read brings what was there before."""
    node = _rotten(nemesis, draw)
    if node is None:
        return None
    nemesis.budget.rots(node)
    _forget_tails(nemesis, node)
    return _armed(nemesis, node, nemesis.cluster.machines[node].files.stale_reads(ROTTABLE[0], times=draw.choice((1, 3))), {})


# -- clocks and clients -----------------------------------------------------------------------------------------------


@kind("clock_jump")
def _clock_jump(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A wall clock is wrong for a while: by a second, or by an hour."""
    machine = draw.choice([m for n, m in nemesis.world.machines.items() if n])
    jump_ms = int(draw.choice((1_000, 60_000, 3_600_000)) * draw.uniform(-1, 1))
    machine.wall_jump_ms += jump_ms

    def undo() -> None:
        machine.wall_jump_ms -= jump_ms

    return Effect({"machine": machine.name, "jump_ms": jump_ms}, (), undo)


def _clients(nemesis: Nemesis) -> list[Machine]:
    return [m for n, m in nemesis.world.machines.items() if n > FIRST_CLIENT and m.loop is not None]


@kind("client_pause")
def _client_pause(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """It reads nothing meanwhile, and its answers pile up at the brokers."""
    clients = _clients(nemesis)
    if not clients:
        return None
    machine = draw.choice(clients)
    machine.pause()
    return Effect({"client": machine.name}, (), machine.resume)


@kind("client_cut")
def _client_cut(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    clients = _clients(nemesis)
    if not clients:
        return None
    machine, some = draw.choice(clients), draw.random() < 0.5
    nodes = [n for n in nemesis.nodes if not some or draw.random() < 0.5]
    links = [link for node in nodes for link in ((node, machine.id), (machine.id, node))]
    return _cut(nemesis, links, {"client": machine.name, "nodes": nodes}, ())


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
