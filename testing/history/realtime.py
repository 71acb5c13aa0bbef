"""Checks between clients by the clock: the end of the log never goes back, and no leader acknowledges a send that began after its
successor was seen. Also two measures: how long reads lag behind acknowledgements, and how many records are unread."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Hashable
from math import inf
from operator import attrgetter
from typing import NamedTuple

from strandline.testing.history.operations import ALL, Latest, Poll, SeenEpoch, Send
from strandline.testing.history.verdict import Findings, Lag, short
from strandline.testing.history.view import View

_Source = Send | Poll | Latest

# -- the end of the log


def check_latest(view: View, findings: Findings) -> None:
    """A request for the end of the log must not return less than what was acknowledged, read or answered before it began."""
    if not view.latests:
        return
    _check_each_client(view, findings)
    floors = _floors(view)
    i = end = 0
    known: _Source | None = None
    for answer in sorted(view.latests, key=attrgetter("began_at")):
        while i < len(floors) and floors[i].ended_at < answer.began_at:
            source = floors[i]
            i += 1
            if isinstance(source, _Lowered):
                end = min(end, source.end)
            elif _end(source) > end:
                end, known = _end(source), source
        if answer.offset < end and not _excused(view, answer):
            text = f"{answer.process} was told {answer.offset}, after {_told(known)}"
            findings.add("nonmonotonic-latest", view.partition, text, answer.offset, answer.ended_at)
    _check_final_end(view, findings)


class _Lowered(NamedTuple):
    """A declared loss, after which the log may end at its first offset."""

    end: int
    ended_at: float


def _floors(view: View) -> list[_Source | _Lowered]:
    """Operations that prove a minimum end of the log, and declared losses, by the time at which they ended."""
    floors: list[_Source | _Lowered] = [*sorted(view.committed, key=attrgetter("ended_at"))]
    floors += [p for p in view.polls if p.offsets and (p.final or not view.excuses.touched(p.offsets[-1]))]
    floors += [answer for answer in view.latests if not _excused(view, answer)]
    floors += [_Lowered(first, at) for first, _, at in view.excuses.losses]
    floors.sort(key=attrgetter("ended_at"))
    return floors


def _end(source: _Source) -> int:
    if isinstance(source, Send):
        return source.offset + 1
    return source.offset if isinstance(source, Latest) else source.offsets[-1] + 1


def _told(source: _Source | None) -> str:
    if isinstance(source, Send):
        return f"offset {source.offset} had been acknowledged to {source.process}"
    if isinstance(source, Poll):
        return f"{source.process} had read offset {source.offsets[-1]}"
    return "nothing" if source is None else f"{source.process} had been told {source.offset}"


def _excused(view: View, answer: Latest) -> bool:
    """Whether the answer may be from before a loss that was declared later."""
    return any(answer.began_at <= at and answer.offset >= first for first, _, at in view.excuses.losses)


def _check_each_client(view: View, findings: Findings) -> None:
    """The answers to one client must not go back. They are ordered without a clock, as a client does one request at a time."""
    last: dict[Hashable, Latest] = {}
    for answer in view.latests:
        before = last.get(answer.process)
        last[answer.process] = answer
        if before is None or answer.offset >= before.offset or before.ended_at < answer.began_at:
            continue
        if not _excused(view, answer) and not _excused(view, before):
            text = f"{answer.process} was told {answer.offset}, after it had been told {before.offset}"
            findings.add("nonmonotonic-latest", view.partition, text, answer.offset, answer.ended_at)


def _check_final_end(view: View, findings: Findings) -> None:
    """The final read must reach the highest end that was ever answered."""
    final = [poll for poll in view.polls if poll.final]
    if not final:
        return
    began = final[0].ended_at if final[0].began_at is None else final[0].began_at
    end = max(view.log_start, *(p.offsets[-1] + 1 for p in final if p.offsets), 0)
    before = [a for a in view.latests if a.ended_at < began and not view.excuses.touched(a.offset - 1)]
    highest = max(before, key=attrgetter("offset"), default=None)
    if highest is not None and highest.offset > end and not _ends_without_records(view, end, highest.offset):
        text = f"the final read ended at {end}, after {highest.process} had been told {highest.offset}"
        findings.add("nonmonotonic-latest", view.partition, text, end, began)


def _ends_without_records(view: View, end: int, highest: int) -> bool:
    """Whether a cleaner may have removed all records between the last one that was read and the end of the log."""
    if view.removable is None:
        return False
    return highest - end <= view.excuses.hidden_between(end, highest) + view.may_lie_unread(removed=True)


# -- deposed leaders that still acknowledge


def check_stale_leaders(view: View, findings: Findings) -> None:
    """An old leader must not acknowledge acks=all, which needs followers that have left it. With acks=1 it may."""
    acked = [send for send in view.promised if send.acks == ALL and send.leader_epoch >= 0]
    if not acked:
        return
    seen: list[SeenEpoch | Send] = [*view.epochs, *acked]
    if max(s.leader_epoch for s in seen) == min(s.leader_epoch for s in acked):
        return
    seen.sort(key=attrgetter("ended_at"))
    acked.sort(key=attrgetter("invoked_at"))
    i = 0
    newest: SeenEpoch | Send | None = None
    for send in acked:
        while i < len(seen) and seen[i].ended_at < send.invoked_at:
            if newest is None or seen[i].leader_epoch > newest.leader_epoch:
                newest = seen[i]
            i += 1
        if newest is not None and newest.leader_epoch > send.leader_epoch:
            text = (
                f"{short(send.value)}, sent at {send.invoked_at:.3f} s, was acknowledged by the leader of epoch "
                f"{send.leader_epoch}; {newest.process} had seen epoch {newest.leader_epoch} at {newest.ended_at:.3f} s"
            )
            findings.add("stale-leader-ack", view.partition, text, send.offset, send.ended_at)


# -- how far behind


def worst_lag(view: View) -> Lag | None:
    """The worst lag of all polls, measured as in Jepsen: the time, before the start of the poll, since which a record that the
    poll did not reach was known to be in the log (acknowledged or read). None: no poll has a known start and position."""
    if not any(poll.began_at is not None and not poll.final for poll in view.polls):
        return None
    sends = sorted(view.committed, key=attrgetter("offset"))
    acked = _Known([send.offset for send in sends], [send.ended_at for send in sends])
    polls = sorted((poll for poll in view.polls if poll.offsets), key=lambda poll: poll.offsets[-1])
    read = _Known([poll.offsets[-1] for poll in polls], [poll.ended_at for poll in polls])
    reached: dict[Hashable, int | None] = {}
    worst: Lag | None = None
    for poll in view.polls:
        process = poll.process
        if poll.sought:
            reached[process] = None if poll.position is None else poll.position - 1
        if poll.offsets:
            reached[process] = poll.offsets[-1]
        position = reached.setdefault(process, -1)
        if poll.began_at is None or poll.final or position is None:
            continue
        missed = max(position + 1, view.log_start)
        lag = max(0.0, poll.began_at - min(acked.since(missed), read.since(missed)))
        if worst is None or lag > worst.seconds:
            worst = Lag(lag, process, view.partition, missed, poll.began_at)
    return worst


class _Known:
    """For each offset, the time since which the log was known to reach it. Proof of a later offset proves earlier ones, too."""

    def __init__(self, offsets: list[int], times: list[float]) -> None:
        self._offsets = offsets
        """Ascending."""
        self._times = times
        for i in range(len(times) - 2, -1, -1):
            if times[i + 1] < times[i]:
                times[i] = times[i + 1]

    def since(self, offset: int) -> float:
        i = bisect_left(self._offsets, offset)
        return self._times[i] if i < len(self._times) else inf


# -- acknowledged records that were not read


def check_unseen(view: View, acked_at: array[float], seen_at: array[float], healed_at: float | None, findings: Findings) -> None:
    """Report acknowledged records that were not read although the cluster was healed, and add the partition's times of
    acknowledgement and first read to `acked_at` and `seen_at`."""
    waiting = {s.value: s.ended_at for s in view.promised if s.offset < 0 or s.offset >= view.log_start}
    acked_at.extend(waiting.values())
    for at, values in view.first_reads:
        for value in values:
            acked = waiting.pop(value, None)
            if acked is not None:
                seen_at.append(acked if acked > at else at)
    if healed_at is None or view.final_at is not None:
        return  # with a final read, missing records are reported as lost-write
    for send in view.promised:
        if send.value not in waiting or view.lowest_expected <= send.offset <= view.highest_read:
            continue  # read, or reported as lost-write
        if view.may_lack(send.offset):
            continue
        text = f"{short(send.value)}, acknowledged at {send.offset}, was read by nobody"
        findings.add("unseen", view.partition, text, send.offset, send.ended_at)
