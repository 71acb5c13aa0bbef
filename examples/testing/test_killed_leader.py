"""A leader is killed after its followers have a batch and before the producer has the response."""

from __future__ import annotations

import asyncio

import pytest

from strandline.testing import Cluster, caught_up, hits, leader


async def test_a_batch_without_a_response_is_stored_once(cluster: Cluster) -> None:
    topic = await cluster.create_topic("orders")
    first = await cluster.leader_of(topic)
    async with cluster.producer() as producer:
        with cluster.delay("Produce", ms=60_000, at=first) as late:  # The leader appends the batch, but its response is late.
            batch = producer.send_many(topic, [b"tea", b"coffee", b"milk"])
            await cluster.until(hits(late) == 1)  # Every replica has the batch, and the response is delayed.
            assert not batch.done
            await cluster.kill(first)
        await cluster.until(leader(topic) != first)
        assert [(await receipt).offset for receipt in batch] == [0, 1, 2]

    assert [record.value for record in await cluster.read_all(topic)] == [b"tea", b"coffee", b"milk"]


async def test_records_in_flight_survive_the_kill_in_order(cluster: Cluster) -> None:
    topic = await cluster.create_topic("orders", partitions=3)
    async with cluster.producer(batch_size=1000) as producer:
        for number in range(1000):
            await producer.send(topic, b"order %d" % number, key=b"%d" % (number % 10))
            if number == 500:
                victim = await cluster.leader_of(topic, 0)
                await cluster.kill(victim)
        await producer.flush()
    await cluster.start(victim)

    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
    assert verdict.acknowledged == 1000
    await cluster.assert_logs_identical(topic)


@pytest.mark.strandline(processes=True)
async def test_records_in_flight_survive_a_real_sigkill(cluster: Cluster) -> None:
    topic = await cluster.create_topic("orders")
    async with cluster.producer(linger_ms=1) as producer:
        for number in range(1000):
            await producer.send(topic, b"order %d" % number)
            if number == 500:
                await asyncio.sleep(0)
                victim = await cluster.leader_of(topic)
                await cluster.kill(victim)
        await producer.flush()
    await cluster.start(victim)
    await cluster.until(caught_up(topic), within_s=20)
    await cluster.assert_no_acked_loss()
    await cluster.assert_logs_identical(topic)
