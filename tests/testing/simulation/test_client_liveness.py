"""Clients must continue by themselves after any failure of the broker that had their request."""

from __future__ import annotations

from typing import Any

from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.world import World


def test_consumer_continues_at_the_new_leader_after_a_lost_response() -> None:
    """The fetch at the old leader times out long after the consumer has sent one to the new leader. The new leader has no new
    records, so that fetch is parked there; the time-out must not take the partition away from it."""
    world = World(1)
    cluster = SimCluster(world, controllers=1, brokers=3, settings={"broker.session.timeout.ms": 1000})
    read: list[bytes] = []

    async def consume(client: Any) -> None:
        options = {"request_timeout_ms": 2000, "fetch_max_wait_ms": 500, "metadata_max_age_ms": 300, "connect_timeout_ms": 300}
        async with client.consumer(auto_offset_reset="earliest", **options) as consumer:
            await consumer.assign([("orders", 0)])
            while True:
                read.append(bytes((await consumer.getone()).value or b""))

    async def write(value: bytes) -> None:
        producing = cluster.client()

        async def send() -> None:
            async with producing.producer() as producer:
                await producer.send_and_wait("orders", value, partition=0)

        await producing.run(send())

    async def story() -> None:
        await cluster.start_all()
        await cluster.create_topic("orders", partitions=1, replication_factor=3, configs={"min.insync.replicas": "2"})
        key = (cluster.topic_id("orders"), 0)
        old = cluster.image().partition(key).leader
        await write(b"one")
        client = cluster.client()
        client.spawn(consume(client))
        await world.until(lambda: len(read) == 1)
        cluster.isolate(old, [client.machine.id])
        cluster.crash(old)
        await world.until(lambda: cluster.image().partition(key).leader != old)
        await world.sleep(4)  # the fetch at the old leader is given up, and the new one has answered without records
        await write(b"two")
        await world.until(lambda: len(read) == 2, 5, "the second record")

    try:
        world.run(story())
    finally:
        world.close()
