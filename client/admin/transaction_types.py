"""The results of the admin client's calls about transactions: plain dataclasses (KIP-664)."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import StrandlineError


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """One transactional id in a list."""

    transactional_id: str
    producer_id: int
    state: str
    """"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit" or "CompleteAbort"."""
    coordinator: int
    """Broker id."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """The transactional ids that the brokers have listed, sorted."""

    transactions: list[TransactionSummary]
    errors: dict[int, StrandlineError]
    """By broker id, the error because of which all or some of the ids that it coordinates are missing."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id, as its coordinator knows it."""

    transactional_id: str
    state: str = ""
    """See `TransactionSummary.state`."""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    """The coordinator aborts a transaction that takes longer."""
    started_at_ms: int | None = None
    """When the ongoing transaction began, in milliseconds since 1970; None: no transaction is ongoing."""
    updated_at_ms: int | None = None
    """When the coordinator wrote the last change of this id, in milliseconds since 1970; None: not known."""
    partitions: list[TopicPartition] = field(default_factory=list)
    """The partitions that have records of the transaction and no marker yet, as far as the coordinator knows."""
    coordinator: int = -1
    """Broker id."""
    error: StrandlineError | None = None
    """The error because of which the other fields are not known, for example because the id does not exist."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has records in a partition, and no marker there. Readers of committed records wait for it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    """The offset of the transaction's first record."""
    last_timestamp_ms: int
    """The timestamp of the transaction's last record."""
    coordinator_epoch: int
    """The coordinator epoch of the producer's last marker in the partition; -1: there was none."""


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction that no coordinator will end. `abort_transaction` ends it."""

    transaction: OpenTransaction
    transactional_id: str | None
    """The transactional id of the producer; None: no coordinator knows the producer id."""
    reason: str
    """Why it hangs, in words."""
