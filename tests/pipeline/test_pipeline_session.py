"""Clients that are kept from one task to the next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from strandline.client import Consumer
from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer import fetcher
from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from strandline.testing import ThreadedCluster


def first_values(here: Session, log: ThreadedCluster, place: TopicPartition) -> list[bytes | None]:
    """As a task reads."""
    with here.client(Consumer, {"bootstrap_servers": log.bootstrap_servers, "auto_offset_reset": "error"}) as consumer:
        here.run(consumer.assign([place]))
        consumer.seek(place, 0)
        records = here.run(consumer.getmany(timeout_ms=20_000))
        return [record.value for record in records.get(place, ())]


def fill(log: ThreadedCluster, topic: str, partition: int, value: bytes) -> None:
    async def send() -> None:
        async with log.cluster.producer() as producer:
            await producer.send_and_wait(topic, value, partition=partition)

    log.run(send())


def before_and_after(log: ThreadedCluster, change: Callable[[str], None], partition: int) -> tuple[list[bytes | None], ...]:
    """What two tasks of one process read: of a topic, and of this partition of it when something has changed since."""
    here, topic = Session(), log.create_topic(partitions=1)
    fill(log, topic, 0, b"before")
    before = first_values(here, log, TopicPartition(topic, 0))
    change(topic)
    fill(log, topic, partition, b"after")
    return before, first_values(here, log, TopicPartition(topic, partition))


def test_a_kept_client_reads_a_partition_that_came_after_its_last_task(log: ThreadedCluster) -> None:
    """Between two tasks its loop stands still, and what it knows grows old: the first task for a new partition failed."""

    def grow(topic: str) -> None:
        async def ask() -> None:
            async with log.cluster.admin() as admin:
                await admin.create_partitions(topic, 2)

        log.run(ask())

    assert before_and_after(log, grow, partition=1) == ([b"before"], [b"after"])


def test_a_kept_client_reads_a_topic_that_was_made_anew_since(log: ThreadedCluster) -> None:
    """By the old topic's id nothing comes but an error, and that is for those who were reading it."""

    def make_anew(topic: str) -> None:
        async def ask() -> None:
            async with log.cluster.admin() as admin:
                await admin.delete_topics([topic])

        log.run(ask())
        log.create_topic(topic, partitions=1)

    assert before_and_after(log, make_anew, partition=0) == ([b"before"], [b"after"])


def test_a_loop_that_stood_still_suspects_no_broker(log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the last task's fetch lies unread in the socket. Every task after a pause of a second asked for metadata
    and for a sign of life of all brokers."""
    suspected: list[int] = []
    monkeypatch.setattr(Cluster, "suspect", lambda self, broker_id: suspected.append(broker_id))
    monkeypatch.setattr(fetcher, "STALL_S", 1.0)
    here, topic = Session(), log.create_topic(partitions=1)
    fill(log, topic, 0, b"before")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"before"]
    suspected.clear()
    overdue_s = 0.5 + fetcher.STALL_S + fetcher.STOOD_STILL_S
    time.sleep(overdue_s + 0.1)  # This is the standstill.
    fill(log, topic, 0, b"after")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"before", b"after"]
    assert suspected == []
