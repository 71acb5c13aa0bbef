"""ElectLeaders and the reassignments of partitions, which the broker forwards to the controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.topics_by_name import by_topic, existing, number_of
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    PREFERRED_ELECTION,
    UNCLEAN_ELECTION,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersPartition,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)

_NO_PARTITION: dict[str, Any] = {
    "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "error_message": "the number of a partition is not below zero",
}


def _below_zero(topics: Iterable[Any] | None) -> Iterator[tuple[Any, int]]:
    """The partitions of a request that the handler does not get, because their numbers are below zero: (topic, number)."""
    for topic in topics or ():
        for item in topic.partitions:
            number = number_of(item)
            if number < 0:
                yield topic, number


# -- ElectLeaders -----------------------------------------------------------------------------------------------------


def _elect(call: KafkaCall) -> ElectLeadersRequest:
    fields = call.fields
    kind = fields.get("election_type", PREFERRED_ELECTION)
    if kind not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no election type {kind}")
    topics = fields.topic_partitions
    asked = [ElectLeadersPartition(topic.topic, index) for topic in topics or () for index in existing(topic.partitions)]
    return ElectLeadersRequest(kind, None if topics is None else asked, max(fields.timeout_ms, 0))


def _elected(call: KafkaCall, body: ElectLeadersResponse) -> dict[str, Any]:
    """The results of the elections. If the request asked for all partitions, those that needed no election are left out."""
    rows = [
        (row.topic, {"partition_id": row.partition, "error_code": row.error_code, "error_message": row.error_message})
        for row in body.results
        if call.fields.topic_partitions is not None or row.error_code != ErrorCode.ELECTION_NOT_NEEDED
    ]
    rows += [(topic.topic, {"partition_id": n, **_NO_PARTITION}) for topic, n in _below_zero(call.fields.topic_partitions)]
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "replica_election_results": by_topic(rows, "topic", "partition_result"),
    }


def _elect_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The error at the top, and in each partition: version 0 has no other place for it."""
    topics = call.fields.topic_partitions or []
    row = {"error_code": code, "error_message": message}
    rows = [(topic.topic, {"partition_id": index, **row}) for topic in topics for index in topic.partitions]
    return {"throttle_time_ms": 0, "error_code": code, "replica_election_results": by_topic(rows, "topic", "partition_result")}


# -- reassignments ----------------------------------------------------------------------------------------------------


def _reassign(call: KafkaCall) -> AlterPartitionReassignmentsRequest:
    fields = call.fields
    topics = [
        ReassignableTopic(topic.name, [_wanted(p) for p in topic.partitions if p.partition_index >= 0]) for topic in fields.topics
    ]
    return AlterPartitionReassignmentsRequest(
        topics, max(fields.timeout_ms, 0), fields.get("allow_replication_factor_change", True)
    )


def _wanted(partition: Any) -> ReassignablePartition:
    """Broker ids below zero, which no broker has, become -1: our handlers would not accept lower ones."""
    replicas = partition.replicas
    return ReassignablePartition(partition.partition_index, None if replicas is None else [max(id_, -1) for id_ in replicas])


def _reassigned(call: KafkaCall, body: AlterPartitionReassignmentsResponse) -> dict[str, Any]:
    responses = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": p.partition_index, "error_code": p.error_code, "error_message": p.error_message}
                for p in topic.partitions
            ],
        }
        for topic in body.responses
    ]
    for topic, number in _below_zero(call.fields.topics):
        responses.append({"name": topic.name, "partitions": [{"partition_index": number, **_NO_PARTITION}]})
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "allow_replication_factor_change": call.fields.get("allow_replication_factor_change", True),
        "error_code": body.error_code,
        "error_message": body.error_message,
        "responses": responses,
    }


def _list(call: KafkaCall) -> ListPartitionReassignmentsRequest:
    topics = call.fields.topics
    asked = None if topics is None else [ListPartitionReassignmentsTopic(t.name, existing(t.partition_indexes)) for t in topics]
    return ListPartitionReassignmentsRequest(asked, max(call.fields.timeout_ms, 0))


def _listed(call: KafkaCall, body: ListPartitionReassignmentsResponse) -> dict[str, Any]:
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": p.partition_index,
                    "replicas": p.replicas,
                    "adding_replicas": p.adding_replicas,
                    "removing_replicas": p.removing_replicas,
                }
                for p in topic.partitions
            ],
        }
        for topic in body.topics
    ]
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "topics": topics,
    }


APIS = (
    KafkaApi(43, "ElectLeaders", apis.ELECT_LEADERS, 0, 2, _elect, _elected, _elect_refused),
    KafkaApi(
        45,
        "AlterPartitionReassignments",
        apis.ALTER_PARTITION_REASSIGNMENTS,
        0,
        1,
        _reassign,
        _reassigned,
        refused_at_top,
    ),
    KafkaApi(46, "ListPartitionReassignments", apis.LIST_PARTITION_REASSIGNMENTS, 0, 0, _list, _listed, refused_at_top),
)
