"""Runs the suites one after the other: `make test-kafka`. With `--short`, the short forms of those that have one, two at a time.

Names of suites as arguments choose among them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import suite  # noqa: E402


def names(short: bool) -> list[str]:
    found = sorted(file.parent.name for file in HERE.glob("*/run.py"))
    return [name for name in found if not short or suite.Expected.read(HERE / name / "expected.toml").short]


def run(short: bool, name: str) -> bool:
    """Whether the suite ends as expected."""
    command = [sys.executable, str(HERE / name / "run.py"), *(["--short"] if short else [])]
    return subprocess.run(command).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="test suites of others against Strandline")
    parser.add_argument("suites", nargs="*")
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    started, chosen = time.monotonic(), given.suites or names(given.short)
    # The tests of the short forms wait most of the time. Long forms have tests that need both cores.
    with ThreadPoolExecutor(2 if given.short else 1) as pool:
        passed = list(pool.map(partial(run, given.short), chosen))
    failed = [name for name, good in zip(chosen, passed, strict=True) if not good]
    verdict = f"NOT as expected: {', '.join(failed)}" if failed else "all are as expected"
    print(f"the suites took {time.monotonic() - started:.0f} s; {verdict}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
