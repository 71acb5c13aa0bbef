"""Brokers and their controllers: fail-over of the active controller, an expired session, metadata after a restart."""

from __future__ import annotations

import asyncio

from waiting import until
from wire_cluster import WireCluster

from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_SET,
    PREFERRED_ELECTION,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ElectLeadersPartition,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from strandline.protocol.messages.cluster import DescribeQuorumRequest
from strandline.protocol.messages.data import InitProducerIdRequest
from strandline.testing import fenced


def active(cluster: WireCluster) -> int | None:
    return cluster.hosted.controller()


async def test_a_new_active_controller_does_not_interrupt_producers() -> None:
    async with WireCluster(controllers=3, brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        old = await cluster.active_controller()
        await cluster.stop(old)
        answer = await cluster.produce_to(1, topic.topic_id, "b", timeout_ms=1000)
        assert answer.error_code == ErrorCode.NONE, "acknowledged by all, no controller needed"
        async with asyncio.timeout(10):
            await cluster.create("payments", replication_factor=3)
        assert active(cluster) != old
        known = [cluster.server(node).metadata.controller for node in cluster.running]
        assert {controller and controller[0].id for controller in known} == {active(cluster)}
        await cluster.start(old)
        await cluster.kill(1)
        await cluster.produce(topic, "c")


async def test_a_broker_with_an_expired_session_returns_by_itself() -> None:
    """The session expired in a long pause: the broker is fenced, learns of it, and is unfenced with the same broker epoch."""
    async with WireCluster(brokers=2) as cluster:
        broker = cluster.server(2)
        epoch = broker.lifecycle.broker_epoch
        controller = cluster.server(101)
        image = lambda: cluster.server(1).metadata.image.brokers[2]  # noqa: E731
        await cluster.inside(2, broker.lifecycle.stop)
        await until(lambda: image().fenced, "the session ends")
        await cluster.inside(2, broker.lifecycle.start)
        await cluster.until(~fenced(2))
        assert broker.lifecycle.broker_epoch == epoch
        assert controller.quorum.is_leader


async def test_a_restarted_broker_learns_missed_metadata() -> None:
    async with WireCluster(brokers=2) as cluster:
        first = await cluster.create("first", replicas=[[1, 2]])
        await cluster.stop(2)
        second = await cluster.create("second", replicas=[[1]])
        gone = await cluster.ask(1, apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("first")]))
        assert gone.topics[0].error_code == ErrorCode.NONE
        await cluster.start(2)
        assert [t.name for t in (await cluster.metadata(2, "second")).topics] == ["second"]
        assert (first.topic_id, 0) not in cluster.server(2).replicas.partitions
        assert (second.topic_id, 0) not in cluster.server(2).replicas.partitions
        # The metadata knows none of this broker's logs, as that of a quorum that lost its disks would: nothing is deleted.
        files = cluster.disk(2)
        logs = [name for name in files.list("/data/broker-2") if name.startswith("first-0")]
        assert len(logs) == 1
        assert logs[0].endswith("-stray")


async def test_a_recreated_topic_does_not_get_the_old_bytes() -> None:
    async with WireCluster(brokers=2) as cluster:
        old = await cluster.create("orders", replicas=[[1, 2]])
        await cluster.produce(old, "old")
        await cluster.kill(2)
        await cluster.ask(1, apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("orders")]))
        new = await cluster.create("orders", replicas=[[1]])
        assert new.topic_id != old.topic_id
        await cluster.produce(new, "new")
        await cluster.start(2)
        answer, _ = await cluster.fetch(2, old.topic_id)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        _, values = await cluster.fetch(1, new.topic_id)
        assert values == ["new"]


async def test_a_forwarded_decision_is_visible_at_the_forwarding_broker() -> None:
    async with WireCluster(controllers=3, brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]])
        added = await cluster.ask(2, apis.CREATE_PARTITIONS, CreatePartitionsRequest([CreatePartitionsTopic("orders", 3)]))
        assert added.results[0].error_code == ErrorCode.NONE
        assert len((await cluster.topic("orders", 2)).partitions) == 3

        resource = AlterConfigsResource(RESOURCE_TOPIC, "orders", [AlterableConfig("min.insync.replicas", CONFIG_SET, "2")])
        altered = await cluster.ask(3, apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource]))
        assert altered.responses[0].error_code == ErrorCode.NONE
        described = await cluster.ask(
            3,
            apis.DESCRIBE_CONFIGS,
            DescribeConfigsRequest([DescribeConfigsResource(RESOURCE_TOPIC, "orders", ["min.insync.replicas"])]),
        )
        assert described.results[0].configs[0].value == "2"
        await until(lambda: cluster.replica(1, topic.topic_id).min_insync_replicas == 2)

        await cluster.stop(1)
        assert (await cluster.partition_of("orders")).leader_id == 2
        await cluster.start(1)
        leader = cluster.replica(2, topic.topic_id)
        await until(lambda: leader.leader_state is not None and len(leader.leader_state.isr.isr) == 3, "1 is back")
        elected = await cluster.ask(
            3, apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, [ElectLeadersPartition("orders", 0)])
        )
        assert elected.results[0].error_code == ErrorCode.NONE
        assert (await cluster.topic("orders", 3)).partitions[0].leader_id == 1

        quorum = await cluster.ask(3, apis.DESCRIBE_QUORUM, DescribeQuorumRequest())
        assert quorum.leader_id == active(cluster)
        assert {observer.replica_id for observer in quorum.observers} == {1, 2, 3}


async def test_producer_ids_of_all_brokers_differ() -> None:
    async with WireCluster(brokers=3) as cluster:
        answers = [await cluster.ask(node, apis.INIT_PRODUCER_ID, InitProducerIdRequest()) for node in (1, 2, 3, 1, 2)]
        ids = [answer.producer_id for answer in answers]
        assert len(set(ids)) == len(ids)
        assert min(ids) >= 0
