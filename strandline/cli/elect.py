"""`strandline elect`: makes preferred replicas leaders again, of one partition or of all; or elects uncleanly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    UNHEALTHY,
    Bootstrap,
    Yes,
    check_terminal,
    confirm,
    fail,
    new_app,
    run,
)
from strandline.cli.output import Form, Output, View, show
from strandline.cli.unclean_elections import lost_text, report_json
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, ElectionResult, TopicPartition, UncleanElection

app = new_app()


@app.command()
def elect(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)] = None,
    partition: Annotated[
        int | None, typer.Argument(metavar="PARTITION", min=0, help="The partition's number.", show_default=False)
    ] = None,
    preferred: Annotated[bool, typer.Option("--preferred", help="Elect the first of the partition's replicas.")] = False,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect the longest log of a partition without a leader: records may be lost.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Elect a leader for every partition that needs it.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Elect a leader for a partition, or with --all for every partition. With --all, the exit code is 3 if a partition needs a
    leader and no replica can be elected now.

    --unclean elects a replica that may lack acknowledged records, for partitions that have no leader; `strandline recover --plan`
    shows what each choice would lose. It asks first, unless --yes is given.
    """
    if preferred == unclean:
        raise UsageError("the kind of election is missing: --preferred or --unclean")
    if everything and topic is not None:
        raise UsageError("either a TOPIC and a PARTITION, or --all")
    if not everything and (topic is None or partition is None):
        raise UsageError("TOPIC and PARTITION are missing; --all means every partition")
    if unclean:
        view = _elect_unclean(bootstrap, None if everything or topic is None or partition is None else (topic, partition), yes)
    elif topic is None or partition is None:
        view = _elect_all(bootstrap)
    else:
        view = _elect_one(bootstrap, topic, partition)
    show(view, output)


def _elect_unclean(bootstrap: str, place: tuple[str, int] | None, yes: bool) -> View:
    """Elect uncleanly, for one partition or for all without a leader."""
    from strandline.protocol.errors import ErrorCode

    where = "every partition without a leader" if place is None else f"{place[0]}-{place[1]}"
    check_terminal(yes, "elect --unclean may lose acknowledged records for good")
    confirm(f"This may lose acknowledged records of {where}, for good.", yes, "no leader was elected")
    results, reports = run(_ask_unclean(bootstrap, place))
    lines = [f"{r.partition.topic}-{r.partition.partition}: {_outcome(r, reports.get(r.partition))}" for r in results]
    has_failed = any(result.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED) for result in results)
    code = 0 if not has_failed else UNHEALTHY if place is None else ERROR
    document = {"results": [_unclean_json(result, reports.get(result.partition)) for result in results]}
    return View(document, lines or ["every partition has a leader"], code=code)


def _outcome(result: ElectionResult, report: UncleanElection | None) -> str:
    from strandline.protocol.errors import ErrorCode

    if report is not None:
        return f"broker {report.leader_id} is elected; may be lost: {lost_text(report.lost_from, report.lost_to)}"
    return "a leader is elected" if result.code == ErrorCode.NONE else result.message or result.code.name


def _unclean_json(result: ElectionResult, report: UncleanElection | None) -> dict[str, object]:
    return {
        "topic": result.partition.topic,
        "partition": result.partition.partition,
        "error": result.code.name,
        "reason": result.message,
        "report": None if report is None else report_json(report),
    }


async def _ask_unclean(
    bootstrap: str, place: tuple[str, int] | None
) -> tuple[list[ElectionResult], dict[TopicPartition, UncleanElection]]:
    """Elect uncleanly; return the results, and the reports of these elections. If a partition had no leader before and needs no
    election now, an earlier attempt, whose response was lost, has elected its leader: its report is returned, too."""
    from strandline.cli.recover import reports_after
    from strandline.client import Admin, ElectionResult
    from strandline.protocol.errors import ErrorCode

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        before = await _epochs(admin, place)
        results = await admin.elect_leaders(None if place is None else [place], election="unclean")
        others = {r.partition for r in results if r.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)}
        elected = {r.partition for r in results if r.code == ErrorCode.NONE}
        elected |= {tp for tp, (_, had_leader) in before.items() if not had_leader and tp not in others}
        expected = {tp: before[tp][0] for tp in sorted(elected) if tp in before}
        reports = await reports_after(admin, expected) if expected else {}
        known = {result.partition for result in results}
        return results + [ElectionResult(tp, ErrorCode.ELECTION_NOT_NEEDED) for tp in reports if tp not in known], reports


async def _epochs(admin: Admin, place: tuple[str, int] | None) -> dict[TopicPartition, tuple[int, bool]]:
    """The leader epoch of this partition, or of all, and whether it has a leader."""
    from strandline.client import TopicPartition

    return {
        TopicPartition(topic.name, p.partition): (p.leader_epoch, p.leader_id >= 0)
        for topic in await admin.describe_topics(None if place is None else [place[0]])
        for p in topic.partitions
        if place is None or place == (topic.name, p.partition)
    }


def _elect_one(bootstrap: str, topic: str, partition: int) -> View:
    from strandline.protocol.errors import ErrorCode

    result, leader = run(_ask_one(bootstrap, topic, partition))
    already = result.code == ErrorCode.ELECTION_NOT_NEEDED
    if result.code != ErrorCode.NONE and not already:
        fail(f"{topic}-{partition}: {result.message or result.code.name}")
    document = {"topic": topic, "partition": partition, "leader": leader, "elected": not already}
    return View(document, [f"{topic}-{partition}: broker {leader} {'leads already' if already else 'is elected'}"])


async def _ask_one(bootstrap: str, topic: str, partition: int) -> tuple[ElectionResult, int]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        places = {p.partition: p for p in described.partitions}
        if partition not in places:
            raise UsageError(f"topic {topic} has no partition {partition}; it has {len(places)}")
        (result,) = await admin.elect_leaders([(topic, partition)])
        return result, places[partition].replicas[0]


def _elect_all(bootstrap: str) -> View:
    from strandline.protocol.errors import ErrorCode

    results, preferred = run(_ask_all(bootstrap))
    failed = [result for result in results if result.code != ErrorCode.NONE]
    elected = [result.partition for result in results if result.code == ErrorCode.NONE]
    document = {
        "elected": [{"topic": t.topic, "partition": t.partition, "leader": preferred.get(t)} for t in elected],
        "failed": [
            {
                "topic": result.partition.topic,
                "partition": result.partition.partition,
                "error": result.code.name,
                "reason": result.message,
            }
            for result in failed
        ],
    }
    lines = [f"{t.topic}-{t.partition}: broker {preferred.get(t, 'unknown')} is elected" for t in elected]
    lines += [f"{r.partition.topic}-{r.partition.partition}: {r.message or r.code.name}" for r in failed]
    return View(document, lines or ["every partition is led by its preferred replica"], code=UNHEALTHY if failed else 0)


async def _ask_all(bootstrap: str) -> tuple[list[ElectionResult], dict[TopicPartition, int]]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        results = await admin.elect_leaders()
        return results, await _preferred_leaders(admin, sorted({result.partition.topic for result in results}))


async def _preferred_leaders(admin: Admin, topics: list[str]) -> dict[TopicPartition, int]:
    from strandline.client import TopicPartition

    described = await admin.describe_topics(topics) if topics else []
    return {TopicPartition(topic.name, p.partition): p.replicas[0] for topic in described for p in topic.partitions}
