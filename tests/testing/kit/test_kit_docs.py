"""docs/testing.md is run as it stands: its examples pass, with its pytest.ini, and a failure looks as it shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import strandline.testing as public
from strandline.testing import Cluster
from strandline.testing.kit import conditions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "testing.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (ini,) = blocks("ini")
    (folder / "pytest.ini").write_text(ini)
    (folder / "test_page.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.page
@pytest.mark.processes
def test_every_example_of_the_page_passes(tmp_path: Path) -> None:
    examples = blocks("python")
    done = run(tmp_path, "\n\n".join(examples))
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(len(re.findall(r"^(?:async )?def test_", example, re.MULTILINE)) for example in examples)
    assert f"{tests} passed" in done.stdout
    assert tests > 25


def without_numbers(text: str) -> set[str]:
    """The lines of the text, without values that differ from run to run."""
    return {re.sub(r"seed \d+", "seed N", line) for line in text.splitlines()}


def test_a_failure_looks_as_the_page_shows_it(tmp_path: Path) -> None:
    (failing,), (shown,) = blocks("python fails"), blocks("text")
    done = run(tmp_path, f"from strandline.testing import leader\n\n{failing}")
    assert "1 failed" in done.stdout
    assert without_numbers(shown) - without_numbers(done.stdout) == set(), done.stdout


def test_every_call_and_every_condition_is_on_the_page() -> None:
    """A new call or condition must have an example on the page."""
    calls = {name for name in dir(Cluster) if not name.startswith("_")} - {"close", "nodes", "faults"}
    code = "\n".join(blocks("python"))
    assert {name for name in calls if f".{name}" not in code} == set()
    named = {name for name in public.__all__ if name in vars(conditions)} - {"Condition"}
    assert {name for name in named if f"{name}(" not in code} == set()
