"""The last member of an ISR, and who else has every committed record (S25, "last replica standing")."""

from __future__ import annotations

import pytest
from cluster import Cluster, wait_until

from strandline.protocol.records.reader import iter_records
from strandline.storage.files import MemoryFiles


@pytest.mark.xfail(strict=True, reason="eligible leader replicas (KIP-966) are not offered yet: the last of the ISR leads again")
async def test_the_last_replica_standing_may_lose_its_page_cache() -> None:
    """Two of three replicas stop in order, the third loses power and its unflushed records: one lossy crash, fewer than
    min.insync.replicas. The two had everything that was acknowledged, and must lead before the third one does."""
    async with Cluster(controllers=1, brokers=3, controlled_shutdown_timeout_ms=3000) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        for number in range(20):
            await cluster.produce(topic, f"{number}" * 300)
        for node in (2, 3):
            await cluster.stop(node)
        await cluster.kill(1)
        files = cluster.files[1]
        assert isinstance(files, MemoryFiles)
        path = "/data/broker-1/orders-0/00000000000000000000.log"
        before = files.size(path)
        while files.exists(path) and files.size(path) == before:
            files.crash(lossy=True)
        for node in (1, 2, 3):
            await cluster.start(node)
        await cluster.ready()
        await wait_until(lambda: cluster.brokers[1].replicas.partitions[topic.topic_id, 0].leader_id > 0, what="a leader")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        assert len(list(iter_records(cluster.log_bytes(1, topic.topic_id)))) == 20
