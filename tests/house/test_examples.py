"""The examples connect to the cluster in STRANDLINE_BOOTSTRAP, as the `strandline` command does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "STRANDLINE_BOOTSTRAP"
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
ADDRESS = re.compile(r"[\w.-]+:\d{4,5}(,[\w.-]+:\d{4,5})*")


def fixed_addresses(text: str) -> list[int]:
    """Return the lines with an address that the environment cannot replace."""
    tree = ast.parse(text)
    replaceable = {id(default) for call in ast.walk(tree) for default in _defaults(call)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.lineno for node in strings if ADDRESS.fullmatch(str(node.value)) and id(node) not in replaceable]


def _defaults(node: ast.AST) -> list[ast.expr]:
    """Return the defaults in `os.environ.get("STRANDLINE_BOOTSTRAP", default)`."""
    if isinstance(node, ast.Call) and len(node.args) == 2 and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
        name, default = node.args
        return [default] if isinstance(name, ast.Constant) and name.value == VARIABLE else []
    return []


@pytest.mark.parametrize("path", PROGRAMS, ids=[str(path.relative_to(ROOT)) for path in PROGRAMS])
def test_examples_take_their_servers_from_the_environment(path: Path) -> None:
    """A program that ignores STRANDLINE_BOOTSTRAP and connects to 127.0.0.1:9092 finds another cluster, or none."""
    assert not fixed_addresses(path.read_text())


def test_a_notebook_has_no_fixed_address() -> None:
    for path in (ROOT / "examples").rglob("*.ipynb"):
        assert not re.search(r"[\"']" + ADDRESS.pattern + r"\\?[\"']", path.read_text()), path.name


def test_a_fixed_address_is_found() -> None:
    assert fixed_addresses('servers = "127.0.0.1:9092"\nfallback = os.environ.get("OTHER", "one:9092,two:9092")') == [1, 2]
    assert fixed_addresses('servers = os.environ.get("STRANDLINE_BOOTSTRAP", "127.0.0.1:9092")') == []
