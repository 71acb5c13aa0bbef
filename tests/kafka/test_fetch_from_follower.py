"""A Kafka client that names its rack reads from the replica there (KIP-392)."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from data_world import DataWire, batch, error, values_of
from wire_cluster import WireCluster

from strandline.protocol.errors import ErrorCode

RACKS = {1: "a", 2: "b", 3: "c"}


class RackedCluster(WireCluster):
    """Brokers 1, 2 and 3 in the racks a, b and c, with the rack-aware selector. Broker 1 leads `orders`."""

    def __init__(self) -> None:
        super().__init__(brokers=3, kafka=True, replica_selector_class="rack-aware")

    def _hosted(self) -> Any:
        nodes = super()._hosted()
        for node, rack in RACKS.items():
            nodes.nodes[node]._settings = {**nodes.nodes[node]._settings, "broker.rack": rack}
        return nodes

    def counted(self, node: int) -> Any:
        """The broker's metrics of all topics."""
        return self.server(node).replicas.metrics.total()


def read(bootstrap: str, rack: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "client.rack": rack, "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[str] = []
    for _ in range(100):
        found += [message.value().decode() for message in consumer.consume(count, 0.2) if not message.error()]
        if len(found) >= count:
            break
    consumer.close()
    return found


async def test_leader_sends_librdkafka_to_the_follower_in_its_rack() -> None:
    async with RackedCluster() as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]])
        async with DataWire.at(cluster.kafka_bootstrap) as wire:
            for number in range(20):
                assert (await wire.produce(9, "orders", batch(str(number)))).error_code == 0
        found = await asyncio.to_thread(read, cluster.kafka_bootstrap, "b", 20)
        assert found == [str(number) for number in range(20)]
        assert cluster.counted(1).nominations > 0
        assert cluster.counted(2).follower_bytes_out > 0


async def test_leader_names_the_replica_and_the_follower_serves_it() -> None:
    async with RackedCluster() as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]])
        ports = dict(enumerate(cluster.kafka_bootstrap.split(","), 1))
        async with DataWire.at(ports[1]) as leader, DataWire.at(ports[2]) as follower:
            assert (await leader.produce(9, "orders", batch("a"))).error_code == 0
            for version in (11, 12, 18):
                row: Any = await leader.fetched(version, "orders", 0, rack_id="b")
                assert (row.error_code, row.preferred_read_replica, row.records) == (0, 2, b"")

            row = await follower.fetched(12, "orders", 0, rack_id="b", max_wait_ms=5000)
            assert (row.error_code, values_of(row.records)) == (0, ["a"])
            assert error(await follower.fetched(10, "orders", 0)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_follower_serves_a_client_that_never_waits() -> None:
    """Each of its fetches ends before the follower has asked the leader for the high watermark."""
    async with RackedCluster() as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]])
        ports = dict(enumerate(cluster.kafka_bootstrap.split(","), 1))
        async with DataWire.at(ports[1]) as leader, DataWire.at(ports[2]) as follower:
            assert (await leader.produce(9, "orders", batch("a"))).error_code == 0
            async with asyncio.timeout(10):
                while not (await follower.fetched(12, "orders", 0, rack_id="b")).records:
                    await asyncio.sleep(0.02)
