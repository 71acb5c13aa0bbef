"""A request with very many items is served in slices. Its answer is the same, and the event loop serves other connections in
between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from groups_world import GroupWire
from kafka_world import METADATA, kafka, serving_kafka

from strandline.broker.kafka import slices
from strandline.broker.kafka.codec import Fields
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import MetadataRequest, MetadataResponse
from strandline.testing import ThreadedCluster

NAMES = ["orders", "none-1", "none-2", "orders-2", "none-3"]
_NO_OPERATIONS = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}


def topics(**item: Any) -> list[dict[str, Any]]:
    partition = {"partition_index": 0, "partition": 0, "current_leader_epoch": -1, **item}
    return [{"name": name, "topic": name, "partitions": [partition], "partition_indexes": [0]} for name in NAMES]


REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ListOffsets": (2, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics(timestamp=-1)}),
    "Metadata": (3, 8, {"topics": topics(), "allow_auto_topic_creation": False, **_NO_OPERATIONS}),
    "OffsetFetch": (9, 8, {"groups": [{"group_id": name, "topics": None} for name in NAMES], "require_stable": False}),
    "FindCoordinator": (10, 4, {"key_type": 0, "coordinator_keys": NAMES}),
    "DescribeGroups": (15, 6, {"groups": NAMES, "include_authorized_operations": False}),
    "DeleteRecords": (21, 2, {"topics": topics(offset=0), "timeout_ms": 5000}),
    "OffsetForLeaderEpoch": (23, 4, {"replica_id": -1, "topics": topics(leader_epoch=0)}),
    "DescribeConfigs": (
        32,
        4,
        {
            "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in NAMES],
            "include_synonyms": False,
            "include_documentation": False,
        },
    ),
    "DeleteGroups": (42, 2, {"groups_names": NAMES}),
    "DescribeProducers": (61, 0, {"topics": topics()}),
    "DescribeTransactions": (65, 0, {"transactional_ids": NAMES}),
    "ConsumerGroupDescribe": (69, 1, {"group_ids": NAMES, "include_authorized_operations": False}),
}
OF_PARTITIONS = ("ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch", "DescribeProducers")


def test_every_sliced_api_is_tested() -> None:
    assert {key for key, _, _ in REQUESTS.values()} == set(slices._LISTS)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("size", [1, 2])
async def test_slices_do_not_change_the_answer(
    groups_cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    async with await GroupWire.to(groups_cluster, "orders") as wire:
        await wire.ask(15, 5, groups=NAMES)
        whole = await wire.call(*REQUESTS[name])
        monkeypatch.setattr(slices, "SLICE", size)
        sliced = await wire.call(*REQUESTS[name])
    assert sliced == whole
    (rows,) = (value for field, value in vars(whole).items() if isinstance(value, list) and field != "brokers")
    assert len(rows) == len(NAMES)


@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in OF_PARTITIONS])
async def test_items_that_are_repeated_are_answered_as_without_slices(
    groups_cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Some APIs answer a repeated item once. A group must not be deleted twice, the second time with an error."""
    key, version, fields = REQUESTS[name]
    field = slices._LISTS[key][0]
    twice = {**fields, field: fields[field] * 2}
    async with await GroupWire.to(groups_cluster, "orders") as wire:
        await wire.ask(15, 5, groups=NAMES)
        whole = await wire.call(key, version, twice)
        monkeypatch.setattr(slices, "SLICE", len(NAMES))
        sliced = await wire.call(key, version, twice)
    assert sliced == whole


_MANY: dict[str, Any] = {"topics": [{"name": f"t-{n}"} for n in range(5)], "allow_auto_topic_creation": False, **_NO_OPERATIONS}


class Slices:
    """A handler that records each slice, and each turn of the event loop between slices. It refuses slice number `refused`."""

    def __init__(self, refused: int = -1) -> None:
        self.seen: list[Any] = []
        self._refused = refused

    def __call__(self, request: Any) -> None:
        body: MetadataRequest = request.body
        self.seen.append([topic.name for topic in body.topics or ()])
        asyncio.get_running_loop().call_soon(self.seen.append, "others")
        if self._refused == self.seen.count("others"):
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "no")
        request.reply(MetadataResponse([], "c", 1, [], 1))


async def _ask(handler: Slices) -> Fields:
    async with serving_kafka({apis.METADATA: handler}) as (_, port), kafka(port) as wire:
        return await wire.call(METADATA, 8, _MANY)


def test_event_loop_serves_others_between_slices(on_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE", 2)
    handler = Slices()
    on_loop(lambda: _ask(handler))
    assert handler.seen[:5] == [["t-0", "t-1"], "others", ["t-2", "t-3"], "others", ["t-4"]]


@pytest.mark.parametrize("refused", [0, 1, 2])
async def test_error_of_one_slice_is_that_of_the_request(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    """Each item of the request has the error."""
    monkeypatch.setattr(slices, "SLICE", 2)
    answer = await _ask(Slices(refused))
    assert [topic.name for topic in answer.topics] == [f"t-{n}" for n in range(5)]
    assert {topic.error_code for topic in answer.topics} == {-1}
