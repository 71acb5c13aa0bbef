"""The compacted topic `users` of the tests on real servers: small segments, cleaned as soon as they are dirty."""

from __future__ import annotations

from wire_cluster import WireCluster

from strandline.client import NewTopic, TopicPartition

PLACE = TopicPartition("users", 0)
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}


async def create(cluster: WireCluster, **configs: str) -> None:
    """Create the topic with one partition on three brokers."""
    async with cluster.admin() as admin:
        await admin.create_topics([NewTopic("users", 1, 3, configs={**COMPACTED, **configs})])
