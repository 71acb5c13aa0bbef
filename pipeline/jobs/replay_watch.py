"""How far a replay is, as the target's leaders say: they count the rows of each producer name.

Asking the target costs the tasks nothing, and works while tasks run. Spark's accumulators would arrive only when a task ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from strandline.client import Admin, TopicPartition
from strandline.pipeline.jobs.progress import repeated
from strandline.pipeline.jobs.replay_plan import Plan
from strandline.pipeline.options import admin_options
from strandline.protocol.errors import StrandlineError

REPORT_EVERY_S = 5.0


async def rows_written(client: Mapping[str, Any], plan: Plan) -> dict[int, int]:
    """For each partition of the source, the number of its rows that the target holds."""
    async with admin_of(client) as admin:
        answers = await admin.describe_producers([TopicPartition(plan.to, p) for p in range(plan.count)])
    rows: dict[int, int] = {}
    for answer in answers.values():
        for producer in answer.producers:
            if producer.name is not None and (partition := plan.partition_of(producer.name)) is not None:
                rows[partition] = rows.get(partition, 0) + producer.last_sequence + 1
    return rows


def admin_of(client: Mapping[str, Any]) -> Admin:
    """An admin client with those of a producer's options that an admin client has as well."""
    return Admin(**admin_options(client))


@contextmanager
def watching(client: Mapping[str, Any], plan: Plan, progress: Callable[[int], object] | None) -> Iterator[None]:
    """While the block runs, calls `progress` every few seconds with the number of records in the target. A target that does not
    answer is asked again later: the replay itself reports the error."""
    if progress is None:
        yield
        return

    def report() -> None:
        with suppress(StrandlineError, OSError):
            progress(sum(asyncio.run(rows_written(client, plan)).values()))

    with repeated(report, REPORT_EVERY_S, "replay-progress"):
        yield
