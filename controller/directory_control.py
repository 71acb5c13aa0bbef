"""The log directories of replicas: a broker with several directories reports to the controller in which of them each replica is
(AssignReplicasToDirs, KIP-858).

The controller needs this when a directory fails: the partitions in it get other leaders, and those in the broker's other
directories keep theirs. A replica leads only in an online directory.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from strandline.controller.decision import Decision
from strandline.controller.metadata.directory_ids import UNASSIGNED
from strandline.controller.metadata.image import BrokerRegistration, MetadataImage
from strandline.controller.metadata.records import AnyRecord, PartitionChangeRecord
from strandline.controller.partition_change import change_partition, without
from strandline.controller.replication_control import change_rules, check_broker_epoch
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import (
    AssignReplicasToDirsPartition,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.protocol.partitions import TopicIdPartition

REPLICAS_PER_REQUEST_MAX = 2250
"""The most replicas of one request, as in Kafka: the records of one decision stay far below the largest batch."""


def assign_replicas_to_dirs(image: MetadataImage, request: AssignReplicasToDirsRequest) -> Decision[AssignReplicasToDirsResponse]:
    """Record the log directory of each replica in the request. If that directory is offline, the broker leaves the ISR, and if it
    led the partition, another replica is elected. If the partition has no leader, one is elected.

    The reply has an error per replica: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if the broker is not
    a replica of the partition, and INVALID_REQUEST for a replica that is named twice, or for the directory UNASSIGNED. Raises
    BrokerError STALE_BROKER_EPOCH, UNSUPPORTED_VERSION at level 0 of the metadata, and INVALID_REQUEST for more than
    REPLICAS_PER_REQUEST_MAX replicas."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    if not image.feature_level:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "log directories of replicas need level 1 of the metadata")
    asked = list(_replicas(request))
    if len(asked) > REPLICAS_PER_REQUEST_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{len(asked)} replicas; at most {REPLICAS_PER_REQUEST_MAX} are allowed")
    decision: Decision[AssignReplicasToDirsResponse] = Decision(
        AssignReplicasToDirsResponse(0, []), may_split=True, cause="directory_assigned"
    )
    broker, seen = image.brokers[request.broker_id], set[TopicIdPartition]()
    for key, directory_id in asked:
        error = ErrorCode.INVALID_REQUEST if key in seen else _assign(image, broker, key, directory_id, decision.records)
        seen.add(key)
        decision.reply.partitions.append(AssignReplicasToDirsPartition(*key, error))
    return decision


def _replicas(request: AssignReplicasToDirsRequest) -> Iterator[tuple[TopicIdPartition, bytes]]:
    for directory in request.directories:
        for topic in directory.topics:
            for index in topic.partitions:
                yield (topic.topic_id, index), directory.directory_id


def _assign(
    image: MetadataImage, broker: BrokerRegistration, key: TopicIdPartition, directory_id: bytes, records: list[AnyRecord]
) -> ErrorCode:
    """Append the record of one replica, if anything changes. Returns the error code."""
    if key[0] not in image.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = image.partition(key)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.broker_id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if directory_id == UNASSIGNED:
        return ErrorCode.INVALID_REQUEST
    assigned = msgspec.structs.replace(partition, directories=partition.directories_with(broker.broker_id, directory_id))
    isr = partition.isr if broker.has_online(assigned) else without(partition.isr, broker.broker_id)
    record = change_partition(key, assigned, isr, change_rules(image)) or PartitionChangeRecord(*key)
    if assigned != partition:
        record = msgspec.structs.replace(record, directories=assigned.directories)
    if record != PartitionChangeRecord(*key):
        records.append(record)
    return ErrorCode.NONE
