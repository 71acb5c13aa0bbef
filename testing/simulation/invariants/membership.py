"""I2, I3, I13, I14, I30: the metadata of brokers and partitions that the controllers commit.

When a batch becomes committed, its records are replayed here by separate rules, and the result is compared with the image that
the production code builds from them.

The rules of KIP-966, for a cluster that elects cleanly:

- At level 0 of the metadata, the last member of an ISR stays in it when it dies, fenced and without a leader, and there is no
  ELR. From level 1 on the ISR is empty then, and so is the leader.
- There is an ELR only while the ISR is smaller than the effective min ISR, and no replica is in both. I7 compares the log of each
  member of the ELR with the committed log. A replica that has lost records by a restart is in neither (I3).

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    RECOVERING,
    AnyRecord,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UncleanElectionRecord,
    UnregisterBrokerRecord,
)
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import AlterPartitionRequest, AlterPartitionResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.invariants import reassignments, reports
from strandline.testing.simulation.invariants.ghosts import (
    BrokerGhost,
    Ghosts,
    PartitionGhost,
    Registration,
    ReplicaGhost,
)
from strandline.testing.simulation.invariants.violation import Violation

Changed = tuple[dict[TopicIdPartition, None], dict[int, None]]
"""Partitions and brokers, in the order of their first change."""


def replay(ghosts: Ghosts, base_offset: int, records: Sequence[AnyRecord]) -> Changed:
    """Replay one committed batch, then check everything that it changed."""
    partitions: dict[TopicIdPartition, None] = {}
    brokers: dict[int, None] = {}
    for index, record in enumerate(records):
        if isinstance(record, PartitionChangeRecord | PartitionRecord):
            partitions[record.topic_id, record.partition] = None
            _change_partition(ghosts, record)
        elif isinstance(record, RegisterBrokerRecord | BrokerRegistrationChangeRecord | UnregisterBrokerRecord):
            brokers[record.broker_id] = None
            _change_broker(ghosts, record, base_offset + index)
        elif isinstance(record, UncleanElectionRecord):
            reports.on_report(ghosts, record)
        elif isinstance(record, FeatureLevelRecord):
            ghosts.metadata.feature_level = record.feature_level
        elif isinstance(record, TopicRecord):
            ghosts.metadata.topics[record.topic_id] = record.name
        elif isinstance(record, RemoveTopicRecord):
            _remove_topic(ghosts, record.topic_id, partitions)
    for key in _affected(ghosts, partitions, brokers):
        _check_members(ghosts, ghosts.partitions[key])
    return partitions, brokers


def _affected(ghosts: Ghosts, partitions: Iterable[TopicIdPartition], brokers: dict[int, None]) -> dict[TopicIdPartition, None]:
    affected = dict.fromkeys(partitions)
    if brokers:
        for key, partition in ghosts.partitions.items():
            if partition.registration is not None and any(
                node in brokers for node in (*partition.registration.isr, *partition.registration.elr)
            ):
                affected[key] = None
    return affected


def _remove_topic(ghosts: Ghosts, topic_id: bytes, changed: dict[TopicIdPartition, None]) -> None:
    ghosts.metadata.topics.pop(topic_id, None)
    for key, partition in ghosts.partitions.items():
        if key[0] == topic_id:
            partition.is_deleted = True
            changed.pop(key, None)


# -- brokers ----------------------------------------------------------------------------------------------------------


def _change_broker(
    ghosts: Ghosts, record: RegisterBrokerRecord | BrokerRegistrationChangeRecord | UnregisterBrokerRecord, offset: int
) -> None:
    brokers, node = ghosts.metadata.brokers, record.broker_id
    known = brokers.get(node)
    if isinstance(record, RegisterBrokerRecord):
        _check_broker_epoch(node, known, record, offset)
        brokers[node] = BrokerGhost(record.broker_epoch, record.incarnation_id, record.fenced, record.in_controlled_shutdown)
    elif isinstance(record, UnregisterBrokerRecord):
        brokers.pop(node, None)
    elif known is None or known.epoch != record.broker_epoch:
        have = "is not registered" if known is None else f"is registered with epoch {known.epoch}"
        raise Violation(
            "I14", f"a committed record changes broker {node} with epoch {record.broker_epoch}, but it {have}", node=node
        )
    else:
        known.fenced = known.fenced if record.fenced == 0 else record.fenced == 1
        known.is_leaving = known.is_leaving or record.in_controlled_shutdown == 1


def _check_broker_epoch(node: int, known: BrokerGhost | None, record: RegisterBrokerRecord, offset: int) -> None:
    """I14: a new process gets a newer epoch, the offset of its record; the same process keeps its own."""
    if known is not None and known.incarnation_id == record.incarnation_id:
        right = record.broker_epoch == known.epoch
    else:
        right = record.broker_epoch == offset and (known is None or record.broker_epoch > known.epoch)
    if not right:
        before = "no epoch" if known is None else f"epoch {known.epoch}"
        text = (
            f"broker {node} is registered with epoch {record.broker_epoch} at metadata offset {offset}, and had {before}: a new "
            "process gets the offset of its record as its epoch, the same process keeps its epoch"
        )
        raise Violation("I14", text, node=node)


# -- partitions -------------------------------------------------------------------------------------------------------


def _change_partition(ghosts: Ghosts, record: PartitionRecord | PartitionChangeRecord) -> None:
    key = (record.topic_id, record.partition)
    partition = ghosts.partition(key, ghosts.metadata.topics.get(record.topic_id, record.topic_id.hex()[:8]))
    before = partition.registration
    if isinstance(record, PartitionRecord):
        after = _created(record)
    elif before is None:
        raise partition.violation("I14", "a committed record changes the partition, but no record created it")
    else:
        after = merge(before, record)
        _check_election(partition, before, after, named=record.leader)
        _check_recovery(partition, after)
        reassignments.check_change(partition, before, after)
        _check_expansion(ghosts, partition, before, after)
    _prove(ghosts, partition, before, after)
    partition.registration = partition.history[after.partition_epoch] = after
    if after.leader != NO_LEADER:
        partition.leaders[after.leader_epoch] = after.leader
    ghosts.disturbed[partition] = None


def _created(record: PartitionRecord) -> Registration:
    return Registration(
        record.replicas,
        record.isr,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.leader_recovery_state == RECOVERING,
        record.eligible_leader_replicas,
        record.last_known_elr,
        record.directories,
        record.adding_replicas,
        record.removing_replicas,
        record.original_replicas,
        record.throttle_rate,
    )


def merge(before: Registration, record: PartitionChangeRecord) -> Registration:
    """Each change raises the partition epoch by one. A change that names a leader, even the same one or none, also raises the
    leader epoch."""
    names_leader = record.leader != NO_LEADER_CHANGE
    recovery = record.leader_recovery_state
    return Registration(
        before.replicas if record.replicas is None else record.replicas,
        before.isr if record.isr is None else record.isr,
        record.leader if names_leader else before.leader,
        before.leader_epoch + names_leader,
        before.partition_epoch + 1,
        before.is_recovering if recovery == NO_RECOVERY_CHANGE else recovery == RECOVERING,
        before.elr if record.eligible_leader_replicas is None else record.eligible_leader_replicas,
        before.last_known_elr if record.last_known_elr is None else record.last_known_elr,
        _directories(before, record),
        before.adding if record.adding_replicas is None else record.adding_replicas,
        before.removing if record.removing_replicas is None else record.removing_replicas,
        before.original if record.original_replicas is None else record.original_replicas,
        before.throttle_rate if record.throttle_rate is None else record.throttle_rate,
    )


def _directories(before: Registration, record: PartitionChangeRecord) -> tuple[bytes, ...]:
    """A change of the replicas that names no directories keeps those of the replicas that stay."""
    if record.directories is not None:
        return record.directories
    if record.replicas is None or not before.directories:
        return before.directories
    return tuple(before.directory_of(node) for node in record.replicas)


def _prove(ghosts: Ghosts, partition: PartitionGhost, before: Registration | None, after: Registration) -> None:
    """Note under which broker epoch each member of the ISR was last known to be complete."""
    brokers = ghosts.metadata.brokers
    for node in after.isr:
        joins = before is None or node not in before.isr
        is_elected_alone = after.isr == (node,) and after.leader == node
        if (joins or is_elected_alone) and node in brokers:
            partition.proven[node] = brokers[node].epoch
            replica = partition.replicas.get(node)
            if replica is not None and before is not None:
                replica.is_unclean = False
    for node in [node for node in partition.proven if node not in after.isr]:
        del partition.proven[node]


def _check_election(partition: PartitionGhost, before: Registration, after: Registration, *, named: int) -> None:
    """I3: leaders come from ISR and ELR, unless an unclean election is recorded."""
    if named in (NO_LEADER, NO_LEADER_CHANGE) or named == before.leader or named in (*before.isr, *before.elr):
        return
    if named in partition.accepted.get(after.partition_epoch, {}):
        return  # The leader's proposal completes a reassignment that removes the leader: a member that it adds may lead already.
    if after.is_recovering:
        partition.reported.append(f"unclean election of broker {named}")
        partition.unreported = after.leader_epoch
        return
    text = f"broker {named} is elected in epoch {after.leader_epoch} from outside the ISR {list(before.isr)}"
    raise partition.violation("I3", text, named)


def _check_recovery(partition: PartitionGhost, after: Registration) -> None:
    """I30: a leader that recovers from an unclean election is alone in the ISR (KIP-704)."""
    if after.is_recovering and len(after.isr) > 1:
        text = f"broker {after.leader} recovers from an unclean election, but the ISR is {list(after.isr)}"
        raise partition.violation("I30", text, after.leader)


def check_proposal(replica: ReplicaGhost, partition_epoch: int, proposed: Sequence[int]) -> None:
    """I30 at the leader, which proposes this ISR in the partition epoch that it knows."""
    known = replica.partition.history.get(partition_epoch)
    if known is not None and known.is_recovering and not set(proposed) <= set(known.isr):
        text = f"broker {replica.node} recovers from an unclean election, but proposes the ISR {list(proposed)}"
        raise replica.partition.violation("I30", text, replica.node)


def _check_expansion(ghosts: Ghosts, partition: PartitionGhost, before: Registration, after: Registration) -> None:
    """I13: a broker that joins is alive, is the process that the leader has seen, and has every committed record."""
    named = partition.accepted.pop(after.partition_epoch, {})
    for node in after.isr:
        if node in before.isr:
            continue
        broker, replica = ghosts.metadata.brokers.get(node), partition.replicas.get(node)
        joins = f"broker {node} joins the ISR {list(before.isr)} with partition epoch {after.partition_epoch}"
        if broker is None or broker.fenced:
            state = "is not registered" if broker is None else "is fenced"
            raise partition.violation("I13", f"{joins}, but it {state}", node)
        if node in named and named[node] != broker.epoch:
            text = f"{joins} with broker epoch {named[node]}, but it is registered with broker epoch {broker.epoch}"
            raise partition.violation("I13", text, node)
        if replica is None or partition.loss_permitted or not ghosts.is_registered(replica):
            continue
        if not replica.path.holds_all_of(partition.committed):
            text = (
                f"{joins}, but its log {replica.path} lacks committed records: the true high watermark is "
                f"{partition.committed.end}"
            )
            raise partition.violation("I13", text, node)


def _check_members(ghosts: Ghosts, partition: PartitionGhost) -> None:
    """I2 and I3, at the end of a committed batch."""
    registration, brokers = partition.registration, ghosts.metadata.brokers
    if registration is None or partition.is_deleted:
        return
    isr, leader = registration.isr, registration.leader
    reports.check_reported(partition, registration)
    if leader != NO_LEADER and leader not in isr:
        raise partition.violation("I2", f"broker {leader} is the leader, but it is not in the ISR {list(isr)}", leader)
    may_be_empty = ghosts.metadata.feature_level > 0 and leader == NO_LEADER
    if not (isr or may_be_empty) or not set(isr) <= set(registration.replicas):
        raise partition.violation(
            "I2", f"the ISR {list(isr)} is empty or is no subset of the replicas {list(registration.replicas)}"
        )
    is_last = len(isr) == 1 and leader == NO_LEADER
    for node in isr:
        broker = brokers.get(node)
        if (broker is None or broker.fenced) and not is_last:
            raise partition.violation("I2", f"broker {node} is in the ISR {list(isr)} (leader {leader}), but it is fenced", node)
        if broker is not None and broker.epoch > partition.proven.get(node, broker.epoch) and len(isr) > 1:
            text = (
                f"broker {node} is in the ISR {list(isr)} with broker epoch {broker.epoch}, but it was last known to be complete "
                f"with broker epoch {partition.proven[node]}"
            )
            raise partition.violation("I2", text, node)
    _check_elr(ghosts, partition, registration)


def _check_elr(ghosts: Ghosts, partition: PartitionGhost, registration: Registration) -> None:
    isr, elr, replicas = registration.isr, registration.elr, registration.replicas
    if not ghosts.metadata.feature_level and (elr or registration.last_known_elr):
        raise partition.violation("I3", f"level 0 of the metadata has no ELR, but this is {list(elr)}")
    if set(elr) & set(isr) or not set(elr) <= set(replicas):
        text = f"the ELR {list(elr)} has members of the ISR {list(isr)}, or others than the replicas {list(replicas)}"
        raise partition.violation("I3", text)
    if registration.leader != NO_LEADER and registration.last_known_elr:
        text = f"broker {registration.leader} leads, but the last leader {list(registration.last_known_elr)} is still recorded"
        raise partition.violation("I3", text)
    for node in (*isr, *elr) if ghosts.metadata.feature_level and len(replicas) > 1 else ():
        replica = partition.replicas.get(node)
        if replica is None or not replica.is_unclean or replica.damage is not None or not ghosts.is_registered(replica):
            continue
        if not replica.path.holds_all_of(partition.committed) and not partition.loss_permitted:
            text = (
                f"broker {node} returned with fewer records than it had ({replica.path}), and lacks committed records up to "
                f"{partition.committed.end}, but it may be elected: ISR {list(isr)}, ELR {list(elr)}"
            )
            raise partition.violation("I3", text, node)


# -- the image of the production code ---------------------------------------------------------------------------------


def compare_with_image(ghosts: Ghosts, image: MetadataImage, changed: Changed) -> None:
    """The replayed state and the image of the production code, built from the same records, must be equal (I14, I19)."""
    for key in changed[0]:
        partition, found = ghosts.partitions[key], image.partition(key)
        ours = partition.registration
        if partition.is_deleted or ours is None:
            continue
        if (found and _fields_of(found)) != (*ours[:5], ours.elr, *ours[-4:]):
            theirs = found and _fields_of(found)
            text = f"the metadata image at offset {image.offset} has {theirs}, but the records result in {tuple(ours)}"
            raise partition.violation("I14", text)
        min_isr = min(image.min_insync_replicas(partition.topic), len(ours.replicas))
        if ours.elr and len(ours.isr) >= min_isr:
            text = f"the ISR {list(ours.isr)} has reached the min ISR {min_isr}, but there is an ELR, {list(ours.elr)}"
            raise partition.violation("I3", text)
    for node in changed[1]:
        broker, registered = ghosts.metadata.brokers.get(node), image.brokers.get(node)
        theirs_b = registered and (registered.broker_epoch, registered.fenced, registered.in_controlled_shutdown)
        ours_b = broker and (broker.epoch, broker.fenced, broker.is_leaving)
        if theirs_b != ours_b:
            text = (
                f"the metadata image at offset {image.offset} has {theirs_b} for broker {node}, but the records result in "
                f"{ours_b}"
            )
            raise Violation("I14", text, node=node)


def _fields_of(found: PartitionRegistration) -> tuple[object, ...]:
    roles = (found.replicas, found.isr, found.leader, found.leader_epoch, found.partition_epoch, found.elr)
    return (*roles, found.adding_replicas, found.removing_replicas, found.original_replicas, found.throttle_rate)


# -- brokers' side ----------------------------------------------------------------------------------------------------


def check_epochs_of_replica(ghosts: Ghosts, partition: PartitionGhost) -> None:
    """I14: a broker's leader epoch and partition epoch of a partition never decrease. I19: they are committed."""
    for replica in partition.replicas.values():
        live = replica.live
        if live is None or not replica.is_live:
            continue
        now = (live.leader_epoch, live.partition_epoch)
        if now == replica.checked_epochs:
            continue
        before, replica.checked_epochs = replica.checked_epochs, now
        if now[0] < before[0] or now[1] < before[1]:
            text = f"broker {replica.node} went back from (leader epoch, partition epoch) {before} to {now}"
            raise partition.violation("I14", text, replica.node)
        known = partition.history.get(now[1])
        if partition.history and (known is None or known.leader_epoch != now[0]) and now != (-1, -1):
            text = f"broker {replica.node} acts in (leader epoch, partition epoch) {now}, which was never committed"
            raise partition.violation("I19", text, replica.node)


def on_accepted(ghosts: Ghosts, image: MetadataImage, request: AlterPartitionRequest, answer: AlterPartitionResponse) -> None:
    """A controller has accepted AlterPartition proposals: note the broker epochs that they name. NEW_LEADER_ELECTED accepts one,
    too: it completes a reassignment that removes the leader."""
    for item, told in zip(request.partitions, answer.partitions, strict=True):
        partition = ghosts.partitions.get((item.topic_id, item.partition))
        found = image.partition((item.topic_id, item.partition))
        if partition is not None and found is not None and told.error_code in (0, ErrorCode.NEW_LEADER_ELECTED):
            named = {member.broker_id: member.broker_epoch for member in item.new_isr if member.broker_epoch >= 0}
            partition.accepted[found.partition_epoch + 1] = named


def check_heartbeat(image: MetadataImage, node: int, broker_epoch: int) -> None:
    """I14: a heartbeat of an earlier process of a broker does not count."""
    registered = image.brokers.get(node)
    if registered is not None and registered.broker_epoch != broker_epoch:
        text = (
            f"a heartbeat of broker {node} with broker epoch {broker_epoch} was accepted, but the broker is registered with "
            f"broker epoch {registered.broker_epoch}"
        )
        raise Violation("I14", text, node=node)
