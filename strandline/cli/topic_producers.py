"""`strandline topic producers`: the idempotent producers that the leaders of a topic's partitions remember."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from strandline.cli.amounts import time_text
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, ERROR, Bootstrap, TopicName
from strandline.cli.output import Form, Output, Table, View
from strandline.cli.partition_option import Partitions, chosen_partitions
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, PartitionProducers, ProducerDescription, TopicPartition

TIMEOUT_MS = 2000
"""Short, because a person waits, and a broker that is down never answers."""
COLUMNS = (
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


def producers(
    topic: TopicName,
    partitions: Partitions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Show the idempotent producers that the topic's partitions remember, with the last sequence number of each. If a leader does
    not answer, the others are shown, and the exit code is 1.

    For a named producer, "last sequence" is the number of its last row, and "uncommitted" means that another leader could
    still lack that row.
    """

    async def ask() -> View:
        return _view(topic, *await _ask(bootstrap, topic, partitions))

    present(ask, output, watch)


def _view(topic: str, found: list[PartitionProducers], unknown: dict[int, str]) -> View:
    document = {
        "topic": topic,
        "complete": not unknown,
        "partitions": [_document(each) for each in found],
        "unknown": [{"partition": partition, "reason": reason} for partition, reason in unknown.items()],
    }
    remarks = [f"the producers of {topic}-{partition} are not known: {reason}" for partition, reason in unknown.items()]
    rows = [_row(place, known) for place in found for known in place.producers]
    tokens = [(each.partition.partition, each.fencing_token) for each in found if each.fencing_token is not None]
    remarks += [f"{topic}-{partition} has fencing token {token}" for partition, token in tokens]
    if not rows and not unknown:
        remarks.append(f"{topic}: no idempotent producer is known")
    tables = [Table(COLUMNS, rows, spare=("epoch", "last timestamp"))] if rows else []
    return View(document, tables, remarks, ERROR if unknown else 0)


async def _ask(bootstrap: str, topic: str, partitions: list[int] | None) -> tuple[list[PartitionProducers], dict[int, str]]:
    """The answers of the leaders; and partition -> why its leader gave none."""
    from strandline.client import Admin, TopicPartition

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        chosen = {each.partition: each.leader_id for each in chosen_partitions(described, partitions)}
        unknown = {number: "it has no leader" for number, leader in chosen.items() if leader < 0}
        by_leader: dict[int, list[TopicPartition]] = {}
        for number, leader in chosen.items():
            if leader >= 0:
                by_leader.setdefault(leader, []).append(TopicPartition(topic, number))
        answers = await asyncio.gather(*(_ask_leader(admin, tps) for tps in by_leader.values()))
    for leader, tps, answer in zip(by_leader, by_leader.values(), answers, strict=True):
        if answer is None:
            unknown |= {tp.partition: f"broker {leader} did not answer" for tp in tps}
    found = [each for answer in answers for each in answer or ()]
    return sorted(found, key=lambda each: each.partition), dict(sorted(unknown.items()))


async def _ask_leader(admin: Admin, partitions: list[TopicPartition]) -> list[PartitionProducers] | None:
    try:
        return list((await admin.describe_producers(partitions, timeout_ms=TIMEOUT_MS)).values())
    except StrandlineError:
        return None


def _row(place: PartitionProducers, known: ProducerDescription) -> tuple[object, ...]:
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


def _document(place: PartitionProducers) -> dict[str, Any]:
    return {
        "partition": place.partition.partition,
        "leader": place.leader_id,
        "leader_epoch": place.leader_epoch,
        "high_watermark": place.high_watermark,
        "fencing_token": place.fencing_token,
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
