"""The replication report with a real Spark: a folder of logs as it is found, and a stream over growing logs that is killed."""

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


def test_second_call_in_a_session_reads_what_the_logs_hold_now(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would answer with the events that the first call has persisted. The folder's name is no pattern; and one line with a
    time that cannot be must not become the end of the logs."""
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


def test_packed_file_that_breaks_off_is_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker.log.gz").write_bytes(gzip.compress("".join(LINES).encode())[:-20])
    with pytest.raises(typer.Exit), spark_errors():
        findings(spark, tmp_path)
    told = capsys.readouterr().err
    assert "broker.log.gz: Unexpected end of input stream" in told
    assert told.count("\n") == 1


# -- the source of lines ----------------------------------------------------------------------------------------------


def text_of(number: int) -> str:
    return f'{{"event": "x", "number": {number}}}\n'


def write(path: Path, numbers: Iterable[int], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(map(text_of, numbers))


class Reading:
    """The source's turns, without Spark: plan, perhaps something happens to the files, read."""

    def __init__(self, folder: Path) -> None:
        self.reader, self.at = LogLinesReader([str(folder)]), dict[str, int]()

    def plan(self) -> list[Any]:
        before, self.at = self.at, self.reader.latestOffset(self.at, ReadAllAvailable())
        return self.reader.partitions(before, self.at)

    def read(self, planned: list[Any]) -> list[int]:
        return [json.loads(line)["number"] for piece in planned for (line,) in self.reader.read(piece)]

    def turn(self) -> list[int]:
        return self.read(self.plan())


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    log.write_text(text_of(1) + text_of(2)[:9])
    assert reading.turn() == [1]
    with log.open("a") as file:
        file.write(text_of(2)[9:])
    assert (reading.turn(), reading.turn()) == ([2], [])


def test_file_that_its_rotation_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    """copytruncate: the inode stays, and the file may have grown beyond its old length before the next look."""
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    write(log, range(3))
    assert reading.turn() == [0, 1, 2]
    write(log, range(10, 20), "w")
    assert reading.turn() == list(range(10, 20))


def test_new_file_with_the_inode_of_a_deleted_one_is_read_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most file systems give a freed inode to the next file."""
    from strandline.pipeline.jobs import replication_stream

    monkeypatch.setattr(replication_stream, "inode_of", lambda path: 7)
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    write(log, range(3))
    assert reading.turn() == [0, 1, 2]
    log.unlink()
    write(log, range(10, 20))
    assert reading.turn() == list(range(10, 20))


def test_file_that_is_renamed_after_the_batch_was_planned_is_read_under_its_new_name(tmp_path: Path) -> None:
    log, reading = tmp_path / "log.jsonl", Reading(tmp_path)
    write(log, range(3))
    planned = reading.plan()
    log.rename(tmp_path / "log.jsonl.1")
    write(log, range(10, 20))
    assert reading.read(planned) == [0, 1, 2]
    assert reading.turn() == list(range(10, 20))


def test_packed_file_that_is_being_written_does_not_end_the_stream(tmp_path: Path) -> None:
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


def test_checkpoint_of_other_logs_or_with_a_missing_batch_is_refused(tmp_path: Path) -> None:
    kept = KeptEvents(tmp_path / "checkpoint" / "events")
    kept.claim(["/a"])
    KeptEvents(tmp_path / "checkpoint" / "events").claim(["/a"])
    with pytest.raises(UsageError, match="is of the logs in /a: take another one for these"):
        kept.claim(["/b"])
    with pytest.raises(UsageError, match=r"lacks .*00000002.json"):
        kept.put(3, Events(None, Read(), 0, 0, []))  # type: ignore[arg-type]
