"""Makes a failing run smaller, as long as it fails in the same way.

    shrunk = shrink(Replay(4711))
    shrunk.replay.command       with as few faults, clients, topics, partitions and nodes as the failure needs

Each step removes something: a kind of fault, half of the faults, one fault, a consumer, a broker. The step is kept if the first
violation is still of the same invariant, and undone otherwise. Because each fault of a plan draws its details from its own
number (options.py), removing one leaves the others as they were, as long as the cluster is still the same.

The result is not the smallest possible run, but none of the tried steps makes it smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.group_plans import MemberPlan
from strandline.testing.simulation.options import FaultPlan, Options, draw_options
from strandline.testing.simulation.runs.replay import Replay, kinds_of
from strandline.testing.simulation.runs.run import Report

RUNS_MAX = 300
SETTLE_S = 0.5
"""The phase of faults lasts at least this many seconds after the beginning of the last fault."""

Step = tuple[str, Options]
"""A description of the removed part, and the remaining options."""


@dataclass(slots=True)
class Shrunk:
    replay: Replay
    report: Report
    """The report of its last run."""
    invariant: str
    runs: int
    steps: list[str]
    """Descriptions of the removed parts, in order."""
    faults_before: int = 0
    faults: int = 0


def shrink(replay: Replay, *, runs_max: int = RUNS_MAX, tell: Callable[[str], object] = lambda text: None) -> Shrunk:
    """Shrink a failing run. Raises `UsageError` if the run does not fail."""
    return _Shrinking(replay, runs_max, tell).shrink()


class OutOfRuns(Exception):
    """The limit of runs is reached."""


class _Shrinking:
    def __init__(self, replay: Replay, runs_max: int, tell: Callable[[str], object]) -> None:
        self.replay = replay
        self.runs_max = runs_max
        self.tell = tell
        report = replay.run()
        if report.good:
            raise UsageError(f"{replay.command} does not fail, so there is nothing to shrink")
        self.result = Shrunk(replay, report, _first(report), 1, [])
        self.options = replay.options or draw_options(replay.seed)
        """The smallest options so far that fail."""
        self.tried: set[str] = set()
        """Command lines of all runs that were tried."""

    def shrink(self) -> Shrunk:
        result = self.result
        if self.replay.scenario is not None:
            self._calm_scenario()
            return result
        result.faults_before = len(self.options.faults)
        self.tell(f"{result.invariant} with {result.faults_before} faults")
        try:
            while sum(reduce(self) for reduce in REDUCTIONS):
                pass
        except OutOfRuns:
            self.tell(f"stopped after {result.runs} runs")
        result.faults = len(self.options.faults)
        return result

    def _calm_scenario(self) -> None:
        """Shrink a scenario: it can only lose its perturbations."""
        calm = dataclasses.replace(self.replay, seed=0)
        if self.replay.seed and self._fails(calm):
            self.result.steps.append("the perturbations")

    def attempt(self, what: str, options: Options) -> bool:
        """Keep this step if the run still fails with it."""
        replay = Replay.of(self.replay.seed, options, until_s=self.replay.until_s, mutation=self.replay.mutation)
        if options == self.options or replay.command in self.tried:
            return False
        self.tried.add(replay.command)
        if not self._fails(replay):
            return False
        self.options = options
        self.result.steps.append(what)
        self.tell(f"without {what}: {len(options.faults)} faults, {options.brokers} brokers, {options.controllers} controllers")
        return True

    def _fails(self, replay: Replay) -> bool:
        if self.result.runs >= self.runs_max:
            raise OutOfRuns
        self.result.runs += 1
        report = replay.run()
        if report.good or _first(report) != self.result.invariant:
            return False
        self.result.replay, self.result.report = replay, report
        return True

    def greedily(self, steps: Callable[[Options], Iterator[Step]]) -> bool:
        """Take steps until none of them keeps the failure. Returns whether any was taken."""
        taken = False
        while any(self.attempt(what, options) for what, options in steps(self.options)):
            taken = True
        return taken


def _first(report: Report) -> str:
    return str(report.violations[0]["invariant"])


# -- reductions -------------------------------------------------------------------------------------------------------


def _fewer_faults(shrinking: _Shrinking) -> bool:
    """Remove whole kinds of faults first, then halves, quarters and so on of the remaining faults, then single ones."""
    taken = shrinking.greedily(_without_kinds)
    size = len(shrinking.options.faults)
    while size >= 1:
        place = 0
        while place < len(faults := shrinking.options.faults):
            chunk = faults[place : place + size]
            if shrinking.attempt(_names_of(chunk), _without(shrinking.options, chunk)):
                taken = True
            else:
                place += size
        size = min(size, len(shrinking.options.faults)) // 2
    return taken


def _without_kinds(options: Options) -> Iterator[Step]:
    for kind in dict.fromkeys(fault.kind for fault in options.faults):
        yield f"{kind} faults", _without(options, [fault for fault in options.faults if fault.kind == kind])


def _without(options: Options, faults: Sequence[FaultPlan]) -> Options:
    left = options.without_faults(fault.number for fault in faults)
    return left.replaced(kinds=kinds_of(left.as_dict()["faults"], options.kinds))


def _names_of(faults: Sequence[FaultPlan]) -> str:
    return ", ".join(f"the {fault.kind} at {fault.at_s:g} s" for fault in faults[:3]) + (" ..." if len(faults) > 3 else "")


def _fewer_clients(options: Options) -> Iterator[Step]:
    for name in ("consumers", "producers", "members", "writers", "shippers"):
        plans = getattr(options, name)
        if len(plans) > 1:
            yield f"all {name}", options.replaced(**{name: ()})
        for place in range(len(plans)):
            yield f"a {name[:-1]}", options.replaced(**{name: (*plans[:place], *plans[place + 1 :])})
    yield "transactions", options.without_transactions()
    yield "readers of offsets", options.replaced(readers=0)
    yield "lies", options.replaced(lies=0)
    for name in ("trims", "upgrades", "reconfigures", "reassigns", "drains", "moves_logs"):
        yield name, options.replaced(**{name: False})
    yield "conditional appends", options.replaced(racers=0)
    yield "fencing tokens", options.replaced(holders=0)
    for name in options.group_work:
        yield f"the groups' {name}", options.replaced(group_work=tuple(work for work in options.group_work if work != name))
    for place, plan in enumerate(options.members):
        if plan.event:
            calm = dataclasses.replace(plan, event="")
            yield f"a member's {plan.event}", options.replaced(members=_with(options.members, place, calm))


def _with(members: tuple[MemberPlan, ...], place: int, plan: MemberPlan) -> tuple[MemberPlan, ...]:
    return (*members[:place], plan, *members[place + 1 :])


def _fewer_partitions(options: Options) -> Iterator[Step]:
    in_use = {producer.topic for producer in options.producers} | {consumer.topic for consumer in options.consumers}
    for topic in options.topics:
        used = topic.name in in_use
        if not used and len(options.topics) > 1:
            yield f"topic {topic.name}", options.replaced(topics=tuple(t for t in options.topics if t != topic))
        for fewer in _less(topic.partitions, 1):
            yield f"partitions of {topic.name}", _with_topic(options, topic.name, partitions=fewer)
        for fewer in _less(topic.replication_factor, 1):
            least = min(fewer, topic.min_insync_replicas)
            changes = {"replication_factor": fewer, "min_insync_replicas": least}
            configs = {**topic.configs, "min.insync.replicas": least}
            yield f"replicas of {topic.name}", _with_topic(options, topic.name, **changes, configs=configs)


def _with_topic(options: Options, name: str, **changes: Any) -> Options:
    topics = (dataclasses.replace(topic, **changes) if topic.name == name else topic for topic in options.topics)
    return options.replaced(topics=tuple(topics))


def _less(number: int, least: int) -> Iterator[int]:
    """Smaller values, the smallest first."""
    yield from dict.fromkeys(fewer for fewer in (least, number // 2, number - 1) if least <= fewer < number)


def _fewer_nodes(options: Options) -> Iterator[Step]:
    for fewer in _less(options.brokers, max((topic.replication_factor for topic in options.all_topics), default=1)):
        yield "brokers", options.replaced(brokers=fewer)
    for fewer in _less(options.controllers, 1):
        if fewer % 2:
            yield "controllers", options.replaced(controllers=fewer)


def _calmer(options: Options) -> Iterator[Step]:
    yield "clock drift", options.replaced(clock_drift=0.0)
    yield "an orderly end", options.replaced(orderly_end=False)
    yield "nodes left out of the heal", options.replaced(leave_out=0)
    yield "jitter", options.replaced(jitter_ms=0.0)
    for name in ("producers", "consumers"):
        plans = tuple(dataclasses.replace(plan, crash_at_s=0.0) for plan in getattr(options, name))
        yield f"crashes of {name}", options.replaced(**{name: plans})


def _shorter(options: Options) -> Iterator[Step]:
    last_s = max((fault.at_s for fault in options.faults), default=0.0) + SETTLE_S
    for length_s in (last_s, (last_s + options.faults_s) / 2):
        if length_s < 0.9 * options.faults_s:
            yield "time after the last fault", options.replaced(faults_s=round(length_s, 3))
    first_s = min((fault.at_s for fault in options.faults), default=0.0) - SETTLE_S
    if first_s > SETTLE_S:
        faults = (dataclasses.replace(fault, at_s=round(fault.at_s - first_s, 3)) for fault in options.faults)
        yield "time before the first fault", options.replaced(faults=tuple(faults), faults_s=options.faults_s - first_s)


def _lighter(options: Options) -> Iterator[Step]:
    for place, plan in enumerate(options.producers):
        for changes in ({"burst_max": 1}, {"size_max": 0}):
            lighter = dataclasses.replace(plan, **changes)  # type: ignore[arg-type]
            yield "load", options.replaced(producers=(*options.producers[:place], lighter, *options.producers[place + 1 :]))


def _greedy(steps: Callable[[Options], Iterator[Step]]) -> Callable[[_Shrinking], bool]:
    return lambda shrinking: shrinking.greedily(steps)


REDUCTIONS: tuple[Callable[[_Shrinking], bool], ...] = (
    _fewer_faults,
    *map(_greedy, (_fewer_clients, _shorter, _fewer_partitions, _fewer_nodes, _calmer, _lighter)),
)
"""The reductions in their order, which are repeated until none of them removes anything."""
