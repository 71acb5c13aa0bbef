"""Real servers on loopback: produce and fetch, replication, fail-over, controlled shutdown, restart."""

from __future__ import annotations

from waiting import until
from wire_cluster import WireCluster


async def test_one_controller_and_one_broker_store_records() -> None:
    async with WireCluster() as cluster:
        topic = await cluster.create("orders")
        assert await cluster.produce(topic, "a", "b") == 0
        assert await cluster.produce(topic, "c") == 2
        answer, values = await cluster.fetch(1, topic.topic_id)
        assert values == ["a", "b", "c"]
        assert answer.high_watermark == 3


async def test_acknowledged_bytes_are_on_all_three_brokers() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic = await cluster.create("orders", partitions=3, replication_factor=3, min_insync_replicas="2")
        for n in range(30):
            await cluster.produce(topic, f"{n}", f"{n}b", partition=n % 3)
        for partition in range(3):
            await cluster.in_step(topic.topic_id, [1, 2, 3], partition)
            assert len(cluster.log_bytes(1, topic.topic_id, partition)) > 0
            found = await cluster.partition_of("orders", partition)
            assert sorted(found.isr_nodes) == [1, 2, 3]


async def test_a_killed_leader_is_replaced_without_loss() -> None:
    async with WireCluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        for n in range(10):
            await cluster.produce(topic, f"{n}")
        await cluster.kill(1)
        for n in range(10, 20):
            await cluster.produce(topic, f"{n}")
        found = await cluster.partition_of("orders")
        assert found.leader_id in (2, 3)
        assert sorted(found.isr_nodes) == [2, 3]
        _, values = await cluster.fetch(found.leader_id, topic.topic_id)
        assert values == [f"{n}" for n in range(20)]
        await cluster.in_step(topic.topic_id, [2, 3])


async def test_a_stopping_broker_hands_over_its_leaders() -> None:
    async with WireCluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        epoch = (await cluster.partition_of("orders")).leader_epoch
        await cluster.stop(1)
        found = await cluster.partition_of("orders")
        assert (found.leader_id, sorted(found.isr_nodes), found.leader_epoch) == (2, [2, 3], epoch + 1)
        await cluster.produce(topic, "b")
        assert cluster.disk(1).exists("/data/broker-1/.kafka_cleanshutdown")


async def test_a_restarted_follower_catches_up_and_rejoins_the_isr() -> None:
    async with WireCluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        await cluster.kill(3)
        for n in range(20):
            await cluster.produce(topic, f"{n}")
        await cluster.start(3)
        leader = cluster.replica(1, topic.topic_id)
        await until(lambda: leader.leader_state is not None and len(leader.leader_state.isr.isr) == 3, "3 is back in the ISR")
        await cluster.produce(topic, "z")
        await cluster.in_step(topic.topic_id, [1, 2, 3])


async def test_a_restarted_leader_truncates_uncommitted_records() -> None:
    """Records with acks=1 that no follower has are not committed: the old leader truncates them and follows."""
    async with WireCluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        for follower in (2, 3):
            cluster.drop("Fetch", by=follower)
        await cluster.produce_to(1, topic.topic_id, "lost", acks=1)
        assert cluster.replica(1, topic.topic_id).log.log_end_offset == 2
        await cluster.kill(1)
        cluster.heal()
        await cluster.produce(topic, "b")
        await cluster.start(1)
        await cluster.produce(topic, "c")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        _, values = await cluster.fetch(2, topic.topic_id)
        assert values == ["a", "b", "c"]
