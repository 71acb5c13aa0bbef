"""S42 with everything real but the disks: a bit flips on one replica, and the cluster mends it without losing a record."""

from __future__ import annotations

from cluster import Cluster, wait_until

from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import MetadataTopic
from strandline.storage.files import MemoryFiles

COUNT = 30
DAMAGED = 7


def segment(node: int) -> str:
    return f"/data/broker-{node}/orders-0/00000000000000000000.log"


def memory(cluster: Cluster, node: int) -> MemoryFiles:
    files = cluster.files[node]
    assert isinstance(files, MemoryFiles)
    return files


def flip(files: MemoryFiles, node: int) -> None:
    """A bit in the last field of the batch at offset DAMAGED; all batches have one record and the same size."""
    size = len(files.read(segment(node))) // COUNT
    files.flip_bit(segment(node), (DAMAGED * size + size - 3) * 8)


async def filled(cluster: Cluster) -> MetadataTopic:
    topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2", index_interval_bytes="200")
    for number in range(COUNT):
        await cluster.produce(topic, f"value-{number:04}")
    await cluster.in_step(topic.topic_id, [1, 2, 3])
    return topic


async def all_are_equal_and_in_sync(cluster: Cluster, topic: MetadataTopic) -> None:
    def isrs() -> list[list[int]]:
        found = [broker.metadata.image.partition((topic.topic_id, 0)) for broker in cluster.brokers.values()]
        return [sorted(registration.isr) for registration in found if registration is not None]

    await cluster.in_step(topic.topic_id, [1, 2, 3])
    assert len({memory(cluster, node).read(segment(node)) for node in (1, 2, 3)}) == 1
    await wait_until(lambda: isrs() == [[1, 2, 3]] * 3, what="a full ISR")


async def test_a_replica_that_was_killed_and_finds_damage_repairs_itself_from_its_leader() -> None:
    async with Cluster(brokers=3) as cluster:
        topic = await filled(cluster)
        checkpoint = cluster.brokers[2].replicas
        checkpoint.checkpoint_high_watermarks()
        await wait_until(lambda: not checkpoint._is_checkpointing, what="the checkpoint is written")
        await cluster.kill(2)
        flip(memory(cluster, 2), 2)
        await cluster.start(2)
        await cluster.ready()
        await all_are_equal_and_in_sync(cluster, topic)
        await cluster.produce(topic, "after")
        await cluster.in_step(topic.topic_id, [1, 2, 3])


async def test_a_follower_that_meets_damage_leaves_the_isr_repairs_itself_and_joins_again() -> None:
    """Nothing is written meanwhile: the repair does not wait for news from the leader."""
    async with Cluster(brokers=3) as cluster:
        topic = await filled(cluster)
        cluster.brokers[2].replicas.partitions[topic.topic_id, 0].log.tail.clear()
        flip(memory(cluster, 2), 2)
        before = cluster.brokers[1].replicas.partitions[topic.topic_id, 0].partition_epoch
        answer, values = await cluster.fetch(2, topic.topic_id, DAMAGED)
        assert (answer.error_code, values) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        log = cluster.brokers[2].replicas.partitions[topic.topic_id, 0].log
        await wait_until(lambda: log.corrupt_at is None, what="the damage is gone")
        await all_are_equal_and_in_sync(cluster, topic)
        after = cluster.brokers[1].replicas.partitions[topic.topic_id, 0].partition_epoch
        assert after >= before + 2, "it left the ISR and came back"
        _, values = await cluster.fetch(2, topic.topic_id, DAMAGED)
        assert values[0] == f"value-{DAMAGED:04}"
