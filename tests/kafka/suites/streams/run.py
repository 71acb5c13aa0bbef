"""Kafka Streams with exactly_once_v2 on Strandline: a word count, killed in the middle, counts every word once."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from confluent_kafka import Consumer, Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from jvm import artifact, end, java, kafka_libraries, missing  # noqa: E402
from suite import FAILED, PASSED, Results, cluster, main, work_folder  # noqa: E402

STREAMS = "org.apache.kafka:kafka-streams:4.3.1"
WORDS = ["ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hal"]
SETTINGS = {"group.initial.rebalance.delay.ms": 0}
LINES, SECONDS = 3_000, 90.0


def produce(bootstrap: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, line in enumerate(lines):
        producer.produce("lines", line, key=str(number))
        producer.poll(0)
    assert producer.flush(30) == 0


class Counts:
    """The committed output of the application: word -> its counts, in the order of the log."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "counts", "auto.offset.reset": "earliest", "log_level": 0}
        self._consumer = Consumer(settings | {"isolation.level": "read_committed"})
        self._consumer.subscribe(["counts"])
        self.seen: dict[str, list[int]] = defaultdict(list)

    def read_until(self, count: int, deadline: float) -> int:
        """Read until there are so many counts, or until the deadline; returns their number."""
        while (total := sum(map(len, self.seen.values()))) < count and time.monotonic() < deadline:
            for message in self._consumer.consume(500, 0.2):
                if not message.error():
                    self.seen[message.key().decode()].append(int(message.value()))
        return total

    def close(self) -> None:
        self._consumer.close()


def count_words(bootstrap: str, folder: Path) -> Results:
    """Run the application, kill it when it has counted a third, and run it again."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic("lines", 3, 3), NewTopic("counts", 2, 3)]).values():
        future.result(30)
    chance = random.Random(1)
    lines = [" ".join(chance.choices(WORDS, k=5)) for _ in range(LINES)]
    expected = Counter(word for line in lines for word in line.split())
    class_path = [f"{kafka_libraries()}/*", str(artifact(STREAMS))]
    arguments = ["word-count", bootstrap, "lines", "counts", str(folder / "state")]

    def start():  # type: ignore[no-untyped-def]
        return java(class_path, str(HERE / "WordCount.java"), *arguments, log=folder / "streams.log")

    counts, deadline = Counts(bootstrap), time.monotonic() + SECONDS
    application = start()
    try:
        produce(bootstrap, lines[: LINES // 2])
        before = counts.read_until(LINES, deadline)
        application.kill()
        application.wait()
        produce(bootstrap, lines[LINES // 2 :])
        application = start()
        total = counts.read_until(sum(expected.values()), deadline)
        total = counts.read_until(total + 1, time.monotonic() + 2)
    finally:
        end(application)
        counts.close()
    once = all(counts.seen[word] == list(range(1, expected[word] + 1)) for word in WORDS)
    return {
        "counts_before_the_kill": verdict(before >= LINES, f"{before} counts"),
        "every_word_is_counted": verdict(total >= sum(expected.values()), f"{total} of {sum(expected.values())} counts"),
        "no_count_is_written_twice": verdict(once, str({word: len(seen) - expected[word] for word, seen in counts.seen.items()})),
    }


def verdict(good: bool, why: str) -> tuple[str, str]:
    return (PASSED, "") if good else (FAILED, why)


def results(_tests: list[str]) -> Results:
    """Run all tests, because they build on one another."""
    with work_folder("streams") as folder, cluster(folder / "cluster", settings=SETTINGS) as running:
        return {**count_words(running.bootstrap, folder), **running.result()}


if __name__ == "__main__":
    sys.exit(main(HERE, results, missing=missing(), requirement="STRANDLINE_REQUIRE_KAFKA"))
