"""The answers of DescribeTransactions and ListTransactions (KIP-664, KIP-1152), built from the state of a shard."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.broker.groups.consumer.regex_scans import compile_regex
from strandline.broker.transactions.shard import TransactionShard
from strandline.broker.transactions.states import State, Transaction
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.transactions import (
    DescribedTransaction,
    ListedTransaction,
    ListTransactionsRequest,
    TransactionTopic,
)

_TITLES = {state.title: state for state in State}
_WITH_TRANSACTION = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


def describe(shard: TransactionShard, transactional_id: str) -> DescribedTransaction:
    """Describe a transactional id. Raises TRANSACTIONAL_ID_NOT_FOUND, or INVALID_REQUEST if the id is empty."""
    if not transactional_id:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
    found = shard.transactions.get(transactional_id)
    if found is None:
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}")
    by_topic: dict[str, list[int]] = {}
    for topic, number in found.partitions:
        by_topic.setdefault(topic, []).append(number)
    return DescribedTransaction(
        transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_at_ms if found.state in _WITH_TRANSACTION else -1,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[TransactionTopic(topic, numbers) for topic, numbers in by_topic.items()],
        transaction_last_update_time_ms=found.updated_at_ms,
    )


class Filter:
    """Chooses the transactions that a ListTransactions request asks for. The constructor raises INVALID_REGULAR_EXPRESSION."""

    def __init__(self, asked: ListTransactionsRequest, now_ms: int) -> None:
        self.unknown_states = [state for state in dict.fromkeys(asked.states) if state not in _TITLES]
        self._has_states = bool(asked.states)
        self._states = frozenset(_TITLES[state] for state in asked.states if state in _TITLES)
        self._producer_ids = frozenset(asked.producer_ids)
        self._duration_ms = asked.duration_filter_ms
        self._now_ms = now_ms
        self._pattern = compile_regex(asked.transactional_id_pattern) if asked.transactional_id_pattern else None

    def choose(self, transactions: Iterable[Transaction]) -> list[ListedTransaction]:
        return [
            ListedTransaction(each.transactional_id, each.producer_id, each.state.title)
            for each in transactions
            if self._is_wanted(each)
        ]

    def _is_wanted(self, each: Transaction) -> bool:
        if self._has_states and each.state not in self._states:
            return False
        if self._producer_ids and each.producer_id not in self._producer_ids:
            return False
        if self._duration_ms >= 0 and not self._has_run_long(each):
            return False
        return self._pattern is None or self._pattern.fullmatch(each.transactional_id) is not None

    def _has_run_long(self, each: Transaction) -> bool:
        return each.state in _WITH_TRANSACTION and self._now_ms - each.started_at_ms > self._duration_ms
