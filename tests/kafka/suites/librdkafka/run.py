"""librdkafka's own tests in C and C++, those that need a broker, with the classic protocol of groups."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import librdkafka_tests as tests  # noqa: E402
import suite  # noqa: E402

SECONDS = 720
"""A test that has not begun after this time is skipped."""


def run(chosen: list[str]) -> suite.Results:
    source = tests.built()
    known = [(name, scenario) for name, scenario in tests.tests_with_brokers(source) if not chosen or name in chosen]
    return tests.run_scenarios(source, known, seconds=SECONDS)


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run, missing=tests.what_lacks(), requirement=tests.REQUIREMENT))
