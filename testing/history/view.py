"""One partition as all its clients together know it: which value stands where, and who can be held to what.

Built once per partition, in a few passes; every check is a pass over it. Memory is a few dictionaries of the partition's
size, and partitions are judged one after the other.

Not everything that was acknowledged is promised: the caller says which acks bind (`binding`), and whatever lies in a declared
loss may be lost. Acknowledgements that do not bind say nothing about the log here. What was *read* binds,
whoever sent it: it was below the high watermark.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

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

NOTHING = object()
"""What no value is equal to."""

FindSend = Callable[[Value], Send | None]
"""A send of this value to any partition."""


class Lost(NamedTuple):
    """A declared loss whose end is known."""

    first: int
    end: int
    at: float


class Excuses:
    """What was declared for a partition, ready to be asked."""

    def __init__(self, declared: Declared, end_known_at: Callable[[float], int]) -> None:
        self.log_start = declared.log_start
        self.losses = [Lost(f, end_known_at(at) if end is None else end, at) for f, end, at in declared.losses]
        hidden = [*declared.absent, *((first, end) for first, end, _ in self.losses)]
        if self.log_start > 0:
            hidden.append((0, self.log_start))
        self._hidden = _merged(hidden)

    def forgives(self, offset: int, began_at: float) -> bool:
        return any(began_at <= at and first <= offset < end for first, end, at in self.losses)

    def touched(self, offset: int) -> bool:
        """It was, or may have been, given to another record."""
        return any(first <= offset < end for first, end, _ in self.losses)

    def hidden(self, offset: int) -> bool:
        i = bisect_right(self._hidden, (offset, float("inf"))) - 1
        return i >= 0 and offset < self._hidden[i][1]

    def hidden_between(self, first: int, end: int) -> int:
        """How many offsets from `first` on, before `end`, need no record."""
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
    """A reader saw another value where one had been read before."""

    offset: int
    before: Value
    value: Value
    at: float


class FirstRead(NamedTuple):
    """Values that a poll was the first to read."""

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
        unplaced: int,
        find_send: FindSend,
    ) -> None:
        self.partition = partition
        self.sends = sends
        """In the order of invocation."""
        self.polls = polls
        self.latests = latests
        self.epochs = epochs
        self.binding = binding
        """The acks whose acknowledgements are promises."""
        self.idempotent = idempotent
        self.unplaced = unplaced
        """Sends to whatever partition, that may be in this one."""
        self.find_send = find_send
        self.excuses = Excuses(declared, self._end_known_at)
        self.log_start = declared.log_start

        self.promised: list[Send] = []
        """Their acknowledgements bind, and nothing was declared that excuses their loss."""
        self.unpromised: list[Send] = []
        """Acknowledged, too."""
        self.send_of: dict[Value, Send] = {}
        """One that did not fail, if there are several of one value."""
        self.repeated: dict[Value, list[Send]] = {}
        """Values that were sent more than once (an application that tries again)."""
        self._take_sends()

        self.read_at: dict[int, Value] = {}
        """Offset -> what was first read there, but for what a declared loss excuses."""
        self.forks: list[Fork] = []
        self.first_reads: list[FirstRead] = []
        self.final_at: dict[int, Value] | None = {} if final_expected or any(p.final for p in polls) else None
        """The same of the final read; None: there was none."""
        self.followers_only: set[int] = set()
        """Offsets that no leader has shown."""
        self.excused_reads: dict[Value, int] = {}
        """Value -> offset, within a declared loss."""
        self._take_polls()

        self.place_of: dict[Value, int] = dict(zip(self.read_at.values(), self.read_at, strict=True))
        """Value -> an offset at which it was read."""
        self.all_places_differ = len(self.place_of) == len(self.read_at)
        """No value was read at two offsets."""
        for fork in self.forks:
            self.place_of.setdefault(fork.value, fork.offset)

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
        """Records are fetched ahead: however late a poll, what it shows of a lost range may be older than the loss."""
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
        """The usual cases, all of it new or all of it known, are done without a loop of ours."""
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

    # -- derived, when asked for

    @cached_property
    def placed(self) -> list[Send]:
        """What is promised to be at a known offset."""
        return [send for send in self.promised if send.offset >= 0]

    @cached_property
    def committed(self) -> list[Send]:
        """Those of `placed` that were below the high watermark when they were acknowledged: with acks=all."""
        return [send for send in self.placed if send.acks == ALL]

    @cached_property
    def placed_by_end(self) -> list[Send]:
        return sorted(self.placed, key=attrgetter("ended_at"))

    @cached_property
    def read_offsets(self) -> list[int]:
        """Ascending."""
        return sorted(self.read_at)

    @cached_property
    def leader_offsets(self) -> list[int]:
        """Ascending; what leaders showed, and what may be skipped by nobody."""
        return sorted(self.read_at.keys() - self.followers_only) if self.followers_only else self.read_offsets

    @cached_property
    def final_values(self) -> set[Value]:
        return set((self.final_at or {}).values())

    @cached_property
    def highest_read(self) -> int:
        return max(self.read_at, default=-1)

    @cached_property
    def lowest_expected(self) -> int:
        """Where reading should have begun: at the start, unless every consumer said that it began elsewhere."""
        first: dict[Hashable, Poll] = {}
        for poll in self.polls:
            if poll.offsets:
                first.setdefault(poll.process, poll)
        if all(poll.sought for poll in first.values()):
            return max(self.log_start, min(self.read_at, default=0))
        return self.log_start

    def _end_known_at(self, at: float) -> int:
        """How far the log reached at least, from what had begun by then."""
        ends = [s.offset + 1 for s in self.sends if s.outcome == OK and s.invoked_at <= at]
        ends += [p.offsets[-1] + 1 for p in self.polls if p.offsets and p.ended_at <= at]
        ends += [answer.offset for answer in self.latests if answer.ended_at <= at]
        return max(ends, default=0)


def is_run(offsets: Sequence[int]) -> bool:
    """n, n + 1, n + 2, ..."""
    size = len(offsets)
    if size == 0 or offsets[-1] - offsets[0] != size - 1:
        return size == 0
    return size == 1 or list(offsets) == list(range(offsets[0], offsets[0] + size))


class Stretches:
    """Open intervals (before, after) of offsets that some consumer went over in one step; was one of them over this?"""

    def __init__(self, steps: Sequence[tuple[int, int]]) -> None:
        self._befores: list[int] = []
        self._afters: list[int] = []
        """The furthest `after` of all steps up to this one."""
        furthest = -1
        for before, after in sorted(steps):
            furthest = max(furthest, after)
            self._befores.append(before)
            self._afters.append(furthest)

    def over(self, before: int, after: int) -> bool:
        """A step from `before` or earlier to `after` or later."""
        i = bisect_right(self._befores, before) - 1
        return i >= 0 and self._afters[i] >= after


def those_between(offsets: Sequence[int], first: int, end: int) -> tuple[int, int]:
    """Of ascending offsets, how many lie from `first` on and before `end`, and the first of them (-1: none does)."""
    low, high = bisect_left(offsets, first), bisect_left(offsets, end)
    return (high - low, offsets[low]) if high > low else (0, -1)
