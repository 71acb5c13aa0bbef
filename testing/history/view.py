"""All knowledge of the clients about one partition: which value is at which offset, and which acknowledgements are promises.

A view is built once per partition, in a few passes; every check is a pass over it. It needs a few dictionaries of the
partition's size, and partitions are checked one after the other.

Not every acknowledgement is a promise: the caller chooses by acks (`binding`), and records in a declared loss may be lost.
Acknowledgements that are no promise are not used as knowledge about the log. A record that was *read* must stay, with any
acks, because it was below the high watermark.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from operator import attrgetter
from typing import NamedTuple

from strandline.testing.history.compaction import Removable
from strandline.testing.history.operations import (
    ALL,
    FAIL,
    OK,
    Declared,
    Latest,
    Partition,
    Poll,
    SeenEpoch,
    Send,
    Value,
)

_TOP = 2**63
"""Above all offsets."""
NOTHING = object()
"""A marker that is equal to no value."""

FindSend = Callable[[Value], Send | None]
"""Returns a send of this value to any partition, or None."""


class Lost(NamedTuple):
    """A range of offsets, from `first` up to `end` (exclusive), whose records a test has declared lost at the time `at`."""

    first: int
    end: int
    at: float


class Excuses:
    """The declarations for a partition, indexed for look-ups by offset."""

    def __init__(self, declared: Declared, end_known_at: Callable[[float], int]) -> None:
        self.log_start = declared.log_start
        self.losses = [Lost(f, end_known_at(at) if end is None else end, at) for f, end, at in declared.losses]
        hidden = [*declared.absent, *((first, end) for first, end, _ in self.losses)]
        if self.log_start > 0:
            hidden.append((0, self.log_start))
        self._hidden = _merged(hidden)

    def hide(self, offsets: Iterable[int]) -> None:
        """These single offsets need no record either."""
        self._hidden = _merged([*self._hidden, *((offset, offset + 1) for offset in offsets)])

    def forgives(self, offset: int, began_at: float) -> bool:
        return any(began_at <= at and first <= offset < end for first, end, at in self.losses)

    def touched(self, offset: int) -> bool:
        """Whether the offset lies in a declared loss, so that it may have been given to another record."""
        return any(first <= offset < end for first, end, _ in self.losses)

    def hidden(self, offset: int) -> bool:
        i = bisect_right(self._hidden, (offset, float("inf"))) - 1
        return i >= 0 and offset < self._hidden[i][1]

    def hidden_between(self, first: int, end: int) -> int:
        """Number of offsets from `first` on, before `end`, that need no record."""
        i = max(0, bisect_right(self._hidden, (first, float("inf"))) - 1)
        number = 0
        while i < len(self._hidden) and self._hidden[i][0] < end:
            number += max(0, min(end, self._hidden[i][1]) - max(first, self._hidden[i][0]))
            i += 1
        return number


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


class Fork(NamedTuple):
    """A reader saw a different value at an offset than an earlier reader."""

    offset: int
    before: Value
    value: Value
    at: float


class FirstRead(NamedTuple):
    """Values that no poll had read before."""

    at: float
    values: Sequence[Value]


class View:
    def __init__(
        self,
        partition: Partition,
        sends: list[Send],
        polls: list[Poll],
        latests: list[Latest],
        epochs: list[SeenEpoch],
        declared: Declared,
        *,
        binding: frozenset[int],
        idempotent: bool,
        final_expected: bool,
        unplaced: Sequence[Send],
        find_send: FindSend,
    ) -> None:
        self.partition = partition
        self.sends = sends
        """The sends to this partition, in the order of invocation."""
        self.polls = polls
        self.latests = latests
        self.epochs = epochs
        self.binding = binding
        """The acks whose acknowledgements are promises."""
        self.idempotent = idempotent
        self.unplaced = unplaced
        """Sends with an unknown partition, which may be this one."""
        self.find_send = find_send
        self.excuses = Excuses(declared, self._end_known_at)
        self.log_start = declared.log_start
        self.compacted = declared.compacted

        self.promised: list[Send] = []
        """Sends whose acknowledgements are promises, and whose loss no declaration excuses."""
        self.unpromised: list[Send] = []
        """The other acknowledged sends."""
        self.send_of: dict[Value, Send] = {}
        """Value -> its send; if there are several, one that did not fail."""
        self.repeated: dict[Value, list[Send]] = {}
        """Sends of the values that were sent more than once (by an application that retries)."""
        self._take_sends()

        self.read_at: dict[int, Value] = {}
        """Offset -> the value that was first read there, without reads that a declared loss excuses."""
        self.forks: list[Fork] = []
        self.first_reads: list[FirstRead] = []
        self.final_at: dict[int, Value] | None = {} if final_expected or any(p.final for p in polls) else None
        """Offset -> value in the final read; None: there was no final read."""
        self.followers_only: set[int] = set()
        """Offsets that were read from followers only."""
        self.excused_reads: dict[Value, int] = {}
        """Value -> offset, for reads within a declared loss."""
        self._take_polls()

        self.place_of: dict[Value, int] = dict(zip(self.read_at.values(), self.read_at, strict=True))
        """Value -> an offset at which it was read."""
        self.all_places_differ = len(self.place_of) == len(self.read_at)
        """Whether no value was read at two offsets."""
        for fork in self.forks:
            self.place_of.setdefault(fork.value, fork.offset)
        self.removable = None if self.compacted is None else Removable(self)
        """The records that a cleaner may have removed; None if the partition is not compacted."""
        if self.removable is not None:
            self.excuses.hide(self.removable.since)
        self.fences: set[int] = set()
        """Offsets right before the first record with a fencing token, which may store that token."""
        self.unplaced_fences = 0
        """Number of fences that may lie at other offsets."""
        self._take_fences()

    def may_lack(self, offset: int, at: float = float("inf")) -> bool:
        """Whether a cleaner may have removed the record at this offset before this time."""
        return self.removable is not None and self.removable.may_lack(offset, at)

    def may_lie_unread(self, *, removed: bool = False) -> float:
        """Maximum number of records in the log whose offsets no client knows. `removed`: of those that a cleaner may have
        removed."""
        known = {send.value for send in self.promised if send.offset >= 0}
        number = 0 if removed else len(self.unplaced)
        possible = {send.value: send for send in self.unplaced} if removed else {}
        for value, send in (self.send_of | possible).items():
            if send.outcome == FAIL or (removed and not self._may_be_removed(send)):
                continue
            if not self.is_idempotent(send):
                return float("inf")  # any number of copies
            number += value not in self.place_of and value not in known
        return number

    def _may_be_removed(self, send: Send) -> bool:
        return self.removable is not None and self.removable.may_lack_unplaced(send)

    def is_idempotent(self, send: Send) -> bool:
        return send.acks == ALL and (self.idempotent if send.idempotent is None else send.idempotent)

    # -- what was sent

    def _take_sends(self) -> None:
        send_of, promised, losses = self.send_of, self.promised, self.excuses.losses
        for send in self.sends:
            if send_of.setdefault(send.value, send) is not send:
                self._repeat(send)
            if send.outcome != OK:
                continue
            if send.acks not in self.binding or (losses and self.excuses.forgives(send.offset, send.invoked_at)):
                self.unpromised.append(send)
            else:
                promised.append(send)

    def _repeat(self, send: Send) -> None:
        other = self.send_of[send.value]
        self.repeated.setdefault(send.value, [other]).append(send)
        if other.outcome == FAIL:
            self.send_of[send.value] = send

    # -- what was read

    def _take_polls(self) -> None:
        by_leaders: set[int] = set()
        followers = any(poll.follower for poll in self.polls)
        for poll in self.polls:
            offsets, values = poll.offsets, poll.values
            if self.excuses.losses and not poll.final:
                offsets, values = self._held_to(poll)
            self._take_records(offsets, values, poll.ended_at)
            if poll.final:
                assert self.final_at is not None
                self.final_at.update(zip(offsets, values, strict=True))
            if followers and not poll.follower:
                by_leaders.update(offsets)
        if followers:
            self.followers_only = self.read_at.keys() - by_leaders

    def _held_to(self, poll: Poll) -> tuple[Sequence[int], Sequence[Value]]:
        """The records of the poll that can be checked: those outside lost ranges. Consumers fetch ahead, so even a late poll may
        return records of a lost range that were fetched before the loss."""
        offsets, values = array("q"), []
        for offset, value in zip(poll.offsets, poll.values, strict=True):
            if self.excuses.touched(offset):
                self.excused_reads[value] = offset
                self.first_reads.append(FirstRead(poll.ended_at, [value]))
            else:
                offsets.append(offset)
                values.append(value)
        return offsets, values

    def _take_records(self, offsets: Sequence[int], values: Sequence[Value], at: float) -> None:
        """Add records that were read. The usual cases, all records new or all known, need no Python loop."""
        read_at = self.read_at
        known = list(map(read_at.get, offsets, repeat(NOTHING)))
        if known == values:
            return
        if known.count(NOTHING) == len(known):
            size = len(read_at)
            read_at.update(zip(offsets, values, strict=True))
            self.first_reads.append(FirstRead(at, values))
            if len(read_at) < size + len(known):  # one offset twice in this very poll
                self.forks += [Fork(o, read_at[o], v, at) for o, v in zip(offsets, values, strict=True) if read_at[o] != v]
            return
        new = []
        for offset, value in zip(offsets, values, strict=True):
            before = read_at.setdefault(offset, value)
            if before is value:
                new.append(value)
            elif before != value:
                self.forks.append(Fork(offset, before, value, at))
        self.first_reads.append(FirstRead(at, new))

    def _take_fences(self) -> None:
        """Find the fences, the offsets that store a fencing token. A token has at most one fence, usually right before the first
        record with the token. If another record was read at that offset, either the fence lies somewhere before it, because its
        leader failed before the followers had the first record; or the other record was lost, and the fence has its offset. If
        the log has lost the fence, the next record with the token needs a new fence; then this record has a lower offset than the
        token's record before it."""
        offsets: dict[int, list[int]] = {}
        """Token -> the known offsets of its records, in the order of sending."""
        for send in self.sends:
            if send.fencing_token >= 0 and send.outcome != FAIL:
                known = offsets.setdefault(send.fencing_token, [])
                offset = send.offset if send.outcome == OK else self.place_of.get(send.value, -1)
                if offset >= 0:
                    known.append(offset)
        for known in offsets.values():
            self.fences.update(after - 1 for before, after in pairwise([_TOP, *known]) if after < before)
        placed = {min(known) - 1 for known in offsets.values() if known}.difference(self.read_at)
        self.excuses.hide(placed)
        self.unplaced_fences = len(offsets) - len(placed)

    # -- derived on first use

    @cached_property
    def placed(self) -> list[Send]:
        """Promised sends with a known offset."""
        return [send for send in self.promised if send.offset >= 0]

    @cached_property
    def committed(self) -> list[Send]:
        """Sends of `placed` with acks=all, which were below the high watermark when they were acknowledged."""
        return [send for send in self.placed if send.acks == ALL]

    @cached_property
    def placed_by_end(self) -> list[Send]:
        return sorted(self.placed, key=attrgetter("ended_at"))

    @cached_property
    def read_offsets(self) -> list[int]:
        """All offsets that were read, ascending."""
        return sorted(self.read_at)

    @cached_property
    def leader_offsets(self) -> list[int]:
        """Offsets that were read from leaders, ascending; no consumer may skip them."""
        return sorted(self.read_at.keys() - self.followers_only) if self.followers_only else self.read_offsets

    @cached_property
    def final_values(self) -> set[Value]:
        return set((self.final_at or {}).values())

    @cached_property
    def highest_read(self) -> int:
        return max(self.read_at, default=-1)

    @cached_property
    def lowest_expected(self) -> int:
        """The offset at which reading should have begun: the log start, unless every consumer began with a seek."""
        first: dict[Hashable, Poll] = {}
        for poll in self.polls:
            if poll.offsets:
                first.setdefault(poll.process, poll)
        if all(poll.sought for poll in first.values()):
            return max(self.log_start, min(self.read_at, default=0))
        return self.log_start

    def _end_known_at(self, at: float) -> int:
        """The minimum end of the log that is known from acknowledged sends that had begun, and reads and answers that had
        ended, by then."""
        ends = [s.offset + 1 for s in self.sends if s.outcome == OK and s.invoked_at <= at]
        ends += [p.offsets[-1] + 1 for p in self.polls if p.offsets and p.ended_at <= at]
        ends += [answer.offset for answer in self.latests if answer.ended_at <= at]
        return max(ends, default=0)


def is_run(offsets: Sequence[int]) -> bool:
    """Whether the offsets are n, n + 1, n + 2, ..."""
    size = len(offsets)
    if size == 0 or offsets[-1] - offsets[0] != size - 1:
        return size == 0
    return size == 1 or list(offsets) == list(range(offsets[0], offsets[0] + size))


class Stretches:
    """Open intervals (before, after) of offsets that a consumer skipped in one step, for look-ups."""

    def __init__(self, steps: Sequence[tuple[int, int]]) -> None:
        self._befores: list[int] = []
        self._afters: list[int] = []
        """Per step, the highest `after` of it and all steps before it."""
        furthest = -1
        for before, after in sorted(steps):
            furthest = max(furthest, after)
            self._befores.append(before)
            self._afters.append(furthest)

    def over(self, before: int, after: int) -> bool:
        """Whether a step went from `before` or earlier to `after` or later."""
        i = bisect_right(self._befores, before) - 1
        return i >= 0 and self._afters[i] >= after


def those_between(offsets: Sequence[int], first: int, end: int) -> tuple[int, int]:
    """(number, first) of the offsets from `first` on, before `end`; (0, -1) if there are none. `offsets` must be ascending."""
    low, high = bisect_left(offsets, first), bisect_left(offsets, end)
    return (high - low, offsets[low]) if high > low else (0, -1)
