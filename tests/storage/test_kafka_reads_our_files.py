"""Kafka's own `kafka-dump-log --deep-iteration` reads our segments and indexes without a complaint."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from storage_kit import NOW_MS, batch, fill, open_log

from strandline.storage.files import RealFiles
from strandline.storage.log.log import LogConfig

ROOT = Path(__file__).parents[2]
COMPLAINTS = ("mismatch", "out of order", "not found", "exception", "error", "invalid", "corrupt", "isvalid: false", "could not")


def kafka_tools() -> str:
    """The script that runs Kafka's tools. Skips if there is none, fails if one is required."""
    given = os.environ.get("STRANDLINE_KAFKA_TOOLS")
    script = Path(given) if given else ROOT.parent / "shared" / "tools" / "apache-kafka"
    reason = ""
    if not script.exists():
        reason = f"the Apache Kafka tools are not at {script} (STRANDLINE_KAFKA_TOOLS)"
    elif shutil.which("java") is None:
        reason = "the Apache Kafka tools need Java"
    if reason and os.environ.get("STRANDLINE_REQUIRE_KAFKA") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return str(script)


def dump(script: str, files: list[Path]) -> str:
    command = [script, "run", "kafka-dump-log", "--deep-iteration", "--files", ",".join(map(str, files))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "payload" not in line]
    complaints = [line for line in lines if any(word in line.lower() for word in COMPLAINTS)]
    assert not complaints, "\n".join(complaints[:20])
    return result.stdout


@pytest.mark.kafka
def test_kafka_reads_segments_indexes_and_snapshots_without_a_complaint(tmp_path: Path) -> None:
    """Several segments, epochs, producers, timestamps that go back and forth; closed in order, truncated, reopened."""
    script = kafka_tools()
    files, directory = RealFiles(), f"{tmp_path}/orders-0"
    config = LogConfig(segment_bytes=6_000, index_interval_bytes=500)
    log = open_log(files, directory, config=config)
    for i in range(120):
        stamp = NOW_MS + i * 7 - (i % 5) * 20
        values = [b"%d-%d " % (i, j) * 10 for j in range(1 + i % 4)]
        log.append_as_leader(batch(*values, timestamp_ms=stamp), i // 40, NOW_MS + i)
    sequence = 0
    for i in range(30):
        log.append_as_leader(batch(b"p" * 200, b"q", timestamp_ms=NOW_MS + 2000 + i, producer=(77, 0, sequence)), 4, NOW_MS)
        sequence += 2
    log.truncate_to(log.log_end_offset - 7)
    fill(log, 20, epoch=5, size=120)
    log.close()
    written = sorted(Path(directory).glob("*"))
    by_suffix = {suffix: [p for p in written if p.suffix == suffix] for suffix in (".log", ".index", ".timeindex", ".snapshot")}
    assert len(by_suffix[".log"]) >= 3
    assert all(p.stat().st_size for p in by_suffix[".index"])
    text = dump(script, written_by_kind(by_suffix))
    assert all(p.name in text for p in written_by_kind(by_suffix))
    assert text.count("isvalid: true") == sum(1 for line in text.splitlines() if line.startswith("baseOffset:"))
    assert f"lastOffset: {log.log_end_offset - 1} " in text
    assert "producerId: 77" in text


def written_by_kind(by_suffix: dict[str, list[Path]]) -> list[Path]:
    """All logs and indexes, and the newest snapshot."""
    return [*by_suffix[".log"], *by_suffix[".index"], *by_suffix[".timeindex"], by_suffix[".snapshot"][-1]]


@pytest.mark.kafka
def test_a_complaint_of_kafkas_tool_is_noticed(tmp_path: Path) -> None:
    """The tool complains about an index entry with a wrong position, and the test sees it."""
    script = kafka_tools()
    directory = tmp_path / "orders-0"
    log = open_log(RealFiles(), str(directory), config=LogConfig(index_interval_bytes=100))
    fill(log, 30)
    log.close()
    index = directory / f"{0:020d}.index"
    data = bytearray(index.read_bytes())
    data[3] ^= 1
    index.write_bytes(data)
    with pytest.raises(AssertionError, match=r"(?i)mismatch"):
        dump(script, [index])
