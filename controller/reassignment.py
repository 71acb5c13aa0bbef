"""The rules by which the replicas of one partition move to other brokers (KIP-455), as pure functions.

A reassignment has a target, the replicas that the partition shall have. It begins with the replicas of both:

    original  1 2 3         replicas  4 5 3 1 2     the target first, then the replicas that leave
    target    4 5 3         adding    4 5           not in the original; they copy the log as any follower
                            removing  1 2           not in the target; they stay in the ISR, and may lead, until the end

It completes in one record when every added replica is in the ISR, and the members of the ISR that stay are at least
min.insync.replicas: so no acknowledged record depends on a replica that leaves (KAFKA-15665, KAFKA-19975). Only then do the
replicas leave, and their brokers delete the logs. A removal raises the leader epoch, so that no fetch of the old set counts.

A second target replaces the first one. Replicas that only the first one would have added are removed when the second completes,
not at once: one of them may lead. A cancellation goes back to the original replicas, in their original order (in Kafka, the
order is lost), whichever targets there were in between.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE, BrokerIds, PartitionChangeRecord
from strandline.controller.partition_change import ChangeRules, change_partition, if_changed
from strandline.protocol.partitions import TopicIdPartition


class Assignment(NamedTuple):
    """The replicas of a partition, and its reassignment. Without one, all fields but the first are empty."""

    replicas: BrokerIds
    adding: BrokerIds = ()
    removing: BrokerIds = ()
    original: BrokerIds = ()
    throttle_rate: int = 0

    def without_removed(self) -> Assignment:
        """The assignment after the reassignment."""
        return Assignment(tuple(replica for replica in self.replicas if replica not in self.removing))


def assignment_of(partition: PartitionRegistration) -> Assignment:
    p = partition
    return Assignment(p.replicas, p.adding_replicas, p.removing_replicas, p.original_replicas, p.throttle_rate)


def begin(partition: PartitionRegistration, target: BrokerIds, throttle_rate: int = 0) -> Assignment:
    """The assignment with which a reassignment to `target` begins, or with which it replaces the one that is running. If it adds
    and removes no replica, only the order changes, and the reassignment is over at once."""
    original = partition.original_replicas or partition.replicas
    adding = tuple(replica for replica in target if replica not in original)
    removing = tuple(replica for replica in partition.replicas if replica not in target)
    if not adding and not removing:
        return Assignment(target)
    return Assignment((*target, *removing), adding, removing, original, throttle_rate)


def may_complete(assignment: Assignment, isr: BrokerIds, min_isr: int) -> bool:
    """Whether the reassignment completes with this ISR; False without a reassignment. `min_isr` is min.insync.replicas of the
    topic."""
    if not assignment.original or not set(assignment.adding) <= set(isr):
        return False
    staying = [replica for replica in assignment.replicas if replica not in assignment.removing]
    in_sync = [replica for replica in staying if replica in isr]
    return len(in_sync) >= max(1, min(min_isr, len(staying)))


def cancel(partition: PartitionRegistration) -> Assignment | None:
    """The assignment after a cancellation; None if no original replica is in the ISR or the ELR: then only the added replicas
    have every acknowledged record, and a cancellation would lose some."""
    if not set(partition.original_replicas) & {*partition.isr, *partition.elr}:
        return None
    return Assignment(partition.original_replicas)


def only(members: BrokerIds, assignment: Assignment) -> BrokerIds:
    """The members that are replicas of the assignment."""
    return tuple(member for member in members if member in assignment.replicas)


# -- the records ------------------------------------------------------------------------------------------------------


def completion(
    key: TopicIdPartition,
    partition: PartitionRegistration,
    isr: BrokerIds,
    rules: ChangeRules,
    leader_recovery_state: int | None = None,
) -> PartitionChangeRecord | None:
    """The record by which the partition gets this ISR and its reassignment completes; None if the ISR does not complete it."""
    assignment = assignment_of(partition)
    assert rules.min_isr is not None, "reassignments need level 1 of the metadata, which has a min ISR"
    if not may_complete(assignment, isr, rules.min_isr(key[0])):
        return None
    return change_assignment(key, partition, assignment.without_removed(), isr, rules, leader_recovery_state)


def change_assignment(
    key: TopicIdPartition,
    partition: PartitionRegistration,
    wanted: Assignment,
    isr: BrokerIds,
    rules: ChangeRules,
    leader_recovery_state: int | None = None,
) -> PartitionChangeRecord | None:
    """The record by which the partition gets this assignment, and the members of `isr` that are in it; None if nothing changes.
    If a replica leaves, or the leader changes, the leader epoch rises."""
    p = partition
    kept = PartitionRegistration(
        wanted.replicas,
        only(p.isr, wanted),
        p.leader,
        p.leader_epoch,
        p.partition_epoch,
        p.leader_recovery_state,
        only(p.elr, wanted),
        only(p.last_known_elr, wanted),
        wanted.adding,
        wanted.removing,
        wanted.original,
        wanted.throttle_rate,
        p.directories_for(wanted.replicas),
    )
    record = change_partition(key, kept, only(isr, wanted), rules, leader_recovery_state=leader_recovery_state)
    after = kept if record is None else msgspec.structs.replace(kept.merge(record), partition_epoch=p.partition_epoch)
    return None if after == p else _difference(key, p, after)


def _difference(key: TopicIdPartition, before: PartitionRegistration, after: PartitionRegistration) -> PartitionChangeRecord:
    leaves = not set(before.replicas) <= set(after.replicas)
    is_recovery_same = after.leader_recovery_state == before.leader_recovery_state
    return PartitionChangeRecord(
        *key,
        isr=if_changed(before.isr, after.isr),
        leader=after.leader if leaves or after.leader != before.leader else NO_LEADER_CHANGE,
        replicas=if_changed(before.replicas, after.replicas),
        adding_replicas=if_changed(before.adding_replicas, after.adding_replicas),
        removing_replicas=if_changed(before.removing_replicas, after.removing_replicas),
        leader_recovery_state=NO_RECOVERY_CHANGE if is_recovery_same else after.leader_recovery_state,
        eligible_leader_replicas=if_changed(before.elr, after.elr),
        last_known_elr=if_changed(before.last_known_elr, after.last_known_elr),
        original_replicas=if_changed(before.original_replicas, after.original_replicas),
        throttle_rate=None if after.throttle_rate == before.throttle_rate else after.throttle_rate,
    )
