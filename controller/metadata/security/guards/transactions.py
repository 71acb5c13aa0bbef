"""Guards of transactions."""

from __future__ import annotations

from typing import Any

from strandline.controller.metadata.security.access import Access
from strandline.controller.metadata.security.guards.common import Guard, Handler, items, pass_filtered
from strandline.controller.metadata.security.guards.groups import split_topics
from strandline.controller.metadata.security.partial_request import PartialRequest
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import OffsetCommitPartition
from strandline.protocol.messages.security import (
    ALTER,
    CLUSTER_ACTION,
    DESCRIBE,
    GROUP_RESOURCE,
    READ,
    TOPIC_RESOURCE,
    TRANSACTIONAL_ID_RESOURCE,
    WRITE,
)
from strandline.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnPartitionResult,
)

_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def end_txn(access: Access, request: Any, handler: Handler) -> Any:
    """WRITE on the transactional id."""
    access.require(WRITE, TRANSACTIONAL_ID_RESOURCE, request.body.transactional_id)
    return handler(request)


def add_partitions(access: Access, request: Any, handler: Handler) -> Any:
    """CLUSTER_ACTION of a leader that adds the partitions for its producers, or verifies them. A producer itself needs WRITE on
    the transactional id and on each topic."""
    return handler(request) if access.is_node else _ADDITIONS(access, request, handler)


def _refuse_addition(access: Access, asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult | None:
    """The result of a transaction that is refused, or None. If the sender lacks a right on one topic, no partition is added."""
    if not access.may(WRITE, TRANSACTIONAL_ID_RESOURCE, asked.transactional_id):
        return AddPartitionsToTxnResult(asked.transactional_id, _DENIED)
    left, refused = split_topics(access, asked.topics, WRITE)
    if not refused:
        return None
    results = [TxnPartitionResult(*row) for row in refused]
    results += [TxnPartitionResult(t.topic_id, n, ErrorCode.OPERATION_NOT_ATTEMPTED) for t in left for n in t.partitions]
    return AddPartitionsToTxnResult(asked.transactional_id, partitions=results)


_ADDITIONS = items("transactions", "results", _refuse_addition)


def add_offsets(access: Access, request: Any, handler: Handler) -> Any:
    """WRITE on the transactional id, and READ on the group."""
    body: AddOffsetsToTxnRequest = request.body
    access.require(WRITE, TRANSACTIONAL_ID_RESOURCE, body.transactional_id)
    access.require(READ, GROUP_RESOURCE, body.group_id)
    return handler(request)


def _refuse_commit(access: Access, item: OffsetCommitPartition) -> TxnPartitionResult | None:
    code = access.topic_refusal(item.topic_id, READ)
    return None if code is None else TxnPartitionResult(item.topic_id, item.partition, code)


_COMMITS = items("partitions", "partitions", _refuse_commit, asks_for_none=True)


def txn_offset_commit(access: Access, request: Any, handler: Handler) -> Any:
    """WRITE on the transactional id, READ on the group and on each topic."""
    body: TxnOffsetCommitRequest = request.body
    access.require(WRITE, TRANSACTIONAL_ID_RESOURCE, body.transactional_id)
    access.require(READ, GROUP_RESOURCE, body.group_id)
    return _COMMITS(access, request, handler)


def write_markers(access: Access, request: Any, handler: Handler) -> Any:
    """CLUSTER_ACTION of a coordinator, or ALTER on the cluster of an operator who ends a hanging transaction."""
    access.require_cluster(CLUSTER_ACTION, ALTER)
    return handler(request)


# -- looking at transactions ------------------------------------------------------------------------------------------


def _refuse_description(access: Access, transactional_id: str) -> DescribedTransaction | None:
    may = access.may(DESCRIBE, TRANSACTIONAL_ID_RESOURCE, transactional_id)
    return None if may else DescribedTransaction(transactional_id, _DENIED)


_DESCRIPTIONS: Guard = items("transactional_ids", "transactions", _refuse_description)


def describe(access: Access, request: Any, handler: Handler) -> Any:
    """DESCRIBE on each transactional id; the answer names the topics that the sender may describe. CLUSTER_ACTION of a broker,
    which asks whether the name of a new named producer is a transactional id."""
    if access.is_node:
        return handler(request)

    def complete(response: DescribeTransactionsResponse) -> None:
        for transaction in response.transactions:
            transaction.topics = [each for each in transaction.topics if access.sees(DESCRIBE, TOPIC_RESOURCE, each.topic)]

    return _DESCRIPTIONS(access, PartialRequest(request, request.body, complete), handler)


def list_transactions(access: Access, request: Any, handler: Handler) -> Any:
    """The transactional ids that the sender may describe."""

    def complete(response: ListTransactionsResponse) -> None:
        response.transactions = [
            each for each in response.transactions if access.sees(DESCRIBE, TRANSACTIONAL_ID_RESOURCE, each.transactional_id)
        ]

    return pass_filtered(request, handler, complete)
