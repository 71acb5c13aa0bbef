"""Offsets in transactions on real brokers, by raw requests: they count with the records of the transaction, and survive a
fail-over of the group's coordinator."""

from __future__ import annotations

import pytest
from wire_cluster import WireCluster, retried
from wire_groups import GROUP, Groups
from wire_groups import SETTINGS as GROUP_SETTINGS
from wire_transactions import SETTINGS, TransactionalProducer, check, committed_as

from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    GroupTopicPartitions,
    OffsetCommitPartition,
    OffsetFetchGroup,
    OffsetFetchRequest,
)
from strandline.protocol.messages.transactions import TxnOffsetCommitRequest


class Chain:
    """A program that reads `orders`, and writes to it in transactions together with its position."""

    def __init__(self, cluster: WireCluster, topic_id: bytes) -> None:
        self.groups, self.producer, self.topic_id = Groups(cluster), TransactionalProducer(cluster), topic_id

    async def store(self, offset: int) -> None:
        """Store the position in the transaction, with the requests of version 2: nothing else is asked before."""

        async def once() -> None:
            producer = self.producer
            body = TxnOffsetCommitRequest(
                producer.transactional_id,
                GROUP,
                producer.producer_id,
                producer.epoch,
                [OffsetCommitPartition(self.topic_id, 0, offset)],
            )
            check((await self.groups.ask(apis.TXN_OFFSET_COMMIT, body)).partitions[0])

        await retried(once)

    async def position(self) -> int | ErrorCode:
        """The position for the next owner of the partition, or why it has to wait."""
        asked = OffsetFetchGroup(GROUP, topics=[GroupTopicPartitions(self.topic_id, [0])])

        async def once() -> int | ErrorCode:
            found = (await self.groups.ask(apis.OFFSET_FETCH, OffsetFetchRequest([asked], require_stable=True))).groups[0]
            check(found)
            partition = found.partitions[0]
            return ErrorCode(partition.error_code) if partition.error_code else int(partition.committed_offset)

        return await retried(once)

    async def position_becomes(self, offset: int) -> None:
        async def once() -> None:
            if (found := await self.position()) != offset:
                raise BrokerError(ErrorCode.UNSTABLE_OFFSET_COMMIT, f"the position is {found}, and not {offset}")

        await retried(once)


async def test_position_is_committed_with_the_records_or_not_at_all() -> None:
    async with WireCluster(brokers=3, **SETTINGS, **GROUP_SETTINGS) as cluster:
        orders = await cluster.create("orders", replication_factor=3)
        chain = Chain(cluster, orders.topic_id)
        await chain.producer.init()
        await chain.producer.send(orders, "a")
        await chain.store(10)
        topics = {topic.topic: topic.partitions for topic in (await chain.producer.describe()).topics}
        assert set(topics) == {"orders", OFFSETS_TOPIC}
        assert await chain.position() == ErrorCode.UNSTABLE_OFFSET_COMMIT
        await chain.producer.end()
        await chain.position_becomes(10)
        await committed_as(cluster, orders, "a")
        await chain.store(20)
        await chain.producer.end(commit=False)
        await chain.position_becomes(10)
        await chain.store(30)
        await chain.store(31)
        await chain.producer.end()
        await chain.position_becomes(31)


async def test_next_group_coordinator_keeps_the_open_transaction() -> None:
    """The pending position is in the log, so the new coordinator has it when the marker is written."""
    async with WireCluster(brokers=3, **SETTINGS, **GROUP_SETTINGS) as cluster:
        orders = await cluster.create("orders", replication_factor=3)
        chain = Chain(cluster, orders.topic_id)
        await chain.producer.init()
        await chain.store(10)
        await cluster.kill(await chain.groups.coordinator())
        assert await chain.position() == ErrorCode.UNSTABLE_OFFSET_COMMIT
        await chain.store(11)
        await chain.producer.end()
        await chain.position_becomes(11)


async def test_fenced_producer_stores_no_position() -> None:
    """Its successor has aborted its transaction, and reads from the position before it."""
    async with WireCluster(brokers=3, **SETTINGS, **GROUP_SETTINGS) as cluster:
        orders = await cluster.create("orders", replication_factor=3)
        old, new = Chain(cluster, orders.topic_id), Chain(cluster, orders.topic_id)
        await old.producer.init()
        await old.store(10)
        await new.producer.init()
        for offset in (11, 12):
            with pytest.raises(BrokerError) as caught:
                await old.store(offset)
            assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
        await new.position_becomes(-1)
        await new.store(20)
        await new.producer.end()
        await new.position_becomes(20)
