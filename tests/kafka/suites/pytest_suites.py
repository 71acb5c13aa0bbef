"""Runs another project's test suite with pytest, in its own folder and process, against a cluster of one broker."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from suite import FAILED, PASSED, SKIPPED, Results, run_process

HERE = Path(__file__).parent


@contextmanager
def one_broker(folder: Path, *settings: str) -> Iterator[str]:
    """Run the cluster of `one_broker.py` in its own process; yields the line that it prints when it is ready."""
    command = [sys.executable, str(HERE / "one_broker.py"), str(folder), *settings]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the cluster did not start")
            yield line.strip()
        finally:
            process.stdin.close()
            process.wait(60)


def run_pytest(folder: Path, tests: list[str], environment: Mapping[str, str], seconds: float) -> Results:
    """Run tests; returns how each one ended. `tests` are files or tests in `folder`, by pytest's names."""
    report, log = folder / "report.xml", folder / "output.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    # Native tracebacks, because Python 3.11 cannot always parse the source that pytest's own ones show.
    command += ["--tb=native", "--timeout", "90", "-W", "ignore", "-o", "junit_family=xunit1", "--junitxml", str(report)]
    if run_process([*command, *tests], log=log, seconds=seconds, cwd=folder, env=environment) is None or not report.exists():
        last = log.read_text(errors="replace")[-2000:]
        return {"the suite ends": (FAILED, f"not within {seconds:g} s, or it broke: {last}")}
    return dict(_ended(case) for case in ElementTree.parse(report).iter("testcase"))


def _ended(case: ElementTree.Element) -> tuple[str, tuple[str, str]]:
    """The name of the test, and how it ended. `classname` begins with the module of the test."""
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    owner = case.get("classname", "").removeprefix(module).removeprefix(".")
    name = "::".join(part for part in (file, owner, case.get("name", "")) if part)
    for kind in case:
        if kind.tag in ("failure", "error"):
            return name, (FAILED, (kind.get("message") or "?").strip()[:300])
        if kind.tag == "skipped":
            return name, (SKIPPED, kind.get("message") or "")
    return name, (PASSED, "")
