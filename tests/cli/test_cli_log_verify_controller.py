"""`log verify` of a controller's directory: says nothing about a sound one, and finds each fault that a test makes in it."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from random import Random

import pytest
from cli_world import one_sentence, run

from strandline.controller.metadata.records import TopicRecord, encode_record
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.metadata_log import MetadataLog
from strandline.controller.raft.snapshots import SnapshotWriter
from strandline.controller.raft.state_store import QuorumStateStore
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.builder import encode_values
from strandline.storage.files import RealFiles

SNAPSHOT = f"{12:020}-{1:010}.checkpoint"


def value(number: int) -> bytes:
    return encode_record(TopicRecord(name=f"topic-{number}", topic_id=bytes([number % 256]) * 16))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """40 records in several segments, a snapshot of the first 12, and quorum-state."""
    path = tmp_path / "controller-101" / "data"
    files = RealFiles()
    files.make_dirs(str(path))
    log = MetadataLog.open(files, str(path), RaftConfig(segment_bytes=600), committed_offset=0, now_ms=0)
    for number in range(20):
        log.append_as_leader(memoryview(bytearray(encode_values([value(2 * number), value(2 * number + 1)], 1))), 1)
    log.flush()
    log.update_high_watermark(40)
    writer = SnapshotWriter(log.create_snapshot(SnapshotId(12, 1)), 1, 1)
    writer.write([value(number) for number in range(12)])
    writer.finish()
    log.close()
    store = QuorumStateStore(files, str(folder(path)), cluster_id="c1", voter_ids=(101, 102, 103))
    store.write(ElectionState(1, 101, 101), 38)
    return path


def folder(data: Path) -> Path:
    return data / "__cluster_metadata-0"


def segments(data: Path) -> list[Path]:
    return sorted(folder(data).glob("*.log"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def damage(data: Path) -> str:
    """The sentences about damage. The command exits with 1 if there are any."""
    outcome = run("log", "verify", str(data), "--json")
    (document,) = outcome.lines()
    bad = [finding["sentence"] for finding in document["findings"] if finding["bad"]]
    assert (outcome.code, document["ok"]) == ((1, False) if bad else (0, True))
    return "\n".join(bad)


def test_a_sound_directory_has_no_damage_and_is_not_changed(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert len(segments(data)) > 3
    outcome = run("log", "verify", str(data))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "sound: the metadata log up to offset 40, 40 records, 1 snapshot\n"
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_directory_in_use_is_refused(data: Path) -> None:
    with (data / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "a controller is running on" in one_sentence(run("log", "verify", str(data)))


def test_a_flipped_bit_in_a_flushed_record_is_damage(data: Path) -> None:
    flip(segments(data)[-1], -3)
    assert "the metadata log is damaged at offset" in damage(data)


def test_damage_below_a_snapshot_is_a_note(data: Path) -> None:
    """The controller restarts its log at the end of the snapshot."""
    flip(segments(data)[0], 70)
    assert damage(data) == ""
    assert "but a complete snapshot has these records" in run("log", "verify", str(data)).out


def test_an_unfinished_write_is_a_note(data: Path) -> None:
    with segments(data)[-1].open("ab") as file:
        file.write(b"\0" * 30)
    assert damage(data) == ""
    assert "unfinished write at offset 40" in run("log", "verify", str(data)).out


def test_a_missing_segment_is_damage(data: Path) -> None:
    segments(data)[2].unlink()
    assert "the next batch begins at offset" in damage(data)


def test_a_missing_begin_is_damage_unless_a_snapshot_has_it(data: Path) -> None:
    first, second, *_ = segments(data)
    assert int(second.stem) <= 12
    first.unlink()
    assert damage(data) == ""
    (folder(data) / SNAPSHOT).unlink()
    assert "no complete snapshot has the records before it" in damage(data)


def test_a_lost_end_is_damage(data: Path) -> None:
    segments(data)[-1].write_bytes(b"")
    found = damage(data)
    assert "says that it was flushed up to 40" in found
    assert "quorum-state says that records up to 38 were committed" in found


@pytest.mark.parametrize("change", ["flipped", "cut off"])
def test_a_damaged_snapshot_is_damage(data: Path, change: str) -> None:
    path = folder(data) / SNAPSHOT
    flip(path, 150) if change == "flipped" else path.write_bytes(path.read_bytes()[:-80])
    assert f"{SNAPSHOT}: " in damage(data)


def test_a_record_that_this_version_cannot_read_is_damage(data: Path) -> None:
    log = MetadataLog.open(RealFiles(), str(data), RaftConfig(), committed_offset=0, now_ms=0)
    log.append_as_leader(memoryview(bytearray(encode_values([b"\xc1garbage"], 1))), 1)
    log.flush()
    log.close()
    assert "records of the metadata log at offset 40 cannot be read" in damage(data)


@pytest.mark.parametrize("change", ["flipped", "garbage", "missing", "other voters"])
def test_a_wrong_quorum_state_is_damage(data: Path, change: str) -> None:
    path = folder(data) / "quorum-state"
    content = path.read_bytes()
    if change == "missing":
        path.unlink()
    elif change == "garbage":
        path.write_bytes(b"\xff[")
    elif change == "flipped":
        path.write_bytes(content.replace(b'"leaderEpoch":1', b'"leaderEpoch":3'))
    else:
        path.write_bytes(json.dumps(json.loads(content) | {"currentVoters": [None]}).encode())
    assert "quorum-state" in damage(data)


def test_random_damage_never_ends_in_a_traceback(data: Path) -> None:
    draw = Random(5)
    kept = {path: path.read_bytes() for path in sorted(folder(data).iterdir()) if path.stat().st_size}
    for _ in range(20):
        for path, content in kept.items():
            changed = bytearray(content)
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            path.write_bytes(changed[: draw.randrange(1, len(changed) + 1)])
        assert run("log", "verify", str(data)).code == 1
