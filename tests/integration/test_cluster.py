"""Real servers on loopback: produce and fetch, replication, fail-over, controlled shutdown, coming back."""

from __future__ import annotations

from cluster import Cluster, wait_until


async def test_one_controller_and_one_broker_take_and_give_records() -> None:
    async with Cluster() as cluster:
        topic = await cluster.create_topic("orders")
        assert await cluster.produce(topic, "a", "b") == 0
        assert await cluster.produce(topic, "c") == 2
        answer, values = await cluster.fetch(1, topic.topic_id)
        assert values == ["a", "b", "c"]
        assert answer.high_watermark == 3


async def test_three_brokers_hold_the_same_bytes_when_acks_all_is_acknowledged() -> None:
    async with Cluster(brokers=3) as cluster:
        topic = await cluster.create_topic("orders", partitions=3, replication=3, min_insync_replicas="2")
        for n in range(30):
            await cluster.produce(topic, f"{n}", f"{n}b", partition=n % 3)
        for partition in range(3):
            await cluster.in_step(topic.topic_id, [1, 2, 3], partition)
            assert len(cluster.log_bytes(1, topic.topic_id, partition)) > 0
            found = await cluster.partition("orders", partition)
            assert sorted(found.isr_nodes) == [1, 2, 3]


async def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost() -> None:
    async with Cluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        for n in range(10):
            await cluster.produce(topic, f"{n}")
        await cluster.kill(1)
        for n in range(10, 20):
            await cluster.produce(topic, f"{n}")
        found = await cluster.partition("orders")
        assert found.leader_id in (2, 3)
        assert sorted(found.isr_nodes) == [2, 3]
        _, values = await cluster.fetch(found.leader_id, topic.topic_id)
        assert values == [f"{n}" for n in range(20)]
        await cluster.in_step(topic.topic_id, [2, 3])


async def test_a_broker_that_stops_in_order_hands_its_leadership_over_first() -> None:
    async with Cluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        epoch = (await cluster.partition("orders")).leader_epoch
        await cluster.stop(1)
        found = await cluster.partition("orders")
        assert (found.leader_id, sorted(found.isr_nodes), found.leader_epoch) == (2, [2, 3], epoch + 1)
        await cluster.produce(topic, "b")
        assert cluster.files[1].exists("/data/broker-1/.kafka_cleanshutdown")


async def test_a_follower_that_was_away_catches_up_and_rejoins_the_isr() -> None:
    async with Cluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        await cluster.kill(3)
        for n in range(20):
            await cluster.produce(topic, f"{n}")
        await cluster.start(3)
        await cluster.ready()
        leader = cluster.brokers[1].replicas.partitions[topic.topic_id, 0]
        await wait_until(
            lambda: leader.leader_state is not None and len(leader.leader_state.isr.isr) == 3, what="3 is back in the ISR"
        )
        await cluster.produce(topic, "z")
        await cluster.in_step(topic.topic_id, [1, 2, 3])


async def test_a_killed_leader_that_comes_back_drops_what_was_never_acknowledged() -> None:
    """acks=1 records that nobody copied are not committed: the old leader cuts them and follows."""
    async with Cluster(controllers=1, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        for follower in (2, 3):
            cluster.brokers[follower].fetchers.remove((topic.topic_id, 0))
        await cluster.produce_to(1, topic.topic_id, "lost", acks=1)
        assert cluster.brokers[1].replicas.partitions[topic.topic_id, 0].log.log_end_offset == 2
        await cluster.kill(1)
        await cluster.produce(topic, "b")
        await cluster.start(1)
        await cluster.ready()
        await cluster.produce(topic, "c")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        _, values = await cluster.fetch(2, topic.topic_id)
        assert values == ["a", "b", "c"]
