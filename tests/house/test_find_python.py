"""`make` uses an optimised Python if there is one, and `make bench` says how its Python was built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from compare import Results, report, turns  # noqa: E402
from python_build import describe, has_lto, has_pgo, this_python  # noqa: E402

PYENV = {"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": "-fprofile-use"}
DEBIAN = {"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": ""}
OFFICIAL = {**PYENV, "CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}


@pytest.mark.parametrize(
    ("variables", "pgo", "lto"), [(PYENV, False, False), (DEBIAN, True, False), (OFFICIAL, True, True), ({}, False, False)]
)
def test_build_of_a_python_is_recognised(variables: dict[str, str], pgo: bool, lto: bool) -> None:
    assert (has_pgo(variables), has_lto(variables)) == (pgo, lto)


def test_build_is_named_in_one_clause() -> None:
    assert describe("CPython 3.11.9", OFFICIAL) == "CPython 3.11.9, built with PGO and LTO"
    assert describe("CPython 3.11.2", DEBIAN) == "CPython 3.11.2, built with PGO"
    assert describe("CPython 3.11.7", PYENV).startswith("CPython 3.11.7, built without PGO and LTO")
    assert this_python().startswith(f"CPython {sys.version_info[0]}.{sys.version_info[1]}")


def test_benchmark_names_the_build_and_alternates_clusters() -> None:
    """The second cluster finds a warm page cache. In an even number of rounds each is first equally often."""
    assert report(Results(), "2 rounds").startswith(this_python())
    assert turns(["ours", "kafka"], 4) == [["ours", "kafka"], ["kafka", "ours"]] * 2  # type: ignore[list-item]


def found(*folders: Path) -> str:
    """Run the script with these folders as its PATH; returns its output."""
    tools = folders[0].parent / "tools"
    tools.mkdir(exist_ok=True)
    shutil.copy("/usr/bin/dirname", tools)
    path = os.pathsep.join(map(str, [*folders, tools]))
    words = [str(ROOT / ".ci" / "find-python")]
    return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True).stdout.strip()


def python(folder: Path, name: str, rank: str) -> Path:
    """Create a script that responds like a Python of this rank. An empty rank stands for a too old Python, which fails."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho {rank}\n" if rank else "#!/bin/sh\nexit 1\n")
    file.chmod(0o755)
    return file


def test_optimised_python_wins_over_a_newer_one_and_an_earlier_folder(tmp_path: Path) -> None:
    """A version manager's shims come first on the PATH, and its builds are seldom optimised."""
    shims, system = tmp_path / "shims with a blank", tmp_path / "system"
    for name in ("python3.13", "python3.11", "python3"):
        python(shims, name, "plain")
    assert found(shims, system) == str(shims / "python3.13")
    best = python(system, "python3.11", "optimised")
    assert found(shims, system) == str(best)


def test_python_without_venv_or_too_old_is_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    python(folder, "python3.13", "")
    assert found(folder) == ""
    usable = python(folder, "python3", "plain")
    assert found(folder) == str(usable)
