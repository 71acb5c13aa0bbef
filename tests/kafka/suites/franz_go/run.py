"""The tests of franz-go's client, kgo, that connect to brokers. Go's module proxy has them with the module.

(The tests of kadm use no broker, and those of kfake only kfake. Those that were ported from Kafka's own tests are in
`../kfake_kafka_tests`.)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import golang  # noqa: E402
import suite  # noqa: E402

MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.3"
SETTINGS = {"http.listener": "", "group.initial.rebalance.delay.ms": 0, "group.consumer.heartbeat.interval.ms": 1000}
"""The heartbeat interval is the one that the suite gives kfake. Kafka's default is 5 s, and a rebalance takes many of them."""

ETL = ["TestGroupETL", "TestTxnEtl"]
"""These tests chain consumers in groups, each with another assignor and protocol, which die and return. They run alone."""
RECORDS = {False: 60_000, True: 10_000}
"""The number of records that each of `ETL` produces; True: in the short form. (franz-go's own runs produce 500,000.)"""

SPEAKS = re.compile(r"newTestClient|getSeedBrokers|tmpTopic|testClientOpts|\badm\(\)")


def tests_with_brokers(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("*_test.go")):
        for function in file.read_text().split("\nfunc ")[1:]:
            if function.startswith("Test") and SPEAKS.search(function):
                yield function.partition("(")[0]


def run(tests: list[str]) -> suite.Results:
    module = golang.module(MODULE, VERSION)
    program = golang.build_tests(module, "./pkg/kgo", f"kgo-{VERSION}.test")
    chosen = {test.partition("/")[0] for test in tests} or set(tests_with_brokers(module / "pkg/kgo"))
    results: dict[str, tuple[str, str]] = {}
    with suite.work_folder("franz-go") as folder, suite.cluster(folder / "cluster", settings=SETTINGS) as cluster:
        environment = {"KGO_SEEDS": cluster.bootstrap, "KGO_LOG_LEVEL": "none", "KGO_TEST_RECORDS": str(RECORDS[bool(tests)])}
        for names in (sorted(chosen - set(ETL)), *([test] for test in ETL if test in chosen)):
            if names:
                log = folder / f"{names[0]}.log"
                results |= golang.run_tests(program, names, environment, log=log, seconds=240)
        return results | cluster.result()


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run))
