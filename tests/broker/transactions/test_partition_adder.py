"""Requests to transaction coordinators to add partitions: what one request has, and which errors the callers get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from strandline.broker.transactions.partition_adder import PartitionAdder
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.protocol.apis import ADD_PARTITIONS_TO_TXN
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
    TxnPartitionResult,
)

STATE_TOPIC = b"transactionstate"
ORDERS = b"topic-id-number1"
Answer = Callable[[AddPartitionsToTxnTransaction], AddPartitionsToTxnResult]


def one_coordinator(leader: int = 3) -> MetadataImage:
    records = [TopicRecord("__transaction_state", STATE_TOPIC), PartitionRecord(STATE_TOPIC, 0, (3,), (3,), leader, 1, 1)]
    return MetadataImage.EMPTY.apply(records, 2, 1).image


def transaction(transactional_id: str, *partitions: int, **fields: object) -> AddPartitionsToTxnTransaction:
    topics = [GroupTopicPartitions(ORDERS, list(partitions or (0,)))]
    return AddPartitionsToTxnTransaction(transactional_id, 7, 2, topics, **fields)  # type: ignore[arg-type]


def answer(asked: AddPartitionsToTxnTransaction, code: ErrorCode = ErrorCode.NONE) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(asked.transactional_id, code, None, [])


class Coordinator:
    """Stands in for the channels, and for the coordinator behind them."""

    def __init__(self, answer_to: Answer = answer) -> None:
        self.answer_to = answer_to
        self.error: BrokerError | None = None
        self.asked: list[tuple[int, list[str]]] = []

    async def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: int) -> Message:
        assert isinstance(body, AddPartitionsToTxnRequest)
        assert api_key == ADD_PARTITIONS_TO_TXN
        self.asked.append((broker_id, [asked.transactional_id for asked in body.transactions]))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return AddPartitionsToTxnResponse([self.answer_to(asked) for asked in body.transactions])


async def add(adder: PartitionAdder, *transactions: AddPartitionsToTxnTransaction) -> list[ErrorCode]:
    """Add these at the same time; returns the error of each."""
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[BrokerError | None]] = []
    for each in transactions:
        answers.append(loop.create_future())
        adder.add(each, answers[-1].set_result)
    return [ErrorCode.NONE if error is None else error.code for error in await asyncio.gather(*answers)]


async def test_what_comes_at_the_same_time_goes_into_one_request() -> None:
    """A leader with a thousand transactions per second must not send a thousand requests."""
    coordinator = Coordinator()
    adder = PartitionAdder(coordinator, one_coordinator)
    assert await add(adder, transaction("a"), transaction("b"), transaction("c")) == [ErrorCode.NONE] * 3
    assert coordinator.asked == [(3, ["a", "b", "c"])]


async def test_a_request_has_a_transactional_id_once() -> None:
    """The response has only the id, so two entries of one id could not be distinguished. Produce and TxnOffsetCommit may ask at
    the same time."""
    coordinator = Coordinator()
    adder = PartitionAdder(coordinator, one_coordinator)
    assert await add(adder, transaction("a", 0), transaction("b"), transaction("a", 1)) == [ErrorCode.NONE] * 3
    assert coordinator.asked == [(3, ["a", "b"]), (3, ["a"])]


@pytest.mark.parametrize("image", [lambda: one_coordinator(-1), lambda: MetadataImage.EMPTY])
async def test_without_a_coordinator_the_error_is_retriable(image: Callable[[], MetadataImage]) -> None:
    """The coordinator is elsewhere within a second, and until then the producer repeats its request."""
    coordinator = Coordinator()
    assert await add(PartitionAdder(coordinator, image), transaction("a")) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert not coordinator.asked
    assert BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE).retriable


async def test_a_coordinator_that_does_not_answer_is_not_available() -> None:
    """The producer's own connection works, so it must not get the error of the broker's connection."""
    coordinator = Coordinator()
    coordinator.error = BrokerError(ErrorCode.NETWORK_EXCEPTION, "lost")
    adder = PartitionAdder(coordinator, one_coordinator)
    assert await add(adder, transaction("a"), transaction("b")) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


async def test_concurrent_transactions_is_asked_again_for_a_moment() -> None:
    """A producer of version 2 usually continues while its last transaction is still being completed."""
    refusals = 2

    def answer_to(asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        nonlocal refusals
        refusals -= 1
        return answer(asked, ErrorCode.CONCURRENT_TRANSACTIONS if refusals >= 0 else ErrorCode.NONE)

    coordinator = Coordinator(answer_to)
    assert await add(PartitionAdder(coordinator, one_coordinator), transaction("a")) == [ErrorCode.NONE]
    assert len(coordinator.asked) == 3


@pytest.mark.parametrize(("fields", "is_repeated"), [({}, True), ({"verify_only": True, "transaction_version": 1}, False)])
async def test_concurrent_transactions_reaches_the_producer_in_the_end(fields: dict[str, object], is_repeated: bool) -> None:
    """The producer's connection is on hold meanwhile. In version 1 the producer must have added the partition before, so a second
    question would change nothing."""
    coordinator = Coordinator(lambda asked: answer(asked, ErrorCode.CONCURRENT_TRANSACTIONS))
    adder = PartitionAdder(coordinator, one_coordinator)
    assert await add(adder, transaction("a", **fields)) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert (len(coordinator.asked) > 1) == is_repeated


async def test_a_fenced_producer_gets_the_code_that_producers_know_from_leaders() -> None:
    """PRODUCER_FENCED from a leader would end the client. With INVALID_PRODUCER_EPOCH it aborts and continues."""
    coordinator = Coordinator(lambda asked: answer(asked, ErrorCode.PRODUCER_FENCED))
    assert await add(PartitionAdder(coordinator, one_coordinator), transaction("a")) == [ErrorCode.INVALID_PRODUCER_EPOCH]


async def test_the_error_is_that_of_the_partition_which_is_the_reason() -> None:
    """The other partitions have OPERATION_NOT_ATTEMPTED, which gives no reason."""

    def answer_to(asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        codes = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_ID]
        return AddPartitionsToTxnResult("a", 0, None, [TxnPartitionResult(ORDERS, i, code) for i, code in enumerate(codes)])

    adder = PartitionAdder(Coordinator(answer_to), one_coordinator)
    assert await add(adder, transaction("a", 0, 1)) == [ErrorCode.UNKNOWN_TOPIC_ID]
