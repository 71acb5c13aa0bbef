"""One seed from its first draw to its verdict.

    report = run_seed(42)
    report.verdict        "ok", "violation", or "loss permitted" (records were lost, and the run permits that)

Violations are: a broken invariant, an anomaly of the history, a heal that misses its bound, an unhandled exception, a log line
with a traceback. The same seed with the same options gives the same trace, to the last event.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from strandline.broker.fetch import fetch_session
from strandline.broker.partition import alter_partition
from strandline.testing.history import Anomaly, Verdict, check
from strandline.testing.history.transactions import TransactionVerdict
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.trace import Event, Trace
from strandline.testing.simulation.kernel.world import Unhandled, World
from strandline.testing.simulation.observation.marks import Marks
from strandline.testing.simulation.observation.probes import Probes
from strandline.testing.simulation.options import Options, draw_options
from strandline.testing.simulation.runs.phases import BeyondRepair, Phases
from strandline.testing.simulation.story.story import tell

OK, VIOLATION, LOSS = "ok", "violation", "loss permitted"
LIMIT_S = 600.0
STEPS_MAX = 3_000_000
STORIES_MAX = 3
"""Number of violations with a full page. One run may break a promise a hundred times."""
NEVER = frozenset({"aborted-read", "unwritten-read", "int-poll-skip", "int-nonmonotonic-poll"})
"""Anomalies that no client may see, not even after a permitted loss."""
LYING = frozenset({"rot", "misdirect", "stale_read"})
"""Kinds of faults after which a disk returns other bytes than those that were written there."""
ANY_END = 1 << 62
"""The end of the lost range of a report in which it is unknown."""


@dataclass(slots=True)
class Report:
    seed: int | str
    scenario: str | None
    verdict: str = OK
    violations: list[dict[str, Any]] = field(default_factory=list)
    """One mapping per violation, with `invariant`, `text`, `partition`, `node`, `time_s`, `story`."""
    trace_sha256: str = ""
    events: int = 0
    """Number of steps of the scheduler."""
    messages: int = 0
    """Number of frames that arrived."""
    virtual_s: float = 0.0
    wall_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    """Kind of fault -> how often it happened."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Kind of fault -> how often it was planned but did not happen, because the budget refused it or no victim existed."""
    marks: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    history: Verdict | None = None
    transactions: TransactionVerdict | None = None
    """The verdict about the transactions; None: the run had none."""
    sent: int = 0
    acked: int = 0
    phase: str = ""
    """The phase in which the run ended."""
    trace: Trace | None = None
    """The trace of the run, which is not part of the JSON."""

    @property
    def good(self) -> bool:
        return self.verdict != VIOLATION

    def as_dict(self) -> dict[str, Any]:
        left_out = ("trace", "history", "transactions")
        values = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        verdicts = {"history": self.history, "transactions": self.transactions}
        return {**values, **{name: None if verdict is None else str(verdict) for name, verdict in verdicts.items()}}

    def __str__(self) -> str:
        faults = " ".join(f"{kind} {count}" for kind, count in self.faults.items()) or "no faults"
        head = f"seed {self.seed}: {self.verdict}; {self.messages} messages, {self.virtual_s:.1f} s, {faults}"
        return "\n".join([head, *(f"  {v['invariant']} at {v['time_s']:.3f} s: {v['text']}" for v in self.violations)])


def run_seed(
    seed: int | str,
    *,
    scenario: str | None = None,
    until_s: float | None = None,
    full_trace: bool = False,
    options: Options | None = None,
    mutation: str | None = None,
    replay: str = "",
) -> Report:
    """Run one seed, or a scenario under this seed. `options` replace what the seed draws; `until_s` ends the run at that virtual
    time; `mutation` removes a guard from the production code meanwhile. `replay` holds the other arguments that the command line
    needs to repeat the run, for the page of a violation. Raises `UsageError` for an unknown scenario or mutation."""
    with _mutated(mutation):
        if scenario is not None:
            more = {"until_s": until_s, "full_trace": full_trace, "replay": replay}
            return _scenarios().run_scenario(scenario, seed, **more)  # type: ignore[no-any-return]
        return _Run(seed, options or draw_options(seed), until_s, full_trace, replay).run()


def _scenarios() -> Any:
    return importlib.import_module("strandline.testing.simulation.scenarios")


@contextlib.contextmanager
def _mutated(mutation: str | None) -> Iterator[None]:
    if mutation is None:
        yield
    else:
        with importlib.import_module("strandline.testing.simulation.campaign.mutations").applied(mutation):
            yield


@contextlib.contextmanager
def _time_outs_of(options: Options) -> Iterator[None]:
    """Shorten time-outs that production has no setting for, and that are longer than any run."""
    with (
        mock.patch.object(fetch_session, "EVICTION_S", options.session_eviction_s),
        mock.patch.object(alter_partition, "REQUEST_TIMEOUT_MS", options.proposal_timeout_ms),
    ):
        yield


class _Run:
    def __init__(self, seed: int | str, options: Options, until_s: float | None, full_trace: bool, replay: str) -> None:
        self.options = options
        self.until_s = until_s
        self.replay = replay
        self.report = Report(seed, None, options=options.as_dict())
        self.world = World(seed, full_trace=full_trace)
        self.invariants = Invariants(self.world.trace, on_violation=self.world.scheduler.fail)
        self.marks = Marks()
        self.phases = Phases(self.world, options, self.invariants)

    def run(self) -> Report:
        began = time.perf_counter()
        try:
            with self._watched():
                self._play()
            self._judge()
        finally:
            self._fill()
            self.world.close()
            self.report.wall_s = time.perf_counter() - began
        return self.report

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self.world.scheduler.after_step.append(self.invariants.after_step)
        if self.options.loss_permitted:
            self.invariants.ghosts.permit_loss("the faults of this run may be more than replication survives")
        with Probes(self.invariants), self.marks.watching(self.world.trace), _time_outs_of(self.options):
            yield

    def _play(self) -> None:
        limit_s = LIMIT_S if self.until_s is None else self.until_s
        try:
            self.world.run(self.phases.play(), limit_s=limit_s, steps_max=STEPS_MAX)
        except Violation as e:
            self._violated(e)
        except BeyondRepair:
            self.report.verdict = LOSS
        except Unhandled as e:
            self._violated(Violation("unhandled", "".join(traceback.format_exception(e))))
        except OutOfTime as e:
            if self.until_s is None:
                self._violated(Violation("I24", f"{e}{self.phases.diagnosis([])}"))

    def _violated(self, violation: Violation) -> None:
        report, world = self.report, self.world
        report.verdict = VIOLATION
        report.violations.append(
            {
                "invariant": violation.invariant,
                "text": violation.text,
                "partition": violation.partition,
                "node": violation.node,
                "time_s": world.now,
                "story": "" if len(report.violations) >= STORIES_MAX else self._story(violation),
            }
        )

    def _story(self, violation: Violation) -> str:
        return tell(self.world.trace, violation, self.report.seed, replay=self.replay)

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        workload = self.phases.workload
        if self.options.loss_permitted:
            self._judge_loss_permitted()
        else:
            self.report.history = verdict = check(workload.history, acks="all")
            self._anomalies(verdict.anomalies)
        if self.options.writers:
            verdicts = workload.transactions.check()
            self.report.transactions = verdicts[0]
            self._anomalies(anomaly for verdict in verdicts for anomaly in verdict.anomalies)
        for problem in workload.problems:
            self._violated(Violation("client", problem))
        self._tracebacks()

    def _judge_loss_permitted(self) -> None:
        self.report.history = verdict = check(self.phases.workload.history, acks="all")
        losses = [a for a in verdict.anomalies if not self._may_never_be(a)]
        self._anomalies(a for a in verdict.anomalies if self._may_never_be(a))
        if any(loss.name == "lost-write" for loss in losses) and self._reports_are_complete():
            self._judge_reports()
        if losses:
            if not self.report.violations:  # A permitted loss excuses no other violation.
                self.report.verdict = LOSS
            # A client may have elected a replica uncleanly, although another one with all records was about to return.
            if not self.phases.budget.exceeded and not self._unclean_elections():
                self._anomalies(losses)

    def _reports_are_complete(self) -> bool:
        """Whether every loss of this run must come from an unclean election: no disk lies, and the metadata has eligible replicas
        from the beginning."""
        return not self.options.upgrades and not LYING & set(self.options.kinds)

    def _unclean_elections(self) -> list[Event]:
        """The log lines with the reports."""
        return list(self.world.trace.events(kinds="log.partition.elected_uncleanly"))

    def _judge_reports(self) -> None:
        """I31: every acknowledged record that is lost lies in the range of a report. Partitions with a single replica are not
        judged: it leads again without an election, whatever it has lost."""
        history = self.phases.workload.history
        single = {topic.name for topic in self.options.topics if topic.replication_factor == 1}
        changes = self.world.trace.events(kinds="log.partition.changed")
        reassigned_to_one = {event.partition for event in changes if len(event.fields["replicas"]) == 1}
        for event in self._unclean_elections():
            said, (topic, _, index) = event.fields, event.partition.rpartition("-")
            end = ANY_END if said["lost_to"] < 0 else said["lost_to"]
            history.loss((topic, int(index)), said["lost_from"], end, at=event.time)
        for anomaly in check(history, acks="all").anomalies:
            if anomaly.name != "lost-write" or not isinstance(anomaly.partition, tuple) or anomaly.partition[0] in single:
                continue
            name = f"{anomaly.partition[0]}-{anomaly.partition[1]}"
            if name not in reassigned_to_one:
                self._violated(Violation("I31", f"no report of an unclean election names it: {anomaly}", partition=name))

    def _may_never_be(self, anomaly: Anomaly) -> bool:
        """Whether no client may see this anomaly, not even after a loss. A skipped record of a compacted partition is excused: a
        consumer skips offsets that were cleaned, and after a loss other records may have these offsets."""
        compacted = {place for topic in self.options.topics if topic.is_compacted for place in topic.places}
        return anomaly.name in NEVER and not (anomaly.name == "int-poll-skip" and anomaly.partition in compacted)

    def _anomalies(self, anomalies: Any) -> None:
        for anomaly in list(anomalies)[:20]:
            self._anomaly(anomaly)

    def _anomaly(self, anomaly: Anomaly) -> None:
        partition = anomaly.partition
        name = f"{partition[0]}-{partition[1]}" if isinstance(partition, tuple) else str(partition)
        self._violated(Violation(anomaly.name, str(anomaly), partition=name))

    def _tracebacks(self) -> None:
        """Log lines with a traceback: code caught an exception that should not have happened."""
        for event in self.world.trace.events(kinds="log."):
            if event.fields.get("level") == "error" and "exception" in event.fields:
                text = f"{event.kind} of node {event.node} at {event.time:.3f}: {event.fields['exception']}"
                self._violated(Violation("log", text, partition=event.partition, node=event.node))

    def _fill(self) -> None:
        report, world = self.report, self.world
        report.trace = world.trace
        report.trace_sha256 = world.trace.sha256()
        report.events, report.messages, report.virtual_s = world.scheduler.steps, world.network.messages, world.now
        report.faults, report.skipped = dict(self.phases.nemesis.counts), dict(self.phases.nemesis.skipped)
        report.sent, report.acked = self.phases.workload.sent, self.phases.workload.acked
        report.phase, report.marks = self.phases.phase, dict(self.marks.counts)
