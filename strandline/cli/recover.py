"""`strandline recover`: partitions without a leader, what each of their replicas has, and the election of one of them by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Yes,
    check_terminal,
    confirm,
    fail,
    new_app,
    run,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.unclean_elections import lost_text, report_json
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, PartitionDescription, ReplicaLog, TopicPartition, UncleanElection

app = new_app()

ASK_TIMEOUT_MS = 2000
"""Short, because a person waits, and a broker that is down never answers."""
REPORT_TIMEOUT_S = 10.0
"""How long to ask for the report of an election: the metadata of the broker that answers may be older than the election."""
REPORT_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica that could be elected, and the records that would be lost then."""

    log: ReplicaLog
    lost_from: int
    lost_to: int
    """-1: unknown."""

    @property
    def lost(self) -> str:
        return lost_text(self.lost_from, None if self.lost_to < 0 else self.lost_to)


@dataclass(frozen=True, slots=True)
class Plan:
    """A partition without a leader, and its choices."""

    topic: str
    partition: PartitionDescription
    choices: list[Choice]

    def choice(self, broker_id: int) -> Choice | None:
        return next((each for each in self.choices if each.log.broker_id == broker_id), None)


@app.command()
def recover(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic's name; all, if none is named.")] = None,
    partition: Annotated[
        int | None, typer.Argument(metavar="PARTITION", min=0, help="The partition's number.", show_default=False)
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the partitions without a leader, and what each choice loses.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Elect the replica on --broker.")] = False,
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, metavar="ID", help="The broker to elect.", show_default=False)
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Give a partition a leader that may lack acknowledged records, if no replica that has all of them can return.

    With --plan, show each partition without a leader, its live replicas, and the records that may be lost if that replica leads.
    With --apply, elect the replica that --broker names; asks first, unless --yes is given. Prefer the last known leader, and then
    the replica with the highest last epoch and log end.
    """
    if plan == apply:
        raise UsageError("give one of --plan and --apply")
    if plan:
        present(lambda: _plans_view(bootstrap, topic, partition), output, watch)
    elif topic is None or partition is None or broker is None:
        raise UsageError("--apply needs TOPIC, PARTITION and --broker")
    else:
        check_terminal(yes, "recover --apply may lose acknowledged records for good")
        show(_apply(bootstrap, topic, partition, broker, yes), output)


async def _plans(bootstrap: str, topic: str | None, partition: int | None) -> list[Plan]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await plans(admin, topic, partition)


async def plans(admin: Admin, topic: str | None, partition: int | None) -> list[Plan]:
    """The partitions without a leader: of the cluster, of a topic, or this one. UsageError if it does not exist."""
    from strandline.client import RequestTimeout

    topics = await admin.describe_topics(None if topic is None else [topic])
    for found in topics if partition is not None else ():
        if partition not in [p.partition for p in found.partitions]:
            raise UsageError(f"topic {found.name} has no partition {partition}; it has {len(found.partitions)}")
    wanted = [
        (found.name, p) for found in topics for p in found.partitions if p.leader_id < 0 and partition in (None, p.partition)
    ]
    if not wanted:
        return []
    logs = await admin.describe_replica_logs([(name, p.partition) for name, p in wanted], timeout_ms=ASK_TIMEOUT_MS)
    try:
        reports = await admin.describe_unclean_elections(sorted({name for name, _ in wanted}), timeout_ms=ASK_TIMEOUT_MS)
    except RequestTimeout:
        reports = []  # the choices are worth showing without the reports of earlier elections
    by_place = {(tp.topic, tp.partition): found for tp, found in logs.items()}
    result = []
    for name, p in wanted:
        earlier = [each for each in reports if (each.partition.topic, each.partition.partition) == (name, p.partition)]
        result.append(Plan(name, p, _choices(p, by_place.get((name, p.partition), []), earlier)))
    return result


def _choices(partition: PartitionDescription, logs: list[ReplicaLog], earlier: list[UncleanElection]) -> list[Choice]:
    """The choices of a partition, each with the range of lost records that the controller would report for it."""
    from strandline.controller.metadata.image import PartitionRegistration
    from strandline.controller.unclean_recovery import ReplicaLog as Answer
    from strandline.controller.unclean_recovery import lost_range

    registration = PartitionRegistration(
        partition.replicas,
        partition.isr,
        -1,
        partition.leader_epoch,
        partition.partition_epoch,
        last_known_elr=partition.last_known_elr,
    )
    answers = {
        log.broker_id: Answer(-1, log.last_epoch, log.log_end_offset, log.high_watermark, log.may_lack_records) for log in logs
    }
    return [Choice(log, *lost_range(registration, earlier, log.broker_id, answers)) for log in logs]


def _last_leader(partition: PartitionDescription) -> int | None:
    return next(iter((*partition.last_known_elr, *partition.isr)), None)


async def _plans_view(bootstrap: str, topic: str | None, partition: int | None) -> View:
    found = await _plans(bootstrap, topic, partition)
    document = {"partitions": [_plan_json(each) for each in found]}
    if not found:
        return View(document, ["every partition has a leader"])
    columns = ("topic", "partition", "last leader", "broker", "last epoch", "log end", "high watermark", "would lose")
    return View(document, [Table(columns, [row for each in found for row in _rows(each)], spare=("high watermark",))])


def _rows(plan: Plan) -> list[tuple[Any, ...]]:
    head = (plan.topic, plan.partition.partition, _last_leader(plan.partition))
    if not plan.choices:
        return [(*head, None, None, None, None, "no replica is alive")]
    return [(*head, c.log.broker_id, c.log.last_epoch, c.log.log_end_offset, c.log.high_watermark, c.lost) for c in plan.choices]


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "topic": plan.topic,
        "partition": plan.partition.partition,
        "last_known_leader": _last_leader(plan.partition),
        "replicas": list(plan.partition.replicas),
        "choices": [
            {
                "broker": each.log.broker_id,
                "last_epoch": each.log.last_epoch,
                "log_end_offset": each.log.log_end_offset,
                "high_watermark": each.log.high_watermark,
                "may_lack_records": each.log.may_lack_records,
                "lost_from": each.lost_from,
                "lost_to": None if each.lost_to < 0 else each.lost_to,
            }
            for each in plan.choices
        ],
    }


def _apply(bootstrap: str, topic: str, partition: int, broker: int, yes: bool) -> View:
    found = run(_plans(bootstrap, topic, partition))
    if not found:
        fail(f"{topic}-{partition} has a leader")
    choice = found[0].choice(broker)
    if choice is None:
        fail(f"broker {broker} has no replica of {topic}-{partition} that is alive and undamaged")
    confirm(f"This may lose {choice.lost} of {topic}-{partition}, for good.", yes, "no leader was elected")
    report = run(_elect(bootstrap, topic, partition, broker, found[0].partition.leader_epoch))
    if report is None:
        fail(f"broker {broker} is elected, but its report has not arrived; `strandline topic describe {topic}` shows it later")
    lost = lost_text(report.lost_from, report.lost_to)
    return View(report_json(report), [f"{topic}-{partition}: broker {report.leader_id} is elected; may be lost: {lost}"])


async def _elect(bootstrap: str, topic: str, partition: int, broker: int, epoch: int) -> UncleanElection | None:
    from strandline.client import Admin
    from strandline.protocol.errors import ErrorCode

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (result,) = await admin.elect_leaders([(topic, partition)], election="unclean", leader=broker)
        report = None
        if result.code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
            # ELECTION_NOT_NEEDED, although it had no leader before: an attempt whose response was lost may have elected one.
            report = (await reports_after(admin, {result.partition: epoch})).get(result.partition)
        if result.code != ErrorCode.NONE and (report is None or report.leader_id != broker):
            fail(f"{topic}-{partition}: {result.message or result.code.name}")
        return report


async def reports_after(admin: Admin, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, UncleanElection]:
    """Partition -> the report of the first election after this leader epoch. Any broker may answer, and its metadata may be older
    than the election, so the request is repeated for REPORT_TIMEOUT_S. Reports that are missing then are left out."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REPORT_TIMEOUT_S
    while True:
        found: dict[TopicPartition, UncleanElection] = {}
        for report in await admin.describe_unclean_elections(sorted({tp.topic for tp in epochs})):
            if report.leader_epoch > epochs.get(report.partition, report.leader_epoch):
                found.setdefault(report.partition, report)
        if len(found) == len(epochs) or loop.time() >= deadline:
            return found
        await asyncio.sleep(REPORT_RETRY_S)
