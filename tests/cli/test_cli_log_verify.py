"""`log verify`: says nothing about a sound data directory, and finds each fault that a test makes in it."""

from __future__ import annotations

import base64
import fcntl
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import crc32c
import pytest
from cleaner_kit import clean, keyed
from cli_world import one_sentence, run
from storage_kit import NOW_MS, batch

from strandline.pipeline.jobs.verify import verify
from strandline.pipeline.jobs.verify_log import Batch, read_log
from strandline.protocol.records.batch import HEADER_SIZE, compute_crc, read_header, with_records
from strandline.protocol.records.compression import Codec
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.producer_state import ProducerStates

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)
TOPIC_ID = b"t" * 16


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that was closed in order: two logs, several segments, compressed batches, a producer."""
    path = tmp_path / "data"
    with_logs(path, fill)
    return path


def with_logs(path: Path, change: Callable[[Log], None], *, clean: bool = True) -> None:
    log_dir = LogDir.open(RealFiles(), str(path), node_id=1, cluster_id="c1", random=Random(1))
    for partition in (0, 1):
        log = log_dir.open_log("orders", partition, TOPIC_ID, CONFIG, NOW_MS)
        log.possible_data_loss = False
        change(log)
        log.update_high_watermark(log.log_end_offset)
    log_dir.close(clean=clean, broker_epoch=1)


def fill(log: Log) -> None:
    for number in range(40):
        values = [b"%d-%d" % (number, n) * 10 for n in range(3)]
        plain = batch(*values, timestamp_ms=NOW_MS + number, producer=(7, 0, 3 * number))
        stored = (
            plain
            if number % 4
            else bytearray(with_records(read_header(plain), [plain[HEADER_SIZE:]], read_header(plain).record_count, Codec.GZIP))
        )
        log.append_as_leader(stored, 0, NOW_MS)


def folder(data: Path) -> Path:
    return data / "orders-0"


def batches(data: Path) -> list[Batch]:
    return [item for item in read_log(folder(data)) if isinstance(item, Batch)]


def change(data: Path, one: Batch, at: int, new: bytes, *, crc: bool = False) -> None:
    """Changes bytes of a batch in its file. `crc`: gives the batch the checksum of its new bytes."""
    path = folder(data) / f"{one.segment:020}.log"
    content = bytearray(path.read_bytes())
    part = content[one.position : one.position + one.size]
    part[at : at + len(new)] = new
    if crc:
        part[17:21] = struct.pack(">I", compute_crc(part, 0, len(part)))
    content[one.position : one.position + one.size] = part
    path.write_bytes(content)


def kinds(data: Path) -> set[str]:
    """The kinds of bad findings. The command must exit with 1 if there are any."""
    outcome = run("log", "verify", str(data), "--json")
    (document,) = outcome.lines()
    findings = document["findings"] + [finding for one in document["partitions"] for finding in one["findings"]]
    bad = {finding["kind"] for finding in findings if finding["bad"]}
    assert (outcome.code, document["ok"]) == ((1, False) if bad else (0, True)), outcome
    return bad


def test_a_sound_directory_has_no_damage_and_is_not_changed(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    outcome = run("log", "verify", str(data))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("sound: 2 partitions")
    assert len(list(folder(data).glob("*.snapshot"))) >= 1
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_killed_brokers_directory_has_notes_but_no_damage(tmp_path: Path) -> None:
    with_logs(tmp_path / "data", fill, clean=False)
    assert kinds(tmp_path / "data") == set()


def test_a_directory_in_use_is_refused(data: Path) -> None:
    with (data / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = run("log", "verify", str(data))
        assert outcome.code == 2
        assert "a broker is running on" in one_sentence(outcome)


def test_a_flipped_byte_is_one_line_of_damage(data: Path) -> None:
    one = batches(data)[3]
    change(data, one, 70, b"\xff")
    outcome = run("log", "verify", str(data))
    (line,) = outcome.out.splitlines()
    assert outcome.code == 1
    assert line.startswith(f"damage: orders-0, broker 1, offsets {one.base_offset} to {one.next_offset - 1}: bytes that are not")
    assert one_sentence(outcome._replace(out="")).startswith("strandline: not sound: 1 finding")


@pytest.mark.parametrize("number", [4, 5], ids=["compressed", "plain"])
def test_records_that_cannot_be_read_are_damage_even_with_a_right_checksum(data: Path, number: int) -> None:
    change(data, batches(data)[number], 61, b"\xff\xff\xff", crc=True)
    assert kinds(data) == {"records"}


def test_a_record_newer_than_the_largest_timestamp_of_its_batch_is_damage(data: Path) -> None:
    """A search by time would not find it."""
    for path in folder(data).glob("*.timeindex"):
        path.unlink()
    change(data, batches(data)[5], 35, struct.pack(">q", NOW_MS - 5), crc=True)
    assert kinds(data) == {"records"}


def test_a_lower_epoch_is_damage(data: Path) -> None:
    """The checksum does not cover the epoch."""
    change(data, batches(data)[3], 12, struct.pack(">i", 1))
    assert "epoch_backwards" in kinds(data)


def test_a_missing_batch_is_damage(data: Path) -> None:
    drop(data, batches(data)[5])
    assert "offset_gap" in kinds(data)


def drop(data: Path, one: Batch) -> None:
    path = folder(data) / f"{one.segment:020}.log"
    content = path.read_bytes()
    path.write_bytes(content[: one.position] + content[one.position + one.size :])
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def test_a_gap_in_a_directory_of_apache_kafka_is_a_note(data: Path) -> None:
    """Kafka's cleaner removes whole batches, and nothing stands for them."""
    drop(data, batches(data)[5])
    (data / "boot-id").unlink(missing_ok=True)
    (data / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 30\n")
    assert kinds(data) == set()
    assert "whose cleaner leaves such gaps" in run("log", "verify", str(data)).out


@pytest.fixture
def kafkas(tmp_path: Path) -> Path:
    """The data directory of a real Apache Kafka whose cleaner has removed records."""
    recorded = json.loads((Path(__file__).parent / "kafka_compacted_dir.json").read_text())
    for name, content in recorded["files"].items():
        path = tmp_path / "kafka" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(content)))
    return tmp_path / "kafka"


def test_a_log_that_kafkas_cleaner_compacted_is_sound(kafkas: Path) -> None:
    """It has gaps, batches without records that keep a producer's last sequence number, and batches with fewer records."""
    outcome = run("log", "verify", str(kafkas))
    assert (outcome.code, outcome.err) == (0, "")
    assert [line for line in outcome.out.splitlines() if "whose cleaner leaves such gaps" in line]
    assert outcome.out.splitlines()[-1].startswith("sound: 1 partition")


def test_a_killed_kafka_leaves_empty_checkpoints_that_are_no_damage(kafkas: Path) -> None:
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (kafkas / name).write_bytes(b"")
    outcome = run("log", "verify", str(kafkas))
    assert (outcome.code, outcome.err) == (0, "")


def test_damage_in_a_directory_of_kafka_is_damage(kafkas: Path) -> None:
    segment = kafkas / "comp-0" / "00000000000000000000.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    assert "damaged" in kinds(kafkas)


def test_a_batch_without_records_is_no_damage(tmp_path: Path) -> None:
    """A cleaner leaves one where it removed records. The sequence numbers of the producer then have a gap."""
    data = tmp_path / "data"
    with_logs(data, fill)
    one = batches(data)[5]
    path = folder(data) / f"{one.segment:020}.log"
    content = path.read_bytes()
    header = bytearray(content[one.position : one.position + 61])
    header[8:12] = struct.pack(">i", 49)
    header[21:23] = b"\0\0"
    header[43:61] = struct.pack(">qhii", -1, -1, -1, 0)
    header[17:21] = struct.pack(">I", compute_crc(header, 0, 61))
    path.write_bytes(content[: one.position] + header + content[one.position + one.size :])
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink(missing_ok=True)
    assert kinds(data) == set()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_wrong_index_entry_is_damage(data: Path, suffix: str) -> None:
    index = next(path for path in sorted(folder(data).glob(f"*{suffix}")) if path.stat().st_size)
    content = bytearray(index.read_bytes())
    content[3] ^= 1
    index.write_bytes(content)
    assert kinds(data) == {"index"}


def snapshot(data: Path) -> Path:
    return sorted(folder(data).glob("*.snapshot"))[-1]


def test_a_torn_snapshot_is_damage(data: Path) -> None:
    snapshot(data).write_bytes(snapshot(data).read_bytes()[:-1])
    assert kinds(data) == {"snapshot"}


def test_a_snapshot_with_another_sequence_is_damage(data: Path) -> None:
    """The leader would refuse the producer's next batch, or append one twice."""
    states = ProducerStates.decode(snapshot(data).read_bytes())
    assert states is not None
    ((_, kept),) = states.dump().values()
    kept_last = kept[-1]
    content = snapshot(data).read_bytes()
    wrong = content.replace(
        struct.pack(">iq", kept_last.last_sequence, kept_last.last_offset),
        struct.pack(">iq", kept_last.last_sequence + 1, kept_last.last_offset),
    )
    assert wrong != content
    wrong_crc = bytearray(wrong)
    wrong_crc[2:6] = struct.pack(">I", crc32c.crc32c(wrong[6:]))
    snapshot(data).write_bytes(wrong_crc)
    assert kinds(data) == {"snapshot"}


def test_a_snapshot_of_an_unknown_version_is_a_note(data: Path) -> None:
    snapshot(data).write_bytes(b"\x00\x09" + snapshot(data).read_bytes()[2:])
    assert kinds(data) == set()
    assert "version 9" in run("log", "verify", str(data)).out


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("replication-offset-checkpoint", "checkpoint_unreadable"),
        ("recovery-point-offset-checkpoint", "checkpoint_unreadable"),
        ("orders-0/leader-epoch-checkpoint", "checkpoint_unreadable"),
        ("orders-0/partition.metadata", "checkpoint_unreadable"),
        ("meta.properties", "checkpoint_unreadable"),
    ],
)
def test_a_damaged_checkpoint_is_damage_and_no_traceback(data: Path, name: str, kind: str) -> None:
    (data / name).write_bytes(b"\xff\x00garbage")
    assert kinds(data) == {kind}


def test_a_checkpoint_above_the_end_is_damage(data: Path) -> None:
    (data / "replication-offset-checkpoint").write_text("0\n2\norders 0 121\norders 1 120\n")
    assert kinds(data) == {"missing_below_hw"}


# -- what the cleaner leaves ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends."""


class FilesOfKilledProcess(RealFiles):
    """The files of a process that is killed at a rename or removal of a file, after `changes` of them."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.changes = changes

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def _count(self) -> None:
        if self.changes == 0:
            raise Killed
        self.changes -= 1


NEVER = 1_000_000


def clean_until_killed(path: Path, changes: int) -> int:
    """Write a log with few keys and clean it, until `changes` files were renamed or removed. Returns how many were left."""
    files = FilesOfKilledProcess(NEVER)
    log_dir = LogDir.open(files, str(path), node_id=1, cluster_id="c1", random=Random(1))
    log = log_dir.open_log("orders", 0, TOPIC_ID, CONFIG, NOW_MS)
    log.possible_data_loss = False
    for number in range(60):
        rows = [(b"key-%d" % (number % 7), b"%d" % number * 20), (b"once-%d" % number, b"x" * 30 if number % 5 else None)]
        log.append_as_leader(keyed(rows, timestamp_ms=NOW_MS + number, codec=Codec(number % 5)), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    for log_, work in log_dir.flush_work():
        work.run()
        log_.on_flushed(work)
    log_dir.checkpoint_all()
    try:
        files.changes = changes
        log.first_dirty_offset = clean(log, delete_retention_ms=0).next_dirty
        log.first_dirty_offset = clean(log, delete_retention_ms=0, now_ms=NOW_MS + 1).next_dirty
        left, files.changes = files.changes, NEVER
        log_dir.checkpoint_all()
    except Killed:
        log_dir.close(clean=False)
        return 0
    log_dir.close(broker_epoch=1)
    return left


def test_a_cleaned_directory_is_sound_and_its_checkpoints_are_shown(tmp_path: Path) -> None:
    clean_until_killed(tmp_path / "data", NEVER)
    outcome = run("log", "verify", str(tmp_path / "data"))
    assert (outcome.code, outcome.out.splitlines()[0][:5]) == (0, "sound")
    for name in ("cleaner-offset-checkpoint", "removed-tombstones-checkpoint"):
        (row,) = run("log", "dump", str(tmp_path / "data" / name), "--json").lines()
        assert (row["topic"], row["partition"]) == ("orders", 0)
        assert row["offset"] > 50


def test_a_cleaning_that_was_killed_is_explained_and_no_damage(tmp_path: Path) -> None:
    """The process is killed before each rename or removal of a file in turn. After the broker's next start no file of the
    cleaning is left. The command itself runs only where a kind of file is left for the first time."""
    changes = NEVER - clean_until_killed(tmp_path / "whole", NEVER)
    assert changes > 20
    seen: set[str] = set()
    for number in range(changes):
        data = tmp_path / str(number)
        clean_until_killed(data, number)
        unfinished = {path.suffix for path in folder(data).iterdir()} & {".swap", ".cleaned"}
        found = verify([data], reads_records=True)
        assert found.is_ok, number
        said = "\n".join(finding.sentence for finding in found.all_findings)
        assert ("it finishes this when it starts" in said) == any(folder(data).glob("*.log.swap"))
        assert ("it removes this file when it starts" in said) == any(folder(data).glob("*.log.cleaned"))
        if not unfinished <= seen:
            seen |= unfinished
            assert kinds(data) == set(), number
            for path in [*folder(data).glob("*.log.swap"), *folder(data).glob("*.log.cleaned")]:
                assert run("log", "dump", str(path)).code == 0
        with_logs(data, lambda log: None)
        assert verify([data], reads_records=True).is_ok, number
        assert not [path for path in folder(data).iterdir() if path.suffix in (".swap", ".cleaned")]
    assert seen == {".swap", ".cleaned"}


def test_damage_in_a_segment_that_takes_its_place_at_the_next_start_is_damage(tmp_path: Path) -> None:
    data = tmp_path / "data"
    clean_until_killed(data, 1)
    (swap,) = folder(data).glob("*.log.swap")
    (folder(data) / swap.name.removesuffix(".swap")).unlink()
    content = bytearray(swap.read_bytes())
    content[-1] ^= 1
    swap.write_bytes(content)
    assert "damaged" in kinds(data)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("cleaner-offset-checkpoint", "0\n1\norders 0 121\n", None),
        ("removed-tombstones-checkpoint", "0\n1\norders 0 121\n", "checkpoint_beyond_log"),
        ("cleaner-offset-checkpoint", "0\n1\norders 0", "checkpoint_unreadable"),
        ("removed-tombstones-checkpoint", "0\n1\norders 0", "tombstones_unreadable"),
    ],
)
def test_checkpoints_of_the_cleaner_are_checked(data: Path, name: str, text: str, kind: str | None) -> None:
    (data / name).write_text(text)
    assert kinds(data) == ({kind} if kind else set())
    outcome = run("log", "verify", str(data))
    assert name in outcome.out or "begins at the log start" in outcome.out


def test_random_damage_never_ends_in_a_traceback(data: Path) -> None:
    draw = Random(5)
    files = [path for path in sorted(data.rglob("*")) if path.is_file() and path.stat().st_size and path.name != ".lock"]
    for path in files:
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content[: draw.randrange(1, len(content) + 1)])
    assert run("log", "verify", str(data)).code == 1


def test_several_directories_and_none_get_one_sentence(data: Path, tmp_path: Path) -> None:
    with_logs(tmp_path / "other", fill)
    assert "holds 2 data directories" in one_sentence(run("log", "verify", str(tmp_path)))
    assert "there is no folder" in one_sentence(run("log", "verify", str(tmp_path / "nowhere")))
