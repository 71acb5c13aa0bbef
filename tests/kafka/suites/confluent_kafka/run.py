"""The integration tests of confluent-kafka, the Python client on librdkafka, with the version that is installed.

Its sdist has no tests, so they are here, in `confluent-kafka-2.15.0-tests.tar.xz`: those of the repository at that version that
need brokers and no schema registry, unchanged, under its licence (Apache 2.0, in the archive). Each test runs with the classic
protocol of groups and again with the new one.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import pytest_suites  # noqa: E402
import suite  # noqa: E402

VERSION = "2.15.0"
PROTOCOLS = ("classic", "consumer")
SETTINGS = {
    "http.listener": "",
    "group.initial.rebalance.delay.ms": 0,
    "min.insync.replicas": 1,
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def run(tests: list[str]) -> suite.Results:
    results: dict[str, tuple[str, str]] = {}
    with suite.work_folder("confluent-kafka") as folder, suite.cluster(folder / "cluster", settings=SETTINGS) as cluster:
        for protocol in PROTOCOLS:
            wanted = [test.partition(", ")[0] for test in tests if test.endswith(f", {protocol}")]
            if not tests or wanted:
                ended = run_with(folder / protocol, wanted, protocol, cluster.bootstrap)
                results |= {f"{test}, {protocol}": value for test, value in ended.items()}
        return results | cluster.result()


def run_with(folder: Path, tests: list[str], protocol: str, bootstrap: str) -> dict[str, tuple[str, str]]:
    folder.mkdir()
    shutil.unpack_archive(HERE / f"confluent-kafka-{VERSION}-tests.tar.xz", folder)
    tests_folder = folder / f"confluent-kafka-python-{VERSION}"
    shutil.copyfile(HERE / "conftest.py", tests_folder / "conftest.py")
    environment = {"BROKERS": bootstrap, "TEST_CONSUMER_GROUP_PROTOCOL": protocol, "STRANDLINE_SUITES": str(HERE.parent)}
    return dict(pytest_suites.run_pytest(tests_folder, tests or ["tests/integration"], environment, seconds=300))


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run))
