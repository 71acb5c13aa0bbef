"""Decides when a partition gets a leader that may lack committed records, which replica that is, and what may be lost (KIP-966).

A partition without a leader has no replica alive that is known to have every committed record. It waits until such a replica
returns. An *unclean election* ends the wait. Its strategy is a setting of the topic or of the cluster:

    none         never; an operator may decide by hand
    balanced     only if no member of the ISR and ELR is left, so that no replica with all records can return; and only when all
                 replicas are alive and have answered, so that the election loses as little as possible. A replica in an offline
                 log directory is not alive: it returns when the disk is repaired
    aggressive   when all replicas have answered or, after `unclean.recovery.timeout.ms`, all that are alive; after twice that
                 time, the election no longer waits for live replicas that do not answer

`unclean.leader.election.enable=true` means aggressive. A value of the topic counts before one of the cluster. If a resource has
both keys, `unclean.leader.election.enable=true` counts before `unclean.recovery.strategy`.

The controller asks the replicas for their logs. The winner has the highest (leader epoch of its last records, log end), because
its log continues the newest history; among equals it is the first in the order of the replicas. Kafka elects the first replica
that is alive.

What may be lost: let E be the epoch of the last leader. A log whose last records are of epoch E is a part of that leader's log,
so every committed record below its end is in it. A log of an older epoch may have followed another history; only the records
below its high watermark are certain and, if unclean elections have happened since, only those before the records that they may
have lost. The range ends where the log of the last leader ended, if that replica has answered and lacks nothing; otherwise its
end is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from strandline.controller.decision import Decision
from strandline.controller.metadata.image import UNCLEAN_ELECTIONS_MAX, MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, AskedReplica, UncleanElectionRecord
from strandline.controller.partition_change import elect_uncleanly
from strandline.protocol.messages.admin import RESOURCE_BROKER, RESOURCE_TOPIC
from strandline.protocol.partitions import TopicIdPartition

ENABLE = "unclean.leader.election.enable"
STRATEGY = "unclean.recovery.strategy"
ELECTIONS_MAX = 200
"""The most elections of one decision. An election and its report are in one batch, so the decision is not split."""
OPERATOR = "operator"
"""The strategy in the report of an election that was requested (ElectLeaders)."""


class Strategy(Enum):
    """When a topic's partitions get a leader by an unclean election."""

    NONE = "none"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"


def strategy_of(image: MetadataImage, topic: str) -> Strategy:
    """The strategy of a topic; NONE at level 0 of the metadata, which has no reports."""
    if not image.feature_level:
        return Strategy.NONE
    is_disabled = False
    for layer in image.config(RESOURCE_TOPIC, topic), image.config(RESOURCE_BROKER, ""):
        if layer.get(ENABLE) == "true" and not is_disabled:
            return Strategy.AGGRESSIVE
        if STRATEGY in layer:
            return Strategy(layer[STRATEGY])
        is_disabled = is_disabled or layer.get(ENABLE) == "false"
    return Strategy.BALANCED


# -- the answers of the replicas --------------------------------------------------------------------------------------


class ReplicaLog(NamedTuple):
    """The log of one replica, as its broker describes it (GetReplicaLogInfo)."""

    broker_epoch: int
    last_epoch: int
    """The leader epoch of its last records; -1 if it has none."""
    log_end_offset: int
    """-1 if the log is damaged: then the replica cannot lead."""
    high_watermark: int
    may_lack_records: bool


class Question(NamedTuple):
    """A partition without a leader whose replicas are asked for their logs, and its partition epoch at that time."""

    key: TopicIdPartition
    partition_epoch: int


_DAMAGED = ReplicaLog(-1, -1, -1, -1, True)

Answers = Mapping[int, ReplicaLog]
"""Broker id -> its replica of one partition. A broker that did not answer is not in it."""


def valid_answers(image: MetadataImage, partition: PartitionRegistration, answers: Answers) -> dict[int, ReplicaLog]:
    """The answers that still hold, in the order of the replicas: a process that has registered since may have lost records. A log
    counts as damaged if its last records have the partition's leader epoch or a higher one: no leader has had that epoch yet, and
    the next leader could not append to the log."""
    return {
        broker_id: answers[broker_id] if answers[broker_id].last_epoch < partition.leader_epoch else _DAMAGED
        for broker_id in partition.replicas
        if broker_id in answers
        and (broker := image.brokers.get(broker_id)) is not None
        and broker.is_active
        and broker.has_online(partition)
        and broker.broker_epoch == answers[broker_id].broker_epoch
    }


def best_of(answers: Answers) -> int | None:
    """The replica with the newest and longest log, the first of them in the order of `answers`; None if none can lead."""
    able = [broker_id for broker_id, answer in answers.items() if answer.log_end_offset >= 0]
    return max(able, key=lambda broker_id: (answers[broker_id].last_epoch, answers[broker_id].log_end_offset), default=None)


# -- when -------------------------------------------------------------------------------------------------------------


def is_candidate(partition: PartitionRegistration, strategy: Strategy) -> bool:
    """Whether the strategy allows an unclean election of this partition at some time."""
    if partition.leader != NO_LEADER or strategy is Strategy.NONE:
        return False
    return strategy is Strategy.AGGRESSIVE or not (partition.isr or partition.elr)


@dataclass(slots=True)
class Look:
    """The result of one look at the partitions without a leader."""

    due: list[Question] = field(default_factory=list)
    """Their replicas are asked now."""
    next_at: float | None = None
    """When the next partition is due if nothing else changes."""


@dataclass(slots=True)
class _Absence:
    """A time in which a partition has no leader: its start, and the leader epoch, which is higher in the next absence."""

    leader_epoch: int
    since: float
    asked_in: int = 0
    """The number of the look that last found its replicas due and asked them; 0: none has."""


class RecoveryClock:
    """Keeps since when each partition has had no leader. It is state of the active controller alone: a new active controller
    starts to wait again."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._absences: dict[TopicIdPartition, _Absence] = {}
        """The partitions that had no leader at the last look. A partition may have had a leader in the meantime."""
        self._looks = 0

    def look(self, image: MetadataImage, leaderless: Iterable[TopicIdPartition], now: float) -> Look:
        """Find the partitions whose replicas should be asked now; at most `ELECTIONS_MAX`, first those that were asked longest
        ago, so that partitions for which no leader can be elected do not keep the others waiting."""
        look, known, strategies = Look(), self._absences, _Strategies(image)
        self._absences, self._looks, due = {}, self._looks + 1, list[tuple[_Absence, Question]]()
        for key in leaderless:
            partition = image.partition(key)
            assert partition is not None, "the index holds only partitions of the image"
            absence = known.get(key)
            if absence is None or absence.leader_epoch != partition.leader_epoch:
                absence = _Absence(partition.leader_epoch, now)
            self._absences[key] = absence
            strategy = strategies.of(key)
            if not is_candidate(partition, strategy):
                continue
            active = _alive(image, partition)
            if active == len(partition.replicas) or (
                strategy is Strategy.AGGRESSIVE and active and now >= absence.since + self.timeout_s
            ):
                due.append((absence, Question(key, partition.partition_epoch)))
            elif strategy is Strategy.AGGRESSIVE and active:
                due_at = absence.since + self.timeout_s
                look.next_at = due_at if look.next_at is None else min(due_at, look.next_at)
        for absence, question in sorted(due, key=lambda each: each[0].asked_in)[:ELECTIONS_MAX]:
            absence.asked_in = self._looks
            look.due.append(question)
        return look

    def timeouts(self, key: TopicIdPartition, now: float) -> int:
        """How many times `unclean.recovery.timeout.ms` has passed since the partition lost its leader, at most 2."""
        absence = self._absences.get(key)
        waited = 0.0 if absence is None else now - absence.since
        return (waited >= self.timeout_s) + (waited >= 2 * self.timeout_s)


class _Strategies:
    """Looks up the strategy of each topic once."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._known: dict[bytes, Strategy] = {}

    def of(self, key: TopicIdPartition) -> Strategy:
        strategy = self._known.get(key[0])
        if strategy is None:
            strategy = self._known[key[0]] = strategy_of(self._image, self._image.topics_by_id[key[0]].name)
        return strategy


def _alive(image: MetadataImage, partition: PartitionRegistration) -> int:
    """How many replicas are on active brokers, in online log directories."""
    brokers = [image.brokers.get(broker_id) for broker_id in partition.replicas]
    return sum(broker is not None and broker.is_active and broker.has_online(partition) for broker in brokers)


def recover(
    image: MetadataImage,
    questions: Iterable[Question],
    answers: Callable[[TopicIdPartition], Answers],
    *,
    timeouts: Callable[[TopicIdPartition], int],
    now_ms: int,
) -> Decision[list[UncleanElectionRecord]]:
    """Elect leaders for the partitions whose replicas were asked. The reply has the reports. A partition that has changed since,
    or whose strategy waits for more answers, is left out. `timeouts`: see `RecoveryClock`."""
    decision: Decision[list[UncleanElectionRecord]] = Decision([], cause="unclean_recovery")
    strategies = _Strategies(image)
    for key, partition_epoch in questions:
        partition = image.partition(key)
        if partition is None or partition.partition_epoch != partition_epoch:
            continue
        strategy, valid = strategies.of(key), valid_answers(image, partition, answers(key))
        best = best_of(valid)
        if best is None or not is_candidate(partition, strategy):
            continue
        awaited = 0 if strategy is Strategy.BALANCED else timeouts(key)
        active = _alive(image, partition)
        if len(valid) >= (len(partition.replicas), active, 1)[awaited]:
            add_election(decision, image, key, best, valid, strategy.value, now_ms)
    return decision


# -- the election and its report --------------------------------------------------------------------------------------


def add_election(
    decision: Decision[list[UncleanElectionRecord]],
    image: MetadataImage,
    key: TopicIdPartition,
    leader: int,
    answers: Answers,
    strategy: str,
    now_ms: int,
) -> None:
    """Add the election of this replica, and its report, to the decision."""
    partition = image.partition(key)
    assert partition is not None, "the caller has looked it up"
    change = elect_uncleanly(key, partition, leader)
    last_leader, epoch = last_known_leader(partition), partition.leader_epoch - 1
    lost_from, lost_to = lost_range(partition, image.unclean_elections.get(key, ()), leader, answers)
    report = UncleanElectionRecord(
        *key,
        leader=leader,
        leader_epoch=partition.merge(change).leader_epoch,
        replicas=tuple(_asked(broker_id, answers) for broker_id in partition.replicas),
        last_known_leader=last_leader,
        last_known_leader_epoch=epoch,
        high_watermark=max((each.high_watermark for each in answers.values()), default=-1),
        lost_from=lost_from,
        lost_to=lost_to,
        strategy=strategy,
        elected_at_ms=now_ms,
    )
    decision.records += [change, report]
    decision.reply.append(report)


class EarlierElection(Protocol):
    """An earlier unclean election of a partition."""

    @property
    def leader_epoch(self) -> int: ...
    @property
    def lost_from(self) -> int: ...


def last_known_leader(partition: PartitionRegistration) -> int:
    """The last leader of a partition without one; NO_LEADER if it is unknown."""
    return next(iter((*partition.last_known_elr, *partition.isr)), NO_LEADER)


def lost_range(
    partition: PartitionRegistration, earlier: Sequence[EarlierElection], leader: int, answers: Answers
) -> tuple[int, int]:
    """The range of records that may be lost if this replica leads: first offset, and exclusive end (-1: unknown)."""
    chosen, epoch = answers[leader], partition.leader_epoch - 1
    lost_from = chosen.log_end_offset
    if chosen.last_epoch != epoch:
        unseen = [report.lost_from for report in earlier if report.leader_epoch > chosen.last_epoch]
        forgotten = [0] if len(unseen) == UNCLEAN_ELECTIONS_MAX else []
        lost_from = min([lost_from, max(0, chosen.high_watermark), *unseen, *forgotten])
    last = answers.get(last_known_leader(partition))
    if last is None or last.may_lack_records or last.last_epoch != epoch:
        return lost_from, -1
    return lost_from, max(lost_from, last.log_end_offset)


def _asked(broker_id: int, answers: Answers) -> AskedReplica:
    answer = answers.get(broker_id)
    if answer is None:
        return AskedReplica(broker_id)
    return AskedReplica(broker_id, answer.last_epoch, answer.log_end_offset, answer.high_watermark, answer.may_lack_records)
