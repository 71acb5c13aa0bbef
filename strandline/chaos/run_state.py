"""The state of one run of a scenario: what the runner, the waits and the claims share.

The state knows the cluster (`driver`), the load, the watch and the report. It notes each fault and heal, logs events, and
resolves a target to node names. What happens next is decided elsewhere: by `runner.py`, `waits.py` and `claims.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from strandline.chaos.drivers import Driver
from strandline.chaos.gaps import gaps_of_partitions, longest_gap, steady_gap, worst
from strandline.chaos.load import SteadyLoad
from strandline.chaos.picture import BROKER, CONTROLLER, Change, resolve
from strandline.chaos.report import CLAIM, PROBLEM, SEEN, STEP, Event, Fault, Report
from strandline.chaos.scenario import Scenario
from strandline.chaos.watch import Watch

Say = Callable[[Event], None]


KINDS = ("down", "paused", "disconnected", "full", "lost", "draining")
"""The kinds of faults that last until they are healed."""


class Broken:
    """The faults that are not healed yet: kind of fault -> node names, in the order of the faults."""

    def __init__(self) -> None:
        self.by_kind: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}

    def add(self, kind: str, names: Sequence[str]) -> None:
        self.by_kind[kind].update(dict.fromkeys(names))
        if kind == "down":
            self.remove("paused", names)  # a process that ended is no longer paused

    def remove(self, kind: str, names: Sequence[str]) -> None:
        for name in names:
            self.by_kind[kind].pop(name, None)

    def names(self, kind: str) -> list[str]:
        return list(self.by_kind[kind])


class RunState:
    """State of one run against an open driver. Its clock starts with the load (`start_clock`)."""

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
            replicas=self.replicas,
        )
        self.watch = Watch(driver.brokers, self.topic, self._on_change)
        self.broken = Broken()
        self.aliases: dict[str, list[str]] = {}
        self.epochs_before: dict[int, int] = {}
        """Broker id -> its broker epoch before its last fault; a new process registers with a higher one."""
        self.led_before: dict[str, int] = {}
        """Broker name -> the leader epoch of partition 0 when its last fault hit it as the leader of that partition."""
        self.started_at: dict[str, float] = {}
        """Name of a node that was started again -> when, on the clock of `perf_counter`."""
        self._say = say
        self._began = perf_counter()
        self._moments: list[tuple[float, Fault]] = []

    @property
    def replicas(self) -> int:
        """The number of replicas of each partition."""
        return min(self.scenario.load.replicas, len(self.driver.brokers))

    def start_clock(self) -> None:
        self._began = perf_counter()

    def now_s(self) -> float:
        """Seconds since the clock started."""
        return round(perf_counter() - self._began, 3)

    # -- events

    def log(self, kind: str, text: str, **fields: Any) -> None:
        """Add an event to the report and print it."""
        event = Event(self.now_s(), kind, text, fields)
        self.report.events.append(event)
        self._say(event)

    def log_problem(self, text: str) -> None:
        """Log a problem; the verdict is bad from now on."""
        self.report.problem(text)
        self.log(PROBLEM, text)

    def log_claim(self, step: int, claim: str, ok: bool, seen: str) -> None:
        """Log the result of a claim or check; a broken one makes the verdict bad. `seen`: the observation behind it."""
        self.report.claims.append({"step": step, "claim": claim, "ok": ok, "seen": seen})
        self.log(CLAIM, f"{'holds' if ok else 'BROKEN'}: {claim}: {seen}")
        if not ok:
            self.report.problem(f"step {step}: {claim}: {seen}")

    def _on_change(self, change: Change) -> None:
        self.log(SEEN, change.text, **change.fields)

    # -- nodes

    def resolve(self, target: str | Sequence[str]) -> list[str]:
        """The names of the nodes that a target means now; NoTarget if it means none."""
        return resolve(target, self.watch.picture, self.driver.members, self.aliases, self.driver.small_disk)

    def ids(self, names: Sequence[str], role: str = BROKER) -> list[int]:
        """The node ids of those names that have this role."""
        return [m.id for name in names if (m := self.driver.member(name)).role == role]

    # -- faults and their gaps

    @property
    def has_faults(self) -> bool:
        return bool(self._moments)

    def note_fault(self, step: int, do: str, names: list[str]) -> None:
        """Note a fault that begins now, and the epochs before it."""
        picture = self.watch.picture
        led = picture.led_by(self.ids(names))
        active = [f"{n} is the active controller" for n in names if picture.controller in self.ids([n], CONTROLLER)]
        roles = [f"leads partition {', '.join(map(str, led))}"] * bool(led) + active
        for broker_id in self.ids(names):
            self.epochs_before[broker_id] = picture.broker_epochs.get(broker_id, -1)
        zero = picture.partitions[0]
        self.led_before |= {n: zero.leader_epoch for n in names if zero.leader in self.ids([n])}
        self._note(Fault(step, do, names, self.now_s(), led), f" ({'; '.join(roles)})" if roles else "")

    def note_heal(self, step: int, do: str, names: list[str]) -> None:
        """Note a heal that begins now. It can interrupt acknowledgements too, so its gap is measured like a fault's."""
        self._note(Fault(step, do, names, self.now_s(), []))

    def _note(self, fault: Fault, roles: str = "") -> None:
        self._moments.append((perf_counter(), fault))
        self.report.faults.append(fault)
        self.log(STEP, f"{fault.do} {', '.join(fault.nodes)}{roles}", step=fault.step)

    def longest_gap_ms(self) -> float:
        """The longest gap of any partition since the first fault, up to now."""
        now = perf_counter()
        return worst(gaps_of_partitions(self.load.acked_at, self._first_fault_at(now), now))[1].ms

    def measure(self, ended: float) -> None:
        """Write the load's counts and gaps into the report: per fault, and overall. `ended`: when the load ended."""
        report, load, acked_at = self.report, self.load, self.load.acked_at
        report.records_sent, report.records_acknowledged, report.records_failed = load.sent, load.acked, len(load.failed)
        self._measure_faults(ended)
        first = self._first_fault_at(ended)
        report.longest_gap_partition, gap = worst(gaps_of_partitions(acked_at, first, ended))
        report.longest_gap_ms = gap.ms
        report.whole_topic_gap_ms = longest_gap(sorted(t for times in acked_at.values() for t in times), first, ended).ms
        report.steady_gap_ms = worst({p: steady_gap(times, first) for p, times in acked_at.items()})[1].ms
        report.interval_ms = self.scenario.load.interval_ms
        report.client_stall_ms = round(self.load.longest_stall_s * 1000, 1)
        report.gap_goal_ms = None if self.scenario.gap_goal_s is None else self.scenario.gap_goal_s * 1000

    def _measure_faults(self, ended: float) -> None:
        for (begin, fault), end in zip(self._moments, [b for b, _ in self._moments[1:]] + [ended], strict=True):
            gaps = gaps_of_partitions(self.load.acked_at, begin, end)
            fault.gap_ms_by_partition = {p: gap.ms for p, gap in gaps.items()}
            longest = worst(gaps)[1]
            fault.gap_ms, fault.gap_at_s = longest.ms, round(longest.begin - self._began, 3)

    def _first_fault_at(self, otherwise: float) -> float:
        return self._moments[0][0] if self._moments else otherwise
