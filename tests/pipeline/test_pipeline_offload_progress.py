"""The progress lines and the summary of an offload, without Spark."""

from __future__ import annotations

import json
from typing import Any

from strandline.pipeline.jobs.lake import DataFile
from strandline.pipeline.jobs.offload_progress import OffloadProgress, sentence


def report(batch: int, records: int, start: dict[str, int] | None, end: dict[str, int], latest: int = 1000) -> dict[str, Any]:
    """A report as in Spark's `recentProgress`: offsets are JSON texts, and the first batch of a query has no start."""
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": {"0": latest, "1": latest}}
    texts = {name: None if each is None else json.dumps({"topics": {"orders": each}, "v": 1}) for name, each in offsets.items()}
    return {"batchId": batch, "numInputRows": records, "durationMs": {"triggerExecution": 500}, "sources": [texts]}


def file(partition: int, first: int, last: int, count: int, size: int) -> DataFile:
    name = f"{partition}-{first}"
    return DataFile(
        path=name,
        topic="orders",
        partition=partition,
        date="2025-01-31",
        first=first,
        last=last,
        count=count,
        bytes=size,
        crc32c=1,
    )


FIRST = report(0, 300, None, {"0": 200, "1": 100})
SECOND = report(1, 700, {"0": 200, "1": 100}, {"0": 600, "1": 400})
IDLE = report(2, 0, {"0": 600, "1": 400}, {"0": 600, "1": 400})


def test_each_batch_is_shown_once_with_rate_and_lag() -> None:
    """Spark repeats its reports, and reports triggers that had nothing to read."""
    progress = OffloadProgress()
    lines = [
        progress.line(batch, 12.3) for reports in ([FIRST], [FIRST, SECOND], [SECOND, IDLE]) for batch in progress.take(reports)
    ]
    assert lines == [
        "    12 s  batch 0: 300 records written, 600 records/s, 1,700 behind the log's end",
        "    12 s  batch 1: 1,000 records written, 1,400 records/s, 1,000 behind the log's end",
    ]


def test_lake_summary_follows_the_manifests() -> None:
    """After Ctrl-C the last batch may be in the lake although Spark has not reported it."""
    progress = OffloadProgress()
    progress.take([FIRST])
    files = [
        file(0, 0, 199, 200, 4000),
        file(0, 200, 599, 400, 8000),
        file(1, 0, 399, 398, 8000),
    ]
    summary = progress.summary(3.21, files)
    assert sentence(summary, "/lake") == "998 records in 3 files (20,000 bytes) written to /lake, in 3.2 s and 1 batch"
    assert summary["partitions"] == [
        {"topic": "orders", "partition": 0, "first_offset": 0, "last_offset": 599, "records": 600, "files": 2, "bytes": 12_000},
        {"topic": "orders", "partition": 1, "first_offset": 0, "last_offset": 399, "records": 398, "files": 1, "bytes": 8000},
    ]


def test_table_summary_follows_spark_reports() -> None:
    progress = OffloadProgress()
    progress.take([SECOND, IDLE])
    summary = progress.summary(60, None)
    assert sentence(summary, "/table") == "700 records written to /table, in 60 s and 1 batch"
    assert (summary["files"], summary["bytes"]) == (None, None)
    assert summary["partitions"] == [
        {"topic": "orders", "partition": 0, "first_offset": 200, "last_offset": 599},
        {"topic": "orders", "partition": 1, "first_offset": 100, "last_offset": 399},
    ]


def test_first_offset_of_a_new_query_is_unknown() -> None:
    """The log may begin after offset 0, and a new checkpoint of a table that exists begins after its records."""
    progress = OffloadProgress()
    progress.take([FIRST, SECOND])
    assert progress.summary(60, None)["partitions"] == [
        {"topic": "orders", "partition": 0, "first_offset": None, "last_offset": 599},
        {"topic": "orders", "partition": 1, "first_offset": None, "last_offset": 399},
    ]


def test_run_without_new_records_says_so() -> None:
    progress = OffloadProgress()
    assert progress.take([IDLE]) == []
    assert sentence(progress.summary(1, []), "/lake") == "there were no new records to write to /lake"
