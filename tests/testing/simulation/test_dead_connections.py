"""A connection can be dead without a notice to either end. A client that waits for a response on it must open another one, and
not send on it again."""

from __future__ import annotations

from strandline.broker.replication.fetcher_shell import REQUEST_TIMEOUT_MS
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.world import World


def test_follower_replaces_a_dead_connection_after_one_timeout() -> None:
    """The follower used to send the next request on the dead connection, and waited twice as long (seed 81826795)."""
    world = World(1)
    cluster = SimCluster(world, controllers=1, brokers=2, settings={"replica.fetch.wait.max.ms": 500})

    async def story() -> None:
        await cluster.start_all()
        await cluster.create_topic("orders", partitions=1, replication_factor=2, configs={"min.insync.replicas": "1"})
        key = (cluster.topic_id("orders"), 0)
        follower = next(n for n in (1, 2) if n != cluster.image().partition(key).leader)
        await world.sleep(1)

        def end() -> int:
            return cluster.brokers[follower].replicas.partitions[key].log.log_end_offset

        assert world.network.mute_between(1, 2)
        client = cluster.client()

        async def send() -> None:
            async with client.producer(acks=1) as producer:
                await producer.send_and_wait("orders", b"one", partition=0)

        await client.run(send())
        await world.until(lambda: end() == 1, (500 + REQUEST_TIMEOUT_MS) / 1000 + 1, "the follower has the record")

    try:
        world.run(story())
    finally:
        world.close()
