"""DescribeTransactions, ListTransactions and WriteTxnMarkers: requests of operators about transactions (KIP-664).

An operator aborts a hanging transaction with a marker (`kafka-transactions abort`), and needs the right ALTER on the cluster for
that. Brokers send markers to each other in Strandline's protocol."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.topics_by_name import existing
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_NOTHING = {
    "transaction_state": "",
    "transaction_timeout_ms": 0,
    "transaction_start_time_ms": 0,
    "producer_id": 0,
    "producer_epoch": 0,
    "topics": [],
}
"""Kafka's values in the row of an id that has an error. Ours are -1."""


def _describe(call: KafkaCall) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(call.fields.transactional_ids)


def _described(call: KafkaCall, body: DescribeTransactionsResponse) -> dict[str, Any]:
    return {"throttle_time_ms": body.throttle_time_ms, "transaction_states": [_state(t) for t in body.transactions]}


def _state(transaction: DescribedTransaction) -> dict[str, Any]:
    its = {"error_code": transaction.error_code, "transactional_id": transaction.transactional_id}
    if transaction.error_code:
        return {**_NOTHING, **its}
    return {
        **its,
        "transaction_state": transaction.transaction_state,
        "transaction_timeout_ms": transaction.transaction_timeout_ms,
        "transaction_start_time_ms": transaction.transaction_start_time_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "topics": [{"topic": topic.topic, "partitions": topic.partitions} for topic in transaction.topics],
    }


def _describe_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    found = [DescribedTransaction(name, code, message) for name in call.fields.transactional_ids]
    return _described(call, DescribeTransactionsResponse(found))


def _list(call: KafkaCall) -> ListTransactionsRequest:
    fields = call.fields
    return ListTransactionsRequest(
        fields.state_filters,
        fields.producer_id_filters,
        fields.get("duration_filter", -1),
        fields.get("transactional_id_pattern") or None,
    )


def _listed(call: KafkaCall, body: ListTransactionsResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "unknown_state_filters": body.unknown_states,
        "transaction_states": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.transaction_state,
            }
            for transaction in body.transactions
        ],
    }


# -- WriteTxnMarkers --------------------------------------------------------------------------------------------------


def _write(call: KafkaCall) -> WriteTxnMarkersRequest:
    """Topics that do not exist are left out of the request; `_marked` gives their partitions UNKNOWN_TOPIC_OR_PARTITION."""
    call.notes = [[(topic, call.context.topic_id(topic.name)) for topic in marker.topics] for marker in call.fields.markers]
    return WriteTxnMarkersRequest(
        [
            WritableTxnMarker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                [GroupTopicPartitions(found, existing(topic.partition_indexes)) for topic, found in topics if found is not None],
                marker.coordinator_epoch,
                marker.get("transaction_version", 0),
            )
            for marker, topics in zip(call.fields.markers, call.notes, strict=True)
        ]
    )


def _written(call: KafkaCall, body: WriteTxnMarkersResponse) -> dict[str, Any]:
    markers = [
        {"producer_id": result.producer_id, "topics": [_marked(topic, found, result) for topic, found in topics]}
        for result, topics in zip(body.markers, call.notes, strict=True)
    ]
    return {"markers": markers}


def _marked(topic: Any, topic_id: bytes | None, result: WritableTxnMarkerResult) -> dict[str, Any]:
    codes = {row.partition: row.error_code for row in result.partitions if row.topic_id == topic_id}
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    rows = [{"partition_index": index, "error_code": codes.get(index, missing)} for index in topic.partition_indexes]
    return {"name": topic.name, "partitions": rows}


def _write_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    markers = []
    for marker in call.fields.markers:
        topics = [
            {"name": t.name, "partitions": [{"partition_index": i, "error_code": code} for i in t.partition_indexes]}
            for t in marker.topics
        ]
        markers.append({"producer_id": marker.producer_id, "topics": topics})
    return {"markers": markers}


APIS = (
    KafkaApi(27, "WriteTxnMarkers", apis.WRITE_TXN_MARKERS, 1, 2, _write, _written, _write_refused),
    KafkaApi(65, "DescribeTransactions", apis.DESCRIBE_TRANSACTIONS, 0, 0, _describe, _described, _describe_refused),
    KafkaApi(66, "ListTransactions", apis.LIST_TRANSACTIONS, 0, 2, _list, _listed, refused_at_top),
)
