"""The replication report in a real Spark: the command on a folder of logs, the stream over growing logs, and its source."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.cli.pipeline_common import spark_errors
from strandline.pipeline.jobs.replication import Events, findings, replication
from strandline.pipeline.jobs.replication_facts import micros, read_line
from strandline.pipeline.jobs.replication_report import report_of
from strandline.pipeline.jobs.replication_result import Read, Replication
from strandline.pipeline.jobs.replication_stream import KeptEvents, LogLinesReader
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

LINES = gzip.decompress((Path(__file__).parent / "replication_logs" / "kills.log.gz").read_bytes()).decode().splitlines(True)[1:]


def without_spark() -> Replication:
    facts = [fact for text in LINES for fact in read_line(text).facts]
    times = [micros(json.loads(text[text.index("{") :])["timestamp"]) or 0 for text in LINES]
    return report_of(facts, Read(), min(times), max(times))


def lay(folder: Path, lines: Iterable[str]) -> None:
    """Appends the lines to one log per node, in the folders of `strandline up`."""
    for text in lines:
        node, _, line = text.partition("  | ")
        path = folder / node / "log.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line)


def test_command_reads_rotated_files_and_foreign_lines(tmp_path: Path, command: Callable[..., Result]) -> None:
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
    printed, expected = json.loads(result.stdout), without_spark()
    for name in ("topic_hours", "broker_hours", "elections", "isr_changes", "intervals", "truncations", "lags", "failover_ms"):
        assert printed[name] == json.loads(json.dumps(expected.document[name])), name
    assert (printed["read"]["files"], printed["read"]["foreign"], printed["read"]["cut"]) == (7, 1, 1)
    assert printed["notes"] == [f"2 of {len(LINES) + 2:,} lines are not events (1 incomplete)"]
    assert (tmp_path / "page.html").read_text().count("<svg") == 5


def test_killed_stream_reports_the_same_as_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The stream dies after it has stored its first batch and before Spark's commit, so the batch runs again. Intervals extend
    over batches, and a file is rotated between them."""
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


def test_second_call_in_a_session_reads_the_new_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Spark must not return the events that the first call persisted, must not take the folder's name for a pattern, and must not
    take the impossible time of one line for the end of the logs."""
    logs = tmp_path / "logs [old]"
    lay(logs, LINES[: len(LINES) // 2])
    first = replication(spark, logs)
    lay(logs, LINES[len(LINES) // 2 :])
    wrong = {"event": "http.failed", "node": "broker-1", "timestamp": "2026-11-22T25:44:02.0Z"}
    lay(logs, ["broker-1  | " + json.dumps(wrong) + "\n"])
    second = replication(spark, logs).found
    expected = without_spark()
    assert 0 < len(first.found.elections) < len(expected.elections)
    assert (second.rows, second.begin_us, second.end_us) == (expected.rows, expected.begin_us, expected.end_us)


def test_incomplete_compressed_file_is_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker.log.gz").write_bytes(gzip.compress("".join(LINES).encode())[:-20])
    with pytest.raises(typer.Exit), spark_errors():
        findings(spark, tmp_path)
    printed = capsys.readouterr().err
    assert "broker.log.gz: Unexpected end of input stream" in printed
    assert printed.count("\n") == 1


# -- the source of lines ----------------------------------------------------------------------------------------------


def text_of(number: int) -> str:
    return f'{{"event": "x", "number": {number}}}\n'


def write(path: Path, numbers: Iterable[int], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(map(text_of, numbers))


class Reading:
    """Calls the source as Spark does: plans a batch, then reads it. A test may change the files in between."""

    def __init__(self, folder: Path) -> None:
        self.reader, self.at = LogLinesReader([str(folder)]), dict[str, int]()

    def plan(self) -> list[Any]:
        before, self.at = self.at, self.reader.latestOffset(self.at, ReadAllAvailable())
        return self.reader.partitions(before, self.at)

    def read(self, planned: list[Any]) -> list[int]:
        return [json.loads(line)["number"] for piece in planned for (line,) in self.reader.read(piece)]

    def turn(self) -> list[int]:
        return self.read(self.plan())


def test_unfinished_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    log.write_text(text_of(1) + text_of(2)[:9])
    assert reading.turn() == [1]
    with log.open("a") as file:
        file.write(text_of(2)[9:])
    assert (reading.turn(), reading.turn()) == ([2], [])


def test_file_emptied_by_rotation_is_read_from_its_start(tmp_path: Path) -> None:
    """With copytruncate the inode stays, and the file may exceed its old size before the next batch."""
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    write(log, range(3))
    assert reading.turn() == [0, 1, 2]
    write(log, range(10, 20), "w")
    assert reading.turn() == list(range(10, 20))


def test_new_file_with_a_reused_inode_is_read_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most file systems give the inode of a deleted file to the next new file."""
    from strandline.pipeline.jobs import replication_stream

    monkeypatch.setattr(replication_stream, "inode_of", lambda path: 7)
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    write(log, range(3))
    assert reading.turn() == [0, 1, 2]
    log.unlink()
    write(log, range(10, 20))
    assert reading.turn() == list(range(10, 20))


def test_file_renamed_after_planning_is_read_under_its_new_name(tmp_path: Path) -> None:
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    write(log, range(3))
    planned = reading.plan()
    log.rename(tmp_path / "log.jsonl.1")
    write(log, range(10, 20))
    assert reading.read(planned) == [0, 1, 2]
    assert reading.turn() == list(range(10, 20))


def test_compressed_file_that_is_being_written_does_not_end_the_stream(tmp_path: Path) -> None:
    packed, reading = tmp_path / "log.jsonl.1.gz", Reading(tmp_path)
    whole = gzip.compress("".join(map(text_of, range(20_000))).encode())
    packed.write_bytes(whole[: len(whole) // 2])
    half = reading.reader.latestOffset({}, ReadAllAvailable())
    lines = [line for piece in reading.reader.partitions({}, half) for (line,) in reading.reader.read(piece)]
    assert 0 < len(lines) < 20_000
    reading.at = half
    with packed.open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    assert reading.turn() == list(range(20_000))


def test_checkpoint_of_other_logs_or_with_a_missing_batch_is_rejected(tmp_path: Path) -> None:
    kept = KeptEvents(tmp_path / "checkpoint" / "events")
    kept.claim(["/a"])
    KeptEvents(tmp_path / "checkpoint" / "events").claim(["/a"])
    with pytest.raises(UsageError, match="belongs to the logs in /a: use another one for these"):
        kept.claim(["/b"])
    with pytest.raises(UsageError, match=r"lacks .*00000002.json"):
        kept.put(3, Events(None, Read(), 0, 0, []))  # type: ignore[arg-type]
