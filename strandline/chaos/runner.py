"""Runs a scenario: the load goes, step after step is done, everything is healed, and the clients' history is judged.

The verdict rests on what clients saw and on what lies on the disks: the history check, the claims of the scenario, no
failed send, and the replicas' logs equal byte by byte. However it ends, by Ctrl-C as well, what was broken is mended.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from strandline.chaos.claims import Claims
from strandline.chaos.drivers import Driver
from strandline.chaos.gaps import gaps_of_partitions, longest_gap, steady_gap, worst
from strandline.chaos.load import SteadyLoad, until
from strandline.chaos.picture import BROKER, Change, resolve
from strandline.chaos.report import CLAIM, NOTE, PROBLEM, SEEN, STEP, Event, Fault, Report
from strandline.chaos.scenario import Scenario, Step
from strandline.chaos.waits import Waits
from strandline.chaos.watch import Watch
from strandline.client import Admin
from strandline.protocol.errors import StrandlineError
from strandline.testing.replicas import Comparison, compare_replicas

WARM_UP_RECORDS = 300
LAST_RECORDS = 300
HEAL_WITHIN_S = 60.0
EQUAL_WITHIN_S = 10.0

Say = Callable[[Event], None]


class Broken:
    """What was done to whom and not undone yet. By kind of fault, names in the order in which it was done."""

    def __init__(self) -> None:
        self.by_kind: dict[str, dict[str, None]] = {"down": {}, "paused": {}, "disconnected": {}, "full": {}}

    def add(self, kind: str, names: Sequence[str]) -> None:
        self.by_kind[kind].update(dict.fromkeys(names))
        if kind == "down":
            self.remove("paused", names)  # a process that is gone does not stand still

    def remove(self, kind: str, names: Sequence[str]) -> None:
        for name in names:
            self.by_kind[kind].pop(name, None)

    def names(self, kind: str) -> list[str]:
        return list(self.by_kind[kind])


FAULT_KIND = {"kill": "down", "stop": "down", "pause": "paused", "disconnect": "disconnected", "fill-disk": "full"}
MEND_KIND = {"free-disk": "full", "reconnect": "disconnected", "resume": "paused", "start": "down"}
"""In the order in which everything is mended in the end."""


class Run:
    """One run of one scenario against an open driver."""

    def __init__(self, scenario: Scenario, driver: Driver, say: Say) -> None:
        self.scenario = scenario
        self.driver = driver
        self.report = Report(scenario.name, scenario.title, driver.kind, dict(scenario.parameters))
        self.topic = f"chaos-{scenario.name}-{secrets.token_hex(3)}"
        plan = scenario.load
        self.load = SteadyLoad(
            driver.bootstrap,
            self.topic,
            partitions=plan.partitions,
            interval_ms=plan.interval_ms,
            value_bytes=plan.value_bytes,
            replicas=min(3, len(driver.brokers)),
        )
        self.watch = Watch(driver.brokers, self.topic, self._on_change)
        self.broken = Broken()
        self.aliases: dict[str, list[str]] = {}
        self.epochs_before: dict[int, int] = {}
        """Broker id -> its broker epoch when something was last done to it; a new process gets a higher one."""
        self.led_before: dict[str, int] = {}
        """Broker -> the leader epoch of partition 0 when something was last done to it as its leader."""
        self.started_at: dict[str, float] = {}
        """Nodes that were started again, and when."""
        self._say = say
        self._began = perf_counter()
        self._moments: list[tuple[float, Fault]] = []
        self._waits = Waits(self)
        self._claims = Claims(self)

    async def run(self) -> Report:
        try:
            await self._prepare()
            await self._do_steps()
            if await self._settle():
                await self._judge()
        finally:
            await self._leave()
        return self.report

    # -- telling

    def now_s(self) -> float:
        return round(perf_counter() - self._began, 3)

    def tell(self, kind: str, text: str, **fields: Any) -> None:
        event = Event(self.now_s(), kind, text, fields)
        self.report.events.append(event)
        self._say(event)

    def problem(self, text: str) -> None:
        self.report.problem(text)
        self.tell(PROBLEM, text)

    def claim(self, step: int, claim: str, ok: bool, seen: str) -> None:
        """A claim or a check was looked at."""
        self.report.claims.append({"step": step, "claim": claim, "ok": ok, "seen": seen})
        self.tell(CLAIM, f"{'holds' if ok else 'BROKEN'}: {claim}: {seen}")
        if not ok:
            self.report.problem(f"step {step}: {claim}: {seen}")

    def _on_change(self, change: Change) -> None:
        self.tell(SEEN, change.text, **change.fields)

    # -- the way of a run

    async def _prepare(self) -> None:
        plan = self.scenario.load
        async with Admin(bootstrap_servers=self.driver.bootstrap) as admin:
            await until(lambda: self._has_all_brokers(admin), "every broker is unfenced", HEAL_WITHIN_S)
        await self.load.create_topic()
        self.watch.start()
        await until(
            lambda: len(self.watch.picture.partitions) == plan.partitions, "the topic's partitions are seen", HEAL_WITHIN_S
        )
        await self._waits.in_sync(HEAL_WITHIN_S)
        if plan.preload_mb:
            self.tell(NOTE, f"{plan.preload_mb} MB are written first")
            await self.load.preload(plan.preload_mb)
        self.load.start()
        self._began = perf_counter()
        await self.load.progress(WARM_UP_RECORDS)

    async def _has_all_brokers(self, admin: Admin) -> bool:
        brokers = (await admin.describe_cluster()).brokers
        return {m.id for m in self.driver.brokers} <= {b.broker_id for b in brokers if not b.is_fenced}

    async def _do_steps(self) -> None:
        """To the end, or to the first that fails: what follows rests on it."""
        for step in self.scenario.steps:
            try:
                await self._do(step)
            except StrandlineError as e:
                self.problem(f"step {step.number} ({step}): {e}")
                return

    async def _do(self, step: Step) -> None:
        if step.note:
            self.tell(NOTE, step.note)
        if step.do == "wait":
            await self._waits.wait(step)
        elif step.do == "expect":
            await self._claims.check(step)
        elif step.do in FAULT_KIND:
            await self._break(step)
        elif step.do in MEND_KIND:
            names = self.who(step["target"]) if step["target"] else self.broken.names(MEND_KIND[step.do])
            await self._mend(step.do, names[::-1] if step.values.get("order") == "reverse" else names, step.number)
        elif step.do == "restart":
            await self._restart(step)
        elif step.do == "probe":
            self._claims.start_probe(step)
        else:
            await self._wipe(step)

    def who(self, target: str | Sequence[str]) -> list[str]:
        return resolve(target, self.watch.picture, self.driver.members, self.aliases, self.driver.small_disk)

    def ids(self, names: Sequence[str], role: str = BROKER) -> list[int]:
        return [m.id for name in names if (m := self.driver.member(name)).role == role]

    # -- acts

    async def _break(self, step: Step) -> None:
        names = self.who(step["target"])
        if step["as"]:
            self.aliases[step["as"]] = names
        self._note_fault(step.number, step.do, names)
        self.broken.add(FAULT_KIND[step.do], names)
        await getattr(self.driver, step.do.replace("-", "_"))(names)
        if step.do == "stop":
            for name in names:
                await self._check_clean_end(step.number, name)

    def _note_fault(self, step: int, do: str, names: list[str]) -> None:
        picture = self.watch.picture
        led = picture.led_by(self.ids(names))
        active = [f"{n} is the active controller" for n in names if picture.controller in self.ids([n], "controller")]
        roles = [f"leads partition {', '.join(map(str, led))}"] * bool(led) + active
        for broker_id in self.ids(names):
            self.epochs_before[broker_id] = picture.broker_epochs.get(broker_id, -1)
        zero = picture.partitions[0]
        self.led_before |= {n: zero.leader_epoch for n in names if zero.leader in self.ids([n])}
        fault = Fault(step, do, names, self.now_s(), led)
        self._moments.append((perf_counter(), fault))
        self.report.faults.append(fault)
        whom = ", ".join(names) + (f" ({'; '.join(roles)})" if roles else "")
        self.tell(STEP, f"{do} {whom}", step=step)

    async def _mend(self, do: str, names: list[str], step: int) -> None:
        if not names:
            return
        self._note_fault_end(step, do, names)
        if do == "start":
            self.started_at |= dict.fromkeys(names, perf_counter())
        await getattr(self.driver, do.replace("-", "_"))(names)
        self.broken.remove(MEND_KIND[do], names)

    def _note_fault_end(self, step: int, do: str, names: list[str]) -> None:
        """A mend may cost something too: its gap is looked at like that of a fault."""
        fault = Fault(step, do, names, self.now_s(), [])
        self._moments.append((perf_counter(), fault))
        self.report.faults.append(fault)
        self.tell(STEP, f"{do} {', '.join(names)}", step=step)

    async def _restart(self, step: Step) -> None:
        for name in self.who(step["target"]):
            self._note_fault(step.number, "stop", [name])
            self.broken.add("down", [name])
            await self.driver.stop([name])
            await self._check_clean_end(step.number, name)
            await self._mend("start", [name], step.number)
            await self._waits.in_sync(step["within_s"])

    async def _check_clean_end(self, step: int, name: str) -> None:
        clean = await self.driver.was_clean(name)
        self.claim(step, "clean shutdown", clean, f"{name} ended {'in order' if clean else 'WITHOUT a clean shutdown'}")

    async def _wipe(self, step: Step) -> None:
        names = self.who(step["target"])
        self.tell(STEP, f"wipe {', '.join(names)}", step=step.number)
        await self.driver.wipe(names)

    # -- the end

    async def _mend_all(self) -> None:
        for do, kind in MEND_KIND.items():
            try:
                await self._mend(do, self.broken.names(kind), step=0)
            except StrandlineError as e:
                self.problem(f"it could not be mended ({do} {', '.join(self.broken.names(kind))}): {e}")

    async def _find_the_dead(self) -> None:
        """A node that ended and should not have: told, and started again."""
        for member in self.driver.members:
            ending = await self.driver.ending(member.name)
            if not ending.is_running and member.name not in self.broken.names("down"):
                self.problem(f"{member.name} ended by itself, exit code {ending.exit_code}")
                self.broken.add("down", [member.name])

    async def _settle(self) -> bool:
        """Everybody is back, everything in sync, the load goes on and then ends. False: there is nothing to judge."""
        try:
            await self._find_the_dead()
            await self._mend_all()
            await self._waits.in_sync(HEAL_WITHIN_S)
            await self.load.progress(LAST_RECORDS, HEAL_WITHIN_S)
        except StrandlineError as e:
            self.problem(f"the cluster did not get well again: {e}")
            self._measure(perf_counter())
            return False
        ended = perf_counter()
        await self.load.stop()
        self._measure(ended)
        return True

    def _measure(self, ended: float) -> None:
        """Gaps per fault, and over all."""
        report, load, acked_at = self.report, self.load, self.load.acked_at
        report.records_sent, report.records_acknowledged, report.records_failed = load.sent, load.acked, len(load.failed)
        for (begin, fault), end in zip(self._moments, [b for b, _ in self._moments[1:]] + [ended], strict=True):
            gaps = gaps_of_partitions(acked_at, begin, end)
            fault.gap_ms_by_partition = {p: gap.ms for p, gap in gaps.items()}
            longest = worst(gaps)[1]
            fault.gap_ms, fault.gap_at_s = longest.ms, round(longest.begin - self._began, 3)
        first = self._moments[0][0] if self._moments else ended
        report.longest_gap_partition, gap = worst(gaps_of_partitions(acked_at, first, ended))
        report.longest_gap_ms = gap.ms
        report.whole_topic_gap_ms = longest_gap(sorted(t for times in acked_at.values() for t in times), first, ended).ms
        report.steady_gap_ms = worst({p: steady_gap(times, first) for p, times in acked_at.items()})[1].ms
        report.interval_ms = self.scenario.load.interval_ms
        report.client_stall_ms = round(self.load.longest_stall_s * 1000, 1)
        report.gap_goal_ms = None if self.scenario.gap_goal_s is None else self.scenario.gap_goal_s * 1000

    def gap_so_far_ms(self) -> float:
        first = self._moments[0][0] if self._moments else perf_counter()
        return worst(gaps_of_partitions(self.load.acked_at, first, perf_counter()))[1].ms

    async def _judge(self) -> None:
        report, load = self.report, self.load
        if not self._moments:
            self.tell(NOTE, "no step broke anything: the verdict is that of an undisturbed cluster")
        for text in load.failed[:5]:
            report.problem(f"a record was not delivered: {text}")
        try:
            await self._waits.in_sync(HEAL_WITHIN_S)
            report.take_history(await load.verdict())
            await self._compare()
        except StrandlineError as e:
            self.problem(f"the verdict could not be reached: {e}")

    async def _compare(self) -> None:
        comparisons: list[Comparison] = []

        async def equal() -> bool:
            comparisons[:] = await self._read_replicas()
            return len(comparisons) == self.scenario.load.partitions and all(c.equal for c in comparisons)

        try:
            await until(equal, "the logs of all replicas are equal", EQUAL_WITHIN_S)
        except StrandlineError as e:
            self.problem(str(e))
        for comparison in comparisons:
            self.report.replicas_compared += len(comparison.logs)
            if not comparison.equal or len(comparison.logs) != min(3, len(self.driver.brokers)):
                self.report.replicas_different += 1
                self.problem(str(comparison))

    async def _read_replicas(self) -> list[Comparison]:
        with tempfile.TemporaryDirectory(prefix="strandline-replicas-", ignore_cleanup_errors=True) as folder:
            folders = await self.driver.copy_logs(self.topic, self.scenario.load.partitions, Path(folder))
            return await asyncio.to_thread(compare_replicas, folders, self.topic)

    async def _leave(self) -> None:
        """Also after a failure or Ctrl-C: whole again, and nothing of ours left behind."""
        self.report.duration_s = self.now_s()
        try:
            await self._mend_all()
        finally:
            await self._claims.stop()
            await self.load.abandon()
            await self.watch.stop()
        try:
            async with Admin(bootstrap_servers=self.driver.bootstrap, max_block_ms=5000) as admin:
                await admin.delete_topics([self.topic], timeout_ms=10_000)
        except StrandlineError as e:
            self.tell(NOTE, f"the topic {self.topic} is left behind: {e}")
