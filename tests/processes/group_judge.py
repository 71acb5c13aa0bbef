"""Judges a consumer group by the files of its members (`group_member.py`), the acknowledged records, and the committed offsets.

A partition is *owned* from `on_assigned` until `on_revoked` or the death of the member's process. A partition that was lost (the
coordinator has removed the member, and the member is notified later) was owned until the last of its records was handed over: the
member returns none after its session.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple


class Tenure(NamedTuple):
    """One member has owned one partition: from when until when, and in which member epochs."""

    member: str
    partition: int
    began: float
    ended: float
    first_epoch: int
    """-1: unknown."""
    last_epoch: int

    def __str__(self) -> str:
        times = f"{self.began:.3f} to {self.ended:.3f} s"
        return f"{self.member}, {times}, epochs {self.first_epoch} to {self.last_epoch}"


class Handed(NamedTuple):
    """Records of one partition that one call has returned."""

    member: str
    at: float
    partition: int
    first: int
    next: int
    numbers: list[int]


class Poll(NamedTuple):
    """Committed offsets by partition: what OffsetFetch has answered at a time (when the answer had arrived)."""

    at: float
    offsets: dict[int, int]


@dataclass
class Findings:
    tenures: list[Tenure] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """One sentence for each claim that does not hold."""
    commits_failed: Counter[str] = field(default_factory=Counter)
    """Error -> the number of commits that failed with it."""
    lost: int = 0


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a member's file; it may have died while it wrote the last one."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class _Owned(NamedTuple):
    began: float
    first_epoch: int


class _Member:
    """Reads the lines of one member's process."""

    def __init__(self, name: str, findings: Findings) -> None:
        self.name = name
        self.findings = findings
        self.owned: dict[int, _Owned] = {}
        self.handed_at: dict[int, tuple[float, int]] = {}
        """Partition -> when records of it were last handed over, and the epoch then."""
        self.epoch = 0
        """The newest member epoch of the process."""

    def read(self, lines: Iterable[dict[str, Any]], died_at: float | None) -> None:
        at = 0.0
        for line in lines:
            at = line["at"]
            getattr(self, "on_" + line["do"].replace(" ", "_"))(line)
            self.epoch = max(self.epoch, line["epoch"])
        end = at if died_at is None else max(at, died_at)
        for partition in list(self.owned):
            self._end(partition, end, self.epoch)

    def on_assigned(self, line: dict[str, Any]) -> None:
        for partition in line["partitions"]:
            if partition in self.owned:
                self.findings.wrong.append(f"{self.name} was assigned partition {partition} twice")
            self.owned[partition] = _Owned(line["at"], line["epoch"])
            self.handed_at.pop(partition, None)

    def on_revoked(self, line: dict[str, Any]) -> None:
        for partition in line["partitions"]:
            self._end(partition, line["at"], max(line["epoch"], self.epoch))

    def on_lost(self, line: dict[str, Any]) -> None:
        self.findings.lost += len(line["partitions"])
        for partition in line["partitions"]:
            owned = self.owned.get(partition, _Owned(line["at"], self.epoch))
            self._end(partition, *self.handed_at.get(partition, owned))
        self.epoch = 0

    def _end(self, partition: int, at: float, epoch: int) -> None:
        owned = self.owned.pop(partition, None)
        if owned is None:
            self.findings.wrong.append(f"{self.name} gave up partition {partition}, which it did not own")
            return
        self.findings.tenures.append(Tenure(self.name, partition, owned.began, at, owned.first_epoch, epoch))

    def on_records(self, line: dict[str, Any]) -> None:
        partition = line["partition"]
        if partition not in self.owned:
            self.findings.wrong.append(f"{self.name} got records of partition {partition}, which it did not own")
        self.handed_at[partition] = line["at"], line["epoch"]
        handed = Handed(self.name, line["at"], partition, line["first"], line["next"], line["numbers"])
        self.findings.handed.append(handed)

    def on_committed(self, line: dict[str, Any]) -> None:
        pass

    def on_commit_failed(self, line: dict[str, Any]) -> None:
        self.findings.commits_failed[line["reason"].partition(":")[0]] += 1

    def on_ended(self, line: dict[str, Any]) -> None:
        for partition in list(self.owned):
            self.findings.wrong.append(f"{self.name} has ended and not given up partition {partition}")
            self._end(partition, line["at"], self.epoch)


def judge(
    files: dict[Path, float | None], acknowledged: dict[int, set[int]], polls: list[Poll], ends: dict[int, int]
) -> Findings:
    """Judge the files of all processes. `files`: each process's file, and when it was killed. `acknowledged`: the numbers of the
    records by partition. `ends`: the log ends by partition, which are committed at the end."""
    findings = Findings()
    for file, died_at in files.items():
        _Member(file.name, findings).read(lines_of(file), died_at)
    findings.handed.sort(key=lambda handed: handed.at)
    findings.wrong += [
        *_overlaps(findings.tenures),
        *_unprocessed(findings.handed, acknowledged),
        *_regressed(polls),
        *_ahead(findings.handed, polls),
        *_behind(polls, ends),
    ]
    return findings


def _overlaps(tenures: list[Tenure]) -> Iterator[str]:
    """Two members have owned a partition at the same time, or in the same epoch."""
    for partition in sorted({tenure.partition for tenure in tenures}):
        of_partition = sorted((t for t in tenures if t.partition == partition), key=lambda tenure: tenure.began)
        for earlier, later in pairwise(of_partition):
            if later.began < earlier.ended:
                yield f"partition {partition} was owned by two members at the same time: {earlier}; {later}"
            if 0 <= later.first_epoch <= earlier.last_epoch and _holder(later) != _holder(earlier):
                yield f"partition {partition} was owned by two members in the same epoch: {earlier}; {later}"


def _holder(tenure: Tenure) -> str:
    """The member as the coordinator counts it: the processes of a static member, `static-1.0` and `static-1.1`, are one."""
    return tenure.member.partition(".")[0] if tenure.member.startswith("static") else tenure.member


def _unprocessed(handed: list[Handed], acknowledged: dict[int, set[int]]) -> Iterator[str]:
    for partition, numbers in acknowledged.items():
        seen = {number for each in handed if each.partition == partition for number in each.numbers}
        missing = sorted(numbers - seen)
        if missing:
            yield f"{len(missing)} acknowledged records of partition {partition} were not processed, the first is {missing[0]}"


def _regressed(polls: list[Poll]) -> Iterator[str]:
    for before, after in pairwise(polls):
        for partition, offset in before.offsets.items():
            now = after.offsets.get(partition, -1)
            if now < offset:
                yield f"the committed offset of partition {partition} went from {offset} back to {now} at {after.at:.3f} s"


def _ahead(handed: list[Handed], polls: list[Poll]) -> Iterator[str]:
    """An offset was committed, and a record before it had not been handed over to any member."""
    processed: dict[int, int] = {}
    waiting = iter([*handed, None])
    each = next(waiting)
    for poll in polls:
        while each is not None and each.at <= poll.at:
            reached = processed.get(each.partition, 0)
            if each.first > reached:
                yield f"{each.member} began partition {each.partition} at {each.first}; only {reached} records were processed"
            processed[each.partition] = max(reached, each.next)
            each = next(waiting)
        for partition, offset in poll.offsets.items():
            if offset > processed.get(partition, 0):
                done = processed.get(partition, 0)
                yield f"{offset} was committed for partition {partition} at {poll.at:.3f} s; only {done} records were processed"


def _behind(polls: list[Poll], ends: dict[int, int]) -> Iterator[str]:
    last = polls[-1].offsets if polls else {}
    for partition, end in ends.items():
        if last.get(partition, 0) != end:
            yield f"partition {partition} ends at {end}, and {last.get(partition)} is committed at the end"
