"""`strandline group delete-offsets`: deletes committed offsets of a group (KIP-496)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import names
from strandline.cli.amounts import counted
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, ERROR, Bootstrap, Yes, check_terminal, confirm, run
from strandline.cli.group_seek import Chosen, chosen_partitions
from strandline.cli.output import Form, Output, Table, View, show
from strandline.protocol.errors import ErrorCode, UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import GroupOffsetResult, TopicPartition


def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=names.groups)],
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="A topic, or these partitions of it; several times.",
            autocompletion=names.topics,
        ),
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Delete the committed offsets of a group for topics or partitions. The group then starts there as a new one does. Asks
    first, unless --yes is given.

    A topic to which a live member of the group is subscribed is refused: stop those members first.
    """
    check_terminal(yes, "group delete-offsets deletes committed offsets for good")
    wanted = chosen_partitions(topics)
    offsets = run(_committed(bootstrap, group, wanted))
    if not offsets:
        raise UsageError(f"{group} has no committed offset for {', '.join(topics)}")
    confirm(f"This deletes {counted(len(offsets), 'offset')} of {group}, for good.", yes, "nothing was deleted")
    show(_view(group, offsets, run(_delete(bootstrap, group, list(offsets)))), output)


async def _committed(bootstrap: str, group: str, wanted: Chosen) -> dict[TopicPartition, int]:
    """The committed offsets of the group in these topics. UsageError for a partition that has none."""
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        committed = {tp: found.offset for tp, found in (await admin.list_group_offsets(group)).items()}
    for topic, numbers in wanted.items():
        for number in numbers or ():
            if (topic, number) not in committed:
                raise UsageError(f"{group} has no committed offset for {topic}-{number}")
        if not any(tp.topic == topic for tp in committed):
            raise UsageError(f"{group} has no committed offset for {topic}")
    return {
        tp: committed[tp]
        for tp in sorted(committed)
        if tp.topic in wanted and tp.partition in (wanted[tp.topic] or [tp.partition])
    }


async def _delete(bootstrap: str, group: str, tps: Sequence[TopicPartition]) -> dict[TopicPartition, GroupOffsetResult]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.delete_group_offsets(group, tps)


def _view(group: str, offsets: Mapping[TopicPartition, int], results: Mapping[TopicPartition, GroupOffsetResult]) -> View:
    failed = {tp: result for tp, result in results.items() if result.code}
    subscribed = sorted({tp.topic for tp, result in failed.items() if result.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
    problems = [
        f"the offsets for {topic} are kept: a member of {group} is subscribed to it; stop it first" for topic in subscribed
    ]
    problems += [
        f"the offset for {tp} is kept: {result.message or result.code.name}"
        for tp, result in failed.items()
        if result.code != ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    ]
    deleted = [(group, tp.topic, tp.partition, offset) for tp, offset in offsets.items() if tp not in failed]
    document = {
        "group_id": group,
        "partitions": [
            {**tp._asdict(), "deleted_offset": offset, "error": failed[tp].code.name if tp in failed else None}
            for tp, offset in offsets.items()
        ],
    }
    count = len(deleted)
    done = f"{group}: {counted(count, 'offset')} deleted"
    parts: list[Table | str] = [Table(("GROUP", "TOPIC", "PARTITION", "DELETED-OFFSET"), deleted), done] if deleted else []
    return View(document, parts, problems, ERROR if failed else 0)
