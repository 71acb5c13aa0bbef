"""A request whose items are not served in slices may have only so many that it does not block the event loop for long."""

from __future__ import annotations

from typing import Any

import pytest
from data_world import PRODUCE, DataWire
from wire import request_frame

from strandline.broker.kafka.schemas import _ITEMS_MAX, Schemas
from strandline.protocol.errors import ErrorCode, PeerError
from strandline.testing import ThreadedCluster

OFFSET_COMMIT, LEAVE_GROUP, DELETE_TOPICS, ELECT_LEADERS = 8, 13, 20, 43
FORWARDED = (19, 20, 30, 31, 33, 37, 44, 45, 49, 51, 57)
"""APIs whose requests the controller decides as a whole."""


def commit(count: int) -> dict[str, Any]:
    rows = [{"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": None}]
    topics = [{"name": "t", "partitions": rows}] * count
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return {"group_id": "g", **member, "topics": topics}


def leave(count: int) -> dict[str, Any]:
    return {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None}] * count}


def delete(count: int) -> dict[str, Any]:
    return {"topics": [{"name": "t", "topic_id": bytes(16)}] * count, "timeout_ms": 1000}


def elect(count: int) -> dict[str, Any]:
    return {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0] * (count - 1)}], "timeout_ms": 1000}


@pytest.mark.parametrize(
    ("key", "version", "fields", "most"),
    [
        (OFFSET_COMMIT, 8, commit, 25_000),
        (LEAVE_GROUP, 4, leave, 50_000),
        (DELETE_TOPICS, 6, delete, 60_000),
        (ELECT_LEADERS, 2, elect, 100_000),
    ],
)
def test_requests_that_are_served_as_a_whole_have_fewer_items(key: int, version: int, fields: Any, most: int) -> None:
    codec = Schemas().request(key, version)
    for count in (most, most + 1):
        frame = request_frame(key, version, 1, "c", fields(count))
        at = 8 + 2 + 1 + 1
        if count == most:
            codec.read(frame, at)
        else:
            with pytest.raises(PeerError, match="an array of"):
                codec.read(frame, at)


def test_each_forwarded_request_has_the_same_limit() -> None:
    assert {key for key, most in _ITEMS_MAX.items() if most == 60_000} == set(FORWARDED)


async def test_controller_refuses_more_than_10000_changes(data_cluster: ThreadedCluster) -> None:
    """Each item has the error, and the message says what to do."""
    async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
        answer = await wire.call(DELETE_TOPICS, 6, delete(10_001))
    assert {row.error_code for row in answer.responses} == {ErrorCode.POLICY_VIOLATION}
    assert answer.responses[0].error_message == "one request may delete at most 10000 topics, not 10001; send several requests"


async def test_produce_request_has_at_most_30000_partitions(data_cluster: ThreadedCluster) -> None:
    partitions = [{"index": 0, "records": b""}]
    for count in (30_000, 30_001):
        data = [{"name": "t", "partition_data": partitions}] * count
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": data}
        async with DataWire.at(data_cluster.kafka_bootstrap) as wire:
            if count == 30_000:
                assert (await wire.call(PRODUCE, 9, fields)).responses
            else:
                with pytest.raises(ConnectionError):
                    await wire.call(PRODUCE, 9, fields)
