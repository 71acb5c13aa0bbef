"""Runs the Docker engine's command line, so that a reader can repeat each command by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
BUILD_MAX_S = 600
REVISION = "0123456789abcdef0123456789abcdef01234567"
"""The source revision in the labels of the test image."""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("STRANDLINE_")}


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*words: str, check: bool = True, timeout_s: float = 60, stdin: str = "", env: Mapping[str, str] | None = None) -> Done:
    """Run a command to its end; `check` expects exit code 0."""
    environment = dict(ENVIRONMENT) if env is None else dict(env)
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment, cwd=ROOT, check=False
    )
    assert not check or done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return Done(done.returncode, done.stdout, done.stderr)


def docker(*words: str, check: bool = True, timeout_s: float = 60, stdin: str = "") -> str:
    """Run `docker ...` and return its output."""
    return run("docker", *words, check=check, timeout_s=timeout_s, stdin=stdin).out.strip()


def inspect(name: str) -> dict[str, Any]:
    """Return the engine's description of an image, a container, a volume or a network."""
    (facts,) = json.loads(docker("inspect", name))
    return dict(facts)


def compose_command() -> Sequence[str]:
    """Return the words of docker-compose or of Compose v2, whichever exists."""
    return ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]


def what_is_missing() -> str | None:
    """Return the reason why no test can run on this machine; empty if they can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    answer = run("docker", "info", "--format", "{{.ServerVersion}}", check=False)
    if answer.code != 0:
        return f"no Docker engine answers: {answer.err.strip().splitlines()[-1] if answer.err.strip() else answer.out.strip()}"
    if run(*compose_command(), "version", check=False).code != 0:
        return "there is neither docker-compose nor `docker compose`"
    return None


def require_engine() -> None:
    """Skip the test without an engine; with STRANDLINE_REQUIRE_DOCKER=1 fail it."""
    reason = what_is_missing()
    if reason is None:
        return
    if os.environ.get("STRANDLINE_REQUIRE_DOCKER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def wait_until(condition: Callable[[], bool], what: Callable[[], str] | str, timeout_s: float = 30) -> float:
    """Wait for a condition; returns the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            pytest.fail(f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.1)
    return time.monotonic() - began


def log_lines(text: str) -> list[dict[str, Any]]:
    """Return the lines of a node's log, each of which must be a JSON object."""
    return [json.loads(line) for line in text.splitlines()]
