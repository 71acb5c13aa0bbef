"""`strandline topic trim`: deletes the oldest records of a topic's partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.amounts import counted
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    TopicName,
    Yes,
    check_terminal,
    confirm,
    run,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.partition_option import Partitions, chosen_partitions
from strandline.cli.topic_offsets import offsets_at
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import DeletedRecords, TopicPartition

END = "end"


@dataclass
class Plan:
    """The records that the command is about to delete."""

    before: dict[TopicPartition | tuple[str, int], int]
    """Partition -> the first offset that stays. -1: the end of the log, which is not known because the leader did not answer."""
    records: int
    """The number of records below these offsets, in the partitions whose leaders answered."""
    silent: int = 0
    """The number of partitions for which no leader answered."""


def trim(
    topic: TopicName,
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET|end", help="The first offset to keep; end: delete all records.")
    ],
    partitions: Partitions = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Delete the oldest records of a topic: those below an offset, in all partitions or some. Asks first, unless --yes is
    given.

    The records can no longer be read when the command ends. Their disk space is free after the next round of retention
    (log.retention.check.interval.ms) and file.delete.delay.ms. Exit code 1 if a partition could not be trimmed.
    """
    offset = _parse(before)
    check_terminal(yes, "topic trim deletes records for good")
    plan = run(_plan(bootstrap, topic, partitions, offset))
    confirm(_question(topic, plan), yes, "nothing was deleted")
    show(_view(topic, run(_delete(bootstrap, plan))), output)


def _parse(before: str) -> int:
    """The offset; -1 for the end."""
    if before == END:
        return -1
    if not (before.isascii() and before.isdigit()):
        raise UsageError(f"--before takes an offset or 'end', and not {before!r}")
    return int(before)


async def _plan(bootstrap: str, topic: str, partitions: list[int] | None, offset: int) -> Plan:
    """Plans the deletion. `end` becomes each partition's present end offset, so that records that are written while the command
    asks for confirmation stay."""
    from strandline.client import Admin, TopicPartition

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        tps = [TopicPartition(topic, each.partition) for each in chosen_partitions(described, partitions)]
        starts, ends = await offsets_at(admin, tps, -2), await offsets_at(admin, tps, -1)
    plan = Plan({}, 0)
    for tp in tps:
        first_kept = plan.before[tp] = ends.get(tp, -1) if offset < 0 else offset
        if tp in starts and tp in ends:
            plan.records += max(0, min(first_kept, ends[tp]) - starts[tp])
        else:
            plan.silent += 1
    return plan


def _question(topic: str, plan: Plan) -> str:
    where = f"of {topic} in {counted(len(plan.before), 'partition')}, for good"
    if not plan.silent:
        return f"This deletes {counted(plan.records, 'record')} {where}."
    unknown = f"no leader answered for {counted(plan.silent, 'partition')}"
    return f"This deletes at least {counted(plan.records, 'record')} {where} ({unknown})."


async def _delete(bootstrap: str, plan: Plan) -> dict[TopicPartition, DeletedRecords]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.delete_records(plan.before)


def _view(topic: str, found: Mapping[TopicPartition, DeletedRecords]) -> View:
    rows = [
        (tp.partition, result.low_watermark if not result.code else None, result.message if result.code else "trimmed")
        for tp, result in found.items()
    ]
    document = {"topic": topic, "partitions": [_json(tp, result) for tp, result in found.items()]}
    code = ERROR if any(result.code for result in found.values()) else 0
    return View(document, [Table(("partition", "start", "state"), rows)], code=code)


def _json(tp: TopicPartition, result: DeletedRecords) -> dict[str, Any]:
    return {
        "partition": tp.partition,
        "start": result.low_watermark if not result.code else None,
        "error": result.code.name if result.code else None,
        "message": result.message,
    }
