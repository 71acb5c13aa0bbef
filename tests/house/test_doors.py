"""All contact with the world goes through four doors: the loop's time, the loop's network, `storage/files.py`, and a
random source that is handed in. The simulation of later days, and with it every test from one seed, rests on this."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "storage", "controller", "broker", "client")

DOORS = {
    "protocol/doors.py": {"time.time_ns", "time.perf_counter", "secrets"},
    "protocol/rpc/resolver.py": {"threading"},
    "storage/files.py": None,
}
"""File -> what it alone may use (None: anything; it is the door to the disk)."""

FORBIDDEN = (
    "open", "io.open", "os.open", "os.read", "os.write", "os.pread", "os.pwrite", "os.fsync", "os.replace", "os.rename",
    "os.unlink", "os.remove", "os.urandom", "os.getrandom", "shutil.rmtree", "pathlib.Path.open",
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.sleep",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.now", "datetime.utcnow", "date.today",
    "random.random", "random.randint", "random.randrange", "random.choice", "random.choices", "random.shuffle", "random.sample",
    "random.uniform", "random.getrandbits", "random.randbytes", "random.seed", "secrets", "uuid.uuid1", "uuid.uuid4",
    "socket.socket", "socket.create_connection", "socket.create_server", "asyncio.open_connection", "asyncio.start_server",
    "threading", "multiprocessing", "concurrent.futures", "subprocess",
)  # fmt: skip


def sources() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every dotted name that the code uses or imports, with aliases resolved, and the line."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                yield node.lineno, f"{node.module}.{name.name}"
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and (dotted := _dotted(node)):
            first, dot, rest = dotted.partition(".")
            # A name that was not imported is a variable, and `random.choice` of a `Random` is as it should be.
            if first in aliases:
                yield node.lineno, aliases[first] + dot + rest
            elif dotted == "open":
                yield node.lineno, dotted


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := _dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def breaches(source: str, allowed: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    found = set()
    for line, name in uses(ast.parse(source)):
        for forbidden in FORBIDDEN:
            if (name == forbidden or name.startswith(forbidden + ".")) and name not in allowed and forbidden not in allowed:
                found.add((line, name))
    return [f"line {line}: {name}" for line, name in sorted(found)]


@pytest.mark.parametrize("path", sources())
def test_nothing_goes_past_the_doors(path: str) -> None:
    allowed = DOORS.get(path, set())
    if allowed is None:
        return
    source = (ROOT / path).read_text()
    assert breaches(source, allowed) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nt = time.time()",
        "from time import time\nt = time()",
        "import random as r\nr.choice([1])",
        "from uuid import uuid4\nuuid4()",
        "with open('x') as f: pass",
        "import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "import os\nos.urandom(4)",
        "import datetime\ndatetime.datetime.now()",
    ],
)
def test_the_lint_finds_each_way_past_a_door(source: str) -> None:
    assert breaches(source)


def test_the_lint_leaves_the_proper_ways_alone() -> None:
    source = (
        "from random import Random\ndef f(random: Random, loop):\n    random.random()\n    loop.time()\n    files.open('x')\n"
    )
    assert breaches(source) == []
