"""How a producer ends: a normal exit delivers the waiting records; after an exception or a cancellation it gives up within about
a second."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from waiting import until

from strandline.client.errors import ClientClosed
from strandline.client.producer.producer import Producer
from strandline.client.producer.undelivered import Undelivered

from .scripted import ScriptedCluster

GIVES_UP_WITHIN_S = 2.5
"""The producer promises one second; the rest is for a busy machine."""


async def fail(producer: Producer) -> None:
    raise KeyError("a bug of the program")


async def be_cancelled(producer: Producer) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def be_interrupted(producer: Producer) -> None:
    """Cancel the main task, as the signal handler of `asyncio.run` does on Ctrl-C."""
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
    await asyncio.Event().wait()


@asynccontextmanager
async def cluster_that_is_down_soon() -> AsyncIterator[tuple[ScriptedCluster, Producer]]:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        producer = Producer(bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=60_000)
        yield cluster, producer


async def down(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        await broker.stop()


@pytest.mark.parametrize("end", [fail, be_cancelled])
async def test_exit_after_an_error_gives_up_soon(end: Callable[[Producer], Awaitable[None]]) -> None:
    """With the cluster down, the exit used to take all of `delivery_timeout_ms` (two minutes by default), without a message."""
    loop = asyncio.get_running_loop()

    async def program(cluster: ScriptedCluster, producer: Producer) -> None:
        async with producer:
            await producer.send_and_wait("orders", b"before")
            await down(cluster)
            receipts.extend(producer.send_nowait("orders", b"x") for _ in range(3))
            begun.append(loop.time())
            await end(producer)

    receipts: list = []
    begun: list[float] = []
    async with cluster_that_is_down_soon() as (cluster, producer):
        async with asyncio.timeout(30):
            with pytest.raises((KeyError, asyncio.CancelledError)) as raised:
                await asyncio.create_task(program(cluster, producer))
        assert loop.time() - begun[0] < GIVES_UP_WITHIN_S
        (note,) = raised.value.__notes__
        assert "3 records were not acknowledged" in note
        assert "orders-0: 3" in note
        for receipt in receipts:
            with pytest.raises(ClientClosed, match=r"orders-0.*stopped before the record was acknowledged"):
                await receipt


@pytest.mark.parametrize("end", [fail, be_cancelled])
async def test_stop_in_finally_gives_up_soon(end: Callable[[Producer], Awaitable[None]]) -> None:
    """Users of aiokafka write it like this: `try: ... finally: await producer.stop()`."""
    loop = asyncio.get_running_loop()
    undelivered: list[Undelivered] = []

    async def program(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.start()
        try:
            await producer.partitions_for("orders")
            await down(cluster)
            producer.send_nowait("orders", b"x")
            await end(producer)
        finally:
            undelivered.append(await producer.stop())

    async with cluster_that_is_down_soon() as (cluster, producer):
        began = loop.time()
        async with asyncio.timeout(30):
            with pytest.raises((KeyError, asyncio.CancelledError)):
                await asyncio.create_task(program(cluster, producer))
        assert loop.time() - began < GIVES_UP_WITHIN_S
        assert [each.by_partition for each in undelivered] == [{"orders-0": 1}]


async def hand_over_and_fail(producer: Producer) -> None:
    async with producer:
        for i in range(1000):
            producer.send_nowait("orders", b"%d" % i)
        await fail(producer)


async def test_exit_after_an_error_delivers_what_it_can() -> None:
    """A second is long for a healthy cluster: records that were handed over before the error are not dropped."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        with pytest.raises(KeyError) as raised:
            await hand_over_and_fail(Producer(bootstrap_servers=cluster.bootstrap, linger_ms=5000))
        assert len(cluster.values("orders")) == 1000
        assert not hasattr(raised.value, "__notes__")


async def test_normal_exit_waits_for_the_cluster() -> None:
    """The exit without an error delivers: here the cluster answers again later than the exit after an error would wait."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.produce_fate = lambda broker_id, key: "NOT_ENOUGH_REPLICAS"

        def be_well() -> None:
            cluster.produce_fate = lambda broker_id, key: "ok"

        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            receipt = producer.send_nowait("orders", b"x")
            asyncio.get_running_loop().call_later(1.5, be_well)
        assert (await receipt).offset == 0


async def test_normal_exit_in_a_handler_waits_for_the_cluster() -> None:
    """An exception that is being handled around the `async with` is not one of its body."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.produce_fate = lambda broker_id, key: "NOT_ENOUGH_REPLICAS"

        def be_well() -> None:
            cluster.produce_fate = lambda broker_id, key: "ok"

        try:
            raise KeyError
        except KeyError:
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                receipt = producer.send_nowait("orders", b"x")
                asyncio.get_running_loop().call_later(1.5, be_well)
            other = Producer(bootstrap_servers=cluster.bootstrap)
            await other.start()
            await other.send("orders", b"y")
            assert not await other.stop()
        assert (await receipt).offset == 0


async def test_cancellation_ends_the_flush_of_an_exit() -> None:
    async with cluster_that_is_down_soon() as (cluster, producer):
        await producer.start()
        await producer.partitions_for("orders")
        await down(cluster)
        receipt = producer.send_nowait("orders", b"x")
        stopping = asyncio.create_task(producer.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await stopping
        with pytest.raises(ClientClosed):
            await receipt


async def test_error_says_whether_the_record_may_be_written() -> None:
    """A record that was never sent can be sent again safely; one that was sent and not answered might be written twice."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        await producer.partitions_for("orders")
        for broker in cluster.brokers.values():
            broker.hanging = True
        sent = producer.send_nowait("orders", b"x", partition=0)
        await until(lambda: producer.metrics()["requests_in_flight"] == 1)
        waits = producer.send_nowait("unknown", b"y")
        undelivered = await producer.stop(timeout_ms=0)
        assert undelivered
        assert undelivered.by_partition == {"orders-0": 1, "unknown": 1}
        assert (undelivered.records, undelivered.may_be_written, undelivered.failed) == (2, 1, 0)
        with pytest.raises(ClientClosed, match="it may be in the log"):
            await sent
        with pytest.raises(ClientClosed, match="it was never sent"):
            await waits


async def test_stop_counts_records_that_failed_before() -> None:
    """Their receipts raised the error, but the program may not have awaited them."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.produce_fate = lambda broker_id, key: "INVALID_RECORD"
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        await producer.send("orders", b"x")
        await producer.flush()
        undelivered = await producer.stop()
        assert undelivered
        assert (undelivered.records, undelivered.failed) == (0, 1)


async def test_stop_counts_records_that_metadata_refused() -> None:
    """They were accepted before the metadata showed that the topic has no such partition."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        receipts = [producer.send_nowait("orders", b"x", partition=partition) for partition in (0, 7, 8)]
        await producer.flush()
        assert (await receipts[0]).offset == 0
        undelivered = await producer.stop()
        assert undelivered
        assert (undelivered.records, undelivered.failed) == (0, 2)


async def test_stop_counts_all_records_of_a_fenced_producer() -> None:
    """The first partition to be rejected fails the records of all others."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders", 3)
        producer = Producer(bootstrap_servers=cluster.bootstrap, producer_name="sink")
        await producer.start()
        cluster.produce_fate = lambda broker_id, key: "INVALID_PRODUCER_EPOCH"
        for partition in range(3):
            producer.send_nowait("orders", b"x", partition=partition)
        await producer.flush()
        assert producer.metrics()["failed_records"] == 3
        assert (await producer.stop()).failed == 3


def test_keyboard_interrupt_ends_a_program_soon() -> None:
    """Ctrl-C with the cluster down: `asyncio.run` raises KeyboardInterrupt after about a second."""
    began: list[float] = []
    ended: list[float] = []

    async def program() -> None:
        async with cluster_that_is_down_soon() as (cluster, producer):
            loop = asyncio.get_running_loop()
            try:
                async with producer:
                    await producer.partitions_for("orders")
                    await down(cluster)
                    producer.send_nowait("orders", b"x")
                    began.append(loop.time())
                    await be_interrupted(producer)
            finally:
                ended.append(loop.time())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs ignore SIGINT.
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(asyncio.wait_for(program(), 30))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended[0] - began[0] < GIVES_UP_WITHIN_S
