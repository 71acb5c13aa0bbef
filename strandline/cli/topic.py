"""`strandline topic`: creates, lists, describes, alters, trims and deletes topics; shows their offsets and producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    UNHEALTHY,
    Bootstrap,
    Json,
    Wide,
    new_app,
    note,
    parse_settings,
    print_json,
    print_table,
    run,
)
from strandline.cli.config_table import SOURCES
from strandline.cli.config_table import is_given as _is_given
from strandline.cli.leaderless import waits_for
from strandline.cli.topic_offsets import offsets
from strandline.cli.topic_trim import trim
from strandline.cli.unclean_elections import report_json, report_text
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.cli.topic_state import TopicState
    from strandline.client import PartitionDescription, PartitionProducers, ProducerDescription, TopicDescription

app = new_app("Create, list, describe, alter, trim and delete topics; show their offsets and producers.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "--set", "-c", metavar="KEY=VALUE", help="A key of the topic's configuration; may be given several times."
    ),
]


@app.command()
def create(
    topic: Name,
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
    json: Json = False,
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
        async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            try:
                return (await admin.create_topics([new]))[0], True
            except RequestFailed as e:
                if not if_not_exists or e.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            return (await admin.describe_topics([topic]))[0], False

    found, created = run(work())
    for warning in found.warnings:
        note(f"warning: {warning}")
    if json:
        print_json(_topic_json(found) | {"created": created})
    else:
        print(f"{topic}: {_shape(found)}" if created else f"{topic} exists already and was left as it is: {_shape(found)}")


def _shape(topic: TopicDescription) -> str:
    count = len(topic.partitions)
    return f"{count} partition{'' if count == 1 else 's'}, replication factor {topic.replication_factor}"


def _parse_assignment(text: str) -> dict[int, list[int]]:
    try:
        return {i: [int(broker) for broker in part.split(":")] for i, part in enumerate(text.split(","))}
    except ValueError:
        raise UsageError(f"--replica-assignment takes 1:2:3,2:3:1,... and not {text!r}") from None


@app.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, wide: Wide = False, json: Json = False) -> None:
    """List the topics."""
    topics = run(_describe(bootstrap, None))
    if json:
        names = ("topic", "topic_id", "partitions", "replication_factor", "under_replicated", "unavailable")
        print_json({"topics": [dict(zip(names, row, strict=True)) for row in map(_summary, topics)]})
        return
    if not topics:
        note("the cluster has no topics")
        return
    columns = ("topic", "id", "partitions", "replicas", "under-replicated", "unavailable")
    print_table(columns, map(_summary, topics), wide=wide, spare=("id",))


def _summary(topic: TopicDescription) -> tuple[Any, ...]:
    under = sum(p.is_under_replicated for p in topic.partitions)
    unavailable = sum(p.leader_id < 0 for p in topic.partitions)
    return topic.name, uuid_text(topic.topic_id), len(topic.partitions), topic.replication_factor, under, unavailable


@app.command()
def describe(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Topics to describe; all, if none is named.")
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica outside the ISR.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only partitions without a leader.")] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Only partitions with fewer in-sync replicas than min.insync.replicas.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """Describe topics: partitions, offsets, sizes, and the configuration that is not a default. With a filter, exit code 3
    if a partition matches it.

    "start" is the offset of the first record, "end" the offset after the last record that consumers can read, "bytes"
    the size of the leader's replica.
    """
    state = run(_ask_state(bootstrap, topics))
    found = state.topics
    filters: list[Callable[[TopicDescription, PartitionDescription], bool]] = []
    if under_replicated:
        filters.append(lambda t, p: p.is_under_replicated)
    if unavailable:
        filters.append(lambda t, p: p.leader_id < 0)
    if under_min_isr:
        filters.append(lambda t, p: len(p.isr) < p.effective_min_isr(state.min_insync_replicas(t.name)))

    def wanted(topic: TopicDescription, partition: PartitionDescription) -> bool:
        return not filters or any(test(topic, partition) for test in filters)

    shown = {t.name: [p for p in t.partitions if wanted(t, p)] for t in found}
    if json:
        document = [_topic_json(t, shown[t.name], state) for t in found if shown[t.name] or not filters]
        print_json({"topics": document})
    elif not found:
        note("the cluster has no topics")
    elif filters and not any(shown.values()):
        flags = {"--under-replicated": under_replicated, "--unavailable": unavailable, "--under-min-isr": under_min_isr}
        print(f"no partition matches {' or '.join(flag for flag, given in flags.items() if given)}")
    else:
        _print_partitions(state, shown, wide)
        if not filters:
            _print_configs(state)
            _print_unclean_elections(state)
    if filters and any(shown.values()):
        raise typer.Exit(UNHEALTHY)


LEADERLESS_MAX = 10
"""At most this many partitions without a leader get a line that says for which broker they wait."""


def _print_partitions(state: TopicState, shown: dict[str, list[PartitionDescription]], wide: bool) -> None:
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
        )
        for t in state.topics
        for p in shown[t.name]
    ]
    print_table(columns, rows, wide=wide, spare=("bytes", "start", "end", "offline"))
    leaderless = [(t.name, p) for t in state.topics for p in shown[t.name] if p.leader_id < 0]
    for name, p in leaderless[:LEADERLESS_MAX]:
        print(f"{name}-{p.partition} has no leader; {waits_for(p)}")


def _state_of(partition: PartitionDescription) -> str:
    if partition.leader_id < 0:
        return "unavailable"
    if partition.is_under_replicated:
        return "under-replicated"
    return "reassigning" if partition.adding_replicas else "ok"


def _print_configs(state: TopicState) -> None:
    """Print the keys that are not defaults, one per line, and whether the replicas are fewer than `min.insync.replicas`."""
    for topic in state.topics:
        given = [f"{c.name}={c.value} ({SOURCES.get(c.source, c.source)})" for c in state.configs[topic.name] if _is_given(c)]
        for i, line in enumerate(given or ["every key has its default"]):
            print(f"{topic.name}: {line}" if i == 0 else f"{'':{len(topic.name)}}  {line}")
        wanted = state.min_insync_replicas(topic.name)
        if capped := [p.partition for p in topic.partitions if p.effective_min_isr(wanted) < wanted]:
            print(f"{topic.name}: {_min_isr_note(topic, wanted, capped)}")


def _min_isr_note(topic: TopicDescription, wanted: int, capped: list[int]) -> str:
    """Say that partitions have fewer replicas than `min.insync.replicas`."""
    which = "" if len(capped) == len(topic.partitions) else f" of {len(capped)} of {len(topic.partitions)} partitions"
    fewest = min(len(p.replicas) for p in topic.partitions if p.partition in capped)
    return f"min.insync.replicas={wanted} is capped{which} by the number of replicas: {fewest} in sync is enough for acks=all"


def _print_unclean_elections(state: TopicState) -> None:
    for reports in state.unclean_elections.values():
        for report in reports:
            elected_at = time_text(report.elected_at_ms)
            print(f"{report.partition.topic}-{report.partition.partition}: {report_text(report, elected_at)}")


@app.command()
def alter(
    topic: Name,
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
        async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
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
app.command()(trim)


@app.command()
def delete(
    topic: Name,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if the topic does not exist.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic with all its records."""
    from strandline.client import Admin, UnknownTopic

    async def work() -> None:
        async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.delete_topics([topic])

    try:
        run(work())
    except UnknownTopic:
        if not if_exists:
            raise
        note(f"there is no topic {topic}; nothing was deleted")
    else:
        note(f"{topic} deleted")


@app.command()
def producers(
    topic: Name,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="NUMBER", help="Only this partition; may be given several times."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """Show the idempotent producers that the topic's partitions remember, with the last sequence number of each.

    For a named producer, "last sequence" is the number of its last row, and "uncommitted" means that another leader could
    still lack that row.
    """
    found = run(_describe_producers(bootstrap, topic, partitions))
    if json:
        print_json({"topic": topic, "partitions": [_producers_json(p) for p in found]})
        return
    if not any(p.producers for p in found):
        note(f"{topic}: no idempotent producer is known")
        return
    columns = (
        "partition",
        "producer id",
        "name",
        "work_epoch",
        "epoch",
        "last sequence",
        "last offset",
        "last timestamp",
        "state",
    )
    rows = [_producer_row(p, known) for p in found for known in p.producers]
    print_table(columns, rows, wide=wide, spare=("epoch", "last timestamp"))


async def _describe_producers(bootstrap: str, topic: str, partitions: list[int] | None) -> list[PartitionProducers]:
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        asked = [p.partition for p in described.partitions] if partitions is None else sorted(set(partitions))
        return list((await admin.describe_producers([(topic, partition) for partition in asked])).values())


def _producer_row(place: PartitionProducers, known: ProducerDescription) -> tuple[object, ...]:
    return (
        place.partition.partition,
        known.producer_id,
        known.name,
        known.work_epoch if known.is_named else None,
        known.producer_epoch,
        known.last_sequence,
        known.last_offset,
        time_text(known.last_timestamp_ms),
        "committed" if known.last_offset < place.high_watermark else "uncommitted",
    )


def _producers_json(place: PartitionProducers) -> dict[str, Any]:
    return {
        "partition": place.partition.partition,
        "leader": place.leader_id,
        "leader_epoch": place.leader_epoch,
        "high_watermark": place.high_watermark,
        "producers": [
            {
                "producer_id": known.producer_id,
                "producer_epoch": known.producer_epoch,
                "name": known.name,
                "work_epoch": known.work_epoch if known.is_named else None,
                "last_sequence": known.last_sequence,
                "last_offset": known.last_offset,
                "last_timestamp_ms": known.last_timestamp_ms,
            }
            for known in place.producers
        ],
    }


# -- shared -----------------------------------------------------------------------------------------------------------


async def _describe(bootstrap: str, names: list[str] | None) -> list[TopicDescription]:
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.describe_topics(names)


async def _ask_state(bootstrap: str, names: list[str] | None) -> TopicState:
    from strandline.cli.topic_state import ask
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
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


def time_text(timestamp_ms: int) -> str:
    """A record's timestamp for people, in UTC."""
    import datetime

    if timestamp_ms < 0:
        return ""
    return f"{datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S}"
