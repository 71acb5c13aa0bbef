"""The group coordinator of real brokers, asked by raw requests: it is found, loaded, moved, and refuses what it must."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until
from wire_cluster import WireCluster, retried
from wire_groups import GROUP, SETTINGS, Groups

from strandline.broker.coordination.partitioning import partition_of
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from strandline.protocol.messages.data import DeleteRecordsPartition, DeleteRecordsRequest
from strandline.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupTopicPartitions,
    JoinGroupProtocol,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)


async def test_first_question_creates_the_internal_topic() -> None:
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        groups = Groups(cluster)
        leader = await groups.coordinator()
        topic = await cluster.topic(OFFSETS_TOPIC)
        assert topic.is_internal
        assert len(topic.partitions) == 3
        assert {len(partition.replica_nodes) for partition in topic.partitions} == {3}
        assert topic.partitions[partition_of(GROUP, 3)].leader_id == leader


async def test_too_few_brokers_for_the_topic_are_named() -> None:
    """The most common trap of a first cluster: the sentence must say which setting it is."""
    async with WireCluster(brokers=1, offsets_topic_replication_factor=3) as cluster:
        for _ in range(2):
            found = (await cluster.ask(1, apis.FIND_COORDINATOR, FindCoordinatorRequest([GROUP]))).coordinators[0]
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "offsets.topic.replication.factor" in (found.error_message or "")


async def test_member_gets_partitions_and_commits_survive_the_coordinator() -> None:
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        groups = Groups(cluster)
        topic = await cluster.create("orders", partitions=2, replication_factor=3)
        joined = await groups.join("m1", "orders")
        assert joined.assignment == [GroupTopicPartitions(topic.topic_id, [0, 1])]
        assert await groups.commit("m1", joined.member_epoch, topic.topic_id, {0: 5, 1: 7}) == [0, 0]
        assert await groups.committed() == {0: 5, 1: 7}
        before = await groups.coordinator()
        await cluster.kill(before)
        await until(lambda: before not in cluster.running, "the coordinator is dead")
        assert await groups.committed() == {0: 5, 1: 7}
        answer = await groups.heartbeat("m1", joined.member_epoch)
        assert answer.member_epoch == joined.member_epoch
        assert await groups.commit("m1", joined.member_epoch, topic.topic_id, {0: 6}) == [0]
        assert await groups.committed() == {0: 6, 1: 7}


async def test_two_members_share_without_overlap() -> None:
    """The first member gives up a partition before the second one gets it."""
    async with WireCluster(brokers=1, **SETTINGS, group_consumer_assignment_interval_ms=0) as cluster:
        groups = Groups(cluster)
        topic = await cluster.create("orders", partitions=2)
        first = await groups.join("m1", "orders")
        second = await groups.join("m2", "orders")
        assert second.assignment in (None, [])
        reduced = await groups.heartbeat("m1", first.member_epoch)
        assert reduced.assignment is not None
        (kept,) = reduced.assignment[0].partitions
        assert (await groups.heartbeat("m2", second.member_epoch)).assignment in (None, [])
        await groups.heartbeat("m1", reduced.member_epoch, topic_partitions=[GroupTopicPartitions(topic.topic_id, [kept])])
        given = await groups.heartbeat("m2", second.member_epoch)
        assert given.assignment == [GroupTopicPartitions(topic.topic_id, [1 - kept])]
        described = (await groups.ask(apis.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest([GROUP]))).groups[0]
        assert {member.member_id for member in described.members} == {"m1", "m2"}


async def test_classic_group_synchronises_and_returns_after_a_move() -> None:
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        groups = Groups(cluster)
        topic = await cluster.create("orders", replication_factor=3)
        request = JoinGroupRequest(GROUP, 30_000, 30_000, "", None, "consumer", [JoinGroupProtocol("range", b"m")])
        first = await groups.ask(apis.JOIN_GROUP, request)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        request.member_id = first.member_id
        joined = await groups.ask(apis.JOIN_GROUP, request)
        assert (joined.leader, joined.generation_id) == (first.member_id, 1)
        mine = [SyncGroupAssignment(first.member_id, b"all")]
        synced = await groups.ask(apis.SYNC_GROUP, SyncGroupRequest(GROUP, 1, first.member_id, None, "consumer", "range", mine))
        assert synced.assignment == b"all"
        assert await groups.commit(first.member_id, 1, topic.topic_id, {0: 3}) == [0]
        await cluster.kill(await groups.coordinator())
        described = (await groups.ask(apis.DESCRIBE_GROUPS, DescribeGroupsRequest([GROUP]))).groups[0]
        while described.error_code:
            described = (await groups.ask(apis.DESCRIBE_GROUPS, DescribeGroupsRequest([GROUP]))).groups[0]
        assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"all")
        assert await groups.committed() == {0: 3}


async def test_group_without_members_is_deleted_with_its_offsets() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        groups = Groups(cluster)
        topic = await cluster.create("orders")
        joined = await groups.join("m1", "orders")
        await groups.commit("m1", joined.member_epoch, topic.topic_id, {0: 1})
        answer = (await groups.ask(apis.DELETE_GROUPS, DeleteGroupsRequest([GROUP]))).results[0]
        assert answer.error_code == ErrorCode.NON_EMPTY_GROUP
        await groups.heartbeat("m1", -1)
        assert [(g.group_id, g.group_state) for g in (await groups.ask(apis.LIST_GROUPS, ListGroupsRequest())).groups] == [
            (GROUP, "Empty")
        ]
        assert (await groups.ask(apis.DELETE_GROUPS, DeleteGroupsRequest([GROUP]))).results[0].error_code == 0
        assert await groups.committed() == {}
        assert (await groups.ask(apis.LIST_GROUPS, ListGroupsRequest())).groups == []
        answer = (await groups.ask(apis.DELETE_GROUPS, DeleteGroupsRequest([GROUP]))).results[0]
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_offsets_of_a_deleted_topic_are_gone() -> None:
    """Otherwise a topic that is recreated under the name would be read from an offset of the old one."""
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        groups = Groups(cluster)
        topic = await cluster.create("orders")
        assert await groups.commit("", -1, topic.topic_id, {0: 9}) == [0]
        deletion = DeleteTopicsRequest([DeleteTopicState("orders")])
        assert (await cluster.ask(1, apis.DELETE_TOPICS, deletion)).topics[0].error_code == 0
        await cluster.create("orders")
        async with asyncio.timeout(10):
            while await groups.committed():
                await asyncio.sleep(0.01)


async def test_clients_do_not_write_to_the_internal_topic() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        groups = Groups(cluster)
        leader = await groups.coordinator()
        topic = await cluster.topic(OFFSETS_TOPIC)
        answer = await cluster.produce_to(leader, topic.topic_id, "forged")
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        deletion = DeleteRecordsRequest([DeleteRecordsPartition(topic.topic_id, 0, 0)], 1000)
        assert (await cluster.ask(leader, apis.DELETE_RECORDS, deletion)).partitions[0].error_code == (
            ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        growth = CreatePartitionsRequest([CreatePartitionsTopic(OFFSETS_TOPIC, 9)])
        result = (await cluster.ask(leader, apis.CREATE_PARTITIONS, growth)).results[0]
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_another_broker_is_not_the_coordinator() -> None:
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        groups = Groups(cluster)
        leader = await groups.coordinator()
        other = next(node for node in cluster.running if node != leader)
        with pytest.raises(BrokerError) as refused:
            await cluster.ask(other, apis.CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatRequest(GROUP, "m1", 1))
        assert refused.value.code == ErrorCode.NOT_COORDINATOR


async def test_closed_connection_ends_a_session_sooner() -> None:
    """A member that promised to return at once and whose process closed the connection is gone after the grace."""
    settings = {**SETTINGS, "group_consumer_connection_loss_grace_ms": 50, "group_consumer_session_timeout_ms": 60_000}
    async with WireCluster(brokers=1, **settings) as cluster:
        groups = Groups(cluster)
        await cluster.create("orders")
        await groups.heartbeat(
            "m1",
            0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
            returns_at_once=True,
        )
        assert [g.group_state for g in (await groups.ask(apis.LIST_GROUPS, ListGroupsRequest())).groups] == ["Stable"]
        await cluster.disconnect(1)
        async with asyncio.timeout(10):
            while [g.group_state for g in (await groups.ask(apis.LIST_GROUPS, ListGroupsRequest())).groups] != ["Empty"]:
                await asyncio.sleep(0.01)


async def test_commit_waits_for_the_replicas() -> None:
    """A commit that one broker alone has is not acknowledged: the next coordinator would not know it."""
    settings = {**SETTINGS, "min_insync_replicas": 2, "offsets_commit_timeout_ms": 300, "replica_lag_time_max_ms": 500}
    async with WireCluster(brokers=2, **settings) as cluster:
        groups = Groups(cluster)
        topic = await cluster.create("orders", replication_factor=2)
        assert await groups.commit("", -1, topic.topic_id, {0: 1}) == [0]
        leader = await groups.coordinator()
        other = next(node for node in cluster.running if node != leader)
        await cluster.kill(other)
        items = [OffsetCommitPartition(topic.topic_id, 0, 2)]
        with pytest.raises(BrokerError) as refused:
            await cluster.ask(leader, apis.OFFSET_COMMIT, OffsetCommitRequest(GROUP, -1, "", None, items))
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await groups.committed() == {0: 1}
        await cluster.start(other)

        async def again() -> list[int]:
            return await groups.commit("", -1, topic.topic_id, {0: 2})

        assert await retried(again) == [0]
        assert await groups.committed() == {0: 2}
