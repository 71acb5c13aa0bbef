"""No module imports itself through other modules, so each one is understood, and moved, without those that use it."""

from __future__ import annotations

import ast
import os
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "strandline"


def modules() -> dict[str, Path]:
    """The modules of the package by name. The rooms are links in its folder."""
    files = (Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names)
    return {name_of(file): file for file in files if file.suffix == ".py"}


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imports(file: Path, names: set[str]) -> set[str]:
    """The modules that a file imports, also those inside a function or `if TYPE_CHECKING`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            members = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {member if member in names else node.module for member in members}
    return found & names


def test_modules_import_each_other_without_a_circle() -> None:
    """Imports for type checkers count: a type that two modules share belongs in a third one."""
    files = modules()
    graph = {name: imports(file, set(files)) for name, file in files.items()}
    assert sum(map(len, graph.values())) > len(graph), "the imports were not found"
    TopologicalSorter(graph).prepare()  # A CycleError names the modules of a circle.
