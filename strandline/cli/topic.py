"""`strandline topic`: creates, lists, describes, alters, trims and deletes topics; shows their offsets, content and producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import names
from strandline.cli.amounts import counted, time_text
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    UNHEALTHY,
    Bootstrap,
    TopicName,
    Yes,
    check_terminal,
    confirm,
    new_app,
    note,
    parse_settings,
    run,
)
from strandline.cli.config_table import SOURCES
from strandline.cli.config_table import is_given as _is_given
from strandline.cli.leaderless import waits_for
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.topic_analyze import analyze
from strandline.cli.topic_offsets import offsets
from strandline.cli.topic_producers import producers
from strandline.cli.topic_trim import trim
from strandline.cli.unclean_elections import report_json, report_text
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import describable, reach

if TYPE_CHECKING:
    from strandline.cli.topic_state import TopicState
    from strandline.client import PartitionDescription, TopicDescription

app = new_app("Create, list, describe, alter, trim and delete topics; show their offsets, content and producers.")

Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "--set", "-c", metavar="KEY=VALUE", help="A key of the topic's configuration; may be given several times."
    ),
]


@app.command()
def create(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="COUNT", help="The cluster's default, if not given.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", metavar="COUNT", help="The cluster's default, if not given."),
    ] = None,
    replica_assignment: Annotated[
        str | None, typer.Option(metavar="1:2:3,2:3:1,...", help="The brokers of each partition, the preferred leader first.")
    ] = None,
    configs: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Create a topic, and wait until each partition has a leader."""
    from strandline.client import Admin, NewTopic, RequestFailed
    from strandline.protocol.errors import ErrorCode

    assignments = _parse_assignment(replica_assignment) if replica_assignment else None
    if assignments and (partitions is not None or replication_factor is not None):
        raise UsageError("--replica-assignment says how many partitions and replicas there are; leave out the other two")
    new = NewTopic(
        topic,
        partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        configs=parse_settings(configs, "--config") or None,
        replica_assignments=assignments,
    )

    async def work() -> tuple[TopicDescription, bool]:
        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            try:
                return (await admin.create_topics([new]))[0], True
            except RequestFailed as e:
                if not if_not_exists or e.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            return (await admin.describe_topics([topic]))[0], False

    found, created = run(work())
    text = f"{topic}: {_shape(found)}" if created else f"{topic} exists already and was left as it is: {_shape(found)}"
    warnings = [f"warning: {warning}" for warning in found.warnings]
    show(View(_topic_json(found) | {"created": created}, [text], warnings), output)


def _shape(topic: TopicDescription) -> str:
    count = len(topic.partitions)
    return f"{counted(count, 'partition')}, replication factor {topic.replication_factor}"


def _parse_assignment(text: str) -> dict[int, list[int]]:
    try:
        return {i: [int(broker) for broker in part.split(":")] for i, part in enumerate(text.split(","))}
    except ValueError:
        raise UsageError(f"--replica-assignment takes 1:2:3,2:3:1,... and not {text!r}") from None


@app.command("list")
def list_(
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out the topics of the cluster itself.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """List the topics."""

    async def ask() -> View:
        topics = await _describe(bootstrap, None)
        return _list([t for t in topics if not (exclude_internal and t.is_internal)], bootstrap)

    present(ask, output, watch)


def _list(topics: list[TopicDescription], bootstrap: str) -> View:
    rows = [_summary(topic) for topic in topics]
    names = ("topic", "topic_id", "partitions", "replication_factor", "under_replicated", "unavailable", "is_internal")
    document = {"topics": [dict(zip(names, row, strict=True)) for row in rows]}
    columns = ("topic", "id", "partitions", "replicas", "under-replicated", "unavailable", "internal")
    if not topics:
        return View(document, [], [describable("the cluster has no topics", bootstrap)])
    return View(document, [Table(columns, rows, spare=("id",), more=("internal",))])


def _summary(topic: TopicDescription) -> tuple[Any, ...]:
    under = sum(p.is_under_replicated for p in topic.partitions)
    unavailable = sum(p.leader_id < 0 for p in topic.partitions)
    replicas = topic.replication_factor
    return topic.name, uuid_text(topic.topic_id), len(topic.partitions), replicas, under, unavailable, topic.is_internal


Filter = Callable[["TopicState", "TopicDescription", "PartitionDescription"], bool]


def _isr_left(state: TopicState, topic: TopicDescription, partition: PartitionDescription) -> int:
    """How many in-sync replicas the partition has above its effective min.insync.replicas; negative below it."""
    return len(partition.isr) - partition.effective_min_isr(state.min_insync_replicas(topic.name))


FILTERS: dict[str, Filter] = {
    "--under-replicated": lambda state, topic, partition: partition.is_under_replicated,
    "--unavailable": lambda state, topic, partition: partition.leader_id < 0,
    "--under-min-isr": lambda state, topic, partition: _isr_left(state, topic, partition) < 0,
    "--at-min-isr": lambda state, topic, partition: _isr_left(state, topic, partition) == 0,
}


@app.command()
def describe(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics to describe; all, if none is named.", autocompletion=names.topics),
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica outside the ISR.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only partitions without a leader.")] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Only partitions with fewer in-sync replicas than min.insync.replicas.")
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr", help="Only partitions with exactly min.insync.replicas in sync.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Describe topics: partitions, offsets, sizes, and the configuration that is not a default. With a filter, exit code 3
    if a partition matches it. If a broker does not answer, the others are shown, and the exit code is 1.

    "start" is the offset of the first record, "end" the offset after the last record that consumers can read, "bytes"
    the size of the leader's replica.
    """
    given = (under_replicated, unavailable, under_min_isr, at_min_isr)
    filters = [name for name, is_given in zip(FILTERS, given, strict=True) if is_given]

    async def ask() -> View:
        return _described(await _ask_state(bootstrap, topics), filters, bootstrap)

    present(ask, output, watch)


def _described(state: TopicState, filters: list[str], bootstrap: str) -> View:
    def is_wanted(topic: TopicDescription, partition: PartitionDescription) -> bool:
        return not filters or any(FILTERS[name](state, topic, partition) for name in filters)

    shown = {t.name: [p for p in t.partitions if is_wanted(t, p)] for t in state.topics}
    matches = any(shown.values())
    document = {
        "topics": [_topic_json(t, shown[t.name], state) for t in state.topics if shown[t.name] or not filters],
        "complete": not state.silent,
        "brokers_without_answer": list(state.silent),
    }
    # A filter asks about metadata alone, which any broker knows.
    view = View(document) if filters else View(document, remarks=_unknown(state), code=ERROR if state.silent else 0)
    if not state.topics:
        view.remarks = [describable("the cluster has no topics", bootstrap), *view.remarks]
    elif filters and not matches:
        view.parts = [f"no partition matches {' or '.join(filters)}"]
    else:
        more = [] if filters else [*_configs(state), *_unclean_elections(state)]
        view.parts = [_partitions(state, shown), *_leaderless(state, shown), *more]
    if filters and matches:
        view.code = UNHEALTHY
    return view


def _unknown(state: TopicState) -> list[str]:
    """A remark about the brokers that did not answer; empty if all did."""
    if not state.silent:
        return []
    names = ", ".join(map(str, state.silent))
    return [f"broker{'s' if len(state.silent) > 1 else ''} {names} did not answer: offsets and sizes there are not known"]


LEADERLESS_MAX = 10
"""At most this many partitions without a leader get a line that says for which broker they wait."""


def _partitions(state: TopicState, shown: dict[str, list[PartitionDescription]]) -> Table:
    columns = (
        "topic",
        "partition",
        "leader",
        "epoch",
        "replicas",
        "isr",
        "elr",
        "last known elr",
        "offline",
        "start",
        "end",
        "bytes",
        "state",
        "partition epoch",
        "adding",
    )
    rows = [
        (
            t.name,
            p.partition,
            p.leader_id if p.leader_id >= 0 else "none",
            p.leader_epoch,
            p.replicas,
            p.isr,
            p.eligible_leader_replicas,
            p.last_known_elr,
            p.offline_replicas,
            state.start_offset(t.name, p.partition),
            state.end_offset(t.name, p.partition),
            state.size_bytes(t.name, p),
            _state_of(p),
            p.partition_epoch,
            p.adding_replicas,
        )
        for t in state.topics
        for p in shown[t.name]
    ]
    return Table(columns, rows, spare=("bytes", "start", "end", "offline"), more=("partition epoch", "adding"))


def _leaderless(state: TopicState, shown: dict[str, list[PartitionDescription]]) -> list[str]:
    found = [(t.name, p) for t in state.topics for p in shown[t.name] if p.leader_id < 0]
    return [f"{name}-{p.partition} has no leader; {waits_for(p)}" for name, p in found[:LEADERLESS_MAX]]


def _state_of(partition: PartitionDescription) -> str:
    if partition.leader_id < 0:
        return "unavailable"
    if partition.is_under_replicated:
        return "under-replicated"
    return "reassigning" if partition.adding_replicas else "ok"


def _configs(state: TopicState) -> list[str]:
    """A line for each key that is not a default, and one if the replicas are fewer than `min.insync.replicas`."""
    lines = []
    for topic in state.topics:
        given = [f"{c.name}={c.value} ({SOURCES.get(c.source, c.source)})" for c in state.configs[topic.name] if _is_given(c)]
        for i, line in enumerate(given or ["every key has its default"]):
            lines.append(f"{topic.name}: {line}" if i == 0 else f"{'':{len(topic.name)}}  {line}")
        wanted = state.min_insync_replicas(topic.name)
        if capped := [p.partition for p in topic.partitions if p.effective_min_isr(wanted) < wanted]:
            lines.append(f"{topic.name}: {_min_isr_note(topic, wanted, capped)}")
    return lines


def _min_isr_note(topic: TopicDescription, wanted: int, capped: list[int]) -> str:
    """Say that partitions have fewer replicas than `min.insync.replicas`."""
    which = "" if len(capped) == len(topic.partitions) else f" of {len(capped)} of {len(topic.partitions)} partitions"
    fewest = min(len(p.replicas) for p in topic.partitions if p.partition in capped)
    return f"min.insync.replicas={wanted} is capped{which} by the number of replicas: {fewest} in sync is enough for acks=all"


def _unclean_elections(state: TopicState) -> list[str]:
    return [
        f"{report.partition.topic}-{report.partition.partition}: {report_text(report, time_text(report.elected_at_ms))}"
        for reports in state.unclean_elections.values()
        for report in reports
    ]


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="COUNT", help="Increase the number of partitions to COUNT.")
    ] = None,
    configs: Configs = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Reset KEY to its default; may be given several times.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add partitions to a topic, or change its configuration."""
    from strandline.client import Admin

    given = parse_settings(configs, "--config")
    if both := [key for key in given if key in (unset or [])]:
        raise UsageError(f"--config sets {both[0]}, and --unset removes it: choose one")
    changes: dict[str, str | None] = {**given, **dict.fromkeys(unset or [])}
    if partitions is None and not changes:
        raise UsageError("nothing to alter: give --partitions, --config or --unset")

    warnings: list[str] = []

    async def work() -> None:
        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.describe_topics([topic])  # an unknown topic fails here, before anything is changed
            if changes:
                warnings.extend(await admin.alter_configs("topic", topic, changes))
            if partitions is not None:
                await admin.create_partitions(topic, partitions)

    run(work())
    for warning in warnings:
        note(f"warning: {warning}")
    note(f"{topic} altered")


app.command()(offsets)
app.command()(analyze)
app.command()(trim)


INTERNAL = {
    "__consumer_offsets": "the committed offsets and the members of all groups",
    "__transaction_state": "the producer ids and the transactions of all transactional ids",
}
"""Internal topic -> the state of the cluster that is stored in it, for the error message."""


@app.command()
def delete(
    topic: TopicName,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if the topic does not exist.")] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Delete it even if the cluster keeps state in it: __consumer_offsets, ...")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic with all its records. Asks first, unless --yes is given."""
    from strandline.client import Admin, UnknownTopic

    if topic in INTERNAL and not internal:
        raise UsageError(
            f"{topic} has {INTERNAL[topic]}; --internal deletes it all the same, and the cluster creates an empty one"
        )
    check_terminal(yes, "topic delete deletes a topic with all its records for good")
    confirm(f"This deletes {topic} with all its records, for good.", yes, "nothing was deleted")

    async def work() -> None:
        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.delete_topics([topic])

    try:
        run(work())
    except UnknownTopic:
        if not if_exists:
            raise
        note(f"there is no topic {topic}; nothing was deleted")
    else:
        note(f"{topic} deleted")


app.command()(producers)


# -- shared -----------------------------------------------------------------------------------------------------------


async def _describe(bootstrap: str, names: list[str] | None) -> list[TopicDescription]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.describe_topics(names)


async def _ask_state(bootstrap: str, names: list[str] | None) -> TopicState:
    from strandline.cli.topic_state import ask
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await ask(admin, names or None)


def _topic_json(
    topic: TopicDescription, partitions: list[PartitionDescription] | None = None, state: TopicState | None = None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "topic": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "replication_factor": topic.replication_factor,
        "partitions": [
            {
                "partition": p.partition,
                "leader": p.leader_id,
                "leader_epoch": p.leader_epoch,
                "partition_epoch": p.partition_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "elr": list(p.eligible_leader_replicas),
                "last_known_elr": list(p.last_known_elr),
                "offline": list(p.offline_replicas),
                "adding": list(p.adding_replicas),
            }
            | (state.partition_json(topic.name, p) if state is not None else {})
            for p in (topic.partitions if partitions is None else partitions)
        ],
    }
    if state is None:
        return document
    sources = {c.name: c.source for c in state.configs[topic.name]}
    document["unclean_elections"] = [report_json(report) for report in state.unclean_elections.get(topic.name, [])]
    return document | {"configs": state.values[topic.name], "config_sources": sources}


def uuid_text(raw: bytes) -> str:
    """A topic id as Kafka writes it: URL-safe base64 without padding."""
    import base64

    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
