"""`strandline reassign`: moves partitions to other brokers, changes the number of replicas, and shows how far the moves are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, new_app, run
from strandline.cli.output import Form, Output, View, show
from strandline.cli.progress import progress as progress_bar
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.cli.moves import Progress, Situation
    from strandline.client import TopicPartition

SAMPLE_S = 1.0
"""The time between the two measurements from which the time left is calculated."""

app = new_app()


@app.command()
def reassign(
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="TOPIC,...", help="The topics; may be given several times.")
    ] = None,
    brokers: Annotated[
        list[str] | None, typer.Option("--brokers", metavar="ID,...", help="Spread the topics evenly over these brokers.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", metavar="NUMBER", min=1, help="The new number of replicas.")
    ] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Spread replicas and leaders evenly over all brokers and racks.")
    ] = False,
    throttle: Annotated[
        str | None,
        typer.Option("--throttle", metavar="RATE", help="Bytes per second that each broker may send and receive: 10MB."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would move, and change nothing (the default).")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Print what moves, and begin.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Show how far the moves are.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --apply or --progress: wait until the moves are complete.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the moves, and restore the replicas of before.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Move partitions to other brokers without interrupting clients. A plan has as few moves as possible.

    A move is complete when the new replicas have caught up; then the old ones are deleted. A throttle ends with the moves. If
    there is nothing to move, the exit code is 0.
    """
    given = {"--plan": plan, "--apply": apply, "--progress": progress, "--cancel": cancel}
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise UsageError(f"{chosen[0]} and {chosen[1]} exclude each other")
    names = _items(topics)
    if topics and not names:
        raise UsageError("--topics names no topic")
    if progress or cancel:
        if brokers or replication_factor or balance or throttle:
            raise UsageError(f"{chosen[0]} is about moves that are running; it takes --topics alone")
        if progress and wait:
            run(_wait(bootstrap, names))
        if progress:
            present(lambda: _progress(bootstrap, names), output, watch)
        else:
            show(run(_cancel(bootstrap, names)), output)
        return
    if watch is not None:
        raise UsageError("--watch needs --progress")
    if not (brokers or replication_factor or balance):
        raise UsageError("the goal is missing: --brokers 4,5,6, --replication-factor 3, or --balance")
    if not names and not balance:
        raise UsageError("the topics are missing: --topics orders,payments; --balance is about all topics")
    from strandline.cli.amounts import parse_bytes

    rate = None if throttle is None else parse_bytes(throttle, "--throttle")
    view = run(_plan(bootstrap, names, _broker_ids(brokers), replication_factor, apply, rate))
    if apply and wait:
        run(_wait(bootstrap, names))
    show(view, output)


def _items(given: list[str] | None) -> list[str]:
    return list(dict.fromkeys(item.strip() for one in given or () for item in one.split(",") if item.strip()))


def _broker_ids(given: list[str] | None) -> list[int] | None:
    items = _items(given)
    wrong = [item for item in items if not (item.isascii() and item.isdigit())]
    if wrong:
        raise UsageError(f"--brokers takes ids of brokers, such as 4,5,6, not {wrong[0]!r}")
    return [int(item) for item in items] if given else None


async def _plan(
    bootstrap: str,
    topics: list[str],
    brokers: list[int] | None,
    factor: int | None,
    apply: bool,
    rate: int | None,
) -> View:
    from strandline.cli.moves import look, moves_of, moves_table, start, summary
    from strandline.client import Admin
    from strandline.client.admin.placement import plan_even, plan_factor

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        situation = await look(admin)
        chosen = _partitions_of(situation, topics)
        racks, targets = situation.racks(brokers), situation.targets()
        if brokers is None and factor is not None and topics:
            plan = plan_factor(situation.replicas, targets, chosen, factor)
        else:
            # A broker that the user names gets replicas, or the controller says why it may not.
            free = targets if brokers is None else racks
            plan = plan_even(situation.replicas, racks, chosen=chosen, replication_factor=factor, targets=free)
        moves = await moves_of(admin, situation, plan)
        if apply and plan:
            started = await start(admin, plan, rate)
            started.check()
            moves = [move for move in moves if move.tp not in started.skipped]
    document = {"moves": [move.document for move in moves], "applied": apply, "throttle_rate": rate}
    if not moves:
        return View(document, ["nothing to move: the replicas are where they should be"])
    how = "; `strandline reassign --progress` follows it" if apply else "; --apply begins"
    return View(document, [moves_table(moves), summary(moves) + how])


def _partitions_of(situation: Situation, topics: list[str]) -> list[TopicPartition]:
    """The partitions of these topics, or of all. Raises UnknownTopic."""
    from strandline.client import UnknownTopic

    known = {tp.topic for tp in situation.replicas}
    for topic in topics:
        if topic not in known:
            raise UnknownTopic("the topic does not exist", topic=topic)
    return [tp for tp in situation.replicas if not topics or tp.topic in topics]


async def _progress(bootstrap: str, topics: list[str]) -> View:
    from strandline.cli.moves import progress_json, progress_line, progress_table

    found, left_s = await _measure_twice(bootstrap, topics)
    document = progress_json(found, left_s)
    if not found:
        return View(document, ["no partition is moving"])
    return View(document, [progress_table(found), progress_line(found, left_s)])


async def _measure_twice(bootstrap: str, topics: list[str]) -> tuple[list[Progress], float | None]:
    from strandline.cli.moves import look, measure, time_left_s
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        situation = await look(admin)
        _choose(situation, topics)
        if not situation.running:
            return [], None
        loop = asyncio.get_running_loop()
        began_at, before = loop.time(), await measure(admin, situation)
        await asyncio.sleep(SAMPLE_S)
        after = await measure(admin, situation)
        return after, time_left_s(before, after, loop.time() - began_at)


def _choose(situation: Situation, topics: list[str]) -> None:
    chosen = _partitions_of(situation, topics)
    situation.running = {tp: each for tp, each in situation.running.items() if tp in chosen}


async def _wait(bootstrap: str, topics: list[str]) -> None:
    """Wait until no partition of these topics, or of any, is moving; a bar at the terminal shows the bytes."""
    from strandline.cli.moves import look, measure
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        situation = await look(admin)
        _choose(situation, topics)
        total, done = sum(p.total for p in await measure(admin, situation)), 0
        with progress_bar("copying", total) as advance:
            while situation.running:
                left = sum(p.total - p.copied for p in await measure(admin, situation))
                advance(max(0, total - left - done))
                done = max(done, total - left)
                await asyncio.sleep(SAMPLE_S)
                situation = await look(admin)
                _choose(situation, topics)


async def _cancel(bootstrap: str, topics: list[str]) -> View:
    from strandline.cli.moves import look, start
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        situation = await look(admin)
        _choose(situation, topics)
        running = situation.running
        if running:
            started = await start(admin, dict.fromkeys(running), None)
            started.check()
            running = {tp: each for tp, each in running.items() if tp not in started.skipped}
    cancelled = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(each.original_replicas)} for tp, each in running.items()
    ]
    lines = [
        f"{tp.topic}-{tp.partition}: cancelled, its replicas are {','.join(map(str, each.original_replicas))} again"
        for tp, each in running.items()
    ]
    return View({"cancelled": cancelled}, lines or ["no partition is moving"])
