"""The change record of one partition: its new ISR, its eligible leader replicas and its leader (Kafka's PartitionChangeBuilder).

All elections are clean, except in `elect_uncleanly`: the new leader has every committed record. The members of the ISR have them
all. From level 1 of the metadata on, the *eligible leader replicas* have them, too (ELR, KIP-966). A replica that leaves the ISR
enters the ELR if the new ISR is smaller than the effective min ISR: from then on the high watermark does not move, so nothing is
committed that the replica lacks. When the ISR has reached the min ISR again, the high watermark moves, and the ELR is empty.

    ISR after the change     leader                             ISR           ELR
    at least the min ISR     from the ISR                       as proposed   empty
    smaller                  from the ISR                       as proposed   (old ELR + old ISR) - ISR - lost
    empty, ELR not           first active replica of the ELR    the leader    (old ELR + old ISR) - leader - lost
    empty, ELR empty         none: the partition waits          empty         empty

*Lost* are the replicas that may lack committed records, such as those of a broker whose machine lost power. The only replica of a
partition never counts as lost: no other replica has its records, and without it the partition would wait forever.

At level 0 there is no ELR. When the last member of the ISR fails, the ISR keeps it, the partition has no leader, and this broker
is elected when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    RECOVERING,
    BrokerIds,
    PartitionChangeRecord,
)
from strandline.protocol.partitions import TopicIdPartition

MayLead = Callable[[int], bool]
"""Whether the broker may lead: it is unfenced and not shutting down."""
MinIsr = Callable[[bytes], int]
"""Topic id -> its `min.insync.replicas`."""


HasOnline = Callable[[int, PartitionRegistration], bool]


class ChangeRules(NamedTuple):
    """The rules by which a change is decided, besides the state of the partition itself."""

    may_lead: MayLead
    min_isr: MinIsr | None = None
    """None at level 0 of the metadata, which has no ELR."""
    has_online: HasOnline = lambda broker_id, partition: True
    """Whether the replica of the partition on this broker is in an online log directory: no other one may lead (KIP-858)."""


def elect(
    partition: PartitionRegistration, isr: BrokerIds, may_lead: MayLead, *, elr: BrokerIds = (), preferred: bool = False
) -> int:
    """The leader of the partition with this ISR and ELR: the current leader if it may still lead, otherwise the first replica in
    the ISR that may, or in the ELR if the ISR is empty. With `preferred`, the preferred replica takes precedence if it is in the
    ISR and may lead. NO_LEADER if no replica may lead."""
    replicas = partition.replicas
    if preferred and replicas[0] in isr and may_lead(replicas[0]):
        return replicas[0]
    if partition.leader in isr and may_lead(partition.leader):
        return partition.leader
    for replica in replicas:
        if replica in isr and may_lead(replica):
            return replica
    for replica in () if isr else replicas:
        if replica in elr and may_lead(replica):
            return replica
    return NO_LEADER


@dataclass(slots=True)
class PartitionChangeBuilder:
    """Collects the changes of one partition that a decision asks for. `build` adds the election and the ELR that follow from
    them."""

    key: TopicIdPartition
    partition: PartitionRegistration
    rules: ChangeRules
    isr: BrokerIds
    """The new ISR, before an election."""
    lost: BrokerIds = ()
    """Replicas that may lack committed records: they leave the ISR and the ELR."""
    preferred: bool = False
    leader_recovery_state: int | None = None

    def build(self) -> PartitionChangeRecord | None:
        """The record; None if nothing changes."""
        partition, before_election = self.partition, self._without_lost(self.isr)
        candidates = () if self.rules.min_isr is None else self.elr_beside(before_election)
        leader = elect(partition, before_election, self._may_lead(), elr=candidates, preferred=self.preferred)
        isr = (leader,) if leader != NO_LEADER and leader not in before_election else before_election
        recovery = self.leader_recovery_state
        record = PartitionChangeRecord(
            *self.key,
            isr=self._isr_change(isr),
            leader=leader if leader != partition.leader else NO_LEADER_CHANGE,
            leader_recovery_state=NO_RECOVERY_CHANGE if recovery in (None, partition.leader_recovery_state) else recovery,
            eligible_leader_replicas=if_changed(partition.elr, self.elr_beside(isr)),
            last_known_elr=if_changed(partition.last_known_elr, self._last_known(leader)),
        )
        return None if record == PartitionChangeRecord(*self.key) else record

    def _may_lead(self) -> MayLead:
        may_lead, has_online, partition = self.rules.may_lead, self.rules.has_online, self.partition
        if not partition.directories:
            return may_lead
        return lambda broker_id: may_lead(broker_id) and has_online(broker_id, partition)

    def elr_beside(self, isr: BrokerIds) -> BrokerIds:
        """The ELR if the ISR is this one, in the order of the replicas."""
        partition = self.partition
        if self.rules.min_isr is None:
            return partition.elr
        if len(isr) >= self.effective_min_isr(self.rules.min_isr):
            return ()
        return self._without_lost(tuple(r for r in partition.replicas if r in (*partition.elr, *partition.isr) and r not in isr))

    def effective_min_isr(self, min_isr: MinIsr) -> int:
        """`min.insync.replicas`, capped by the number of replicas."""
        return min(min_isr(self.key[0]), len(self.partition.replicas))

    def _without_lost(self, members: BrokerIds) -> BrokerIds:
        if self.rules.min_isr is None or len(self.partition.replicas) == 1:
            return members
        return tuple(member for member in members if member not in self.lost)

    def _isr_change(self, isr: BrokerIds) -> BrokerIds | None:
        is_kept = not isr and self.rules.min_isr is None
        return None if is_kept else if_changed(self.partition.isr, isr)

    def _last_known(self, leader: int) -> BrokerIds:
        """The last leader, if the partition has no leader (Kafka stores it in the field of the last known ELR)."""
        partition = self.partition
        if self.rules.min_isr is None:
            return partition.last_known_elr
        if leader != NO_LEADER:
            return ()
        last = (partition.leader,) if partition.leader != NO_LEADER else partition.isr[:1]
        return partition.last_known_elr or last


def if_changed(before: BrokerIds, after: BrokerIds) -> BrokerIds | None:
    """The value of a field of a record, in which None stands for no change."""
    return after if after != before else None


def change_partition(
    key: TopicIdPartition,
    partition: PartitionRegistration,
    isr: BrokerIds,
    rules: ChangeRules,
    lost: BrokerIds = (),
    *,
    preferred: bool = False,
    leader_recovery_state: int | None = None,
) -> PartitionChangeRecord | None:
    """The record that sets the ISR to `isr`, without the `lost` replicas, and elects a leader; None if nothing changes."""
    return PartitionChangeBuilder(key, partition, rules, isr, lost, preferred, leader_recovery_state).build()


def elect_uncleanly(key: TopicIdPartition, partition: PartitionRegistration, leader: int) -> PartitionChangeRecord:
    """The record of an unclean election: the leader is alone in the ISR, the partition has no ELR, and it is RECOVERING until the
    leader reports that it has recovered (KIP-704). `UncleanElectionRecord` reports which records this may lose."""
    return PartitionChangeRecord(
        *key,
        isr=if_changed(partition.isr, (leader,)),
        leader=leader,
        leader_recovery_state=NO_RECOVERY_CHANGE if partition.leader_recovery_state == RECOVERING else RECOVERING,
        eligible_leader_replicas=if_changed(partition.elr, ()),
        last_known_elr=if_changed(partition.last_known_elr, ()),
    )


def without(isr: BrokerIds, broker_id: int) -> BrokerIds:
    """The ISR without this broker; it may be empty."""
    return tuple(member for member in isr if member != broker_id)
