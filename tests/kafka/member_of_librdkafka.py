"""A member of a group with librdkafka that writes what it does, as tests/processes/group_member.py does.

python member_of_librdkafka.py BOOTSTRAP TOPIC GROUP FILE classic|consumer

librdkafka does not expose its generation, so the epochs are -1 (unknown).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

BOOTSTRAP, TOPIC, GROUP, FILE, PROTOCOL = sys.argv[1:6]
FD = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
SETTINGS: dict[str, Any] = {
    "bootstrap.servers": BOOTSTRAP,
    "group.id": GROUP,
    "group.protocol": PROTOCOL,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
}
if PROTOCOL == "classic":
    SETTINGS |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def note(do: str, **fields: Any) -> None:
    os.write(FD, json.dumps({"at": time.monotonic(), "do": do, "epoch": -1, **fields}).encode() + b"\n")


def noting(do: str) -> Any:
    def callback(_: Consumer, partitions: list[TopicPartition]) -> None:
        note(do, partitions=[tp.partition for tp in partitions])

    return callback


def number_of(value: bytes) -> int:
    return int(value[value.index(b"/") + 1 :].split(maxsplit=1)[0])


def handle(consumer: Consumer, messages: list[Message]) -> None:
    by_partition: dict[int, list[Message]] = {}
    for message in messages:
        if message.error() is None:
            by_partition.setdefault(message.partition(), []).append(message)
    for partition, batch in by_partition.items():
        numbers = [number_of(message.value()) for message in batch]
        note("records", partition=partition, numbers=numbers, first=batch[0].offset(), next=batch[-1].offset() + 1)
    if by_partition:
        offsets = [TopicPartition(TOPIC, partition, batch[-1].offset() + 1) for partition, batch in by_partition.items()]
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as e:
            note("commit failed", reason=e.args[0].name())


def main() -> None:
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    consumer = Consumer(SETTINGS)
    consumer.subscribe([TOPIC], on_assign=noting("assigned"), on_revoke=noting("revoked"), on_lost=noting("lost"))
    while going:
        handle(consumer, consumer.consume(200, 0.2))
    consumer.close()
    note("ended")


main()
