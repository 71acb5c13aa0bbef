"""Snapshots without Spark: which version is current, what a dead run leaves behind, and where the next run begins."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from cli_world import one_sentence, run

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.errors import DataLoss
from strandline.pipeline.jobs import materialize as job
from strandline.pipeline.jobs.lake import DataFile
from strandline.pipeline.jobs.lake_folder import Lake
from strandline.pipeline.jobs.materialize_folder import SnapshotDamaged, SnapshotFile, SnapshotFolder, Version, decode, encode
from strandline.pipeline.jobs.materialize_source import Changes, files_after, has_moved, planned
from strandline.pipeline.offsets import ReadPosition, ReadPositions
from strandline.pipeline.planning import Range
from strandline.protocol.errors import UsageError

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def publish(folder: SnapshotFolder, number: int, keep: int = 3) -> Version:
    """Publishes a version with one file, as a run does."""
    work = folder.work_folder()
    work.mkdir(parents=True)
    (work / "part.parquet").write_bytes(b"x" * number)
    files = folder.bring(number, "table", [work / "part.parquet"], [number], work.name.rsplit("-", 1)[1])
    version = Version(number=number, topic="orders", across="refuse", until={ZERO: ReadPosition(number, 2)}, table=files)
    folder.publish(version, keep)
    return version


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    folder = SnapshotFolder(tmp_path)
    with folder.at_work():
        publish(folder, 1)
    return folder


def test_version_is_read_as_written(folder: SnapshotFolder) -> None:
    with folder.at_work():
        version = publish(folder, 2)
    assert folder.newest() == version == folder.version(2) == decode("00000000000000000002.json", encode(version))
    assert (version.rows, version.until) == (2, {ZERO: ReadPosition(2, 2)})


def test_next_run_deletes_the_files_of_a_dead_run(folder: SnapshotFolder) -> None:
    """A run may die while Spark writes, or before it writes the manifest. Readers must not see its files."""
    before = folder.newest()
    for name in (".work-0123456789abcdef", "v2-0123456789abcdef"):
        (folder.root / name).mkdir()
        (folder.root / name / "table-0000.parquet").write_bytes(b"half")
    assert folder.newest() == before
    with folder.at_work():
        assert folder.newest() == before
    assert {path.name for path in folder.root.iterdir() if path.name != "_manifest"} == folder.version().folders


@pytest.mark.parametrize("name", ["vendor-data", "v2-old", "v-0123456789abcdef", "v2-0123456789abcdef-backup", ".work-mine"])
def test_folder_of_the_user_is_kept(folder: SnapshotFolder, name: str) -> None:
    """A user may keep other data beside the snapshot, also under a name that resembles those of versions."""
    (folder.root / name).mkdir()
    with folder.at_work():
        publish(folder, 2)
    assert (folder.root / name).is_dir()


def test_newest_versions_are_kept(folder: SnapshotFolder) -> None:
    """A reader of an old version can finish while `keep` runs end."""
    with folder.at_work():
        for number in range(2, 6):
            publish(folder, number, keep=2)
    assert folder.numbers() == [4, 5]
    assert len(list(folder.root.glob("v*"))) == 2
    with pytest.raises(UsageError, match="has no version 1; it has 4, 5"):
        folder.version(1)


def test_second_run_at_the_same_time_is_refused(folder: SnapshotFolder) -> None:
    with folder.at_work(), pytest.raises(UsageError, match="another run uses"), SnapshotFolder(folder.root).at_work():
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"v": 2}', "has format 2; this program knows format 1"),
        (b'{"v": 1, "version": 1}', "cannot be read"),
    ],
)
def test_damaged_manifest_is_an_error(folder: SnapshotFolder, data: bytes, message: str) -> None:
    (folder.root / "_manifest" / "00000000000000000001.json").write_bytes(data)
    with pytest.raises(SnapshotDamaged, match=message):
        folder.version()


def test_missing_or_torn_file_is_an_error(folder: SnapshotFolder) -> None:
    (file,) = folder.version().table
    (folder.root / file.path).write_bytes(b"torn")
    with pytest.raises(SnapshotDamaged, match=r"has 4 bytes, but its manifest says 1"):
        folder.version()
    (folder.root / file.path).unlink()
    with pytest.raises(SnapshotDamaged, match="is missing"):
        folder.version()


def test_command_shows_versions_and_damage(folder: SnapshotFolder, tmp_path: Path) -> None:
    shown = run("pipeline", "snapshot", str(folder.root))
    assert (shown.code, "the last values of orders" in shown.out) == (0, True), shown.err
    document = run("pipeline", "snapshot", str(folder.root), "--json").json()
    assert (document["until"], [v["version"] for v in document["versions"]]) == ({"0": 1}, [1])
    (folder.root / folder.version().table[0].path).unlink()
    damaged = run("pipeline", "snapshot", str(folder.root))
    assert damaged.code == 3
    assert "is damaged" in one_sentence(damaged)
    nothing = run("pipeline", "snapshot", str(tmp_path / "nowhere"))
    assert (nothing.code, "there is no snapshot in" in one_sentence(nothing)) == (2, True)


def test_manifest_is_plain_json(folder: SnapshotFolder) -> None:
    """Programs that do not use Python can find the files of the newest version."""
    document = json.loads((folder.root / "_manifest" / "00000000000000000001.json").read_text())
    assert [SnapshotFile(**file) for file in document["table"]] == list(folder.version().table)


# -- where a run begins -----------------------------------------------------------------------------------------------


def test_run_continues_with_offset_and_epoch_of_the_last() -> None:
    since = {ZERO: ReadPosition(10, 3)}
    assert planned(since, {ZERO: 4, ONE: 0}, {ZERO: ReadPosition(15, 4), ONE: ReadPosition(7, 0)}, True) == [
        Range("orders", 0, 10, 15, 3),
        Range("orders", 1, 0, 7),
    ]


def test_first_run_begins_at_the_earliest_offset() -> None:
    assert planned(None, {ZERO: 4}, {ZERO: ReadPosition(15, 4)}, True) == [Range("orders", 0, 4, 15)]


@pytest.mark.parametrize(
    ("since", "earliest", "latest", "message", "instead"),
    [
        (
            {ZERO: ReadPosition(3)},
            {ZERO: 5},
            {ZERO: ReadPosition(9)},
            "offset 3 of orders-0 was deleted before it was read; the earliest is 5",
            5,
        ),
        ({ZERO: ReadPosition(12)}, {ZERO: 0}, {ZERO: ReadPosition(9)}, "was read up to offset 12, but its log ends at 9", 9),
        ({}, {ZERO: 5}, {ZERO: ReadPosition(9)}, "offset 0 of orders-0 was deleted", 5),
        (
            {ZERO: ReadPosition(3), ONE: ReadPosition(1)},
            {ZERO: 0},
            {ZERO: ReadPosition(9)},
            "no longer has this partition",
            3,
        ),
    ],
)
def test_records_deleted_before_they_were_read_are_data_loss(
    since: dict[TopicPartition, ReadPosition],
    earliest: dict[TopicPartition, int],
    latest: dict[TopicPartition, ReadPosition],
    message: str,
    instead: int,
) -> None:
    with pytest.raises(DataLoss, match=message):
        planned(since, earliest, latest, True)
    (piece,) = planned(since, earliest, latest, False)
    assert (piece.start, piece.end) == (instead, 9)


@pytest.mark.parametrize(
    ("options", "fails"),
    [
        ({}, True),
        ({"failondataloss": " False "}, False),
        ({"FAILONDATALOSS": "true"}, True),
        ({"failOnDataLoss": "false"}, False),
    ],
)
def test_loss_in_a_lake_is_accepted_in_any_spelling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str], fails: bool
) -> None:
    """Spark's options have names in any case, and a lake must not need another spelling than a log. It needs no cluster."""
    asked = []
    monkeypatch.setattr(job, "from_lake", lambda *words: asked.append(words[-1]) or Changes(Mock(), {}, True))
    monkeypatch.setattr(job._Run, "make", lambda *_: None)
    job.materialize(Mock(), "", "orders", tmp_path, lake="lake", options=options)
    assert asked == [fails]
    with pytest.raises(UsageError, match="failOnDataLoss must be true or false, not 'maybe'"):
        job.materialize(Mock(), "", "orders", tmp_path, lake="lake", options={"failOnDataLoss": "maybe"})


@pytest.mark.parametrize("end", [80, 100, 150])
def test_recreated_topic_is_data_loss(end: int) -> None:
    """The new log may be longer than what was read of the old one. A run that continued in it would skip its first records."""
    since, latest = {ZERO: ReadPosition(100, 3, b"old")}, {ZERO: ReadPosition(end, 0, b"new")}
    with pytest.raises(DataLoss, match=r"orders-0 was read up to offset 100, .* recreated since; .* make a new snapshot"):
        planned(since, {ZERO: 4}, latest, True)
    assert planned(since, {ZERO: 4}, latest, False) == [Range("orders", 0, 4, end, topic_id=b"new")]


@pytest.mark.parametrize(
    ("since", "until", "moved"),
    [
        ({ZERO: ReadPosition(9, 3, b"id")}, {ZERO: ReadPosition(9, 4, b"id")}, False),
        ({ZERO: ReadPosition(9)}, {ZERO: ReadPosition(9, 4, b"id"), ONE: ReadPosition(0, topic_id=b"id")}, False),
        ({ZERO: ReadPosition(9, 3, b"old")}, {ZERO: ReadPosition(0, topic_id=b"new")}, True),
        ({ZERO: ReadPosition(0, topic_id=b"old")}, {ZERO: ReadPosition(0, topic_id=b"new")}, True),
        ({ZERO: ReadPosition(9)}, {ZERO: ReadPosition(7)}, True),
        ({ZERO: ReadPosition(9)}, {ZERO: ReadPosition(12)}, True),
        ({ZERO: ReadPosition(9), ONE: ReadPosition(0)}, {ZERO: ReadPosition(9)}, True),
    ],
    ids=["same", "new partition", "recreated", "recreated, both empty", "truncated", "deleted up to the end", "fewer partitions"],
)
def test_accepted_loss_moves_a_run_without_records(since: ReadPositions, until: ReadPositions, moved: bool) -> None:
    """Without a new version, the next run would fail with the loss that the user has accepted."""
    assert has_moved(since, until) is moved


def test_run_on_a_lake_keeps_the_topic_id() -> None:
    """The next run on the log still notices that the topic was recreated."""
    _, until = files_after(lake_of((0, 99), (100, 110)), "orders", {ZERO: ReadPosition(100, 3, b"id")}, True)
    assert until == {ZERO: ReadPosition(111, topic_id=b"id")}


def lake_of(*files: tuple[int, int]) -> Lake:
    """A lake of one partition, with files of these first and last offsets."""
    entries = tuple(
        DataFile(
            path=f"{first}", topic="orders", partition=0, date="2025-01-31", first=first, last=last, count=1, bytes=1, crc32c=1
        )
        for first, last in files
    )  # fmt: skip
    return Lake(Path("lake"), len(files) - 1, entries, {ZERO: files[-1][1] + 1})


@pytest.mark.parametrize(("since", "firsts"), [(100, [103]), (50, [0, 103]), (102, [103]), (111, []), (200, [])])
def test_gap_between_files_of_a_lake_is_no_loss(since: int, firsts: list[int]) -> None:
    """The marker of a transaction, or records that were aborted or compacted, may lie between two offloads."""
    begun = {ZERO: ReadPosition(since)}
    files, until = files_after(lake_of((0, 99), (103, 110)), "orders", begun, True)
    assert ([file.first for file in files], until) == (firsts, {ZERO: ReadPosition(max(since, 111))})


def test_lake_that_begins_after_the_snapshot_is_data_loss() -> None:
    """The log may have had records between the end of the snapshot and the beginning of the lake."""
    lake, begun = lake_of((200, 299)), {ZERO: ReadPosition(100, 3)}
    with pytest.raises(DataLoss, match="the snapshot continues at offset 100 of orders-0, but the lake begins at 200"):
        files_after(lake, "orders", begun, True)
    assert files_after(lake, "orders", begun, False) == (list(lake.files), {ZERO: ReadPosition(300)})
