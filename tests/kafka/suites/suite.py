"""The common part of the suites of other projects: a cluster, the list of what is expected, and the verdict.

Each folder here holds a suite: `run.py`, which runs it, and `expected.toml`:

    passes = ["test", ...]      these must pass; the list only grows
    short = ["test", ...]       those of them that the short form runs

    [failures]
    "test" = "why it fails, in a line"

`run.py` calls `main`. Its arguments: names of tests (or what the suite takes instead), or `--short`. `--record` adds new
passes to the list. If a test fails that is in neither list, the suite fails: a developer must find out whose fault it is.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strandline.local_cluster import LocalCluster, Node

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "strandline-kafka-suites"
"""Downloads and builds are kept here for the next run."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class CannotDownload(Exception):
    """A package registry does not answer, or does not have the package."""


Results = Mapping[str, tuple[str, str]]
"""Test -> how it ended, and why."""

ERRORS = "Strandline: no broker logs an error"
"""Our own test in each suite whose cluster is one of `cluster`."""


# -- what is expected


@dataclass(slots=True)
class Expected:
    passes: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Expected:
        expected = cls(**tomllib.loads(file.read_text())) if file.exists() else cls()
        both = set(expected.passes) & set(expected.failures)
        assert not both, f"{file}: {sorted(both)} are both passes and failures"
        return expected

    def write(self, file: Path) -> None:
        """Write the lists. Comments at the top of the file are kept."""
        old = file.read_text().splitlines() if file.exists() else []
        comments = list(itertools.takewhile(lambda line: line.startswith("#"), old))
        lines = [*comments, *_array("passes", sorted(self.passes)), "", *_array("short", self.short), "", "[failures]"]
        lines += [f"{_quoted(test)} = {_quoted(why)}" for test, why in sorted(self.failures.items())]
        file.write_text("\n".join(lines) + "\n")


def _array(name: str, items: Sequence[str]) -> list[str]:
    return [f"{name} = [", *(f"    {_quoted(item)}," for item in items), "]"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# -- the verdict


@dataclass(slots=True)
class Verdict:
    broken: dict[str, str]
    """Tests that were expected to pass and did not: test -> what happened."""
    unexplained: dict[str, str]
    """Tests that failed and are in neither list: test -> why."""
    new: list[str]
    """Tests that passed and are in neither list."""
    mended: list[str]
    """Tests that passed and are in the list of failures: remove them there if they always pass."""
    counts: dict[str, int]

    @property
    def good(self) -> bool:
        return not self.broken and not self.unexplained


def judge(expected: Expected, results: Results, chosen: Sequence[str] | None) -> Verdict:
    """Compare results with what is expected. `chosen`: the tests that had to run; None for all."""
    passed = {test for test, (end, _) in results.items() if end == PASSED}
    failed = {test: why for test, (end, why) in results.items() if end == FAILED}
    due = [test for test in expected.passes if chosen is None or test in chosen]
    return Verdict(
        broken={test: ": ".join(results.get(test, ("did not run", ""))) for test in due if test not in passed},
        unexplained={t: why for t, why in failed.items() if t not in expected.failures and t not in expected.passes},
        new=sorted(passed - set(expected.passes) - set(expected.failures)),
        mended=sorted(passed & set(expected.failures)),
        counts={kind: sum(end == kind for end, _ in results.values()) for kind in (PASSED, FAILED, SKIPPED)},
    )


def report(name: str, verdict: Verdict, seconds: float) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in verdict.counts.items() if count)
    lines = [f"{name}: {counts or 'nothing ran'} in {seconds:.0f} s"]
    lines += [f"  BROKEN {test}: {why}" for test, why in sorted(verdict.broken.items())]
    lines += [f"  FAILED, and nobody said why: {test}: {why}" for test, why in sorted(verdict.unexplained.items())]
    lines += [f"  passes and is not in the list: {test}" for test in verdict.new]
    lines += [f"  passes, and is in the list of failures: {test}" for test in verdict.mended]
    return "\n".join(lines)


def main(
    folder: Path,
    run: Callable[[list[str]], Results],
    arguments: Sequence[str] | None = None,
    *,
    missing: str | None = None,
    requirement: str = "",
) -> int:
    """Run a suite and judge it; returns the exit code. `run` gets the tests to run; an empty list means all.

    `missing`: why this machine cannot run the suite. It is then left out, which is a failure if the environment variable
    `requirement` is set.
    """
    parser = argparse.ArgumentParser(description=f"the suite {folder.name} against Strandline")
    parser.add_argument("tests", nargs="*", help="run only these")
    parser.add_argument("--short", action="store_true", help="run only the most telling ones")
    parser.add_argument("--record", action="store_true", help="add what passes to expected.toml")
    parser.add_argument("--all", action="store_true", help="print how each test ended")
    given = parser.parse_args(arguments)
    if missing:
        print(f"{folder.name}: left out, because {missing}")
        return int(bool(requirement and os.environ.get(requirement)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # The cluster must end with this process.
    expected = Expected.read(folder / "expected.toml")
    chosen = given.tests or (expected.short if given.short else None)
    started = time.monotonic()
    try:
        results = run(list(chosen or []))
    except CannotDownload as e:
        print(f"{folder.name}: left out, because it cannot be downloaded: {e}")
        return int(bool(os.environ.get("STRANDLINE_REQUIRE_SUITES")))
    verdict = judge(expected, results, chosen)
    if given.all:
        print("\n".join(f"{end:8}{test}  {why}" for test, (end, why) in sorted(results.items())))
    print(report(folder.name, verdict, time.monotonic() - started), flush=True)
    if given.record:
        expected.passes += verdict.new
        expected.write(folder / "expected.toml")
    return int(not verdict.good)


# -- the cluster


@dataclass(slots=True)
class Running:
    """A running cluster. `bootstrap` is for Kafka's clients."""

    nodes: LocalCluster
    bootstrap: str

    def errors(self) -> list[str]:
        """The errors that the nodes have logged, and the nodes that have ended."""
        lines = [line for node in self.nodes.nodes.values() for line in _error_lines(node.log_file)]
        return lines + [f"{node.name} has ended" for node in self.nodes.nodes.values() if not node.running]

    def result(self) -> dict[str, tuple[str, str]]:
        """The result of our own test (`ERRORS`)."""
        errors = self.errors()
        return {ERRORS: (FAILED, f"{len(errors)}, such as {errors[0][:1500]}") if errors else (PASSED, "")}


def _error_lines(log: Path) -> list[str]:
    with log.open() as lines:
        return [line.strip() for line in lines if _is_error(line)]


def _is_error(line: str) -> bool:
    """Whether a line is an error. One that is no JSON is: the interpreter has written it, not the logger."""
    try:
        return bool(json.loads(line).get("level") == "error")
    except ValueError:
        return True


class FromZero(LocalCluster):
    """A cluster whose brokers have the ids 0, 1, ..., as in most of the Kafka clusters for which tests are written."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        for i, node in enumerate(self.brokers):
            node.id = i

    def broker(self, broker_id: int) -> Node:
        return self.brokers[broker_id]


@contextmanager
def cluster(
    folder: Path, *, brokers: int = 3, controllers: int = 1, base_port: int = 0, settings: Mapping[str, Any] | None = None
) -> Iterator[Running]:
    """Run a cluster with listeners for Kafka's clients. `settings` are configuration keys."""
    nodes = FromZero(folder, brokers=brokers, controllers=controllers, base_port=base_port, settings=settings, kafka=True)
    with running(nodes) as cluster:
        yield cluster


@contextmanager
def running(nodes: LocalCluster) -> Iterator[Running]:
    """Start a cluster, and stop it at the end. Its event loop runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cluster", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(nodes.start(), loop).result(60)
        try:
            yield Running(nodes, nodes.kafka_bootstrap)
        finally:
            asyncio.run_coroutine_threadsafe(nodes.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def work_folder(name: str) -> Iterator[Path]:
    """A folder for a run. It is kept if STRANDLINE_KEEP is in the environment."""
    folder = Path(tempfile.mkdtemp(prefix=f"strandline-{name}-"))
    try:
        yield folder
    finally:
        if os.environ.get("STRANDLINE_KEEP"):
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


# -- processes


def fetch(command: Sequence[str], **options: Any) -> str:
    """Run a client of a package registry; returns its output. Raises CannotDownload if it fails."""
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout
    except (subprocess.CalledProcessError, OSError) as e:
        raise CannotDownload(str(e)) from None


def run_process(
    command: Sequence[str], *, log: Path, seconds: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> int | None:
    """Run a program in its own session, with its output in `log`; returns the exit code, or None if it was killed after
    `seconds`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


@contextmanager
def in_cache(name: str) -> Iterator[Path]:
    """A path in the cache, for one suite at a time. Suites run side by side, and two may need the same download or build."""
    folder = CACHE / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Released when the file is closed, also if the process is killed.
        yield folder


def downloaded(name: str, command: Sequence[str], pattern: str) -> Path:
    """A file of a package registry. `command`, a client of the registry, downloads it once into a folder of the cache."""
    with in_cache(name) as folder:
        if not list(folder.glob(pattern)):
            folder.mkdir(parents=True, exist_ok=True)
            fetch([part.replace("{folder}", str(folder)) for part in command])
    return next(iter(sorted(folder.glob(pattern))))


def sdist(name: str, version: str) -> Path:
    """The source distribution of a package on PyPI."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name, "--dest", "{folder}"]
    return downloaded("sdists", [*command, f"{name}=={version}"], f"{name.replace('-', '_')}-{version}.tar.gz")
