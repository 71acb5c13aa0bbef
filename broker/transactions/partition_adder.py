"""Asks the transaction coordinator to add partitions to transactions, for the brokers that write to these partitions (KIP-890).

The questions of one iteration of the event loop to the same coordinator share one request. A request does not wait for the
previous one: the coordinator answers when its records are committed, which may take long.

In version 2 of the protocol, a producer begins its next transaction while the coordinator still completes the previous one.
During the completion, which takes some milliseconds, the coordinator answers CONCURRENT_TRANSACTIONS. So the broker repeats the
question for `RETRY_S` before it passes this error to the producer, which would pause for longer and send the records again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from strandline.broker.coordination.partitioning import partition_of
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol.apis import ADD_PARTITIONS_TO_TXN
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)

REQUEST_TIMEOUT_MS = 10_000
RETRY_S = 0.1
"""The time for which a question that is answered with CONCURRENT_TRANSACTIONS is repeated."""
RETRY_BACKOFF_S = 0.002
"""The first pause. Each one is twice as long as the one before, up to the longest."""
RETRY_BACKOFF_MAX_S = 0.016

Done = Callable[[BrokerError | None], None]


class Channels(Protocol):
    """`BrokerChannels`, as far as it is needed here."""

    def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: int) -> Awaitable[Message]: ...


class Addition(NamedTuple):
    """One transaction whose partitions are to be added, and the callback for the result."""

    transaction: AddPartitionsToTxnTransaction
    done: Done
    retry_until: float
    backoff_s: float = RETRY_BACKOFF_S


class PartitionAdder:
    """Sends the AddPartitionsToTxn requests of one broker to the transaction coordinators."""

    def __init__(self, channels: Channels, image: Callable[[], MetadataImage]) -> None:
        self._channels = channels
        self._image = image
        self._waiting: dict[int, dict[str, Addition]] = {}
        """Broker id of the coordinator -> transactional id -> its part of the next request."""
        self._asking: dict[asyncio.Task[None], None] = {}
        """The requests in flight."""

    def add(self, transaction: AddPartitionsToTxnTransaction, done: Done) -> None:
        """Have the coordinator add the partitions, or verify that it has them. `done` is called once, in a later iteration of the
        loop: with None if all are in the transaction, else with the error of one of them.

        COORDINATOR_NOT_AVAILABLE also means that the coordinator did not answer: it may have added the partitions. A fenced
        producer gets INVALID_PRODUCER_EPOCH, as everywhere outside of the coordinator."""
        may_retry = transaction.transaction_version >= 2 and not transaction.verify_only
        now = asyncio.get_running_loop().time()
        self._queue(Addition(transaction, done, now + RETRY_S if may_retry else now))

    def _queue(self, addition: Addition) -> None:
        transactional_id = addition.transaction.transactional_id
        coordinator = self._coordinator_of(transactional_id)
        if coordinator < 0:
            text = f"the transactional id {transactional_id!r} has no coordinator at present"
            self._call_back(addition, BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text))
            return
        if transactional_id in self._waiting.get(coordinator, ()):
            self._send(coordinator)  # A request names each transactional id once.
        if coordinator not in self._waiting:
            self._waiting[coordinator] = {}
            asyncio.get_running_loop().call_soon(self._send, coordinator)
        self._waiting[coordinator][transactional_id] = addition

    def _coordinator_of(self, transactional_id: str) -> int:
        """The id of the broker that leads the partition of this transactional id; -1 if there is none."""
        topic = self._image().topic(TRANSACTION_STATE_TOPIC)
        return -1 if topic is None else topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader

    def _send(self, coordinator: int) -> None:
        additions = self._waiting.pop(coordinator, None)
        if additions:
            task = asyncio.get_running_loop().create_task(self._ask(coordinator, additions), name="add-partitions-to-txn")
            self._asking[task] = None
            task.add_done_callback(self._asking.pop)

    async def _ask(self, coordinator: int, additions: dict[str, Addition]) -> None:
        request = AddPartitionsToTxnRequest([addition.transaction for addition in additions.values()])
        try:
            response = await self._channels.request(coordinator, ADD_PARTITIONS_TO_TXN, request, REQUEST_TIMEOUT_MS)
        except BrokerError as e:
            for addition in additions.values():
                self._call_back(addition, BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no answer of a coordinator: {e}"))
            return
        assert isinstance(response, AddPartitionsToTxnResponse)
        results = {result.transactional_id: result for result in response.results}
        for transactional_id, addition in additions.items():
            self._on_result(addition, _error_of(results.get(transactional_id)))

    def _on_result(self, addition: Addition, error: BrokerError | None) -> None:
        loop, pause_s = asyncio.get_running_loop(), addition.backoff_s
        is_over = error is None or error.code != ErrorCode.CONCURRENT_TRANSACTIONS
        if is_over or loop.time() + pause_s > addition.retry_until:
            self._call_back(addition, error)
        else:
            again = addition._replace(backoff_s=min(2 * pause_s, RETRY_BACKOFF_MAX_S))
            loop.call_later(pause_s, self._queue, again)

    @staticmethod
    def _call_back(addition: Addition, error: BrokerError | None) -> None:
        """Call back in a later iteration of the event loop, so that an exception of one callback does not affect the others."""
        asyncio.get_running_loop().call_soon(addition.done, error)


def _error_of(result: AddPartitionsToTxnResult | None) -> BrokerError | None:
    """The error of the whole transaction, or else of the partition because of which none was added; None if there is no error."""
    if result is None:
        return BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's response does not contain the transaction")
    code, message = result.error_code, result.error_message
    if not code:
        codes = [partition.error_code for partition in result.partitions if partition.error_code]
        code = next((each for each in codes if each != ErrorCode.OPERATION_NOT_ATTEMPTED), codes[0] if codes else 0)
    if code == ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return BrokerError(code, message) if code else None
