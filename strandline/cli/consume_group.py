"""`strandline consume --group`: reads as a member of a consumer group."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from strandline.cli import interrupts
from strandline.cli.common import CONNECT_TIMEOUT_MS, note, quiet_client, while_waiting
from strandline.cli.start import Beginning
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.cli.consume_job import Job
    from strandline.client import Consumer

POLL_MS = 500


async def consume_in_group(job: Job) -> None:
    """Print the records that the group has not read yet, and commit their offsets after they are printed. So an interrupt skips
    no record: the next member prints the uncommitted ones again."""
    from strandline.client import Consumer

    quiet_client()
    consumer = Consumer(
        job.topic,
        **reach(job.bootstrap),
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        group_id=job.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest" if isinstance(job.start, Beginning) else "latest",
        client_rack=job.client_rack,
        isolation_level=job.isolation_level,
    )
    try:
        async with while_waiting(f"an answer from {job.bootstrap}"):
            await consumer.start()
            await consumer.partitions_for_topic(job.topic)
        await _print(consumer, job)
    finally:
        await consumer.stop()


async def _print(consumer: Consumer, job: Job) -> None:
    out, written, has_noted = sys.stdout.buffer, 0, False
    while job.records_max is None or written < job.records_max:
        left = None if job.records_max is None else job.records_max - written
        polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=left)
        for records in polled.values():
            out.write(b"".join(map(job.write, records)))
            written += len(records)
        out.flush()
        if polled:
            await consumer.commit()
        elif interrupts.is_closed(1):
            return  # the reader has closed the pipe: do not wait for the next record
        elif not has_noted:
            has_noted = True
            note(f"waiting for records of {job.topic} that {job.group} has not read (Ctrl-C ends)")
