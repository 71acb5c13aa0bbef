"""The part of a seed's plan about transactions: their producers, the readers of committed records, and their topics.

A run with transactions has two topics of its own, `sales` and `stock`, to which only transactional producers write: each
transaction appends to several partitions of both. Two programs may have the same transactional id, and fence each other. A
program aborts some of its transactions, and in some it does nothing for longer than its `transaction_timeout_ms`. Once, its
process may crash or be paused.

In some runs one or two more programs, the shippers, consume both topics, and send each record on to `shipped` in a transaction
with the offsets. Both topics keep all their records then.

Everything is drawn apart from the rest of a run, so that a seed without transactions is the same as before there were any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from strandline.testing.simulation.group_plans import CRASH, PAUSE

TOPICS = ("sales", "stock")
"""No pattern of a group's member matches them."""
SHIPPED = "shipped"
"""The topic to which shippers write."""
SHIPPED_PARTITIONS = 2
VANISH = "vanish"
"""An event of a program: its process dies, and no new process gets its transactional id. (Another program may have had the same
id from the start.)"""
TRANSACTIONS_SHARE = 0.2
"""Share of runs with transactions."""
COMPACTED_SHARE = 0.3
"""Share of the topics that are compacted."""
TRANSACTION_FAULTS = {"transaction_message_held": 1.0, "transaction_message_lost": 1.5, "transaction_coordinator_moves": 1.0}
"""Kinds of faults with their weights that strike transactions, and happen only in runs with them."""


@dataclass(frozen=True, slots=True)
class WriterPlan:
    transactional_id: str
    options: dict[str, Any]
    """Arguments of `Producer`."""
    appends_max: int
    """Most records of one transaction."""
    pause_s: float
    """Mean seconds between two transactions."""
    aborts: float
    """Share of the transactions that the program aborts."""
    dawdles: float
    """Share of the transactions in which the program waits, in some cases for longer than its `transaction_timeout_ms`."""
    begins_at_s: float = 0.0
    event: str = ""
    """Empty, `CRASH`, `PAUSE` or `VANISH`. After a crash another process has the same id; a pause may be longer than the
    time-out."""
    event_at_s: float = 0.0
    event_for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TransactionFault:
    """A fault of a kind of `TRANSACTION_FAULTS`, as in `options.FaultPlan`."""

    at_s: float
    kind: str
    duration_s: float
    draw: int


@dataclass(frozen=True, slots=True)
class TransactionDraw:
    """The additions to a run that has transactions."""

    settings: dict[str, Any]
    topics: tuple[dict[str, Any], ...]
    """The arguments of `options.TopicPlan`."""
    writers: tuple[WriterPlan, ...]
    readers: int
    shippers: tuple[WriterPlan, ...]
    faults: tuple[TransactionFault, ...]


def draw_transactions(draw: Random, brokers: int, faults_s: float, *, has_faults: bool) -> TransactionDraw:
    topics = tuple(_draw_topic(draw, name, brokers) for name in TOPICS)
    settings = _draw_settings(draw, brokers)
    if any(topic["keys"] for topic in topics):
        settings |= {"log.cleaner.backoff.ms": draw.choice((20, 100))}
    ids = [f"shop-{n}" for n in range(draw.choice((1, 2, 2, 3)))]
    programs = [*ids, *(name for name in ids if draw.random() < 0.4)]
    writers = tuple(_draw_writer(draw, name, faults_s) for name in programs)
    readers, faults = draw.choice((1, 1, 2)), _draw_faults(draw, faults_s) if has_faults else ()
    shippers = _draw_shippers(draw, topics, faults_s)
    if shippers:
        replicas = min(topic["replication_factor"] for topic in topics)
        topics += ({**topics[0], "name": SHIPPED, "partitions": SHIPPED_PARTITIONS, "replication_factor": replicas},)
    return TransactionDraw(settings, topics, writers, readers, shippers, faults)


def _draw_shippers(draw: Random, topics: Sequence[dict[str, Any]], faults_s: float) -> tuple[WriterPlan, ...]:
    count = draw.choice((0, 1, 2, 2))
    shippers = tuple(_draw_writer(draw, f"shipper-{n}", faults_s) for n in range(count))
    return () if any(topic["keys"] for topic in topics) else shippers


def group_settings(draw: Random, brokers: int) -> dict[str, Any]:
    """The brokers' settings for the shippers' group, in a run without other groups."""
    heartbeat_ms = draw.choice((150, 300))
    return {
        "offsets.topic.num.partitions": draw.choice((1, 2)),
        "offsets.topic.replication.factor": min(brokers, draw.choice((2, 3, 3))),
        "offsets.topic.segment.bytes": draw.choice((1500, 5000, 1 << 20)),
        "offsets.commit.timeout.ms": draw.choice((300, 1000, 5000)),
        "group.consumer.heartbeat.interval.ms": heartbeat_ms,
        "group.consumer.session.timeout.ms": 4 * heartbeat_ms,
        "group.consumer.connection.loss.grace.ms": draw.choice((50, 300)),
        "group.consumer.assignment.interval.ms": draw.choice((0, 100)),
    }


def _draw_topic(draw: Random, name: str, brokers: int) -> dict[str, Any]:
    replicas = min(brokers, draw.choice((2, 3, 3)))
    least = min(replicas, draw.choice((1, 2, 2)))
    is_compacted = draw.random() < COMPACTED_SHARE
    configs: dict[str, Any] = {"min.insync.replicas": least, "segment.bytes": draw.choice((1000, 5000, 1 << 20))}
    if is_compacted:
        configs |= {
            "cleanup.policy": "compact",
            "segment.bytes": draw.choice((1000, 2000)),
            "min.cleanable.dirty.ratio": draw.choice((0.0, 0.1)),
            "delete.retention.ms": draw.choice((0, 100, 86_400_000)),
        }
    return {
        "name": name,
        "partitions": draw.choice((1, 2, 3)),
        "replication_factor": replicas,
        "min_insync_replicas": least,
        "promise": "all",
        "configs": configs,
        "keys": draw.choice((3, 10)) if is_compacted else 0,
    }


def _draw_settings(draw: Random, brokers: int) -> dict[str, Any]:
    replicas = min(brokers, draw.choice((2, 3, 3)))
    return {
        "transaction.state.log.num.partitions": draw.choice((1, 2, 3)),
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min(replicas, draw.choice((1, 2, 2))),
        "transaction.state.log.segment.bytes": draw.choice((1500, 5000, 1 << 20)),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": draw.choice((100, 300, 1000)),
    }


def _draw_writer(draw: Random, transactional_id: str, faults_s: float) -> WriterPlan:
    event = draw.choice((CRASH, PAUSE, PAUSE, VANISH)) if draw.random() < 0.5 else ""
    options = {
        "transaction_timeout_ms": draw.choice((600, 1500, 4000)),
        "request_timeout_ms": draw.choice((300, 1000)),
        "delivery_timeout_ms": draw.choice((700, 2000, 4000)),
        "max_block_ms": draw.choice((1000, 3000)),
        "retry_backoff_ms": draw.choice((30, 100)),
        "metadata_max_age_ms": draw.choice((500, 300_000)),
        "linger_ms": draw.choice((0, 0, 5)),
        "batch_size": draw.choice((200, 16_384)),
        "max_in_flight_requests_per_connection": draw.choice((1, 5, 5)),
    }
    return WriterPlan(
        transactional_id,
        options,
        appends_max=draw.choice((2, 5, 12)),
        pause_s=draw.choice((0.02, 0.1, 0.3)),
        aborts=draw.choice((0.0, 0.1, 0.4)),
        dawdles=draw.choice((0.0, 0.1, 0.3)),
        begins_at_s=round(draw.choice((0.0, 0.0, draw.uniform(0.0, 0.5 * faults_s))), 3),
        event=event,
        event_at_s=round(draw.uniform(0.2, 0.8) * faults_s, 3) if event else 0.0,
        event_for_s=round(draw.choice((0.2, 1.0, 3.0)) * draw.uniform(0.5, 1.5), 3) if event else 0.0,
    )


def _draw_faults(draw: Random, faults_s: float) -> tuple[TransactionFault, ...]:
    return tuple(
        TransactionFault(
            round(draw.uniform(0.1, 0.9) * faults_s, 3),
            draw.choices(list(TRANSACTION_FAULTS), list(TRANSACTION_FAULTS.values()))[0],
            round(draw.choice((0.1, 0.5, 2.0)) * draw.uniform(0.5, 1.5), 3),
            draw.getrandbits(32),
        )
        for _ in range(draw.choice((0, 1, 2, 4)))
    )


def writer_text(plan: WriterPlan) -> str:
    """One line for people."""
    event = f", {plan.event} at {plan.event_at_s:.1f} s for {plan.event_for_s:.1f} s" if plan.event else ""
    share = f"{plan.aborts:.0%} aborted, {plan.dawdles:.0%} with a wait"
    options = " ".join(f"{key}={value}" for key, value in plan.options.items())
    return f"up to {plan.appends_max} records every {plan.pause_s * 1000:.0f} ms, {share}{event}; {options}"
