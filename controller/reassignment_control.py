"""Reassignments: AlterPartitionReassignments and ListPartitionReassignments, and the end of a reassignment (KIP-455).

`reassignment.py` has the rules; here they become records. A reassignment may complete in three decisions: the one that begins it
(only the order changes, or replicas only leave), an AlterPartition request by which the last added replica joins the ISR
(`replication_control.py`), and a change of min.insync.replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from strandline.controller.decision import Decision
from strandline.controller.metadata.cluster_describe import is_draining
from strandline.controller.metadata.image import MIN_INSYNC_REPLICAS, MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, AnyRecord, BrokerIds, ConfigRecord, PartitionChangeRecord
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.reassignment import (
    Assignment,
    assignment_of,
    begin,
    cancel,
    change_assignment,
    completion,
    may_complete,
)
from strandline.controller.replication_control import change_rules
from strandline.controller.request_limits import check_amount
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import (
    RESOURCE_BROKER,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResult,
    ReassignableTopicResult,
)


def complete_after_configs(image: MetadataImage, index: PartitionIndex, records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """The records that complete reassignments after `records`, which change configurations: a lower min.insync.replicas may be
    all that a completion waits for."""
    changed = [record for record in records if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS]
    if not changed or not index.reassigning():
        return []
    everywhere = any(record.resource_type == RESOURCE_BROKER for record in changed)
    topics = {record.resource_name for record in changed}
    after = image.apply(records, image.offset + len(records), image.epoch).image
    rules, found = change_rules(after), list[AnyRecord]()
    for key in index.reassigning():
        partition = after.partition(key)
        if partition is not None and (everywhere or after.topics_by_id[key[0]].name in topics):
            record = completion(key, partition, partition.isr, rules)
            found += [] if record is None else [record]
    return found


# -- AlterPartitionReassignments --------------------------------------------------------------------------------------


def alter_partition_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    """Begin, replace or cancel reassignments (KIP-455). Each partition succeeds or fails by itself.

    The reply has an error per partition: UNKNOWN_TOPIC_OR_PARTITION; INVALID_REPLICA_ASSIGNMENT for a target that is empty, names
    a broker twice, one that is not registered (a fenced one may return) or a new one that is drained or cordoned, and for a
    cancellation after which no replica in sync is left, or no leader; INVALID_REPLICATION_FACTOR if the request does not allow
    another number of replicas (KIP-860); NO_REASSIGNMENT_IN_PROGRESS if there is none to cancel; INVALID_REQUEST for a partition
    that is named twice. Raises BrokerError UNSUPPORTED_VERSION at level 0 of the metadata, and POLICY_VIOLATION for too many
    topics or partitions."""
    _check(image, request)
    decision = Decision(AlterPartitionReassignmentsResponse(0, None, []), cause="reassignment_requested")
    times = Counter((topic.name, p.partition_index) for topic in request.topics for p in topic.partitions)
    for topic in request.topics:
        results = ReassignableTopicResult(topic.name, [])
        decision.reply.responses.append(results)
        for item in topic.partitions:
            result = ReassignablePartitionResult(item.partition_index)
            results.partitions.append(result)
            try:
                if times[(topic.name, item.partition_index)] > 1:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, f"{topic.name}-{item.partition_index} is named twice")
                record = _alter(image, request, topic.name, item)
                decision.records += [] if record is None else [record]
            except BrokerError as e:
                result.error_code, result.error_message = e.code, e.message
    return decision


def _check(image: MetadataImage, request: AlterPartitionReassignmentsRequest) -> None:
    if not image.feature_level:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"a reassignment needs level 1 of {METADATA_VERSION}, and the cluster has level 0; `strandline features upgrade` "
            "raises it",
        )
    check_amount(len(request.topics), "name", "topics")
    check_amount(sum(len(topic.partitions) for topic in request.topics), "reassign", "partitions")


def _alter(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, name: str, item: ReassignablePartition
) -> PartitionChangeRecord | None:
    topic = image.topic(name)
    partition = topic.partitions.get(item.partition_index) if topic is not None else None
    if topic is None or partition is None:
        what = f"topic {name!r}" if topic is None else f"partition {name}-{item.partition_index}"
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {what}")
    wanted = (
        _cancelled(f"{name}-{item.partition_index}", partition)
        if item.replicas is None
        else _begun(image, request, partition, tuple(item.replicas))
    )
    if may_complete(wanted, partition.isr, image.min_insync_replicas(name)):
        wanted = wanted.without_removed()
    record = change_assignment((topic.topic_id, item.partition_index), partition, wanted, partition.isr, change_rules(image))
    if item.replicas is None and record is not None and record.leader == NO_LEADER != partition.leader:
        raise _leaderless(f"{name}-{item.partition_index}", partition)
    return record


def _leaderless(name: str, partition: PartitionRegistration) -> BrokerError:
    """The error of a cancellation that would leave the partition without a leader. (Kafka refuses every cancellation after which
    no replica is in the ISR.)"""
    eligible = [replica for replica in partition.original_replicas if replica in (*partition.isr, *partition.elr)]
    return BrokerError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"a cancellation would leave {name} without a leader, because no original replica that has all records is alive: start "
        f"one of the brokers {eligible} first",
    )


def _cancelled(name: str, partition: PartitionRegistration) -> Assignment:
    if not partition.is_reassigning:
        raise BrokerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name} is not being reassigned")
    wanted = cancel(partition)
    if wanted is None:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"only replicas that the reassignment adds are in sync (ISR {list(partition.isr)}), so a cancellation would lose "
            "records",
        )
    return wanted


def _begun(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, partition: PartitionRegistration, target: BrokerIds
) -> Assignment:
    problem = _target_problem(image, partition, target)
    if problem is not None:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the target {list(target)} {problem}")
    factor = len(partition.original_replicas or partition.replicas)
    if not request.allow_replication_factor_change and len(target) != factor:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the target {list(target)} would change the replication factor from {factor} to {len(target)}",
        )
    return begin(partition, target, request.throttle_rate)


def _target_problem(image: MetadataImage, partition: PartitionRegistration, target: BrokerIds) -> str | None:
    if not target:
        return "is empty"
    if len(set(target)) != len(target):
        return "names a broker twice"
    unknown = [broker_id for broker_id in target if broker_id not in image.brokers]
    if unknown:
        return f"names broker {unknown[0]}, which is not registered"
    added = [broker_id for broker_id in target if broker_id not in partition.replicas]
    drained = [broker_id for broker_id in added if is_draining(image, broker_id)]
    if drained:
        return f"names broker {drained[0]}, which is being drained"
    cordoned = [broker_id for broker_id in added if image.brokers[broker_id].is_cordoned]
    return f"names broker {cordoned[0]}, whose log directories are all cordoned" if cordoned else None


# -- ListPartitionReassignments ---------------------------------------------------------------------------------------


def list_partition_reassignments(
    image: MetadataImage, index: PartitionIndex, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The running reassignments of these partitions, or of all, by topic and partition. Partitions that are not reassigned, or do
    not exist, are left out."""
    if request.topics is None:
        wanted = index.reassigning()
    else:
        topics = [(image.topic(asked.name), asked.partition_indexes) for asked in request.topics]
        wanted = list(dict.fromkeys((topic.topic_id, i) for topic, indexes in topics if topic is not None for i in indexes))
    by_topic: dict[str, list[OngoingPartitionReassignment]] = {}
    for topic_id, partition_index in sorted(wanted):
        topic = image.topics_by_id[topic_id]
        partition = topic.partitions.get(partition_index)
        if partition is not None and partition.is_reassigning:
            by_topic.setdefault(topic.name, []).append(_ongoing(partition_index, partition))
    return ListPartitionReassignmentsResponse(
        0, None, [OngoingTopicReassignment(name, found) for name, found in sorted(by_topic.items())]
    )


def _ongoing(index: int, partition: PartitionRegistration) -> OngoingPartitionReassignment:
    a = assignment_of(partition)
    return OngoingPartitionReassignment(
        index, list(a.replicas), list(a.adding), list(a.removing), list(a.original), a.throttle_rate
    )
