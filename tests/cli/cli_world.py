"""Helpers to run the command line in tests."""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import warm

from strandline.local_cluster import free_port_range

COMMAND = [str(Path(sys.executable).with_name("strandline"))]
NOT_A_USERS = ("COLUMNS", "PYTHONUNBUFFERED")
"""Variables of build machines that change the output. Unbuffered, Python loses what a terminal does not take at once."""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("STRANDLINE_") and k not in NOT_A_USERS}
ENVIRONMENT["STRANDLINE_HTTP_LISTENER"] = "127.0.0.1:0"
"""A free port, so that nodes that tests start without `strandline up` do not all use the default port."""
ENVIRONMENT["XDG_CONFIG_HOME"] = os.devnull
"""Hides the contexts of the person who runs the tests."""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Strandline = Callable[..., Outcome]


def run(
    *arguments: str,
    stdin: str = "",
    env: dict[str, str] | None = None,
    timeout_s: float = 30,
    server: warm.Server | None = None,
) -> Outcome:
    """Run `strandline ARGUMENTS...` as a user would, in a fork of `server` (default: `forks()`). A traceback in the output fails
    the test."""
    environment, given = ENVIRONMENT | (env or {}), stdin.encode()
    server = server or forks()
    if server.can_run(environment):
        code, out, err = warm.Command(server, arguments, environment).communicate(given, timeout_s)
    else:
        done = subprocess.run(
            [*COMMAND, *arguments], input=given, capture_output=True, env=environment, timeout=timeout_s, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    outcome = Outcome(code, text(out), text(err))
    assert "Traceback" not in outcome.err, outcome.err
    return outcome


@functools.cache
def forks() -> warm.Server:
    """The server of this test process."""
    server = warm.Server(ENVIRONMENT)
    atexit.register(server.stop)
    return server


def text(output: bytes) -> str:
    """The output as `subprocess` decodes it."""
    return io.TextIOWrapper(io.BytesIO(output), encoding="utf-8").read()


def one_sentence(outcome: Outcome) -> str:
    """Return the error message: one line on stderr, and nothing on stdout. A node writes it as JSON, for log collectors."""
    assert outcome.out == ""
    (line,) = outcome.err.strip().splitlines()
    return str(json.loads(line)["reason"]) if line.startswith("{") else line


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.02)


class Up(NamedTuple):
    """A running `strandline up --json` whose cluster is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    folder: Path
    events: Callable[[], list[dict[str, Any]]]
    """Everything it printed so far."""

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])


@contextmanager
def start_up(folder: Path, *arguments: str, base_port: str = "", env: dict[str, str] | None = None) -> Iterator[Up]:
    """`strandline up --json --data FOLDER/data ARGUMENTS...`, running from its readiness to the end of the block."""
    words = ["up", "--json", "--data", str(folder / "data"), "--base-port", base_port or str(free_port_range(15)), *arguments]
    output, errors = folder / "up.jsonl", folder / "up.err"
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen([*COMMAND, *words], stdout=out, stderr=err, text=True, env=ENVIRONMENT | (env or {}))
    try:

        def events() -> list[dict[str, Any]]:
            return [json.loads(line) for line in output.read_text().splitlines()]

        def is_ready() -> bool:
            assert process.poll() is None, errors.read_text()
            return any(e["event"] == "ready" for e in events())

        wait_until(is_ready, "the cluster is ready")
        yield Up(process, next(e for e in events() if e["event"] == "ready"), folder / "data", events)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
