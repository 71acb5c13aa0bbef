"""Decides whether a batch of a transaction may be appended to a partition: the coordinator must know the partition (KIP-890).

A coordinator that does not know the partition would send no marker to it. The leader asks the coordinator before the first batch
of a transaction there. The answer holds for the state of the log at that time, so the append compares that state with the present
one.

    version 2 of the protocol    the coordinator adds the partition to the producer's transaction, or begins one with it
    version 1                    the coordinator confirms that the producer has added the partition

The callers find the coordinator, and keep the request until it answers. They are Produce, and TxnOffsetCommit, whose offsets are
a batch in a partition of `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from strandline.broker.partition.leader_state import LeaderState
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.transactions import AddPartitionsToTxnTransaction
from strandline.storage.log.producer_state import Standing

TV1, TV2 = 1, 2


class Adder(Protocol):
    """`PartitionAdder`, as far as it is needed here."""

    def add(self, transaction: AddPartitionsToTxnTransaction, done: Callable[[BrokerError | None], None]) -> None: ...


class Confirmed(NamedTuple):
    """The state of a partition when the coordinator was asked about it."""

    leader_state: LeaderState
    marker_offset: int


class Admission:
    """One request: its producer, and the partitions that the coordinator has been asked about."""

    __slots__ = ("confirmed", "epoch", "producer_id", "transaction_version")

    def __init__(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.transaction_version = transaction_version
        self.confirmed: dict[int, Confirmed] = {}
        """Index of a partition in the request -> its state when the coordinator was asked about it."""

    def question(self, leader_state: LeaderState, first_sequence: int) -> Confirmed | None:
        """The state of the partition for which the coordinator's answer will hold. None if the coordinator need not be asked,
        because the transaction has records here already.

        Raises INVALID_PRODUCER_EPOCH, or OUT_OF_ORDER_SEQUENCE_NUMBER if an epoch does not begin with sequence 0 (version 2)."""
        standing = self._standing(leader_state)
        if self._is_open(standing):
            return None
        if self.transaction_version >= TV2 and standing.last_sequence < 0 < first_sequence:
            text = f"the first batch of epoch {self.epoch} of producer {self.producer_id} has sequence {first_sequence}, not 0"
            raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
        return Confirmed(leader_state, standing.marker_offset)

    def check(self, index: int, leader_state: LeaderState) -> None:
        """Check, right before the append, that the coordinator will end the transaction of the batches in this partition.

        Raises INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER (the leader epoch has changed since `question`) or
        INVALID_TXN_STATE."""
        standing = self._standing(leader_state)
        if self._is_open(standing):
            return
        confirmed = self.confirmed.get(index)
        if confirmed is not None and confirmed.leader_state is not leader_state:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the transaction coordinator was asked")
        has_new_marker = confirmed is None or confirmed.marker_offset != standing.marker_offset
        if confirmed is None or (has_new_marker and self.transaction_version < TV2):
            text = f"the transaction of producer {self.producer_id} in this partition has ended meanwhile"
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, text)

    def _standing(self, leader_state: LeaderState) -> Standing:
        standing = leader_state.log.producers.standing(self.producer_id)
        if self.epoch < standing.epoch:
            text = f"epoch {self.epoch} of producer {self.producer_id} is fenced: this partition has epoch {standing.epoch}"
            raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        return standing

    def _is_open(self, standing: Standing) -> bool:
        return standing.txn_first_offset >= 0 and standing.epoch == self.epoch
