"""A lake without Spark: which files are valid, and that missing, doubled or torn ones are reported as damage."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from cli_world import run
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake import DataFile, LakeDamaged, Manifest, decode, encode, file_path, following, join
from strandline.pipeline.jobs.lake_folder import Folder, Lake, local_path, read_manifest
from strandline.pipeline.jobs.lake_writer import COLUMNS, LakeWriter
from strandline.protocol.errors import UsageError

DAY_US = 86_400_000_000
ORDERS = TopicPartition("orders", 0)


def rows(offsets: list[int], days: list[int] | None = None, topic: str = "orders", partition: int = 0) -> pyarrow.RecordBatch:
    count = len(offsets)
    columns: dict[str, list[Any]] = {
        "topic": [topic] * count,
        "partition": [partition] * count,
        "offset": offsets,
        "timestamp": [day * DAY_US for day in days or [0] * count],
        "timestampType": [0] * count,
        "key": [None] * count,
        "value": [b"%d" % n for n in offsets],
    }
    return pyarrow.RecordBatch.from_pydict(columns, schema=COLUMNS)


def write(root: Path, *batches: pyarrow.RecordBatch) -> tuple[DataFile, ...]:
    newest = Folder(root).newest()
    writer = LakeWriter(root, False, newest.ends if newest else {})
    for batch in batches:
        writer.write(batch)
    return writer.finish()


def add(root: Path, number: int, *batches: pyarrow.RecordBatch) -> tuple[DataFile, ...]:
    files = write(root, *batches)
    Folder(root).publish("query", number, files)
    return files


def offsets_in(lake: Lake, place: TopicPartition = ORDERS) -> list[int]:
    """The offsets in the valid files, as any reader finds them."""
    files = [lake.root / file.path for file in lake.files if file.tp == place]
    return sorted(offset for path in files for offset in pyarrow.parquet.read_table(path)["offset"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake of three batches with ten records each."""
    for number in range(3):
        add(tmp_path, number, rows(list(range(number * 10, number * 10 + 10))))
    return tmp_path


def test_file_name_has_partition_date_and_offsets(lake: Path) -> None:
    first = read_manifest(lake).files[0]
    assert first.path == "orders/date=1970-01-01/orders-0-00000000000000000000-9.parquet"
    assert (first.first, first.last, first.count) == (0, 9, 10)


def test_reader_finds_each_offset_once(lake: Path) -> None:
    view = read_manifest(lake, checksums=True)
    assert offsets_in(view) == list(range(30))
    assert (view.number, view.ends) == (2, {ORDERS: 30})


def test_missing_folder_is_an_empty_lake(tmp_path: Path) -> None:
    assert read_manifest(tmp_path / "nothing").files == ()


def test_task_over_midnight_makes_a_file_for_each_date(tmp_path: Path) -> None:
    files = add(tmp_path, 0, rows([0, 1, 2, 3], [0, 1, 0, 1]), rows([4, 7], [1, 1]))
    assert [(f.date, f.first, f.last, f.count) for f in files] == [("1970-01-01", 0, 2, 2), ("1970-01-02", 1, 7, 4)]
    assert offsets_in(read_manifest(tmp_path, checksums=True)) == [0, 1, 2, 3, 4, 7]


def test_task_with_many_dates_keeps_few_files_open(tmp_path: Path) -> None:
    days = [n % 40 for n in range(200)]
    files = add(tmp_path, 0, *(rows([n], [day]) for n, day in enumerate(days)))
    assert len(files) == 200, "each file was closed before the next row of its date"
    assert offsets_in(read_manifest(tmp_path)) == list(range(200))


def test_gaps_in_the_offsets_are_legal(tmp_path: Path) -> None:
    add(tmp_path, 0, rows([3, 5, 9]))
    add(tmp_path, 1, rows([20, 22]))
    assert [file.count for file in read_manifest(tmp_path).files] == [3, 2]


def test_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    """Two attempts of a task may run at the same time, and must then write the same files."""
    offsets = list(range(1000))
    (one,) = write(tmp_path / "one", rows(offsets))
    (other,) = write(tmp_path / "other", rows(offsets[:333]), rows(offsets[333:]))
    assert one == other


# -- a batch that is run again ----------------------------------------------------------------------------------------


def test_files_of_an_uncommitted_batch_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, rows([0, 1, 2]))
    assert read_manifest(tmp_path).files == ()
    add(tmp_path, 0, rows([0, 1, 2]))
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert offsets_in(read_manifest(tmp_path, checksums=True)) == [0, 1, 2]


def test_committed_batch_is_not_listed_again(lake: Path) -> None:
    before = read_manifest(lake)
    assert Folder(lake).publish("query", 2, before.files[-1:]) is None
    assert read_manifest(lake) == before


def test_second_query_cannot_add_existing_offsets(lake: Path) -> None:
    other = write(lake, rows([0, 1], topic="other"))
    Folder(lake).publish("another", 0, other)
    assert set(read_manifest(lake).ends) == {ORDERS, TopicPartition("other", 0)}
    with pytest.raises(UsageError, match="offset 5 of orders-0 is already in the lake, which has this partition up to offset 29"):
        write(lake, rows([5]))
    assert offsets_in(read_manifest(lake, checksums=True)) == list(range(30))


def test_half_written_files_are_not_read(lake: Path) -> None:
    writer = LakeWriter(lake, False, {ORDERS: 30})
    writer.write(rows([30, 31]))
    (half,) = lake.rglob("*.new")
    assert half.name.startswith(".")
    assert offsets_in(read_manifest(lake)) == list(range(30))
    writer.abort()
    assert not half.exists()


# -- damage -----------------------------------------------------------------------------------------------------------


def manifest_of(lake: Path, number: int) -> Path:
    return sorted((lake / "_manifest").glob("*.json"))[number]


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_missing_manifest_is_damage(lake: Path) -> None:
    manifest_of(lake, 1).unlink()
    with pytest.raises(LakeDamaged, match=r"manifest 0+1\.json is missing"):
        read_manifest(lake)


@pytest.mark.parametrize(("after", "message"), [(25, "a gap in orders-0"), (15, "an overlap in orders-0")])
def test_gap_or_overlap_between_manifests_is_damage(lake: Path, after: int, message: str) -> None:
    change(manifest_of(lake, 2), after={"orders": {"0": after}})
    with pytest.raises(LakeDamaged, match=rf"{message}: .* continues at offset {after}, but the manifests before it end at 20"):
        read_manifest(lake)


def test_overlapping_files_are_damage(lake: Path) -> None:
    document = json.loads(manifest_of(lake, 1).read_text())
    change(manifest_of(lake, 2), files=document["files"])
    with pytest.raises(LakeDamaged, match=r"orders-0-0+10-19\.parquet overlaps: the lake has orders-0 up to offset 19 already"):
        read_manifest(lake)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 1}', '{"v": 1, "files": 3}'])
def test_torn_manifest_is_damage(lake: Path, text: str) -> None:
    manifest_of(lake, 1).write_text(text)
    with pytest.raises(LakeDamaged, match=r"manifest 0+1\.json cannot be read"):
        read_manifest(lake)


def test_manifest_of_a_later_version_is_refused(lake: Path) -> None:
    change(manifest_of(lake, 1), v=2)
    with pytest.raises(LakeDamaged, match="has version 2; this program knows version 1"):
        read_manifest(lake)


def test_missing_short_or_changed_file_is_damage(lake: Path) -> None:
    file = lake / read_manifest(lake).files[1].path
    whole = file.read_bytes()
    file.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    assert read_manifest(lake).files, "the size is right"
    with pytest.raises(LakeDamaged, match="has another checksum"):
        read_manifest(lake, checksums=True)
    file.write_bytes(whole[:-1])
    with pytest.raises(LakeDamaged, match=f"has {len(whole) - 1} bytes, but its manifest says {len(whole)}"):
        read_manifest(lake)
    file.unlink()
    with pytest.raises(LakeDamaged, match="is missing"):
        read_manifest(lake)


# -- where, and which topics ------------------------------------------------------------------------------------------


def test_lake_must_be_a_folder() -> None:
    assert local_path("file:///lake") == Path("/lake")
    with pytest.raises(UsageError, match="local or mounted file system"):
        local_path("s3://bucket/lake")


@pytest.mark.parametrize("topic", ["_manifest", ".hidden", "__transaction_state"])
def test_topics_whose_folders_readers_skip_are_refused(tmp_path: Path, topic: str) -> None:
    with pytest.raises(UsageError, match="readers skip folders"):
        write(tmp_path, rows([0], topic=topic))


# -- the command ------------------------------------------------------------------------------------------------------


def test_command_shows_partitions_and_damage(lake: Path) -> None:
    shown = run("pipeline", "lake", str(lake), "--json", "--checksums")
    size = sum(file.bytes for file in read_manifest(lake).files)
    partition = {"topic": "orders", "partition": 0, "first_offset": 0, "last_offset": 29, "records": 30, "files": 3}
    assert shown.json() == {"damaged": None, "partitions": [{**partition, "bytes": size}]}
    assert "orders" in run("pipeline", "lake", str(lake)).out
    manifest_of(lake, 1).unlink()
    damaged = run("pipeline", "lake", str(lake))
    assert damaged.code == 3
    assert "is damaged: manifest 00000000000000000001.json is missing" in damaged.err


def test_command_without_spark_says_how_to_install_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; from strandline.cli import main; "
        f"sys.argv = ['strandline', 'pipeline', 'offload', '--topic', 'a', '--to', {str(tmp_path)!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "strandline: Spark is not installed: in a clone of Strandline, pip install '.[spark]'\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topic", "a", "--to", "s3://bucket/lake"], "which s3:// is not"),
        (["--to", "lake"], "topics by name, or a pattern"),
        (["--topic", "_a", "--to", "lake"], "topic _a cannot go into a lake"),
    ],
)
def test_wrong_arguments_are_rejected_before_spark_starts(words: list[str], message: str) -> None:
    outcome = run("pipeline", "offload", *words)
    assert outcome.code == 2
    assert message in outcome.err


# -- any lake ---------------------------------------------------------------------------------------------------------


def entry(partition: int, first: int, last: int) -> DataFile:
    path = file_path("orders", partition, "2025-01-31", first, last)
    return DataFile(
        path=path, topic="orders", partition=partition, date="2025-01-31", first=first, last=last, count=1, bytes=9, crc32c=7
    )


def any_lake(seed: int) -> list[Manifest]:
    """Manifests with random files of three partitions."""
    rng, ends, manifests = random.Random(seed), dict.fromkeys(range(3), 0), list[Manifest]()
    for batch in range(rng.randint(2, 8)):
        files = []
        for partition in rng.sample(range(3), rng.randint(1, 3)):
            for _ in range(rng.randint(1, 3)):
                first = ends[partition] + rng.choice((0, 0, 3))
                files.append(entry(partition, first, first + rng.randint(0, 50)))
                ends[partition] = files[-1].last + 1
        rng.shuffle(files)
        manifests.append(following(manifests[-1] if manifests else None, "query", batch, files))
    return manifests


@given(st.integers(0, 2**32))
def test_join_restores_all_files_and_finds_a_lost_manifest(seed: int) -> None:
    manifests = any_lake(seed)
    read = [decode(f"{m.number:020}.json", encode(m)) for m in manifests]
    assert read == manifests
    files, ends = join(read)
    assert list(files) == sorted((f for m in manifests for f in m.files), key=lambda f: f.order)
    assert ends == manifests[-1].ends
    lost = seed % (len(read) - 1)
    rest = [m for m in read if m.number != lost]
    renumbered = [replace(m, number=n) for n, m in enumerate(rest)]
    for broken in (rest, renumbered):
        with pytest.raises(LakeDamaged):
            join(broken)
