"""The wheel is what users get: it holds every module of ours, and nothing else."""

from __future__ import annotations

import subprocess
import zipfile

import pytest
from installed import ROOT, build, copy_sources

TIMELINE = "strandline/testing/simulation/story/timeline.html"
FOLDERS = {
    "pipeline/pyspark_strandline": "pyspark_strandline",
    "pipeline/pyspark_strandline_segments": "pyspark_strandline_segments",
    "strandline": "strandline",
    **{room: f"strandline/{room}" for room in ("broker", "client", "controller", "pipeline", "protocol", "storage", "testing")},
}
"""Folder -> where it lies in the wheel."""


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel that is built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    return set(zipfile.ZipFile(build("build_wheel", copy_sources(folder / "source"), folder / "wheel")).namelist())


def source_modules() -> dict[str, str]:
    """Every module of the top-level folders -> its name in the wheel. It does not go by the links: a missing one shows."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    modules = {}
    for path in tracked:
        for folder, package in FOLDERS.items():
            if path.startswith(folder + "/") and (ROOT / path).is_file():
                modules[path] = package + path.removeprefix(folder)
                break
    return modules


def test_the_wheel_holds_every_module(wheel_names: set[str]) -> None:
    """A folder without an `__init__.py` works in an editable install and is absent for every user."""
    missing = {path for path, name in source_modules().items() if name not in wheel_names}
    assert not missing, (
        f"not in the wheel (a folder without __init__.py, or a room without a link in strandline/?): {sorted(missing)}"
    )


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    scenarios = {f"strandline/chaos/scenarios/{file.name}" for file in (ROOT / "deploy" / "chaos").glob("*.toml")}
    expected = {*source_modules().values(), "strandline/py.typed", TIMELINE, *scenarios}
    foreign = {n for n in wheel_names if ".dist-info/" not in n} - expected
    assert not foreign


def test_the_wheel_holds_the_page_that_the_timeline_fills(wheel_names: set[str]) -> None:
    assert TIMELINE in wheel_names


def test_the_wheel_says_that_it_is_typed(wheel_names: set[str]) -> None:
    assert "strandline/py.typed" in wheel_names
