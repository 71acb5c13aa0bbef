"""A client belongs to the event loop of its `start`: calls from elsewhere are rejected before they change anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.client import Admin, Consumer, Producer
from strandline.client.errors import RecordTooLarge, UsageError
from strandline.client.home import Home
from strandline.client.options import REQUEST_SIZE_MAX

from .scripted import ScriptedCluster

CALLS: dict[str, Callable[[Any], Any]] = {
    "send_nowait": lambda producer: producer.send_nowait("orders", b"x"),
    "send_nowait keyed": lambda producer: producer.send_nowait("orders", b"x", key=b"k"),
    "send_many": lambda producer: producer.send_many("orders", [b"x"]),
    "send": lambda producer: asyncio.run(producer.send("orders", b"x")),
    "send_columns": lambda producer: asyncio.run(producer.send_columns("orders", [b"x"])),
    "send_and_wait": lambda producer: asyncio.run(producer.send_and_wait("orders", b"x")),
    "flush": lambda producer: asyncio.run(producer.flush()),
    "partitions_for": lambda producer: asyncio.run(producer.partitions_for("orders")),
    "health": lambda producer: producer.health(),
    "stop": lambda producer: asyncio.run(producer.stop()),
}
CONSUMER_CALLS: dict[str, Callable[[Any], Any]] = {
    "getmany": lambda consumer: asyncio.run(consumer.getmany()),
    "getone": lambda consumer: asyncio.run(consumer.getone(timeout_ms=1)),
    "fetch_batches": lambda consumer: asyncio.run(consumer.fetch_batches()),
    "seek": lambda consumer: consumer.seek(("orders", 0), 0),
    "pause": lambda consumer: consumer.pause(("orders", 0)),
    "subscribe": lambda consumer: consumer.subscribe("orders"),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "commit": lambda consumer: asyncio.run(consumer.commit()),
    "committed": lambda consumer: asyncio.run(consumer.committed(("orders", 0))),
    "assign": lambda consumer: asyncio.run(consumer.assign([("orders", 0)])),
    "position": lambda consumer: asyncio.run(consumer.position(("orders", 0))),
    "end_offsets": lambda consumer: asyncio.run(consumer.end_offsets([("orders", 0)])),
    "health": lambda consumer: consumer.health(),
    "stop": lambda consumer: asyncio.run(consumer.stop()),
}
ADMIN_CALLS: dict[str, Callable[[Any], Any]] = {
    "list_topics": lambda admin: asyncio.run(admin.list_topics()),
    "create_topics": lambda admin: asyncio.run(admin.create_topics(["new"])),
    "describe_cluster": lambda admin: asyncio.run(admin.describe_cluster()),
    "stop": lambda admin: asyncio.run(admin.stop()),
}


async def in_a_thread(call: Callable[[Any], Any], client: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, call, client)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("has_open_batch", [False, True])
async def test_producer_refuses_another_thread_and_stays_well(name: str, has_open_batch: bool) -> None:
    """The call used to raise "no running event loop" after the record was queued, and `flush` then waited two minutes."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        linger_ms = 60_000 if has_open_batch else 0
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=linger_ms) as producer:
            await producer.partitions_for("orders")
            producer.send_nowait("orders", b"before")
            with pytest.raises(UsageError, match=r"the producer was called .*; it is not thread-safe"):
                await in_a_thread(CALLS[name], producer)
            producer.send_nowait("orders", b"after")
            await producer.flush(5_000)
        assert cluster.values("orders") == [b"before", b"after"]


@pytest.mark.parametrize("name", CONSUMER_CALLS)
async def test_consumer_refuses_another_thread(name: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Consumer("orders", bootstrap_servers=cluster.bootstrap) as consumer:
            await consumer.getmany(timeout_ms=10)
            with pytest.raises(UsageError, match="the consumer was called"):
                await in_a_thread(CONSUMER_CALLS[name], consumer)
            assert len(consumer.assignment()) == 1


@pytest.mark.parametrize("name", ADMIN_CALLS)
async def test_admin_refuses_another_thread(name: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            with pytest.raises(UsageError, match="the admin client was called"):
                await in_a_thread(ADMIN_CALLS[name], admin)
            assert await admin.list_topics() == ["orders"]


def test_consumer_may_be_moved_while_its_loop_stands_still() -> None:
    """Spark's tasks run coroutines one by one on a loop of their own, and seek between them."""
    loop = asyncio.new_event_loop()
    cluster = ScriptedCluster()
    try:
        loop.run_until_complete(cluster.__aenter__())
        cluster.create("orders")
        consumer = Consumer(bootstrap_servers=cluster.bootstrap)
        loop.run_until_complete(consumer.start())
        loop.run_until_complete(consumer.assign([("orders", 0)]))
        consumer.seek(("orders", 0), 0)
        assert loop.run_until_complete(consumer.position(("orders", 0))) == 0
        loop.run_until_complete(consumer.stop())
        loop.run_until_complete(cluster.__aexit__())
    finally:
        loop.close()


def test_producer_rejects_a_second_loop() -> None:
    """A second `asyncio.run`: the first loop is closed, so nothing that waits for it ever ends. An open batch of the first loop
    used to accept records without checking the caller."""
    clusters: list[ScriptedCluster] = []
    producers: list[Producer] = []

    async def first() -> None:
        async with ScriptedCluster() as cluster:
            clusters.append(cluster)
            cluster.create("orders")
            producer = Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000)
            await producer.start()
            producers.append(producer)
            await producer.partitions_for("orders")
            producer.send_nowait("orders", b"open")
            await asyncio.sleep(0)
            producer.send_nowait("orders", b"open too")

    async def second() -> None:
        (producer,) = producers
        waiting = producer._accumulator.waiting_records
        with pytest.raises(UsageError, match="is closed; start another producer"):
            producer.send_nowait("orders", b"x")
        with pytest.raises(UsageError, match="on another event loop"):
            await producer.send("orders", b"x")
        with pytest.raises(UsageError):
            await producer.flush(1)
        assert producer._accumulator.waiting_records == waiting == 2

    asyncio.run(first())
    asyncio.run(second())


async def test_huge_record_is_rejected_before_it_is_queued() -> None:
    """No frame can carry it: the broker used to close the connection, and the record was sent again for two minutes."""
    with pytest.raises(UsageError, match=rf"max_request_size must be a whole number from \d+ to {REQUEST_SIZE_MAX}"):
        Producer(max_request_size=200_000_000, buffer_memory=400_000_000)
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        limits = {"max_request_size": REQUEST_SIZE_MAX, "buffer_memory": 400_000_000}
        async with Producer(bootstrap_servers=cluster.bootstrap, **limits) as producer:
            with pytest.raises(
                RecordTooLarge, match=rf"max_request_size \({REQUEST_SIZE_MAX} bytes\); no request can carry more"
            ):
                producer.send_nowait("orders", bytes(150_000_000))
            with pytest.raises(RecordTooLarge):
                await producer.send("orders", bytes(150_000_000))
            assert producer.metrics()["buffered_bytes"] == 0
            await producer.flush(1_000)


async def test_requests_stay_within_max_request_size() -> None:
    """Batches of several partitions share a request; together they used to exceed the request's limit, and that of a frame."""
    async with ScriptedCluster(brokers=1) as cluster:
        cluster.create("orders", 8)
        limits = {"max_request_size": 10_000, "batch_size": 9_000, "linger_ms": 5}
        async with Producer(bootstrap_servers=cluster.bootstrap, **limits) as producer:
            await producer.partitions_for("orders")
            for round_of_all in range(20):
                for partition in range(8):
                    producer.send_nowait("orders", b"%03d" % round_of_all + bytes(4_000), partition=partition)
            await producer.flush(10_000)
        sizes = [sum(len(records) for _, records in request) for request in cluster.produce_requests]
        assert max(sizes) <= 10_000
        for partition in range(8):
            values = cluster.partition("orders", partition).log.values
            assert [int(value[:3]) for value in values] == list(range(20))


def test_consumer_may_be_read_while_its_loop_stands_still() -> None:
    """A program without a running loop drives a consumer by `run_until_complete` (a task of Spark does). It makes its plain calls
    between two runs, from the same thread, while nothing else runs. Another thread is refused even so."""

    async def made() -> tuple[Home, Home]:
        return Home("consumer", between_runs=True), Home("producer")

    loop = asyncio.new_event_loop()
    consumer, producer = loop.run_until_complete(made())
    consumer.check()
    with pytest.raises(UsageError, match="the producer was called from a thread in which no event loop runs"):
        producer.check()
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="the consumer was called from a thread"):
        pool.submit(consumer.check).result()
    loop.close()
    with pytest.raises(UsageError, match="is closed"):
        consumer.check()
