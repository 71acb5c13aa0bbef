"""Checks that every consumer read the log in order and without gaps, and that followers show the leader's log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from itertools import pairwise

from strandline.testing.history.operations import Poll
from strandline.testing.history.verdict import Findings, short
from strandline.testing.history.view import Stretches, View, is_run, those_between


def check_reads(view: View, findings: Findings) -> None:
    steps = _Steps(view, findings)
    steps.walk()
    if view.followers_only:
        _check_followers(view, Stretches(steps.of_leaders), findings)
    _check_gaps(view, steps.all, findings)


class _Steps:
    """Walks through all polls and finds the places where a consumer did not continue with the next offset."""

    def __init__(self, view: View, findings: Findings) -> None:
        self.view = view
        self.findings = findings
        self.all: list[tuple[int, int]] = []
        """(before, after) offsets of every step forward that skipped offsets."""
        self.of_leaders: list[tuple[int, int]] = []

    def walk(self) -> None:
        last: dict[Hashable, int | None] = {}
        for poll in self.view.polls:
            offsets, previous = poll.offsets, last.get(poll.process)
            if poll.sought:
                previous = None if poll.position is None else poll.position - 1
                last[poll.process] = previous
            if not offsets:
                continue
            if previous is not None and offsets[0] != previous + 1:
                self._step(poll, previous, offsets[0], "")
            if not is_run(offsets):
                for before, after in pairwise(offsets):
                    if after != before + 1:
                        self._step(poll, before, after, "int-")
            last[poll.process] = offsets[-1]

    def _step(self, poll: Poll, before: int, after: int, prefix: str) -> None:
        view = self.view
        if view.excuses.touched(before) or view.excuses.touched(after):
            return
        if after <= before:
            text = f"{poll.process} read offset {after} after {before}"
            self.findings.add(f"{prefix}nonmonotonic-poll", view.partition, text, after, poll.ended_at)
            return
        self.all.append((before, after))
        if not poll.follower:
            self.of_leaders.append((before, after))
        skipped, first = self._skipped(max(before + 1, view.log_start), after, poll.ended_at)
        if skipped:
            text = f"{poll.process} went from offset {before} to {after}, over {skipped} records, the first at {first}"
            self.findings.add(f"{prefix}poll-skip", view.partition, text, first, poll.ended_at)

    def _skipped(self, first: int, end: int, at: float) -> tuple[int, int]:
        """(number, first) of the records in this range that other consumers have read from leaders, and that were in the log."""
        offsets, removable, fences = self.view.leader_offsets, self.view.removable, self.view.fences
        if removable is None and not fences:
            return those_between(offsets, first, end)
        there = [o for o in offsets[bisect_left(offsets, first) : bisect_left(offsets, end)] if o not in fences]
        if removable is not None:
            there = [offset for offset in there if not removable.may_lack(offset, at)]
        return len(there), there[0] if there else -1


def _check_followers(view: View, stepped: Stretches, findings: Findings) -> None:
    """Report records that only followers showed, at offsets that a reader of the leader skipped: the leader has none there. With
    a final read, this check is not needed."""
    if view.final_at is not None:
        return  # with a final read, check_lost_writes has compared the two
    for offset in sorted(view.followers_only):
        if stepped.over(offset - 1, offset + 1) and not view.excuses.hidden(offset):
            text = f"a follower showed {short(view.read_at[offset])} at {offset}, where the leader's readers found nothing"
            findings.add("follower-read-subset", view.partition, text, offset)


def _check_gaps(view: View, steps: list[tuple[int, int]], findings: Findings) -> None:
    """Report offsets between the first and the last read offset that no consumer read and that nothing explains.

    An acknowledged record that was never read explains its offset (it is reported as lost). If a consumer skipped the gap,
    nothing else explains it, unless the partition is compacted: then records with an unknown outcome that a cleaner may have
    removed may have been there. If consumers began or ended at its sides, any sends with an unknown outcome may lie in it. In
    either case it may be a fence.
    """
    offsets = view.read_offsets
    if not offsets or offsets[-1] - offsets[0] == len(offsets) - 1:
        return
    stepped = Stretches(steps)
    unread = sorted(s.offset for s in view.promised if s.offset not in view.read_at and not view.excuses.hidden(s.offset))
    vague: list[tuple[int, int, int]] = []
    empty: list[tuple[int, int, int]] = []
    for before, after in pairwise(offsets):
        missing = after - before - 1
        if missing:
            missing -= view.excuses.hidden_between(before + 1, after) + those_between(unread, before + 1, after)[0]
        if missing > 0:
            (empty if stepped.over(before, after) else vague).append((before, after, missing))
    removed = view.may_lie_unread(removed=True) if view.removable is not None else 0
    _judge_gaps(view, findings, empty, removed + view.unplaced_fences)
    _judge_gaps(view, findings, vague, view.may_lie_unread() + view.unplaced_fences)


def _judge_gaps(view: View, findings: Findings, gaps: list[tuple[int, int, int]], explained: float) -> None:
    """Report all gaps if they are larger together than the number of records that may have been there."""
    if sum(missing for _, _, missing in gaps) > explained:
        for before, after, missing in gaps:
            _gap(view, findings, before, after, missing)


def _gap(view: View, findings: Findings, before: int, after: int, missing: int) -> None:
    text = f"{missing} offsets between {before} and {after} that nobody read or wrote"
    findings.add("gap", view.partition, text, before + 1)
