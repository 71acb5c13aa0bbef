"""The client's transactions on real brokers: two workers pass records on, while leaders and coordinators change."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from waiting import until

from strandline.client import Consumer, ConsumerRecord, Producer, TopicPartition
from strandline.compat.aiokafka import AIOKafkaConsumer
from strandline.testing import Cluster

RECORDS = 400


async def worker(cluster: Cluster, number: int, source: str, target: str) -> None:
    """Passes records on until it is cancelled."""
    async with (
        Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=f"worker-{number}") as producer,
        Consumer(
            source,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id="workers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
    ):

        async def pass_on(record: ConsumerRecord) -> None:
            await producer.send(target, record.value, key=record.value)

        await consumer.run(pass_on, transactional=True, producer=producer, max_in_flight=20, drain_timeout_ms=100)


async def read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            values.extend(record.value for record in records)
    return values


@pytest.mark.parametrize("disturbs", [False, True])
async def test_records_are_passed_on_exactly_once(disturbs: bool) -> None:
    async with asyncio.timeout(120), Cluster(brokers=3) as cluster:
        source, target = await cluster.create_topic(partitions=4), await cluster.create_topic(partitions=3)
        expected = [b"%03d" % number for number in range(RECORDS)]
        workers = [asyncio.ensure_future(worker(cluster, number, source, target)) for number in range(2)]
        async with (
            Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
            Consumer(
                target,
                bootstrap_servers=cluster.bootstrap_servers,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
        ):
            seen: list[bytes] = []
            for start in range(0, RECORDS, 100):
                for value in expected[start : start + 100]:
                    await producer.send(source, value)
                await producer.flush()
                if disturbs and start == 100:
                    workers[0].cancel()
                    with suppress(asyncio.CancelledError):
                        await workers[0]
                    workers[0] = asyncio.ensure_future(worker(cluster, 0, source, target))
                if disturbs and start == 200:
                    await cluster.kill(1)
                seen += await read(consumer, 100)
            for task in workers:
                task.cancel()
            await asyncio.wait(workers)
            seen += [record.value for records in (await consumer.getmany(timeout_ms=300)).values() for record in records]
        assert sorted(seen) == expected


async def test_consumer_of_committed_records_does_not_lag_behind_an_open_transaction() -> None:
    """The end of such a consumer is the last stable offset: it can read nothing after it, so a lag would raise an alarm that no
    consumer can end."""
    async with asyncio.timeout(60), Cluster(brokers=1) as cluster:
        topic = await cluster.create_topic(replication_factor=1)
        here, options = (
            TopicPartition(topic, 0),
            {"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest"},
        )
        async with (
            Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="slow") as producer,
            Consumer(topic, isolation_level="read_committed", **options) as careful,
            Consumer(topic, **options) as hasty,
            AIOKafkaConsumer(topic, isolation_level="read_committed", **options) as theirs,
        ):
            await producer.begin_transaction()
            for value in (b"1", b"2", b"3"):
                await producer.send_and_wait(topic, value)
            for consumer in (careful, hasty, theirs._reader):
                await until(lambda consumer=consumer: consumer.highwater(here) == 3)
            lags = [consumer.metrics()["partitions"][f"{topic}-0"]["lag"] for consumer in (careful, hasty)]
            assert lags == [0, 3]
            assert (theirs.highwater(here), theirs.last_stable_offset(here)) == (3, 0)
            await producer.commit_transaction()
            await until(lambda: theirs.last_stable_offset(here) == 4)
