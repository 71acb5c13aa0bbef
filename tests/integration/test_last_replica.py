"""The last member of an ISR loses records that other replicas still have (S25, "last replica standing")."""

from __future__ import annotations

from waiting import until
from wire_cluster import WireCluster

from strandline.protocol.records.reader import iter_records


async def test_acknowledged_records_survive_a_lost_page_cache_of_the_last_replica() -> None:
    """Two of three replicas stop in order, the third loses power and its unflushed records: one lossy crash, fewer than
    min.insync.replicas. The two had everything that was acknowledged, and must lead before the third one does."""
    async with WireCluster(controllers=1, brokers=3, controlled_shutdown_timeout_ms=3000) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        for number in range(20):
            await cluster.produce(topic, f"{number}" * 300)
        for node in (2, 3):
            await cluster.stop(node)
        await cluster.kill(1)
        files = cluster.disk(1)
        path = "/data/broker-1/orders-0/00000000000000000000.log"
        before = files.size(path)
        while files.exists(path) and files.size(path) == before:
            files.crash(lossy=True)
        await cluster.start(1, 2, 3)
        await until(lambda: cluster.replica(1, topic.topic_id).leader_id > 0, "a leader")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        assert len(list(iter_records(cluster.log_bytes(1, topic.topic_id)))) == 20
