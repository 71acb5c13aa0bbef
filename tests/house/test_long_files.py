"""The list of test files that start first."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_files import LONG_FILES

TESTS = Path(__file__).parents[1]


def test_long_files_exist() -> None:
    """A file that was renamed would start late again, and nothing else would show it."""
    assert [name for name in LONG_FILES if not (TESTS / name).is_file()] == []


def test_long_files_come_first(request: pytest.FixtureRequest) -> None:
    """Also when xdist distributes the files: it keeps the order of the collection (`--no-loadscope-reorder` in the Makefile)."""
    files = list(dict.fromkeys(item.path.relative_to(TESTS).as_posix() for item in request.session.items))
    found = [name for name in LONG_FILES if name in files]
    assert files[: len(found)] == found
    assert "--no-loadscope-reorder" in (TESTS.parent / "Makefile").read_text().split("\npytest:")[1].split("\n\n")[0]
