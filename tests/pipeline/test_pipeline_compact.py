"""Compaction without Spark: which files are joined, that readers and writers continue, and when files are deleted."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from cli_world import run
from hypothesis import given
from hypothesis import strategies as st
from test_pipeline_lake import ORDERS, add, any_lake, offsets_in, rows, write

from strandline.pipeline.jobs.compact import JoinFiles, entry_of, neighbours, replaced, sweep
from strandline.pipeline.jobs.lake import DataFile, LakeDamaged, Manifest, based_on, file_path, join
from strandline.pipeline.jobs.lake_folder import Folder, read_manifest
from strandline.protocol.errors import UsageError

LARGE = 1 << 30


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake of three batches with ten records each."""
    for number in range(3):
        add(tmp_path, number, rows(list(range(number * 10, number * 10 + 10))))
    return tmp_path


def join_all(root: Path, target_bytes: int = LARGE) -> dict[tuple[str, ...], DataFile]:
    """Runs the tasks of a compaction in this process, and publishes the base."""
    larger, files = {}, read_manifest(root).files
    for group in neighbours(files, target_bytes):
        for batch in JoinFiles(root, group).run():
            for row in batch.to_pylist():
                entry = entry_of(row, {file.path: file for file in files})
                Folder(root).check(entry, checksums=True)
                larger[tuple(row["inputs"])] = entry
    Folder(root).publish_base(lambda files: replaced(files, larger))
    return larger


def age(root: Path, seconds: float) -> None:
    """Makes all files older by `seconds`."""
    for path in root.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))


def test_readers_and_writers_continue_after_a_compaction(lake: Path) -> None:
    parts = [pyarrow.parquet.read_table(lake / file.path, partitioning=None) for file in read_manifest(lake).files]
    join_all(lake)
    after = read_manifest(lake, checksums=True)
    (file,) = after.files
    assert (file.path, file.count) == ("orders/date=1970-01-01/orders-0-00000000000000000000-29.parquet", 30)
    assert pyarrow.parquet.read_table(lake / file.path, partitioning=None) == pyarrow.concat_tables(parts)
    assert (after.number, after.ends) == (2, {ORDERS: 30})
    add(lake, 3, rows([30, 31]))
    assert (offsets_in(read_manifest(lake)), read_manifest(lake).number) == (list(range(32)), 3)
    with pytest.raises(UsageError, match="has this partition up to offset 31"):
        write(lake, rows([29]))
    join_all(lake)
    assert len(read_manifest(lake).files) == 1


def test_replaced_files_stay_for_a_while(lake: Path) -> None:
    began = read_manifest(lake)
    join_all(lake)
    assert sweep(Folder(lake), keep_s=3600) == 0
    assert offsets_in(began) == list(range(30))
    age(lake, 4000)
    assert sweep(Folder(lake), keep_s=3600) == 2 + 2, (
        "two manifests and their files; the last manifest stays, and the file that it names"
    )
    assert offsets_in(read_manifest(lake, checksums=True)) == list(range(30))
    assert sweep(Folder(lake), keep_s=0) == 0


def test_unlisted_files_are_deleted_if_no_batch_writes_them(lake: Path) -> None:
    folder = lake / "orders" / "date=1970-01-01"
    (left_over,) = folder.glob("*-00000000000000000000-9.parquet")
    ours = ("orders-0-00000000000000000000-5.parquet", ".0123456789abcdef.new", "orders-0-00000000000000000030-35.parquet")
    for name in (*ours, "mine.txt", ".mine.new"):
        (folder / name).write_bytes(left_over.read_bytes())
    (folder / ".fedcba9876543210.new").symlink_to("a file that its writer has just renamed")
    assert sweep(Folder(lake), keep_s=60) == 0
    assert sweep(Folder(lake), keep_s=0) == 2
    names = {path.name for path in folder.iterdir()}
    assert {"mine.txt", ".mine.new", "orders-0-00000000000000000030-35.parquet"} < names
    assert offsets_in(read_manifest(lake, checksums=True)) == list(range(30))


@pytest.mark.parametrize("call", [1, 2])
def test_batch_that_is_published_during_the_sweep_stays(lake: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Its files must not be taken for left-over ones, whatever the sweep has read before."""
    files, calls = write(lake, rows([30, 31])), 0
    numbers = Folder.numbers

    def publishing(folder: Folder, base: Manifest | None = None) -> list[int]:
        nonlocal calls
        found, calls = numbers(folder, base), calls + 1
        if calls == call:
            folder.publish("query", 3, files)
        return found

    monkeypatch.setattr(Folder, "numbers", publishing)
    sweep(Folder(lake), keep_s=0)
    monkeypatch.undo()
    assert Folder(lake).publish("query", 3, files) is None, "the batch was published during the sweep"
    assert offsets_in(read_manifest(lake, checksums=True)) == list(range(32))


def test_order_of_records_stays(tmp_path: Path) -> None:
    """A reader of files one after the other, such as a replay that continues, must find the records in the same order as before.
    So only neighbouring files of one date are joined."""
    add(tmp_path, 0, rows([0, 1, 2], [0, 0, 1]))
    add(tmp_path, 1, rows([3, 4, 5], [0, 1, 1]))
    add(tmp_path, 2, rows([6, 7], [1, 1]))

    def read_in_order(root: Path) -> list[int]:
        tables = (pyarrow.parquet.read_table(root / file.path, partitioning=None) for file in read_manifest(root).files)
        return [offset for table in tables for offset in table["offset"].to_pylist()]

    before = read_in_order(tmp_path)
    join_all(tmp_path)
    assert [(f.date[-2:], f.first, f.last) for f in read_manifest(tmp_path).files] == [
        ("01", 0, 1), ("02", 2, 2), ("01", 3, 3), ("02", 4, 7),
    ]  # fmt: skip
    assert read_in_order(tmp_path) == before


def sized(sizes: Sequence[int]) -> list[DataFile]:
    return [
        DataFile(
            path=file_path("orders", 0, "2025-01-31", n, n), topic="orders", partition=0, date="2025-01-31", first=n, last=n,
            count=1, bytes=size, crc32c=0,
        )
        for n, size in enumerate(sizes)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([10, 10, 10], [[0, 1, 2]]),
        ([40, 40, 40, 40], [[0, 1], [2, 3]]),
        ([10, 60, 10, 10], [[2, 3]]),
        ([10, 60], []),
        ([60, 60], []),
        ([], []),
    ],
)
def test_files_are_joined_up_to_the_target_size(sizes: list[int], joined: list[list[int]]) -> None:
    assert [[file.first for file in group] for group in neighbours(sized(sizes), 100)] == joined


def test_damaged_file_is_not_joined(lake: Path) -> None:
    file = read_manifest(lake).files[1]
    data = bytearray((lake / file.path).read_bytes())
    data[20] ^= 1
    (lake / file.path).write_bytes(data)
    with pytest.raises(LakeDamaged, match="has another checksum"):
        join_all(lake)
    assert Folder(lake).base() is None
    assert not list(lake.rglob("*.new"))


def test_second_compaction_at_the_same_time_is_refused(lake: Path) -> None:
    with Folder(lake).compacting(), pytest.raises(UsageError, match="another compaction"), Folder(lake).compacting():
        pass


@given(st.integers(0, 2**32))
def test_base_has_the_same_files_as_its_manifests(seed: int) -> None:
    manifests = any_lake(seed)
    number = random.Random(seed).randrange(len(manifests))
    files, ends = join(manifests[: number + 1])
    base = based_on(manifests[number], files, ends)
    assert join(manifests[number + 1 :], base) == join(manifests)
    if number + 2 < len(manifests):
        with pytest.raises(LakeDamaged, match="is missing"):
            join(manifests[number + 2 :], base)


def test_folder_without_a_lake_is_rejected_before_spark_starts(tmp_path: Path) -> None:
    outcome = run("pipeline", "compact", str(tmp_path))
    assert (outcome.code, outcome.err) == (2, f"strandline: there is no lake in {tmp_path}\n")
