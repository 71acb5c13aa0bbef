"""The replication report with a real Spark: a folder of logs as it is found, and a stream over growing logs that is killed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.pipeline.jobs.replication_facts import micros, read_line
from strandline.pipeline.jobs.replication_report import report_of
from strandline.pipeline.jobs.replication_result import Read, Replication

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

LINES = gzip.decompress((Path(__file__).parent / "replication_logs" / "kills.log.gz").read_bytes()).decode().splitlines(True)[1:]


def without_spark() -> Replication:
    facts = [fact for text in LINES for fact in read_line(text).facts]
    times = [micros(json.loads(text[text.index("{") :])["timestamp"]) or 0 for text in LINES]
    return report_of(facts, Read(), min(times), max(times))


def lay(folder: Path, lines: Iterable[str]) -> None:
    """As `strandline up` has them, a file for each node."""
    for text in lines:
        node, _, line = text.partition("  | ")
        path = folder / node / "log.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line)


def test_the_command_reports_on_a_folder_with_rotated_files_and_foreign_lines(
    tmp_path: Path, command: Callable[..., Result]
) -> None:
    lay(tmp_path, LINES)
    log = tmp_path / "broker-1" / "log.jsonl"
    text = log.read_text()
    middle = text.index("\n", len(text) // 2) + 1
    (log.parent / "log.jsonl.1.gz").write_bytes(gzip.compress(text[:middle].encode()))
    log.write_text(text[middle:] + 'Traceback (most recent call last):\n{"topic": "or')
    (log.parent / "data" / "orders-0").mkdir(parents=True)
    (log.parent / "data" / "orders-0" / "00000000000000000000.log").write_bytes(b"\0" * 100)
    result = command("replication", str(tmp_path), "--json", "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 0, result.output
    told, expected = json.loads(result.stdout), without_spark()
    for name in ("topic_hours", "broker_hours", "elections", "isr_changes", "intervals", "truncations", "lags", "failover_ms"):
        assert told[name] == json.loads(json.dumps(expected.document[name])), name
    assert (told["read"]["files"], told["read"]["foreign"], told["read"]["cut"]) == (7, 1, 1)
    assert told["notes"] == [f"2 lines of {len(LINES) + 2} are no event (1 of them cut)"]
    assert (tmp_path / "page.html").read_text().count("<svg") == 5


def test_a_stream_over_growing_logs_that_was_killed_reports_what_a_batch_does(spark: SparkSession, tmp_path: Path) -> None:
    """Killed behind the state of its first batch and before Spark's own commit: the batch runs again. Intervals span batches, and
    a file is rotated between them."""
    from pyspark.errors import StreamingQueryException

    from strandline.pipeline.jobs.replication_stream import replication_stream

    logs, checkpoint, reports = tmp_path / "logs", tmp_path / "checkpoint", list[Replication]()

    def run(on_report: Callable[[Replication], None]) -> None:
        replication_stream(spark, logs, checkpoint, on_report).awaitTermination()

    def die(found: Replication) -> None:
        reports.append(found)
        raise RuntimeError("killed")

    lay(logs, LINES[: len(LINES) // 2])
    with pytest.raises(StreamingQueryException, match="killed"):
        run(die)
    lay(logs, LINES[len(LINES) // 2 :])
    (logs / "broker-2" / "log.jsonl").rename(logs / "broker-2" / "log.jsonl.1")
    run(reports.append)
    first, again, last = reports
    assert first == again
    assert 0 < len(first.elections) < len(last.elections)
    assert last.rows == without_spark().rows
    assert (last.read.lines, last.read.foreign, last.read.cut) == (len(LINES), 0, 0)
