"""A broker prints what its group coordinator does."""

from __future__ import annotations

import math

from metrics_world import Scrape, Watch
from waiting import until
from wire_cluster import WireCluster
from wire_groups import GROUP, SETTINGS, Groups

from strandline.protocol import apis
from strandline.protocol.messages.admin import DeleteTopicsRequest, DeleteTopicState
from strandline.protocol.messages.groups import (
    DeleteGroupsRequest,
    GroupTopicPartitions,
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetDeleteRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)

COORDINATOR = "kafka_server_group_coordinator_metrics_"
MANAGER = "kafka_coordinator_group_groupmetadatamanager_"


def states_of_consumer_groups(scrape: Scrape) -> dict[str, float]:
    name = COORDINATOR + "consumer_group_count"
    return {s.labels["state"]: s.value for s in scrape.samples if s.name == name and s.value}


async def test_groups_offsets_and_rebalances_are_counted() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        topic = await cluster.create("orders", partitions=2)
        joined = await groups.join("m1", "orders")
        assert await groups.commit("m1", joined.member_epoch, topic.topic_id, {0: 5, 1: 7}) == [0, 0]
        assert await groups.commit("m1", joined.member_epoch, topic.topic_id, {0: 6}) == [0]
        assert await groups.commit("", -1, topic.topic_id, {0: 1}, "without members") == [0]
        scrape = watch.node(1)
        assert scrape.value("strandline_scrape_errors_total") == 0
        assert scrape.value(COORDINATOR + "num_partitions", state="active") == 3
        assert scrape.value(COORDINATOR + "num_partitions", state="loading") == 0
        assert scrape.value(COORDINATOR + "group_count", protocol="consumer") == 1
        assert scrape.value(COORDINATOR + "group_count", protocol="classic") == 1
        assert states_of_consumer_groups(scrape) == {"Stable": 1}
        assert scrape.value(MANAGER + "numgroups") == scrape.value(MANAGER + "numgroupsempty") == 1
        assert scrape.value(MANAGER + "numoffsets") == 3
        assert scrape.value(COORDINATOR + "offset_commit_count") == 4
        assert scrape.value(COORDINATOR + "consumer_group_rebalance_count") == 1
        assert scrape.value(COORDINATOR + "group_completed_rebalance_count") == 0
        assert scrape.value("strandline_group_load_seconds_count") == 3
        assert scrape.value("strandline_group_append_seconds_count") >= 4

        await groups.heartbeat("m1", -1)
        scrape = watch.node(1)
        assert states_of_consumer_groups(scrape) == {"Empty": 1}
        assert scrape.value(COORDINATOR + "consumer_group_rebalance_count") == 2


async def test_deleted_offsets_are_counted_by_their_cause() -> None:
    """Offsets of a deleted topic are in neither of Kafka's counters."""
    async with WireCluster(brokers=1, **SETTINGS, offsets_retention_check_interval_ms=20) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        topic = await cluster.create("orders", partitions=3)
        gone = await cluster.create("gone")
        assert await groups.commit("", -1, topic.topic_id, {0: 5, 1: 7, 2: 9}) == [0, 0, 0]
        assert await groups.commit("", -1, gone.topic_id, {0: 5}) == [0]
        await groups.ask(apis.OFFSET_DELETE, OffsetDeleteRequest(GROUP, [GroupTopicPartitions(topic.topic_id, [0])]))
        await cluster.ask(1, apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("gone")]))
        await until(lambda: watch.node(1).value(MANAGER + "numoffsets") == 2, "the offset of the deleted topic is gone")
        assert watch.node(1).value(COORDINATOR + "offset_deletion_count") == 1
        assert (await groups.ask(apis.DELETE_GROUPS, DeleteGroupsRequest([GROUP]))).results[0].error_code == 0
        scrape = watch.node(1)
        assert scrape.value(COORDINATOR + "offset_deletion_count") == 3
        assert scrape.value(COORDINATOR + "offset_expiration_count") == scrape.value(MANAGER + "numoffsets") == 0


async def test_rebalance_of_a_classic_group_is_counted_when_it_has_an_assignment() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        request = JoinGroupRequest(GROUP, 30_000, 30_000, "", None, "consumer", [JoinGroupProtocol("range", b"m")])
        request.member_id = (await groups.ask(apis.JOIN_GROUP, request)).member_id
        assert (await groups.ask(apis.JOIN_GROUP, request)).generation_id == 1
        scrape = watch.node(1)
        assert scrape.value(MANAGER + "numgroupscompletingrebalance") == scrape.value(MANAGER + "numgroups") == 1
        assert scrape.value(COORDINATOR + "group_completed_rebalance_count") == 0
        mine = [SyncGroupAssignment(request.member_id, b"all")]
        await groups.ask(apis.SYNC_GROUP, SyncGroupRequest(GROUP, 1, request.member_id, None, "consumer", "range", mine))
        scrape = watch.node(1)
        assert scrape.value(MANAGER + "numgroupsstable") == 1
        assert scrape.value(COORDINATOR + "group_completed_rebalance_count") == 1


async def test_load_after_a_failover_counts_no_commits() -> None:
    """To `rate()` the records of a load would look like a storm of commits."""
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        topic = await cluster.create("orders", replication_factor=3)
        assert await groups.commit("", -1, topic.topic_id, {0: 5}) == [0]
        await cluster.kill(await groups.coordinator())
        assert await groups.committed() == {0: 5}
        assert watch.sum(COORDINATOR + "offset_commit_count") == 0
        assert watch.sum(MANAGER + "numoffsets") == 1
        assert watch.sum(COORDINATOR + "num_partitions", state="active") == 3
        recent = [scrape.value(COORDINATOR + "partition_load_time_max") for scrape in watch.brokers()]
        assert any(not math.isnan(ms) and ms >= 0 for ms in recent)


async def test_commits_wait_for_replicas_and_the_wait_is_measured() -> None:
    async with WireCluster(brokers=2, **SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        topic = await cluster.create("orders", replication_factor=2)
        assert await groups.commit("", -1, topic.topic_id, {0: 5}) == [0]
        assert watch.sum("strandline_group_commit_wait_seconds_count") >= 1
        assert 0 < watch.sum("strandline_group_commit_wait_seconds_sum") < 10
