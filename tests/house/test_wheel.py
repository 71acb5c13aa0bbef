"""The wheel is what users get: it holds every module of ours, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMELINE = "strandline/testing/simulation/timeline.html"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel that is built from a copy of the sources: no left-over of an earlier build can help."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def source_modules() -> dict[str, str]:
    """Every module under the mapped folders -> its name in the wheel."""
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    modules = {}
    for package, folder in folders.items():
        for path in tracked:
            if path.startswith(folder + "/") and (ROOT / path).is_file():
                modules[path] = package.replace(".", "/") + path.removeprefix(folder)
    return modules


def test_the_wheel_holds_every_module(wheel_names: set[str]) -> None:
    """A sub-package that is missing from pyproject.toml works in an editable install and is absent for every user."""
    missing = {path for path, name in source_modules().items() if name not in wheel_names}
    assert not missing, f"not in the wheel (pyproject.toml, [tool.setuptools] packages): {sorted(missing)}"


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    expected = {*source_modules().values(), "strandline/py.typed", TIMELINE}
    foreign = {n for n in wheel_names if ".dist-info/" not in n} - expected
    assert not foreign


def test_the_wheel_holds_the_page_that_the_timeline_fills(wheel_names: set[str]) -> None:
    assert TIMELINE in wheel_names


def test_the_wheel_says_that_it_is_typed(wheel_names: set[str]) -> None:
    assert "strandline/py.typed" in wheel_names
