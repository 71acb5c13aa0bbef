"""A partition number below zero names no partition. As in Kafka, it does not affect the other items of its request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from data_world import DataWire, new_topic

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
GROUP = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
COMMITTED = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
OLD_TXN = {"v3_and_below_transactional_id": "t", "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0}


def partitions(**fields: Any) -> list[dict[str, Any]]:
    return [{"partition_index": number, "partition": number, **fields} for number in (-1, 0)]


def named(topic: str, items: list[Any], field: str = "partitions") -> list[dict[str, Any]]:
    return [{"name": topic, "topic": topic, field: items}]


def requests(topic: str, topic_id: bytes) -> dict[str, tuple[int, int, dict[str, Any]]]:
    """Requests for partitions -1 and 0, by the name of the API."""
    epochs = partitions(current_leader_epoch=-1, leader_epoch=0)
    listed = named(topic, partitions(timestamp=-1, current_leader_epoch=-1))
    indexes = named(topic, [-1, 0], "partition_indexes")
    marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
    by_id = [{"topic_id": topic_id, "partitions": partitions(**COMMITTED)}]
    return {
        "ListOffsets": (2, 7, {"replica_id": -1, "isolation_level": 0, "topics": listed}),
        "OffsetCommit": (8, 8, {"group_id": "g", **GROUP, "topics": named(topic, partitions(**COMMITTED))}),
        "OffsetCommit by id": (8, 10, {"group_id": "g", **GROUP, "topics": by_id}),
        "OffsetDelete": (47, 0, {"group_id": "g", "topics": named(topic, partitions())}),
        "DeleteRecords": (21, 2, {"timeout_ms": 5000, "topics": named(topic, partitions(offset=0))}),
        "OffsetForLeaderEpoch": (23, 4, {"replica_id": -1, "topics": named(topic, epochs)}),
        "AddPartitionsToTxn": (24, 3, {**OLD_TXN, "v3_and_below_topics": named(topic, [-1, 0])}),
        "WriteTxnMarkers": (27, 1, {"markers": [{**marker, "topics": indexes}]}),
        "ElectLeaders": (43, 2, {"election_type": 0, "topic_partitions": named(topic, [-1, 0]), "timeout_ms": 5000}),
        "AlterPartitionReassignments": (45, 1, {"topics": named(topic, partitions(replicas=None)), "timeout_ms": 5000}),
        "DescribeProducers": (61, 0, {"topics": indexes}),
        "Produce": (
            0,
            9,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": 1000,
                "topic_data": [{"name": topic, "partition_data": [{"index": number, "records": None} for number in (-1, 0)]}],
            },
        ),
    }


NUMBERS = ("partition_index", "partition", "partition_id", "index")
CODES = ("error_code", "partition_error_code")
NOT_YET = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}


def codes(answer: Any) -> dict[int, int]:
    """Partition -> error code, in whichever form the response has."""
    fields = vars(answer)
    numbers = [fields[name] for name in NUMBERS if name in fields]
    if numbers:
        return {numbers[0]: next(fields[name] for name in CODES if name in fields)}
    rows = (row for value in fields.values() if isinstance(value, list) for row in value if isinstance(row, Fields))
    return {number: code for row in rows for number, code in codes(row).items()}


async def ask(wire: DataWire, key: int, version: int, fields: dict[str, Any]) -> Fields:
    """Send a request until the coordinators have loaded. The first FindCoordinator creates their topics."""
    for _ in range(200):
        answer = await wire.call(key, version, fields)
        if not NOT_YET & {*codes(answer).values(), answer.get("error_code", 0)}:
            return answer
        for key_type, name in enumerate("gt"):
            await wire.call(10, 4, {"key_type": key_type, "coordinator_keys": [name]})
        await asyncio.sleep(0.05)
    raise AssertionError(answer)


OF_THE_OTHER = {
    "AddPartitionsToTxn": ErrorCode.OPERATION_NOT_ATTEMPTED,
    "ElectLeaders": ErrorCode.ELECTION_NOT_NEEDED,
    "AlterPartitionReassignments": ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    "Produce": ErrorCode.INVALID_RECORD,
}
"""API -> Kafka's error code for partition 0, if that is an error."""


@pytest.mark.parametrize("name", requests("", b""))
async def test_only_the_partition_below_zero_is_unknown(data_cluster: ThreadedCluster, name: str) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        asked = requests(topic, await wire.topic_id(topic))
        if name == "OffsetDelete":
            await ask(wire, *asked["OffsetCommit"])
        found = codes(await ask(wire, *asked[name]))
    assert found == {-1: UNKNOWN, 0: OF_THE_OTHER.get(name, ErrorCode.NONE)}


@pytest.mark.parametrize("version", [5, 8, 10])
async def test_partition_below_zero_has_no_committed_offset(data_cluster: ThreadedCluster, version: int) -> None:
    """That is no error, even if the topic is asked for by its id."""
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        topic_id = await wire.topic_id(topic)
        await ask(wire, 8, 8, {"group_id": "g", **GROUP, "topics": named(topic, [{"partition_index": 0, **COMMITTED}])})
        group = {"group_id": "g", "topics": [{"name": topic, "topic_id": topic_id, "partition_indexes": [-1, 0]}]}
        answer = await wire.call(9, version, group if version < 8 else {"groups": [group], "require_stable": False})
    (found,) = (answer if version < 8 else answer.groups[0]).topics
    assert [(row.partition_index, row.committed_offset, row.error_code) for row in found.partitions] == [(-1, -1, 0), (0, 1, 0)]


async def test_lists_leave_partitions_below_zero_out(data_cluster: ThreadedCluster) -> None:
    topic = new_topic(data_cluster)
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        moves = await wire.call(46, 0, {"topics": named(topic, [-1, 0], "partition_indexes"), "timeout_ms": 5000})
        disks = await wire.call(35, 4, {"topics": named(topic, [-1, 0])})
    assert (moves.error_code, moves.topics) == (0, [])
    assert [row.partition_index for disk in disks.results for one in disk.topics for row in one.partitions] == [0]


async def test_assignment_of_a_partition_below_zero_is_invalid(data_cluster: ThreadedCluster) -> None:
    """Only the topic with that assignment is refused."""
    ordinary = {"num_partitions": -1, "replication_factor": -1, "configs": []}
    wrong, right = ([{"partition_index": number, "broker_ids": [1]}] for number in (-1, 0))
    topics = [{"name": "wrong", "assignments": wrong, **ordinary}, {"name": "right", "assignments": right, **ordinary}]
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        answer = await wire.call(19, 7, {"topics": topics, "timeout_ms": 5000, "validate_only": True})
    codes_by_name = {topic.name: topic.error_code for topic in answer.topics}
    assert codes_by_name == {"wrong": ErrorCode.INVALID_REPLICA_ASSIGNMENT, "right": ErrorCode.NONE}


async def test_offset_of_a_partition_below_zero_has_no_transaction(data_cluster: ThreadedCluster) -> None:
    topic = new_topic(data_cluster)
    items = [{"partition_index": -1, **COMMITTED}]
    producer = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
    fields = {**producer, "group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        assert codes(await ask(wire, 28, 3, {**fields, "topics": named(topic, items)})) == {-1: UNKNOWN}
