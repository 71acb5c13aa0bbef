"""The change record of one partition, from its new ISR and the brokers that may lead.

Only clean elections: the leader is a member of the ISR. When the last member of the ISR fails, the ISR keeps it, and the
partition has no leader: only that broker has every committed record, and it is elected again when it returns.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    BrokerIds,
    PartitionChangeRecord,
)
from strandline.protocol.partitions import TopicIdPartition

MayLead = Callable[[int], bool]
"""Whether the broker may lead: it is unfenced and not shutting down."""


def elect(partition: PartitionRegistration, isr: BrokerIds, may_lead: MayLead, *, preferred: bool = False) -> int:
    """The leader of the partition with this ISR: the current leader if it may still lead, otherwise the first replica in the ISR
    that may. With `preferred`, the first of the replicas goes before both. NO_LEADER if there is none."""
    replicas = partition.replicas
    if preferred and replicas[0] in isr and may_lead(replicas[0]):
        return replicas[0]
    if partition.leader in isr and may_lead(partition.leader):
        return partition.leader
    for replica in replicas:
        if replica in isr and may_lead(replica):
            return replica
    return NO_LEADER


def change_partition(
    key: TopicIdPartition,
    partition: PartitionRegistration,
    isr: BrokerIds,
    may_lead: MayLead,
    *,
    preferred: bool = False,
    leader_recovery_state: int | None = None,
) -> PartitionChangeRecord | None:
    """The record that sets the ISR to `isr` and elects a leader from it; None if nothing changes."""
    leader = elect(partition, isr, may_lead, preferred=preferred)
    leader_change = leader if leader != partition.leader else NO_LEADER_CHANGE
    isr_change = isr if isr and isr != partition.isr else None
    recovery = NO_RECOVERY_CHANGE
    if leader_recovery_state is not None and leader_recovery_state != partition.leader_recovery_state:
        recovery = leader_recovery_state
    if leader_change == NO_LEADER_CHANGE and isr_change is None and recovery == NO_RECOVERY_CHANGE:
        return None
    return PartitionChangeRecord(key[0], key[1], isr=isr_change, leader=leader_change, leader_recovery_state=recovery)


def without(isr: BrokerIds, broker_id: int) -> BrokerIds:
    """The ISR without this broker; it may be empty."""
    return tuple(member for member in isr if member != broker_id)
