"""The state of one transactional id, and which state may follow which (KIP-98, KIP-890).

Both protocols are served. In the older one (TV1) a producer keeps its epoch from one transaction to the next. In the newer one
(TV2) every end of a transaction bumps the epoch, so a batch that arrives after the end of its transaction is too old to be
appended. The transaction's version is in its record, because a later coordinator must complete it by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 0x7FFF
EPOCH_EXHAUSTED = EPOCH_MAX - 1
"""From this epoch on a producer gets another producer id: the last epoch stays free for the coordinator, which must always be
able to fence a producer."""
TV1, TV2 = 1, 2

TopicNamePartition = tuple[str, int]
"""A partition by the name of its topic, as Kafka's records have it."""


class State(IntEnum):
    """The numbers are those of Kafka's records."""

    EMPTY = 0
    """No transaction since the last InitProducerId."""
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The transaction is committed, and its markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    """All markers are written."""
    COMPLETE_ABORT = 5
    DEAD = 6
    """The id has expired. Never in a record."""
    PREPARE_EPOCH_FENCE = 7
    """A transient state of Kafka's coordinator while it raises the epoch. Not used here, and never in a record."""

    @property
    def title(self) -> str:
        """Kafka's word for the state, as its tools print it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided, and not completed."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether there is no transaction: one may begin, and the id may expire."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


PREVIOUS = {
    State.EMPTY: {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.ONGOING: {State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.PREPARE_COMMIT: {State.ONGOING},
    # A TV2 client may abort without having added a partition: it cannot know whether the leader has added one for it.
    State.PREPARE_ABORT: {State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.PREPARE_COMMIT},
    State.COMPLETE_ABORT: {State.PREPARE_ABORT},
}
"""State -> the states that it may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id. Each change of it is one record."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    """The newest epoch. A prepared transaction of TV2 and its markers have the epoch of the producer's next transaction."""
    last_producer_epoch: int = NO_EPOCH
    """The previous epoch, if the epoch was raised for the same producer: a request with it is answered as the retry of a request
    that had succeeded. `NO_EPOCH` if another producer has taken over."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id with which the producer continues after its prepared transaction is completed, if its epochs are exhausted."""
    timeout_ms: int
    state: State = State.EMPTY
    partitions: tuple[TopicNamePartition, ...] = ()
    """The partitions that may have records of the transaction, and need a marker; sorted."""
    started_at_ms: int = -1
    updated_at_ms: int
    version: int = TV2
    """The protocol of the transaction: `TV1` or `TV2`; 0 in a record without it, which counts as TV1."""

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_EXHAUSTED

    def initialized(
        self, *, producer_id: int, producer_epoch: int, last_producer_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """The state after InitProducerId: a new producer has the id, or its producer continues after an error."""
        return self._to(
            State.EMPTY,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            last_producer_epoch=last_producer_epoch,
            previous_producer_id=self.producer_id,
            timeout_ms=timeout_ms,
            partitions=(),
            started_at_ms=-1,
            updated_at_ms=now_ms,
        )

    def with_partitions(self, added: Iterable[TopicNamePartition], version: int, now_ms: int) -> Transaction:
        """The state with more partitions, to which records are about to be written. The first partitions begin a transaction."""
        return self._to(
            State.ONGOING,
            partitions=tuple(sorted({*self.partitions, *added})),
            started_at_ms=now_ms if self.state.is_idle else self.started_at_ms,
            updated_at_ms=now_ms,
            previous_producer_id=self.producer_id,
            version=version,
        )

    def ended(self, *, commit: bool, version: int, bump: bool, fresh_id: int, now_ms: int) -> Transaction:
        """The prepared state. `bump`: raise the epoch. `fresh_id`: an unused producer id, for a producer whose epochs are
        exhausted."""
        return self._to(
            State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX) if bump else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bump else self.last_producer_epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=fresh_id if bump and self.is_epoch_exhausted else NO_PRODUCER_ID,
            started_at_ms=now_ms if self.state.is_idle else self.started_at_ms,
            updated_at_ms=now_ms,
            version=version,
        )

    def completed(self, now_ms: int) -> Transaction:
        """The state once all markers are written."""
        rotates = self.next_producer_id != NO_PRODUCER_ID
        return self._to(
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=(),
            updated_at_ms=now_ms,
        )

    def _to(self, state: State, **changes: object) -> Transaction:
        assert self.state in PREVIOUS[state], f"{self.transactional_id}: {self.state.title} -> {state.title}"
        return replace(self, state=state, **changes)  # type: ignore[arg-type]
