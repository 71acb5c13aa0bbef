"""S42 with real servers and simulated disks: a bit flips on one replica, and the cluster repairs it without loss."""

from __future__ import annotations

from waiting import until
from wire_cluster import WireCluster

from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import MetadataTopic
from strandline.storage.files import MemoryFiles

COUNT = 30
DAMAGED = 7


def segment(node: int) -> str:
    return f"/data/broker-{node}/orders-0/00000000000000000000.log"


def flip(files: MemoryFiles, node: int) -> None:
    """Flip a bit in the last field of the batch at offset DAMAGED. All batches have one record and the same size."""
    size = len(files.read(segment(node))) // COUNT
    files.flip_bit(segment(node), (DAMAGED * size + size - 3) * 8)


async def filled(cluster: WireCluster) -> MetadataTopic:
    topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2", index_interval_bytes="200")
    for number in range(COUNT):
        await cluster.produce(topic, f"value-{number:04}")
    await cluster.in_step(topic.topic_id, [1, 2, 3])
    return topic


async def all_are_equal_and_in_sync(cluster: WireCluster, topic: MetadataTopic) -> None:
    def isrs() -> list[list[int]]:
        found = [cluster.server(node).metadata.image.partition((topic.topic_id, 0)) for node in cluster.running]
        return [sorted(registration.isr) for registration in found if registration is not None]

    await until(lambda: isrs() == [[1, 2, 3]] * 3, "a full ISR")
    await cluster.in_step(topic.topic_id, [1, 2, 3])
    assert len({cluster.disk(node).read(segment(node)) for node in (1, 2, 3)}) == 1


async def test_a_restarted_replica_repairs_damage_from_its_leader() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic = await filled(cluster)
        checkpoint = cluster.server(2).replicas
        await cluster.inside(2, checkpoint.checkpoint_high_watermarks)
        await until(lambda: not checkpoint._is_checkpointing, "the checkpoint is written")
        await cluster.kill(2)
        flip(cluster.disk(2), 2)
        await cluster.start(2)
        await all_are_equal_and_in_sync(cluster, topic)
        await cluster.produce(topic, "after")
        await cluster.in_step(topic.topic_id, [1, 2, 3])


async def test_a_damaged_follower_leaves_the_isr_and_returns_repaired() -> None:
    """No record is written meanwhile, so the repair must not wait for new records from the leader."""
    async with WireCluster(brokers=3) as cluster:
        topic = await filled(cluster)
        cluster.replica(2, topic.topic_id).log.tail.clear()
        flip(cluster.disk(2), 2)
        before = cluster.replica(1, topic.topic_id).partition_epoch
        answer, values = await cluster.fetch(2, topic.topic_id, DAMAGED)
        assert (answer.error_code, values) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        log = cluster.replica(2, topic.topic_id).log
        await until(lambda: log.corrupt_at is None, "the damage is gone")
        await all_are_equal_and_in_sync(cluster, topic)
        after = cluster.replica(1, topic.topic_id).partition_epoch
        assert after >= before + 2, "it left the ISR and came back"
        _, values = await cluster.fetch(2, topic.topic_id, DAMAGED)
        assert values[0] == f"value-{DAMAGED:04}"
