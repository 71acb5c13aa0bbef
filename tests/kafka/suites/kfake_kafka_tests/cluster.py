"""A cluster for the tests of kfake: `python cluster.py BROKERS key=value...`.

It prints the addresses for Kafka's clients, and ends when its standard input does. It then prints to stderr the errors that its
brokers have logged, each in a line that begins with `ERRORS`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import suite  # noqa: E402

SETTINGS = {
    "http.listener": "",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


def main(brokers: int, settings: Mapping[str, str]) -> None:
    given = {key: int(value) if value.isdigit() else value for key, value in settings.items()}
    with (
        suite.work_folder("kfake") as folder,
        suite.cluster(folder / "cluster", brokers=brokers, settings={**SETTINGS, **given}) as cluster,
    ):
        print(cluster.bootstrap, flush=True)
        sys.stdin.read()
        for error in cluster.errors():
            print("ERRORS", error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), dict(setting.split("=", 1) for setting in sys.argv[2:]))
