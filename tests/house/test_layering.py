"""Each room imports only what its line in ARCHITECTURE.md allows. (`make layering` checks the same with import-linter.)"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "protocol": ("strandline.protocol",),
    "storage": ("strandline.protocol", "strandline.storage"),
    "controller": ("strandline.protocol", "strandline.storage", "strandline.controller"),
    # Of the controller, brokers may import only PUBLISHED_LANGUAGE.
    "broker": ("strandline.protocol", "strandline.storage", "strandline.controller.metadata", "strandline.broker"),
    "client": ("strandline.protocol", "strandline.client"),
}
PUBLISHED_LANGUAGE = ("strandline.protocol", "strandline.controller.metadata")
"""Brokers share `controller/metadata` with controllers, so it imports neither the storage nor the quorum."""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide which layer is meant"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {name for name in found if name.split(".")[0] == "strandline"}


def breaches(folder: str, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in sorted(imports(path))
        if not any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)
    ]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_room_imports_only_what_its_line_allows(folder: str) -> None:
    assert breaches(folder, MAY_IMPORT[folder]) == []


def test_controller_metadata_imports_only_the_protocol() -> None:
    assert breaches("controller/metadata", PUBLISHED_LANGUAGE) == []


@pytest.mark.parametrize("folder", ["protocol", "storage", "controller", "broker", "client"])
def test_cores_do_not_import_the_loop(folder: str) -> None:
    """A module whose docstring says that it is pure must not import asyncio."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstring = ast.get_docstring(tree) or ""
        if "Pure." in docstring:
            names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
            assert not names & {"asyncio", "uvloop", "socket", "time"}, path
