"""Requests about offsets and producers in each version."""

from __future__ import annotations

from typing import Any

import pytest
from data_world import (
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    NOW_MS,
    OFFSET_FOR_LEADER_EPOCH,
    DataWire,
    batch,
    error,
    new_topic,
    row_of,
)

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

Cluster = ThreadedCluster
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOTHING = (0, -1, -1)


def connect(cluster: Cluster) -> DataWire:
    return DataWire.at(cluster.kafka_bootstrap)


async def three_records(cluster: Cluster, wire: DataWire) -> str:
    """Create a topic with records at offsets 0 to 2, whose timestamps are 0, 10 and 5 ms after NOW_MS."""
    topic = new_topic(cluster)
    for later_ms in (0, 10, 5):
        row = await wire.produce(9, topic, batch("v", timestamp_ms=NOW_MS + later_ms))
        assert row.error_code == 0
    return topic


# -- ListOffsets ------------------------------------------------------------------------------------------------------


async def listed(wire: DataWire, version: int, topic: str, timestamp: int, partition: int = 0, **changes: Any) -> Fields:
    part = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": changes.pop("epoch", -1)}
    fields = {"replica_id": -1, "isolation_level": 0, "timeout_ms": 1000, **changes}
    answer = await wire.call(LIST_OFFSETS, version, {**fields, "topics": [{"name": topic, "partitions": [part]}]})
    return row_of(answer.topics)


def found(row: Fields) -> tuple[int, int, int]:
    return row.error_code, row.timestamp, row.offset


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets_finds_offsets_by_timestamp(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await three_records(data_cluster, wire)
        expected = {
            -1: (0, -1, 3),
            -2: (0, -1, 0),
            NOW_MS: (0, NOW_MS, 0),
            NOW_MS + 1: (0, NOW_MS + 10, 1),
            NOW_MS + 11: NOTHING,
        }
        for timestamp, offset in expected.items():
            assert found(await listed(wire, version, topic, timestamp)) == offset
        assert (await listed(wire, version, topic, -2)).get("leader_epoch", 0) == 0
        assert error(await listed(wire, version, "nothing", -1)) == UNKNOWN
        assert error(await listed(wire, version, topic, -1, partition=9)) == UNKNOWN
        stale = await listed(wire, version, topic, -1, epoch=7)
        assert error(stale) == (ErrorCode.UNKNOWN_LEADER_EPOCH if version >= 4 else ErrorCode.NONE)
        assert error(await listed(wire, version, topic, -1, replica_id=1)) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(1, 12))
async def test_special_timestamps_are_refused_before_their_version(data_cluster: Cluster, version: int) -> None:
    """Each special timestamp exists since some version. An earlier version is refused, as by Kafka."""
    async with connect(data_cluster) as wire:
        topic = await three_records(data_cluster, wire)
        specials = {-3: (7, (0, NOW_MS + 10, 1)), -4: (8, (0, -1, 0)), -5: (9, NOTHING), -6: (11, NOTHING), -7: (99, NOTHING)}
        for timestamp, (since, offset) in specials.items():
            row = await listed(wire, version, topic, timestamp)
            if version >= since:
                assert found(row) == offset
            else:
                assert found(row) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        if version >= 9:
            assert error(await listed(wire, version, topic, -5, partition=9)) == UNKNOWN


async def test_list_offsets_refuses_a_repeated_partition(data_cluster: Cluster) -> None:
    """Each row of the repeated partition is refused, as in Kafka."""
    async with connect(data_cluster) as wire:
        topic = await three_records(data_cluster, wire)
        parts = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": parts}]}
        rows = (await wire.call(LIST_OFFSETS, 2, fields)).topics[0].partitions
        assert [error(row) for row in rows] == [ErrorCode.INVALID_REQUEST] * 2


# -- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 5))
async def test_end_offset_of_a_leader_epoch_is_returned(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await three_records(data_cluster, wire)

        async def end(name: str, epoch: int, current: int = -1, partition: int = 0) -> tuple[ErrorCode, int, int]:
            part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
            fields = {"replica_id": -1, "topics": [{"topic": name, "partitions": [part]}]}
            row = row_of((await wire.call(OFFSET_FOR_LEADER_EPOCH, version, fields)).topics)
            return error(row), row.leader_epoch, row.end_offset

        assert await end(topic, 0) == (ErrorCode.NONE, 0, 3)
        assert await end(topic, 5) == (ErrorCode.NONE, -1, -1)
        assert await end(topic, 0, current=9) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await end("nothing", 0) == await end(topic, 0, partition=9) == (UNKNOWN, -1, -1)


# -- DeleteRecords ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_delete_records_returns_the_new_log_start(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:
        topic = await three_records(data_cluster, wire)

        async def delete(name: str, offset: int, partition: int = 0, timeout_ms: int = 5000) -> tuple[ErrorCode, int]:
            part = {"partition_index": partition, "offset": offset}
            fields = {"timeout_ms": timeout_ms, "topics": [{"name": name, "partitions": [part]}]}
            row = row_of((await wire.call(DELETE_RECORDS, version, fields)).topics)
            return error(row), row.low_watermark

        assert await delete(topic, 1) == (ErrorCode.NONE, 1)
        assert await delete(topic, 99) == await delete(topic, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete(topic, 2, timeout_ms=0) == (ErrorCode.NONE, 2)  # as librdkafka's tests do
        assert await delete(topic, -1) == (ErrorCode.NONE, 3)
        assert await delete("nothing", 0) == await delete(topic, 0, partition=9) == (UNKNOWN, -1)
        assert (await delete(new_topic(data_cluster, cleanup_policy="compact"), 0))[0] == ErrorCode.POLICY_VIOLATION
        assert found(await listed(wire, 1, topic, -2)) == (0, -1, 3)


async def test_delete_records_uses_the_last_offset_of_a_repeated_partition(data_cluster: Cluster) -> None:
    """The partition has one answer, as in Kafka."""
    async with connect(data_cluster) as wire:
        topic = await three_records(data_cluster, wire)

        async def delete(*offsets: int) -> list[tuple[ErrorCode, int]]:
            topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]} for offset in offsets]
            answer = await wire.call(DELETE_RECORDS, 2, {"timeout_ms": 5000, "topics": topics})
            return [(error(row), row.low_watermark) for found in answer.topics for row in found.partitions]

        assert await delete(1, 99) == await delete(1, -2) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert await delete(99, 1) == await delete(-2, 1) == [(ErrorCode.NONE, 1)]
        assert await delete(3, 2) == [(ErrorCode.NONE, 2)]
        assert found(await listed(wire, 1, topic, -2)) == (0, -1, 2)


# -- producers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_each_producer_gets_an_id_of_its_own(data_cluster: Cluster, version: int) -> None:
    async with connect(data_cluster) as wire:

        async def init(**changes: Any) -> Fields:
            fields = {"transactional_id": None, "transaction_timeout_ms": 60000, **changes}
            return await wire.call(INIT_PRODUCER_ID, version, fields)

        first, second = await init(), await init()
        assert first.error_code == second.error_code == first.producer_epoch == 0
        assert second.producer_id > first.producer_id >= 0
        assert error(await init(transactional_id="")) == ErrorCode.INVALID_REQUEST
        if version >= 3:
            half = await init(producer_id=5)
            assert (error(half), half.producer_id, half.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)
        if version >= 6:
            assert error(await init(transactional_id="x", enable2_pc=True)) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert error(await init(transactional_id="x", keep_prepared_txn=True)) == ErrorCode.UNSUPPORTED_VERSION


async def test_active_producers_are_described(data_cluster: Cluster) -> None:
    async with connect(data_cluster) as wire:
        topic = new_topic(data_cluster)
        assert (await wire.produce(9, topic, batch("a", producer_id=77, producer_epoch=2, base_sequence=0))).error_code == 0
        topics = [{"name": topic, "partition_indexes": [0, 9]}, {"name": "nothing", "partition_indexes": [0]}]
        answer = await wire.call(DESCRIBE_PRODUCERS, 0, {"topics": topics})
        known, no_partition = answer.topics[0].partitions
        (producer,) = known.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (77, 2, 0)
        assert (producer.last_timestamp, producer.coordinator_epoch, producer.current_txn_start_offset) == (NOW_MS, -1, -1)
        assert error(no_partition) == error(answer.topics[1].partitions[0]) == UNKNOWN


async def test_describe_producers_answers_each_mention_of_a_partition(data_cluster: Cluster) -> None:
    """Each mention is answered, as in Kafka."""
    async with connect(data_cluster) as wire:
        topic = new_topic(data_cluster)
        assert (await wire.produce(9, topic, batch("a", producer_id=77, producer_epoch=2, base_sequence=0))).error_code == 0
        topics = [{"name": topic, "partition_indexes": indexes} for indexes in ([0, 0], [9, 9, -1, 0])]
        answer = await wire.call(DESCRIBE_PRODUCERS, 0, {"topics": topics})
        rows = [row for found in answer.topics for row in found.partitions]
        assert [row.partition_index for row in rows] == [0, 0, 9, 9, -1, 0]
        assert [error(row) for row in rows] == [0, 0, UNKNOWN, UNKNOWN, UNKNOWN, 0]
        assert [len(row.active_producers) for row in rows] == [1, 1, 0, 0, 0, 1]


async def test_describe_producers_refuses_an_invalid_topic_name(data_cluster: Cluster) -> None:
    async with connect(data_cluster) as wire:
        topics = [{"name": name, "partition_indexes": [0]} for name in ("a/b", "", "x" * 250)]
        answer = await wire.call(DESCRIBE_PRODUCERS, 0, {"topics": topics})
        assert {error(row) for found in answer.topics for row in found.partitions} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
