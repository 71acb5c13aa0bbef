"""Serves TxnOffsetCommit: a producer commits offsets of a group in its transaction (KIP-98, KIP-447).

The offsets become a batch of the transaction in the group's partition of `__consumer_offsets`, as records of producers become
batches in other partitions. So the transaction coordinator must know that partition before the first batch (`admission.py`),
because it sends its marker there. Then the group's shard decides, as for any other request.

While the broker waits for the transaction coordinator, the connection is on hold: of two commits of one producer, the later one
must count.

A fenced producer gets INVALID_PRODUCER_EPOCH, as in Produce. If the transaction coordinator does not respond, the producer gets
COORDINATOR_LOAD_IN_PROGRESS, so that it retries without looking for another group coordinator (as in Kafka).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.coordination.coordinator import ActiveShard
from strandline.broker.coordination.replies import as_coordinator
from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.result import RequestContext
from strandline.broker.groups.shard import GroupShard
from strandline.broker.transactions.admission import TV1, TV2, Adder, Admission
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import AddPartitionsToTxnTransaction, TxnOffsetCommitRequest
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.rpc.server_connection import answer_error

_OF_OTHER_COORDINATOR = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


class TxnOffsetCommits:
    """The TxnOffsetCommit requests of a broker."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        adder: Adder | None,
        context: Callable[[ServerRequest], RequestContext],
        is_trusted: Callable[[float], bool],
    ) -> None:
        """`context`, `is_trusted`: those of `GroupHandlers`. If `adder` is None, all requests are refused."""
        self._coordinator = coordinator
        self._adder = adder
        self._context = context
        self._is_trusted = is_trusted

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, TxnOffsetCommitRequest)
        if self._adder is None or not body.transactional_id:
            reason = "transactions are not supported" if self._adder is None else "the transactional id is empty"
            raise BrokerError(ErrorCode.INVALID_REQUEST, reason)
        if not body.group_id:
            raise BrokerError(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")
        active = self._coordinator.shard_of(body.group_id)
        admission = Admission(body.producer_id, body.producer_epoch, TV2 if body.transaction_version >= TV2 else TV1)
        if active.leader_state.is_under_min_isr:
            raise as_coordinator(BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS))
        question = admission.question(active.leader_state, 0)
        if question is None:
            self._commit(request, admission)
        else:
            admission.confirmed[0] = question
            request.connection.hold()
            self._adder.add(_addition(body, admission, active), partial(self._on_answer, request, admission))

    def _on_answer(self, request: ServerRequest, admission: Admission, error: BrokerError | None) -> None:
        """Continue when the transaction coordinator has added the partition, or has refused to (`error`)."""
        try:
            if error is not None:
                raise _as_group_coordinator(error)
            if not self._is_trusted(self._coordinator.host.now()):
                raise BrokerError(ErrorCode.NOT_COORDINATOR, "the broker was paused while the transaction coordinator was asked")
            self._commit(request, admission)
        except Exception as e:
            answer_error(request, e)
        finally:
            request.connection.release()

    def _commit(self, request: ServerRequest, admission: Admission) -> None:
        body: TxnOffsetCommitRequest = request.body
        active = self._coordinator.shard_of(body.group_id)
        try:
            admission.check(0, active.leader_state)
        except BrokerError as e:
            raise as_coordinator(e) from None
        context = self._context(request)
        self._coordinator.decide(body.group_id, lambda shard: shard.commit_offsets_in_transaction(body, context))


def _addition(
    body: TxnOffsetCommitRequest, admission: Admission, active: ActiveShard[GroupShard]
) -> AddPartitionsToTxnTransaction:
    topic_id, number = active.partition.key
    return AddPartitionsToTxnTransaction(
        body.transactional_id,
        body.producer_id,
        body.producer_epoch,
        [GroupTopicPartitions(topic_id, [number])],
        verify_only=admission.transaction_version < TV2,
        transaction_version=admission.transaction_version,
    )


def _as_group_coordinator(error: BrokerError) -> BrokerError:
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.code in _OF_OTHER_COORDINATOR else error.code
    return BrokerError(code, error.message)
