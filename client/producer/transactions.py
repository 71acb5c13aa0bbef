"""The shell of a producer's transactions: sends EndTxn and TxnOffsetCommit, and connects the state with the sender.

The decisions are in transaction_state.py. Records are batched and sent as those of any producer. `on_ready` notes that the
transaction has records. `on_failed` notes that a record was not delivered, so the transaction cannot be committed.

EndTxn is sent by a task of its own. If a call is cancelled while it waits for the task, the task goes on, and the next call of
the producer waits for it first (`_claim`). So also after a cancellation it is known whether the transaction has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from strandline.client.cluster.coordinator import ANSWER_TIMEOUT_MS, CoordinatorConnection
from strandline.client.cluster.metadata_updater import MISSING_TOPIC_GRACE_MS
from strandline.client.consumer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, TransactionMember
from strandline.client.errors import (
    ClientClosed,
    CommitFailed,
    RequestTimeout,
    TransactionAbortable,
    copy_of,
    describe,
    request_failed,
)
from strandline.client.producer.flush import flush
from strandline.client.producer.transaction_state import TransactionState, TxnState
from strandline.protocol.apis import END_TXN, TXN_OFFSET_COMMIT
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, UsageError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.groups import OffsetCommitPartition
from strandline.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from strandline.client.cluster.cluster import Cluster
    from strandline.client.options import ProducerOptions
    from strandline.client.producer.accumulator import Accumulator
    from strandline.client.producer.partition_queue import PartitionQueue
    from strandline.client.producer.sender import Sender

logger = get_logger(__name__)

RETRY_S = 0.01
RETRY_MAX_S = 0.5
FLUSH_GRACE_MS = 1_000
"""Milliseconds beyond `delivery_timeout_ms` that a commit waits for its records. By then each record is acknowledged or has
failed."""
CLEAN_UP_MS = 5_000
"""Milliseconds that a block which an exception has ended waits for the abort. After that, the abort goes on in the background."""

_MEMBER_UNKNOWN = frozenset({
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_ID_NOT_FOUND,
})  # fmt: skip
"""Errors of TxnOffsetCommit that mean that the partitions may belong to another member by now (KIP-447)."""

_TOPIC_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors of TxnOffsetCommit that are retried only for MISSING_TOPIC_GRACE_MS: the coordinator may not know a new topic yet. If
the error is still there after that time, the topic was deleted, or has no such partition."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Ending(NamedTuple):
    """A task that sends EndTxn until it is answered."""

    task: asyncio.Task[None]
    commits: bool


P = TypeVar("P")
"""The producer of a block."""


class Transactions:
    """The transactions of one producer that was started."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        accumulator: Accumulator,
        sender: Sender,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change`: called when `state.takes_records` may have changed."""
        assert options.transactional_id is not None, "only a transactional producer has transactions"
        assert sender.identity.coordinator is not None, "the identity has the coordinator of a transactional producer"
        self.state = TransactionState(options.transactional_id, options.transaction_timeout_ms)
        self._options = options
        self._cluster = cluster
        self._accumulator = accumulator
        self._sender = sender
        self._on_change = on_change
        self._coordinator = sender.identity.coordinator
        self._loop = asyncio.get_running_loop()
        self._used: dict[PartitionQueue, None] = {}
        """The queues that have had a batch of the transaction."""
        self._ending: Ending | None = None
        """The task that ends a transaction, until a call has taken its outcome."""
        self._cleaning: asyncio.Task[bool] | None = None
        """The clean-up of the last block that an exception has ended. It may go on after the block."""
        self._offsets_pending = 0
        """The number of calls of `send_offsets` for this transaction that have not returned."""
        self.is_stopped = False
        sender.failures.on_failed = self.on_failed
        accumulator.on_refused = self.on_failed

    # -- records ------------------------------------------------------------------------------------------------------

    def on_ready(self, queue: PartitionQueue) -> None:
        """A queue has a batch of the transaction to send."""
        self.state.on_sent()
        self._used[queue] = None
        self._sender.on_ready(queue)

    def on_failed(self, error: BaseException) -> None:
        """A record was not delivered, so the transaction cannot be committed. Its other records are dropped in the next iteration
        of the event loop, because the sender may be iterating over them now."""
        if not self.state.on_failed(error, self._loop.time()):
            return
        logger.warning("producer.transaction_failed", transactional_id=self.state.transactional_id, reason=_reason(error))
        self._on_change()
        self._loop.call_soon(self._drop_rest, self.state.number)

    def _drop_rest(self, number: int) -> None:
        if self.state.state is TxnState.FATAL_ERROR:
            self._reject()
        elif self.state.state is TxnState.ABORTABLE_ERROR and self.state.number == number:
            self._sender.failures.fail_waiting(f"not written, because {self.state.error}")

    def _reject(self) -> None:
        error = self.state.error
        if self._sender.failures.fatal is None and error is not None:
            self._sender.failures.reject_all(error)

    # -- the program's calls ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin a transaction."""
        if self._cleaning is not None:
            await asyncio.wait([self._cleaning])
        await self._claim(None)  # The state has the outcome.
        self.state.begin(self._loop.time())
        self._offsets_pending = 0
        self._on_change()

    async def commit(self) -> None:
        """Wait for the records, and commit. See `Producer.commit_transaction`."""
        if await self._claim(True):
            return
        if self._offsets_pending:
            raise UsageError("send_offsets_to_transaction has not returned: await it before the commit")
        self.state.begin_commit()
        self._on_change()
        if not self.state.is_end_sent:
            await self._settle_records()
            if self.is_stopped:
                raise ClientClosed("the producer was stopped before the commit was sent; the transaction is aborted")
            self.state.check_committable()
        await self._finish(True)

    async def _settle_records(self) -> None:
        """Wait until every record is acknowledged or has failed."""
        try:
            await flush(self._accumulator, self._options.delivery_timeout_ms + FLUSH_GRACE_MS)
        except BaseException:
            self.state.interrupt_commit()
            self._on_change()
            raise

    async def abort(self) -> None:
        """Drop the records, and abort. See `Producer.abort_transaction`."""
        if await self._claim(False):
            return
        self.state.begin_abort()
        self._on_change()
        self._sender.failures.fail_waiting("the transaction was aborted before the record was acknowledged")
        await self._finish(False)

    # -- EndTxn -------------------------------------------------------------------------------------------------------

    async def _claim(self, commits: bool | None) -> bool:
        """If an earlier call was cancelled while EndTxn was in flight, wait for its outcome. If that EndTxn is the one that this
        call would send (`commits`), returns True, or raises its error."""
        while (ending := self._ending) is not None:
            await self._until_ended(ending)
            if ending.commits is commits:
                self._raise_outcome(ending)
                return True
        return False

    async def _until_ended(self, ending: Ending) -> None:
        await asyncio.wait([ending.task])
        if self._ending is ending:  # Another waiting call may have begun to end the next transaction.
            self._ending = None

    def _raise_outcome(self, ending: Ending) -> None:
        """Raise the error of the task, if it has one."""
        if ending.task.cancelled():
            raise self.state.outcome_unknown(ClientClosed("the producer was stopped before the coordinator has answered"), 0)
        ending.task.result()

    async def _finish(self, commits: bool) -> None:
        if not self.state.needs_end:
            self._end(None)
            return
        deadline = self._loop.time() + self._options.max_block_ms / 1000
        self._ending = ending = Ending(self._loop.create_task(self._end_txn(commits, deadline)), commits)
        ending.task.add_done_callback(_look_at)
        await self._until_ended(ending)
        self._raise_outcome(ending)

    async def _end_txn(self, commits: bool, deadline: float) -> None:
        """Send EndTxn until it is answered; TransactionOutcomeUnknown at the deadline (on the loop's clock)."""
        state, started, pause_s = self.state, self._loop.time(), RETRY_S
        while True:
            state.on_end_sent()
            answer, error = await self._send_end(commits, deadline)
            if answer is not None:
                self._end(answer)
                return
            assert error is not None, "there is an answer or an error"
            code = getattr(error, "code", None) or ErrorCode.NETWORK_EXCEPTION
            if not error.retriable and not state.on_end_refused(code, str(error), self._loop.time()):
                self._on_change()
                self._drop_rest(state.number)
                assert state.error is not None, "the state says why"
                raise copy_of(state.error)
            if self._cluster.closed or self._loop.time() + pause_s >= deadline:
                raise state.outcome_unknown(error, (self._loop.time() - started) * 1000)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _send_end(self, commits: bool, deadline: float) -> tuple[EndTxnResponse | None, StrandlineError | None]:
        """Send EndTxn once. Returns the answer, or the error."""
        identity = self._sender.identity
        request = EndTxnRequest(self.state.transactional_id, identity.producer_id, identity.producer_epoch, commits)
        try:
            answer = await self._coordinator.ask(END_TXN, request, self._timeout_ms(deadline))
        except StrandlineError as e:
            return None, e
        assert isinstance(answer, EndTxnResponse)
        if not answer.error_code:
            return answer, None
        code = to_code(answer.error_code)
        self._coordinator.on_error(code)
        return None, request_failed(
            describe(code, answer.error_message), api="EndTxn", broker_id=self._coordinator.node_id, code=code
        )

    def _end(self, answer: EndTxnResponse | None) -> None:
        """The transaction has ended. `answer`: None if nothing of it was sent, so that the coordinator does not know it."""
        if answer is not None and answer.producer_id >= 0:
            self._sender.identity.renew(answer.producer_id, answer.producer_epoch)
        used, self._used = self._used, {}
        for queue in used:
            queue.end_transaction()
        self.state.on_ended()
        self._on_change()

    def _timeout_ms(self, deadline: float) -> float:
        left_ms = (deadline - self._loop.time()) * 1000
        return max(1.0, min(left_ms, ANSWER_TIMEOUT_MS, self._options.request_timeout_ms))

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def send_offsets(self, offsets: Offsets, member: Callable[[], TransactionMember]) -> None:
        """Add these offsets to the transaction. `member` returns the membership; it is called before each attempt.

        TransactionAbortable if the offsets are not part of it, or if that is not known."""
        self.state.check_takes_records()
        if not offsets:
            return
        number = self.state.number
        self._offsets_pending += 1
        try:
            await self._commit_offsets(offsets, member, self._loop.time() + self._options.max_block_ms / 1000)
        except UsageError:
            raise
        except BaseException as e:
            if self.state.number == number:
                self.on_failed(e)
                if isinstance(e, StrandlineError):
                    self.state.check_takes_records(number)
            raise
        finally:
            if self.state.number == number:
                self._offsets_pending -= 1

    async def _commit_offsets(self, offsets: Offsets, member: Callable[[], TransactionMember], deadline: float) -> None:
        started, pause_s = self._loop.time(), RETRY_S
        group_id = member().group.group_id
        self.state.on_sent()
        coordinator = CoordinatorConnection(self._cluster, group_id, self._cluster.connections.state_at)
        left, number = dict(offsets), self.state.number
        while True:
            self._check_takes_offsets(number)
            error = await self._send_offsets(coordinator, left, member(), deadline)
            if error is None:
                return
            if getattr(error, "code", None) in _TOPIC_UNKNOWN and self._loop.time() - started >= MISSING_TOPIC_GRACE_MS / 1000:
                raise error
            if self._loop.time() + pause_s >= deadline:
                elapsed_ms = (self._loop.time() - started) * 1000
                text = f"offsets of group {group_id!r} may not be part of the transaction: {error}"
                raise RequestTimeout(text, api="TxnOffsetCommit", elapsed_ms=elapsed_ms) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _check_takes_offsets(self, number: int) -> None:
        """Check that the call's transaction is still open: the next request gets the producer's present epoch, which may be that
        of a later transaction."""
        if self.is_stopped:
            raise ClientClosed("the producer was stopped; the offsets are not committed")
        self.state.check_takes_records(number)

    async def _send_offsets(
        self,
        coordinator: CoordinatorConnection,
        left: dict[TopicPartition, OffsetAndMetadata],
        member: TransactionMember,
        deadline: float,
    ) -> StrandlineError | None:
        """Send TxnOffsetCommit once, and remove the stored offsets from `left`. Returns the last error after which another
        attempt may succeed; raises any other error."""
        request, keys = await self._offsets_request(left, member, deadline)
        try:
            answer = await coordinator.ask(TXN_OFFSET_COMMIT, request, self._timeout_ms(deadline))
        except StrandlineError as e:
            if not e.retriable:
                raise
            return e
        assert isinstance(answer, TxnOffsetCommitResponse)
        codes = {(p.topic_id, p.partition): to_code(p.error_code) for p in answer.partitions}
        last: StrandlineError | None = None
        for tp, key in keys.items():
            code = codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
            coordinator.on_error(code)
            if code == ErrorCode.NONE:
                del left[tp]
                continue
            error = _offset_error(tp, code, member.group)
            may_repeat = member.is_live if code == ErrorCode.STALE_MEMBER_EPOCH else ERRORS[code].retriable
            if not may_repeat:
                raise error
            last = error
        return last

    async def _offsets_request(
        self, offsets: Offsets, member: TransactionMember, deadline: float
    ) -> tuple[TxnOffsetCommitRequest, dict[TopicPartition, tuple[bytes, int]]]:
        identity, group, partitions, keys = self._sender.identity, member.group, [], {}
        for tp, offset in offsets.items():
            topic_id = member.topic_ids.get(tp) or await self._topic_id(tp.topic, deadline)
            keys[tp] = (topic_id, tp.partition)
            partitions.append(OffsetCommitPartition(*keys[tp], offset.offset, offset.leader_epoch, offset.metadata))
        request = TxnOffsetCommitRequest(
            self.state.transactional_id,
            group.group_id,
            identity.producer_id,
            identity.producer_epoch,
            partitions,
            group.generation_id,
            group.member_id,
            group.group_instance_id,
        )
        return request, keys

    async def _topic_id(self, topic: str, deadline: float) -> bytes:
        left_ms = max(1.0, (deadline - self._loop.time()) * 1000)
        return (await self._cluster.metadata.topic(topic, left_ms)).topic_id

    # -- the end ------------------------------------------------------------------------------------------------------

    async def clean_up(self, error: BaseException | None, timeout_ms: float = CLEAN_UP_MS) -> None:
        """Abort the open transaction, because `error` has ended the block, or the producer is stopped. Errors are not raised: if
        the outcome is not known within `timeout_ms`, `error` gets a note, and `producer.transaction_left_open` is logged."""
        if self._ending is None and not self._may_abort:
            return
        self._cleaning = task = self._loop.create_task(self._end_open())
        task.add_done_callback(_look_at)
        try:
            await asyncio.wait([task], timeout=timeout_ms / 1000)
        except BaseException as e:  # The call was cancelled once more, so the program gets that exception.
            self._report(task, e)
            raise
        self._report(task, error)

    @property
    def _may_abort(self) -> bool:
        return self.state.state in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR, TxnState.ABORTING)

    async def _end_open(self) -> bool:
        """Wait until an EndTxn in flight is answered, and abort the transaction if it is still open. Returns whether a commit has
        succeeded."""
        ending = self._ending
        if ending is not None:
            await self._until_ended(ending)
            if not ending.task.cancelled() and ending.task.exception() is None:
                return ending.commits
        if self._may_abort:
            await self.abort()
        elif ending is not None:
            self._raise_outcome(ending)
        return False

    def _report(self, task: asyncio.Task[bool], error: BaseException | None) -> None:
        """Add the outcome of the transaction to `error` as a note, unless it is an abort."""
        reason: object = None
        if not task.done():
            reason = "the coordinator has not answered yet"
        elif not task.cancelled():
            reason = task.exception()
        if self.state.state is TxnState.FATAL_ERROR:
            text = f"the producer could not go on: {self.state.error}"
        elif reason is not None:
            text = f"it is not known whether the transaction is aborted: {reason}"
            logger.warning("producer.transaction_left_open", transactional_id=self.state.transactional_id, reason=str(reason))
        elif task.done() and not task.cancelled() and task.result():
            text = "the transaction was committed"
        else:
            return
        self._note(error, text)

    def _note(self, error: BaseException | None, text: str) -> None:
        if error is not None:
            error.add_note(f"When this ended the transaction of {self.state.transactional_id!r}, {text}.")

    async def abandon(self, number: int, error: BaseException) -> None:
        """Abort the transaction, and add the outcome to `error` as a note. Called if a caller on another thread was interrupted
        while it waited for the begin or the end of this transaction, and its call was cancelled."""
        if self.state.number != number:
            return
        if self._cleaning is not None:
            await asyncio.wait([self._cleaning], timeout=CLEAN_UP_MS / 1000)
        if self._ending is not None or self._may_abort:
            await self.clean_up(error)
        elif self.state.state is TxnState.READY and self.state.was_committed:
            self._note(error, "the transaction was committed")

    async def stop(self, error: BaseException | None, timeout_ms: float) -> None:
        """The producer stops: abort an open transaction, and log `producer.stopped_in_transaction`."""
        self.is_stopped = True
        if self.state.is_open or self._ending is not None:
            reason = f"the producer was stopped ({self.state.state.value})"
            logger.warning("producer.stopped_in_transaction", transactional_id=self.state.transactional_id, reason=reason)
            self.state.interrupt_commit()  # Its records are dropped now, so a commit that waits for them must not go on.
            await self.clean_up(error, min(timeout_ms, CLEAN_UP_MS))

    def metrics(self) -> dict[str, float]:
        """The numbers of transactions that were committed and aborted."""
        return {"transactions_committed": self.state.committed, "transactions_aborted": self.state.aborted}

    async def close(self) -> None:
        """Cancel an EndTxn that was not answered."""
        if self._ending is not None and not self._ending.task.done():
            self._ending.task.cancel()
            await asyncio.wait([self._ending.task])


def _offset_error(tp: TopicPartition, code: ErrorCode, member: ConsumerGroupMetadata) -> StrandlineError:
    if code in _MEMBER_UNKNOWN:
        text = f"the coordinator of group {member.group_id!r} does not count this consumer as a member"
        return CommitFailed(text, topic=tp.topic, partition=tp.partition, code=code)
    return request_failed(describe(code), topic=tp.topic, partition=tp.partition, api="TxnOffsetCommit", code=code)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the task's error, so that asyncio does not log it as never retrieved if no call waits for the task."""
    if not task.cancelled():
        task.exception()


class TransactionBlock(Generic[P]):
    """The result of `Producer.transaction`: `async with` begins a transaction, and commits or aborts it."""

    def __init__(self, producer: P, transactions: Transactions) -> None:
        self._producer = producer
        self._transactions = transactions
        self._number = 0

    async def __aenter__(self) -> P:
        await self._transactions.begin()
        self._number = self._transactions.state.number
        return self._producer

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        transactions = self._transactions
        if transactions.state.number != self._number:
            return  # The code in the block has ended the transaction, and begun another one.
        if error is not None:
            await self._clean_up(error)
        elif transactions.is_stopped:
            raise ClientClosed("the producer was stopped within the transaction, which was aborted")
        elif transactions.state.state is not TxnState.READY:
            await self._commit()

    async def abandon(self, error: BaseException) -> None:
        """See `Transactions.abandon`."""
        await self._transactions.abandon(self._number, error)

    async def _commit(self) -> None:
        try:
            await self._transactions.commit()
        except BaseException as e:
            await self._clean_up(e)
            raise

    async def _clean_up(self, error: BaseException) -> None:
        """Abort. If the abort shows that the producer cannot go on, raise that error instead of TransactionAbortable, after which
        the program would run the block again."""
        await self._transactions.clean_up(error)
        fatal = self._transactions.state.error
        if isinstance(error, TransactionAbortable) and self._transactions.state.state is TxnState.FATAL_ERROR:
            assert fatal is not None, "it is set with the state"
            raise copy_of(fatal) from error
