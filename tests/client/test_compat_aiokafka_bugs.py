"""Open bugs of aiokafka 0.14, by their numbers (github.com/aio-libs/aiokafka/issues): what programs meet there and not here."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from waiting import until

from strandline.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from strandline.compat.aiokafka.errors import (
    FencedInstanceIdError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
)
from strandline.testing import Cluster

from .group_world import scripted, scripted_on_a_thread
from .test_group_cluster import fill

P0 = TopicPartition("orders", 0)


async def read_for_ever(consumer: AIOKafkaConsumer) -> None:
    async with asyncio.timeout(10):
        while True:
            await consumer.getmany(timeout_ms=10)


def consumer_of(bootstrap: str, *topics: str, **options: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(*topics, **{"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", **options})


async def test_1101_send_and_stop_end_although_all_brokers_are_down() -> None:
    """In aiokafka, both wait forever."""
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders")
        options = {"bootstrap_servers": cluster.bootstrap_servers, "request_timeout_ms": 400, "acks": 1}
        producer = AIOKafkaProducer(**options, retry_backoff_ms=20)
        await producer.start()
        await producer.send_and_wait("orders", b"1")
        await cluster.kill(1)
        async with asyncio.timeout(10):
            with pytest.raises(KafkaTimeoutError):
                await producer.send_and_wait("orders", b"2")
            future = await producer.send("orders", b"3")
            await producer.stop()
        with pytest.raises((KafkaTimeoutError, ProducerClosed)):
            await future


async def test_1101_start_ends_although_no_broker_answers() -> None:
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", request_timeout_ms=200)
    async with asyncio.timeout(10):
        with pytest.raises(KafkaConnectionError):
            await producer.start()
        await producer.stop()


async def test_1039_cancelled_background_task_is_no_silent_stop() -> None:
    """In aiokafka, a test framework that cancels all tasks leaves a producer that takes records and never sends them."""
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders")
        ours = asyncio.all_tasks()
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=500, acks=1)
        await producer.start()
        await producer.send_and_wait("orders", b"1")
        for task in asyncio.all_tasks() - ours:
            if _belongs_to_client(task):
                task.cancel()
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            (outcome,) = await asyncio.gather(producer.send_and_wait("orders", b"2"), return_exceptions=True)
            await producer.stop()
        if isinstance(outcome, KafkaError):
            assert outcome.__cause__ is not None, "it says why"
        else:
            assert [record.value for record in await cluster.read_all("orders")] == [b"1", b"2"]


def _belongs_to_client(task: asyncio.Task[Any]) -> bool:
    """Whether the task is the client's: the servers run in the test's loop, too."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/client/" in code.co_filename


async def test_1154_consumer_recovers_from_a_restart_of_its_brokers() -> None:
    """In aiokafka the consumer may stay alive without reading, and only a private attribute shows it. Here it reads on, and
    `health` shows its state."""
    async with Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=4, replication_factor=3)
        await fill(cluster, 8)
        async with consumer_of(cluster.bootstrap_servers, "orders", group_id="g") as consumer:
            seen = {(await consumer.getone()).value for _ in range(8)}
            assert consumer.health()["state"] == "ok"
            for broker in (1, 2, 3):
                await cluster.restart(broker, hard=True)
            await fill(cluster, 8, 8)
            async with asyncio.timeout(30):
                while len(seen) < 16:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        seen |= {record.value for record in records}
            await until(lambda: consumer.health()["state"] == "ok")
            assert consumer.health()["group"]["state"] == "stable"


async def test_1154_consumer_that_cannot_read_says_so() -> None:
    async with scripted() as (cluster, groups), consumer_of(cluster.bootstrap, "orders", group_id="g") as consumer:
        await consumer.getone()
        groups.fate = lambda request: "GROUP_MAX_SIZE_REACHED"
        with pytest.raises(KafkaError, match="GROUP_MAX_SIZE_REACHED"):
            await read_for_ever(consumer)
        assert consumer.health()["state"] == "failed"


async def test_1188_fenced_instance_is_an_error_with_a_type() -> None:
    """In aiokafka it is an untyped error, which the coordination task waits to hand over (#1186). Here each call raises it, and
    the consumer does not join again, which would fence its successor."""
    options = {"group_id": "g", "group_instance_id": "a"}
    async with scripted() as (cluster, groups), consumer_of(cluster.bootstrap, "orders", **options) as consumer:
        await consumer.getone()
        groups.fate = lambda request: "FENCED_INSTANCE_ID"
        with pytest.raises(FencedInstanceIdError):
            await read_for_ever(consumer)
        count = len(groups.heartbeats)
        with pytest.raises(FencedInstanceIdError):
            await consumer.getone()
        with pytest.raises(FencedInstanceIdError):
            await anext(consumer)
        assert len(groups.heartbeats) == count


async def test_847_consumer_reads_on_after_the_event_loop_was_blocked() -> None:
    """In aiokafka, a loop that is blocked for longer than a session ends the iteration, or the consumer is stuck after it has
    rejoined. Here heartbeats continue meanwhile. (The program of the issue: it commits after each record.)"""
    with scripted_on_a_thread(partitions=1, records=20, interval_ms=50) as (cluster, _):
        async with consumer_of(cluster.bootstrap, "orders", group_id="g", enable_auto_commit=False) as consumer:
            seen = []
            async for record in consumer:
                seen.append(record.offset)
                if len(seen) == 3:
                    time.sleep(1.0)  # noqa: ASYNC251 - 20 intervals of heartbeats
                await consumer.commit()
                if len(seen) == 20:
                    break
            assert seen == list(range(20))
            assert await consumer.committed(P0) == 20


async def test_847_consumer_reads_on_after_it_has_rejoined() -> None:
    """The coordinator has dropped the member, as after a session that has timed out."""
    world = scripted(partitions=1, records=20)
    async with world as (cluster, groups), consumer_of(cluster.bootstrap, "orders", group_id="g") as consumer:
        assert (await consumer.getone()).offset == 0
        fates = iter(["UNKNOWN_MEMBER_ID"])
        groups.fate = lambda request: next(fates, "ok")
        await until(lambda: consumer.metrics()["group"]["partitions_lost"] == 1)
        async with asyncio.timeout(10):
            offsets = [(await consumer.getone()).offset for _ in range(20)]
        assert offsets == list(range(20)), "from the last commit on"


async def test_1126_partitions_that_stay_are_read_during_a_rebalance() -> None:
    """In aiokafka every rebalance takes all partitions away, and gives most of them back. Here a joining member takes its share,
    and the owner of the others never loses them, although the listener takes its time."""
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders", partitions=4)
        first = consumer_of(cluster.bootstrap_servers, "orders", group_id="g")
        second = consumer_of(cluster.bootstrap_servers, "orders", group_id="g")
        async with first:
            owned = [first.assignment()]
            starting = asyncio.create_task(second.start())
            async with asyncio.timeout(10):
                while len(first.assignment()) != 2:
                    await first.getmany(timeout_ms=1)
                    owned.append(first.assignment())
            await starting
            stays = first.assignment()
            assert all(stays <= before for before in owned)
            assert second.assignment() == owned[0] - stays
            await second.stop()
