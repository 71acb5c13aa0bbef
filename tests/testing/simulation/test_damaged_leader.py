"""A bit flips on the disk of a partition's leader (S42). The other replicas have the records, so no operator should be needed."""

from __future__ import annotations

from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.world import World

COUNT = 20
LOG = "/data/orders-0/00000000000000000000.log"


async def _write(cluster: SimCluster) -> None:
    client = cluster.client()

    async def write() -> None:
        async with client.producer() as producer:
            for number in range(COUNT):
                await producer.send_and_wait("orders", b"value-%04d" % number, partition=0)

    await client.run(write())


async def _read(cluster: SimCluster) -> list[bytes]:
    client = cluster.client()
    found: list[bytes] = []

    async def read() -> None:
        async with client.consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([("orders", 0)])
            while len(found) < COUNT:
                found.append(bytes((await consumer.getone(timeout_ms=10_000)).value or b""))

    await client.run(read())
    return found


def test_a_leader_that_finds_damage_lets_another_one_lead_and_is_repaired() -> None:
    world = World(1)
    cluster = SimCluster(world, controllers=1, brokers=3)

    async def story() -> None:
        await cluster.start_all()
        await cluster.create_topic("orders", partitions=1, replication_factor=3, configs={"min.insync.replicas": "2"})
        await _write(cluster)
        registration = cluster.image().partition((cluster.topic_id("orders"), 0))
        leader = registration.leader
        await world.until(lambda: len({cluster.partition(n, "orders").log.log_end_offset for n in (1, 2, 3)}) == 1)  # type: ignore[union-attr]
        disk, replica = cluster.machines[leader].files, cluster.partition(leader, "orders")
        assert replica is not None
        at = disk.read(LOG).find(b"value-0010")
        disk.rot(LOG, offsets=range(at, at + 10))
        replica.log.tail.clear()
        assert await _read(cluster) == [b"value-%04d" % number for number in range(COUNT)]
        assert cluster.image().partition((cluster.topic_id("orders"), 0)).leader != leader
        await world.until(
            lambda: len(cluster.image().partition((cluster.topic_id("orders"), 0)).isr) == 3, 10, "the ISR is full again"
        )
        assert replica.log.corrupt_at is None
        assert replica.log.log_end_offset == COUNT
        assert disk.read(LOG).find(b"value-0010") == at

    try:
        world.run(story())
    finally:
        world.close()
