"""Brokers and their controllers: fail-over of the active one, a session that ends, metadata that has to be learned anew."""

from __future__ import annotations

import asyncio

from cluster import Cluster, wait_until

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


def active(cluster: Cluster) -> int:
    return next(node for node, controller in cluster.controllers.items() if controller.quorum.is_leader)


async def test_the_data_path_does_not_notice_a_new_active_controller_and_decisions_go_on() -> None:
    async with Cluster(controllers=3, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        old = active(cluster)
        await cluster.stop(old)
        answer = await cluster.produce_to(1, topic.topic_id, "b", timeout_ms=1000)
        assert answer.error_code == ErrorCode.NONE, "acknowledged by all, no controller needed"
        async with asyncio.timeout(10):
            await cluster.create_topic("payments", replication=3)
        assert active(cluster) != old
        known = [broker.metadata.controller for broker in cluster.brokers.values()]
        assert {controller and controller[0].id for controller in known} == {active(cluster)}
        await cluster.start(old)
        await cluster.kill(1)
        await cluster.produce(topic, "c")


async def test_a_broker_that_the_controller_forgot_to_hear_from_comes_back_by_itself() -> None:
    """Its session ended (a long pause): it is fenced, hears of it, and is unfenced again, with the same broker epoch."""
    async with Cluster(brokers=2) as cluster:
        broker = cluster.brokers[2]
        epoch = broker.lifecycle.broker_epoch
        controller = cluster.controllers[101]
        image = lambda: cluster.brokers[1].metadata.image.brokers[2]  # noqa: E731
        await broker.lifecycle.stop()
        await wait_until(lambda: image().fenced, what="the session ends")
        broker.lifecycle.start()
        await cluster.ready()
        assert broker.lifecycle.broker_epoch == epoch
        assert controller.quorum.is_leader


async def test_a_broker_that_was_away_learns_all_from_the_quorum() -> None:
    async with Cluster(brokers=2) as cluster:
        first = await cluster.create_topic("first", replicas=[[1, 2]])
        await cluster.stop(2)
        second = await cluster.create_topic("second", replicas=[[1]])
        gone = await cluster.ask(1, apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("first")]))
        assert gone.topics[0].error_code == ErrorCode.NONE
        await cluster.start(2)
        await cluster.ready()
        assert [t.name for t in (await cluster.metadata(2, "second")).topics] == ["second"]
        assert (first.topic_id, 0) not in cluster.brokers[2].replicas.partitions
        assert (second.topic_id, 0) not in cluster.brokers[2].replicas.partitions
        # The metadata knows none of this broker's logs, as that of a quorum that lost its disks would: nothing is deleted.
        files = cluster.files[2]
        logs = [name for name in files.list("/data/broker-2") if name.startswith("first-0")]
        assert len(logs) == 1
        assert logs[0].endswith("-stray")


async def test_a_topic_that_was_deleted_and_made_anew_meanwhile_does_not_get_the_old_bytes() -> None:
    async with Cluster(brokers=2) as cluster:
        old = await cluster.create_topic("orders", replicas=[[1, 2]])
        await cluster.produce(old, "old")
        await cluster.kill(2)
        await cluster.ask(1, apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("orders")]))
        new = await cluster.create_topic("orders", replicas=[[1]])
        assert new.topic_id != old.topic_id
        await cluster.produce(new, "new")
        await cluster.start(2)
        await cluster.ready()
        answer, _ = await cluster.fetch(2, old.topic_id)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        _, values = await cluster.fetch(1, new.topic_id)
        assert values == ["new"]


async def test_every_decision_is_passed_on_and_seen_at_once_by_the_broker_that_passed_it_on() -> None:
    async with Cluster(controllers=3, brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]])
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
        await wait_until(lambda: cluster.brokers[1].replicas.partitions[topic.topic_id, 0].min_insync_replicas == 2)

        await cluster.stop(1)
        assert (await cluster.partition("orders")).leader_id == 2
        await cluster.start(1)
        await cluster.ready()
        leader = cluster.brokers[2].replicas.partitions[topic.topic_id, 0]
        await wait_until(lambda: leader.leader_state is not None and len(leader.leader_state.isr.isr) == 3, what="1 is back")
        elected = await cluster.ask(
            3, apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, [ElectLeadersPartition("orders", 0)])
        )
        assert elected.results[0].error_code == ErrorCode.NONE
        assert (await cluster.topic("orders", 3)).partitions[0].leader_id == 1

        quorum = await cluster.ask(3, apis.DESCRIBE_QUORUM, DescribeQuorumRequest())
        assert quorum.leader_id == active(cluster)
        assert {observer.replica_id for observer in quorum.observers} == {1, 2, 3}


async def test_producer_ids_of_all_brokers_differ() -> None:
    async with Cluster(brokers=3) as cluster:
        answers = [await cluster.ask(node, apis.INIT_PRODUCER_ID, InitProducerIdRequest()) for node in (1, 2, 3, 1, 2)]
        ids = [answer.producer_id for answer in answers]
        assert len(set(ids)) == len(ids)
        assert min(ids) >= 0
