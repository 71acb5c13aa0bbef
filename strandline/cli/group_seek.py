"""`strandline group seek`: moves the committed offsets of a group that has no members."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from strandline.cli import names
from strandline.cli.amounts import counted
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    Yes,
    check_terminal,
    confirm,
    run,
)
from strandline.cli.group_csv import csv_text, read_csv
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.start import BeforeEnd, Beginning, End, Offset, Start, Time, parse_start
from strandline.cli.topic_offsets import TIMEOUT_MS, offsets_at
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, GroupOffsetResult, TopicPartition

EARLIEST, LATEST = -2, -1
SHIFT, CURRENT = "shift:", "current"
COLUMNS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "LAG")


class Shift(NamedTuple):
    """The committed offset plus `by`, which may be negative."""

    by: int


class Current(NamedTuple):
    """The committed offset itself."""


Target = Start | Shift | Current
PartitionTarget = Beginning | End | Offset | BeforeEnd | Shift | Current
"""The target of one partition: as `Target`, but its leader has translated a time into an offset."""
Chosen = Mapping[str, Sequence[int] | None]
"""Topic -> the partitions that were chosen; None for all."""


class Seek(NamedTuple):
    """A partition's offset before and after; None if the group has none, or the leader did not answer."""

    tp: TopicPartition
    current: int | None
    wanted: int | None
    """The offset that the target names; it may lie outside of the log, unlike `new`."""
    new: int | None
    end: int | None

    @property
    def problem(self) -> str:
        """Why the offset cannot be moved; empty if it can."""
        if self.new is None:
            return "it has no committed offset" if self.end is not None else "its leader did not answer"
        return ""


def seek(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=names.groups)],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, -N (N before the end), @2026-01-01T12:00 (UTC), @-1h (an hour ago), shift:-10 "
            "or shift:10, or current.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="Only this topic, or these partitions of it; several times. By default, all that the group has offsets for.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            help="Instead of --to: a file with a line topic,partition,offset for each partition, as --export prints it.",
        ),
    ] = None,
    export: Annotated[
        bool,
        typer.Option(
            "--export",
            help="Print the new offsets in lines for --from-file, and change nothing. Without --to, where the group is.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets, and change nothing.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Move the committed offsets of a group. Stop its members first: the command is refused while it has any. Asks first, unless
    --yes is given.

    An offset that is not in the log becomes the nearest one. With --topic or --from-file, a group that does not exist yet is
    created.
    """
    _check_together(to, topics, from_file, export, yes)
    targets: Target | Mapping[tuple[str, int], int]
    chosen: Chosen
    if from_file is None:
        targets, chosen = parse_target(to or CURRENT, int(time.time() * 1000)), chosen_partitions(topics or ())
    else:
        targets = read_csv(from_file, group)
        chosen = _by_topic(targets)
    if not dry_run and not export:
        check_terminal(yes, "group seek replaces committed offsets")
    plan = run(_plan(bootstrap, group, targets, chosen))
    movable = {each.tp: each.new for each in plan if each.new is not None}
    if not plan:
        raise UsageError(f"{group} has no offset to move; --topic TOPIC chooses the partitions")
    if export:
        _print_csv(_view(group, plan, {}, dry_run=True), movable, output)
        return
    if dry_run or not movable:
        show(_view(group, plan, {}, dry_run=dry_run), output)
        return
    confirm(f"This moves {counted(len(movable), 'offset')} of {group}.", yes)
    show(_view(group, plan, run(_commit(bootstrap, group, movable)), dry_run=False), output)


def _check_together(to: str | None, topics: Sequence[str] | None, from_file: Path | None, export: bool, yes: bool) -> None:
    """UsageError for options that contradict each other."""
    if from_file is not None and (to is not None or topics):
        raise UsageError("--from-file has the partitions and their offsets: leave out --to and --topic")
    if from_file is None and to is None and not export:
        raise UsageError("--to WHERE or --from-file FILE says where the group continues")
    if export and yes:
        raise UsageError("--export changes nothing: leave out --yes")


def _print_csv(view: View, offsets: Mapping[TopicPartition, int], output: Form) -> None:
    """Print the offsets as lines of a CSV file, or the document with -o json or yaml; then the remarks of the view."""
    if output not in (Form.json, Form.yaml):
        print(csv_text({(tp.topic, tp.partition): offset for tp, offset in offsets.items()}), flush=True)
        view = View(None, (), view.remarks, view.code)
        output = Form.table
    show(view, output)


def parse_target(text: str, now_ms: int) -> Target:
    """Parse a value of --to. UsageError if it has none of the forms in the help."""
    if text == CURRENT:
        return Current()
    if text.startswith(SHIFT):
        number = text.removeprefix(SHIFT)
        if not re.fullmatch(r"[+-]?\d{1,19}", number):
            raise UsageError(f"--to shift:N takes a number of offsets, such as shift:-10, not {text!r}")
        return Shift(int(number))
    try:
        return parse_start(text, now_ms)
    except UsageError as e:
        raise UsageError(str(e).replace("--from", "--to").replace("; not", ", shift:N, or current; not")) from None


def chosen_partitions(topics: Sequence[str]) -> dict[str, list[int] | None]:
    """The topics and partitions that the values of --topic name. UsageError if a value is malformed."""
    chosen: dict[str, list[int] | None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if not topic or (colon and not all(number.isdecimal() for number in numbers.split(","))):
            raise UsageError(f"--topic takes TOPIC, or TOPIC:0,1 for some partitions, not {text!r}")
        chosen[topic] = [int(number) for number in numbers.split(",")] if colon else None
    return chosen


def _by_topic(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    chosen: dict[str, list[int]] = {}
    for topic, number in places:
        chosen.setdefault(topic, []).append(number)
    return chosen


async def _plan(bootstrap: str, group: str, targets: Target | Mapping[tuple[str, int], int], chosen: Chosen) -> list[Seek]:
    """The new offset of each chosen partition. `targets`: one target for all partitions, or the offset of each."""
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        current = {tp: found.offset for tp, found in (await admin.list_group_offsets(group)).items()}
        tps = await _partitions(admin, chosen) if chosen else sorted(current)
        starts, ends = await offsets_at(admin, tps, EARLIEST), await offsets_at(admin, tps, LATEST)
        found = await _partition_targets(admin, tps, targets)  # last: a time after the last record is then the end
    return [planned(tp, found.get(tp), current.get(tp), starts.get(tp), ends.get(tp)) for tp in tps]


async def _partition_targets(
    admin: Admin, tps: Sequence[TopicPartition], targets: Target | Mapping[tuple[str, int], int]
) -> Mapping[TopicPartition, PartitionTarget]:
    """The target of each partition. A time has none in a partition whose leader does not answer, and is the end of a partition
    without a record at or after it."""
    if isinstance(targets, Mapping):
        return {tp: Offset(targets[tp]) for tp in tps}
    if not isinstance(targets, Time):
        return dict.fromkeys(tps, targets)
    answers = await admin.list_offsets(dict.fromkeys(tps, targets.timestamp_ms), timeout_ms=TIMEOUT_MS) if tps else {}
    return {tp: End() if answer is None else Offset(answer.offset) for tp, answer in answers.items()}


async def _partitions(admin: Admin, chosen: Chosen) -> list[TopicPartition]:
    from strandline.client import TopicPartition

    tps: list[TopicPartition] = []
    for topic in await admin.describe_topics(list(chosen)):
        known = [p.partition for p in topic.partitions]
        wanted = chosen[topic.name]
        for number in wanted or ():
            if number not in known:
                raise UsageError(f"topic {topic.name} has no partition {number}; it has {len(known)}")
        tps += [TopicPartition(topic.name, number) for number in (known if wanted is None else wanted)]
    return sorted(tps)


def planned(tp: TopicPartition, target: PartitionTarget | None, current: int | None, start: int | None, end: int | None) -> Seek:
    """The new offset of a partition whose log has the offsets from `start` up to, not including, `end`. `target`, `start` and
    `end` are None if the leader did not answer."""
    if target is None or start is None or end is None:
        return Seek(tp, current, None, None, None)
    wanted = _wanted(target, current, start, end)
    return Seek(tp, current, wanted, None if wanted is None else min(max(wanted, start), end), end)


def _wanted(target: PartitionTarget, current: int | None, start: int, end: int) -> int | None:
    match target:
        case Beginning():
            return start
        case End():
            return end
        case Offset(offset):
            return offset
        case BeforeEnd(records):
            return end - records
        case Shift(by):
            return None if current is None else current + by
        case Current():
            return current


async def _commit(bootstrap: str, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, GroupOffsetResult]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.alter_group_offsets(group, {(tp.topic, tp.partition): offset for tp, offset in offsets.items()})


def _view(group: str, plan: Sequence[Seek], results: Mapping[TopicPartition, GroupOffsetResult], *, dry_run: bool) -> View:
    refused = {tp: result.message or result.code.name for tp, result in results.items() if result.code}
    problems = {each.tp: each.problem for each in plan if each.problem} | refused
    rows = [
        (
            group,
            each.tp.topic,
            each.tp.partition,
            each.current,
            each.new,
            None if each.new is None or each.end is None else each.end - each.new,
        )
        for each in plan
    ]
    document = {
        "group_id": group,
        "dry_run": dry_run,
        "partitions": [
            {**each.tp._asdict(), "current_offset": each.current, "new_offset": each.new, "error": problems.get(each.tp)}
            for each in plan
        ],
    }
    remarks = [f"{tp} is not moved: {why}" for tp, why in problems.items()]
    outside = [each for each in plan if each.new is not None and each.new != each.wanted]
    remarks += [f"{each.tp} has no offset {each.wanted}; the nearest is {each.new}" for each in outside]
    count = len(plan) - len(problems)
    done = f"{group}: {counted(count, 'offset')} {'would be moved' if dry_run else 'moved'}"
    return View(document, [Table(COLUMNS, rows), done], remarks, ERROR if problems else 0)
