"""`strandline topic offsets`: the first and the last offset of each partition, from the leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, Json, Wide, fail, print_json, print_table, run

if TYPE_CHECKING:
    from strandline.client import PartitionDescription

TIMEOUT_MS = 2000
"""Short, because a person waits, and a broker that is down never answers."""


class Offsets(NamedTuple):
    """Leader and offsets of one partition; None for what is not known (`error` says why)."""

    partition: int
    leader: int | None
    start_offset: int | None
    end_offset: int | None

    @property
    def records(self) -> int | None:
        return None if self.start_offset is None or self.end_offset is None else self.end_offset - self.start_offset

    @property
    def error(self) -> str | None:
        """Why the partition's offsets are not known; None if they are."""
        if self.leader is None:
            return "no leader"
        return f"broker {self.leader} did not answer" if self.records is None else None


def offsets(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """Show the offsets of a topic's partitions. If a leader does not answer, the others are shown, and the exit code is 1.

    "start" is the offset of the first record, "end" the high watermark: the offset after the last record that consumers can
    read. "records" is the difference; a compacted log has fewer records.
    """
    found = run(_ask(bootstrap, topic))
    known = [one.records for one in found if one.records is not None]
    if json:
        partitions = [{**one._asdict(), "records": one.records, "error": one.error} for one in found]
        print_json({"topic": topic, "records": sum(known), "complete": len(known) == len(found), "partitions": partitions})
    else:
        rows = [(one.partition, one.leader, one.start_offset, one.end_offset, one.records, one.error or "ok") for one in found]
        print_table(("partition", "leader", "start", "end", "records", "state"), rows, wide=wide)
    if len(known) < len(found):
        fail(f"{topic}: {len(found) - len(known)} of {len(found)} partitions are not known; the others have {sum(known)} records")
    if not json:
        print(f"{topic}: {sum(known)} records in {len(found)} partition{'' if len(found) == 1 else 's'}")


async def _ask(bootstrap: str, topic: str) -> list[Offsets]:
    from strandline.client import Admin, TopicPartition
    from strandline.client.consumer.partition_state import EARLIEST, LATEST

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        led = [TopicPartition(topic, p.partition) for p in described.partitions if p.leader_id >= 0]
        answers = []
        for timestamp in (EARLIEST, LATEST):
            found = await admin.list_offsets(dict.fromkeys(led, timestamp), timeout_ms=TIMEOUT_MS) if led else {}
            answers.append({place.partition: answer.offset for place, answer in found.items() if answer is not None})
    return joined(described.partitions, *answers)


def joined(partitions: Iterable[PartitionDescription], starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Offsets]:
    """One row per partition, also for those whose leader did not answer. `starts`, `ends`: by partition."""
    rows = []
    for p in sorted(partitions, key=lambda one: one.partition):
        leader = p.leader_id if p.leader_id >= 0 else None
        rows.append(Offsets(p.partition, leader, starts.get(p.partition), ends.get(p.partition)))
    return rows
