"""`strandline topic analyze`: reads a topic, and counts its records, keys, sizes, times and gaps by partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strandline.cli.amounts import show_bytes, time_text
from strandline.cli.analysis import KEYS_MAX, Analysis
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, ERROR, Bootstrap, TopicName, quiet_client, run
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.partition_option import Partitions, chosen_partitions
from strandline.cli.progress import progress
from strandline.cli.topic_offsets import Offsets, joined, offsets_at
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Consumer, TopicPartition

STALLED_S = 5.0
"""A partition of which nothing has arrived for so long is left out."""
POLL_MS = 250
COLUMNS = (
    "partition",
    "records",
    "bytes",
    "keys",
    "no key",
    "tombstones",
    "average",
    "largest",
    "gaps",
    "first",
    "last",
    "batches",
    "missing offsets",
    "state",
)


def analyze(
    topic: TopicName,
    partitions: Partitions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Read the present records of a topic, and count them. If a partition cannot be read, the others are shown, and the exit code
    is 1.

    "bytes" are those of keys, values and headers without compression, "average" and "largest" of a record and of a value, "keys"
    the different ones, "tombstones" records with a key and no value, "gaps" runs of offsets without records. Times are in UTC.
    """
    quiet_client()
    analyses, problems = run(_analyze(bootstrap, topic, partitions))
    show(_view(topic, analyses, problems), output)


async def _analyze(bootstrap: str, topic: str, partitions: list[int] | None) -> tuple[dict[int, Analysis], dict[int, str]]:
    """The analysis of each partition that can be read; and partition -> why it is not complete."""
    from strandline.client import Consumer

    found = await _offsets(bootstrap, topic, partitions)
    problems = {one.partition: one.error for one in found if one.error is not None}
    analyses = {
        one.partition: Analysis(one.start_offset, one.end_offset)
        for one in found
        if one.start_offset is not None and one.end_offset is not None
    }
    total = sum(each.end_offset - each.start_offset for each in analyses.values())
    options: Any = {**reach(bootstrap), "connect_timeout_ms": CONNECT_TIMEOUT_MS, "auto_offset_reset": "earliest"}
    async with Consumer(**options) as consumer:
        with progress(topic, total) as advance:
            problems |= await _Reading(consumer, topic, analyses, advance).run()
    return analyses, problems


async def _offsets(bootstrap: str, topic: str, partitions: list[int] | None) -> list[Offsets]:
    from strandline.client import Admin, TopicPartition

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        chosen = chosen_partitions(described, partitions)
        led = [TopicPartition(topic, p.partition) for p in chosen if p.leader_id >= 0]
        starts, ends = await asyncio.gather(offsets_at(admin, led, -2), offsets_at(admin, led, -1))
    return joined(chosen, {tp.partition: at for tp, at in starts.items()}, {tp.partition: at for tp, at in ends.items()})


class _Reading:
    """Reads partitions up to their ends. A partition that fails or stalls is left out, and the others are read on."""

    def __init__(self, consumer: Consumer, topic: str, analyses: dict[int, Analysis], advance: Callable[[int], None]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._analyses = analyses
        self._advance = advance
        self._problems: dict[int, str] = {}

    async def run(self) -> dict[int, str]:
        """Read all partitions. Returns, for each one that was not read to its end, the reason."""
        loop = asyncio.get_running_loop()
        await self._assign()
        moved_at = loop.time()
        while left := self._left():
            try:
                if self._take(await self._consumer.fetch_batches(timeout_ms=POLL_MS)):
                    moved_at = loop.time()
            except StrandlineError as e:
                await self._leave_out(e, left)
            if loop.time() - moved_at > STALLED_S:
                self._problems |= {number: f"it stalled at offset {self._analyses[number].next_offset}" for number in left}
        return self._problems

    def _left(self) -> list[int]:
        return [n for n, each in self._analyses.items() if not each.is_complete and n not in self._problems]

    async def _assign(self) -> None:
        """Assign the partitions that are left, and continue each at the `next_offset` of its analysis."""
        from strandline.client import TopicPartition

        places = {number: TopicPartition(self._topic, number) for number in self._left()}
        await self._consumer.assign(places.values())
        for number, place in places.items():
            self._consumer.seek(place, self._analyses[number].next_offset)
            self._consumer.fetch_until(place, self._analyses[number].end_offset)

    def _take(self, fetched: dict[TopicPartition, list[Any]]) -> bool:
        """Count the batches. Returns whether any partition has made progress."""
        moved = 0
        for place, batches in fetched.items():
            analysis = self._analyses[place.partition]
            before = analysis.next_offset
            for batch in batches:
                analysis.add(batch)
            moved += min(analysis.next_offset, analysis.end_offset) - before
        self._advance(moved)
        return moved > 0

    async def _leave_out(self, error: StrandlineError, left: Iterable[int]) -> None:
        """Leave out the partition that the error names; an error without a partition concerns all that are left."""
        number = getattr(error, "partition", None)
        self._problems |= dict.fromkeys(left if number is None else [number], str(error))
        await self._assign()


def _view(topic: str, analyses: dict[int, Analysis], problems: dict[int, str]) -> View:
    numbers = sorted({*analyses, *problems})
    documents = [{"partition": n, **(analyses[n].document if n in analyses else {}), "error": problems.get(n)} for n in numbers]
    records, size = sum(each.records for each in analyses.values()), sum(each.bytes for each in analyses.values())
    document = {"topic": topic, "complete": not problems, "records": records, "bytes": size, "partitions": documents}
    rows = [_row(n, analyses.get(n), problems.get(n)) for n in numbers]
    plain = Table(COLUMNS, [_row(n, analyses.get(n), problems.get(n), exactly=True) for n in numbers])
    spare = ("last", "first", "largest", "tombstones", "no key", "gaps", "average")
    table = Table(COLUMNS, rows, spare=spare, more=("batches", "missing offsets"))
    total = f"{topic}: {records} records, {show_bytes(size)} of keys, values and headers"
    remarks = [f"{topic}-{n} is not complete: {reason}" for n, reason in sorted(problems.items())]
    return View(document, [table, total], remarks, ERROR if problems else 0, plain)


def _row(number: int, found: Analysis | None, problem: str | None, *, exactly: bool = False) -> tuple[object, ...]:
    """`exactly`: sizes in bytes and times in milliseconds, for a script."""
    state = "incomplete" if problem else "ok"
    if found is None:
        return (number, *[None] * (len(COLUMNS) - 2), state)
    size = (lambda value: value) if exactly else show_bytes
    time = (lambda value: value) if exactly else time_text
    return (
        number,
        found.records,
        size(found.bytes),
        found.keys if found.keys is not None else f"over {KEYS_MAX}",
        found.null_keys,
        found.tombstones,
        size(round(found.bytes / found.records) if found.records else 0),
        size(found.largest_value),
        found.gaps,
        time(found.first_timestamp_ms),
        time(found.last_timestamp_ms),
        found.batches,
        found.next_offset - found.start_offset - found.records,
        state,
    )
