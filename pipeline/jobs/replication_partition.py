"""Finds out what happened to one partition: its states, intervals, elections and truncations, from facts in any order. Pure.

`replication_states.py` merges the facts into states, ordered by partition epoch. The intervals (for example under-replicated) and
the elections follow from the states.

Times are those of the machine that logged the line. If a change has an earlier time than the change before it, a clock is wrong:
the change gets the time of the one before it, and the difference is reported as `skew`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from strandline.pipeline.jobs.replication_cluster import ClusterTimeline, without_repeats
from strandline.pipeline.jobs.replication_facts import Fact
from strandline.pipeline.jobs.replication_states import NO_LEADER, State, first_known, merged_states

STATE, INTERVAL, ELECTION, TRUNCATION, LAG, SKEW = "state", "interval", "election", "truncation", "lag", "skew"
UNDER_REPLICATED, UNDER_MIN_ISR, WITHOUT_LEADER, OUT_OF_ISR = "under_replicated", "under_min_isr", "without_leader", "out_of_isr"
FAILOVER, HANDOVER = "failover", "handover"
BEFORE_THE_LOGS = "before the logs"
PLANNED = (
    "controlled_shutdown",
    "leader_proposed",
    "leaders_balanced",
    "min_isr_lowered",
    "preferred_election",
    "reassignment_requested",
)
"""Causes of elections in which the old leader still runs: a handover, not a fail-over. (A reassignment that removes the leader is
completed by a request, by the leader's proposal of an ISR, or by a lower min.insync.replicas.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finding. `kind` decides which fields are set. Times are microseconds since 1970, by the clock of the node that logged
    them.

    state       The partition had the leader `broker` and this `isr` from `from_us` to `until_us`. `cause` and `detail` explain
                the change with which the state began.
    interval    `what` was true from `from_us` to `until_us`. `broker` is the replica that was out of the ISR, or else the leader.
    election    `broker` became leader after `previous_broker`. `what` is failover or handover. The old leader was lost at
                `lost_us`, the new one was elected at `elected_us` and took its role at `until_us`.
    truncation  `broker` truncated the offsets [`first_offset`, `end_offset`). `below_hw` of them were below its high watermark.
    lag         `what` is hw: `records` records were above the high watermark when `broker` became leader; or follower: `broker`
                lacked `records` records when it left the ISR.
    skew        The clock of the node `detail` is at least `records` microseconds behind another one.
    """

    kind: str
    topic: str
    partition: int
    incarnation: int = 0
    """Number of the topic among those that had this name one after the other; the first has 0 or 1."""
    what: str = ""
    from_us: int = 0
    until_us: int | None = None
    is_open: bool = False
    """The state or interval had not ended at the end of the logs or of the requested range; `until_us` is that end."""
    broker: int | None = None
    previous_broker: int | None = None
    leader_epoch: int | None = None
    partition_epoch: int | None = None
    isr: list[int] = field(default_factory=list)
    previous_isr: list[int] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    min_isr: int | None = None
    cause: str = ""
    detail: str = ""
    lost_us: int | None = None
    elected_us: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    records: int | None = None
    below_hw: int | None = None

    @property
    def ms(self) -> float:
        """Duration in ms; 0 if there is no end."""
        return 0.0 if self.until_us is None else max(0, self.until_us - self.from_us) / 1000

    @property
    def removed(self) -> list[int]:
        """The brokers that left the ISR when this state began."""
        return [broker for broker in self.previous_isr if broker not in self.isr]

    @property
    def added(self) -> list[int]:
        """The brokers that joined the ISR when this state began."""
        return [broker for broker in self.isr if broker not in self.previous_isr] if self.previous_isr else []


def rows_of_partition(timeline: ClusterTimeline, topic: str, partition: int, facts: Iterable[Fact]) -> list[Row]:
    """All findings on one partition. If the topic was deleted and recreated, each incarnation has findings of its own."""
    groups: dict[int, list[Fact]] = {}
    for fact in sorted(filter(timeline.is_committed, without_repeats(facts)), key=lambda fact: fact.at_us):
        groups.setdefault(timeline.incarnation(topic, fact.at_us), []).append(fact)
    rows: list[Row] = []
    for incarnation, group in groups.items():
        rows += _Incarnation(timeline, topic, partition, incarnation, group).rows()
    return rows


class _Incarnation:
    """Finds out what happened to a partition of one incarnation of a topic (one topic id)."""

    def __init__(self, timeline: ClusterTimeline, topic: str, partition: int, incarnation: int, facts: list[Fact]) -> None:
        self._timeline, self._facts = timeline, facts
        self._common = {"topic": topic, "partition": partition, "incarnation": incarnation}
        removed_us = timeline.ends_at(topic, incarnation)
        self._end_us = timeline.end_us if removed_us is None else removed_us
        self._is_removed = removed_us is not None
        self._skews: dict[str, int] = {}
        self._led: dict[object, Fact] = {}
        """Leader epoch -> the line with which its leader took the role."""
        self._reasons: dict[tuple[object, object], Fact] = {}
        """(Partition epoch, broker) -> the line in which the leader says why it proposed an ISR without that broker."""
        self._below: dict[tuple[str, int], list[Fact]] = {}
        """(Node, offset) -> the lines which say that a truncation to this offset was below the high watermark."""
        for fact in facts:
            if fact.event == "partition.truncated_below_hw":
                self._below.setdefault((fact.node, int(fact.fields.get("offset", -1))), []).append(fact)
            elif fact.event == "partition.became_leader":
                self._led.setdefault(fact.fields.get("leader_epoch"), fact)
            elif fact.event in _LEADERS_REASONS:
                self._reasons.setdefault((fact.fields.get("partition_epoch"), fact.fields.get("broker_id")), fact)
        self._states = self._in_order(list(merged_states(facts)))
        self._state_rows = list(self._make_state_rows())

    def rows(self) -> list[Row]:
        states = self._state_rows
        intervals = [row for what, test in _TESTS.items() for row in self._intervals(what, test)]
        rows = [*states, *intervals, *self._out_of_isr(), *self._elections(), *self._truncations(), *self._lags()]
        for node, us in self._skews.items():
            rows.append(self._row(SKEW, detail=node, records=us))
        return rows

    def _row(self, kind: str, **fields: object) -> Row:
        return Row(kind=kind, **self._common, **fields)  # type: ignore[arg-type]

    # -- states

    def _in_order(self, merged: list[State]) -> list[State]:
        """Sorts states by partition epoch and makes their times ascend. Replicas and min ISR, which only some lines have, are
        taken over from the state before."""
        states: list[State] = []
        merged.sort(key=lambda state: state.epoch)
        if merged and merged[0].before is not None and merged[0].epoch > 0:
            leader, isr = merged[0].before
            states.append(replace(merged[0], epoch=merged[0].epoch - 1, at_us=self._first_us(merged[0]), leader=leader, isr=isr,
                                  cause="", before=None, metadata_offset=None))  # fmt: skip
        replicas, min_isr = first_known(merged)
        min_isr = min_isr or min(self._timeline.min_isr.get(str(self._common["topic"]), 0), len(replicas))
        for state in merged:
            replicas, min_isr = state.replicas or replicas, state.min_isr or min_isr
            at_us = state.at_us
            if states and at_us < states[-1].at_us:
                self._note_skew(state.node, states[-1].at_us - at_us)
                at_us = states[-1].at_us
            states.append(replace(state, at_us=at_us, replicas=replicas, min_isr=min_isr))
        if states:
            states[0] = replace(states[0], replicas=states[0].replicas or replicas, min_isr=states[0].min_isr or min_isr)
        return states

    def _first_us(self, state: State) -> int:
        """The begin of the state before the first change: unknown, so the begin of the logs."""
        return min(self._timeline.begin_us or state.at_us, state.at_us)

    def _note_skew(self, node: str, us: int) -> None:
        self._skews[node] = max(self._skews.get(node, 0), us)

    def _pairs(self) -> Iterator[tuple[State | None, State, int]]:
        """Yields each state with the state before it and the time of its end."""
        for n, state in enumerate(self._states):
            end = self._states[n + 1].at_us if n + 1 < len(self._states) else max(self._end_us, state.at_us)
            yield (self._states[n - 1] if n else None), state, end

    def _make_state_rows(self) -> Iterator[Row]:
        for before, state, end in self._pairs():
            cause, detail = ("", "") if before is None else self._cause(before, state)
            yield self._row(
                STATE, from_us=state.at_us, until_us=end, is_open=state is self._states[-1] and not self._is_removed,
                broker=state.leader, previous_broker=None if before is None else before.leader, leader_epoch=state.leader_epoch,
                partition_epoch=state.epoch, isr=list(state.isr), previous_isr=[] if before is None else list(before.isr),
                replicas=list(state.replicas), min_isr=state.min_isr or None, cause=cause, detail=detail,
            )  # fmt: skip

    def _cause(self, before: State, state: State) -> tuple[str, str]:
        """Cause and detail of a change: the controller's cause, made more exact by the fencing or by the leader's line."""
        removed = [broker for broker in before.isr if broker not in state.isr]
        if state.cause == "broker_fenced":
            reasons = [f.reason for broker in removed if (f := self._timeline.fencing(broker, state.at_us)) is not None]
            return state.cause, "; ".join(dict.fromkeys(reasons))
        if state.cause in ("leader_proposed", "") and removed:
            return self._leaders_reason(before.epoch, removed) or (state.cause or "unknown", "")
        if state.cause in ("leader_proposed", "") and set(state.isr) - set(before.isr):
            return "caught_up", ""
        return state.cause or "unknown", ""

    def _leaders_reason(self, epoch: int, removed: Sequence[int]) -> tuple[str, str] | None:
        """Cause and detail of the leader's proposal to remove these brokers. The leader's line has the partition epoch before the
        proposal. None if there is no such line."""
        fact = next((fact for broker in removed if (fact := self._reasons.get((epoch, broker))) is not None), None)
        if fact is None:
            return None
        if fact.event == "isr.member_lost_records":
            return "lost_records", f"fetched again from offset {fact.fields.get('fetch_offset')}"
        behind = fact.fields.get("behind_ms")
        return "lagging", "never caught up" if behind is None else f"not caught up for {behind} ms"

    # -- intervals

    def _intervals(self, what: str, test: Callable[[State], bool]) -> Iterator[Row]:
        """Joins successive states that pass the test into intervals."""
        begun: tuple[int, str, State] | None = None
        for row, (_, state, _) in zip(self._state_rows, self._pairs(), strict=True):
            if test(state) and begun is None:
                begun = state.at_us, row.cause, state
            elif begun is not None and not test(state):
                yield self._interval(what, begun, state.at_us, is_open=False)
                begun = None
        if begun is not None:
            yield self._interval(what, begun, max(self._end_us, begun[0]), is_open=not self._is_removed)

    def _interval(self, what: str, begun: tuple[int, str, State], until_us: int, *, is_open: bool) -> Row:
        from_us, cause, state = begun
        more = {"isr": list(state.isr), "replicas": list(state.replicas), "cause": cause, "is_open": is_open}
        return self._row(INTERVAL, what=what, from_us=from_us, until_us=until_us, broker=state.leader, **more)

    def _out_of_isr(self) -> Iterator[Row]:
        """Intervals of each replica, from which the time of each broker is summed."""
        for broker in sorted({broker for state in self._states for broker in state.replicas}):

            def is_out(state: State, broker: int = broker) -> bool:
                return broker in state.replicas and broker not in state.isr

            for row in self._intervals(OUT_OF_ISR, is_out):
                yield replace(row, broker=broker)

    # -- elections

    def _elections(self) -> Iterator[Row]:
        lost: tuple[int, int, str] | None = None
        """While the partition has no leader: its last leader, the time of the loss, and the cause."""
        for before, state, _ in self._pairs():
            if before is None or before.leader == state.leader:
                continue
            if lost is None and before.leader == NO_LEADER:
                lost = NO_LEADER, before.at_us, BEFORE_THE_LOGS
            elif lost is None:
                lost = before.leader, self._lost_at(before, state), state.cause
            if state.leader != NO_LEADER:
                yield self._election(state, *lost, was_without=before.leader == NO_LEADER)
                lost = None

    def _lost_at(self, before: State, state: State) -> int:
        return state.at_us if state.cause in PLANNED else self._timeline.lost_at(before.leader, state.at_us)

    def _election(self, state: State, previous: int, lost_us: int, cause: str, *, was_without: bool) -> Row:
        led_us = self._led_at(state)
        is_planned = cause in PLANNED and not was_without
        detail = "" if (fencing := self._timeline.fencing(previous, state.at_us)) is None else fencing.reason
        if cause == BEFORE_THE_LOGS:
            cause, detail = "unknown", "the leader was lost before these logs begin, so the fail-over took at least this long"
        return self._row(
            ELECTION, what=HANDOVER if is_planned else FAILOVER, from_us=min(lost_us, state.at_us),
            until_us=max(led_us, state.at_us), lost_us=lost_us, elected_us=state.at_us, broker=state.leader,
            previous_broker=previous, leader_epoch=state.leader_epoch, partition_epoch=state.epoch, isr=list(state.isr),
            cause=cause, detail=detail,
        )  # fmt: skip

    def _led_at(self, state: State) -> int:
        """The time at which the new leader took its role: the time of the leader's own line, else the time at which it applied
        the decision, else the time of the decision."""
        fact = self._led.get(state.leader_epoch)
        if fact is not None:
            if fact.at_us < state.at_us:
                self._note_skew(fact.node, state.at_us - fact.at_us)
            return fact.at_us
        applied = self._timeline.applied_at(state.leader, state.metadata_offset, state.at_us)
        return state.at_us if applied is None else applied

    # -- truncations and lags

    def _truncations(self) -> Iterator[Row]:
        for fact in self._facts:
            fields, what = fact.fields, _TRUNCATIONS.get(fact.event)
            if what is None or fact.broker is None:
                continue
            offset, end = int(fields.get("offset", 0)), int(fields.get("log_end_offset", 0))
            if fact.event == "partition.truncated":
                # In older logs, `offset` is the target even if it lay within a batch, and `records` counts from there.
                first, end = min(offset, end), offset + int(fields.get("records", 0))
            elif fact.event == "log.tail_cut_in_recovery":  # Recovery logs this before it knows the log end.
                first, end = offset, max(offset, end, int(fields.get("high_watermark", 0)))
            else:
                first = min(int(fields.get("log_start_offset", 0)) if fact.event == "partition.restarted" else offset, end)
            yield self._row(
                TRUNCATION, what=what, from_us=fact.at_us, until_us=fact.at_us, broker=fact.broker, first_offset=first,
                end_offset=end, records=end - first, below_hw=self._below_hw(fact, first), detail=str(fields.get("reason", "")),
                leader_epoch=fields.get("leader_epoch"), partition_epoch=fields.get("partition_epoch"),
            )  # fmt: skip

    def _below_hw(self, truncation: Fact, first: int) -> int:
        """Number of truncated records below the replica's high watermark: the checkpointed one if recovery truncated, else the
        one in the line `partition.truncated_below_hw` that follows."""
        if truncation.event == "log.tail_cut_in_recovery":
            return max(0, int(truncation.fields.get("high_watermark", 0)) - first)
        for fact in self._below.get((truncation.node, first), ()):
            if abs(fact.at_us - truncation.at_us) < SAME_TRUNCATION_US:
                return max(0, int(fact.fields.get("previous_high_watermark", fact.fields["high_watermark"])) - first)
        return 0

    def _lags(self) -> Iterator[Row]:
        for fact in self._facts:
            fields = fact.fields
            end = int(fields.get("log_end_offset", 0))
            if fact.event == "partition.became_leader":
                records = end - int(fields.get("high_watermark", end))
                yield self._row(LAG, what="hw", from_us=fact.at_us, broker=fact.broker, records=records)
            elif fact.event == "isr.member_lagged":
                records, behind = end - max(0, int(fields.get("fetch_offset", 0))), fields.get("behind_ms")
                detail = "" if behind is None else f"{behind} ms"
                yield self._row(
                    LAG, what="follower", from_us=fact.at_us, broker=fields["broker_id"], records=records, detail=detail
                )


SAME_TRUNCATION_US = 1_000_000
"""Largest distance in time between the two lines about one truncation."""
_LEADERS_REASONS = ("isr.member_lagged", "isr.member_lost_records")
_TRUNCATIONS = {
    "partition.truncated": "truncated",
    "partition.restarted": "restarted",
    "partition.damaged_tail_dropped": "damaged tail dropped",
    "log.tail_cut_in_recovery": "tail cut in recovery",
}
_TESTS: dict[str, Callable[[State], bool]] = {
    UNDER_REPLICATED: lambda state: len(state.isr) < len(state.replicas),
    UNDER_MIN_ISR: lambda state: len(state.isr) < state.min_isr,
    WITHOUT_LEADER: lambda state: state.leader == NO_LEADER,
}
