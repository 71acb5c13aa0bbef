"""A request whose items cannot be served in slices has few enough of them that it does not hold the event loop for long."""

from __future__ import annotations

from typing import Any

import pytest
from data_world import PRODUCE, DataWire
from wire import request_frame

from strandline.broker.kafka.schemas import Schemas
from strandline.protocol.errors import PeerError
from strandline.testing import ThreadedCluster

OFFSET_COMMIT, LEAVE_GROUP, METADATA = 8, 13, 3


def commit(count: int) -> dict[str, Any]:
    rows = [{"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": None}]
    topics = [{"name": "t", "partitions": rows}] * count
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return {"group_id": "g", **member, "topics": topics}


def leave(count: int) -> dict[str, Any]:
    return {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None}] * count}


@pytest.mark.parametrize(
    ("key", "version", "fields", "most"), [(OFFSET_COMMIT, 8, commit, 25_000), (LEAVE_GROUP, 4, leave, 50_000)]
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
