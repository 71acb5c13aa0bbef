"""Shared by `strandline reassign` and `strandline broker drain`: the state of the cluster, plans, and the progress of moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.cli.amounts import counted, show_bytes, show_time
from strandline.cli.common import CONNECT_TIMEOUT_MS, note
from strandline.cli.output import Table
from strandline.protocol.errors import ErrorCode, StrandlineError, UsageError

if TYPE_CHECKING:
    from strandline.client import Admin, BrokerDescription, PartitionReassignment, ReassignmentResult, TopicPartition

BATCH = 5_000
"""Partitions per request: a controller accepts twice as many."""

_NEEDLESS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic was deleted",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "its move has ended",
}

Replicas = tuple[int, ...]
Sizes = Mapping[int, "Mapping[TopicPartition, int]"]
"""Broker -> the bytes of each of its replicas."""


@dataclass(slots=True)
class Situation:
    """The cluster before a plan."""

    brokers: dict[int, BrokerDescription]
    replicas: dict[TopicPartition, Replicas]
    """The replicas of each partition. For a partition that is being reassigned, these are the replicas that it will have."""
    leaders: dict[TopicPartition, int]
    running: dict[TopicPartition, PartitionReassignment]

    def racks(self, chosen: Iterable[int] | None = None) -> dict[int, str | None]:
        """The chosen brokers with their racks; by default all brokers that are not fenced, shutting down or being drained.
        UsageError for an unknown broker."""
        if chosen is None:
            usable = [b for b in self.brokers.values() if not (b.is_fenced or b.in_controlled_shutdown or b.is_draining)]
            return {b.broker_id: b.rack for b in usable}
        for broker_id in chosen:
            self.check_broker(broker_id)
        return {broker_id: self.brokers[broker_id].rack for broker_id in chosen}

    def targets(self) -> dict[int, str | None]:
        """The brokers that may get replicas, with their racks. A broker whose log directories are all cordoned keeps the replicas
        that it has, and gets no others."""
        return {broker_id: rack for broker_id, rack in self.racks().items() if not self.brokers[broker_id].is_cordoned}

    def others(self, broker_id: int) -> dict[int, str | None]:
        """The brokers that may get the replicas of this one, with their racks."""
        return {other: rack for other, rack in self.targets().items() if other != broker_id}

    def check_broker(self, broker_id: int) -> None:
        """UsageError if the cluster has no such broker."""
        if broker_id not in self.brokers:
            known = ", ".join(map(str, sorted(self.brokers)))
            raise UsageError(f"there is no broker {broker_id}; the cluster has {known}")


async def look(admin: Admin) -> Situation:
    from strandline.client import TopicPartition

    cluster, topics = await admin.describe_cluster(), await admin.describe_topics()
    running = await admin.list_partition_reassignments()
    replicas: dict[TopicPartition, Replicas] = {}
    leaders: dict[TopicPartition, int] = {}
    for topic in topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition)
            replicas[tp] = running[tp].target_replicas if tp in running else p.replicas
            leaders[tp] = p.leader_id
    return Situation({b.broker_id: b for b in cluster.brokers}, replicas, leaders, running)


async def sizes_of(admin: Admin, brokers: Iterable[int], topics: Iterable[str]) -> Sizes:
    """The bytes of the replicas on these brokers; a broker that does not answer is left out."""
    names = sorted(set(topics))
    found = await admin.describe_log_dirs(sorted(set(brokers) - {-1}), names, timeout_ms=CONNECT_TIMEOUT_MS) if names else {}
    return {b: {tp: info.size_bytes for one in dirs for tp, info in one.replicas.items()} for b, dirs in found.items()}


# -- plans ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Move:
    """A partition that changes."""

    tp: TopicPartition
    before: Replicas
    after: Replicas
    size: int | None
    """Bytes of the leader's replica; None if it is not known."""

    @property
    def added(self) -> int:
        return len(set(self.after) - set(self.before))

    @property
    def document(self) -> dict[str, Any]:
        copied = None if self.size is None else self.size * self.added
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "replicas": list(self.after),
            "previous_replicas": list(self.before),
            "bytes_to_copy": copied,
        }


async def moves_of(admin: Admin, situation: Situation, plan: Mapping[TopicPartition, Replicas]) -> list[Move]:
    leaders = situation.leaders
    sizes = await sizes_of(admin, {leaders[tp] for tp in plan}, {tp.topic for tp in plan})
    return [Move(tp, situation.replicas[tp], plan[tp], sizes.get(leaders[tp], {}).get(tp)) for tp in sorted(plan)]


def moves_table(moves: list[Move]) -> Table:
    rows = [(m.tp.topic, m.tp.partition, _ids(m.before), _ids(m.after), _copied(m)) for m in moves]
    return Table(("topic", "partition", "replicas", "new replicas", "to copy"), rows)


def _ids(replicas: Replicas) -> str:
    return ",".join(map(str, replicas))


def _copied(move: Move) -> str:
    if not move.added:
        return "nothing"
    return "unknown" if move.size is None else show_bytes(move.size * move.added)


def summary(moves: list[Move]) -> str:
    """The plan in one line."""
    copies, size = sum(m.added for m in moves), sum((m.size or 0) * m.added for m in moves)
    partitions = counted(len(moves), "partition")
    return f"{partitions} to change, {counted(copies, 'replica')} to copy ({show_bytes(size)})"


@dataclass(slots=True)
class Started:
    """The result of `start`: the partitions of a plan that do not move. The moves of all others have begun, or are cancelled."""

    skipped: dict[TopicPartition, str]
    """Partitions for which nothing is left to do -> the reason: the topic was deleted, or the move ended before it could be
    cancelled."""
    refused: list[ReassignmentResult]

    def check(self) -> None:
        """Raises StrandlineError with the first refusal, if there is one."""
        if self.refused:
            refusal = self.refused[0]
            others = f" (and {len(self.refused) - 1} more were refused)" if len(self.refused) > 1 else ""
            reason = refusal.message or refusal.code.name
            raise StrandlineError(f"{refusal.partition.topic}-{refusal.partition.partition}: {reason}{others}")


async def start(admin: Admin, plan: Mapping[TopicPartition, Replicas | None], rate: int | None) -> Started:
    """Begin or cancel reassignments. A partition that changed after the plan was made is skipped, with a line on stderr."""
    started, tps = Started({}, []), list(plan)
    for first in range(0, len(tps), BATCH):
        batch: dict[TopicPartition | tuple[str, int], Replicas | None] = {tp: plan[tp] for tp in tps[first : first + BATCH]}
        for result in await admin.alter_partition_reassignments(batch, throttle_rate=rate):
            if result.code in _NEEDLESS:
                started.skipped[result.partition] = _NEEDLESS[result.code]
            elif result.code:
                started.refused.append(result)
    for tp, reason in started.skipped.items():
        note(f"{tp.topic}-{tp.partition} is skipped: {reason}")
    return started


# -- progress ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Progress:
    """The progress of one partition's reassignment."""

    tp: TopicPartition
    reassignment: PartitionReassignment
    copied: int
    """Bytes on the added replicas."""
    total: int
    """Bytes that the added replicas will have: the size of the leader's replica, times their number."""

    @property
    def percent(self) -> int:
        return 100 * self.copied // self.total if self.total else 100 * (not self.reassignment.adding_replicas)


def progress_of(
    running: Mapping[TopicPartition, PartitionReassignment], leaders: Mapping[TopicPartition, int], sizes: Sizes
) -> list[Progress]:
    found = []
    for tp, each in sorted(running.items()):
        full = sizes.get(leaders.get(tp, -1), {}).get(tp, 0)
        copied = sum(min(full, sizes.get(broker_id, {}).get(tp, 0)) for broker_id in each.adding_replicas)
        found.append(Progress(tp, each, copied, full * len(each.adding_replicas)))
    return found


async def measure(admin: Admin, situation: Situation) -> list[Progress]:
    """The progress of the reassignments that were running in this situation."""
    running, leaders = situation.running, situation.leaders
    brokers = {b for tp, each in running.items() for b in (leaders[tp], *each.adding_replicas)}
    return progress_of(running, leaders, await sizes_of(admin, brokers, {tp.topic for tp in running}))


def time_left_s(before: list[Progress], after: list[Progress], seconds: float) -> float | None:
    """The seconds until all are copied, from two measurements; None if nothing was copied between them."""
    copied = sum(p.copied for p in after) - sum(p.copied for p in before)
    left = sum(p.total - p.copied for p in after)
    return None if copied <= 0 else left * seconds / copied


def progress_table(found: list[Progress]) -> Table:
    rows = [
        (
            p.tp.topic,
            p.tp.partition,
            _ids(p.reassignment.target_replicas),
            _ids(p.reassignment.adding_replicas) or None,
            _ids(p.reassignment.removing_replicas) or None,
            f"{show_bytes(p.copied)} of {show_bytes(p.total)}",
            f"{p.percent} %",
        )
        for p in found
    ]
    return Table(("topic", "partition", "target", "adding", "removing", "copied", "done"), rows, spare=("removing",))


def progress_line(found: list[Progress], left_s: float | None) -> str:
    """The progress of all of them in one line."""
    copied, total = sum(p.copied for p in found), sum(p.total for p in found)
    rates = {p.reassignment.throttle_rate for p in found} - {None}
    limit = "".join(f", at most {show_bytes(min(r for r in rates if r))}/s per broker" for _ in (1,) if rates)
    left = "" if left_s is None or copied >= total else f", about {show_time(left_s)} left"
    partitions = counted(len(found), "partition")
    return f"{partitions} moving: {show_bytes(copied)} of {show_bytes(total)} copied{left}{limit}"


def progress_json(found: list[Progress], left_s: float | None) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "topic": p.tp.topic,
                "partition": p.tp.partition,
                "target_replicas": list(p.reassignment.target_replicas),
                "adding_replicas": list(p.reassignment.adding_replicas),
                "removing_replicas": list(p.reassignment.removing_replicas),
                "original_replicas": list(p.reassignment.original_replicas),
                "throttle_rate": p.reassignment.throttle_rate,
                "bytes_copied": p.copied,
                "bytes_to_copy": p.total,
            }
            for p in found
        ],
        "seconds_left": None if left_s is None else round(left_s, 1),
    }
