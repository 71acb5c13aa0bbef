"""Leaders and in-sync replicas: AlterPartition requests of leaders, and the elections when a broker fails or returns.

A leader proposes an ISR. The controller accepts it only if the proposal names the controller's own state of the partition
(leader epoch and partition epoch), and if every member is alive as the incarnation that the leader saw. A broker that is fenced
or shuts down leaves the ISR of all its partitions in one batch, and new leaders are elected from the remaining members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MIN_INSYNC_REPLICAS, MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    AnyRecord,
    BrokerIds,
    ConfigRecord,
    PartitionChangeRecord,
)
from strandline.controller.partition_change import ChangeRules, HasOnline, MayLead, change_partition, without
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.reassignment import completion
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    PREFERRED_ELECTION,
    ElectLeadersRequest,
    ElectLeadersResult,
)
from strandline.protocol.messages.cluster import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
)
from strandline.protocol.partitions import TopicIdPartition

IsLossy = Callable[[TopicIdPartition], bool]
"""Whether the log of a partition may lack records on the broker that the decision is about."""


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
    """Raise BrokerError STALE_BROKER_EPOCH if the broker is not registered, or the request is not from its registered
    process."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise BrokerError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} sent broker epoch {broker_epoch}, but is registered with {broker.broker_epoch}",
        )


def may_lead(image: MetadataImage) -> MayLead:
    """A function that returns whether a broker may lead: it is registered, unfenced and not shutting down (KIP-841)."""
    brokers = image.brokers

    def is_active(broker_id: int) -> bool:
        broker = brokers.get(broker_id)
        return broker is not None and broker.is_active

    return is_active


def change_rules(image: MetadataImage, acceptable: MayLead | None = None) -> ChangeRules:
    """The rules for changes of partitions of this image. `acceptable`: which brokers may lead, if not those of the image."""
    acceptable = acceptable or may_lead(image)
    if not image.feature_level:
        return ChangeRules(acceptable, has_online=has_online(image))
    known: dict[bytes, int] = {}

    def min_isr(topic_id: bytes) -> int:
        value = known.get(topic_id)
        if value is None:
            value = known[topic_id] = image.min_insync_replicas(image.topics_by_id[topic_id].name)
        return value

    return ChangeRules(acceptable, min_isr, has_online(image))


def has_online(image: MetadataImage) -> HasOnline:
    """A function that returns whether a broker's replica of a partition is in an online log directory (KIP-858)."""
    brokers = image.brokers

    def is_online(broker_id: int, partition: PartitionRegistration) -> bool:
        broker = brokers.get(broker_id)
        return broker is not None and broker.has_online(partition)

    return is_online


# -- brokers that fail and return -------------------------------------------------------------------------------------


def remove_from_isrs(
    image: MetadataImage, index: PartitionIndex, broker_id: int, is_lossy: IsLossy | None = None
) -> list[AnyRecord]:
    """The records by which a broker that fails, shuts down or registers again leaves all ISRs. Each partition that it led gets a
    leader from the remaining ISR or, if that is empty, from the ELR.

    `is_lossy`: the partitions whose log may lack records on this broker; it leaves their ELR as well, and does not enter it."""
    is_active = may_lead(image)
    rules = change_rules(image, lambda other: other != broker_id and is_active(other))
    keys = dict.fromkeys(index.with_broker_in_isr(broker_id))
    if is_lossy is not None:
        keys.update(dict.fromkeys(key for key in index.with_broker_in_elr(broker_id) if is_lossy(key)))
    lost: BrokerIds = (broker_id,)
    return _change_all(
        image, keys, rules, leaving=broker_id, lost=lambda key: lost if is_lossy is not None and is_lossy(key) else ()
    )


def strike(image: MetadataImage, index: PartitionIndex, broker_id: int, is_lossy: IsLossy) -> list[AnyRecord]:
    """The records by which a broker leaves the ISRs and ELRs of the partitions whose log lacks records on it."""
    is_active = may_lead(image)
    rules = change_rules(image, lambda other: other != broker_id and is_active(other))
    keys = dict.fromkeys((*index.with_broker_in_isr(broker_id), *index.with_broker_in_elr(broker_id)))
    return _change_all(image, [key for key in keys if is_lossy(key)], rules, leaving=broker_id, lost=lambda key: (broker_id,))


def leave_directories(
    image: MetadataImage,
    index: PartitionIndex,
    broker_id: int,
    failed: Collection[bytes],
    is_lossy: IsLossy | None = None,
) -> list[AnyRecord]:
    """The records by which a broker leaves the ISRs of the partitions in log directories that have failed. Each partition that it
    led there gets another leader, if there is one. The partitions of `is_lossy` are left out, because `strike` changes them."""
    keys = [key for key in index.with_broker_in_isr(broker_id) if is_lossy is None or not is_lossy(key)]
    lost = [key for key in keys if (p := image.partition(key)) is not None and p.directory_of(broker_id) in failed]
    is_active = may_lead(image)
    rules = change_rules(image, lambda other: other != broker_id and is_active(other))
    return _change_all(image, lost, rules, leaving=broker_id)


def elect_leaderless(image: MetadataImage, index: PartitionIndex, broker_id: int | None = None) -> list[AnyRecord]:
    """The records that elect leaders for the partitions without one. `broker_id` may lead as well: it is being unfenced, although
    the image still has it fenced."""
    is_active, returning = may_lead(image), image.brokers.get(-1 if broker_id is None else broker_id)
    if returning is not None and returning.in_controlled_shutdown:
        broker_id = None
    rules = change_rules(image, lambda other: other == broker_id or is_active(other))
    return _change_all(image, index.without_leader(), rules)


def drop_needless_elrs(image: MetadataImage, keys: Iterable[TopicIdPartition]) -> list[AnyRecord]:
    """The records that empty the ELRs of partitions whose ISR has reached their min ISR, because that was lowered. A leader does
    not raise the high watermark while its partition has an ELR."""
    return _change_all(image, [key for key in keys if _has_leader(image, key)], change_rules(image))


def drop_elrs_after_configs(image: MetadataImage, index: PartitionIndex, records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """The records of `drop_needless_elrs` that follow these records, if one of them changes `min.insync.replicas`."""
    if not any(isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS for record in records):
        return []
    return drop_needless_elrs(image.apply(records, image.offset, image.epoch).image, index.with_elr())


def _has_leader(image: MetadataImage, key: TopicIdPartition) -> bool:
    partition = image.partition(key)
    return partition is not None and partition.leader != NO_LEADER


def _no_replica(_key: TopicIdPartition) -> BrokerIds:
    return ()


def _change_all(
    image: MetadataImage,
    keys: Iterable[TopicIdPartition],
    rules: ChangeRules,
    *,
    leaving: int | None = None,
    lost: Callable[[TopicIdPartition], BrokerIds] = _no_replica,
) -> list[AnyRecord]:
    records: list[AnyRecord] = []
    for key in keys:
        partition = image.partition(key)
        assert partition is not None, "the index holds only partitions of the image"
        isr = partition.isr if leaving is None else without(partition.isr, leaving)
        record = change_partition(key, partition, isr, rules, lost(key))
        if record is not None:
            records.append(record)
    return records


# -- AlterPartition ---------------------------------------------------------------------------------------------------


def alter_partition(image: MetadataImage, request: AlterPartitionRequest) -> Decision[AlterPartitionResponse]:
    """Accept or reject the ISRs that a leader proposes (AlterPartition, KIP-497).

    The reply has an error per partition, and an accepted partition its new state. FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION and
    NOT_CONTROLLER: the leader's state of the partition is older or newer than this node's. INELIGIBLE_REPLICA: a proposed member
    is fenced, shuts down, or is another process than the leader saw (KIP-841, KIP-903). NEW_LEADER_ELECTED: the proposal is
    accepted, and another broker leads. Raises BrokerError STALE_BROKER_EPOCH for the whole request."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    decision: Decision[AlterPartitionResponse] = Decision(AlterPartitionResponse(0, []), cause="leader_proposed")
    seen: dict[TopicIdPartition, None] = {}
    rules = change_rules(image)
    for item in request.partitions:
        key = (item.topic_id, item.partition)
        # Both proposals for one partition would be checked against the same state: only the first counts.
        error = ErrorCode.INVALID_REQUEST if key in seen else _refusal(image, request.broker_id, item)
        seen[key] = None
        if error is not None:
            answer = AlterPartitionPartitionResponse(item.topic_id, item.partition, error_code=error)
        else:
            answer = _accept(image, rules, request.broker_id, item, decision.records)
        decision.reply.partitions.append(answer)
    return decision


def _refusal(image: MetadataImage, broker_id: int, item: AlterPartitionPartition) -> ErrorCode | None:
    """The error if the proposal is rejected; the checks are in Kafka's order."""
    if item.topic_id not in image.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = image.partition((item.topic_id, item.partition))
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _stale(partition, broker_id, item) or _malformed(partition, item) or _ineligible(image, partition, item.new_isr)


def _stale(partition: PartitionRegistration, broker_id: int, item: AlterPartitionPartition) -> ErrorCode | None:
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        # The broker has newer metadata: most likely this node is no longer the active controller. The broker retries.
        return ErrorCode.NOT_CONTROLLER
    if item.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if item.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _malformed(partition: PartitionRegistration, item: AlterPartitionPartition) -> ErrorCode | None:
    proposed = [member.broker_id for member in item.new_isr]
    if not proposed or len(set(proposed)) != len(proposed) or not set(proposed) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if partition.leader not in proposed or partition.leader in item.lost_replicas:
        return ErrorCode.INVALID_REQUEST
    if item.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    # A leader that still recovers from an unclean election is alone in the ISR, and no leader starts a recovery.
    may_recover = len(proposed) == 1 and partition.leader_recovery_state == RECOVERING
    if item.leader_recovery_state == RECOVERING and not may_recover:
        return ErrorCode.INVALID_REQUEST
    return None


def _ineligible(image: MetadataImage, partition: PartitionRegistration, proposed: list[BrokerState]) -> ErrorCode | None:
    """Each member must be registered, unfenced, not shutting down, and the incarnation that the leader saw (KIP-903). Its replica
    must be in an online log directory. A replica that a reassignment adds does not join on a broker whose log directories are all
    cordoned (KIP-1066); one that was there before does, because the partition needs its copy.

    Unlike in Kafka, the broker epoch -1 ("not seen yet") is accepted only for a broker that is in the ISR already.
    """
    for member in proposed:
        broker = image.brokers.get(member.broker_id)
        if broker is None or not broker.is_active or not broker.has_online(partition):
            return ErrorCode.INELIGIBLE_REPLICA
        joins = member.broker_id in partition.adding_replicas and member.broker_id not in partition.isr
        if joins and broker.is_cordoned:
            return ErrorCode.INELIGIBLE_REPLICA
        unseen_member = member.broker_epoch == -1 and member.broker_id in partition.isr
        if member.broker_epoch != broker.broker_epoch and not unseen_member:
            return ErrorCode.INELIGIBLE_REPLICA
    return None


def _accept(
    image: MetadataImage, rules: ChangeRules, broker_id: int, item: AlterPartitionPartition, records: list[AnyRecord]
) -> AlterPartitionPartitionResponse:
    key = (item.topic_id, item.partition)
    partition = image.partition(key)
    assert partition is not None, "checked by _refusal"
    isr = tuple(member.broker_id for member in item.new_isr)
    recovery, record = item.leader_recovery_state, None
    lost = tuple(item.lost_replicas)
    if partition.is_reassigning and not lost:
        record = completion(key, partition, isr, rules, recovery)
    if record is None:
        record = change_partition(key, partition, isr, rules, lost, leader_recovery_state=recovery)
    if record is None:
        # Unlike in Kafka, a record is written although nothing changes. The leader may have withdrawn a proposal of which a copy
        # still arrives; the new partition epoch makes the controller reject the copy.
        record = PartitionChangeRecord(*key, isr=isr)
    records.append(record)
    partition = partition.merge(record)
    if record.leader not in (NO_LEADER_CHANGE, broker_id):
        return AlterPartitionPartitionResponse(*key, error_code=ErrorCode.NEW_LEADER_ELECTED)
    return AlterPartitionPartitionResponse(
        *key,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
        eligible_leader_replicas=list(partition.elr),
    )


# -- ElectLeaders -----------------------------------------------------------------------------------------------------


def elect_leaders(
    image: MetadataImage, asked: Iterable[tuple[str, int]], *, leave_out_needless: bool
) -> Decision[list[ElectLeadersResult]]:
    """Make the preferred replicas (the first of each assignment) leaders again (ElectLeaders, KIP-183, KIP-460).

    The reply has an error per partition, or leaves out those that need no election. Unclean elections are decided elsewhere
    (`unclean_election_requests.py`), because the replicas are asked first."""
    results: list[ElectLeadersResult] = []
    decision = Decision(results, may_split=True, cause="preferred_election")
    rules = change_rules(image)
    for name, index in asked:
        error, message, record = elect_preferred(image, name, index, rules)
        if leave_out_needless and error == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        if record is not None:
            decision.records.append(record)
        results.append(ElectLeadersResult(name, index, error, message))
    return decision


def asked_partitions(image: MetadataImage, request: ElectLeadersRequest) -> list[tuple[str, int]]:
    """The partitions of a request for elections: those that it names, or all."""
    assert request.election_type == PREFERRED_ELECTION, "the server sends the others to UncleanRecoverer"
    if request.partitions is not None:
        return list(dict.fromkeys((p.topic, p.partition) for p in request.partitions))
    topics = sorted(image.topics_by_id.values(), key=lambda topic: topic.name)
    return [(topic.name, index) for topic in topics for index in sorted(topic.partitions)]


def elect_preferred(
    image: MetadataImage, name: str, index: int, rules: ChangeRules
) -> tuple[ErrorCode, str | None, PartitionChangeRecord | None]:
    """Make the first replica of one partition its leader. Returns an error code, its reason, and the record to write:
    UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED if it leads already, PREFERRED_LEADER_NOT_AVAILABLE if it is fenced, shuts
    down or is not in the ISR."""
    topic = image.topic(name)
    partition = topic.partitions.get(index) if topic else None
    if topic is None or partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}", None
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        return ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} leads already", None
    record = change_partition((topic.topic_id, index), partition, partition.isr, rules, preferred=True)
    if record is None or record.leader != preferred:
        why = "is not in the ISR" if preferred not in partition.isr else "is fenced or shutting down"
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred} {why}", record
    return ErrorCode.NONE, None, record
