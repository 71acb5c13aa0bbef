"""The transactional ids of one partition of `__transaction_state`: a state machine without a clock, a log or a network.

Every method that decides a request returns a `Decision`, or raises the `BrokerError` that the client gets. Only `replay`, which
applies one record, changes the state. So a decision whose append failed has changed nothing.

**A decision takes effect when its record is committed.** Only then are the reply and the markers sent. A request that arrives in
between is decided by the new state: a producer that asks for the same commit again gets CONCURRENT_TRANSACTIONS, and repeats the
request.

A request with a producer id or an epoch other than the present one comes from a producer that was replaced, and is fenced. The
exceptions are retries of requests that had succeeded and whose answer was lost: they get the same answer again (`_is_retry`).

Sources: KIP-98 (the protocol), KIP-360 (a producer that continues after an error), KIP-890 (TV2: an epoch for each transaction).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from strandline.broker.transactions.config import TransactionConfig
from strandline.broker.transactions.records import TransactionRecord
from strandline.broker.transactions.states import (
    EPOCH_EXHAUSTED,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TV2,
    State,
    TopicNamePartition,
    Transaction,
)
from strandline.protocol.errors import BrokerError, ErrorCode


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    producer_epoch: int


class Markers(NamedTuple):
    """The markers that a decided transaction needs, one in each of its partitions, with the epoch of the Prepare record."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: tuple[TopicNamePartition, ...]
    version: int


@dataclass(slots=True)
class Decision:
    """The work for the shell. The shell appends the record, and lets the shard replay it. It sends the answer and the markers
    when the record is committed; without a record, when all earlier records of the shard are committed."""

    record: TransactionRecord | None = None
    answer: ProducerIdAndEpoch | BrokerError | None = None
    """The producer id and epoch with which the producer continues, or the error that makes it repeat its request. None if the
    decision answers no request."""
    markers: Markers | None = None


class TransactionShard:
    """The state of the transactional ids of one partition, in one leader epoch."""

    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self.transactions: dict[str, Transaction] = {}
        """Transactional id -> its state."""

    def replay(self, record: TransactionRecord) -> None:
        """Apply a record: the new state of a transactional id, or its tombstone."""
        if record.value is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = record.value

    def on_loaded(self) -> Iterator[Markers]:
        """The markers of all prepared transactions, which an earlier coordinator may not have written. Called after the load."""
        return (markers_of(each) for each in self.transactions.values() if each.state.is_prepared)

    # -- InitProducerId -----------------------------------------------------------------------------------------------

    def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, fresh_id: int, now_ms: int
    ) -> Decision:
        """Give a transactional id to a producer, and fence the previous producer. `expected`: the producer id and epoch of a
        producer that continues after an error (KIP-360); it is fenced if another producer has taken over. `fresh_id`: an unused
        producer id, in case one is needed.

        An open transaction is aborted first; the answer is CONCURRENT_TRANSACTIONS until that is complete. Raises
        INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS or PRODUCER_FENCED."""
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            limit = self._config.transaction_max_timeout_ms
            reason = f"a transaction may take 1 to {limit} ms (transaction.max.timeout.ms), and not {timeout_ms}"
            raise BrokerError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, reason)
        found = self.transactions.get(transactional_id)
        if found is None:
            new = Transaction(
                transactional_id=transactional_id,
                producer_id=fresh_id,
                producer_epoch=0,
                timeout_ms=timeout_ms,
                updated_at_ms=now_ms,
            )
            return _decision(new)
        if expected is not None and _is_successor(found, expected):
            raise _concurrent(found)
        if expected is not None and not _knows(expected, found):
            raise _fenced(found, expected)
        if found.state.is_prepared:
            raise _concurrent(found)
        if found.state is State.ONGOING:
            if expected is not None and expected != (found.producer_id, found.producer_epoch):
                raise _fenced(found, expected)  # Kafka aborts the transaction of the successor first, and fences the asker then.
            return self._fence(found, fresh_id, now_ms)
        return _decision(_taken_over(found, timeout_ms, expected, fresh_id, now_ms))

    def _fence(self, found: Transaction, fresh_id: int, now_ms: int) -> Decision:
        """Abort an ongoing transaction with a higher epoch. `last_producer_epoch` is unset, so an EndTxn of the producer is
        fenced, and not answered as a retry with the new epoch."""
        aborted = _aborted(found, fresh_id, now_ms)
        fenced = replace(aborted, last_producer_epoch=NO_EPOCH)
        return Decision(_record(fenced), _concurrent(fenced), markers_of(fenced))

    # -- AddPartitionsToTxn, AddOffsetsToTxn ---------------------------------------------------------------------------

    def add_partitions(
        self, asker: ProducerIdAndEpoch, transactional_id: str, added: Iterable[TopicNamePartition], version: int, now_ms: int
    ) -> Decision:
        """Add partitions to the transaction, before the producer writes records there. In TV2 the leader of a partition asks on
        behalf of the producer. Raises what `_of_producer` raises."""
        found = self._of_producer(transactional_id, asker)
        if found.state.is_prepared:
            raise _concurrent(found)
        added = list(added)
        if found.state is State.ONGOING and all(partition in found.partitions for partition in added):
            return Decision(answer=ProducerIdAndEpoch(found.producer_id, found.producer_epoch))
        return _decision(found.with_partitions(added, version, now_ms))

    def missing_partitions(
        self, asker: ProducerIdAndEpoch, transactional_id: str, asked: Iterable[TopicNamePartition]
    ) -> list[TopicNamePartition]:
        """The partitions among `asked` that the ongoing transaction does not have. The leaders of these partitions refuse the
        transaction's records (KIP-890, TV1), because the coordinator writes markers only into partitions that it knows."""
        found = self._of_producer(transactional_id, asker)
        if found.state.is_prepared:
            raise _concurrent(found)
        known = found.partitions if found.state is State.ONGOING else ()
        return [partition for partition in asked if partition not in known]

    def _of_producer(self, transactional_id: str, asker: ProducerIdAndEpoch) -> Transaction:
        """The state of an id. Raises INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED or CONCURRENT_TRANSACTIONS, if
        the request is not one of its present producer or is about its next transaction."""
        found = self._known(transactional_id)
        if _is_successor(found, asker):
            raise _concurrent(found)
        if found.producer_id != asker.producer_id:
            raise _unknown_mapping(found, asker)
        if found.producer_epoch != asker.producer_epoch:
            raise _fenced(found, asker)
        return found

    def _known(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        found = self.transactions.get(transactional_id)
        if found is None:
            reason = f"the coordinator has no producer id for the transactional id {transactional_id!r}"
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, reason)
        return found

    # -- EndTxn -------------------------------------------------------------------------------------------------------

    def end(
        self, asker: ProducerIdAndEpoch, transactional_id: str, *, commit: bool, version: int, fresh_id: int, now_ms: int
    ) -> Decision:
        """Commit or abort a transaction. The producer continues with the id and epoch of the answer: in TV2 the next epoch.

        | state            | commit                          | abort                            |
        | Ongoing          | PrepareCommit                   | PrepareAbort                     |
        | PrepareCommit    | CONCURRENT_TRANSACTIONS         | INVALID_TXN_STATE                |
        | PrepareAbort     | INVALID_TXN_STATE(+)            | CONCURRENT_TRANSACTIONS          |
        | CompleteCommit   | TV1 and retries: the same again | INVALID_TXN_STATE; TV2: abort(*) |
        | CompleteAbort    | INVALID_TXN_STATE(+)            | TV1 and retries: the same again; TV2: abort(*) |
        | Empty            | INVALID_TXN_STATE               | INVALID_TXN_STATE; TV2: abort(*) |

        In TV2, a request with the epoch of the transaction after a prepared one gets CONCURRENT_TRANSACTIONS.

        (*) A client of TV2 may abort a transaction that has no partition yet, which raises the epoch; but not as a retry.
        (+) In TV2, TRANSACTION_ABORTABLE if the coordinator aborted the transaction because of its timeout: the producer aborts,
        which succeeds, and begins the next one. Kafka answers INVALID_TXN_STATE, which ends the producer."""
        found = self._known(transactional_id)
        is_retry = version >= TV2 and _is_retry(found, asker)
        if version >= TV2 and _is_successor(found, asker):
            raise _concurrent(found)
        _check_end(found, asker, is_retry=is_retry)
        same = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT) if commit else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
        if found.state is State.ONGOING:
            return self._ended(found, commit, version, fresh_id, now_ms)
        if found.state.is_prepared and found.state in same:
            raise _concurrent(found)
        if found.state in same and (is_retry or version < TV2):
            return Decision(answer=ProducerIdAndEpoch(found.producer_id, found.producer_epoch))
        if not commit and found.state.is_idle and version >= TV2 and not is_retry:
            return self._ended(found, commit, version, fresh_id, now_ms)
        if commit and is_retry and found.state in (State.PREPARE_ABORT, State.COMPLETE_ABORT):
            reason = f"the transaction of {transactional_id!r} was aborted, probably because it has taken more than its timeout"
            raise BrokerError(ErrorCode.TRANSACTION_ABORTABLE, f"{reason}, {found.timeout_ms} ms")
        what = "committed" if commit else "aborted"
        reason = f"a transaction of {transactional_id!r} in the state {found.state.title} cannot be {what}"
        raise BrokerError(ErrorCode.INVALID_TXN_STATE, reason)

    def _ended(self, found: Transaction, commit: bool, version: int, fresh_id: int, now_ms: int) -> Decision:
        ended = found.ended(commit=commit, version=version, bump=version >= TV2, fresh_id=fresh_id, now_ms=now_ms)
        done = ended.completed(now_ms)
        return Decision(_record(ended), ProducerIdAndEpoch(done.producer_id, done.producer_epoch), markers_of(ended))

    def complete(self, markers: Markers, now_ms: int) -> Decision:
        """Complete a transaction whose markers are all written. The decision is empty if the id has another transaction now."""
        found = self.transactions.get(markers.transactional_id)
        if found is None or not found.state.is_prepared or markers_of(found) != markers:
            return Decision()
        return Decision(_record(found.completed(now_ms)))

    # -- time ---------------------------------------------------------------------------------------------------------

    def expire(self, fresh_ids: Iterator[int], now_ms: int) -> Iterator[Decision]:
        """Call `abort_timed_out` and `forget_unused`."""
        yield from self.abort_timed_out(fresh_ids, now_ms)
        yield from self.forget_unused(now_ms)

    def abort_timed_out(self, fresh_ids: Iterator[int], now_ms: int) -> Iterator[Decision]:
        """Abort the transactions that take longer than their timeout.

        The epoch rises, so no more records of the transaction are appended. Its producer loses the transaction, but not the id:
        it gets the new epoch from an abort (TV2) or from InitProducerId with its old epoch (KIP-360). `fresh_ids`: producer ids
        that were never given. A transaction that needs one, and for which none is left, stays ongoing."""
        for found in list(self.transactions.values()):
            if _is_timed_out(found, now_ms):
                fresh_id = next(fresh_ids, None) if found.is_epoch_exhausted else NO_PRODUCER_ID
                if fresh_id is None:
                    continue
                aborted = _aborted(found, fresh_id, now_ms)
                yield Decision(_record(aborted), markers=markers_of(aborted))

    def count_exhausted(self, now_ms: int) -> int:
        """The number of timed-out transactions that cannot be aborted without a new producer id."""
        return sum(each.is_epoch_exhausted and _is_timed_out(each, now_ms) for each in self.transactions.values())

    def forget_unused(self, now_ms: int) -> Iterator[Decision]:
        """Write tombstones for the ids that were not used for `transactional.id.expiration.ms`."""
        for found in list(self.transactions.values()):
            if found.state.is_idle and now_ms >= found.updated_at_ms + self._config.transactional_id_expiration_ms:
                yield Decision(TransactionRecord(found.transactional_id, None))

    def needs_fresh_id(self, transactional_id: str, *, if_new: bool) -> bool:
        """Whether the next decision about this id may need an unused producer id. `if_new`: the result for an unknown id."""
        found = self.transactions.get(transactional_id)
        return if_new if found is None else found.is_epoch_exhausted


def markers_of(transaction: Transaction) -> Markers:
    """The markers of a prepared transaction."""
    return Markers(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state is State.PREPARE_COMMIT,
        transaction.partitions,
        transaction.version,
    )


def _is_timed_out(found: Transaction, now_ms: int) -> bool:
    return found.state is State.ONGOING and now_ms >= found.started_at_ms + found.timeout_ms


def _aborted(found: Transaction, fresh_id: int, now_ms: int) -> Transaction:
    """An ongoing transaction that the coordinator aborts, with the next epoch in both versions."""
    return found.ended(commit=False, version=found.version, bump=True, fresh_id=fresh_id, now_ms=now_ms)


def _taken_over(
    found: Transaction, timeout_ms: int, expected: ProducerIdAndEpoch | None, fresh_id: int, now_ms: int
) -> Transaction:
    """The state after InitProducerId, when no transaction is in the way."""
    epoch, last_epoch = found.producer_epoch, NO_EPOCH
    if found.is_epoch_exhausted and (expected is None or expected.producer_epoch == epoch):
        last_epoch = NO_EPOCH if expected is None else epoch
        producer_id, epoch = fresh_id, 0
    elif expected is None:
        producer_id, epoch = found.producer_id, epoch + 1
    elif expected.producer_epoch == epoch:
        producer_id, epoch, last_epoch = found.producer_id, epoch + 1, epoch
    elif expected.producer_epoch == found.last_producer_epoch:  # the retry of a call that had succeeded
        producer_id, last_epoch = found.producer_id, found.last_producer_epoch
    else:
        raise _fenced(found, expected)
    return found.initialized(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        now_ms=now_ms,
    )


def _knows(expected: ProducerIdAndEpoch, found: Transaction) -> bool:
    """Whether `expected` has the present producer id, or the previous one if its epochs were exhausted."""
    is_before = expected.producer_id == found.previous_producer_id and expected.producer_epoch >= EPOCH_EXHAUSTED
    return expected.producer_id == found.producer_id or is_before


def _is_retry(found: Transaction, asker: ProducerIdAndEpoch) -> bool:
    """Whether the answer to this EndTxn of TV2 was lost: the epoch was bumped for it, or the producer id was replaced."""
    if found.last_producer_epoch != asker.producer_epoch:
        return False
    if found.producer_id == asker.producer_id:
        return found.producer_epoch == asker.producer_epoch + 1
    return found.previous_producer_id == asker.producer_id and found.producer_epoch == 0 and not found.state.is_prepared


def _is_successor(found: Transaction, asker: ProducerIdAndEpoch) -> bool:
    """Whether the request has the producer id and epoch of the transaction after the prepared one."""
    if not found.state.is_prepared:
        return False
    if found.next_producer_id != NO_PRODUCER_ID:
        return asker == (found.next_producer_id, 0)
    return asker == (found.producer_id, found.producer_epoch)


def _check_end(found: Transaction, asker: ProducerIdAndEpoch, *, is_retry: bool) -> None:
    if is_retry and found.state not in (State.ONGOING, State.EMPTY):
        return
    if found.producer_id != asker.producer_id:
        raise _unknown_mapping(found, asker)
    if found.producer_epoch != asker.producer_epoch:
        raise _fenced(found, asker)


def _decision(new: Transaction) -> Decision:
    return Decision(_record(new), ProducerIdAndEpoch(new.producer_id, new.producer_epoch))


def _record(new: Transaction) -> TransactionRecord:
    return TransactionRecord(new.transactional_id, new)


def _concurrent(found: Transaction) -> BrokerError:
    reason = f"the previous transaction of {found.transactional_id!r} is not complete yet ({found.state.title})"
    return BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS, reason)


def _fenced(found: Transaction, asker: ProducerIdAndEpoch) -> BrokerError:
    reason = (
        f"producer {asker.producer_id} with epoch {asker.producer_epoch} has lost the transactional id "
        f"{found.transactional_id!r} to producer {found.producer_id} with epoch {found.producer_epoch}"
    )
    return BrokerError(ErrorCode.PRODUCER_FENCED, reason)


def _unknown_mapping(found: Transaction, asker: ProducerIdAndEpoch) -> BrokerError:
    reason = f"the transactional id {found.transactional_id!r} has producer id {found.producer_id}, and not {asker.producer_id}"
    return BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, reason)
