"""DescribeTransactions and ListTransactions: what an operator asks the coordinators (KIP-664)."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def _describe(call: KafkaCall) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(call.fields.transactional_ids)


def _described(call: KafkaCall, body: DescribeTransactionsResponse) -> dict[str, Any]:
    return {"throttle_time_ms": body.throttle_time_ms, "transaction_states": [_state(t) for t in body.transactions]}


def _state(transaction: DescribedTransaction) -> dict[str, Any]:
    return {
        "error_code": transaction.error_code,
        "transactional_id": transaction.transactional_id,
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


APIS = (
    KafkaApi(65, "DescribeTransactions", apis.DESCRIBE_TRANSACTIONS, 0, 0, _describe, _described, _describe_refused),
    KafkaApi(66, "ListTransactions", apis.LIST_TRANSACTIONS, 0, 2, _list, _listed, refused_at_top),
)
