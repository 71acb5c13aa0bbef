"""`strandline topic offsets`: the first and the last offset of each partition, from the leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from strandline.cli.amounts import counted
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, ERROR, Bootstrap, TopicName
from strandline.cli.output import Form, Output, Table, View
from strandline.cli.watch import Watch, present
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, PartitionDescription, TopicPartition

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
    topic: TopicName,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Show the offsets of a topic's partitions. If a leader does not answer, the others are shown, and the exit code is 1.

    "start" is the offset of the first record, "end" the high watermark: the offset after the last record that consumers can
    read. "records" is the difference; a compacted log has fewer records.
    """

    async def ask() -> View:
        return _view(topic, await _ask(bootstrap, topic))

    present(ask, output, watch)


def _view(topic: str, found: list[Offsets]) -> View:
    known = [one.records for one in found if one.records is not None]
    partitions = [{**one._asdict(), "records": one.records, "error": one.error} for one in found]
    document = {"topic": topic, "records": sum(known), "complete": len(known) == len(found), "partitions": partitions}
    rows = [(one.partition, one.leader, one.start_offset, one.end_offset, one.records, one.error or "ok") for one in found]
    table = Table(("partition", "leader", "start", "end", "records", "state"), rows)
    if len(known) < len(found):
        unknown = f"{topic}: {len(found) - len(known)} of {len(found)} partitions are not known"
        return View(document, [table], [f"{unknown}; the others have {sum(known)} records"], ERROR)
    return View(document, [table, f"{topic}: {sum(known)} records in {counted(len(found), 'partition')}"])


async def _ask(bootstrap: str, topic: str) -> list[Offsets]:
    from strandline.client import Admin, TopicPartition
    from strandline.client.consumer.partition_state import EARLIEST, LATEST

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        led = [TopicPartition(topic, p.partition) for p in described.partitions if p.leader_id >= 0]
        starts, ends = await asyncio.gather(offsets_at(admin, led, EARLIEST), offsets_at(admin, led, LATEST))
    return joined(described.partitions, _by_number(starts), _by_number(ends))


async def offsets_at(admin: Admin, partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """Partition -> the offset of a timestamp (as for `Admin.list_offsets`). Left out are partitions whose leader does not answer,
    and those without a record at or after a time."""
    if not partitions:
        return {}
    found = await admin.list_offsets(dict.fromkeys(partitions, timestamp), timeout_ms=TIMEOUT_MS)
    return {place: answer.offset for place, answer in found.items() if answer is not None}


def _by_number(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {place.partition: offset for place, offset in offsets.items()}


def joined(partitions: Iterable[PartitionDescription], starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Offsets]:
    """One row per partition, also for those whose leader did not answer. `starts`, `ends`: by partition."""
    rows = []
    for p in sorted(partitions, key=lambda one: one.partition):
        leader = p.leader_id if p.leader_id >= 0 else None
        rows.append(Offsets(p.partition, leader, starts.get(p.partition), ends.get(p.partition)))
    return rows
