"""Committed offsets in each version of Kafka's requests: by names and by ids, of topics that exist and of those that do not."""

from __future__ import annotations

from uuid import uuid4

import pytest
from groups_world import METADATA, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, VERSIONS, GroupWire
from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.translations import committed_offsets
from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

Cluster = ThreadedCluster
_ORDERS = {
    "topics": [{"name": "orders", "topic_id": bytes(16)}],
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


def row(part: Fields) -> tuple[int, int, str, int]:
    return part.committed_offset, part.get("committed_leader_epoch", 3), part.metadata, part.error_code


async def topic_id(cluster: Cluster) -> bytes:
    async with KafkaWire.at(cluster.kafka_bootstrap) as wire:
        answer = await wire.call(METADATA, 12, _ORDERS)
    id_: bytes = answer.topics[0].topic_id
    return id_


@pytest.mark.parametrize("version", VERSIONS[OFFSET_COMMIT])
async def test_commit_stores_offsets_with_their_metadata(groups_cluster: Cluster, version: int) -> None:
    orders = {"name": "orders", "topic_id": await topic_id(groups_cluster)}
    async with await GroupWire.to(groups_cluster, f"commit-{version}") as wire:
        assert await wire.commit(version, orders, {0: 5, 3: 7, 9: 1}) == {0: 0, 3: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        found = await wire.fetch(9, [{"name": "orders", "partition_indexes": [0, 3]}])
        epoch = 3 if version >= 6 else -1
        assert [row(part) for part in found.topics[0].partitions] == [(5, epoch, "at 5", 0), (7, epoch, "at 7", 0)]


@pytest.mark.parametrize("version", [2, 9, 10])
async def test_commit_for_an_unknown_topic_is_refused(groups_cluster: Cluster, version: int) -> None:
    async with await GroupWire.to(groups_cluster, "unknown") as wire:
        codes = await wire.commit(version, {"name": "nothing", "topic_id": uuid4().bytes}, {0: 5})
    assert codes == {0: ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [2, 8, 9, 10])
async def test_refused_commit_has_the_error_at_each_partition(groups_cluster: Cluster, version: int) -> None:
    """The response has no other place for it. After GROUP_ID_NOT_FOUND, a Java consumer that was paused would not join again."""
    orders = {"name": "orders", "topic_id": await topic_id(groups_cluster)}
    async with await GroupWire.to(groups_cluster, f"refused-{version}") as wire:
        for member, code in (("m", ErrorCode.UNKNOWN_MEMBER_ID), ("", ErrorCode.ILLEGAL_GENERATION)):
            codes = await wire.commit(version, orders, {0: 5, 1: 5}, member_id=member, generation_id_or_member_epoch=3)
            assert codes == dict.fromkeys((0, 1), code)
        await wire.commit(9, orders, {0: 5})
        codes = await wire.commit(version, orders, {0: 5, 1: 5}, member_id="m", generation_id_or_member_epoch=3)
        assert codes == dict.fromkeys((0, 1), ErrorCode.UNKNOWN_MEMBER_ID), "now there is a group, without members"


@pytest.mark.parametrize("version", [2, 9, 10])
async def test_partition_that_does_not_exist_is_unknown_in_a_refused_commit(groups_cluster: Cluster, version: int) -> None:
    """As in Kafka, which checks the topics first and the member last."""
    orders, nothing = {"name": "orders", "topic_id": await topic_id(groups_cluster)}, {"name": "no", "topic_id": b"\1" * 16}
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with await GroupWire.to(groups_cluster, f"refused-and-unknown-{version}") as wire:
        codes = await wire.commit(version, orders, {0: 5, 9: 5, -1: 5}, member_id="m", generation_id_or_member_epoch=3)
        assert codes == {
            0: ErrorCode.UNKNOWN_MEMBER_ID,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            -1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await wire.commit(version, nothing, {0: 5}, member_id="m", generation_id_or_member_epoch=3) == {0: unknown}


@pytest.mark.parametrize("version", VERSIONS[OFFSET_FETCH])
async def test_fetch_finds_offsets_by_topic(groups_cluster: Cluster, version: int) -> None:
    """A topic that does not exist has no offset if it is asked for by name, and an error if it is asked for by id (as in
    Kafka)."""
    orders, other = {"name": "orders", "topic_id": await topic_id(groups_cluster)}, {"name": "nothing", "topic_id": uuid4().bytes}
    async with await GroupWire.to(groups_cluster, "fetch") as wire:
        assert await wire.commit(9, orders, {1: 8}) == {1: 0}
        answer = await wire.fetch(version, [{**orders, "partition_indexes": [1, 2, 77]}, {**other, "partition_indexes": [0]}])
    assert answer.get("error_code", 0) == 0
    (found, missing) = answer.topics
    epoch = -1 if version >= 5 else 3
    nothing = (-1, epoch, "", 0)
    assert [row(part) for part in found.partitions] == [(8, 3, "at 8", 0), nothing, nothing]
    code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else 0
    assert [row(part) for part in missing.partitions] == [(-1, epoch, "", code)]


@pytest.mark.parametrize("version", VERSIONS[OFFSET_FETCH][1:])
async def test_fetch_without_topics_returns_all_offsets(groups_cluster: Cluster, version: int) -> None:
    """`topics` may be null from version 2 on."""
    id_ = await topic_id(groups_cluster)
    async with await GroupWire.to(groups_cluster, "all") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1, 2: 3})
        (topic,) = (await wire.fetch(version, None)).topics
    assert topic.get("name", "orders") == "orders"
    assert topic.get("topic_id", id_) == id_
    assert {part.partition_index: part.committed_offset for part in topic.partitions} == {0: 1, 2: 3}


async def test_offsets_of_many_groups_are_fetched_at_once(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "many") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1})
        asked = [{"name": "orders", "partition_indexes": [0]}]
        groups = [{"group_id": group, "topics": topics} for group in ("many", "many-not") for topics in (asked, None)]
        answers = (await wire.ask(OFFSET_FETCH, 8, groups=groups, require_stable=True)).groups
    assert [answer.group_id for answer in answers] == ["many", "many", "many-not", "many-not"]
    assert [len(answer.topics) for answer in answers[:2]] == [1, 1]


@pytest.mark.parametrize("version", VERSIONS[OFFSET_FETCH])
def test_error_of_a_group_is_where_the_version_has_it(version: int) -> None:
    """Version 1 has it only at the partitions. COORDINATOR_NOT_AVAILABLE becomes a code that old consumers know."""
    topic = Fields(name="t", topic_id=bytes(16), partition_indexes=[4])
    group = Fields(group_id="g", topics=[topic])
    call = Fields(version=version, fields=Fields(groups=[group], group_id="g", topics=[topic]))
    refused = {api.key: api.refused for api in committed_offsets.APIS}[OFFSET_FETCH]
    answer = refused(call, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)  # type: ignore[arg-type]
    found = answer["groups"][0] if version >= 8 else answer
    assert found["error_code"] == ErrorCode.NOT_COORDINATOR
    if version == 1:
        assert found["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NOT_COORDINATOR
    else:
        assert found["topics"] == []


async def test_operator_deletes_offsets(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "delete") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1, 1: 2})
        topics = [
            {"name": "orders", "partitions": [{"partition_index": 1}, {"partition_index": 2}, {"partition_index": 9}]},
            {"name": "nothing", "partitions": [{"partition_index": 0}]},
        ]
        answer = await wire.ask(OFFSET_DELETE, 0, topics=topics)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.error_code == 0
        codes = {t.name: {p.partition_index: p.error_code for p in t.partitions} for t in answer.topics}
        assert codes == {"orders": {1: 0, 2: 0, 9: unknown}, "nothing": {0: unknown}}
        (left,) = (await wire.fetch(8, None)).topics
        assert [part.partition_index for part in left.partitions] == [0]
        missing = await wire.call(OFFSET_DELETE, 0, {"group_id": "delete", "topics": []})
        assert missing.error_code == 0


async def test_offsets_of_a_subscribed_topic_stay(groups_cluster: Cluster) -> None:
    async with await GroupWire.to(groups_cluster, "subscribed") as wire:
        await wire.commit(9, {"name": "orders"}, {0: 1})
        await wire.become_member()
        topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
        answer = await wire.ask(OFFSET_DELETE, 0, topics=topics)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
