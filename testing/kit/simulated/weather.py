"""The weather: the faults that a seed draws, beside those of the test. They begin with the test and end by themselves.

The default is **gentle**: faults that a cluster of three survives without a long outage. At most one fault at a time stops a
node from working, for three seconds at most, and after some time (`Draw.until_s`) there are no more faults, so that a correct
test can finish. The seed decides which kinds of faults occur, how often, and for how long.

The faults are those of the simulation's nemesis, within its budget: they may not lose acknowledged records. The test has
precedence: the weather leaves alone the nodes that the test has killed, stopped, paused or cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.nemesis import KINDS, Nemesis
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.options import FAULTS, FaultPlan, Options

GENTLE: Mapping[str, float] = {
    "crash": 2.0,
    "power": 0.7,
    "stop": 1.0,
    "pause": 1.0,
    "controller_kill": 0.7,
    "cut_node": 1.0,
    "cut_pair": 0.7,
    "cut_one_way": 0.7,
    "clog": 0.5,
    "delay": 0.7,
    "loss": 0.7,
    "reset": 1.0,
    "reset_response": 1.5,
    "fragment": 0.3,
    "slow_reader": 0.3,
    "elect": 0.7,
    "disk_slow": 0.4,
    "disk_stall": 0.4,
}
ALONE = frozenset(
    {"crash", "power", "stop", "pause", "controller_kill", "cut_node", "cut_pair", "cut_one_way", "clog", "disk_stall"}
)
"""Faults that stop a node from working; in gentle weather only one of them is active at a time."""
DURATION_S_MAX = 3.0
FIRST_S = 0.1
"""The first fault begins within so many seconds, because many tests are short."""
LOOK_S = 0.02

Faults = str | Mapping[str, float] | Iterable[str] | None


def kinds_of(faults: Faults) -> Mapping[str, float]:
    """Weight per kind of fault, from "gentle", "all", None, names, or names with weights. UsageError: an unknown kind."""
    if faults is None:
        return {}
    if isinstance(faults, str):
        faults = {"gentle": GENTLE, "all": FAULTS}.get(faults, (faults,))
    weights = dict(faults) if isinstance(faults, Mapping) else {name: FAULTS.get(name, 1.0) for name in faults}
    unknown = sorted(set(weights) - set(KINDS))
    if unknown:
        raise UsageError(f'there is no fault {unknown[0]!r}; there are "gentle", "all", None, and {", ".join(sorted(KINDS))}')
    return weights


@dataclass(frozen=True, slots=True)
class Draw:
    """The surroundings of a test that a seed draws: faults, delays of the network, and whether disk operations take time."""

    faults: tuple[FaultPlan, ...]
    """Their `at_s` is the time since the fault before."""
    until_s: float
    delay_ms: float
    jitter_ms: float
    disks_take_time: bool

    @classmethod
    def of(cls, draw: Random, kinds: Mapping[str, float]) -> Draw:
        share, gap_s = draw.choice((0.2, 0.5, 1.0)), draw.choice((0.03, 0.1, 0.3, 1.0))
        until_s = draw.choice((2.0, 5.0, 10.0))
        chosen = {kind: weight for kind, weight in kinds.items() if draw.random() < share} or dict(kinds)
        faults: list[FaultPlan] = []
        passed_s = 0.0
        while chosen and len(faults) < 60:
            wait_s = draw.expovariate(1 / gap_s) if faults else draw.uniform(0, FIRST_S)
            passed_s += wait_s
            if passed_s > until_s:
                break
            kind = draw.choices(list(chosen), list(chosen.values()))[0]
            duration_s = min(DURATION_S_MAX, draw.choice((0.03, 0.2, 0.8, 2.0)) * draw.uniform(0.5, 1.5))
            faults.append(FaultPlan(len(faults), round(wait_s, 4), kind, round(duration_s, 3), draw.getrandbits(32)))
        delay_ms, jitter_ms = draw.choice((0.05, 0.1, 0.5)), draw.choice((0.05, 0.2, 1.0))
        return cls(tuple(faults), until_s, delay_ms, jitter_ms, disks_take_time=draw.random() < 0.3)


@dataclass(slots=True)
class Happened:
    """One drawn fault, for the report."""

    kind: str
    what: dict[str, Any]
    began_s: float
    ended_s: float | None = None
    """None: it is still active."""

    def __str__(self) -> str:
        what = ", ".join(f"{name} {_shown(value)}" for name, value in self.what.items())
        end = "still active" if self.ended_s is None else f"until {self.ended_s:.3f} s"
        at_once = self.ended_s == self.began_s
        return f"{self.began_s:8.3f} s  {self.kind}{f' ({what})' if what else ''}{'' if at_once else f', {end}'}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


class WaryBudget(Budget):
    """A budget that permits the weather no loss while the test holds a node (`Weather.held`) or has one cut off."""

    weather: Weather

    def may_lose(self, broker: int) -> bool:
        return not self.weather.held and not self.weather.cut_by_test and super().may_lose(broker)


class Weather(Nemesis):
    def __init__(self, cluster: SimCluster, draw: Draw, kinds: Mapping[str, float], *, is_gentle: bool) -> None:
        budget = WaryBudget(cluster)
        super().__init__(cluster, _options(draw, kinds), budget)
        budget.weather = self
        self.plan = draw.faults
        self.is_gentle = is_gentle
        self.is_on = bool(draw.faults)
        """False: `clear` has ended the weather for good, or the seed drew no fault."""
        self.going = self.is_on
        self.held: dict[int, None] = {}
        """Nodes with a fault of the test (killed, stopped, paused, full disk); the weather leaves them alone."""
        self.kept_down: dict[int, None] = {}
        self.cut_by_test: frozenset[int] = frozenset()
        self._shelters = 0
        """Number of the test's calls that hold off faults at present."""

    # -- drawn faults -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the drawn faults. Called from a coroutine of the world."""
        if self.is_on:
            self.spawn(self._operate(), "operator")
            self.spawn(self.run(), "weather")

    async def run(self) -> None:
        for fault in self.plan:
            await asyncio.sleep(fault.at_s)
            while self._shelters:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            if not self.is_on:
                return
            if self.is_gentle and fault.kind in ALONE and self._is_somebody_held_up():
                self.skipped[fault.kind] += 1
            else:
                self.spawn(self._one(fault), f"fault {fault.number}")
        while self._active:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        self.is_on = False

    def _is_somebody_held_up(self) -> bool:
        """Whether a drawn fault stops a node from working, or a node is down that the test has not taken down."""
        if any(effect.fault is not None and effect.fault.kind in ALONE for effect in self._active.values()):
            return True
        return any(m.loop is None and n not in self.held for n, m in self.cluster.machines.items())

    def victim(self, draw: Random, nodes: Iterable[int]) -> int | None:
        return super().victim(draw, [n for n in nodes if n not in self.held and n not in self.cut_by_test])

    def running(self, nodes: Iterable[int]) -> list[int]:
        return [n for n in super().running(nodes) if n not in self.held]

    def happened(self) -> list[Happened]:
        """Every drawn fault so far, from the trace."""
        events = self.world.trace.events(kinds=("fault.begin", "fault.end"))
        ends = {event.fields["number"]: event.time for event in events if event.kind == "fault.end"}
        found = []
        for event in events:
            if event.kind == "fault.begin":
                what = {name: value for name, value in event.fields.items() if name not in ("fault", "number")}
                number = event.fields["number"]
                end = None if number in self._active else ends.get(number, event.time)
                found.append(Happened(event.fields["fault"], what, event.time, end))
        return found

    @property
    def is_clear(self) -> bool:
        """No drawn fault is active at present."""
        return not self._active

    # -- shelter ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """End the weather for good."""
        self.is_on = False
        self._end_all()

    def _end_all(self) -> None:
        for number in list(self._active):
            self.end(number)

    @contextmanager
    def shelter(self) -> Iterator[None]:
        """End the active faults, and let none begin inside the `with` block."""
        self._shelters += 1
        self._end_all()
        try:
            yield
        finally:
            self._shelters -= 1

    # -- faults of the test -------------------------------------------------------------------------------------------

    def hands_off(self, node: int) -> None:
        """End the weather's faults on this node, and leave it to the test until `let_go`."""
        for number, effect in list(self._active.items()):
            if node in effect.touches:
                self.end(number)
        self.held[node] = None

    def keep_down(self, node: int) -> None:
        self.hands_off(node)
        if node not in self.kept_down:
            self.kept_down[node] = None
            self.down[node] += 1

    def let_go(self, node: int) -> None:
        """End the test's fault on this node and start it, unless a drawn fault keeps it down."""
        self.held.pop(node, None)
        if node in self.kept_down:
            del self.kept_down[node]
            self.down[node] -= 1
        self.start(node)

    def brings_back(self, node: int) -> bool:
        """Whether the weather will start this node, if it is down, without a call of the test."""
        return node not in self.held and (self.is_on or self.down[node] > 0 or node in self._returning)

    async def _restart_later(self, node: int) -> None:
        if node not in self.held:
            await super()._restart_later(node)
        self._returning.pop(node, None)


def _options(draw: Draw, kinds: Mapping[str, float]) -> Options:
    """The draw as options of the nemesis."""
    nothing: dict[str, Any] = {"settings": {}, "controller_settings": {}}
    nothing |= dict.fromkeys(("topics", "producers", "consumers", "admin"), ())
    nothing |= dict.fromkeys(("seed", "controllers", "brokers", "readers", "leave_out", "clock_drift"), 0)
    nothing |= {"orderly_end": False, "loss_permitted": False, "disks_take_time": draw.disks_take_time}
    return Options(
        **nothing, kinds=dict(kinds), faults=draw.faults, faults_s=draw.until_s, delay_ms=draw.delay_ms, jitter_ms=draw.jitter_ms
    )


__all__ = ["Draw", "Faults", "Weather", "kinds_of"]
