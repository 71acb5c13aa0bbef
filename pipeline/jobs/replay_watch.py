"""Progress of a replay: asks the target's leaders how many rows they have of each producer name. So progress costs the tasks
nothing and is reported while they run, which Spark's accumulators cannot do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strandline.client import Admin, TopicPartition
from strandline.pipeline.jobs.replay_plan import Plan
from strandline.pipeline.options import admin_options
from strandline.protocol.errors import StrandlineError

TELL_EVERY_S = 5.0


async def rows_written(admin: Admin, plan: Plan) -> dict[int, int]:
    """For each partition of the source, the number of its rows that the target holds."""
    answers = await admin.describe_producers([TopicPartition(plan.to, p) for p in range(plan.count)])
    rows: dict[int, int] = {}
    for answer in answers.values():
        for producer in answer.producers:
            if producer.name is not None and producer.name.startswith(plan.prefix):
                partition = int(producer.name.removeprefix(plan.prefix))
                rows[partition] = rows.get(partition, 0) + producer.last_sequence + 1
    return rows


def admin_of(client: Mapping[str, Any]) -> Admin:
    """An admin client with those of a producer's options that it has, too."""
    return Admin(**admin_options(client))


@contextmanager
def watching(client: Mapping[str, Any], plan: Plan, tell: Callable[[int], object] | None) -> Iterator[None]:
    """Meanwhile, tell how many records are written, every few seconds."""
    if tell is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_watch(client, plan, tell, over)), name="replay-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def _watch(client: Mapping[str, Any], plan: Plan, tell: Callable[[int], object], over: threading.Event) -> None:
    """What cannot be told is left out: the replay itself says what is wrong."""
    try:
        async with admin_of(client) as admin:
            while not await asyncio.to_thread(over.wait, TELL_EVERY_S):
                tell(sum((await rows_written(admin, plan)).values()))
    except (StrandlineError, OSError):
        return
