"""Nodes on simulated machines, with simulated links and disks, behind the same interface as the kit's other nodes.

Both the test and the faults that the seed drew (`weather.py`) take nodes down. Neither undoes what the other did: a node runs
only when neither keeps it down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

from strandline.protocol.errors import UsageError
from strandline.testing.kit.disks import Disk
from strandline.testing.kit.inside import InsideNodes
from strandline.testing.kit.network import CLIENT, DELAY, REQUEST, RESPONSE, Network, Rule
from strandline.testing.kit.nodes import KitError
from strandline.testing.kit.simulated.weather import Weather
from strandline.testing.kit.view import NodeView
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.disk import SimFiles
from strandline.testing.simulation.kernel.messages import Message
from strandline.testing.simulation.kernel.network import Break, Hold
from strandline.testing.simulation.kernel.network import Network as SimulatedLinks
from strandline.testing.simulation.kernel.tcp import End
from strandline.testing.simulation.kernel.trace import Event
from strandline.testing.simulation.kernel.world import ProcessGone

T = TypeVar("T")

POLL_S = 0.01
"""Virtual seconds between two looks. Longer than in real time, because each look costs real time and waiting does not."""
ALWAYS = 1 << 60


class SimulatedNodes(InsideNodes):
    """Nodes on virtual machines of the simulator, together with the faults that it draws (`weather`)."""

    kind = "simulated"
    poll_s = POLL_S

    def __init__(self, cluster: SimCluster, weather: Weather, random: Random, client: int) -> None:
        """`client`: the machine on which the test runs."""
        self.cluster = cluster
        self.weather = weather
        self._network = SimulatedNetwork(random, cluster.world.network, client, weather)
        self._disks = {n: SimulatedDisk(machine.files, weather, n) for n, machine in cluster.machines.items()}
        self._states: dict[int, str] = {}
        """Nodes that the test took down or paused -> their state."""

    @property
    def broker_ids(self) -> Sequence[int]:
        return self.cluster.broker_ids

    @property
    def controller_ids(self) -> Sequence[int]:
        return self.cluster.controller_ids

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def network(self) -> Network:
        return self._network

    def disk(self, node: int) -> Disk:
        return self._disks[self.check_id(node)]

    # -- life

    async def start_all(self) -> None:
        await self.cluster.start_all()

    async def close(self) -> None:
        """Nothing to do: the nodes end with the world."""

    async def start(self, node: int) -> None:
        """Start the node, or let it return if a drawn fault has it down. UsageError: there is no such node, or it is already
        running."""
        machine = self.cluster.machines[self.check_id(node)]
        if machine.loop is not None and node not in self._states and not self.weather.is_on:
            raise UsageError(f"{machine.name} is already running")
        self._states.pop(node, None)
        self.weather.let_go(node)

    async def stop(self, node: int) -> None:
        """Stop the node cleanly, and keep it down until `start`. UsageError: there is no such node, or it is not running."""
        self._check_is_up(node)
        await self.resume_if_paused(node)
        self.weather.keep_down(node)
        self._states[node] = "stopped"
        await self.weather.stop(node)

    async def kill(self, node: int) -> None:
        """Crash the node, and keep it down until `start`. UsageError: there is no such node, or it is not running."""
        self._check_is_up(node)
        self.weather.keep_down(node)
        self._states[node] = "killed"
        self.cluster.crash(node)

    async def pause(self, node: int) -> None:
        """Pause the node until `resume`; if a drawn fault has it down, wait until it is back. UsageError: there is no such node,
        or it is not running, or already paused."""
        self._check_is_up(node)
        if self._states.get(node) == "paused":
            raise UsageError(f"{self.cluster.machines[node].name} is already paused")
        self._states[node] = "paused"
        self.weather.hands_off(node)
        machine = self.cluster.machines[node]
        while machine.loop is None:  # noqa: ASYNC110  (a drawn fault has it down)
            await asyncio.sleep(POLL_S)
        machine.pause()

    async def resume(self, node: int) -> None:
        """End `pause`. UsageError: there is no such node, or it is not paused."""
        if self._states.get(self.check_id(node)) != "paused":
            raise UsageError(f"{self.cluster.machines[node].name} is not paused")
        await self.resume_if_paused(node)

    async def resume_if_paused(self, node: int) -> None:
        if self._states.get(node) == "paused":
            del self._states[node]
            self.weather.let_go(node)
            self.cluster.machines[node].resume()

    def _check_is_up(self, node: int) -> None:
        view = self.node(node)
        if not view.is_up:
            raise UsageError(f"{view.name} is not running ({view.state}{f': {view.note}' if view.note else ''})")

    # -- looking

    def node(self, node: int) -> NodeView:
        machine = self.cluster.machines[self.check_id(node)]
        state, note = self._states.get(node, "running"), self._disks[node].trouble
        if machine.loop is None and state == "running":
            failed = [str(error) for _, who, error in self.cluster.failures if who == node]
            state, note = ("starting", "down by a drawn fault") if self.weather.brings_back(node) else ("failed", failed[-1])
        elif state == "running" and self.server(node) is None:
            state = "starting"
        return NodeView(node, machine.name, state, note)

    def server(self, node: int) -> Any:
        broker = self.cluster.brokers.get(node)
        if broker is not None:
            return broker if broker.has_logs else None
        controller = self.cluster.controllers.get(node)
        return controller if controller is not None and controller.has_quorum else None

    def is_awake(self, node: int) -> bool:
        loop = self.cluster.machines[node].loop
        return loop is not None and not loop.paused and self.server(node) is not None

    def lines(self, count: int) -> Sequence[str]:
        events = self.cluster.world.trace.events(kinds="log.")
        return [_line(event) for event in events if event.fields.get("level") in ("warning", "error", "critical")][-count:]

    async def call(self, node: int, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` on the node's machine and return its result, or raise its error. KitError: the process ended meanwhile."""

        async def run() -> T:
            return await work()

        machine = self.cluster.machines[node]
        try:
            return await self.cluster.world.join(machine.spawn(run()))
        except ProcessGone as e:
            raise KitError(str(e)) from None


def _line(event: Event) -> str:
    said = " ".join(f"{name}={value}" for name, value in event.fields.items() if name not in ("level", "exception", "raised_in"))
    return f"{event.time:8.3f} {event.node:>3} {event.kind.removeprefix('log.')} {event.partition} {said}".rstrip()


class SimulatedNetwork(Network):
    """Applies the test's cuts and rules to the simulated links."""

    def __init__(self, random: Random, links: SimulatedLinks, client: int, weather: Weather) -> None:
        super().__init__(random)
        self._links = links
        self._client = client
        self._weather = weather
        self._ways: dict[tuple[int, int], None] = {}
        """Pairs that the test has cut."""
        self._carried_out: dict[Rule, Break | Hold] = {}

    def add_rule(self, kind: str, api: str | None, **options: Any) -> Rule:
        rule = super().add_rule(kind, api, **options)
        if kind == DELAY or rule.silently:
            hold = HoldBack(rule, self._links, self._is_met_by(rule))
            self._links.holds.append(hold)
            self._carried_out[rule] = hold
        else:
            point = Break(self._is_met_by(rule), ALWAYS, after=False, chance=1.0)
            self._links.breaks.append(point)
            self._carried_out[rule] = point
        return rule

    def _is_met_by(self, rule: Rule) -> Callable[[Message], bool]:
        def is_met(message: Message) -> bool:
            asker, asked = (message.source, message.target) if message.is_request else (message.target, message.source)
            by = CLIENT if asker == self._client else asker
            return rule.takes(REQUEST if message.is_request else RESPONSE, message.api_key, asked, by)

        return is_met

    def mend(self) -> None:
        for rule in self.rules:
            self._end(rule)
        super().mend()
        self._weather.clear()

    def _remove(self, rule: Rule) -> None:
        self._end(rule)
        super()._remove(rule)

    def _end(self, rule: Rule) -> None:
        found = self._carried_out.pop(rule, None)
        if isinstance(found, Hold):
            found.release()
        elif found is not None:
            self._links.breaks.remove(found)

    def _update(self) -> None:
        wanted = dict.fromkeys(way for pair in self._cuts for way in self._both_ways(pair))
        for way in [way for way in self._ways if way not in wanted]:
            self._links.mend(*way)
        for way in [way for way in wanted if way not in self._ways]:
            self._links.cut(*way)
        self._ways = wanted
        self._weather.cut_by_test = frozenset(node for way in wanted for node in way)

    def _both_ways(self, pair: Iterable[int]) -> list[tuple[int, int]]:
        ends = sorted(self._client if node == CLIENT else node for node in pair)
        return [(ends[0], ends[-1]), (ends[-1], ends[0])]


class HoldBack(Hold):
    """Holds messages for a rule: delayed messages continue at their time, silently dropped ones do not."""

    __slots__ = ("passed", "rule")

    def __init__(self, rule: Rule, links: SimulatedLinks, is_met: Callable[[Message], bool]) -> None:
        super().__init__(lambda message: message not in self.passed and is_met(message), links)
        self.rule = rule
        self.passed: set[Message] = set()
        """Messages whose delay is over. Used only to test membership."""

    def keep(self, end: End, message: Message) -> None:
        super().keep(end, message)
        if self.rule.kind == DELAY:
            self.network.scheduler.after(self.rule.delay_s, self._let_go, end, message)

    def _let_go(self, end: End, message: Message) -> None:
        if end.held_by is self and (end, message) in self._ends:
            self.passed.add(message)
            self.drop(end)
            end.pump()

    def release(self) -> None:
        """End the rule. Delayed messages still arrive at their time; silently dropped ones arrive now."""
        if self.rule.kind != DELAY:
            super().release()
        elif self in self.network.holds:
            self.network.holds.remove(self)


class SimulatedDisk(Disk):
    """The disk of a simulated machine, with the two faults of the kit: slow and full."""

    def __init__(self, files: SimFiles, weather: Weather, node: int) -> None:
        self._slow_s, self._is_full = 0.0, False
        self._stalls: list[Any] = []
        self._sim, self._weather, self._node = files, weather, node
        self.files = files

    @property
    def slow_s(self) -> float:
        return self._slow_s

    @slow_s.setter
    def slow_s(self, seconds: float) -> None:
        for stall in self._stalls:
            stall.end()
        self._sim.rearm()
        self._slow_s = seconds
        self._stalls = [self._sim.stall(seconds, operation, times=None) for operation in ("write", "fsync") if seconds]

    @property
    def is_full(self) -> bool:
        return self._is_full

    @is_full.setter
    def is_full(self, full: bool) -> None:
        if full == self._is_full:
            return
        self._is_full = full
        if full:
            self._weather.hands_off(self._node)
            self._sim.fill()
        else:
            self._sim.free()
