"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId and DescribeProducers.

ListOffsets has timestamps with a special meaning, some of them since the version in brackets:

    -1 latest    -2 earliest    -3 record with the newest timestamp (7)    -4 earliest that is local (8)
    -5 newest that is in tiered storage (9)    -6 earliest that is not there yet (11)

There is no tiered storage here. So -4 means the same as -2, and the response to -5 and -6 is offset -1, as in a Kafka without
tiered storage. The response to any other negative timestamp, or to one that the version does not have, is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.translations.topics_by_name import Asked, answered, ask, by_topic, code_by_name, code_unless_denied
from strandline.controller.metadata.topic_names import name_problem
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    ProducerState,
)
from strandline.protocol.messages.security import DELETE, DESCRIBE, READ

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_CONSUMER = -1

# -- ListOffsets ------------------------------------------------------------------------------------------------------

_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Timestamp with a special meaning -> the first version that has it."""
_EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -4, -5, -6
_OF_TIERED_STORAGE = (_LATEST_TIERED, _EARLIEST_PENDING)
_FIRST_WITH_OFFSET_NOT_AVAILABLE = 5


def _list_offsets(call: KafkaCall) -> ListOffsetsRequest:
    fields = call.fields
    if fields.replica_id >= 0:
        reason = "followers do not replicate over a listener for Kafka's clients"
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, reason)
    isolation_level = fields.get("isolation_level", 0)
    if isolation_level not in (0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no isolation level {isolation_level}")
    found = ask(call, fields.topics, leave_out=lambda item: not _is_supported(call, item.timestamp))
    partitions = [
        ListOffsetsPartition(id_, item.partition_index, _epoch(item), _our_timestamp(item.timestamp)) for _, id_, item, _ in found
    ]
    return ListOffsetsRequest(_CONSUMER, isolation_level, partitions)


def _is_supported(call: KafkaCall, timestamp: int) -> bool:
    return timestamp >= 0 or call.version >= _SINCE.get(timestamp, call.version + 1)


def _our_timestamp(timestamp: int) -> int:
    """The timestamp to look up. A lookup in tiered storage becomes a lookup of the earliest offset, so that the leader checks the
    partition, too; the offset that it finds is not sent."""
    return EARLIEST_TIMESTAMP if timestamp == _EARLIEST_LOCAL or timestamp in _OF_TIERED_STORAGE else timestamp


def _epoch(item: Any) -> int:
    return max(int(item.get("current_leader_epoch", -1)), -1)


def _listed(call: KafkaCall, body: ListOffsetsResponse) -> dict[str, Any]:
    rows = []
    for asked, row in answered(call, body.partitions):
        if row is None:
            code = (
                _UNKNOWN if not asked.topic_id else code_unless_denied(call, asked.name, ErrorCode.UNSUPPORTED_VERSION, DESCRIBE)
            )
            rows.append((asked.name, _offset_row(call, asked, code)))
        elif row.error_code or asked.item.timestamp in _OF_TIERED_STORAGE:
            rows.append((asked.name, _offset_row(call, asked, row.error_code)))
        else:
            rows.append((asked.name, _offset_row(call, asked, 0, row.timestamp, row.offset, row.leader_epoch)))
    return {"throttle_time_ms": body.throttle_time_ms, "topics": by_topic(rows)}


def _offset_row(
    call: KafkaCall, asked: Asked, code: int, timestamp: int = -1, offset: int = -1, leader_epoch: int = -1
) -> dict[str, Any]:
    code = code_by_name(call, asked.name, code, DESCRIBE)
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and call.version < _FIRST_WITH_OFFSET_NOT_AVAILABLE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return {
        "partition_index": asked.item.partition_index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _list_offsets_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    rows = [(asked.name, _offset_row(call, asked, code)) for asked in _all(call)]
    return {"throttle_time_ms": 0, "topics": by_topic(rows)}


def _all(call: KafkaCall, name_field: str = "name", items_field: str = "partitions") -> list[Asked]:
    """All partitions of a request that is refused as a whole."""
    ask(call, call.fields.topics, name_field, items_field)
    found: list[Asked] = call.notes
    return found


# -- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------------


def _epochs(call: KafkaCall) -> OffsetForLeaderEpochRequest:
    """Requests of replicas and of consumers have the same response, so each is translated as a consumer's."""
    found = ask(call, call.fields.topics, "topic")
    partitions = [
        OffsetForLeaderPartition(id_, item.partition, _epoch(item), max(item.leader_epoch, -1)) for _, id_, item, _ in found
    ]
    return OffsetForLeaderEpochRequest(_CONSUMER, partitions)


def _epoch_ends(call: KafkaCall, body: OffsetForLeaderEpochResponse) -> dict[str, Any]:
    rows = []
    for asked, row in answered(call, body.partitions):
        if row is None:
            rows.append((asked.name, _epoch_row(call, asked, _UNKNOWN)))
        else:
            rows.append((asked.name, _epoch_row(call, asked, row.error_code, row.leader_epoch, row.end_offset)))
    return {"throttle_time_ms": body.throttle_time_ms, "topics": by_topic(rows, "topic")}


def _epoch_row(call: KafkaCall, asked: Asked, code: int, leader_epoch: int = -1, end_offset: int = -1) -> dict[str, Any]:
    return {
        "error_code": code_by_name(call, asked.name, code, DESCRIBE),
        "partition": asked.item.partition,
        "leader_epoch": leader_epoch,
        "end_offset": end_offset,
    }


def _epochs_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    rows = [(asked.name, _epoch_row(call, asked, code)) for asked in _all(call, "topic")]
    return {"throttle_time_ms": 0, "topics": by_topic(rows, "topic")}


# -- DeleteRecords ----------------------------------------------------------------------------------------------------

_DISK_MS = 1000
"""The minimum timeout. Strandline responds when the new log start offset is on the disk. Kafka does not wait for that, so its
clients may set a timeout of 0."""


def _deletions(call: KafkaCall) -> DeleteRecordsRequest:
    found = ask(call, _each_once(call), leave_out=lambda item: item.offset < -1)
    partitions = [DeleteRecordsPartition(id_, item.partition_index, item.offset) for _, id_, item, _ in found]
    return DeleteRecordsRequest(partitions, max(call.fields.timeout_ms, _DISK_MS))


def _each_once(call: KafkaCall) -> list[Fields]:
    """The topics with each partition once. If the request names a partition several times, the last offset counts."""
    topics: dict[str, dict[int, Any]] = {}
    for topic in call.fields.topics:
        topics.setdefault(topic.name, {}).update((item.partition_index, item) for item in topic.partitions)
    return [Fields(name=name, partitions=list(items.values())) for name, items in topics.items()]


def _deleted(call: KafkaCall, body: DeleteRecordsResponse) -> dict[str, Any]:
    rows = []
    for asked, row in answered(call, body.partitions):
        if row is None:
            code = _UNKNOWN if not asked.topic_id else code_unless_denied(call, asked.name, ErrorCode.OFFSET_OUT_OF_RANGE, DELETE)
            rows.append((asked.name, _deletion_row(call, asked, code)))
        else:
            rows.append((asked.name, _deletion_row(call, asked, row.error_code, row.low_watermark)))
    return {"throttle_time_ms": body.throttle_time_ms, "topics": by_topic(rows)}


def _deletion_row(call: KafkaCall, asked: Asked, code: int, low_watermark: int = -1) -> dict[str, Any]:
    code = code_by_name(call, asked.name, code, DELETE)
    return {"partition_index": asked.item.partition_index, "low_watermark": low_watermark, "error_code": code}


def _deletions_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    ask(call, _each_once(call))
    rows = [(asked.name, _deletion_row(call, asked, code)) for asked in call.notes]
    return {"throttle_time_ms": 0, "topics": by_topic(rows)}


# -- InitProducerId ---------------------------------------------------------------------------------------------------

_FIRST_WITH_FENCED = 4


def _init(call: KafkaCall) -> InitProducerIdRequest:
    fields = call.fields
    producer_id, epoch = fields.get("producer_id", -1), fields.get("producer_epoch", -1)
    if (producer_id == -1) != (epoch == -1):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "producer_id and producer_epoch must both be set, or both be -1")
    if fields.transactional_id == "":
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if fields.get("enable2_pc", False):
        reason = "this cluster has no transactions with two-phase commit"
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
    if fields.get("keep_prepared_txn", False):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "a prepared transaction cannot be kept")
    return InitProducerIdRequest(fields.transactional_id, max(fields.transaction_timeout_ms, 0), producer_id, epoch)


def _initialized(call: KafkaCall, body: InitProducerIdResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": _init_code(call, body.error_code),
        "producer_id": body.producer_id,
        "producer_epoch": body.producer_epoch,
    }


def _init_code(call: KafkaCall, code: int) -> int:
    """The error code for the version of the request: clients that use the first versions do not know PRODUCER_FENCED."""
    is_unknown = code == ErrorCode.PRODUCER_FENCED and call.version < _FIRST_WITH_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


def _init_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return refused_at_top(call, ErrorCode(_init_code(call, code)), message)


# -- DescribeProducers ------------------------------------------------------------------------------------------------


def _producers(call: KafkaCall) -> DescribeProducersRequest:
    """The handler gets each partition once, even if the request names it several times."""
    found = dict.fromkeys((asked.topic_id, asked.item) for asked in ask(call, call.fields.topics, "name", "partition_indexes"))
    return DescribeProducersRequest([DescribeProducersPartition(*key) for key in found])


def _described(call: KafkaCall, body: DescribeProducersResponse) -> dict[str, Any]:
    found = {(row.topic_id, row.partition): row for row in body.partitions}
    rows = []
    for asked in call.notes:
        problem = None if asked.topic_id else name_problem(asked.name)
        if problem is not None:
            rows.append((asked.name, _producers_row(call, asked, ErrorCode.INVALID_TOPIC_EXCEPTION, problem, [])))
        elif not asked.is_passed:
            rows.append((asked.name, _producers_row(call, asked, _UNKNOWN, None, [])))
        else:
            row = found[asked.topic_id, asked.item]
            rows.append((asked.name, _producers_row(call, asked, row.error_code, row.error_message, row.active_producers)))
    return {"throttle_time_ms": body.throttle_time_ms, "topics": by_topic(rows)}


def _producers_row(
    call: KafkaCall, asked: Asked, code: int, message: str | None, producers: list[ProducerState]
) -> dict[str, Any]:
    return {
        "partition_index": asked.item,
        "error_code": code_by_name(call, asked.name, code, READ),
        "error_message": message,
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.current_txn_start_offset,
            }
            for each in producers
        ],
    }


def _producers_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    found = _all(call, "name", "partition_indexes")
    rows = [(asked.name, _producers_row(call, asked, code, message, [])) for asked in found]
    return {"throttle_time_ms": 0, "topics": by_topic(rows)}


APIS = (
    KafkaApi(2, "ListOffsets", apis.LIST_OFFSETS, 1, 11, _list_offsets, _listed, _list_offsets_refused),
    KafkaApi(21, "DeleteRecords", apis.DELETE_RECORDS, 0, 2, _deletions, _deleted, _deletions_refused),
    KafkaApi(22, "InitProducerId", apis.INIT_PRODUCER_ID, 0, 5, _init, _initialized, _init_refused),
    KafkaApi(23, "OffsetForLeaderEpoch", apis.OFFSET_FOR_LEADER_EPOCH, 2, 4, _epochs, _epoch_ends, _epochs_refused),
    KafkaApi(61, "DescribeProducers", apis.DESCRIBE_PRODUCERS, 0, 0, _producers, _described, _producers_refused),
)
