"""Tests in Go: modules of the Go module proxy, built once, run, and what they print."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from suite import CACHE, FAILED, PASSED, SKIPPED, run_process

REQUIREMENT = "STRANDLINE_REQUIRE_GO"
GO_MIN = (1, 26)

ENDED = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(")
BEGUN = re.compile(r"^=== (RUN|CONT|NAME) +(\S+)")
SAID = re.compile(r"^ +(\S+_test\.go:\d+: .*)")
ENDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


def find_go() -> str | None:
    """The `go` of this machine, if it is new enough."""
    for found in (shutil.which("go"), "/usr/local/go/bin/go"):
        if found and Path(found).exists() and _version(found) >= GO_MIN:
            return found
    return None


def _version(go: str) -> tuple[int, ...]:
    text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=_environment()).stdout
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def what_lacks() -> str | None:
    return None if find_go() else f"there is no Go {'.'.join(map(str, GO_MIN))}"


def _environment() -> dict[str, str]:
    """Go must not download another Go."""
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"}


def module(name: str, version: str) -> Path:
    """The folder of a module, which Go downloads once. It is read-only."""
    go = find_go()
    assert go
    command = [go, "mod", "download", "-json", f"{name}@{version}"]
    folder = CACHE / "go"
    folder.mkdir(parents=True, exist_ok=True)
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_environment(), cwd=folder).stdout
    return Path(json.loads(text)["Dir"])


def build_tests(folder: Path, package: str, program: str, *, again: bool = False) -> Path:
    """The program with the tests of a package, which is built once, or `again` (Go has a cache of its own)."""
    go, built = find_go(), CACHE / "go" / program
    assert go
    if again or not built.exists():
        command = [go, "test", "-c", "-o", str(built), package]
        subprocess.run(command, check=True, cwd=folder, env={**_environment(), "GOFLAGS": "-mod=mod" if again else ""})
    return built


def run_tests(
    program: Path, tests: list[str], environment: Mapping[str, str], *, log: Path, seconds: int, parallel: int = 4
) -> dict[str, tuple[str, str]]:
    """Test -> how it ended, and why. Sub-tests are tests, too."""
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
