"""Claiming a data directory: it is checked before anything in it changes, and formatted once, completely or not at all."""

from __future__ import annotations

import errno
from random import Random

import pytest

from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import MetaProperties
from strandline.storage.directory.claim import Claim
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.disk import make_dirs_durably
from strandline.storage.memory.memory_files import MemoryFiles


def take(files: MemoryFiles, path: str = "data", **more: object) -> Claim:
    return Claim.take(files, path, **{"node_id": 1, **more})  # type: ignore[arg-type]


def meta_of(files: MemoryFiles, path: str = "data") -> MetaProperties:
    return MetaProperties.decode(files.read(f"{path}/meta.properties"), "m")


def test_a_fresh_directory_is_formatted_when_its_cluster_is_known() -> None:
    files = MemoryFiles()
    claim = take(files)
    assert (claim.meta, claim.cluster_id) == (None, None)
    assert files.list("data") == [".lock"], "nothing is written before the cluster is known"
    with pytest.raises(UsageError, match="in use"):
        take(files)
    LogDir.open_claimed(claim, cluster_id="c", random=Random(1)).close()
    meta = meta_of(files)
    assert (meta.cluster_id, meta.node_id) == ("c", 1)
    again = take(files)
    assert (again.meta, again.cluster_id) == (meta, "c")
    LogDir.open_claimed(again, cluster_id="c", random=Random(2)).close()
    assert meta_of(files) == meta, "never twice"


def test_a_released_claim_leaves_the_directory_fresh() -> None:
    files = MemoryFiles()
    take(files).release()
    assert take(files, node_id=2).meta is None


def test_the_directorys_cluster_id_comes_before_the_configured_one() -> None:
    files = MemoryFiles()
    LogDir.open(files, "data", node_id=1, cluster_id="c").close()
    assert take(files).cluster_id == "c"


def test_a_directory_without_a_cluster_keeps_its_directory_id() -> None:
    files = MemoryFiles()
    LogDir.open(files, "data", node_id=1, cluster_id=None).close()
    before = meta_of(files)
    claim = take(files)
    assert (claim.meta, claim.cluster_id) == (before, None)
    LogDir.open_claimed(claim, cluster_id="c").close()
    assert meta_of(files) == MetaProperties("c", 1, before.directory_id)


@pytest.mark.parametrize(
    ("made", "role", "refusal"),
    [
        (["orders-0"], None, "holds logs but no meta.properties"),
        (["orders-0"], "broker", "holds logs but no meta.properties"),
        (["orders-0"], "controller", r"is a broker's data directory \(it holds orders-0\); this is a controller"),
        (["__cluster_metadata-0"], "broker", "is a controller's data directory"),
        (["__cluster_metadata-0", "__cluster_metadata-0/00000000000000000000.log"], "controller", "holds logs but no meta"),
    ],
)
def test_data_without_meta_properties_is_refused_before_the_lock(made: list[str], role: str | None, refusal: str) -> None:
    files = MemoryFiles()
    for name in made:
        if name.endswith(".log"):
            files.write(f"data/{name}", b"x")
        else:
            files.make_dirs(f"data/{name}")
    before = files.list("data")
    with pytest.raises(UsageError, match=refusal):
        take(files, role=role)
    assert files.list("data") == before


@pytest.mark.parametrize("names", [["lost+found"], ["__cluster_metadata-0"], ["notes.txt"]])
def test_a_fresh_volume_may_hold_other_directories(names: list[str]) -> None:
    """These are directories of the file system, the empty one of an interrupted first start, and files."""
    files = MemoryFiles()
    for name in names:
        files.make_dirs(f"data/{name}")
    assert take(files, role="controller").meta is None


@pytest.mark.parametrize(
    ("operation", "number"),
    [("write", errno.ENOSPC), ("mkdir", errno.ENOSPC), ("write", errno.EROFS), ("mkdir", errno.EACCES)],
)
def test_a_disk_error_at_the_first_start_is_one_sentence_and_leaves_no_lock(operation: str, number: int) -> None:
    files = MemoryFiles()
    files.fail_next(operation, "*", number)
    with pytest.raises(UsageError, match="data directory data cannot be used: ") as e:
        LogDir.open(files, "data", node_id=1, cluster_id="c")
    assert ("runs as uid" in str(e.value)) is (number == errno.EACCES)
    assert not files.exists("data/meta.properties")
    LogDir.open(files, "data", node_id=1, cluster_id="c").close()


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_right_after_the_format_loses_nothing(seed: int) -> None:
    """Other nodes may already know the id, so it must survive, and so must the new directory itself."""
    files = MemoryFiles(Random(seed))
    LogDir.open_claimed(take(files, "volume/data"), cluster_id="c", random=Random(1))
    files.crash()
    assert meta_of(files, "volume/data").cluster_id == "c"


@pytest.mark.parametrize("seed", range(20))
def test_durably_made_directories_survive_a_power_cut(seed: int) -> None:
    files = MemoryFiles(Random(seed))
    make_dirs_durably(files, "a/b/c")
    make_dirs_durably(files, "a/b/d")
    files.crash()
    assert files.list("a/b") == ["c", "d"]
