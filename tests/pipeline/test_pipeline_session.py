"""Clients that are kept from one task to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.client import Consumer
from strandline.client.records import TopicPartition
from strandline.pipeline.session import Session

if TYPE_CHECKING:
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


def test_a_kept_client_reads_a_partition_that_came_after_its_last_task(log: ThreadedCluster) -> None:
    """Between two tasks its loop stands still, and what it knows grows old: the first task for a new partition failed."""
    here, topic = Session(), log.create_topic(partitions=1)
    fill(log, topic, 0, b"before")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"before"]

    async def grow() -> None:
        async with log.cluster.admin() as admin:
            await admin.create_partitions(topic, 2)

    log.run(grow())
    fill(log, topic, 1, b"after")
    assert first_values(here, log, TopicPartition(topic, 1)) == [b"after"]


def test_a_kept_client_reads_a_topic_that_was_made_anew_since(log: ThreadedCluster) -> None:
    """By the old topic's id nothing comes, and no error either."""
    here, topic = Session(), log.create_topic(partitions=1)
    fill(log, topic, 0, b"old")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"old"]

    async def delete() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([topic])

    log.run(delete())
    log.create_topic(topic, partitions=1)
    fill(log, topic, 0, b"new")
    assert first_values(here, log, TopicPartition(topic, 0)) == [b"new"]
