"""A partition with an empty ISR and no leader (KIP-966) in a running cluster: all its replicas have lost records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.cli.health import judge_cluster
from strandline.client import Producer, RequestTimeout
from strandline.controller.decision import Decision
from strandline.controller.metadata.records import NO_LEADER, PartitionChangeRecord
from strandline.observe.broker import broker_readings
from strandline.observe.controller import controller_readings
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import MetadataTopic


async def write(cluster: WireCluster, topic: MetadataTopic, **change: Any) -> None:
    """Let the active controller write a change of partition 0, and wait until every running broker has applied it."""
    controller = await cluster.active_controller()
    done: list[Any] = []

    def submit() -> None:
        record = PartitionChangeRecord(topic.topic_id, 0, **change)
        cluster.server(controller).controller.submit(lambda _: Decision(None, [record]), done.append)

    await cluster.inside(controller, submit)
    await until(lambda: bool(done), "the record is committed")
    assert done == [None]
    offset = cluster.server(controller).controller.committed.offset
    await until(lambda: all(cluster.server(node).metadata.image.offset >= offset for node in cluster.running), "all have it")


def readings(server: Any, of: Any) -> dict[str, Any]:
    return {found.name: found.value for reading in of() for found in reading(server) if not found.labels}


async def test_a_partition_without_isr_is_unavailable_until_it_has_a_leader() -> None:
    """It is described, counted and served as one without a leader. Clients wait, and continue when it has a leader; no node
    fails, and none elects a leader by itself: when brokers restart, when the controllers change, from a snapshot."""
    async with WireCluster(controllers=3, brokers=3, min_insync_replicas=2) as cluster, cluster.admin() as admin:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], unclean_recovery_strategy="none")
        await cluster.produce(topic, "before")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        await write(cluster, topic, isr=(), leader=NO_LEADER, eligible_leader_replicas=(), last_known_elr=(1,))

        (described,) = (await admin.describe_topics(["orders"]))[0].partitions
        assert (described.leader_id, described.isr, described.replicas) == (-1, (), (1, 2, 3))
        assert (described.eligible_leader_replicas, described.last_known_elr) == ((), (1,))
        part = (await cluster.metadata(None, "orders")).topics[0].partitions[0]
        assert part.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        verdict = judge_cluster("here", await admin.describe_cluster(), await admin.describe_topics(), {"orders": 2})
        assert verdict.problems == [
            "partition orders-0 is offline: it has no leader (replicas 1,2,3, in sync none); no replica is known to have every "
            "committed record (its last leader was broker 1)"
        ]

        assert {(await cluster.produce_to(node, topic.topic_id, "x")).error_code for node in (1, 2, 3)} == {
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
        for node in cluster.brokers:
            assert readings(cluster.server(node), broker_readings)["kafka_server_replicamanager_leadercount"] == 0
        for node in cluster.controllers:
            server = cluster.server(node)
            await until(lambda server=server: server.controller.committed.partition((topic.topic_id, 0)).isr == (), "it knows")
            assert readings(server, controller_readings)["kafka_controller_kafkacontroller_offlinepartitionscount"] == 1

        async with (
            Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=60_000) as producer,
            cluster.consumer() as consumer,
        ):
            await consumer.assign([("orders", 0)])
            sending = asyncio.ensure_future(_send(producer))
            assert await consumer.getmany(timeout_ms=300) == {}

            await cluster.restart(2)  # it is in no ISR and no ELR, so its return causes no election
            active = await cluster.active_controller()
            await cluster.inside(active, lambda: cluster.server(active).quorum.take_snapshot())
            await cluster.restart(active)
            (described,) = (await admin.describe_topics(["orders"]))[0].partitions
            assert (described.leader_id, described.isr, described.eligible_leader_replicas) == (-1, (), ())
            results = await admin.elect_leaders([("orders", 0)])
            assert results[0].code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            assert not sending.done()

            await write(cluster, topic, isr=(2,), leader=2, eligible_leader_replicas=(), last_known_elr=())
            await until(lambda: cluster.replica(2, topic.topic_id).leader_state is not None, "broker 2 leads")
            assert (await asyncio.wait_for(sending, 30)).offset == 1
            values: list[bytes] = []
            async with asyncio.timeout(30):
                while len(values) < 2:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        values += [bytes(record.value) for record in records]
            assert values == [b"before", b"during"]
        logs = [cluster.replica(node, topic.topic_id).log for node in cluster.brokers]
        await until(lambda: all(log.log_end_offset == log.high_watermark == 2 for log in logs), "all replicas have both")


async def _send(producer: Producer) -> Any:
    return await producer.send_and_wait("orders", b"during", partition=0)


async def test_a_deleted_topic_may_have_an_empty_isr() -> None:
    async with WireCluster(controllers=1, brokers=3) as cluster, cluster.admin() as admin:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], unclean_recovery_strategy="none")
        await write(cluster, topic, isr=(), leader=NO_LEADER)
        with pytest.raises(RequestTimeout):
            await admin.create_partitions("orders", 2, timeout_ms=1000)  # it waits until each partition has a leader
        await admin.alter_configs("topic", "orders", {"min.insync.replicas": 1})
        await admin.delete_topics(["orders"])
        assert await admin.list_topics() == []


def test_codes_of_an_unavailable_partition_are_retriable() -> None:
    assert all(BrokerError(code).refresh_metadata for code in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER))
