"""`Admin` returns the state of topics: offsets from the leaders, sizes from every broker."""

from __future__ import annotations

from wire_cluster import WireCluster

from strandline.client import Admin, TopicPartition
from strandline.client.consumer.partition_state import EARLIEST, LATEST

PLACE = TopicPartition("orders", 0)


async def test_offsets_come_from_the_leaders_and_sizes_from_every_broker() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic = await cluster.create("orders", partitions=2, replication_factor=3)
        for _ in range(3):
            await cluster.produce(topic, "a")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        async with Admin(bootstrap_servers=f"127.0.0.1:{cluster.port(1)}") as admin:
            ends = await admin.list_offsets({PLACE: LATEST, TopicPartition("orders", 1): LATEST})
            starts = await admin.list_offsets({PLACE: EARLIEST})
            described = await admin.describe_log_dirs([1, 2, 3, 9], ["orders"], timeout_ms=2000)
        expected = len(cluster.log_bytes(1, topic.topic_id))
    assert {place.partition: found and found.offset for place, found in ends.items()} == {0: 3, 1: 0}
    assert {found and found.offset for found in starts.values()} == {0}
    assert sorted(described) == [1, 2, 3]
    sizes = {broker: dirs[0].replicas[PLACE].size_bytes for broker, dirs in described.items()}
    assert set(sizes.values()) == {expected}


async def test_a_partition_without_a_leader_delays_no_other() -> None:
    async with WireCluster(brokers=2) as cluster:
        await cluster.create("alone", replicas=[[1]])
        topic = await cluster.create("orders", replicas=[[2]])
        await cluster.produce(topic, "a")
        await cluster.kill(1)
        async with Admin(bootstrap_servers=f"127.0.0.1:{cluster.port(2)}") as admin:
            found = await admin.list_offsets({TopicPartition("alone", 0): LATEST, PLACE: LATEST}, timeout_ms=500)
    assert [place.topic for place in found] == ["orders"]
