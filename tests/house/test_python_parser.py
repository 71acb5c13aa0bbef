"""The tests' `ast.parse` works beside other parses. Python 3.11's own does not (gh-106905)."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).read_text()


@pytest.fixture
def parse_in_each_collection() -> Iterator[None]:
    """Begin a second parse, deeper in the stack, whenever garbage is collected. Collect all the time."""

    def parse(phase: str, info: dict[str, Any]) -> None:
        (lambda: ast.parse("x"))()  # One frame deeper than the first parse is enough.

    threshold = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(1)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(parse)


@pytest.mark.usefixtures("parse_in_each_collection")
def test_collection_does_not_disturb_a_parse() -> None:
    """It failed a whole run: Hypothesis read the source of its test while another thread logged a traceback."""
    assert isinstance(ast.parse(SOURCE), ast.Module)
