"""kafka-python's integration tests, from its sdist, against Strandline. Tests have pytest's names: FILE::TEST."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from pytest_suites import one_broker, run_pytest  # noqa: E402
from suite import Results, main, sdist, work_folder  # noqa: E402

VERSION = "3.0.12"
SETTINGS = ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000", "num.partitions=4")


def results(tests: list[str]) -> Results:
    with work_folder("kafka-python") as folder:
        shutil.unpack_archive(sdist("kafka-python", VERSION), folder)
        suite = folder / f"kafka_python-{VERSION}"
        # The sdist has it as a namespace, which Python's own package of this name would hide.
        (suite / "test" / "__init__.py").touch()
        shutil.copyfile(HERE / "fixtures.py", suite / "test" / "integration" / "fixtures.py")
        with one_broker(folder / "cluster", *SETTINGS) as cluster:
            environment = {"STRANDLINE_SUITE_CLUSTER": cluster, "KAFKA_VERSION": "4.3", "PYTHONPATH": str(suite)}
            return run_pytest(suite, tests or ["test/integration"], environment, seconds=1200)


if __name__ == "__main__":
    sys.exit(main(HERE, results))
