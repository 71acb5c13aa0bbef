"""The list of observation points is what the simulator uses, and what the product has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.testing.simulation.observation.points import POINTS

ROOT = Path(__file__).parents[3]
SIMULATION = ROOT / "testing" / "simulation"
ROOMS = ("cluster", "invariants", "nemesis", "observation", "runs", "scenarios")
"""The rooms that look at the product. `kernel` is below it, and `story` and `campaign` look at traces and reports."""
NOT_OF_THE_PRODUCT = {"_exit", "_get_running_loop", "_install", "_links", "_replace", "_undo"}
"""Names of the simulator itself and of Python's library (`_install` is one of the product's as well, and is listed)."""
LISTED = {name for names in POINTS.values() for name in names}


def used() -> Iterator[tuple[str, str]]:
    """Where a private name of another object is used, and the name: `thing._name`, or "_name" and "module:Class._name"."""
    for room in ROOMS:
        for path in sorted((SIMULATION / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                name = ""
                if isinstance(node, ast.Attribute) and not (
                    isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                ):
                    name = node.attr
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found = re.fullmatch(r"(?:[\w.:]*\.)?(_[a-z]\w*)", node.value)
                    name = found[1] if found is not None else ""
                if re.match(r"_[a-z]", name):
                    yield f"{room}/{path.name}:{getattr(node, 'lineno', 0)}", name


def test_every_private_name_that_the_simulator_uses_is_listed() -> None:
    unlisted = {f"{where} {name}" for where, name in used() if name not in LISTED | NOT_OF_THE_PRODUCT}
    assert unlisted == set()


def test_every_listed_name_is_used() -> None:
    assert {name for _, name in used()} >= LISTED


@pytest.mark.parametrize("owner", POINTS)
def test_product_has_its_observation_points(owner: str) -> None:
    module, _, name = owner.partition(":")
    tree: ast.AST = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    if name:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    defined |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    defined |= {
        node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(POINTS[owner]) <= defined
