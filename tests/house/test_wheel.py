"""The wheel, which users install, contains every module of the package and nothing else."""

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
    """Build a wheel from a copy of the sources; returns the names in it."""
    folder = tmp_path_factory.mktemp("wheel")
    return set(zipfile.ZipFile(build("build_wheel", copy_sources(folder / "source"), folder / "wheel")).namelist())


def source_modules() -> dict[str, str]:
    """Map every module of the top-level folders to its name in the wheel, without the links, so that a missing link is found."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    modules = {}
    for path in tracked:
        for folder, package in FOLDERS.items():
            if path.startswith(folder + "/") and (ROOT / path).is_file():
                modules[path] = package + path.removeprefix(folder)
                break
    return modules


def test_the_wheel_has_every_module(wheel_names: set[str]) -> None:
    """A folder without `__init__.py` works in an editable install, but is missing from the wheel."""
    missing = {path for path, name in source_modules().items() if name not in wheel_names}
    assert not missing, (
        f"not in the wheel (a folder without __init__.py, or a room without a link in strandline/?): {sorted(missing)}"
    )


def test_the_wheel_has_nothing_else(wheel_names: set[str]) -> None:
    scenarios = {f"strandline/chaos/scenarios/{file.name}" for file in (ROOT / "deploy" / "chaos").glob("*.toml")}
    expected = {*source_modules().values(), "strandline/py.typed", TIMELINE, *scenarios}
    foreign = {n for n in wheel_names if ".dist-info/" not in n} - expected
    assert not foreign


def test_the_wheel_has_the_template_of_the_timeline(wheel_names: set[str]) -> None:
    assert TIMELINE in wheel_names


def test_the_wheel_is_marked_as_typed(wheel_names: set[str]) -> None:
    assert "strandline/py.typed" in wheel_names
