"""`strandline topic trim`: deletes the oldest records of a topic's partitions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    Json,
    note,
    print_json,
    print_table,
    run,
)
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client import Admin, DeletedRecords, TopicPartition

END = "end"


@dataclass
class Plan:
    """What the command is about to delete."""

    before: dict[TopicPartition | tuple[str, int], int]
    """By partition, the first offset that stays; -1: the end, if it is not known."""
    records: int
    """How many records that are, as far as the leaders have answered."""


def trim(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET|end", help="The first offset to keep; end: delete all records.")
    ],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="NUMBER", help="Only this partition; may be given several times."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete the oldest records of a topic: those below an offset, in all partitions or some. Asks first, unless --yes is
    given.

    The records cannot be read any more when the command ends. Their disk space is free after the next round of retention
    (log.retention.check.interval.ms) and file.delete.delay.ms. Exit code 1 if a partition could not be trimmed.
    """
    offset = _parse(before)
    if not yes and not sys.stdin.isatty():
        raise UsageError("topic trim deletes records for good: give --yes, or run it at a terminal")

    plan = run(_plan(bootstrap, topic, partitions, offset))
    if not yes and not _is_confirmed(topic, plan):
        note("nothing was deleted")
        raise typer.Exit(ERROR)
    found = run(_delete(bootstrap, plan))
    _print(topic, found, json)
    if any(result.code for result in found.values()):
        raise typer.Exit(ERROR)


def _parse(before: str) -> int:
    """The offset; -1 for the end."""
    if before == END:
        return -1
    if not (before.isascii() and before.isdigit()):
        raise UsageError(f"--before takes an offset or 'end', and not {before!r}")
    return int(before)


async def _plan(bootstrap: str, topic: str, partitions: list[int] | None, offset: int) -> Plan:
    """The end of a partition becomes an offset here, so that records that are written during the question stay."""
    from strandline.client import Admin, TopicPartition

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        known = [p.partition for p in described.partitions]
        asked = known if partitions is None else sorted(set(partitions))
        for partition in asked:
            if partition not in known:
                raise UsageError(f"{topic} has no partition {partition}: it has {len(known)}, counted from 0")
        tps = [TopicPartition(topic, partition) for partition in asked]
        starts, ends = await _offsets(admin, tps, -2), await _offsets(admin, tps, -1)
    plan = Plan({}, 0)
    for tp in tps:
        first_kept = plan.before[tp] = ends.get(tp, -1) if offset < 0 else offset
        if tp in starts and tp in ends:
            plan.records += max(0, min(first_kept, ends[tp]) - starts[tp])
    return plan


async def _offsets(admin: Admin, tps: list[TopicPartition], which: int) -> dict[TopicPartition, int]:
    found = await admin.list_offsets(dict.fromkeys(tps, which), timeout_ms=CONNECT_TIMEOUT_MS)
    return {tp: answer.offset for tp, answer in found.items() if answer is not None}


def _is_confirmed(topic: str, plan: Plan) -> bool:
    records = f"{plan.records} record{'' if plan.records == 1 else 's'}"
    count = len(plan.before)
    where = f"{count} partition{'' if count == 1 else 's'}"
    return bool(typer.confirm(f"This deletes {records} of {topic} in {where}, for good. Continue?", err=True))


async def _delete(bootstrap: str, plan: Plan) -> dict[TopicPartition, DeletedRecords]:
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.delete_records(plan.before)


def _print(topic: str, found: Mapping[TopicPartition, DeletedRecords], json: bool) -> None:
    if json:
        print_json({"topic": topic, "partitions": [_json(tp, result) for tp, result in found.items()]})
        return
    rows = [
        (tp.partition, result.low_watermark if not result.code else None, result.message if result.code else "trimmed")
        for tp, result in found.items()
    ]
    print_table(("partition", "start", "state"), rows)


def _json(tp: TopicPartition, result: DeletedRecords) -> dict[str, Any]:
    return {
        "partition": tp.partition,
        "start": result.low_watermark if not result.code else None,
        "error": result.code.name if result.code else None,
        "message": result.message,
    }
