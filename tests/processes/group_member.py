"""A member of a consumer group in a process of its own, which writes to a file what it does.

    python group_member.py BOOTSTRAP TOPIC GROUP FILE auto|manual [INSTANCE_ID]

A line is written with one `write` before the next thing happens, so it survives `kill -9`. Each has `at`, the time on the
monotonic clock, which all processes of a machine share, `do`, and the member epoch:

    assigned, revoked, lost     the callback was called with these partitions; revoked: the partitions are given up after the line
    records                     a call has returned these records, of one partition, which count as processed
    committed                   `commit` has returned: these positions by partition
    ended                       the member has left the group

SIGTERM ends it. "auto" commits automatically, "manual" after each call that returns records.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from strandline.client import Consumer, GroupMembershipFailed, TopicPartition
from strandline.protocol.errors import StrandlineError

BOOTSTRAP, TOPIC, GROUP, FILE, COMMITS = sys.argv[1:6]
INSTANCE_ID = sys.argv[6] if len(sys.argv) > 6 else None
FD = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(do: str, epoch: int, **fields: Any) -> None:
    os.write(FD, json.dumps({"at": time.monotonic(), "do": do, "epoch": epoch, **fields}).encode() + b"\n")


def number_of(value: bytes) -> int:
    """The number of a record of `SteadyLoad`."""
    return int(value[value.index(b"/") + 1 :].split(maxsplit=1)[0])


def member() -> Consumer:
    consumer = Consumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        group_instance_id=INSTANCE_ID,
        auto_offset_reset="earliest",
        enable_auto_commit=COMMITS == "auto",
        auto_commit_interval_ms=300,
    )

    def noting(do: str) -> Any:
        def callback(partitions: list[TopicPartition]) -> None:
            note(do, epoch_of(consumer), partitions=[tp.partition for tp in partitions])

        return callback

    consumer.subscribe(TOPIC, on_assigned=noting("assigned"), on_revoked=noting("revoked"), on_lost=noting("lost"))
    return consumer


def epoch_of(consumer: Consumer) -> int:
    """The member epoch; 0 while the consumer stops."""
    return int(consumer.health().get("group", {}).get("member_epoch", 0))


async def work(consumer: Consumer) -> None:
    while True:
        found = await consumer.getmany(timeout_ms=200, max_records=200)
        for tp, records in found.items():
            numbers = [number_of(record.value) for record in records]
            offsets = {"first": records[0].offset, "next": records[-1].offset + 1}
            note("records", epoch_of(consumer), partition=tp.partition, numbers=numbers, **offsets)
        if found and COMMITS == "manual":
            positions = {tp: records[-1].offset + 1 for tp, records in found.items()}
            try:
                await consumer.commit(positions, timeout_ms=20_000)
            except StrandlineError as e:
                note("commit failed", epoch_of(consumer), reason=f"{type(e).__name__}: {e}")
            else:
                note("committed", epoch_of(consumer), offsets={tp.partition: offset for tp, offset in positions.items()})


async def main() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        while True:
            await stay()
    except asyncio.CancelledError:
        note("ended", 0)


async def stay() -> None:
    """Be a member; return if the coordinator still has another process of this static member, which was killed just now. A
    supervisor would start this program again, too."""
    try:
        async with member() as consumer:
            await work(consumer)
    except GroupMembershipFailed as e:
        if "UNRELEASED_INSTANCE_ID" not in str(e):
            raise
        await asyncio.sleep(0.5)


asyncio.run(main())
