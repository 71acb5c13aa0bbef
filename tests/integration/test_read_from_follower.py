"""Reading from the nearest replica (KIP-392): three brokers in three racks, and consumers that name theirs."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.broker.metrics import TopicMetrics
from strandline.client.consumer import preferred_replicas
from strandline.testing.kit.hosted import HostedNodes

pytestmark = pytest.mark.usefixtures("patient_consumers")
RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture
def patient_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long to open a connection; a consumer then reads from the leader."""
    monkeypatch.setattr(preferred_replicas, "CONNECT_S", 60.0)


class RackedCluster(WireCluster):
    """Brokers 1, 2 and 3 in the racks a, b and c, with the rack-aware selector. Broker 1 leads `orders`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(brokers=3, **{"replica_selector_class": "rack-aware", **options})

    def _hosted(self) -> Any:
        nodes = super()._hosted()
        assert isinstance(nodes, HostedNodes)
        for node, rack in RACKS.items():
            nodes.nodes[node]._settings = {**nodes.nodes[node]._settings, "broker.rack": rack}
        return nodes

    async def write(self, count: int, first: int = 0) -> None:
        async with self.producer() as producer:
            for number in range(first, first + count):
                await producer.send_and_wait("orders", b"%d" % number, partition=0)

    def counted(self, node: int) -> TopicMetrics:
        """What the broker has counted for all topics."""
        total: TopicMetrics = self.server(node).replicas.metrics.total()
        return total


async def read(consumer: Any, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            found += [int(record.value) for record in records]
    return found


async def test_consumers_read_in_their_own_rack() -> None:
    async with RackedCluster() as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]])
        await cluster.write(50)
        async with cluster.consumer("orders", client_rack="c", auto_offset_reset="earliest") as consumer:
            assert await read(consumer, 50) == list(range(50))
            for first in range(50, 500, 10):
                by_leader, by_follower = cluster.counted(1).bytes_out, cluster.counted(3).follower_bytes_out
                await cluster.write(10, first=first)
                assert await read(consumer, 10) == list(range(first, first + 10))
                # On a machine that stands still for seconds, the leader serves what its follower cannot.
                if cluster.counted(1).bytes_out == by_leader and cluster.counted(3).follower_bytes_out > by_follower:
                    break
            else:
                raise AssertionError("the leader always sends records to the consumer")
        assert cluster.counted(1).nominations > 0
        assert cluster.counted(2).bytes_out == 0


async def test_without_a_selector_the_leader_serves_consumers_with_racks() -> None:
    async with RackedCluster(replica_selector_class=None) as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]])
        await cluster.write(20)
        async with cluster.consumer("orders", client_rack="c", auto_offset_reset="earliest") as consumer:
            assert await read(consumer, 20) == list(range(20))
        assert [cluster.counted(node).bytes_out > 0 for node in RACKS] == [True, False, False]
        assert cluster.counted(1).nominations == 0


async def test_reading_goes_on_when_the_replica_is_killed_and_returns_to_it() -> None:
    async with RackedCluster() as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="1")
        await cluster.write(20)
        async with cluster.consumer(
            "orders", client_rack="c", auto_offset_reset="earliest", metadata_max_age_ms=1000
        ) as consumer:
            assert await read(consumer, 20) == list(range(20))
            await cluster.kill(3)
            await cluster.write(20, first=20)
            assert await read(consumer, 20) == list(range(20, 40))
            await cluster.restart(3)
            first = 40
            while consumer.metrics()["partitions"]["orders-0"]["preferred_read_replica"] != 3:
                await cluster.write(1, first=first)
                assert await read(consumer, 1) == [first]
                first += 1


async def test_reading_goes_on_when_the_replica_becomes_the_leader() -> None:
    async with RackedCluster() as cluster:
        await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="1")
        await cluster.write(20)
        async with cluster.consumer("orders", client_rack="b", auto_offset_reset="earliest") as consumer:
            assert await read(consumer, 20) == list(range(20))
            await cluster.kill(1)
            await cluster.write(20, first=20)
            assert await read(consumer, 20) == list(range(20, 40))


async def test_number_of_fetchers_changes_without_a_restart() -> None:
    async with WireCluster(brokers=2) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2]] * 6)
        async with cluster.admin() as admin:
            for fetchers in (3, 1):
                await admin.alter_configs("broker", "", {"num.replica.fetchers": fetchers})
                await until(lambda: len(cluster.server(2).fetchers) == fetchers, f"broker 2 has {fetchers} fetchers")  # noqa: B023
                for partition in range(6):
                    await cluster.produce(topic, f"{fetchers}", partition=partition)
                    await cluster.in_step(topic.topic_id, [1, 2], partition)
