"""FastStream's Kafka broker on a Strandline cluster: its subscribers, publishers and acknowledgements, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from waiting import until

pytest.importorskip("faststream.kafka", reason="FastStream is not installed: pip install -e '.[dev]'")

import aiokafka.errors
from faststream import AckPolicy
from faststream.kafka import KafkaMessage, TestKafkaBroker, TopicPartition

from strandline import Admin
from strandline.client.compat.faststream.consumer import FastStreamConsumer
from strandline.compat.aiokafka.errors import UnsupportedByStrandline
from strandline.compat.faststream import KafkaBroker
from strandline.testing import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders", partitions=2)
        await cluster.create_topic("bills", partitions=1)
        yield cluster


def broker_of(cluster: Cluster, **options: Any) -> KafkaBroker:
    return KafkaBroker(cluster.bootstrap_servers, **options)


async def committed(cluster: Cluster, group: str) -> dict[str, int]:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return {str(tp): found.offset for tp, found in (await admin.list_group_offsets(group)).items()}


async def test_created_topic_has_the_replicas_of_the_cluster() -> None:
    """FastStream asks for one replica by default: a disk that is lost took the records with it, whatever `acks` was."""
    async with Cluster(brokers=3) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        broker = KafkaBroker(cluster.bootstrap_servers, logger=None)

        @broker.subscriber("fresh", group_id="g")
        async def handle(order: str) -> None: ...

        await broker.start()
        try:
            (topic,) = await admin.describe_topics(["fresh"])
            assert len(topic.partitions[0].replicas) == 3
        finally:
            await broker.stop()


async def test_handler_gets_what_was_published_and_publishes_its_result(cluster: Cluster) -> None:
    """A body is decoded into the handler's type, headers and keys arrive, and a topic that is missing is created."""
    broker, billed, seen = broker_of(cluster), asyncio.Event(), []

    @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
    @broker.publisher("fresh")
    async def bill(order: dict[str, int], message: KafkaMessage) -> str:
        seen.append((order, message.raw_message.key, message.headers["trace"]))
        return f"{order['tea']} cups"

    @broker.subscriber("fresh", group_id="mail", auto_offset_reset="earliest")
    async def mail(text: str) -> None:
        seen.append(text)
        billed.set()

    async with asyncio.timeout(30):
        await broker.start()
        assert await broker.ping(timeout=5)
        where = await broker.publish({"tea": 2}, "orders", key=b"alice", headers={"trace": "1"})
        assert (where.topic, where.offset) == ("orders", 0)
        await billed.wait()
        await broker.stop()
    assert seen == [({"tea": 2}, b"alice", "1"), "2 cups"]
    assert not [
        task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "strandline" in repr(task.get_coro())
    ]


async def test_record_that_was_refused_is_handled_again(cluster: Cluster) -> None:
    """NACK_ON_ERROR seeks to the record; the offset is committed when the handler has succeeded."""
    broker, texts = broker_of(cluster), []

    @broker.subscriber("bills", group_id="retries", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(text: str) -> None:
        texts.append(text)
        if len(texts) < 3:
            raise ValueError("not yet")

    async with asyncio.timeout(30):
        await broker.start()
        await broker.publish("a", "bills")
        await broker.publish("b", "bills")
        await until(lambda: len(texts) == 4, "the record was handled again")
        while await committed(cluster, "retries") != {"bills-0": 2}:
            await asyncio.sleep(0.02)
        await broker.stop()
    assert texts == ["a", "a", "a", "b"]


async def test_batches_are_published_and_handled(cluster: Cluster) -> None:
    broker, texts = broker_of(cluster), []

    @broker.subscriber("bills", batch=True, group_id="batches", auto_offset_reset="earliest", ack_policy=AckPolicy.ACK)
    async def handle(batch: list[str]) -> None:
        texts.extend(batch)

    async with asyncio.timeout(30):
        await broker.start()
        await broker.publish_batch("a", "b", "c", topic="bills")
        await until(lambda: texts == ["a", "b", "c"], "the batch was handled")
        while await committed(cluster, "batches") != {"bills-0": 3}:
            await asyncio.sleep(0.02)
        await broker.stop()


async def test_several_workers_share_the_partitions(cluster: Cluster) -> None:
    """Each worker is a member of the group, and acknowledges with the consumer that FastStream sets on the record."""
    broker, texts = broker_of(cluster), []

    @broker.subscriber("orders", group_id="workers", max_workers=2, auto_offset_reset="earliest", ack_policy=AckPolicy.ACK)
    async def handle(text: str) -> None:
        texts.append(text)

    async with asyncio.timeout(30):
        await broker.start()
        for partition in (0, 1):
            await broker.publish(str(partition), "orders", partition=partition)
        await until(lambda: sorted(texts) == ["0", "1"], "both were handled")
        while await committed(cluster, "workers") != {"orders-0": 1, "orders-1": 1}:
            await asyncio.sleep(0.02)
        await broker.stop()


async def test_partitions_and_patterns_choose_what_is_read(cluster: Cluster) -> None:
    broker, seen = broker_of(cluster), []

    @broker.subscriber(partitions=[TopicPartition("orders", 1)], auto_offset_reset="earliest")
    async def by_hand(text: str) -> None:
        seen.append(f"by hand: {text}")

    @broker.subscriber(pattern="b.*", group_id="patterns", auto_offset_reset="earliest")
    async def by_pattern(text: str) -> None:
        seen.append(f"by pattern: {text}")

    async with asyncio.timeout(30):
        await broker.start()
        await broker.publish("no", "orders", partition=0)
        await broker.publish("yes", "orders", partition=1)
        await broker.publish("too", "bills")
        await until(lambda: sorted(seen) == ["by hand: yes", "by pattern: too"], "both were handled")
        await broker.stop()


async def test_producer_is_safe_unless_the_program_says_otherwise(cluster: Cluster) -> None:
    for options, acks in (({}, -1), ({"acks": 1}, 1), ({"enable_idempotence": True}, -1)):
        async with broker_of(cluster, **options) as broker:
            producer = broker.config.producer._producer.producer._producer
            assert producer.options.required_acks == acks
    with pytest.raises(UnsupportedByStrandline, match="transactional_id"):
        await broker_of(cluster, transactional_id="t").start()


async def test_consumer_only_broker_has_no_producer(cluster: Cluster) -> None:
    broker, texts = broker_of(cluster, consumer_only=True), []

    @broker.subscriber("bills", auto_offset_reset="earliest")
    async def handle(text: str) -> None:
        texts.append(text)

    async with asyncio.timeout(30), broker_of(cluster) as other:
        await other.publish("a", "bills")
        await broker.start()
        await until(lambda: texts == ["a"], "the record was handled")
        await broker.stop()


async def test_errors_are_the_ones_that_faststream_catches(cluster: Cluster) -> None:
    """FastStream goes on after aiokafka's own KafkaError, and ends after its ConsumerStoppedError; other classes end its task."""
    consumer = FastStreamConsumer("orders", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="none")
    await consumer.start()
    with pytest.raises(aiokafka.errors.KafkaError) as caught:
        await consumer.getone()
    assert type(caught.value).__module__ == "aiokafka.errors"
    await consumer.stop()
    with pytest.raises(aiokafka.errors.ConsumerStoppedError):
        await consumer.getone()


async def test_broker_for_tests_needs_no_cluster() -> None:
    broker, texts = KafkaBroker("127.0.0.1:1"), []

    @broker.subscriber("orders")
    async def handle(text: str) -> None:
        texts.append(text)

    async with TestKafkaBroker(broker) as tested:
        await tested.publish("a", "orders")
    assert texts == ["a"]
