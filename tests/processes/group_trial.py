"""A trial of a consumer group: members and nodes are killed at random under load, as real processes.

A schedule from a seed kills members (`kill -9`), stops them in order, kills brokers, the group's coordinator and controllers, and
starts them again. Each member writes down what it owned and processed (`group_member.py`); the trial asks for the committed
offsets all the time, and `group_judge.py` compares. The trial prints its seed; `STRANDLINE_GROUPS_SEED` repeats the schedule.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from fault_schedule import FaultSchedule
from group_judge import Findings, Poll, judge
from load import Load, until

from strandline.client import Admin, RequestTimeout
from strandline.local_cluster import LocalCluster
from strandline.protocol.errors import StrandlineError
from strandline.testing.history.operations import OK

PARTITIONS = 12
INTERVAL_MS = 50
POLL_S = 0.1
BOUND_S = 60.0
PROGRAM = Path(__file__).with_name("group_member.py")
SLOTS = ("auto-1", "auto-2", "auto-3", "manual-4", "static-5")
"""The members. Before the number: how it commits; the static one commits automatically."""
FAULTS = {"kill member": 5, "stop member": 2, "kill broker": 2, "kill coordinator": 2, "kill controller": 1}
"""Each with its weight."""


class Members:
    """The member processes: one for each slot, or none while it is down."""

    slots: Sequence[str] = SLOTS

    def __init__(self, folder: Path, cluster: LocalCluster, topic: str, group: str) -> None:
        self.folder, self.cluster, self.topic, self.group = folder, cluster, topic, group
        self.running: dict[str, tuple[asyncio.subprocess.Process, Path]] = {}
        self.files: dict[Path, float | None] = {}
        """The file of every process that was started, and when it was killed."""
        self._starts: Counter[str] = Counter()

    async def start(self, slot: str) -> None:
        file = self.folder / f"{slot}.{self._starts[slot]}"
        self._starts[slot] += 1
        with (self.folder / f"{slot}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command(slot, file), stdout=log, stderr=log, start_new_session=True
            )
        self.running[slot] = process, file
        self.files[file] = None

    def command(self, slot: str, file: Path) -> list[str]:
        """The program of a member, which writes to the file."""
        commits = "manual" if slot.startswith("manual") else "auto"
        static = [slot] if slot.startswith("static") else []
        return [sys.executable, str(PROGRAM), self.cluster.bootstrap, self.topic, self.group, str(file), commits, *static]

    async def end(self, slot: str, number: signal.Signals) -> None:
        process, file = self.running.pop(slot)
        log = self.folder / f"{slot}.log"
        assert process.returncode is None, f"{file.name} ended by itself with {process.returncode}: {log.read_text()[-4000:]}"
        at = time.monotonic()
        process.send_signal(number)
        code = await asyncio.wait_for(process.wait(), BOUND_S)
        # SIGTERM, too, kills a process that has not begun. Java says so by another number.
        if code in (-number, 128 + number):
            self.files[file] = at
        else:
            assert code == 0, f"{file.name} ended with {code}: {log.read_text()[-4000:]}"

    async def end_all(self, number: signal.Signals) -> None:
        await asyncio.gather(*(self.end(slot, number) for slot in list(self.running)))

    def kill_rest(self) -> None:
        for process, _ in self.running.values():
            if process.returncode is None:
                process.kill()


class Commits:
    """Asks for the committed offsets of the group all the time."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.bootstrap, self.group = bootstrap, group
        self.polls: list[Poll] = []
        self.unanswered = 0

    async def watch(self) -> None:
        async with Admin(bootstrap_servers=self.bootstrap, request_timeout_ms=2000) as admin:
            while True:
                try:
                    offsets = await admin.list_group_offsets(self.group, timeout_ms=5000)
                except RequestTimeout:
                    self.unanswered += 1
                else:
                    self.polls.append(Poll(time.monotonic(), {tp.partition: found.offset for tp, found in offsets.items()}))
                await asyncio.sleep(POLL_S)


class Schedule(FaultSchedule):
    """Faults of a group, its members and its cluster."""

    word = "member"
    faults = FAULTS

    def __init__(self, rng: random.Random, cluster: LocalCluster, members: Members) -> None:
        super().__init__(rng, cluster, members, members.slots)
        self.group = members.group

    async def coordinator(self) -> int:
        async with Admin(bootstrap_servers=self.cluster.bootstrap, request_timeout_ms=2000) as admin:
            try:
                return (await admin.describe_groups([self.group], timeout_ms=3000))[self.group].coordinator
            except StrandlineError:
                return -1


Beside = Callable[[Load], AbstractAsyncContextManager[object]]
"""A further load in the history of the load, until its end."""


async def perform(
    cluster: LocalCluster,
    folder: Path,
    topic: str,
    seconds: float,
    *,
    kind: type[Members] = Members,
    beside: Beside = nullcontext,
) -> None:
    seed = int(os.environ.get("STRANDLINE_GROUPS_SEED") or random.randrange(1 << 32))
    print(f"STRANDLINE_GROUPS_SEED={seed}", file=sys.stderr)
    members, commits = kind(folder, cluster, topic, topic), Commits(cluster.bootstrap, topic)
    schedule = Schedule(random.Random(seed), cluster, members)
    load = Load(cluster, topic, partitions=PARTITIONS, interval_ms=INTERVAL_MS)
    watching = asyncio.create_task(commits.watch())
    try:
        async with load:
            async with beside(load):
                for slot in members.slots:
                    await members.start(slot)
                await until(lambda: all(p in last(commits) for p in range(PARTITIONS)), "the group commits", BOUND_S)
                await schedule.run(seconds)
                await cluster.wait_ready()
                await load.stop()
            ends = {send.partition: 0 for send in load.history.sends}
            for send in load.history.sends:
                assert send.outcome == OK, load.failed
                ends[send.partition] = max(ends[send.partition], send.offset + 1)
            await until(lambda: watching.done() or last(commits) == ends, "the group has read everything", BOUND_S)
            await members.end_all(signal.SIGTERM)
            watching.cancel()
            await asyncio.wait([watching])
            verdict = await load.verdict()
    finally:
        members.kill_rest()
        watching.cancel()
    if not watching.cancelled():
        watching.result()
    acknowledged: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
    for send in load.history.sends:
        acknowledged[send.partition].add(number_of(send.value))
    found = judge(members.files, acknowledged, commits.polls, ends)
    print(summary(found, schedule, commits, sum(map(len, acknowledged.values()))), file=sys.stderr)
    assert verdict.good, str(verdict)
    assert not found.wrong, f"STRANDLINE_GROUPS_SEED={seed}, files in {folder}:\n" + "\n".join(found.wrong[:50])
    assert sum(schedule.done.values()) >= seconds / 10


def number_of(value: bytes) -> int:
    return int(value.partition(b"/")[2].split(maxsplit=1)[0])


def last(commits: Commits) -> dict[int, int]:
    return commits.polls[-1].offsets if commits.polls else {}


def summary(found: Findings, schedule: Schedule, commits: Commits, acknowledged: int) -> str:
    processed = sum(len(each.numbers) for each in found.handed)
    faults = ", ".join(f"{name} {count}" for name, count in sorted(schedule.done.items()))
    return (
        f"faults: {faults}; acknowledged {acknowledged}, processed {processed}; {len(found.tenures)} times a member owned a "
        f"partition, {found.lost} lost; {len(commits.polls)} looks at the commits, {commits.unanswered} without an answer; "
        f"commits that failed: {dict(found.commits_failed)}"
    )
