"""Clients that a worker process keeps from one task to the next."""

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
    """Reads as a task does."""
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
    """The rows of two tasks in one process: the first reads the topic, the second this partition after a change."""
    here, topic = Session(), log.create_topic(partitions=1)
    fill(log, topic, 0, b"before")
    before = first_values(here, log, TopicPartition(topic, 0))
    change(topic)
    fill(log, topic, partition, b"after")
    return before, first_values(here, log, TopicPartition(topic, partition))


def test_kept_client_reads_an_added_partition(log: ThreadedCluster) -> None:
    """The event loop does not run between two tasks, so the client's metadata is old. The first task for a new partition must
    not fail."""

    def grow(topic: str) -> None:
        async def ask() -> None:
            async with log.cluster.admin() as admin:
                await admin.create_partitions(topic, 2)

        log.run(ask())

    assert before_and_after(log, grow, partition=1) == ([b"before"], [b"after"])


def test_kept_client_reads_a_recreated_topic(log: ThreadedCluster) -> None:
    """With the old topic id, brokers return an error. This task never read the old topic, so it must not see that error."""

    def make_anew(topic: str) -> None:
        async def ask() -> None:
            async with log.cluster.admin() as admin:
                await admin.delete_topics([topic])

        log.run(ask())
        log.create_topic(topic, partitions=1)

    assert before_and_after(log, make_anew, partition=0) == ([b"before"], [b"after"])


def test_pause_of_the_loop_causes_no_extra_request(log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response to the last fetch is still unread in the socket. A client that took it for a silent broker would refresh
    metadata and check all brokers after each pause."""
    suspected: list[int] = []
    monkeypatch.setattr(Cluster, "suspect", lambda self, broker_id: suspected.append(broker_id))
    monkeypatch.setattr(fetcher, "STALL_S", 1.0)
    here, topic = Session(), log.create_topic(partitions=1)
    fill(log, topic, 0, b"before")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"before"]
    suspected.clear()
    overdue_s = 0.5 + fetcher.STALL_S + fetcher.PAUSE_S
    time.sleep(overdue_s + 0.1)  # This is the pause.
    fill(log, topic, 0, b"after")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"before", b"after"]
    assert suspected == []
