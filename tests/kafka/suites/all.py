"""Runs the suites one after the other: `make test-kafka`. With `--short`, the short forms of those that have one.

Names of suites as arguments choose among them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import suite  # noqa: E402


def names(short: bool) -> list[str]:
    found = sorted(file.parent.name for file in HERE.glob("*/run.py"))
    return [name for name in found if not short or suite.Expected.read(HERE / name / "expected.toml").short]


def main() -> int:
    parser = argparse.ArgumentParser(description="test suites of others against Strandline")
    parser.add_argument("suites", nargs="*")
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    started, failed = time.monotonic(), []
    for name in given.suites or names(given.short):
        command = [sys.executable, str(HERE / name / "run.py"), *(["--short"] if given.short else [])]
        if subprocess.run(command).returncode:
            failed.append(name)
    verdict = f"NOT as expected: {', '.join(failed)}" if failed else "all are as expected"
    print(f"the suites took {time.monotonic() - started:.0f} s; {verdict}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
