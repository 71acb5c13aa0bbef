"""Runs a scenario: starts the load, executes the steps, heals every fault, and judges the clients' history.

The verdict is good if the check of the clients' history finds no anomaly, the scenario's claims hold, no send failed, and the
logs of all replicas are equal byte by byte. However the run ends, also by Ctrl-C, every fault is healed.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter

from strandline.chaos import moves
from strandline.chaos.claims import Claims
from strandline.chaos.drivers import Driver
from strandline.chaos.load import until
from strandline.chaos.report import NOTE, STEP, Report
from strandline.chaos.run_state import RunState, Say
from strandline.chaos.scenario import Scenario, Step
from strandline.chaos.waits import Waits
from strandline.client import Admin
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach
from strandline.testing.replicas import Comparison, compare_replicas

WARM_UP_RECORDS = 300
LAST_RECORDS = 300
HEAL_WITHIN_S = 60.0
EQUAL_WITHIN_S = 10.0

FAULT_KIND = {
    "kill": "down",
    "stop": "down",
    "pause": "paused",
    "disconnect": "disconnected",
    "fill-disk": "full",
    "lose-disk": "lost",
    "drain": "draining",
}
HEAL_KIND = {
    "free-disk": "full",
    "replace-disk": "lost",
    "reconnect": "disconnected",
    "resume": "paused",
    "start": "down",
    "undrain": "draining",
}
"""Action -> the kind of fault that it heals, in the order in which all faults are healed at the end."""


class Runner:
    """Runs one scenario against an open driver."""

    def __init__(self, scenario: Scenario, driver: Driver, say: Say) -> None:
        self._state = RunState(scenario, driver, say)
        self._scenario = scenario
        self._driver = driver
        self._waits = Waits(self._state)
        self._claims = Claims(self._state)

    async def run(self) -> Report:
        try:
            await self._prepare()
            await self._do_steps()
            if await self._settle():
                await self._judge()
        finally:
            await self._leave()
        return self._state.report

    # -- the stages of a run

    async def _prepare(self) -> None:
        plan = self._scenario.load
        async with Admin(**reach(self._driver.bootstrap)) as admin:
            await until(lambda: self._has_all_brokers(admin), "every broker is unfenced", HEAL_WITHIN_S)
        await self._state.load.create_topic()
        self._state.watch.start()
        await until(
            lambda: len(self._state.watch.picture.partitions) == plan.partitions, "the topic's partitions are seen", HEAL_WITHIN_S
        )
        await self._waits.in_sync(HEAL_WITHIN_S)
        if plan.preload_mb:
            self._state.log(NOTE, f"writing {plan.preload_mb} MB before the first step")
            await self._state.load.preload(plan.preload_mb)
        self._state.load.start()
        self._state.start_clock()
        await self._state.load.progress(WARM_UP_RECORDS)

    async def _has_all_brokers(self, admin: Admin) -> bool:
        brokers = (await admin.describe_cluster()).brokers
        return {m.id for m in self._driver.brokers} <= {b.broker_id for b in brokers if not b.is_fenced}

    async def _do_steps(self) -> None:
        """Execute the steps until one fails: the steps after it rely on it."""
        for step in self._scenario.steps:
            try:
                await self._do(step)
            except StrandlineError as e:
                self._state.log_problem(f"step {step.number} ({step}): {e}")
                return

    async def _do(self, step: Step) -> None:
        if step.note:
            self._state.log(NOTE, step.note)
        if step.do == "wait":
            await self._waits.wait(step)
        elif step.do == "expect":
            await self._claims.check(step)
        elif step.do in FAULT_KIND:
            await self._break(step)
        elif step.do in HEAL_KIND:
            names = self._state.resolve(step["target"]) if step["target"] else self._state.broken.names(HEAL_KIND[step.do])
            await self._heal(step.do, names[::-1] if step.values.get("order") == "reverse" else names, step.number)
        elif step.do == "restart":
            await self._restart(step)
        elif step.do == "elect":
            await self._elect(step)
        elif step.do == "probe":
            self._claims.start_probe(step)
        else:
            await self._wipe(step)

    # -- actions

    async def _break(self, step: Step) -> None:
        names = self._state.resolve(step["target"])
        if step["as"]:
            self._state.aliases[step["as"]] = names
        self._state.note_fault(step.number, step.do, names)
        self._state.broken.add(FAULT_KIND[step.do], names)
        await self._act(step.do, names)
        if step.do == "stop":
            for name in names:
                await self._check_clean_end(step.number, name)

    async def _heal(self, do: str, names: list[str], step: int) -> None:
        if not names:
            return
        self._state.note_heal(step, do, names)
        if do == "start":
            self._state.started_at |= dict.fromkeys(names, perf_counter())
        await self._act(do, names)
        self._state.broken.remove(HEAL_KIND[do], names)
        if do == "replace-disk":
            self._state.broken.add("down", names)

    async def _act(self, do: str, names: list[str]) -> None:
        """Send an operator's request to the brokers, or have the driver act on processes, networks and disks."""
        if do in moves.OF_OPERATORS:
            await moves.OF_OPERATORS[do](self._state, names)
        else:
            await getattr(self._driver, do.replace("-", "_"))(names)

    async def _restart(self, step: Step) -> None:
        for name in self._state.resolve(step["target"]):
            self._state.note_fault(step.number, "stop", [name])
            self._state.broken.add("down", [name])
            await self._driver.stop([name])
            await self._check_clean_end(step.number, name)
            await self._heal("start", [name], step.number)
            await self._waits.in_sync(step["within_s"])

    async def _check_clean_end(self, step: int, name: str) -> None:
        clean = await self._driver.was_clean(name)
        self._state.log_claim(
            step, "clean shutdown", clean, f"{name} ended {'in order' if clean else 'WITHOUT a clean shutdown'}"
        )

    async def _wipe(self, step: Step) -> None:
        names = self._state.resolve(step["target"])
        self._state.log(STEP, f"wipe {', '.join(names)}", step=step.number)
        await self._driver.wipe(names)

    async def _elect(self, step: Step) -> None:
        (name,) = self._state.resolve(step["target"])
        self._state.log(STEP, f"elect {name} uncleanly", step=step.number)
        await moves.elect(self._state, name)

    # -- the end

    async def _heal_all(self) -> None:
        for do, kind in HEAL_KIND.items():
            try:
                await self._heal(do, self._state.broken.names(kind), step=0)
            except StrandlineError as e:
                self._state.log_problem(f"cannot heal the fault ({do} {', '.join(self._state.broken.names(kind))}): {e}")

    async def _find_dead_nodes(self) -> None:
        """Log each node that ended without a fault, and mark it as down, so that healing starts it again."""
        for member in self._driver.members:
            ending = await self._driver.ending(member.name)
            if not ending.is_running and member.name not in self._state.broken.names("down"):
                self._state.log_problem(f"{member.name} ended without a fault, exit code {ending.exit_code}")
                self._state.broken.add("down", [member.name])

    async def _settle(self) -> bool:
        """Heal the cluster, wait until it is in sync, and end the load. False if it did not recover: no verdict then."""
        try:
            await self._find_dead_nodes()
            await self._heal_all()
            await self._waits.in_sync(HEAL_WITHIN_S)
            await self._state.load.progress(LAST_RECORDS, HEAL_WITHIN_S)
        except StrandlineError as e:
            self._state.log_problem(f"the cluster did not recover: {e}")
            self._state.measure(perf_counter())
            return False
        ended = perf_counter()
        await self._state.load.stop()
        self._state.measure(ended)
        return True

    async def _judge(self) -> None:
        report, load = self._state.report, self._state.load
        if not self._state.has_faults:
            self._state.log(NOTE, "no step caused a fault: the verdict is about an undisturbed cluster")
        for text in load.failed[:5]:
            report.problem(f"a record was not delivered: {text}")
        try:
            await self._waits.in_sync(HEAL_WITHIN_S)
            report.take_history(await load.verdict())
            await self._compare()
        except StrandlineError as e:
            self._state.log_problem(f"cannot reach a verdict: {e}")

    async def _compare(self) -> None:
        comparisons: list[Comparison] = []

        async def equal() -> bool:
            comparisons[:] = await self._read_replicas()
            return len(comparisons) == self._scenario.load.partitions and all(map(self._is_whole, comparisons))

        try:
            await until(equal, "the logs of all replicas are equal", EQUAL_WITHIN_S)
        except StrandlineError as e:
            self._state.log_problem(str(e))
        for comparison in comparisons:
            self._state.report.replicas_compared += len(comparison.logs)
            if not self._is_whole(comparison):
                self._state.report.replicas_different += 1
                self._state.log_problem(str(comparison))

    def _is_whole(self, comparison: Comparison) -> bool:
        return comparison.equal and len(comparison.logs) == self._state.replicas

    async def _read_replicas(self) -> list[Comparison]:
        with tempfile.TemporaryDirectory(prefix="strandline-replicas-", ignore_cleanup_errors=True) as folder:
            replicas = {index: state.replicas for index, state in self._state.watch.picture.partitions.items()}
            folders = await self._driver.copy_logs(self._state.topic, replicas, Path(folder))
            return await asyncio.to_thread(compare_replicas, folders, self._state.topic)

    async def _leave(self) -> None:
        """Heal every fault and delete the topic. Runs after a failure or Ctrl-C too."""
        self._state.report.duration_s = self._state.now_s()
        try:
            await self._heal_all()
        finally:
            await self._claims.stop()
            await self._state.load.abandon()
            await self._state.watch.stop()
        try:
            async with Admin(**reach(self._driver.bootstrap), max_block_ms=5000) as admin:
                await admin.delete_topics([self._state.topic], timeout_ms=10_000)
        except StrandlineError as e:
            self._state.log(NOTE, f"cannot delete the topic {self._state.topic}: {e}")
