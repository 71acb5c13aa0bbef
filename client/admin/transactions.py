"""The admin client's calls about transactions: list and describe them, and find and end those that hang (KIP-664).

**A transaction hangs** in a partition if it has records there and its coordinator will never write a marker, because the
coordinator does not know the producer, or does not count the partition to an ongoing transaction. Readers of committed records
then wait for ever. The leader of a partition knows which transactions are open there, and the coordinator knows which ones it
will still end. The calls here compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from strandline.client.admin.coordinator_fan_out import Asked, CoordinatorFanOut
from strandline.client.admin.every_broker import ask_every_broker
from strandline.client.admin.partitions import PartitionCalls
from strandline.client.admin.requests import error_in
from strandline.client.admin.transaction_types import (
    HangingTransaction,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
    TransactionSummary,
)
from strandline.client.arguments import check_encodes, checked_list, checked_partitions, checked_whole
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import RequestFailed, UnknownTopic, UsageError, no_such_partition
from strandline.client.options import TRANSACTIONAL_ID_LENGTH_MAX
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, StrandlineError
from strandline.protocol.messages import transactions as messages
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse
from strandline.protocol.messages.groups import KEY_TYPE_TRANSACTION, GroupTopicPartitions

_IN_PROGRESS = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
PRODUCER_ID_MAX = 2**63 - 1
FENCE_TIMEOUT_MS = 1
"""The transaction timeout (ms) in the request that fences a producer. The id keeps this timeout until a producer takes the id
over."""
MARKER_TIMEOUT_MS = 15_000
"""Longer than a leader waits for the replicas of a marker. A leader that has not answered by then hangs, and another broker may
lead."""


class TransactionCalls(PartitionCalls):
    """Lists, describes and ends transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
        timeout_ms: float = 30_000,
    ) -> TransactionListing:
        """The transactional ids of the cluster, sorted; only those in these states ("Ongoing", ...), of these producer ids, whose
        transaction has run for longer than `longer_than_ms`, and that match the regular expression `pattern` as a whole. `errors`
        of the result has the brokers that have not answered within `timeout_ms`, with their errors. UsageError for a state that
        does not exist, or a regular expression that is not one (RE2)."""
        ids = [checked_whole("a producer id", each, most=PRODUCER_ID_MAX) for each in checked_list("producer_ids", producer_ids)]
        request = messages.ListTransactionsRequest(checked_list("states", states), ids, longer_than_ms, pattern or None)
        found, errors = await ask_every_broker(self._running(), partial(self._list_transactions_of, request), timeout_ms)
        return TransactionListing(sorted(found, key=lambda each: each.transactional_id), errors)

    async def _list_transactions_of(
        self, request: messages.ListTransactionsRequest, broker_id: int, timeout_ms: float
    ) -> tuple[list[TransactionSummary], StrandlineError | None]:
        timeout_ms = min(timeout_ms, self.options.request_timeout_ms)
        try:
            response = await self._running().connections.request(broker_id, apis.LIST_TRANSACTIONS, request, timeout_ms)
        except RequestFailed as e:
            if e.code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise UsageError(str(e)) from None
            raise
        assert isinstance(response, messages.ListTransactionsResponse)
        if response.unknown_states:
            raise UsageError(
                f"no transaction has the state {response.unknown_states[0]!r}; states are Ongoing, CompleteCommit, ..."
            )
        found = [
            TransactionSummary(each.transactional_id, each.producer_id, each.transaction_state, broker_id)
            for each in response.transactions
        ]
        return found, error_in(response.error_code, None, "ListTransactions")

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: float = 30_000
    ) -> dict[str, TransactionDescription]:
        """The state and producer of each transactional id, and the partitions of its transaction. An id that does not exist, or
        whose coordinator has not answered within `timeout_ms`, has an `error`."""
        ids = _checked_ids(transactional_ids)
        deadline = self._deadline(timeout_ms)
        fan_out = CoordinatorFanOut(self._running(), self._describe_ids, deadline, KEY_TYPE_TRANSACTION)
        return {
            key: TransactionDescription(key, error=answer) if isinstance(answer, StrandlineError) else answer
            for key, answer in (await fan_out.run(ids)).items()
        }

    async def _describe_ids(self, asked: Asked, ids: list[str]) -> dict[str, TransactionDescription | StrandlineError]:
        response = await asked.request(apis.DESCRIBE_TRANSACTIONS, messages.DescribeTransactionsRequest(ids))
        assert isinstance(response, messages.DescribeTransactionsResponse)
        return {
            each.transactional_id: error_in(each.error_code, each.error_message, "DescribeTransactions")
            or _description(each, asked.node_id)
            for each in response.transactions
        }

    # -- hanging transactions -----------------------------------------------------------------------------------------

    async def open_transactions(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout_ms: float = 30_000
    ) -> list[OpenTransaction]:
        """The transactions that have records in these partitions and no marker yet, as the leaders know them, ordered by
        partition and start offset. UnknownTopic; RequestTimeout."""
        found = await self.describe_producers(partitions, timeout_ms=timeout_ms)
        return [
            OpenTransaction(
                tp,
                known.producer_id,
                known.producer_epoch,
                known.transaction_start_offset,
                known.last_timestamp_ms,
                known.coordinator_epoch,
            )
            for tp in sorted(found)
            for known in sorted(found[tp].producers, key=lambda each: each.transaction_start_offset or 0)
            if known.transaction_start_offset is not None
        ]

    async def find_hanging_transactions(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]],
        *,
        older_than_ms: int = 900_000,
        now_ms: int,
        timeout_ms: float = 30_000,
    ) -> list[HangingTransaction]:
        """The transactions that are open in these partitions, whose last record is older than `older_than_ms` at `now_ms` (in ms
        since 1970), and that no coordinator will end. A coordinator aborts a transaction after its timeout, so a transaction
        younger than `transaction.max.timeout.ms` (15 minutes) need not be checked.

        RequestTimeout if a leader or a broker has not answered within `timeout_ms`: without its answer it is not known which
        transactions hang."""
        deadline = self._deadline(timeout_ms)
        opened = await self.open_transactions(checked_partitions(partitions), timeout_ms=timeout_ms)
        old = [each for each in opened if now_ms - each.last_timestamp_ms >= older_than_ms]
        if not old:
            return []
        producer_ids = sorted({each.producer_id for each in old})
        listing = await self.list_transactions(producer_ids=producer_ids, timeout_ms=self._left_ms(deadline))
        if listing.errors:
            raise next(iter(listing.errors.values()))
        ids = {each.producer_id: each.transactional_id for each in listing.transactions}
        known = await self.describe_transactions(ids.values(), timeout_ms=self._left_ms(deadline))
        return _hanging(old, ids, known)

    async def abort_transaction(self, opened: OpenTransaction, *, timeout_ms: float = 30_000) -> None:
        """End a hanging transaction in one partition: write a marker that aborts it. Use it only for one that
        `find_hanging_transactions` has found; the rest of a live transaction could still be committed. RequestFailed if the
        leader rejects the marker, for example because the transaction has ended; UnknownTopic; RequestTimeout."""
        deadline, tp = self._deadline(timeout_ms), opened.partition
        (topic,) = await self._describe([tp.topic], deadline)
        if tp.partition >= len(topic.partitions):
            raise UnknownTopic(no_such_partition(len(topic.partitions)), topic=tp.topic, partition=tp.partition)
        of_topic = GroupTopicPartitions(topic.topic_id, [tp.partition])
        coordinator_epoch = max(opened.coordinator_epoch, 0)
        marker = messages.WritableTxnMarker(opened.producer_id, opened.producer_epoch, False, [of_topic], coordinator_epoch)

        def check(response: messages.WriteTxnMarkersResponse, is_retry: bool) -> None:
            result = response.markers[0].partitions[0]
            error = error_in(result.error_code, None, "WriteTxnMarkers")
            if error is not None:
                raise error

        request, send = messages.WriteTxnMarkersRequest([marker]), partial(self._send_marker, tp, deadline)
        await self._ask(apis.WRITE_TXN_MARKERS, request, messages.WriteTxnMarkersResponse, check, deadline, send=send)

    async def _send_marker(self, tp: TopicPartition, deadline: float, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Send a marker to the present leader of a partition, or to any broker if the partition has no leader."""
        (topic,) = await self._describe([tp.topic], deadline)
        leader_id = next((p.leader_id for p in topic.partitions if p.partition == tp.partition), -1)
        send = self._route(api_key, leader_id if leader_id >= 0 else None)
        return await send(api_key, body, min(timeout_ms, MARKER_TIMEOUT_MS, self._left_ms(deadline)))

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_ms: float = 30_000
    ) -> dict[str, StrandlineError | None]:
        """Take these transactional ids away from the producers that have them, and abort their transactions. Returns the error of
        each id, or None if it succeeded. The next request of such a producer gets ProducerFenced."""
        ids = _checked_ids(transactional_ids)
        deadline = self._deadline(timeout_ms)
        fan_out = CoordinatorFanOut(self._running(), self._fence, deadline, KEY_TYPE_TRANSACTION)
        answers = await fan_out.run(ids)
        return {key: answer if isinstance(answer, StrandlineError) else None for key, answer in answers.items()}

    async def _fence(self, asked: Asked, ids: list[str]) -> dict[str, bool | StrandlineError]:
        answers: dict[str, bool | StrandlineError] = {}
        for each in ids:
            response = await asked.request(apis.INIT_PRODUCER_ID, InitProducerIdRequest(each, FENCE_TIMEOUT_MS))
            assert isinstance(response, InitProducerIdResponse)
            answers[each] = error_in(response.error_code, response.error_message, "InitProducerId") or True
        return answers

    def _left_ms(self, deadline: float) -> float:
        return max(1.0, (deadline - self._loop_time()) * 1000)


def _checked_ids(transactional_ids: Iterable[str]) -> list[str]:
    """The transactional ids, each once. UsageError for an id that is empty or too long."""
    ids = list(dict.fromkeys(checked_list("transactional_ids", transactional_ids)))
    for each in ids:
        check_encodes("transactional_id", each)
        if not 0 < len(each) <= TRANSACTIONAL_ID_LENGTH_MAX:
            raise UsageError(f"a transactional_id has 1 to {TRANSACTIONAL_ID_LENGTH_MAX} characters, and not {len(each)}")
    return ids


def _hanging(
    opened: Sequence[OpenTransaction], ids: dict[int, str], known: dict[str, TransactionDescription]
) -> list[HangingTransaction]:
    """The transactions of `opened` that no coordinator will end, with the reason."""
    found = []
    for each in opened:
        transactional_id = ids.get(each.producer_id)
        reason = _why_it_hangs(each, None if transactional_id is None else known[transactional_id])
        if reason is not None:
            found.append(HangingTransaction(each, transactional_id, reason))
    return found


def _why_it_hangs(opened: OpenTransaction, known: TransactionDescription | None) -> str | None:
    """The reason why a transaction hangs. None if its coordinator will end it, or that is not certain. Raises the error of a
    coordinator that did not answer."""
    if known is None:
        return "no coordinator knows the producer"
    if known.error is not None:
        if isinstance(known.error, RequestFailed) and known.error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return "its coordinator has forgotten the transactional id"
        raise known.error
    if known.producer_epoch < opened.producer_epoch:
        return None  # the description is older than the transaction
    if known.state not in _IN_PROGRESS:
        return f"its coordinator has no ongoing transaction ({known.state})"
    if opened.partition not in known.partitions:
        return "its coordinator does not count the partition to the transaction"
    return None


def _description(each: messages.DescribedTransaction, coordinator: int) -> TransactionDescription:
    return TransactionDescription(
        each.transactional_id,
        state=each.transaction_state,
        producer_id=each.producer_id,
        producer_epoch=each.producer_epoch,
        timeout_ms=each.transaction_timeout_ms,
        started_at_ms=None if each.transaction_start_time_ms < 0 else each.transaction_start_time_ms,
        updated_at_ms=None if each.transaction_last_update_time_ms < 0 else each.transaction_last_update_time_ms,
        partitions=sorted(TopicPartition(of.topic, number) for of in each.topics for number in of.partitions),
        coordinator=coordinator,
    )
