"""The examples do what their page says, so that a reader can copy them unchanged."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

FOLDER = Path(__file__).parents[2] / "examples" / "pipeline"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_ended_visits_are_written_and_late_clicks_dropped(
    example: Any, spark: SparkSession, log: ThreadedCluster, tmp_path: Path
) -> None:
    sessions = example("sessionisation")
    servers, source, to = log.bootstrap_servers, f"clicks-{tmp_path.name}", f"sessions-{tmp_path.name}"
    asyncio.run(sessions.prepare(servers, source, to))

    def run(*clicks: tuple[str, str, int]) -> dict[bytes, list[int]]:
        """Sends the clicks, runs the job, and returns the visits that are written so far: each user's numbers of clicks."""
        asyncio.run(sessions.send(servers, source, list(clicks)))
        assert sessions.sessionise(spark, servers, source, to, str(tmp_path / "checkpoint"), None).awaitTermination(120)
        visits: dict[bytes, list[int]] = {}
        for record in log.read_all(to):
            visits.setdefault(record.key or b"", []).append(json.loads(record.value or b"")["clicks"])
        return {user: sorted(counts) for user, counts in visits.items()}

    day = 24 * 60
    over = {b"alice": [3], b"bob": [1, 1], b"carol": [1]}
    assert run(*sessions.SAMPLE, ("dave", "/", day)) == over, "dave's is open"
    assert run(("alice", "/late", 13), ("dave", "/tea", day + 5), ("erin", "/", 2 * day)) == {**over, b"dave": [2]}


def test_changes_become_a_table_and_the_next_run_reads_only_new_ones(
    example: Any, spark: SparkSession, log: ThreadedCluster, tmp_path: Path
) -> None:
    cdc = example("cdc")
    servers, topic, snapshot = log.bootstrap_servers, f"customers-{tmp_path.name}", str(tmp_path / "snapshot")
    asyncio.run(cdc.prepare(servers, topic))

    def run(*changes: Any) -> tuple[int, list[tuple[Any, ...]]]:
        asyncio.run(cdc.send(servers, topic, list(changes)))
        read = cdc.update(spark, servers, topic, snapshot).records
        rows = cdc.table(spark, snapshot, cdc.CUSTOMER).orderBy("id").collect()
        return read, [(row.id, row.name, row.city) for row in rows]

    assert run(*cdc.SAMPLE) == (6, [(2, "Bob", "Lyon"), (3, "Eve", "Rome")])
    more = (2, {"op": "d", "after": None}), (4, {"op": "c", "after": {"id": 4, "name": "Kim", "city": None}})
    assert run(*more) == (2, [(3, "Eve", "Rome"), (4, "Kim", None)])
