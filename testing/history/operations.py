"""Operations of clients, as the clients saw them: sends, polls, answers about the end of a log, leader epochs.

A send is *invoked* and ends as **ok**, **fail** or **info** (see the package). A poll, or a request for the end of the log, is
recorded when its response has arrived: without a response it shows nothing that can be checked.

All clients of a history share *one* clock, so that "ended before the other began" is true in real time. In the simulator
that is the scheduler's virtual time (the clock of a simulated node may be wrong), elsewhere the monotonic clock of the test's
own process. Recording the start of an operation too early, or its end too late, is safe: the checker then finds less. The
opposite errors lead to false anomalies.

A million sends are usual, so a `Send` is small, and wall clock times are kept only on request.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Any, NamedTuple

OPEN, OK, FAIL, INFO = "open", "ok", "fail", "info"

ALL, LEADER, NONE = -1, 1, 0
"""Values of `acks`, as numbers of the protocol."""

Acks = int | Iterable[int | str] | str
"""One or several of 0, 1 and "all" (-1)."""
EVERY_ACK: Acks = (LEADER, "all")
"""All sends that a broker acknowledges. With acks=0 the broker sends no response."""

Partition = Hashable
"""Any name of a partition: `(topic id, index)`, `(topic, index)`, a number. A topic that is deleted and recreated with the same
name is a different topic: use the id if that happens. None: not known yet, because the producer's partitioner chooses it."""
Process = Hashable
"""Name of a client that does one operation at a time: a producer or a consumer."""
Value = Hashable
Clock = Callable[[], float]
"""Returns seconds."""


class Send:
    """One record that a producer sends; `History.invoke` makes it. `ok`, `fail` or `info` ends it, once: `outcome` changes from
    OPEN to OK, FAIL or INFO. `at`: the time of the end, by default now. ValueError: it has ended before."""

    __slots__ = (
        "_history",
        "acks",
        "ended_at",
        "ended_wall",
        "fencing_token",
        "idempotent",
        "invoked_at",
        "invoked_wall",
        "key",
        "leader_epoch",
        "offset",
        "outcome",
        "partition",
        "process",
        "producer_epoch",
        "producer_id",
        "sequence",
        "session",
        "tombstone",
        "value",
    )

    def __init__(
        self,
        history: History,
        process: Process,
        partition: Partition,
        value: Value,
        acks: int,
        idempotent: bool | None,
        session: Hashable,
        invoked_at: float,
    ) -> None:
        self._history = history
        self.process = process
        self.partition = partition
        self.value = value
        self.acks = acks
        self.idempotent = idempotent
        """None: the default that is given to `check`. Ignored without acks=all (Kafka rejects the combination)."""
        self.session = session
        """The incarnation of the process. Order is promised only within one session."""
        self.key: Hashable = None
        """The key of the record; needed only in compacted partitions."""
        self.tombstone = False
        """The record deletes its key. A tombstone has no value, so `value` is a name instead, unique among all values."""
        self.fencing_token = -1
        """The fencing token of the record; -1: none. The offset before the first record with a token may have no record, because
        it stores the token."""
        self.outcome = OPEN
        self.offset = -1
        """The acknowledged offset; -1 unless OK, and if the acknowledgement has no offset (acks=0)."""
        self.leader_epoch = -1
        """Epoch of the leader that acknowledged it; -1: unknown, as with the next three."""
        self.producer_id = self.producer_epoch = self.sequence = -1
        self.invoked_at = invoked_at
        self.ended_at = inf
        self.invoked_wall = self.ended_wall = nan

    def written_as(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """Record the producer id, epoch and sequence number in its batch."""
        self.producer_id, self.producer_epoch, self.sequence = producer_id, producer_epoch, sequence

    def ok(
        self, offset: int = -1, *, partition: Partition = None, leader_epoch: int | None = None, at: float | None = None
    ) -> None:
        """It was acknowledged at this offset, in this partition if the send was invoked without one."""
        self._end(OK, at)
        self.offset = offset
        if partition is not None:
            self.partition = partition
        if leader_epoch is not None:
            self.leader_epoch = leader_epoch

    def fail(self, *, at: float | None = None) -> None:
        """It was certainly not appended: the broker or the client rejected it before the append."""
        self._end(FAIL, at)

    def info(self, *, at: float | None = None) -> None:
        """It is unknown whether it was appended."""
        self._end(INFO, at)

    def _end(self, outcome: str, at: float | None) -> None:
        if self.outcome is not OPEN:
            raise ValueError(f"this send of {self.process} has ended: {self.outcome}, then {outcome}")
        self.outcome = outcome
        history = self._history
        self.ended_at = history.clock() if at is None else at
        if history.wall is not None:
            self.ended_wall = history.wall()


class Poll(NamedTuple):
    """The records of one partition that one consumer read in one call, in the order of reading."""

    process: Process
    partition: Partition
    offsets: Sequence[int]
    values: Sequence[Value]
    final: bool
    """It belongs to the final read of all records, after all faults were healed."""
    sought: bool
    """The consumer had jumped (seek, rebalance, a new session) before it, so it is not compared with earlier polls."""
    position: int | None
    """Target offset of the jump, if known."""
    began_at: float | None
    ended_at: float
    wall: float
    follower: bool
    """A follower served it, not the leader."""


class Latest(NamedTuple):
    """The response to a request for the end of the log: `offset` is the high watermark of the replica that answered."""

    process: Process
    partition: Partition
    offset: int
    began_at: float
    ended_at: float


class SeenEpoch(NamedTuple):
    """A client learned of this leader epoch."""

    process: Process
    partition: Partition
    leader_epoch: int
    ended_at: float


class Compacted(NamedTuple):
    """A partition whose cleaner keeps the newest record of each key."""

    delete_retention_s: float
    """How long a tombstone stays after it was first cleaned, in seconds on the history's clock."""


class Loss(NamedTuple):
    """Records from `first` on, before `end`, may be lost. Operations that began until `at` may have seen them."""

    first: int
    end: int | None
    """None: the highest log end that was known at that time."""
    at: float


@dataclass(slots=True)
class Declared:
    """Declarations for a partition: intended losses, which are not anomalies."""

    log_start: int = 0
    losses: list[Loss] = field(default_factory=list)
    absent: list[tuple[int, int]] = field(default_factory=list)
    """(first, end) ranges, end exclusive, of offsets without a record for consumers (control batches)."""
    compacted: Compacted | None = None
    """None: no cleaner removes records of this partition."""


class History:
    """Collects the operations of all clients of a test, for `check`. Values must be unique in a history.

    Sends are kept in the order of their invocation, all other operations in the order in which they ended. Methods take `at`,
    the time in seconds on the history's clock, by default now.
    """

    __slots__ = (
        "_jumps",
        "_positions",
        "_sought",
        "clock",
        "declared",
        "epochs",
        "healed_at",
        "latests",
        "polls",
        "sends",
        "wall",
    )

    def __init__(self, clock: Clock = time.monotonic, wall: Clock | None = None) -> None:
        self.clock = clock
        """Seconds; one clock for all clients. The checker orders operations by it."""
        self.wall = wall
        """If given, each operation also keeps the time of this clock, to find it in logs. The checker ignores it."""
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.latests: list[Latest] = []
        self.epochs: list[SeenEpoch] = []
        self.declared: dict[Partition, Declared] = {}
        self.healed_at: float | None = None
        self._sought: dict[tuple[Process, Partition], tuple[int | None, int]] = {}
        """Seeks without a poll after them: the target, and the process's number of rebalances at that time."""
        self._jumps: dict[Process, int] = {}
        """Number of rebalances of each process."""
        self._positions: dict[tuple[Process, Partition], tuple[int, Hashable]] = {}
        """For the last poll: the process's number of rebalances at that time, and its session."""

    def now(self) -> float:
        return self.clock()

    # -- producers

    def invoke(
        self,
        process: Process,
        partition: Partition,
        value: Value,
        *,
        acks: int | str = ALL,
        idempotent: bool | None = None,
        session: Hashable = None,
        key: Hashable = None,
        tombstone: bool = False,
        fencing_token: int | None = None,
        at: float | None = None,
    ) -> Send:
        """Record the start of a send. End it with `ok(offset)`, `fail()` or `info()`; a send without an end counts as info.

        `partition`: None if the producer has not chosen it. `acks`: 0, 1 or "all". `idempotent`: None for the default of `check`.
        `session`: incarnation of the process, if it has several. `key`, `tombstone`: for a compacted partition; polls name a
        tombstone by `value`, like every other record.
        """
        send = Send(self, process, partition, value, _number(acks), idempotent, session, self.clock() if at is None else at)
        if key is not None:
            send.key, send.tombstone = key, tombstone
        if fencing_token is not None:
            send.fencing_token = fencing_token
        if self.wall is not None:
            send.invoked_wall = self.wall()
        self.sends.append(send)
        return send

    # -- consumers

    def seek(self, process: Process, partition: Partition, offset: int | None = None) -> None:
        """Record a jump: the consumer's next poll of the partition is compared with `offset`, not with its earlier polls.

        A seek before the first poll means that the consumer does not begin at the start of the log.
        """
        self._sought[process, partition] = (offset, self._jumps.get(process, 0))

    def rebalance(self, process: Process) -> None:
        """Record a new assignment of the consumer, which is a jump in all its partitions."""
        self._jumps[process] = self._jumps.get(process, 0) + 1

    def poll(
        self,
        process: Process,
        partition: Partition,
        records: Iterable[tuple[int, Value]],
        *,
        final: bool = False,
        follower: bool = False,
        session: Hashable = None,
        began_at: float | None = None,
        leader_epoch: int | None = None,
        at: float | None = None,
    ) -> None:
        """Record that a consumer read these (offset, value) pairs, in this order.

        `began_at`: start of the poll, in seconds; with it the checker measures the lag, so record empty polls, too. `final`: the
        poll belongs to the final read of all records. If a history has final polls, a partition without one counts as empty.
        `follower`: a follower served it. `session`: incarnation of the consumer. `leader_epoch`: as for `saw_epoch`.
        """
        pairs = list(records)
        key = (process, partition)
        now = self.clock() if at is None else at
        identity = (self._jumps.get(process, 0), session)
        sought = key in self._sought or self._positions.get(key, (0, session)) != identity
        self._positions[key] = identity
        target, jumps = self._sought.pop(key, (None, 0))
        position = target if jumps == identity[0] else None
        offsets, values = array("q", [o for o, _ in pairs]), [v for _, v in pairs]
        wall = nan if self.wall is None else self.wall()
        self.polls.append(Poll(process, partition, offsets, values, final, sought, position, began_at, now, wall, follower))
        if leader_epoch is not None:
            self.saw_epoch(process, partition, leader_epoch, at=now)

    def latest(
        self, process: Process, partition: Partition, offset: int, *, began_at: float | None = None, at: float | None = None
    ) -> None:
        """Record that a client asked for the end of the log and received `offset`. Without `began_at`, the start of the request,
        the answer is compared only with the same client's earlier answers."""
        now = self.clock() if at is None else at
        self.latests.append(Latest(process, partition, offset, -inf if began_at is None else began_at, now))

    def saw_epoch(self, process: Process, partition: Partition, epoch: int, *, at: float | None = None) -> None:
        """Record that a client learned, from metadata or a response, that this leader epoch has begun."""
        self.epochs.append(SeenEpoch(process, partition, epoch, self.clock() if at is None else at))

    # -- declarations

    def heal(self, *, at: float | None = None) -> None:
        """Declare that all faults are over and consumers will read to the end: no acknowledged record may stay unread."""
        self.healed_at = self.clock() if at is None else at

    def log_start(self, partition: Partition, offset: int) -> None:
        """Declare that records below `offset` may be deleted (retention, DeleteRecords), at any time of the history."""
        declared = self._declare(partition)
        declared.log_start = max(declared.log_start, offset)

    def loss(self, partition: Partition, first: int, end: int | None = None, *, at: float | None = None) -> None:
        """Declare that records from `first` on may be lost (an unclean election). Call it when the loss has happened.

        `end`: the highest end that the log may have had, exclusive. Operations that began until now are not checked in this
        range.
        """
        self._declare(partition).losses.append(Loss(first, end, self.clock() if at is None else at))

    def no_records(self, partition: Partition, first: int, end: int) -> None:
        """Declare that consumers see no record from `first` on, before `end` (control batches)."""
        self._declare(partition).absent.append((first, end))

    def compacted(self, partition: Partition, *, delete_retention_s: float = 0.0) -> None:
        """Declare that a cleaner may remove each record of the partition that a newer one of its key supersedes, and tombstones.

        Sends to it must name their `key`. `delete_retention_s`: a final read that takes no longer must show every tombstone whose
        older value it shows.
        """
        self._declare(partition).compacted = Compacted(delete_retention_s)

    def _declare(self, partition: Partition) -> Declared:
        return self.declared.setdefault(partition, Declared())

    # -- export

    def events(self) -> Iterator[dict[str, Any]]:
        """All operations in the form of Jepsen's histories, ordered by time; `type` is invoke, ok, fail or info."""
        events = [event for send in self.sends for event in _events_of(send)]
        for poll in self.polls:
            who = {"f": "poll", "process": poll.process, "partition": poll.partition}
            if poll.began_at is not None:
                events.append({"time": poll.began_at, "type": "invoke", **who})
            records = list(zip(poll.offsets, poll.values, strict=True))
            end = {"time": poll.ended_at, **_wall(poll.wall), "type": OK}
            events.append({**end, **who, "records": records, "final": poll.final})
        for answer in self.latests:
            who = {"f": "latest", "process": answer.process, "partition": answer.partition}
            if answer.began_at > -inf:
                events.append({"time": answer.began_at, "type": "invoke", **who})
            events.append({"time": answer.ended_at, "type": OK, **who, "offset": answer.offset})
        yield from sorted(events, key=lambda event: event["time"])


def _events_of(send: Send) -> Iterator[dict[str, Any]]:
    who = {"f": "send", "process": send.process, "partition": send.partition, "value": send.value}
    known = {
        name: value
        for name in ("session", "producer_id", "producer_epoch", "sequence", "fencing_token")
        if (value := getattr(send, name)) not in (None, -1)
    }
    if send.key is not None:
        known |= {"key": send.key, "tombstone": send.tombstone}
    yield {"time": send.invoked_at, **_wall(send.invoked_wall), "type": "invoke", **who, "acks": send.acks, **known}
    end = {"time": send.ended_at, **_wall(send.ended_wall), "type": send.outcome, **who}
    if send.outcome == OK:
        yield {**end, "offset": send.offset, **({} if send.leader_epoch < 0 else {"leader_epoch": send.leader_epoch})}
    elif send.outcome != OPEN:
        yield end


def _wall(time: float) -> dict[str, float]:
    return {} if isnan(time) else {"wall": time}


def acks_numbers(acks: Acks) -> frozenset[int]:
    """These acks as numbers of the protocol. ValueError: not one or several of 0, 1 and "all"."""
    given = (acks,) if isinstance(acks, (int, str)) else tuple(acks)
    numbers = frozenset(map(_number, given))
    if not numbers or not numbers <= {NONE, LEADER, ALL}:
        raise ValueError(f'acks is one or several of 0, 1 and "all", not {acks!r}')
    return numbers


def _number(acks: int | str) -> int:
    return acks if type(acks) is int else ALL if acks == "all" else int(acks)
