"""aiokafka's tests with a broker, against Strandline. Tests have pytest's names: FILE::CLASS::TEST.

Its sdist has no tests, so they are here, in `aiokafka-0.14.0-tests.tar.xz`: those of the repository at that version, unchanged,
under its licence (Apache 2.0, in the archive).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from pytest_suites import one_broker, run_pytest  # noqa: E402
from suite import Results, main, work_folder  # noqa: E402

VERSION = "0.14.0"
SETTINGS = ("num.partitions=2", "group.initial.rebalance.delay.ms=0")


def results(tests: list[str]) -> Results:
    with work_folder("aiokafka") as folder:
        shutil.unpack_archive(HERE / f"aiokafka-{VERSION}-tests.tar.xz", folder)
        suite = folder / f"aiokafka-{VERSION}"
        shutil.copyfile(HERE / "conftest.py", suite / "tests" / "conftest.py")
        with one_broker(folder / "cluster", *SETTINGS) as cluster:
            return run_pytest(suite, tests or ["tests"], {"STRANDLINE_SUITE_CLUSTER": cluster}, seconds=1500)


if __name__ == "__main__":
    sys.exit(main(HERE, results))
