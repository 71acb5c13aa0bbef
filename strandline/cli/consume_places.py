"""Looks up, at the leaders, the offsets at which `strandline consume` begins and ends in each partition.

A partition whose leader does not answer delays none of the others: they are read while the leader is asked again. With
`exit_at_end`, such a partition is given up after a while and counts as missing. So does a partition that stalls before its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from strandline.cli.common import note
from strandline.cli.start import BeforeEnd, Beginning, Offset, Time
from strandline.protocol.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.cli.consume_job import Job
    from strandline.client import Admin, Consumer, OffsetAndTimestamp, TopicPartition

EARLIEST, LATEST = -2, -1
LOOK_MS = 2000
"""How long one request for offsets waits for the leaders."""
RETRY_S = 0.2
GIVE_UP_S = 10.0
"""Longer than a fail-over. A partition is missing if its leader has not answered after this time, or has sent nothing for it."""
NO_LEADER = "no leader has answered"
"""Why partitions are given up whose leaders did not say where their logs begin and end."""
NAMED_MAX = 4
"""At most this many partitions are named in a note; more are counted."""

Answers = dict["TopicPartition", "OffsetAndTimestamp | None"]


class Places:
    """The partitions of one command. `begin` asks each leader once; a task asks the silent leaders again, until `close`."""

    def __init__(self, consumer: Consumer, admin: Admin, job: Job, tps: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._admin = admin
        self._job = job
        self._count = len(tps)
        self._unknown = dict.fromkeys(tps)
        """Partitions whose leaders have not answered yet. They are assigned and paused."""
        self._learner: asyncio.Task[None] | None = None
        self._first: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        """The end of each partition when its leader answered."""
        self.left: dict[TopicPartition, None] = {}
        """With `exit_at_end`, the partitions that are not yet read to their end."""
        self.missing: list[TopicPartition] = []
        """With `exit_at_end`, the partitions that were given up."""
        self.reason = ""
        """Why the first missing partition was given up."""

    @property
    def are_done(self) -> bool:
        """Whether there is nothing more to read."""
        return self._job.exit_at_end and not self.left and (self._learner is None or self._learner.done())

    @property
    def failure(self) -> str:
        """The sentence about the partitions that were given up; empty if there are none."""
        if not self.missing:
            return ""
        unread = {*self.missing, *self.left, *self._unknown}
        others = "; the others were" if unread == {*self.missing} and len(unread) < self._count else ""
        return f"{named(self.missing)} could not be read to the end: {self.reason}{others}"

    async def begin(self) -> None:
        """Ask all leaders once, read the partitions whose leaders answer, and start a task that asks the other leaders again."""
        await self._look()
        if self._unknown:
            note(f"still waiting for the leaders of {named(self._unknown)}, to learn where the log ends (Ctrl-C ends)")
            self._learner = asyncio.ensure_future(self._learn())
        elif self._job.exit_at_end and not self.left:
            note(f"nothing to read: {self._job.topic} has no record from {self._job.start_text} to its end")

    async def close(self) -> None:
        if self._learner is not None:
            self._learner.cancel()
            with suppress(asyncio.CancelledError):
                await self._learner

    async def on_polled(self, idle_s: float) -> None:
        """Called after each poll: note the partitions that are read to their end, and give up stalled ones. `idle_s`: for how
        many seconds the consumer has returned nothing."""
        if not self._job.exit_at_end:
            return
        for tp in list(self.left):
            if await self._consumer.position(tp) >= self.ends[tp]:
                del self.left[tp]
        if idle_s >= GIVE_UP_S and self.left:
            error = self._consumer.health()["last_error"] or f"nothing has arrived for {GIVE_UP_S:g} s"
            self._give_up(self.left, str(error))
            self.left = {}

    async def _learn(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GIVE_UP_S
        while self._unknown and not (self._job.exit_at_end and loop.time() > deadline):
            await asyncio.sleep(RETRY_S)
            await self._look()
        if self._unknown:
            self._give_up(self._unknown, NO_LEADER)

    def _give_up(self, tps: Iterable[TopicPartition], reason: str) -> None:
        self.missing += sorted(tps)
        self.reason = self.reason or reason

    async def _look(self) -> None:
        """Ask the leaders of the unknown partitions, and begin to read those whose leaders answer."""
        job, tps = self._job, list(self._unknown)
        timestamps = [EARLIEST, LATEST, *([job.start.timestamp_ms] if isinstance(job.start, Time) else [])]
        firsts, ends, *times = await asyncio.gather(*(self._ask(tps, timestamp) for timestamp in timestamps))
        outside = []
        for tp in tps:
            first, end = firsts.get(tp), ends.get(tp)
            if first is None or end is None or (times and tp not in times[0]):
                continue
            self._first[tp], self.ends[tp] = first.offset, end.offset
            if self._begin(tp, self._wanted(tp, times[0][tp] if times else None)) and isinstance(job.start, Offset):
                outside.append(tp)
        if outside:
            note(_outside(job.start_text, outside, self._first, self.ends))

    async def _ask(self, tps: list[TopicPartition], timestamp: int) -> Answers:
        from strandline.client import UnknownTopic

        try:
            return await self._admin.list_offsets(
                dict.fromkeys(tps, timestamp), isolation_level=self._job.isolation_level, timeout_ms=LOOK_MS
            )
        except UnknownTopic:
            raise
        except StrandlineError:
            return {}

    def _wanted(self, tp: TopicPartition, at_time: OffsetAndTimestamp | None) -> int:
        """The offset that the user asked for, which can be outside the log."""
        match self._job.start:
            case Beginning():
                return self._first[tp]
            case Offset(offset):
                return offset
            case BeforeEnd(records):
                return self.ends[tp] - records
            case Time():
                return self.ends[tp] if at_time is None else at_time.offset
            case _:
                return self.ends[tp]

    def _begin(self, tp: TopicPartition, wanted: int) -> bool:
        """Read the partition from this offset on, or from the nearest offset in the log. Returns True if that is another one."""
        moved = min(max(wanted, self._first[tp]), self.ends[tp])
        self._consumer.seek(tp, moved)
        self._consumer.resume(tp)
        del self._unknown[tp]
        if self._job.exit_at_end and moved < self.ends[tp]:
            self.left[tp] = None
        return moved != wanted


def named(tps: Collection[TopicPartition]) -> str:
    """The partitions in a sentence."""
    if len(tps) <= NAMED_MAX:
        return ", ".join(map(str, sorted(tps)))
    return f"{len(tps)} partitions of {min(tps).topic}"


def _outside(text: str, outside: list[TopicPartition], first: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> str:
    held = [f"{tp} ({_held(first[tp], ends[tp])})" for tp in outside[:NAMED_MAX]]
    more = f" and {len(outside) - NAMED_MAX} more" if len(outside) > NAMED_MAX else ""
    return f"offset {text} is not in the log of {', '.join(held)}{more}; reading starts at the nearest offset"


def _held(first: int, end: int) -> str:
    if end - first <= 1:
        return "empty" if first == end else f"offset {first}"
    return f"offsets {first} to {end - 1}"
