"""A log that was copied from Apache Kafka: its cleaner leaves gaps in the offsets. A broker refuses to read them, and keeps the
batches."""

from __future__ import annotations

from random import Random

import pytest
from storage_kit import DIR, NOW_MS, batch, open_log
from structlog.testing import capture_logs

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import stamp
from strandline.storage.checkpoints import LEADER_EPOCHS, LeaderEpochCheckpoint
from strandline.storage.log.log import Log
from strandline.storage.memory.memory_files import MemoryFiles


def data(base_offset: int, count: int = 1) -> bytes:
    made = batch(*[b"%d" % (base_offset + n) for n in range(count)], timestamp_ms=NOW_MS)
    stamp(made, 0, base_offset, 0)
    return bytes(made)


def copied(*segments: tuple[int, list[bytes]], clean: bool = False) -> tuple[MemoryFiles, Log]:
    """The log of these segments, each with its base offset and batches. No checkpoint names it."""
    files = MemoryFiles(Random(0))
    files.make_dirs(DIR)
    for base_offset, batches in segments:
        files.write(f"{DIR}/{base_offset:020d}.log", b"".join(batches))
    if clean:
        files.write(f"{DIR}/{LEADER_EPOCHS}", LeaderEpochCheckpoint.encode([(0, 0)]))
    return files, open_log(files, clean=clean)


def sizes(files: MemoryFiles) -> dict[str, int]:
    return {name: len(files.read(f"{DIR}/{name}")) for name in files.list(DIR) if name.endswith(".log")}


GAPS = {
    "before the first batch": [(0, [data(5), data(9)])],
    "inside": [(0, [data(0), data(5), data(6)])],
    "before the last batch of a segment": [(0, [data(0), data(5)]), (8, [data(8), data(9)])],
    "between segments, after another one": [
        (0, [data(0), data(5), data(9)]),
        (20, [data(20), data(30), data(31)]),
        (40, [data(40)]),
    ],
}


@pytest.mark.parametrize("name", GAPS)
def test_recovery_keeps_the_batches_after_a_gap(name: str) -> None:
    segments = GAPS[name]
    with capture_logs() as lines:
        files, log = copied(*segments)
    assert sizes(files) == {f"{base:020d}.log": sum(map(len, batches)) for base, batches in segments}
    gaps = [line for line in lines if line["event"] == "log.gap_found"]
    assert log.corrupt_at == gaps[0]["offset"]
    assert "Apache Kafka" in gaps[0]["reason"]
    assert not [line for line in lines if line["event"] == "log.tail_cut_in_recovery"]


def test_read_logs_the_gap() -> None:
    _, log = copied((0, [data(0), data(5), data(6)]), (7, [data(7)]), clean=True)
    assert log.corrupt_at is None, "an orderly start reads the last segment only"
    log.update_high_watermark(8)
    with capture_logs() as lines, pytest.raises(BrokerError):
        log.read(3, 1 << 20, 8)
    reason = next(line["reason"] for line in lines if line["event"] == "log.damaged")
    assert "offsets 1 to 4 are missing" in reason


@pytest.mark.parametrize("offset", [5, 1 << 40])
def test_damaged_base_offset_is_no_gap(offset: int) -> None:
    """The checksum does not cover the base offset. The next batch begins below the end that the damaged one claims."""
    changed = bytearray(data(1))
    changed[:8] = offset.to_bytes(8, "big")
    files, log = copied((0, [data(0), bytes(changed), data(2)]))
    assert (log.log_end_offset, log.corrupt_at) == (1, None)
    assert sizes(files) == {f"{0:020d}.log": len(data(0))}


def test_lost_end_of_a_segment_is_no_gap() -> None:
    files, log = copied((0, [data(0)]), (3, [data(3), data(4)]))
    assert log.log_end_offset == 1
    assert list(sizes(files)) == [f"{0:020d}.log"]
