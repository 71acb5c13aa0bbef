"""`strandline group`: lists and describes consumer groups, shows their lag, moves their offsets, and removes members or
groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import names
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    Yes,
    check_terminal,
    confirm,
    new_app,
    run,
)
from strandline.cli.group_delete_offsets import delete_offsets
from strandline.cli.group_seek import seek
from strandline.cli.group_state import MEMBER_COLUMNS, OFFSET_COLUMNS, STATE_COLUMNS, GroupState
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import describable, reach

if TYPE_CHECKING:
    from strandline.client import Admin, GroupListing, GroupMemberResult, GroupResult

TIMEOUT_MS = 5000
"""Short, because a person waits. A group whose coordinator was lost has another one after a fail-over."""

app = new_app("List and describe consumer groups, show their lag, move their offsets, and delete them.")

Groups = Annotated[
    list[str] | None,
    typer.Argument(metavar="GROUP...", help="Ids of groups; all, if none is named.", autocompletion=names.groups),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=names.groups)]


def _listing_problems(listing: GroupListing) -> list[str]:
    return [f"broker {broker_id} did not answer: groups may be missing ({e})" for broker_id, e in listing.errors.items()]


@app.command("list")
def list_(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only groups in this state, such as Stable or Empty; several times."),
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="consumer|classic", help="Only groups of this protocol.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """List the groups. If a broker does not answer, the groups of the others are shown, and the exit code is 1."""

    async def ask() -> View:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            listing = await admin.list_groups(states=states or (), types=types or (), timeout_ms=TIMEOUT_MS)
        return _listed(listing, bootstrap)

    present(ask, output, watch)


def _listed(listing: GroupListing, bootstrap: str) -> View:
    rows = [(g.group_id, g.group_type, g.state, g.protocol_type) for g in listing.groups]
    names = ("group_id", "group_type", "state", "protocol_type")
    document = {"groups": [dict(zip(names, row, strict=True)) for row in rows], "complete": not listing.errors}
    remarks = _listing_problems(listing)
    if not rows and not remarks:
        remarks = [describable("there are no groups", bootstrap)]
    tables = [Table(("GROUP", "TYPE", "STATE", "PROTOCOL"), rows, more=("PROTOCOL",))] if rows else []
    return View(document, tables, remarks, ERROR if listing.errors else 0)


@app.command()
def describe(
    groups: Groups = None,
    members: Annotated[bool, typer.Option("--members", help="Show the members and what they read, instead of offsets.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show coordinator, assignor and state, instead of offsets.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Describe groups: by partition the committed offset, the end of the log, the lag, and the member that reads it. If a
    broker does not answer, what only it knows is marked, and the exit code is 1.

    -o wide and -o plain have the columns of kafka-consumer-groups.sh in their order.
    """
    if members and state:
        raise UsageError("--members and --state exclude each other")

    async def ask() -> View:
        found, remarks = await _ask(bootstrap, groups)
        return _described(found, remarks, members, state, bootstrap)

    present(ask, output, watch)


def _described(found: list[GroupState], remarks: list[str], members: bool, state: bool, bootstrap: str) -> View:
    document = {"groups": [each.document for each in found]}
    known = [each for each in found if each.is_known]
    parts: list[Table | str]
    if state:
        parts = [Table(STATE_COLUMNS, [each.state_row() for each in known], spare=("EPOCH", "TYPE"))]
    elif members:
        rows = [row for each in known for row in each.member_rows()]
        parts = [Table(MEMBER_COLUMNS, rows, spare=("GROUP", "HOST", "EPOCH", "ASSIGNMENT"), more=("ASSIGNMENT",))]
    else:
        rows = [row for each in known for row in each.offset_rows()]
        spare = ("HOST", "CONSUMER-ID", "CLIENT-ID", "GROUP") if len(known) > 1 else ("GROUP", "HOST", "CONSUMER-ID")
        parts = [Table(OFFSET_COLUMNS, rows, spare=spare, more=("LEADER-EPOCH", "METADATA"))]
        parts += [each.summary for each in known]
    problems = [*remarks, *(problem for each in found for problem in each.problems)]
    if not found and not remarks:
        return View(document, [], [describable("there are no groups", bootstrap)])
    return View(document, parts if known else [], problems, ERROR if problems else 0)


async def _ask(bootstrap: str, group_ids: list[str] | None) -> tuple[list[GroupState], list[str]]:
    """The states of these groups, or of all; and a sentence for each reason why the list of groups may be incomplete."""
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        ids, remarks = list(dict.fromkeys(group_ids or ())), list[str]()
        if not ids:
            listing = await admin.list_groups(timeout_ms=TIMEOUT_MS)
            ids, remarks = [group.group_id for group in listing.groups], _listing_problems(listing)
        return await states_of(admin, ids), remarks


async def states_of(admin: Admin, group_ids: Iterable[str]) -> list[GroupState]:
    """The states of these groups, in the order of `group_ids`."""
    ids = list(group_ids)
    if not ids:
        return []
    descriptions, lags = await asyncio.gather(
        admin.describe_groups(ids, timeout_ms=TIMEOUT_MS), admin.group_lag(ids, timeout_ms=TIMEOUT_MS)
    )
    return [GroupState(descriptions[group_id], lags[group_id]) for group_id in ids]


@app.command()
def lag(
    groups: Groups = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table, watch: Watch = None
) -> None:
    """Show how many records groups have not read yet, by group and topic. What is not known is marked, and the exit code is 1."""

    async def ask() -> View:
        return _lags(*await _ask(bootstrap, groups))

    present(ask, output, watch)


def _lags(found: list[GroupState], remarks: list[str]) -> View:
    rows: list[tuple[object, ...]] = []
    for group in found:
        by_topic: dict[str, list[int | None]] = {}
        for tp, each in sorted(group.lag.partitions.items()):
            by_topic.setdefault(tp.topic, []).append(each.lag)
        for topic, lags in by_topic.items():
            known = [each for each in lags if each is not None]
            rows.append((group.group_id, topic, len(lags), sum(known), max(known, default=0), group.description.state))
    names = ("group_id", "topic", "partitions", "lag", "largest_lag", "state")
    problems = [*remarks, *(problem for each in found for problem in each.problems)]
    document = {"lags": [dict(zip(names, row, strict=True)) for row in rows], "complete": not problems}
    if not rows and not problems:
        problems = ["no group has committed an offset"]
        return View(document, [], problems)
    table = Table(("GROUP", "TOPIC", "PARTITIONS", "LAG", "LARGEST-LAG", "STATE"), rows)
    return View(document, [table] if rows else [], problems, ERROR if problems else 0)


app.command()(seek)
app.command("delete-offsets")(delete_offsets)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Ids of groups.", autocompletion=names.groups)],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Delete groups that have no members, with their committed offsets. Asks first, unless --yes is given."""
    check_terminal(yes, "group delete deletes committed offsets for good")
    confirm(f"This deletes the offsets of {', '.join(groups)}, for good.", yes, "nothing was deleted")

    async def work() -> dict[str, GroupResult]:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            return await admin.delete_groups(groups)

    found = run(work())
    failed = {group: result for group, result in found.items() if result.code}
    document = {
        "groups": [{"group_id": g, "error": r.code.name if r.code else None, "message": r.message} for g, r in found.items()]
    }
    done = [f"{group} deleted" for group in found if group not in failed]
    problems = [f"{group} is not deleted: {result.message or result.code.name}" for group, result in failed.items()]
    show(View(document, done, problems, ERROR if failed else 0), output)


@app.command("remove-member")
def remove_member(
    group: Group,
    members: Annotated[
        list[str] | None, typer.Argument(metavar="MEMBER...", help="Member ids (CONSUMER-ID of `group describe`).")
    ] = None,
    instances: Annotated[
        list[str] | None, typer.Option("--instance", metavar="NAME", help="A static member's instance id; several times.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Remove all members.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Remove members from a group; the others get their partitions. A member that still runs joins again; a static one that is
    removed by its instance id does not."""
    if everyone == bool(members or instances):
        raise UsageError("name the members to remove, or --instance, or --all")

    async def work() -> list[GroupMemberResult]:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            return await admin.remove_group_members(group, None if everyone else members or [], instance_ids=instances or ())

    found = run(work())
    document = {
        "group_id": group,
        "members": [
            {"member_id": r.member_id, "instance_id": r.instance_id, "error": r.code.name if r.code else None} for r in found
        ],
    }
    done = [f"{r.instance_id or r.member_id} removed from {group}" for r in found if not r.code]
    problems = [f"{r.instance_id or r.member_id} is not removed: {r.code.name}" for r in found if r.code]
    show(View(document, done or [f"no member was removed from {group}"], problems, ERROR if problems else 0), output)
