"""Transactions and reads, as the clients saw them.

A transaction begins, appends and reads, asks to commit or to abort, and ends as **committed**, **aborted** or **unknown**. A
read is recorded when its response has arrived. All clients share one clock, as in `history.operations`."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from strandline.testing.history.operations import OPEN, Clock, Partition, Process, Value

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class Append:
    """One record that a transaction appends. `ok` and `fail` end it; without an end its outcome is unknown."""

    __slots__ = ("failed", "key", "offset", "partition", "transaction", "value")

    def __init__(self, transaction: Transaction, partition: Partition, value: Value, key: Hashable) -> None:
        self.transaction = transaction
        self.partition = partition
        self.value = value
        self.key = key
        """Needed only in compacted partitions."""
        self.offset = -1
        """The acknowledged offset; -1: unknown."""
        self.failed = False
        """It was certainly not appended, so it is not part of the transaction."""

    def ok(self, offset: int) -> None:
        self.offset = offset

    def fail(self) -> None:
        self.failed = True


class Transaction:
    """One transaction of one producer; `TransactionHistory.begin` makes it. `committed`, `aborted` or `unknown` ends it, once.
    ValueError: it has ended before."""

    __slots__ = (
        "_history",
        "appends",
        "asked_at",
        "began_at",
        "ended_at",
        "number",
        "outcome",
        "process",
        "producer_epoch",
        "producer_id",
        "reads",
        "transactional_id",
    )

    def __init__(self, history: TransactionHistory, number: int, process: Process, transactional_id: str, at: float) -> None:
        self._history = history
        self.number = number
        self.process = process
        self.transactional_id = transactional_id
        self.producer_id = self.producer_epoch = -1
        self.appends: list[Append] = []
        self.reads: list[Read] = []
        self.began_at = at
        self.asked_at = inf
        """When the producer first asked to commit; inf: never, so the transaction cannot be committed."""
        self.ended_at = inf
        """When the outcome became known; inf: it is not known."""
        self.outcome = OPEN

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.process} ({self.transactional_id})"

    @property
    def may_be_committed(self) -> bool:
        return self.outcome != ABORTED and self.asked_at < inf

    def written_as(self, producer_id: int, producer_epoch: int) -> None:
        """Record the producer id and epoch in the transaction's batches."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    def append(self, partition: Partition, value: Value, *, key: Hashable = None) -> Append:
        """Record that the transaction sends this value. ValueError: the value was sent to this partition before."""
        append = Append(self, partition, value, key)
        self._history._register(append)
        self.appends.append(append)
        return append

    def read(
        self,
        partition: Partition,
        records: Iterable[tuple[int, Value]],
        *,
        position: int | None = None,
        began_at: float | None = None,
        at: float | None = None,
    ) -> None:
        """Record a read of the transaction's own process, on whose values its appends may depend."""
        read = self._history.read(self.process, partition, records, position=position, began_at=began_at, at=at)
        self.reads.append(read)

    def commit(self, *, at: float | None = None) -> None:
        """Record that the producer asks to commit. It must first have the answers to all its appends."""
        if self.asked_at == inf:
            self.asked_at = self._history.time(at)

    def committed(self, *, at: float | None = None) -> None:
        if self.asked_at == inf:
            self.asked_at = self.began_at
        self._end(COMMITTED, self._history.time(at))

    def aborted(self, *, at: float | None = None) -> None:
        self._end(ABORTED, self._history.time(at))

    def unknown(self) -> None:
        """The process gave up without an answer. If it had not asked to commit, the transaction cannot be committed."""
        self._end(UNKNOWN, inf)

    def _end(self, outcome: str, at: float) -> None:
        if self.outcome is not OPEN:
            raise ValueError(f"{self} has ended: {self.outcome}, then {outcome}")
        self.outcome, self.ended_at = outcome, at


class Read(NamedTuple):
    """The records that one read_committed consumer read from one partition, at the offsets from `first` on, before `end`."""

    process: Process
    partition: Partition
    first: int
    end: int
    records: Sequence[tuple[int, Value]]
    began_at: float
    ended_at: float
    final: bool


class Initialization(NamedTuple):
    """A process has taken a transactional id: every older epoch of it is fenced."""

    process: Process
    transactional_id: str
    producer_id: int
    producer_epoch: int
    ended_at: float


class TransactionHistory:
    """Collects transactions and reads for `check_transactions`. Values must be unique in a partition. Methods take `at`, the
    time in seconds on the history's clock, by default now."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.transactions: list[Transaction] = []
        self.reads: list[Read] = []
        self.initializations: list[Initialization] = []
        self.appends: dict[tuple[Partition, Value], Append] = {}
        self.log_starts: dict[Partition, int] = {}
        self.compacted_partitions: dict[Partition, None] = {}
        self._positions: dict[tuple[Process, Partition], int] = {}

    def time(self, at: float | None) -> float:
        return self.clock() if at is None else at

    def begin(self, process: Process, transactional_id: str = "", *, at: float | None = None) -> Transaction:
        """Record the start of a transaction. Without an id, the process is the only one of its id."""
        transaction = Transaction(self, len(self.transactions) + 1, process, transactional_id or str(process), self.time(at))
        self.transactions.append(transaction)
        return transaction

    def initialized(
        self, process: Process, transactional_id: str, producer_id: int, producer_epoch: int, *, at: float | None = None
    ) -> None:
        """Record the answer to InitProducerId: from now on no older epoch may commit."""
        self.initializations.append(Initialization(process, transactional_id, producer_id, producer_epoch, self.time(at)))

    def read(
        self,
        process: Process,
        partition: Partition,
        records: Iterable[tuple[int, Value]],
        *,
        position: int | None = None,
        final: bool = False,
        began_at: float | None = None,
        at: float | None = None,
    ) -> Read:
        """Record what a consumer read. `position`: where the consumer reads next, if that is not right after the last record,
        because it skips markers and aborted records. A reader begins at the first offset that it reads, or at the offset of its
        `seek`."""
        pairs = list(records)
        before = self._positions.get((process, partition), pairs[0][0] if pairs else position or 0)
        end = max(before, pairs[-1][0] + 1 if pairs else 0) if position is None else position
        ended_at = self.time(at)
        read = Read(process, partition, before, end, pairs, ended_at if began_at is None else began_at, ended_at, final)
        self._positions[process, partition] = end
        self.reads.append(read)
        return read

    def seek(self, process: Process, partition: Partition, offset: int) -> None:
        """Record that the reader's next read starts at this offset; also for its first read."""
        self._positions[process, partition] = offset

    def final(
        self, partition: Partition, records: Iterable[tuple[int, Value]], *, position: int | None = None, at: float | None = None
    ) -> None:
        """Record the committed log of a partition, read from its start after all transactions have ended."""
        self._positions.setdefault(("final", partition), self.log_starts.get(partition, 0))
        self.read("final", partition, records, position=position, final=True, at=at)

    def log_start(self, partition: Partition, offset: int) -> None:
        """Declare that records below this offset may be deleted."""
        self.log_starts[partition] = max(offset, self.log_starts.get(partition, 0))

    def compacted(self, partition: Partition) -> None:
        """Declare that a cleaner may remove each record that a newer one of its key supersedes."""
        self.compacted_partitions[partition] = None

    def _register(self, append: Append) -> None:
        if (append.partition, append.value) in self.appends:
            raise ValueError(f"{append.value!r} was sent to {append.partition!r} before")
        self.appends[append.partition, append.value] = append
