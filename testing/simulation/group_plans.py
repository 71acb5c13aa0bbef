"""The part of a seed's plan about consumer groups: their members, the brokers' settings, and the work of other clients with them.

A run with groups has one or two of them. A member subscribes to topics of the run, or to `jobs`, a topic that a client of the
groups creates, enlarges, deletes and recreates. Something happens to most members once: the process crashes or is paused, the
member leaves, does not ask for records for too long, or changes its subscription; then it comes back. Members of the classic
protocol are model clients (`cluster/groups/classic_member.py`), and may be in one group with members of the newer protocol.

Everything is drawn apart from the rest of a run, so that a seed without groups is the same as before there were any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

NEWER, CLASSIC = "consumer", "classic"
"""The protocol of a member."""
JOBS = "jobs"
"""The topic of the groups' own."""
DEAD_LETTERS, RETRIES = "spoiled", "second"
"""The topics for records whose handler failed. No pattern of a member matches them."""
GROUP_NAMES = ("alpha", "beta")
CRASH, PAUSE, LEAVE, IDLE, SWITCH = "crash", "pause", "leave", "idle", "switch"
"""The event of a member: its process dies; its process is paused; it leaves the group; it does not ask for records; it changes
its subscription. After all but the last the member returns."""
AUTO, EACH, POSITIONS = "auto", "each", "positions"
"""The offsets that a member commits: those after the records that it has finished, automatically or by hand; its positions, by
hand."""
GROUP_WORK = ("jobs", "clerk")
"""Work of other clients: change the topic `jobs`; list, describe, seek and delete groups (`cluster/groups/clerk.py`)."""
CONFIGURES = "configurer"
"""One more kind of work: change the configuration of groups (`cluster/groups/configurer.py`). It is drawn apart."""
CONFIGURED_SHARE = 0.4
"""Share of runs with groups in which their configuration changes."""
NARROW_SHARE = 0.4
"""Share of these in which the files of some brokers have narrower bounds than those of the controllers."""
INTERVALS_PER_SESSION, LONGEST_SESSION = 3.5, 8
"""The shortest and the longest session of a group, in heartbeat intervals. Clocks differ by up to a tenth."""
GROUP_FAULTS = {"group_message_held": 1.0, "group_message_lost": 1.0, "coordinator_moves": 1.0}
"""Kinds of faults with their weights that strike groups, and happen only in runs with groups. They are drawn apart."""

GROUPS_SHARE = 0.25
"""Share of runs with groups. Such a run takes about twice as long as another one."""
CLASSIC_SHARE = 0.25
"""Share of groups whose members speak the classic protocol."""
MIXED_SHARE = 0.15
"""Share of groups with members of both protocols."""
HANDLERS_SHARE = 0.6
"""Share of runs with groups in which members hand their records to a handler that fails for some."""
STATIC_SHARE = 0.3
"""Share of members with an instance id."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    group: str
    protocol: str
    """`NEWER` or `CLASSIC`."""
    topics: tuple[str, ...]
    """Empty if it subscribes with `pattern`."""
    options: dict[str, Any]
    """Arguments of `Consumer`. A classic member reads with such a consumer, too, and has `session_timeout_ms` and
    `rebalance_timeout_ms` for the group."""
    pattern: str = ""
    instance_id: str = ""
    """Empty: it is a dynamic member."""
    commits: str = AUTO
    poll_ms: int = 50
    work_ms: int = 0
    """The longest time that it works on the records of a call."""
    callback_ms: int = 0
    """The longest time that a callback takes."""
    begins_at_s: float = 0.0
    event: str = ""
    """Empty, `CRASH`, `PAUSE`, `LEAVE`, `IDLE` or `SWITCH`."""
    event_at_s: float = 0.0
    event_for_s: float = 0.0
    """Seconds for which it is away."""
    later_topics: tuple[str, ...] = ()
    """The topics to which it subscribes at a `SWITCH`."""
    run: dict[str, Any] = field(default_factory=dict)
    """If it uses `Consumer.run`: `concurrency`, `attempts`, `first_ms` (of the Backoff), `retry_topic` (whether there is one),
    `max_in_flight`."""


@dataclass(frozen=True, slots=True)
class GroupFault:
    """A fault of a kind of `GROUP_FAULTS`, as in `options.FaultPlan`."""

    at_s: float
    kind: str
    duration_s: float
    draw: int


@dataclass(frozen=True, slots=True)
class GroupDraw:
    """The additions to a run that has groups."""

    settings: dict[str, Any]
    members: tuple[MemberPlan, ...]
    work: tuple[str, ...]
    faults: tuple[GroupFault, ...]


def draw_groups(draw: Random, topics: Sequence[str], brokers: int, faults_s: float, *, has_faults: bool) -> GroupDraw:
    """`topics`: the names of the run's topics."""
    work = tuple(name for name in GROUP_WORK if draw.random() < 0.6)
    names = [*topics, *([JOBS, JOBS] if "jobs" in work else ())]
    settings = _draw_settings(draw, brokers)
    members: list[MemberPlan] = []
    for group in GROUP_NAMES[: draw.choice((1, 1, 1, 2))]:
        members += _draw_group(draw, group, names, faults_s)
    return GroupDraw(settings, tuple(members), work, _draw_faults(draw, faults_s) if has_faults else ())


def _draw_settings(draw: Random, brokers: int) -> dict[str, Any]:
    heartbeat_ms = draw.choice((150, 300, 600))
    replicas = min(brokers, draw.choice((2, 3, 3)))
    settings: dict[str, Any] = {
        "offsets.topic.num.partitions": draw.choice((1, 2, 3)),
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.segment.bytes": draw.choice((1500, 5000, 1 << 20)),
        "offsets.commit.timeout.ms": draw.choice((300, 1000, 5000)),
        "offsets.retention.check.interval.ms": draw.choice((300, 1000)),
        "group.consumer.heartbeat.interval.ms": heartbeat_ms,
        # Clocks differ by up to a tenth, and a member relies on its partitions for three intervals.
        "group.consumer.session.timeout.ms": int(heartbeat_ms * draw.choice((3.5, 4, 6))),
        "group.consumer.connection.loss.grace.ms": draw.choice((50, 300, 1000)),
        "group.consumer.assignment.interval.ms": draw.choice((0, 100, 500)),
        "group.consumer.assignors": draw.choice(("uniform,range", "range,uniform")),
        "group.initial.rebalance.delay.ms": draw.choice((0, 100, 300)),
        "group.min.session.timeout.ms": 100,
        "min.insync.replicas": min(replicas, draw.choice((1, 2, 2))),
    }
    if draw.random() < 0.5:
        settings |= {
            "log.cleaner.backoff.ms": draw.choice((20, 100)),
            "log.cleaner.min.cleanable.ratio": draw.choice((0.0, 0.1, 0.5)),
            "log.cleaner.delete.retention.ms": draw.choice((0, 100, 86_400_000)),
        }
    return settings


def _draw_group(draw: Random, group: str, names: Sequence[str], faults_s: float) -> list[MemberPlan]:
    kind = draw.random()
    mixed = CLASSIC_SHARE <= kind < CLASSIC_SHARE + MIXED_SHARE
    topics = _draw_topics(draw, names)
    is_slow = draw.random() < 0.5
    members = []
    for number in range(draw.choice((1, 2, 2, 3, 3, 4))):
        is_classic = kind < CLASSIC_SHARE or (mixed and draw.random() < 0.5)
        instance_id = f"{group}-{number}" if draw.random() < STATIC_SHARE else ""
        member = _draw_member(draw, group, topics if draw.random() < 0.8 else _draw_topics(draw, names), instance_id, is_slow)
        members.append(_with_event(draw, _as_classic(draw, member) if is_classic else member, names, faults_s))
    return members


def _draw_topics(draw: Random, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({draw.choice(names) for _ in range(draw.choice((1, 1, 2)))}))


def _draw_member(draw: Random, group: str, topics: tuple[str, ...], instance_id: str, is_slow: bool) -> MemberPlan:
    commits = draw.choice((AUTO, AUTO, EACH, POSITIONS))
    options = {
        "request_timeout_ms": draw.choice((300, 1000, 3000)),
        "connect_timeout_ms": draw.choice((300, 1000)),
        "max_block_ms": draw.choice((1000, 3000)),
        "retry_backoff_ms": draw.choice((30, 100)),
        "metadata_max_age_ms": draw.choice((500, 300_000)),
        "enable_auto_commit": commits == AUTO,
        "auto_commit_interval_ms": draw.choice((50, 300)),
        "max_poll_interval_ms": draw.choice((2000, 300_000)),
        "rebalance_timeout_ms": draw.choice((500, 1000, 2000)),
        "max_poll_records": draw.choice((None, None, 10)),
        "group_remote_assignor": draw.choice((None, None, "uniform", "range")),
        "fetch_max_wait_ms": draw.choice((20, 200)),
    }
    return MemberPlan(
        group,
        NEWER,
        topics,
        options,
        # No pattern matches the topic "side", which an administrator deletes and recreates all the time.
        pattern=draw.choice(("[^s].*", "orders|jobs", "(?i)[O-P].*")) if draw.random() < 0.25 else "",
        instance_id=instance_id,
        commits=commits,
        poll_ms=draw.choice((20, 50, 200)),
        work_ms=draw.choice((30, 200, 600)) if is_slow else 0,
        callback_ms=draw.choice((0, 0, 30, 300, 1500)),
        begins_at_s=round(draw.choice((0.0, 0.0, draw.uniform(0.0, 1.5))), 3),
    )


def _as_classic(draw: Random, member: MemberPlan) -> MemberPlan:
    session_ms = draw.choice((600, 1200, 2500))
    options = {**member.options, "session_timeout_ms": session_ms}
    return _replaced(member, protocol=CLASSIC, pattern="", options=options, commits=EACH, callback_ms=0)


def _with_event(draw: Random, member: MemberPlan, names: Sequence[str], faults_s: float) -> MemberPlan:
    if draw.random() < 0.3:
        return member
    events = [CRASH, CRASH, PAUSE, LEAVE, LEAVE] + ([IDLE, SWITCH] if member.protocol == NEWER else [])
    event = draw.choice(events)
    away_s = draw.choice((0.05, 0.5, 2.0)) * draw.uniform(0.5, 1.5)
    options = {**member.options, **({"max_poll_interval_ms": 700} if event == IDLE else {})}
    return _replaced(
        member,
        options=options,
        event=event,
        event_at_s=round(draw.uniform(0.3, 0.8) * faults_s, 3),
        event_for_s=round(1.0 + away_s if event == IDLE else away_s, 3),
        later_topics=_draw_topics(draw, names) if event == SWITCH else (),
    )


def intervals_of(settings: Mapping[str, Any]) -> tuple[int, int, int]:
    """The short, the usual and the long heartbeat interval of a run's groups."""
    usual_ms = int(settings["group.consumer.heartbeat.interval.ms"])
    return max(100, usual_ms // 2), usual_ms, 2 * usual_ms


def draw_configured(draw: Random, settings: Mapping[str, Any], brokers: int) -> tuple[dict[str, Any], tuple[int, ...]] | None:
    """Draw whether the configuration of groups changes; None if it does not. Otherwise returns the settings that all nodes have
    in addition, and the brokers whose files have narrower bounds."""
    if draw.random() >= CONFIGURED_SHARE:
        return None
    narrow = tuple(n for n in range(1, brokers + 1) if draw.random() < 0.5) if draw.random() < NARROW_SHARE else ()
    short_ms, usual_ms, long_ms = intervals_of(settings)
    keys = {
        "group.consumer.session.timeout.ms": settings["group.consumer.session.timeout.ms"],
        "group.consumer.min.session.timeout.ms": int(INTERVALS_PER_SESSION * short_ms),
        "group.consumer.max.session.timeout.ms": LONGEST_SESSION * long_ms,
        "group.consumer.heartbeat.interval.ms": usual_ms,
        "group.consumer.min.heartbeat.interval.ms": short_ms,
        "group.consumer.max.heartbeat.interval.ms": long_ms,
        "group.consumer.assignment.interval.ms": settings["group.consumer.assignment.interval.ms"],
    }
    return keys, narrow


def narrower(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds of a broker's file that allows no longer session and interval than the usual ones."""
    names = ("session.timeout.ms", "heartbeat.interval.ms")
    return {f"group.consumer.max.{name}": settings[f"group.consumer.{name}"] for name in names}


def with_handlers(draw: Random, members: Sequence[MemberPlan]) -> tuple[MemberPlan, ...]:
    """The same members, some of which use `Consumer.run`. Members that may read `jobs` do not: handlers identify a topic by its
    name, and `jobs` is deleted and recreated."""
    return tuple(_with_handler(draw, member) if draw.random() < 0.7 and _may_handle(member) else member for member in members)


def _may_handle(member: MemberPlan) -> bool:
    return member.protocol == NEWER and not member.pattern and JOBS not in (*member.topics, *member.later_topics)


def _with_handler(draw: Random, member: MemberPlan) -> MemberPlan:
    run = {
        "concurrency": draw.choice(("partition", "key")),
        "attempts": draw.choice((1, 2, 3)),
        "first_ms": draw.choice((5, 20, 50)),
        "retry_topic": draw.random() < 0.5,
        "max_in_flight": draw.choice((4, 30, 1000)),
    }
    return _replaced(member, run=run, commits=AUTO, options={**member.options, "enable_auto_commit": True})


def _replaced(member: MemberPlan, **changes: Any) -> MemberPlan:
    return MemberPlan(**{**{name: getattr(member, name) for name in MemberPlan.__slots__}, **changes})


def _draw_faults(draw: Random, faults_s: float) -> tuple[GroupFault, ...]:
    count = draw.choice((0, 1, 2, 4))
    return tuple(
        GroupFault(
            round(draw.uniform(0.1, 0.9) * faults_s, 3),
            draw.choice(list(GROUP_FAULTS)),
            round(draw.choice((0.1, 0.5, 2.0)) * draw.uniform(0.5, 1.5), 3),
            draw.getrandbits(32),
        )
        for _ in range(count)
    )


def member_text(plan: MemberPlan) -> str:
    """One line for people."""
    name = f"static {plan.instance_id}" if plan.instance_id else "dynamic"
    topics = f"pattern {plan.pattern}" if plan.pattern else "topics " + ",".join(plan.topics)
    how = "commits " + plan.commits + (f", handles {_pairs(plan.run)}" if plan.run else "")
    event = f", {plan.event} at {plan.event_at_s:.1f} s for {plan.event_for_s:.1f} s" if plan.event else ""
    return f"{plan.protocol}, {name}, {topics}, {how}{event}; {_pairs(plan.options)}"


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
