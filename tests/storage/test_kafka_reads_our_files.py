"""Kafka's own `kafka-dump-log --deep-iteration` reads our segments and indexes without a complaint."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_kafka import dump, kafka_tools
from storage_kit import NOW_MS, batch, fill, open_log

from strandline.protocol.records.batch import stamp
from strandline.protocol.records.filler import OFFSETS_MAX, make_fillers
from strandline.storage.files import RealFiles
from strandline.storage.log.log import LogConfig


@pytest.mark.kafka
def test_kafka_reads_segments_indexes_and_snapshots_without_a_complaint(tmp_path: Path) -> None:
    """The log has several segments, epochs and producers, and timestamps that go back and forth; it was closed in order,
    truncated, and reopened."""
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
    """The tool complains about an index entry with a wrong position, and the test fails."""
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


def _filler(first: int, end: int) -> bytes:
    return b"".join(make_fillers(first, end, 0))


def _data(base_offset: int, records: int, size: int = 20) -> bytes:
    made = batch(*[b"x" * size] * records)
    stamp(made, 0, base_offset, 0)
    return bytes(made)


FAR = 100_015 + OFFSETS_MAX
FILLED_SEGMENTS = {
    0: _data(0, 5) + _filler(5, 10) + _data(10, 3) + _filler(13, 100_000) + _filler(100_000, 100_010) + _data(100_010, 5),
    100_015: _filler(100_015, FAR),
    FAR: _data(FAR, 3) + _filler(FAR + 3, FAR + 51),
    FAR + 51: _filler(FAR + 51, FAR + 61),
    FAR + 61: _data(FAR + 61, 1, 300_000) + _filler(FAR + 62, FAR + 71),
}
"""Segments with fillers between batches, side by side, at the end of segments, alone in a segment, with the largest delta, and at
the log's end."""


@pytest.mark.kafka
def test_kafka_reads_fillers_without_a_complaint(tmp_path: Path) -> None:
    """Compaction leaves batches without records. Our recovery indexes them; Kafka's tool reads log and indexes."""
    script = kafka_tools()
    folder = tmp_path / "orders-0"
    folder.mkdir()
    for base, content in FILLED_SEGMENTS.items():
        (folder / f"{base:020d}.log").write_bytes(content)
    log = open_log(RealFiles(), str(folder), config=LogConfig(index_interval_bytes=0))
    assert log.corrupt_at is None
    assert log.log_end_offset == FAR + 71
    log.close()
    written = [*sorted(folder.glob("*.log")), *sorted(folder.glob("*.index")), *sorted(folder.glob("*.timeindex"))]
    assert len(written) == 3 * len(FILLED_SEGMENTS)
    text = dump(script, written)
    assert text.count("count: 0 ") == 7
    assert text.count("isvalid: true") == 12
    assert f"lastOffset: {FAR - 1} count: 0" in text
