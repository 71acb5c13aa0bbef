"""Follows the plan: begins each fault at its time, ends it after its duration, and ends all faults when the cluster is to heal.

The engine does not depend on the kind of a fault, which only has to return an `Effect`. The common part of all kinds is here: the
nodes that may be victims now, and the links of a node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.world import ProcessGone
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.options import FaultPlan, Options

FIRST_CLIENT = 200
"""All clients have numbers above this one."""
REPAIR_S = (0.5, 2.0)
"""Seconds until the operator restarts a broker that continues without one of its log directories."""
OPERATOR_LOOKS_S = 0.1
"""Seconds between two looks of the operator at the processes."""
OPERATOR_S = (0.3, 2.0)
"""Seconds until the operator restarts a process that has exited."""
WHAT_TO_DO = ("empty this directory as a whole", "Restore it from another controller")
"""Sentences in the message of a controller that must not continue with the content of its disk."""


@dataclass(slots=True)
class Effect:
    """A fault that has begun."""

    what: dict[str, Any]
    """The fields of its event in the trace: the victim and the numbers."""
    touches: tuple[int, ...] = ()
    """The nodes that it holds up."""
    undo: Callable[[], object] | None = None
    """Ends the fault; None: it is over as soon as it has happened."""
    fault: FaultPlan | None = None


class Nemesis:
    def __init__(self, cluster: SimCluster, options: Options, budget: Budget) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.network = cluster.world.network
        self.options = options
        self.budget = budget
        self.counts: Counter[str] = Counter()
        """Kind -> how often it happened."""
        self.skipped: Counter[str] = Counter()
        """Kind -> how often it was skipped, because the budget refused it or no victim existed."""
        self.down: Counter[int] = Counter()
        """Node -> the number of faults that keep it down."""
        self.draw = self.world.stream("nemesis")
        self._active: dict[int, Effect] = {}
        self._tasks: dict[asyncio.Task[None], Coroutine[Any, Any, None]] = {}
        """The tasks with their coroutines. A coroutine never begins if its task is cancelled before the first step, and must
        then be closed."""
        self._returning: dict[int, None] = {}
        """Nodes that the operator is about to start again."""
        self.going = True
        self.stopping: set[int] = set()
        """Nodes that are being stopped in order."""
        for node, machine in cluster.machines.items():
            machine.files.on_fault = partial(self._on_disk_fault, node)

    def _on_disk_fault(self, node: int, kind: str, operation: str, path: str) -> None:
        self.world.trace.emit("disk.fault", node, fault=kind, operation=operation, path=path)
        if kind == "error" and (operation == "fsync" or self.options.log_dirs) and node in self.cluster.broker_ids:
            self.budget.lost(node)

    async def stop(self, node: int) -> None:
        """Send SIGTERM, unless that was done already, and wait for the end of the process."""
        self.stopping.add(node)
        self.budget.touched[node] += 1
        await asyncio.shield(asyncio.get_running_loop().create_task(self._stop(node), name=f"nemesis stops {node}"))

    async def _stop(self, node: int) -> None:
        try:
            await self.cluster.stop(node)
        except ProcessGone:
            pass
        finally:
            self.stopping.discard(node)
            self.budget.touched[node] -= 1

    # -- the plan -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the plan, from now until the end of the faults."""
        began = self.world.now
        self.spawn(self._operate(), "operator")
        for fault in self.options.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - self.world.now))
            self.spawn(self._one(fault), f"fault {fault.number}")
        await asyncio.sleep(max(0.0, began + self.options.faults_s - self.world.now))

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks[asyncio.get_running_loop().create_task(self._guarded(coroutine), name=name)] = coroutine

    async def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a part of the nemesis. An error in it ends the run; otherwise a fault would silently not happen, or never end."""
        try:
            await coroutine
        except Exception as e:
            self.world.scheduler.fail(e)

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
        """The operator, and the regular update of the budget."""
        while self.going:
            await asyncio.sleep(OPERATOR_LOOKS_S)
            self.budget.look()
            for node, machine in self.cluster.machines.items():
                if machine.loop is None and self.down[node] <= 0 and node not in self._returning:
                    self._returning[node] = None
                    self.spawn(self._restart_later(node), f"operator starts {node}")
                elif self.options.log_dirs and node not in self._returning and self._has_offline_dir(node):
                    self._returning[node] = None
                    self.spawn(self._repair_later(node), f"operator repairs {node}")

    def _has_offline_dir(self, node: int) -> bool:
        broker = self.cluster.brokers.get(node)
        return broker is not None and broker.log_dirs is not None and broker.log_dirs.has_offline

    async def _repair_later(self, node: int) -> None:
        """Stop a broker that continues without a failed directory, if the budget permits it. The operator then restarts it."""
        try:
            await asyncio.sleep(self.draw.uniform(*REPAIR_S))
            if self._has_offline_dir(node) and self.budget.may_touch((node,)):
                await self.stop(node)
        finally:
            self._returning.pop(node, None)

    async def _restart_later(self, node: int) -> None:
        try:
            await asyncio.sleep(self.draw.uniform(*OPERATOR_S))
            self._empty_if_damaged(node)
            self.start(node)
        finally:
            self._returning.pop(node, None)

    def _empty_if_damaged(self, node: int) -> None:
        """Empty the directory of a controller whose error message asks for that, if the budget permits it."""
        machine = self.cluster.machines[node]
        if machine.loop is not None or node not in self.budget.rotten_controllers or not self.budget.may_wipe_controller(node):
            return
        last = next((error for _, failed, error in reversed(self.cluster.failures) if failed == node), None)
        if last is not None and any(words in str(last) for words in WHAT_TO_DO):
            self.world.trace.emit(
                "fault.begin", node, fault="emptied", text=f"the disk of controller {node} is emptied, as its error message asks"
            )
            self.budget.wiped_controller(node)
            machine.files.wipe()

    def start(self, node: int) -> None:
        """Start the node, unless it runs or another fault keeps it down."""
        if self.cluster.machines[node].loop is None and self.down[node] <= 0:
            self.cluster.start(node)

    # -- the heal -----------------------------------------------------------------------------------------------------

    async def heal(self, left_out: Iterable[int] = ()) -> None:
        """End every fault and start every node, except those that are left out. Wait for disk operations that the faults had
        delayed."""
        self.going = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for coroutine in self._tasks.values():
            coroutine.close()
        self._tasks.clear()
        self._returning.clear()  # a restart that is cancelled before its first step does not remove its node itself
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
                if self.options.log_dirs and self._has_offline_dir(node):
                    self.cluster.crash(node)
                self.start(node)
        await asyncio.sleep(max(m.loop.busy_until for m in self.world.machines.values() if m.loop is not None) - self.world.now)

    def watch(self) -> None:
        """Run the operator after the heal: restart processes that exit."""
        self.going = True
        self.spawn(self._operate(), "operator")

    # -- victims ------------------------------------------------------------------------------------------------------

    def running(self, nodes: Iterable[int]) -> list[int]:
        return [n for n in nodes if self.cluster.machines[n].loop is not None]

    @property
    def nodes(self) -> list[int]:
        return [*self.cluster.broker_ids, *self.cluster.controller_ids]

    @property
    def clients(self) -> list[Machine]:
        """The clients that run."""
        return [m for n, m in self.world.machines.items() if n > FIRST_CLIENT and m.loop is not None]

    def everyone_but(self, *nodes: int) -> list[int]:
        """All other machines, clients included."""
        return [n for n in self.world.machines if n and n not in nodes]

    def links_of(self, node: int) -> list[tuple[int, int]]:
        """All links of a node, in both directions."""
        return [link for other in self.everyone_but(node) for link in ((node, other), (other, node))]

    def victim(self, draw: Random, nodes: Iterable[int]) -> int | None:
        """One of these nodes, drawn from those at which the budget allows a fault now; None if there is none."""
        candidates = [n for n in nodes if self.budget.may_touch((n,))]
        return draw.choice(candidates) if candidates else None

    def role_weighted(self, draw: Random) -> list[int]:
        """Draw a role: mostly brokers, because they have most of the tested code."""
        return self.cluster.broker_ids if draw.random() < 0.75 else self.cluster.controller_ids

    def may_lose(self, nodes: Iterable[int]) -> list[int]:
        """The nodes of these whose disks may lose what was not synced. Controllers always may: all state that they have reported
        is on their disks."""
        return [n for n in nodes if n in self.cluster.controller_ids or self.budget.may_lose(n)]


Kind = Callable[[Nemesis, FaultPlan, Random], Effect | None]
KINDS: dict[str, Kind] = {}
"""The kinds of faults, by the names in the tables of weights: `FAULTS`, `DOUBLE_FAULTS`, `DIRECTORY_FAULTS`, `GROUP_FAULTS` and
`TRANSACTION_FAULTS`."""


def kind(name: str) -> Callable[[Kind], Kind]:
    def register(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return register
