"""How the tests call the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = [str(Path(sys.executable).with_name("strandline"))]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("STRANDLINE_")}
ENVIRONMENT["STRANDLINE_HTTP_LISTENER"] = "127.0.0.1:0"
"""Nodes that a test starts by themselves do not fight for the default port."""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Strandline = Callable[..., Outcome]


def run(*arguments: str, stdin: str = "", env: dict[str, str] | None = None, timeout_s: float = 30) -> Outcome:
    """`strandline ARGUMENTS...` as a user would call it. A traceback is never an answer."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=ENVIRONMENT | (env or {}),
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def one_sentence(outcome: Outcome) -> str:
    """The complaint, which has to be a single line on stderr with nothing on stdout. A node writes it as JSON: a log
    collector reads it."""
    assert outcome.out == ""
    (line,) = outcome.err.strip().splitlines()
    return str(json.loads(line)["reason"]) if line.startswith("{") else line


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.02)


class Up(NamedTuple):
    """A `strandline up --json` that is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    folder: Path
    events: Callable[[], list[dict[str, Any]]]
    """Everything it printed so far."""

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])
