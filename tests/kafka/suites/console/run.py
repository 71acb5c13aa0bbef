"""A console for Kafka on Strandline: it shows topics, groups and records.

The console is kaskade, which is on PyPI; AKHQ, kafbat and Kafdrop are in no package registry. It has its own Python environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from suite import CACHE, FAILED, PASSED, Results, cluster, main, work_folder  # noqa: E402

KASKADE = "5.1.0"
SETTINGS = {"group.initial.rebalance.delay.ms": 0}
TOPIC, GROUP = "shown-in-the-console", "readers-of-it"


def python() -> str:
    """The Python of an environment with the console, which is created once."""
    folder = CACHE / f"kaskade-{KASKADE}"
    if not (folder / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "-q", f"kaskade=={KASKADE}"], check=True)
        (folder / ".complete").touch()
    return str(folder / "bin/python")


def fill(bootstrap: str) -> None:
    """Create a topic with 10 records, and a group that has read 6 of them."""
    servers = {"bootstrap.servers": bootstrap, "log_level": 0}
    admin = AdminClient(servers)
    for future in admin.create_topics([NewTopic(TOPIC, 2, 3)]).values():
        future.result(30)
    producer = Producer(servers)
    for number in range(10):
        producer.produce(TOPIC, f"value-{number}", key=f"key-{number}", partition=number % 2)
    assert producer.flush(30) == 0
    consumer = Consumer(servers | {"group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 4), TopicPartition(TOPIC, 1, 2)], asynchronous=False)
    consumer.close()


def look(bootstrap: str, folder: Path) -> Results:
    fill(bootstrap)
    with (folder / "console.log").open("wb") as log:
        command = [python(), str(HERE / "show.py"), bootstrap, TOPIC]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=120, check=False)
    if run.returncode:
        return {"the console starts": (FAILED, (folder / "console.log").read_text()[-500:])}
    shown = json.loads(run.stdout.splitlines()[-1])
    of_topic = next((row for row in shown["topics"] if row[0] == TOPIC), [])
    values = {cell for row in shown["records"] for cell in row if cell.startswith("value-")}
    groups = [row for row in shown["description"] if GROUP in row]
    return {
        # name, partitions, replicas, in-sync replicas, groups, members, records, lag
        "the console lists topics": verdict(of_topic[:5] == [TOPIC, "2", "3", "3", "1"], of_topic),
        "the console counts records and lag": verdict(
            [cell[-2:].strip("≈~ ") for cell in of_topic[6:8]] == ["10", "4"], of_topic
        ),
        "the console shows groups": verdict(bool(groups), shown["description"]),
        "the console shows records": verdict(values == {f"value-{number}" for number in range(10)}, shown["records"]),
    }


def verdict(good: bool, why: object) -> tuple[str, str]:
    return (PASSED, "") if good else (FAILED, str(why)[:500])


def results(_tests: list[str]) -> Results:
    """Run all tests, because they use one cluster."""
    with work_folder("console") as folder, cluster(folder / "cluster", settings=SETTINGS) as running:
        return {**look(running.bootstrap, folder), **running.result()}


if __name__ == "__main__":
    sys.exit(main(HERE, results))
