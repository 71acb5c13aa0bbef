"""librdkafka's own tests once more, those that consume: their groups use the protocol of KIP-848 (group.protocol=consumer)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import librdkafka_tests as tests  # noqa: E402
import suite  # noqa: E402

SECONDS = 600
"""A test that has not begun after this time is skipped."""
ENVIRONMENT = {"TEST_CONSUMER_GROUP_PROTOCOL": "consumer"}
CONSUMES = re.compile(r"test_create_consumer|RD_KAFKA_CONSUMER|KafkaConsumer")


def run(chosen: list[str]) -> suite.Results:
    source = tests.built()
    known = [
        (name, scenario)
        for name, scenario in tests.tests_with_brokers(source)
        if CONSUMES.search(tests.source_of(source, name)) and (not chosen or name in chosen)
    ]
    return tests.run_scenarios(source, known, seconds=SECONDS, environment=ENVIRONMENT)


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run, missing=tests.what_lacks(), requirement=tests.REQUIREMENT))
