"""Serves the requests to the transaction coordinator: passes each to its shard, and builds the response from the decision.

A response is sent when everything that the shard knew is committed: the record of the request, or the state that the response
describes. The state names topics by their names, as Kafka's records do; requests name them by their ids.

A request that may need an unused producer id waits for one before the shard decides. A request that arrives before the previous
transaction of its id is complete waits, too (`completion_waiters.py`). After the wait, the request is checked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from strandline.broker.coordination.gathered import Gathered, answer_for_each
from strandline.broker.coordination.partitioning import partition_of
from strandline.broker.coordination.replies import Asker, send
from strandline.broker.transactions.coordinator import TransactionCoordinator
from strandline.broker.transactions.listing import Filter, describe
from strandline.broker.transactions.names import check_transactional_id
from strandline.broker.transactions.shard import Decision, ProducerIdAndEpoch, TransactionShard
from strandline.broker.transactions.states import NO_PRODUCER_ID, TopicNamePartition
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse
from strandline.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnPartitionResult,
)
from strandline.protocol.rpc.server import Handler, ServerRequest

Decide = Callable[[TransactionShard, int, int], Decision]
"""Arguments: the shard, an unused producer id (-1 if none is needed), and the wall clock in ms."""


@dataclass(slots=True)
class _Question:
    """A request about one transactional id, on which its shard decides."""

    asker: Asker
    transactional_id: str
    decide: Decide
    respond: Callable[[ProducerIdAndEpoch], Message]
    may_be_new: bool = False
    """Whether the transactional id may be new to the coordinator."""
    may_wait: bool = True
    """Whether the request may wait until the previous transaction is complete. It waits at most once."""


class TransactionHandlers:
    """Answers the requests to a broker's transaction coordinator, except FindCoordinator."""

    def __init__(self, coordinator: TransactionCoordinator, is_trusted: Callable[[float], bool]) -> None:
        """`is_trusted`: false after a pause so long that another broker may lead this broker's partitions (`PauseDetector`)."""
        self._coordinator = coordinator
        self._is_trusted = is_trusted

    def handlers(self) -> dict[int, Handler]:
        """Api key -> handler."""
        handlers: dict[int, Callable[[ServerRequest], Awaitable[None] | None]] = {
            apis.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            apis.ADD_OFFSETS_TO_TXN: self.add_offsets,
            apis.END_TXN: self.end,
            apis.DESCRIBE_TRANSACTIONS: self.describe,
            apis.LIST_TRANSACTIONS: self.list,
        }
        return {key: self._while_trusted(handle) for key, handle in handlers.items()}

    def _while_trusted(self, handle: Callable[[ServerRequest], Awaitable[None] | None]) -> Handler:
        def guarded(request: ServerRequest) -> Awaitable[None] | None:
            self._check_trusted(request.received_at)
            return handle(request)

        return guarded  # type: ignore[return-value]

    def _check_trusted(self, at: float) -> None:
        if not self._is_trusted(at):
            raise BrokerError(ErrorCode.NOT_COORDINATOR, "the broker was paused and does not know the present coordinator yet")

    # -- one transactional id -----------------------------------------------------------------------------------------

    def init_producer_id(self, request: ServerRequest) -> Awaitable[None] | None:
        """InitProducerId with a transactional id."""
        body = request.body
        assert isinstance(body, InitProducerIdRequest)
        self._check_trusted(request.received_at)
        transactional_id = body.transactional_id or ""
        asker = _Answering(request, lambda error: InitProducerIdResponse(error.code, error_message=error.message))
        self._check_init(body)
        expected = None if body.producer_id < 0 else ProducerIdAndEpoch(body.producer_id, body.producer_epoch)

        def decide(shard: TransactionShard, fresh_id: int, now_ms: int) -> Decision:
            return shard.init_producer(transactional_id, body.transaction_timeout_ms, expected, fresh_id, now_ms)

        return self._decide(_Question(asker, transactional_id, decide, _initialized, may_be_new=True))

    def _check_init(self, body: InitProducerIdRequest) -> None:
        if (body.producer_id < 0) is not (body.producer_epoch < 0):
            raise BrokerError(ErrorCode.INVALID_REQUEST, "producer_id and producer_epoch must both be set, or both be -1")
        if body.name is not None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a producer has a name or a transactional id, not both")
        check_transactional_id(body.transactional_id or "", self._coordinator.host.directory.image)

    def add_offsets(self, request: ServerRequest) -> Awaitable[None] | None:
        body = request.body
        assert isinstance(body, AddOffsetsToTxnRequest)
        asker = _Answering(request, lambda error: AddOffsetsToTxnResponse(error.code, error.message))
        topic = self._coordinator.host.directory.image.topic(OFFSETS_TOPIC)
        if topic is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no topic {OFFSETS_TOPIC} yet")
        added = [(OFFSETS_TOPIC, partition_of(body.group_id, len(topic.partitions)))]
        decide = _adding(body.transactional_id, _asker_of(body), added, body.transaction_version)
        return self._decide(_Question(asker, body.transactional_id, decide, lambda _: AddOffsetsToTxnResponse()))

    def end(self, request: ServerRequest) -> Awaitable[None] | None:
        body = request.body
        assert isinstance(body, EndTxnRequest)
        asker = _Answering(request, lambda error: EndTxnResponse(error.code, error.message))

        def decide(shard: TransactionShard, fresh_id: int, now_ms: int) -> Decision:
            return shard.end(
                _asker_of(body),
                body.transactional_id,
                commit=body.committed,
                version=body.transaction_version,
                fresh_id=fresh_id,
                now_ms=now_ms,
            )

        return self._decide(_Question(asker, body.transactional_id, decide, _ended))

    def _decide(self, question: _Question) -> Awaitable[None] | None:
        """Have the shard decide. Returns the rest of the work if a producer id must be awaited first."""
        transactional_id = question.transactional_id
        try:
            shard = self._coordinator.shard_of(transactional_id).shard
            if shard.needs_fresh_id(transactional_id, if_new=question.may_be_new):
                return self._decide_with_fresh_id(question)
        except BrokerError as e:
            send([(question.asker, e)])
            return None
        self._decide_now(question)
        return None

    async def _decide_with_fresh_id(self, question: _Question) -> None:
        try:
            fresh_id = await self._coordinator.fresh_ids.next_id()
            self._check_trusted(self._coordinator.host.now())
        except BrokerError as e:
            send([(question.asker, e)])
        else:
            self._decide_now(question, fresh_id)

    def _decide_now(self, question: _Question, fresh_id: int = NO_PRODUCER_ID) -> None:
        coordinator, asker = self._coordinator, question.asker
        try:
            active = coordinator.shard_of(question.transactional_id)
            decision = question.decide(active.shard, fresh_id, coordinator.host.wall_clock_ms())
            coordinator.carry_out(active, decision)
        except BrokerError as e:
            if not self._waits(question, e):
                send([(asker, e)])
            return
        answer = decision.answer
        assert answer is not None
        if isinstance(answer, BrokerError):
            if not self._waits(question, answer):
                coordinator.when_committed(active, [(asker, answer)])
        else:
            coordinator.when_committed(active, [(asker, question.respond(answer))])

    def _waits(self, question: _Question, error: BrokerError) -> bool:
        """If the previous transaction is not complete, keep the question until it is. Returns whether it was kept."""
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not question.may_wait:
            return False
        question.may_wait = False
        self._coordinator.completions.wait(question.transactional_id, lambda: self._decide_again(question))
        return True

    def _decide_again(self, question: _Question) -> None:
        try:
            self._check_trusted(self._coordinator.host.now())
        except BrokerError as e:
            send([(question.asker, e)])
            return
        rest = self._decide(question)
        if rest is not None:
            self._coordinator.run(rest)

    # -- many transactional ids ---------------------------------------------------------------------------------------

    def add_partitions(self, request: ServerRequest) -> None:
        """Add partitions to transactions, or verify that they were added. If the request has several transactions, none of them
        waits for the completion of a previous one, because the others would wait, too."""
        body = request.body
        assert isinstance(body, AddPartitionsToTxnRequest)
        count = len(body.transactions)
        gathered = Gathered(request, count, lambda parts: AddPartitionsToTxnResponse(parts))  # type: ignore[arg-type]
        for index, asked in enumerate(body.transactions):
            asker = gathered.part(index, partial(_failed_addition, asked.transactional_id))
            partitions, unknown = self._named(asked)
            if unknown:
                asker.reply(_not_attempted(asked, unknown))
            elif asked.verify_only:
                self._verify(asked, partitions, asker)
            else:
                decide = _adding(asked.transactional_id, _asker_of(asked), partitions.values(), asked.transaction_version)
                question = _Question(asker, asked.transactional_id, decide, partial(_added, asked), may_wait=count == 1)
                self._decide_now(question)

    def _named(
        self, asked: AddPartitionsToTxnTransaction
    ) -> tuple[dict[tuple[bytes, int], TopicNamePartition], set[tuple[bytes, int]]]:
        """(topic id, number) -> the partition by the name of its topic; and the keys of partitions that do not exist."""
        image = self._coordinator.host.directory.image
        partitions, unknown = {}, set()
        for key in _keys_of(asked):
            topic = image.topics_by_id.get(key[0])
            if topic is None or key[1] not in topic.partitions:
                unknown.add(key)
            else:
                partitions[key] = (topic.name, key[1])
        return partitions, unknown

    def _verify(
        self, asked: AddPartitionsToTxnTransaction, partitions: dict[tuple[bytes, int], TopicNamePartition], asker: Asker
    ) -> None:
        try:
            active = self._coordinator.shard_of(asked.transactional_id)
            missing = active.shard.missing_partitions(_asker_of(asked), asked.transactional_id, partitions.values())
        except BrokerError as e:
            send([(asker, e)])
            return
        results = [
            TxnPartitionResult(*key, ErrorCode.TRANSACTION_ABORTABLE if name in missing else ErrorCode.NONE)
            for key, name in partitions.items()
        ]
        self._coordinator.when_committed(active, [(asker, AddPartitionsToTxnResult(asked.transactional_id, partitions=results))])

    def describe(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeTransactionsRequest)
        answer_for_each(self._coordinator, request, body.transactional_ids, describe, _undescribed, DescribeTransactionsResponse)

    def list(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ListTransactionsRequest)
        coordinator = self._coordinator
        wanted = Filter(body, coordinator.host.wall_clock_ms())
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if coordinator.is_loading else ErrorCode.NONE
        shards = list(coordinator.loaded_shards())

        def finish(parts: Iterable[Message]) -> Message:
            listed = [part for part in parts if isinstance(part, ListTransactionsResponse)]
            found = [transaction for part in listed for transaction in part.transactions]
            errors = [part.error_code for part in listed if part.error_code]
            return ListTransactionsResponse(errors[0] if errors else code, wanted.unknown_states, found)

        gathered = Gathered(request, len(shards), finish)
        for index, active in enumerate(shards):
            found = ListTransactionsResponse(transactions=wanted.choose(active.shard.transactions.values()))
            asker = gathered.part(index, lambda error: ListTransactionsResponse(error.code))
            coordinator.when_committed(active, [(asker, found)])


class _Answering:
    """A request whose response has fields for an error. A refusal sets them."""

    def __init__(self, request: ServerRequest, on_error: Callable[[BrokerError], Message]) -> None:
        self._request = request
        self._on_error = on_error

    def reply(self, response: Message) -> None:
        self._request.reply(response)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self._request.reply(self._on_error(BrokerError(code, message)))


def _initialized(answer: ProducerIdAndEpoch) -> InitProducerIdResponse:
    return InitProducerIdResponse(0, *answer)


def _ended(answer: ProducerIdAndEpoch) -> EndTxnResponse:
    return EndTxnResponse(0, None, *answer)


def _asker_of(body: AddPartitionsToTxnTransaction | AddOffsetsToTxnRequest | EndTxnRequest) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(body.producer_id, body.producer_epoch)


def _adding(transactional_id: str, asker: ProducerIdAndEpoch, added: Iterable[TopicNamePartition], version: int) -> Decide:
    return lambda shard, _, now_ms: shard.add_partitions(asker, transactional_id, added, version, now_ms)


def _keys_of(asked: AddPartitionsToTxnTransaction) -> Iterable[tuple[bytes, int]]:
    return ((topic.topic_id, number) for topic in asked.topics for number in topic.partitions)


def _added(asked: AddPartitionsToTxnTransaction, _: ProducerIdAndEpoch) -> AddPartitionsToTxnResult:
    results = [TxnPartitionResult(*key) for key in _keys_of(asked)]
    return AddPartitionsToTxnResult(asked.transactional_id, partitions=results)


def _not_attempted(asked: AddPartitionsToTxnTransaction, unknown: set[tuple[bytes, int]]) -> AddPartitionsToTxnResult:
    """The result if partitions are unknown: none is added. A producer that wrote to a partition which was not added would get no
    marker there."""
    results = [
        TxnPartitionResult(*key, ErrorCode.UNKNOWN_TOPIC_ID if key in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED)
        for key in _keys_of(asked)
    ]
    return AddPartitionsToTxnResult(asked.transactional_id, partitions=results)


def _failed_addition(transactional_id: str, error: BrokerError) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(transactional_id, error.code, error.message)


def _undescribed(transactional_id: str, error: BrokerError) -> DescribedTransaction:
    return DescribedTransaction(transactional_id, error.code, error.message)
