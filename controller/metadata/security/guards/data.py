"""Guards of the data path: Produce, Fetch, offsets, and the states of producers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from strandline.controller.metadata.security.access import Access
from strandline.controller.metadata.security.guards.common import Guard, Handler, items, pass_items
from strandline.controller.metadata.security.partial_request import PartialProduce, put_back
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResponse,
    DescribeProducersPartition,
    DescribeProducersPartitionResponse,
    EpochEndOffsetPartition,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetLagPartition,
    OffsetLagPartitionResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)
from strandline.protocol.messages.security import (
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    DELETE,
    DESCRIBE,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC_RESOURCE,
    TRANSACTIONAL_ID_RESOURCE,
    WRITE,
)
from strandline.protocol.producer_names import is_named, number_of

# -- Produce ----------------------------------------------------------------------------------------------------------


def produce(access: Access, request: Any, handler: Handler) -> Any:
    """WRITE on the transactional id, if there is one, and on each topic."""
    body: ProduceRequest = request.body
    if body.transactional_id is not None:
        access.require(WRITE, TRANSACTIONAL_ID_RESOURCE, body.transactional_id)
    refused: dict[int, ProducePartitionResponse] = {}
    for index, item in enumerate(body.partitions):
        code = access.topic_refusal(item.topic_id, WRITE)
        if code is not None:
            refused[index] = ProducePartitionResponse(item.topic_id, item.partition, code)
    return pass_produce(request, handler, refused)


def pass_produce(request: Any, handler: Handler, refused: dict[int, ProducePartitionResponse]) -> Any:
    """Pass on the request without the refused partitions and their records; answer it if none is left."""
    body: ProduceRequest = request.body
    if not refused or len(body.partitions) != len(body.records):
        return handler(request)  # a malformed request is refused as a whole
    if len(refused) == len(body.partitions):
        _refuse_produce(request, list(refused.values()))
        return None
    return handler(_without(request, body, refused))


def _refuse_produce(request: Any, rows: list[ProducePartitionResponse]) -> None:
    if request.body.acks:
        request.reply(ProduceResponse(rows))
    else:
        PartialProduce(request, request.body, lambda response: None).no_reply()


def _without(request: Any, body: ProduceRequest, refused: dict[int, ProducePartitionResponse]) -> PartialProduce:
    def complete(response: ProduceResponse) -> None:
        response.partitions = put_back(response.partitions, refused)

    left = [index for index in range(len(body.partitions)) if index not in refused]
    partitions, records = [body.partitions[index] for index in left], [body.records[index] for index in left]
    return PartialProduce(request, replace(body, partitions=partitions, records=records), complete)


# -- Fetch, ListOffsets, OffsetForLeaderEpoch -------------------------------------------------------------------------


def fetch(access: Access, request: Any, handler: Handler) -> Any:
    """CLUSTER_ACTION to fetch as a follower. READ on the topics of a consumer is checked at each visit of a partition
    (`broker/security/reading.py`), because a fetch session names its partitions once, and rights are withdrawn later."""
    body: FetchRequest = request.body
    if body.replica_id >= 0:
        access.require_cluster(CLUSTER_ACTION)
    return handler(request)


def list_offsets(access: Access, request: Any, handler: Handler) -> Any:
    """CLUSTER_ACTION as a follower, otherwise DESCRIBE on each topic."""
    body: ListOffsetsRequest = request.body
    if body.replica_id >= 0:
        access.require_cluster(CLUSTER_ACTION)
        return handler(request)
    return _LIST_OFFSETS(access, request, handler)


def _refuse_list_offsets(access: Access, item: ListOffsetsPartition) -> ListOffsetsPartitionResponse | None:
    code = access.topic_refusal(item.topic_id, DESCRIBE)
    return None if code is None else ListOffsetsPartitionResponse(item.topic_id, item.partition, code)


_LIST_OFFSETS = items("partitions", "partitions", _refuse_list_offsets)


def offset_for_leader_epoch(access: Access, request: Any, handler: Handler) -> Any:
    """CLUSTER_ACTION as a follower, otherwise DESCRIBE on each topic."""
    body: OffsetForLeaderEpochRequest = request.body
    if body.replica_id >= 0:
        access.require_cluster(CLUSTER_ACTION)
        return handler(request)
    return _OFFSET_FOR_LEADER_EPOCH(access, request, handler)


def _refuse_epoch(access: Access, item: OffsetForLeaderPartition) -> EpochEndOffsetPartition | None:
    code = access.topic_refusal(item.topic_id, DESCRIBE)
    return None if code is None else EpochEndOffsetPartition(item.topic_id, item.partition, code)


_OFFSET_FOR_LEADER_EPOCH = items("partitions", "partitions", _refuse_epoch)


def _refuse_deletion(access: Access, item: DeleteRecordsPartition) -> DeleteRecordsPartitionResponse | None:
    code = access.topic_refusal(item.topic_id, DELETE)
    return None if code is None else DeleteRecordsPartitionResponse(item.topic_id, item.partition, code)


delete_records: Guard = items("partitions", "partitions", _refuse_deletion)
"""DELETE on each topic."""


def offset_lag(access: Access, request: Any, handler: Handler) -> Any:
    """CLUSTER_ACTION (coordinators of groups ask), otherwise DESCRIBE on each topic."""
    return handler(request) if access.is_node else _OFFSET_LAG(access, request, handler)


def _refuse_lag(access: Access, item: OffsetLagPartition) -> OffsetLagPartitionResponse | None:
    code = access.topic_refusal(item.topic_id, DESCRIBE)
    return None if code is None else OffsetLagPartitionResponse(item.topic_id, item.partition, code)


_OFFSET_LAG = items("partitions", "partitions", _refuse_lag)

# -- producers --------------------------------------------------------------------------------------------------------


def init_producer_id(access: Access, request: Any, handler: Handler) -> Any:
    """WRITE on the transactional id, or on the name of a named producer: names and transactional ids are one name space. For any
    other producer IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
    body: InitProducerIdRequest = request.body
    identities = [identity for identity in (body.transactional_id, body.name) if identity is not None]
    for identity in identities:
        access.require(WRITE, TRANSACTIONAL_ID_RESOURCE, identity)
    if not identities:
        _require_idempotent_write(access)
    return handler(request)


def _require_idempotent_write(access: Access) -> None:
    if access.sees(IDEMPOTENT_WRITE, CLUSTER_RESOURCE, CLUSTER_NAME) or access.may_any(WRITE, TOPIC_RESOURCE):
        return
    raise BrokerError(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"{access.principal} lacks the right WRITE on any topic, or IDEMPOTENT_WRITE on CLUSTER:{CLUSTER_NAME}",
    )


def describe_producers(access: Access, request: Any, handler: Handler) -> Any:
    """READ on each topic; or WRITE, for a named producer that looks up its own progress: then the request names only producer ids
    of names on which the sender has WRITE."""
    ids = request.body.producer_ids
    may_be_writer = bool(ids) and all(owns_name(access, producer_id) for producer_id in ids)
    refused = {
        index: row
        for index, item in enumerate(request.body.partitions)
        if (row := _refuse_producers(access, item, may_be_writer)) is not None
    }
    return pass_items(request, handler, "partitions", "partitions", refused)


def owns_name(access: Access, producer_id: int) -> bool:
    """Whether this is the id of a named producer on whose name the sender has WRITE. A number that has no name in this node's
    metadata is accepted, because the controllers may have assigned it a moment ago. So is the number of a name that was removed:
    no producer has it, and the leaders refuse its batches."""
    if not is_named(producer_id):
        return False
    name = access.image.producer_numbers.get(number_of(producer_id))
    return name is None or access.sees(WRITE, TRANSACTIONAL_ID_RESOURCE, name)


def _refuse_producers(
    access: Access, item: DescribeProducersPartition, may_be_writer: bool
) -> DescribeProducersPartitionResponse | None:
    topic = access.image.topics_by_id.get(item.topic_id)
    if topic is not None and may_be_writer and access.sees(WRITE, TOPIC_RESOURCE, topic.name):
        return None
    code = access.topic_refusal(item.topic_id, READ)
    return None if code is None else DescribeProducersPartitionResponse(item.topic_id, item.partition, code)
