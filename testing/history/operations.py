"""What clients did and what they saw, as they tell it: sends, polls, answers about the end of a log, epochs that were seen.

A send is *invoked* and ends as **ok**, **fail** or **info** (see the package). A poll, and a question for the end of
the log, is recorded when its answer is there: without one it showed nothing that could be judged.

Time has one rule: *one* clock for all clients of a history, so that "ended before the other began" is true of the world.
In the simulator that is the scheduler's virtual time (the clock of a simulated node may run wrong), elsewhere the
monotonic clock of the test's own process. To record the beginning of an operation too early, or its end too late, is safe:
it makes judgements fewer. The other way round it makes false ones.

A million sends are usual, so a send is small, and the times of wall clocks are only kept when asked for.
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
"""Of `acks`, as numbers of the protocol."""

Acks = int | Iterable[int | str] | str
"""One or several of 0, 1 and "all" (-1)."""
EVERY_ACK: Acks = (LEADER, "all")
"""Every send that a broker answers. With acks=0 no broker does: nothing was acknowledged."""

Partition = Hashable
"""Whatever names a partition: `(topic id, index)`, `(topic, index)`, a number. A topic that is deleted and made anew under
its name is another one: use the id where that happens. None: not known yet (the producer's partitioner chooses)."""
Process = Hashable
"""Whoever does one thing at a time: a producer, a consumer."""
Value = Hashable
Clock = Callable[[], float]
"""Seconds."""


class Send:
    """One record on its way. `outcome` moves once, from OPEN to OK, FAIL or INFO."""

    __slots__ = (
        "_history",
        "acks",
        "ended_at",
        "ended_wall",
        "idempotent",
        "invoked_at",
        "invoked_wall",
        "leader_epoch",
        "offset",
        "outcome",
        "partition",
        "process",
        "producer_epoch",
        "producer_id",
        "sequence",
        "session",
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
        """None: what `check` is told of all that do not say. Without acks=all it means nothing (Kafka refuses the two)."""
        self.session = session
        """The incarnation of the process: order is promised within one."""
        self.outcome = OPEN
        self.offset = -1
        """Where it was acknowledged; -1 unless OK, and when the acknowledgement does not say (acks=0)."""
        self.leader_epoch = -1
        """Of the leader that acknowledged it; -1: not known. So are the next three."""
        self.producer_id = self.producer_epoch = self.sequence = -1
        self.invoked_at = invoked_at
        self.ended_at = inf
        self.invoked_wall = self.ended_wall = nan

    def written_as(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """What its batch says."""
        self.producer_id, self.producer_epoch, self.sequence = producer_id, producer_epoch, sequence

    def ok(
        self, offset: int = -1, *, partition: Partition = None, leader_epoch: int | None = None, at: float | None = None
    ) -> None:
        """Acknowledged, at this offset."""
        self._end(OK, at)
        self.offset = offset
        if partition is not None:
            self.partition = partition
        if leader_epoch is not None:
            self.leader_epoch = leader_epoch

    def fail(self, *, at: float | None = None) -> None:
        """Certainly not appended: refused before the append."""
        self._end(FAIL, at)

    def info(self, *, at: float | None = None) -> None:
        """Nobody knows."""
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
    """What one consumer read of one partition in one go, in the order of reading."""

    process: Process
    partition: Partition
    offsets: Sequence[int]
    values: Sequence[Value]
    final: bool
    """Part of the last read of everything, after all faults were healed."""
    sought: bool
    """The consumer had jumped (seek, rebalance, a new session) before it: order to its earlier polls means nothing."""
    position: int | None
    """Where it had jumped to, if known."""
    began_at: float | None
    ended_at: float
    wall: float
    follower: bool
    """Served by a replica that does not lead."""


class Latest(NamedTuple):
    """The answer to "where is the end of the log?": the high watermark of whoever answered."""

    process: Process
    partition: Partition
    offset: int
    began_at: float
    ended_at: float


class SeenEpoch(NamedTuple):
    """A client heard of this leader epoch."""

    process: Process
    partition: Partition
    leader_epoch: int
    ended_at: float


class Loss(NamedTuple):
    """Records from `first` on, before `end`, may be lost, and what began until `at` may have seen them."""

    first: int
    end: int | None
    """None: the end of what was known of the log at that time."""
    at: float


@dataclass(slots=True)
class Declared:
    """What was done to a partition on purpose, and explains what would be anomalies."""

    log_start: int = 0
    losses: list[Loss] = field(default_factory=list)
    absent: list[tuple[int, int]] = field(default_factory=list)
    """From, to (exclusive): offsets that hold no record that a consumer sees (compaction, control batches)."""


class History:
    """Collects operations. Sends are kept in the order of their invocation, all else in the order in which it ended."""

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
        """One for all clients; what ended before something else began is told by it."""
        self.wall = wall
        """If given, each operation also keeps this time, to be found again in logs. Nothing is judged by it."""
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.latests: list[Latest] = []
        self.epochs: list[SeenEpoch] = []
        self.declared: dict[Partition, Declared] = {}
        self.healed_at: float | None = None
        self._sought: dict[tuple[Process, Partition], tuple[int | None, int]] = {}
        """Seeks whose first poll has not come yet: where to, and the process's jumps until then."""
        self._jumps: dict[Process, int] = {}
        """How often a process jumped in all its partitions."""
        self._positions: dict[tuple[Process, Partition], tuple[int, Hashable]] = {}
        """Of the last poll: the process's jumps until then, and its session."""

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
        at: float | None = None,
    ) -> Send:
        """A send begins. End it with `ok(offset)`, `fail()` or `info()`; one that is never ended counts as info."""
        send = Send(self, process, partition, value, _number(acks), idempotent, session, self.clock() if at is None else at)
        if self.wall is not None:
            send.invoked_wall = self.wall()
        self.sends.append(send)
        return send

    # -- consumers

    def seek(self, process: Process, partition: Partition, offset: int | None = None) -> None:
        """The consumer jumps: its next poll of the partition is not compared with its earlier ones, but with `offset`.

        Before its first poll it says that the consumer does not begin where the log begins.
        """
        self._sought[process, partition] = (offset, self._jumps.get(process, 0))

    def rebalance(self, process: Process) -> None:
        """The consumer was given partitions anew: a jump in all of them."""
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
        """A consumer read these (offset, value) pairs, in this order.

        With `began_at` it is known how far behind it was; then polls that brought nothing are worth recording, too. `final`: of
        the last read of everything; a partition of which a history with final polls has none is taken to be empty.
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
        """A client asked for the end of the log. Without `began_at` the answer is held against its own earlier ones alone."""
        now = self.clock() if at is None else at
        self.latests.append(Latest(process, partition, offset, -inf if began_at is None else began_at, now))

    def saw_epoch(self, process: Process, partition: Partition, epoch: int, *, at: float | None = None) -> None:
        """A client heard (in metadata, in an answer) that this leader epoch has begun."""
        self.epochs.append(SeenEpoch(process, partition, epoch, self.clock() if at is None else at))

    # -- what is done on purpose

    def heal(self, *, at: float | None = None) -> None:
        """All faults are over, and consumers read to the end: nothing that is acknowledged may stay unread."""
        self.healed_at = self.clock() if at is None else at

    def log_start(self, partition: Partition, offset: int) -> None:
        """What lies below may be deleted (retention, DeleteRecords). It counts for the whole history."""
        declared = self._declare(partition)
        declared.log_start = max(declared.log_start, offset)

    def loss(self, partition: Partition, first: int, end: int | None = None, *, at: float | None = None) -> None:
        """Records from `first` on may be lost (an unclean election): call it when it has happened.

        `end`: where the log ended at most. Whatever began until now is not held to what it saw between the two.
        """
        self._declare(partition).losses.append(Loss(first, end, self.clock() if at is None else at))

    def no_records(self, partition: Partition, first: int, end: int) -> None:
        """Consumers see nothing at these offsets (compaction, control batches)."""
        self._declare(partition).absent.append((first, end))

    def _declare(self, partition: Partition) -> Declared:
        return self.declared.setdefault(partition, Declared())

    # -- to publish it

    def events(self) -> Iterator[dict[str, Any]]:
        """Every operation as Jepsen writes it down: by time, `type` one of invoke, ok, fail, info."""
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
        for name in ("session", "producer_id", "producer_epoch", "sequence")
        if (value := getattr(send, name)) not in (None, -1)
    }
    yield {"time": send.invoked_at, **_wall(send.invoked_wall), "type": "invoke", **who, "acks": send.acks, **known}
    end = {"time": send.ended_at, **_wall(send.ended_wall), "type": send.outcome, **who}
    if send.outcome == OK:
        yield {**end, "offset": send.offset, **({} if send.leader_epoch < 0 else {"leader_epoch": send.leader_epoch})}
    elif send.outcome != OPEN:
        yield end


def _wall(time: float) -> dict[str, float]:
    return {} if isnan(time) else {"wall": time}


def acks_numbers(acks: Acks) -> frozenset[int]:
    """As numbers of the protocol. ValueError for what is none of 0, 1 and "all"."""
    given = (acks,) if isinstance(acks, (int, str)) else tuple(acks)
    numbers = frozenset(map(_number, given))
    if not numbers or not numbers <= {NONE, LEADER, ALL}:
        raise ValueError(f'acks is one or several of 0, 1 and "all", not {acks!r}')
    return numbers


def _number(acks: int | str) -> int:
    return acks if type(acks) is int else ALL if acks == "all" else int(acks)
