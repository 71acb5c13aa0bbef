"""The cluster, its quorum, its leaders and its disks, in each version of Kafka's requests."""

from __future__ import annotations

from typing import Any

import pytest
from data_world import DataWire, batch, new_topic
from wire import KafkaWire

from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

ELECT, REASSIGN, LIST_REASSIGNMENTS, LOG_DIRS, MOVE = 43, 45, 46, 35, 34
CLUSTER, QUORUM, FEATURES, UNREGISTER = 60, 55, 57, 64
BROKERS, CONTROLLERS = 1, 2
PREFERRED = 0


def at(cluster: ThreadedCluster) -> KafkaWire:
    return KafkaWire.at(cluster.kafka_bootstrap)


@pytest.mark.parametrize("version", range(3))
async def test_cluster_is_described(pair_cluster: ThreadedCluster, version: int) -> None:
    fields = {"include_cluster_authorized_operations": version == 2, "include_fenced_brokers": True}
    async with at(pair_cluster) as wire:
        found = await wire.call(CLUSTER, version, fields)
    addresses = pair_cluster.kafka_bootstrap.split(",")
    assert [(b.broker_id, f"{b.host}:{b.port}") for b in found.brokers] == list(enumerate(addresses, 1))
    assert found.controller_id in (1, 2)
    assert found.cluster_id
    assert (found.cluster_authorized_operations == -(2**31)) == (version < 2)


async def test_broker_knows_no_listener_of_controllers(data_cluster: ThreadedCluster) -> None:
    """The controllers speak Strandline's protocol only. 114 is MISMATCHED_ENDPOINT_TYPE, and 115
    UNSUPPORTED_ENDPOINT_TYPE."""
    async with at(data_cluster) as wire:
        fields = {"include_cluster_authorized_operations": False, "endpoint_type": CONTROLLERS}
        found = await wire.call(CLUSTER, 1, fields)
        other = await wire.call(CLUSTER, 1, {**fields, "endpoint_type": 7})
    assert (found.error_code, found.brokers) == (114, [])
    assert (other.error_code, other.brokers) == (115, [])
    assert "controllers" in found.error_message


@pytest.mark.parametrize("version", range(3))
async def test_quorum_is_described(data_cluster: ThreadedCluster, version: int) -> None:
    async def ask(topic: str, partition: int) -> Any:
        topics = [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]
        return await wire.call(QUORUM, version, {"topics": topics})

    async with at(data_cluster) as wire:
        found = await ask("__cluster_metadata", 0)
        wrong = await ask("orders", 0)
    (partition,) = found.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (0, 101)
    assert [voter.replica_id for voter in partition.current_voters] == [101]
    assert [observer.replica_id for observer in partition.observers] == [1]
    if version:
        assert partition.observers[0].last_fetch_timestamp > 1_700_000_000_000
    assert wrong.error_code == 0
    assert wrong.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(3))
async def test_leaders_are_elected(pair_cluster: ThreadedCluster, version: int) -> None:
    """If all partitions are asked for, the answer has only those that needed an election; of named partitions, it has each."""
    name = new_topic(pair_cluster)
    async with at(pair_cluster) as wire:

        async def elect(topics: Any) -> Any:
            fields = {"election_type": PREFERRED, "topic_partitions": topics, "timeout_ms": 5000}
            return await wire.call(ELECT, version, fields)

        everywhere = await elect(None)
        named = await elect([{"topic": name, "partitions": [0]}, {"topic": "nothing", "partitions": [0]}])
    assert everywhere.replica_election_results == []
    codes = {row.topic: row.partition_result[0].error_code for row in named.replica_election_results}
    assert codes == {name: ErrorCode.ELECTION_NOT_NEEDED, "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", range(2))
async def test_partitions_are_reassigned(pair_cluster: ThreadedCluster, version: int) -> None:
    name = new_topic(pair_cluster)
    async with at(pair_cluster) as wire:

        async def reassign(replicas: Any, **changes: Any) -> Any:
            topics = [{"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
            answer = await wire.call(REASSIGN, version, {"timeout_ms": 5000, "topics": topics, **changes})
            assert answer.error_code == 0
            return answer.responses[0].partitions[0]

        assert (await reassign([1, 2])).error_code == 0
        listed = await wire.call(LIST_REASSIGNMENTS, 0, {"timeout_ms": 5000, "topics": None})
        assert listed.error_code == 0
        assert (await reassign([9])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if version:
            kept = await reassign([1], allow_replication_factor_change=False)
            assert kept.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        for _ in range(200):
            if (await reassign(None)).error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                break
        else:
            raise AssertionError("the reassignment neither completes nor is cancelled")


@pytest.mark.parametrize("version", range(1, 6))
async def test_disks_are_described(data_cluster: ThreadedCluster, version: int) -> None:
    name = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        await wire.produce(9, name, batch("a"))
        everything = await wire.call(LOG_DIRS, version, {"topics": None})
        one = await wire.call(LOG_DIRS, version, {"topics": [{"topic": name, "partitions": [0]}]})
    (folder,) = one.results
    ((topic, partition),) = [(topic.name, p) for topic in folder.topics for p in topic.partitions]
    assert (topic, partition.partition_index, partition.offset_lag, partition.is_future_key) == (name, 0, 0, False)
    assert partition.partition_size > 60
    assert len(everything.results[0].topics) >= 1
    if version >= 4:
        assert (folder.total_bytes, folder.usable_bytes) == (-1, -1), "a disk in memory has no size"


@pytest.mark.parametrize("version", range(1, 3))
async def test_replica_does_not_move_to_a_disk_that_is_not_there(data_cluster: ThreadedCluster, version: int) -> None:
    name = new_topic(data_cluster)
    async with at(data_cluster) as wire:
        dirs = [{"path": "/nowhere", "topics": [{"name": name, "partitions": [0]}]}]
        answer = await wire.call(MOVE, version, {"dirs": dirs})
    (topic,) = answer.results
    assert (topic.topic_name, topic.partitions[0].error_code) == (name, ErrorCode.LOG_DIR_NOT_FOUND)


async def test_partition_that_does_not_exist_does_not_move(data_cluster: ThreadedCluster) -> None:
    """The directory is checked before the partition."""
    name = new_topic(data_cluster)
    topics = [{"name": name, "partitions": [7]}, {"name": "nothing", "partitions": [0]}]
    async with at(data_cluster) as wire:
        disks = await wire.call(LOG_DIRS, 4, {"topics": []})
        paths = [disks.results[0].log_dir, "/nowhere"]
        answers = [await wire.call(MOVE, 2, {"dirs": [{"path": path, "topics": topics}]}) for path in paths]
    codes = [[topic.partitions[0].error_code for topic in answer.results] for answer in answers]
    assert codes == [[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2, [ErrorCode.LOG_DIR_NOT_FOUND] * 2]


@pytest.mark.parametrize("version", range(3))
async def test_features_are_not_lowered(data_cluster: ThreadedCluster, version: int) -> None:
    update = {"feature": "metadata.version", "max_version_level": 0, "upgrade_type": 3, "allow_downgrade": True}
    async with at(data_cluster) as wire:
        answer = await wire.call(FEATURES, version, {"feature_updates": [update], "validate_only": True})
    codes = [answer.error_code, *(row.error_code for row in answer.get("results", []))]
    assert ErrorCode.INVALID_UPDATE_VERSION in codes, codes


async def test_living_broker_is_not_unregistered(data_cluster: ThreadedCluster) -> None:
    async with at(data_cluster) as wire:
        alive = await wire.call(UNREGISTER, 0, {"broker_id": 1})
        missing = await wire.call(UNREGISTER, 0, {"broker_id": 77})
    assert (alive.error_code, missing.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED)
