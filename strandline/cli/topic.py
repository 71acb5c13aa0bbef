"""`strandline topic`: create, list, describe, alter and delete topics; who writes to them."""

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
    Settings,
    new_app,
    note,
    parse_settings,
    print_json,
    print_table,
    run,
)
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client import PartitionDescription, PartitionProducers, ProducerDescription, TopicDescription

app = new_app("Create, list, describe, alter and delete topics; see who writes to them.")

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
def create(
    topic: Name,
    partitions: Annotated[int | None, typer.Option(help="How many; the cluster's default, if not given.")] = None,
    replication_factor: Annotated[int | None, typer.Option(help="Replicas of each; the cluster's default, if not given.")] = None,
    replica_assignment: Annotated[
        str | None, typer.Option(metavar="1:2:3,2:3:1,...", help="The brokers of each partition, the preferred leader first.")
    ] = None,
    settings: Settings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="It is no error when the topic is there.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a topic, and wait until each partition has a leader."""
    from strandline.client import Admin, NewTopic

    assignments = _parse_assignment(replica_assignment) if replica_assignment else None
    if assignments and (partitions is not None or replication_factor is not None):
        raise UsageError("--replica-assignment says how many partitions and replicas there are; leave out the other two")
    new = NewTopic(
        topic,
        partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        configs=parse_settings(settings) or None,
        replica_assignments=assignments,
    )

    async def work() -> TopicDescription:
        async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            if if_not_exists and topic in await admin.list_topics():
                return (await admin.describe_topics([topic]))[0]
            return (await admin.create_topics([new]))[0]

    created = run(work())
    if json:
        print_json(_topic_json(created))
    else:
        print(f"{topic}: {len(created.partitions)} partitions, replication factor {created.replication_factor}")


def _parse_assignment(text: str) -> dict[int, list[int]]:
    try:
        return {i: [int(broker) for broker in part.split(":")] for i, part in enumerate(text.split(","))}
    except ValueError:
        raise UsageError(f"--replica-assignment takes 1:2:3,2:3:1,... and not {text!r}") from None


@app.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the topics."""
    topics = run(_describe(bootstrap, None))
    if json:
        names = ("topic", "topic_id", "partitions", "replication_factor", "under_replicated", "unavailable")
        print_json({"topics": [dict(zip(names, row, strict=True)) for row in map(_summary, topics)]})
        return
    columns = ("topic", "id", "partitions", "replicas", "under-replicated", "unavailable")
    print_table(columns, map(_summary, topics))


def _summary(topic: TopicDescription) -> tuple[Any, ...]:
    under = sum(p.is_under_replicated for p in topic.partitions)
    unavailable = sum(p.leader_id < 0 for p in topic.partitions)
    return topic.name, uuid_text(topic.topic_id), len(topic.partitions), topic.replication_factor, under, unavailable


@app.command()
def describe(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="All, if none is named.")] = None,
    under_replicated: Annotated[bool, typer.Option("--under-replicated", help="Only where a replica is out of sync.")] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only where there is no leader.")] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Only where fewer replicas are in sync than min.insync.replicas.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Describe topics, partition by partition. With one of the filters, exit code 3 when a partition is found."""
    found, configs = run(_describe_with_configs(bootstrap, topics))
    filters: list[Callable[[TopicDescription, PartitionDescription], bool]] = []
    if under_replicated:
        filters.append(lambda t, p: p.is_under_replicated)
    if unavailable:
        filters.append(lambda t, p: p.leader_id < 0)
    if under_min_isr:
        filters.append(lambda t, p: len(p.isr) < int(configs[t.name].get("min.insync.replicas") or 1))

    def wanted(topic: TopicDescription, partition: PartitionDescription) -> bool:
        return not filters or any(test(topic, partition) for test in filters)

    shown = {t.name: [p for p in t.partitions if wanted(t, p)] for t in found}
    if json:
        document = [_topic_json(t, shown[t.name], configs[t.name]) for t in found if shown[t.name] or not filters]
        print_json({"topics": document})
    else:
        _print_partitions(found, shown)
    if filters and any(shown.values()):
        raise typer.Exit(UNHEALTHY)


def _print_partitions(topics: list[TopicDescription], shown: dict[str, list[PartitionDescription]]) -> None:
    columns = ("topic", "partition", "leader", "epoch", "replicas", "isr", "elr", "offline", "state")
    rows = [
        (
            t.name,
            p.partition,
            p.leader_id if p.leader_id >= 0 else "none",
            p.leader_epoch,
            p.replicas,
            p.isr,
            p.eligible_leader_replicas,
            p.offline_replicas,
            "unavailable" if p.leader_id < 0 else "under-replicated" if p.is_under_replicated else "ok",
        )
        for t in topics
        for p in shown[t.name]
    ]
    print_table(columns, rows)


@app.command()
def alter(
    topic: Name,
    partitions: Annotated[int | None, typer.Option(help="Grow to so many partitions.")] = None,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Back to the default; may be given several times.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add partitions to a topic, or change its configuration."""
    from strandline.client import Admin

    changes: dict[str, str | None] = {**parse_settings(settings), **dict.fromkeys(unset or [])}
    if partitions is None and not changes:
        raise UsageError("nothing to alter: give --partitions, --set or --unset")

    async def work() -> None:
        async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.describe_topics([topic])  # an unknown topic is named before anything is changed
            if changes:
                await admin.alter_configs("topic", topic, changes)
            if partitions is not None:
                await admin.create_partitions(topic, partitions)

    run(work())
    note(f"{topic} altered")


@app.command()
def delete(
    topic: Name,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="It is no error when there is no such topic.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic with all its records."""
    from strandline.client import Admin

    async def work() -> None:
        async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            if not if_exists or topic in await admin.list_topics():
                await admin.delete_topics([topic])

    run(work())
    note(f"{topic} deleted")


@app.command()
def producers(
    topic: Name,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", help="Only this one; may be given several times.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the idempotent producers that the topic's partitions know, and how far each has come.

    Of a named producer, "last sequence" is the number of its last row, and "uncommitted" says that another leader might
    still lack it.
    """
    found = run(_describe_producers(bootstrap, topic, partitions))
    if json:
        print_json({"topic": topic, "partitions": [_producers_json(p) for p in found]})
        return
    columns = (
        "partition",
        "producer id",
        "name",
        "generation",
        "epoch",
        "last sequence",
        "last offset",
        "last timestamp",
        "state",
    )
    print_table(columns, [_producer_row(p, known) for p in found for known in p.producers])


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
        known.generation if known.is_named else None,
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
                "generation": known.generation if known.is_named else None,
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


async def _describe_with_configs(
    bootstrap: str, names: list[str] | None
) -> tuple[list[TopicDescription], dict[str, dict[str, str | None]]]:
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        topics = await admin.describe_topics(names or None)
        configs = {t.name: {c.name: c.value for c in await admin.describe_configs("topic", t.name)} for t in topics}
        return topics, configs


def _topic_json(
    topic: TopicDescription,
    partitions: list[PartitionDescription] | None = None,
    configs: dict[str, str | None] | None = None,
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
                "offline": list(p.offline_replicas),
            }
            for p in (topic.partitions if partitions is None else partitions)
        ],
    }
    return document | ({"configs": configs} if configs is not None else {})


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
