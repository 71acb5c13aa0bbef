"""A throttled reassignment in a simulated cluster: the rate is kept over half a minute, and the ISR does not notice."""

from __future__ import annotations

import asyncio

from strandline.client import TopicPartition
from strandline.testing import Cluster, simulated

MOVED = TopicPartition("moved", 0)
RATE = 100_000
SPAN_S = 30.0


@simulated(seeds=1, faults=None, brokers=4)
async def test_the_rate_is_kept_within_a_tenth_and_no_member_leaves_the_isr(cluster: Cluster) -> None:
    """Meanwhile records are written to the partition: they go to the members of the ISR without delay."""
    loop = asyncio.get_running_loop()
    await cluster.create_topic(MOVED.topic, replicas=[[1, 2, 3]])
    async with cluster.producer() as producer, cluster.admin() as admin:

        async def copied() -> int:
            found = await admin.describe_log_dirs([4], [MOVED.topic])
            return sum(one.replicas[MOVED].size_bytes for one in found[4] if MOVED in one.replicas)

        for _ in range(100):
            await producer.send_and_wait(MOVED.topic, bytes(50_000), partition=0)
        began = loop.time()
        (result,) = await admin.alter_partition_reassignments({MOVED: [1, 2, 4]}, throttle_rate=RATE)
        assert not result.code
        shown: set[tuple[int, ...]] = set()
        while loop.time() < began + SPAN_S:
            sent_at = loop.time()
            await producer.send_and_wait(MOVED.topic, b"meanwhile", partition=0)
            assert loop.time() - sent_at < 0.5
            (topic,) = await admin.describe_topics([MOVED.topic])
            assert {1, 2, 3} <= set(topic.partitions[0].isr)
            assert not topic.partitions[0].is_under_replicated, "the added replica does not count"
            shown.add(topic.partitions[0].adding_replicas)
            await asyncio.sleep(0.5)
        assert (4,) in shown
        size, seconds = await copied(), loop.time() - began
        assert 0.9 * RATE * seconds <= size <= 1.1 * RATE * seconds
        while await admin.list_partition_reassignments():
            await asyncio.sleep(0.5)
        assert loop.time() - began < 1.1 * 5_100_000 / RATE
    await cluster.assert_no_acked_loss()


@simulated(seeds=1, faults=None, brokers=4)
async def test_leaders_together_send_no_more_than_one_receiver_may_get(cluster: Cluster) -> None:
    """Each of three leaders may send a chunk before the receiver has counted the others': the chunks must be small."""
    loop = asyncio.get_running_loop()
    replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2
    await cluster.create_topic("many", replicas=replicas)
    async with cluster.producer() as producer, cluster.admin() as admin:
        for number in range(600):
            await producer.send_and_wait("many", bytes(10_000), partition=number % len(replicas))
        targets = {TopicPartition("many", p): [*of_partition[:2], 4] for p, of_partition in enumerate(replicas)}
        began = loop.time()
        await admin.alter_partition_reassignments({tp: targets[tp] for tp in targets}, throttle_rate=RATE)
        for second in range(1, 31):
            await asyncio.sleep(began + second - loop.time())
            found = await admin.describe_log_dirs([4], ["many"])
            size = sum(info.size_bytes for one in found[4] for info in one.replicas.values())
            # At most half a second's burst, two chunks of each leader, and the rest of a batch.
            assert size <= RATE * (second + 1.5), second
        assert size >= 0.9 * RATE * 30
