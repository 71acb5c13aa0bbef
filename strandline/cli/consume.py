"""`strandline consume`: prints the records of a topic, as text in a chosen format or as JSON lines.

%t topic   %p partition   %o offset   %e leader epoch   %T timestamp in ms   %k key   %v value   %h headers   %% a percent
sign; \\n, \\t and \\\\ have their usual meaning. Keys and values are written as raw bytes. In JSON, bytes that are not text
are distinguishable from text (record_json.py).

Records go to standard output. Notes go to standard error: what the command waits for, and where it starts if the requested
offset does not exist.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from strandline.cli import interrupts
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    PATIENCE_S,
    Bootstrap,
    Topic,
    TopicOption,
    fail,
    new_app,
    note,
    quiet_client,
    run,
    topic_of,
    while_waiting,
)
from strandline.cli.consume_job import Job, RecordWriter
from strandline.cli.consume_options import (
    ClientRack,
    Count,
    ExitAtEnd,
    Format,
    From,
    Group,
    Isolation,
    IsolationLevel,
    Json,
    Partition,
)
from strandline.cli.consume_places import named
from strandline.cli.start import parse_start
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.cli.consume_places import Places
    from strandline.client import Consumer, TopicPartition
    from strandline.client.consumer.records import ConsumerRecord

app = new_app()

POLL_MS = 500
DEFAULT_FORMAT = r"%v\n"

EXAMPLES = """\b
Examples:
  strandline consume orders                       new records, until Ctrl-C
  strandline consume orders --from beginning -e   all present records
  strandline consume orders --from -10 -e         the last 10 per partition
  strandline consume orders --from @-5m --json    since 5 minutes ago, and on
  strandline consume orders --group billing       what the group has not read
  strandline consume orders -o @2026-01-01T12:00 -n 1 -f '%p %o %k %v\\n'
"""


@app.command(epilog=EXAMPLES)
def consume(
    topic: Topic = None,
    topic_option: TopicOption = None,
    from_: From = None,
    count: Count = None,
    exit_at_end: ExitAtEnd = False,
    partition: Partition = None,
    form: Format = None,
    json: Json = False,
    group: Group = None,
    client_rack: ClientRack = None,
    isolation_level: IsolationLevel = Isolation.read_uncommitted,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic: new ones until Ctrl-C, or the present ones. A partition without a leader delays none of the
    others; with --exit-at-end, the exit code is 1 if one could not be read."""
    name = topic_of("consume", topic, topic_option)
    if json and form not in (None, "json"):
        raise UsageError("--json and --format exclude each other: choose JSON, or a format of your own")
    _check_group(group, from_, exit_at_end, partition)
    start_text = from_ or ("beginning" if exit_at_end else "end")
    job = Job(
        bootstrap=bootstrap,
        topic=name,
        partition=partition,
        start=parse_start(start_text, int(time.time() * 1000)),
        start_text=start_text,
        records_max=count,
        exit_at_end=exit_at_end,
        write=_json_line if json or form == "json" else formatter(DEFAULT_FORMAT if form is None else form),
        client_rack=client_rack,
        isolation_level=isolation_level.value,
        group=group,
    )
    if group is None:
        run(_consume(job))
        return
    from strandline.cli.consume_group import consume_in_group

    run(consume_in_group(job))


def _check_group(group: str | None, from_: str | None, exit_at_end: bool, partition: int | None) -> None:
    """UsageError for options that a member of a group cannot have: the group decides where it reads, and from which offset on."""
    if group is None:
        return
    if partition is not None or exit_at_end:
        raise UsageError("--group shares the partitions with the group's other members: leave out --partition and --exit-at-end")
    if from_ not in (None, "beginning", "earliest", "start", "end", "latest"):
        raise UsageError("--from with --group is beginning or end: where to begin in a partition without a committed offset")


async def _consume(job: Job) -> None:
    """Print the records from the start on. With `exit_at_end`, the command fails at the end if a partition could not be read."""
    from strandline.cli.consume_places import Places
    from strandline.client import Admin, Consumer, TopicPartition

    quiet_client()
    servers: dict[str, Any] = {**reach(job.bootstrap), "connect_timeout_ms": CONNECT_TIMEOUT_MS}
    consumer = Consumer(auto_offset_reset="earliest", client_rack=job.client_rack, isolation_level=job.isolation_level, **servers)
    try:
        async with while_waiting(f"an answer from {job.bootstrap}"):
            await consumer.start()
            numbers = await consumer.partitions_for_topic(job.topic)
        if job.partition is not None and job.partition not in numbers:
            raise UsageError(f"topic {job.topic} has no partition {job.partition}; it has {len(numbers)}")
        tps = [TopicPartition(job.topic, p) for p in (sorted(numbers) if job.partition is None else [job.partition])]
        await consumer.assign(tps)
        consumer.pause(*tps)  # otherwise it would fetch from the beginning before the start is known
        async with Admin(**servers) as admin:
            places = Places(consumer, admin, job, tps)
            await places.begin()
            try:
                await _print(consumer, job, places)
            finally:
                await places.close()
    finally:
        await consumer.stop()
    if places.failure:
        fail(places.failure)


async def _print(consumer: Consumer, job: Job, places: Places) -> None:
    """Print records until `job.records_max` are written, or no partition is left to read."""
    out = sys.stdout.buffer
    written, idle_s, has_noted = 0, 0.0, False
    while not places.are_done and (job.records_max is None or written < job.records_max):
        polled = await consumer.getmany(
            timeout_ms=POLL_MS, max_records=None if job.records_max is None else job.records_max - written
        )
        for tp, records in polled.items():
            if job.exit_at_end:
                records = [r for r in records if r.offset < places.ends[tp]]
            out.write(b"".join(map(job.write, records)))
            written += len(records)
        out.flush()
        idle_s = 0 if polled else idle_s + POLL_MS / 1000
        if not polled and interrupts.is_closed(1):
            return  # the reader has closed the pipe: do not wait for the next record
        if not polled and not has_noted and (not job.exit_at_end or (places.left and idle_s >= PATIENCE_S)):
            has_noted = True
            note(_waits_for(consumer, job, written, places.left))
        await places.on_polled(idle_s)


def _waits_for(consumer: Consumer, job: Job, written: int, left: Collection[TopicPartition]) -> str:
    if job.exit_at_end:
        health = consumer.health()
        reason = next(iter(health["failed_partitions"].values()), None) or health["last_error"] or "its leader has not answered"
        return f"still waiting for records of {named(sorted(left))}: {reason} (Ctrl-C ends)"
    place = job.topic if job.partition is None else f"{job.topic}-{job.partition}"
    if written:
        more = "more" if job.records_max is None else f"{job.records_max - written} more"
        return f"waiting for {more} records of {place} (Ctrl-C ends)"
    number = "new" if job.records_max is None else f"{job.records_max} new"
    since = "" if job.start_text in ("end", "latest") else f"; there is none from {job.start_text} on"
    return f"waiting for {number} records of {place}{since} (Ctrl-C ends)"


# -- forms ------------------------------------------------------------------------------------------------------------

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: dict[str, RecordWriter] = {
    "t": lambda r: r.topic.encode(),
    "p": lambda r: b"%d" % r.partition,
    "o": lambda r: b"%d" % r.offset,
    "e": lambda r: b"%d" % r.leader_epoch,
    "T": lambda r: b"%d" % r.timestamp_ms,
    "k": lambda r: r.key or b"",
    "v": lambda r: r.value or b"",
    "h": lambda r: b",".join(name.encode() + b"=" + (value or b"") for name, value in r.headers),
    "%": lambda r: b"%",
}


def formatter(form: str) -> RecordWriter:
    """A function that renders a record in this format. Raises UsageError for an unknown field."""
    parts: list[bytes | RecordWriter] = []
    characters = iter(form)
    for c in characters:
        if c == "%":
            field = next(characters, "")
            if field not in _FIELDS:
                raise UsageError(f"--format has no field %{field}; there are {' '.join('%' + f for f in _FIELDS)}")
            parts.append(_FIELDS[field])
        elif c == "\\":
            escaped = next(characters, "\\")
            parts.append(_ESCAPES.get(escaped, b"\\" + escaped.encode()))
        else:
            parts.append(c.encode())
    return lambda record: b"".join(_render(parts, record))


def _render(parts: list[bytes | RecordWriter], record: ConsumerRecord) -> Iterable[bytes]:
    return (part if isinstance(part, bytes) else part(record) for part in parts)


def _json_line(record: ConsumerRecord) -> bytes:
    from strandline.cli.record_json import encode

    return encode(record)
