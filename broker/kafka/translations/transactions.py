"""Transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit.

The version of a request shows whether the producer uses the transactions of KIP-890 (TV2): it does if EndTxn and TxnOffsetCommit
have version 5 or newer, and Produce 12 or newer. Such a producer sends no AddPartitionsToTxn. Kafka's versions of
AddPartitionsToTxn from 4 on are for brokers, which send it in Strandline's protocol here.

A version that does not know PRODUCER_FENCED or TRANSACTION_ABORTABLE gets an older code instead, as from Kafka."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from strandline.broker.kafka import inner_request
from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.topics_by_name import (
    Asked,
    access_of,
    answered,
    ask,
    by_topic,
    code_by_name,
    judged_first,
)
from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    KEY_TYPE_GROUP,
    FindCoordinatorRequest,
    GroupTopicPartitions,
    OffsetCommitPartition,
)
from strandline.protocol.messages.security import GROUP_RESOURCE, READ, TRANSACTIONAL_ID_RESOURCE, WRITE
from strandline.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from strandline.protocol.rpc.server_connection import Handler, ServerRequest

_TV1, _TV2 = 1, 2
_FIRST_TV2 = 5
"""The first version of EndTxn and of TxnOffsetCommit with TV2."""
_FIRST_FENCED = 2
"""The first version of each API that knows PRODUCER_FENCED."""
_FIRST_ABORTABLE = {apis.ADD_PARTITIONS_TO_TXN: 5, apis.ADD_OFFSETS_TO_TXN: 4, apis.END_TXN: 4, apis.TXN_OFFSET_COMMIT: 4}
"""The first version of each API that knows TRANSACTION_ABORTABLE."""


def _code(call: KafkaCall, code: int) -> int:
    """The error code, or an older one if the version of the request does not know it."""
    if code == ErrorCode.PRODUCER_FENCED and call.version < _FIRST_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and call.version < _FIRST_ABORTABLE[call.api.ours]:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _version(call: KafkaCall) -> int:
    return _TV2 if call.version >= _FIRST_TV2 else _TV1


def _require_transaction(call: KafkaCall, transactional_id: str, group_id: str | None = None) -> None:
    """Require the rights that the handler would require, for a request that does not reach it. Without this check, the error of
    the request would reveal which topics exist."""
    access = access_of(call)
    if access is None:
        return
    access.require(WRITE, TRANSACTIONAL_ID_RESOURCE, transactional_id)
    if group_id is not None:
        access.require(READ, GROUP_RESOURCE, group_id)


# -- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


def _add(call: KafkaCall) -> AddPartitionsToTxnRequest:
    fields = call.fields
    topics: dict[bytes, list[int]] = {}
    ask(call, fields.v3_and_below_topics)
    call.notes = [asked._replace(is_passed=asked.is_passed and asked.name not in INTERNAL_TOPICS) for asked in call.notes]
    for asked in call.notes:
        if asked.is_passed:
            topics.setdefault(asked.topic_id, []).append(asked.item)
    transaction = AddPartitionsToTxnTransaction(
        fields.v3_and_below_transactional_id,
        fields.v3_and_below_producer_id,
        fields.v3_and_below_producer_epoch,
        [GroupTopicPartitions(topic_id, partitions) for topic_id, partitions in topics.items()],
        transaction_version=_TV1,
    )
    return AddPartitionsToTxnRequest([transaction])


def _serve_add(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    """Add all partitions or none: if a topic does not exist, or is internal, the request does not reach the coordinator."""
    request.body = _add(call)
    if all(asked.is_passed for asked in call.notes):
        return handler(request)
    _require_transaction(call, call.fields.v3_and_below_transactional_id)
    request.reply(AddPartitionsToTxnResponse([AddPartitionsToTxnResult("")]))
    return None


def _added(call: KafkaCall, body: AddPartitionsToTxnResponse) -> dict[str, Any]:
    result = body.results[0]
    codes = {(row.topic_id, row.partition): row.error_code for row in result.partitions}
    is_whole = all(asked.is_passed for asked in call.notes)
    rows = [
        (asked.name, {"partition_index": asked.item, "partition_error_code": _added_code(call, asked, result, codes, is_whole)})
        for asked in call.notes
    ]
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "results_by_topic_v3_and_below": by_topic(rows, "name", "results_by_partition"),
    }


def _added_code(
    call: KafkaCall, asked: Asked, result: AddPartitionsToTxnResult, codes: dict[tuple[bytes, int], int], is_whole: bool
) -> int:
    if asked.name in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not asked.is_passed:
        return code_by_name(call, asked.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, WRITE)
    if not is_whole:
        return judged_first(call, asked.name, asked.item, WRITE) or ErrorCode.OPERATION_NOT_ATTEMPTED
    code = result.error_code or codes.get((asked.topic_id, asked.item), ErrorCode.NONE)
    return _code(call, code_by_name(call, asked.name, code, WRITE))


def _add_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    row = {"partition_error_code": _code(call, code)}
    rows = [(t.name, {"partition_index": index, **row}) for t in call.fields.v3_and_below_topics for index in t.partitions]
    return {"throttle_time_ms": 0, "results_by_topic_v3_and_below": by_topic(rows, "name", "results_by_partition")}


# -- AddOffsetsToTxn, EndTxn ------------------------------------------------------------------------------------------


def _add_offsets(call: KafkaCall) -> AddOffsetsToTxnRequest:
    fields = call.fields
    return AddOffsetsToTxnRequest(fields.transactional_id, fields.producer_id, fields.producer_epoch, fields.group_id, _TV1)


def _serve_offsets(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    """Serve the request, and create `__consumer_offsets` first if it does not exist. Kafka's brokers know the partition of a
    group without this topic. Here the topic must exist, and some clients (librdkafka, kafka-python) send the FindCoordinator that
    creates it only afterwards."""
    request.body = _add_offsets(call)
    if call.context.topic_id(OFFSETS_TOPIC) is None:
        return _create_and_add_offsets(request, call, handler)
    return handler(request)


async def _create_and_add_offsets(request: ServerRequest, call: KafkaCall, handler: Handler) -> None:
    """Create the topic, then serve the request. Until this broker knows the topic, the client gets an error and retries."""
    with suppress(BrokerError):
        await inner_request.ask(request, apis.FIND_COORDINATOR, FindCoordinatorRequest([call.fields.group_id], KEY_TYPE_GROUP))
    result = handler(request)
    if result is not None:
        await result


def _offsets_added(call: KafkaCall, body: AddOffsetsToTxnResponse) -> dict[str, Any]:
    return {"throttle_time_ms": body.throttle_time_ms, "error_code": _code(call, body.error_code)}


def _end(call: KafkaCall) -> EndTxnRequest:
    fields = call.fields
    return EndTxnRequest(fields.transactional_id, fields.producer_id, fields.producer_epoch, fields.committed, _version(call))


def _ended(call: KafkaCall, body: EndTxnResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": _code(call, body.error_code),
        "producer_id": body.producer_id,
        "producer_epoch": body.producer_epoch,
    }


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return refused_at_top(call, ErrorCode(_code(call, code)), message)


# -- TxnOffsetCommit --------------------------------------------------------------------------------------------------

_FIRST_LOADING = 2
"""Older producers give up at COORDINATOR_LOAD_IN_PROGRESS."""


def _commit(call: KafkaCall) -> TxnOffsetCommitRequest:
    fields = call.fields
    partitions = [
        OffsetCommitPartition(
            asked.topic_id,
            asked.item.partition_index,
            asked.item.committed_offset,
            asked.item.get("committed_leader_epoch", -1),
            asked.item.committed_metadata,
        )
        for asked in ask(call, fields.topics)
    ]
    return TxnOffsetCommitRequest(
        fields.transactional_id,
        fields.group_id,
        fields.producer_id,
        fields.producer_epoch,
        partitions,
        fields.get("generation_id", -1),
        fields.get("member_id", ""),
        fields.get("group_instance_id"),
        _version(call),
    )


def _serve_commit(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    """Serve the request. If it names no topic, or none that exists, it does not reach the coordinator."""
    request.body = _commit(call)
    if request.body.partitions:
        return handler(request)
    _require_transaction(call, call.fields.transactional_id, call.fields.group_id)
    request.reply(TxnOffsetCommitResponse([]))
    return None


def _committed(call: KafkaCall, body: TxnOffsetCommitResponse) -> dict[str, Any]:
    rows = []
    for asked, row in answered(call, body.partitions):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if row is None else row.error_code
        code = _commit_code(call, code_by_name(call, asked.name, code, READ))
        rows.append((asked.name, {"partition_index": asked.item.partition_index, "error_code": code}))
    return {"throttle_time_ms": body.throttle_time_ms, "topics": by_topic(rows)}


def _commit_code(call: KafkaCall, code: int) -> int:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and call.version < _FIRST_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return _code(call, code)


def _commit_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    if code == ErrorCode.INVALID_REQUEST:  # It breaks a limit of Strandline's protocol, so the handler did not see it.
        try:
            _require_transaction(call, call.fields.transactional_id, call.fields.group_id)
        except BrokerError as e:
            code = e.code
    rows = [
        (
            t.name,
            {"partition_index": p.partition_index, "error_code": _commit_refused_code(call, t.name, p.partition_index, code)},
        )
        for t in call.fields.topics
        for p in t.partitions
    ]
    return {"throttle_time_ms": 0, "topics": by_topic(rows)}


_OF_REQUEST = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _commit_refused_code(call: KafkaCall, name: str, number: int, code: ErrorCode) -> int:
    """The error of a partition in a request that is refused with `code`."""
    if code in _OF_REQUEST:
        return code
    return judged_first(call, name, number, READ) or _commit_code(call, code)


APIS = (
    KafkaApi(24, "AddPartitionsToTxn", apis.ADD_PARTITIONS_TO_TXN, 0, 3, _add, _added, _add_refused, serve=_serve_add),
    KafkaApi(25, "AddOffsetsToTxn", apis.ADD_OFFSETS_TO_TXN, 0, 4, _add_offsets, _offsets_added, _refused, serve=_serve_offsets),
    KafkaApi(26, "EndTxn", apis.END_TXN, 0, 5, _end, _ended, _refused),
    KafkaApi(28, "TxnOffsetCommit", apis.TXN_OFFSET_COMMIT, 0, 5, _commit, _committed, _commit_refused, serve=_serve_commit),
)
