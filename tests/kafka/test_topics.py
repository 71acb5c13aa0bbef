"""Metadata, and the requests that create, change and delete topics, in each version."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from wire import KafkaWire

from strandline.broker.admin import AdminHandlers
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.translations import topics as translation
from strandline.broker.kafka.translations.configs import config_value
from strandline.controller.metadata.config_keys import TOPIC_CONFIGS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.testing import ThreadedCluster

METADATA, CREATE, DELETE, EXTEND, DESCRIBE = 3, 19, 20, 37, 75
NO_ID = bytes(16)
_numbers = count()


def new_name() -> str:
    return f"made-{next(_numbers)}"


def at(cluster: ThreadedCluster) -> KafkaWire:
    return KafkaWire.at(cluster.kafka_bootstrap)


async def metadata(wire: KafkaWire, version: int, topics: Any, **changes: Any) -> Fields:
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    return await wire.call(METADATA, version, {**fields, **changes})


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "topic_id": NO_ID} for name in names]


async def create(wire: KafkaWire, version: int, *topics: dict[str, Any], validate_only: bool = False) -> list[Fields]:
    rows = [{"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **topic} for topic in topics]
    answer = await wire.call(CREATE, version, {"topics": rows, "timeout_ms": 10_000, "validate_only": validate_only})
    found: list[Fields] = answer.topics
    return found


async def delete(wire: KafkaWire, version: int, name: str, topic_id: bytes = NO_ID) -> Fields:
    topics = [{"name": name if topic_id == NO_ID else None, "topic_id": topic_id}]
    answer = await wire.call(DELETE, version, {"topics": topics, "topic_names": [name], "timeout_ms": 10_000})
    row: Fields = answer.responses[0]
    return row


# -- Metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [None, named("orders")])
async def test_broker_that_starts_does_not_say_that_there_are_no_brokers(
    data_cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, topics: Any
) -> None:
    """librdkafka gives up the brokers that are missing in the answer."""

    def starting(self: AdminHandlers) -> None:
        raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is starting")

    monkeypatch.setattr(AdminHandlers, "_image", starting)
    async with at(data_cluster) as wire:
        with pytest.raises(ConnectionError):
            await metadata(wire, 12, topics)
    async with at(data_cluster) as wire:
        assert (await metadata(wire, 13, topics)).error_code == ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(14))
async def test_metadata_has_brokers_topics_and_a_controller_that_is_a_broker(data_cluster: ThreadedCluster, version: int) -> None:
    name = new_name()
    data_cluster.create_topic(name, partitions=2, replication_factor=1)
    async with at(data_cluster) as wire:
        found = await metadata(wire, version, named(name))
        (topic,) = found.topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (0, name, 2)
        assert found.get("controller_id", 1) == found.brokers[0].node_id == topic.partitions[0].leader_id == 1
        assert f"{found.brokers[0].host}:{found.brokers[0].port}" == data_cluster.kafka_bootstrap
        everything = await metadata(wire, version, [] if version == 0 else None)
        assert name in {topic.name for topic in everything.topics}
        if version:
            assert not (await metadata(wire, version, [])).topics


@pytest.mark.parametrize("version", range(12, 14))
async def test_topic_is_found_by_its_id(data_cluster: ThreadedCluster, version: int) -> None:
    name = new_name()
    data_cluster.create_topic(name, replication_factor=1)
    async with at(data_cluster) as wire:
        (topic,) = (await metadata(wire, version, named(name))).topics
        asked = [{"name": None, "topic_id": topic.topic_id}, {"name": None, "topic_id": b"x" * 16}]
        found, missing = (await metadata(wire, version, [*asked, *named("left-out"), *asked])).topics
    assert (found.name, found.error_code) == (name, 0)
    assert (missing.name or None, missing.topic_id, missing.error_code) == (None, b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", range(10, 12))
async def test_older_versions_have_names_only(data_cluster: ThreadedCluster, version: int) -> None:
    async with at(data_cluster) as wire:
        for wrong in ({"name": None, "topic_id": NO_ID}, {"name": "a", "topic_id": b"x" * 16}):
            assert (await metadata(wire, version, [wrong])).topics[0].error_code == ErrorCode.INVALID_REQUEST


async def test_topic_that_is_named_twice_is_there_once(data_cluster: ThreadedCluster) -> None:
    name = new_name()
    data_cluster.create_topic(name, replication_factor=1)
    async with at(data_cluster) as wire:
        assert [topic.name for topic in (await metadata(wire, 12, named(name, name))).topics] == [name]


async def test_internal_topic_is_created_as_its_coordinator_does(data_cluster: ThreadedCluster) -> None:
    """A client may ask for it first. With the settings of other topics, its records would be deleted after a week."""
    name = "__consumer_offsets"
    async with at(data_cluster) as wire:
        await metadata(wire, 12, named(name), allow_auto_topic_creation=True)
        (topic,) = (await metadata(wire, 12, named(name))).topics
        resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": ["cleanup.policy"]}]
        fields = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        (config,) = (await wire.call(32, 4, fields)).results[0].configs
    assert (topic.error_code, topic.is_internal, config.value) == (0, True, "compact")


@pytest.mark.parametrize("version", [0, 3, 4, 13])
async def test_missing_topic_is_created_for_a_client_that_allows_it(data_cluster: ThreadedCluster, version: int) -> None:
    """Versions below 4 always allow it. As in Kafka, the first answer may be that the topic has no leader yet."""
    name = new_name()
    async with at(data_cluster) as wire:
        (first,) = (await metadata(wire, version, named(name), allow_auto_topic_creation=True)).topics
        assert first.error_code in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE)
        (second,) = (await metadata(wire, version, named(name), allow_auto_topic_creation=True)).topics
        assert second.error_code == ErrorCode.NONE


async def test_missing_topic_is_not_created_for_others_nor_under_a_bad_name(data_cluster: ThreadedCluster) -> None:
    name = new_name()
    async with at(data_cluster) as wire:
        (missing,) = (await metadata(wire, 12, named(name))).topics
        (bad, nothing) = (await metadata(wire, 12, named("a/b", ""))).topics
        (worse,) = (await metadata(wire, 12, named("a/b"), allow_auto_topic_creation=True)).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bad.error_code == worse.error_code == nothing.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [8, 10, 12])
async def test_authorized_operations_come_for_clients_that_ask(data_cluster: ThreadedCluster, version: int) -> None:
    """Without an authorizer, these are all operations, as bits. Kafka's AdminClient shows them."""
    name = new_name()
    data_cluster.create_topic(name, replication_factor=1)
    both = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    async with at(data_cluster) as wire:
        silent = await metadata(wire, version, named(name))
        asked = await metadata(wire, version, named(name, "", "missing"), **both)
    assert silent.topics[0].topic_authorized_operations == -(2**31)
    assert {topic.topic_authorized_operations for topic in asked.topics} == {0b110111111000}
    if version <= 10:
        assert asked.cluster_authorized_operations == 0b1111110100000


# -- CreateTopics, DeleteTopics, CreatePartitions ---------------------------------------------------------------------


async def test_configurations_of_new_topics_are_written_once_for_all(
    data_cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand topics have a third of a million values. Describing and writing each of them used to block the event loop for
    seconds."""
    written: list[str] = []
    monkeypatch.setattr(translation, "config_value", lambda config: written.append(config.name) or config_value(config))
    async with at(data_cluster) as wire:
        own = [{"name": "retention.ms", "value": "1000"}]
        made = await create(wire, 7, *({"name": new_name(), "configs": own if n == 3 else []} for n in range(20)))
    assert sorted(written) == sorted([*TOPIC_CONFIGS, "retention.ms"])
    rows = [{config.name: config for config in topic.configs} for topic in made]
    assert [row["retention.ms"].value for row in rows].count("1000") == 1
    assert all(row == rows[0] for n, row in enumerate(rows) if n != 3)
    assert (rows[3]["retention.ms"].value, rows[3]["retention.ms"].config_source) == ("1000", 1)


@pytest.mark.parametrize("version", range(2, 8))
async def test_topic_is_created_described_and_deleted(data_cluster: ThreadedCluster, version: int) -> None:
    name = new_name()
    async with at(data_cluster) as wire:
        topic = {"name": name, "num_partitions": 3, "configs": [{"name": "retention.ms", "value": "1000"}]}
        (row,) = await create(wire, version, topic)
        assert (row.name, row.error_code, row.error_message) == (name, 0, None)
        if version >= 5:
            assert (row.num_partitions, row.replication_factor) == (3, 1)
            configs = {config.name: config for config in row.configs}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert row.get("topic_id", b"x") != NO_ID
        (again,) = await create(wire, version, topic)
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert again.error_message
        assert (await delete(wire, min(version, 5), name)).error_code == 0
        gone = await delete(wire, min(version, 5), name)
        assert (gone.name, gone.error_code) == (name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_each_topic_of_a_request_is_judged_by_itself(data_cluster: ThreadedCluster) -> None:
    good = new_name()
    rows = [
        {"name": good},
        {"name": "a/b"},
        {"name": new_name(), "replication_factor": 9},
        {"name": new_name(), "num_partitions": 0},
        {"name": new_name(), "configs": [{"name": "retention.ms", "value": "soon"}]},
        {"name": new_name(), "num_partitions": -1, "replication_factor": -1},
    ]
    async with at(data_cluster) as wire:
        found = await create(wire, 7, *rows)
    assert [row.error_code for row in found] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.NONE,
    ]


async def test_request_that_only_validates_makes_nothing(data_cluster: ThreadedCluster) -> None:
    name = new_name()
    async with at(data_cluster) as wire:
        topic = {"name": name, "num_partitions": 2, "configs": [{"name": "retention.ms", "value": "5"}]}
        (row,) = await create(wire, 7, topic, validate_only=True)
        assert (row.error_code, row.num_partitions, row.topic_id) == (0, 2, NO_ID)
        assert {config.name: config.value for config in row.configs}["retention.ms"] == "5"
        assert (await metadata(wire, 12, named(name))).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_topic_with_given_replicas_is_created(data_cluster: ThreadedCluster) -> None:
    topic = {"name": new_name(), "num_partitions": -1, "replication_factor": -1}
    assignments = [{"partition_index": n, "broker_ids": [1]} for n in range(2)]
    async with at(data_cluster) as wire:
        (row,) = await create(wire, 7, {**topic, "assignments": assignments})
    assert (row.error_code, row.num_partitions) == (0, 2)


async def test_topic_is_deleted_by_its_id(data_cluster: ThreadedCluster) -> None:
    name = new_name()
    async with at(data_cluster) as wire:
        (row,) = await create(wire, 7, {"name": name})
        gone = await delete(wire, 6, name, row.topic_id)
        assert (gone.error_code, gone.topic_id) == (0, row.topic_id)
        missing = await delete(wire, 6, name, row.topic_id)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(data_cluster: ThreadedCluster, version: int) -> None:
    """Null means that the cluster chooses the replicas. An empty list has too few."""
    name = new_name()
    data_cluster.create_topic(name, replication_factor=1)
    async with at(data_cluster) as wire:

        async def extend(count: int, assignments: Any) -> Fields:
            topics = [{"name": name, "count": count, "assignments": assignments}]
            answer = await wire.call(EXTEND, version, {"topics": topics, "timeout_ms": 10_000, "validate_only": False})
            row: Fields = answer.results[0]
            return row

        assert (await extend(3, None)).error_code == 0
        assert len((await metadata(wire, 12, named(name))).topics[0].partitions) == 3
        assert (await extend(4, [{"broker_ids": [1]}])).error_code == 0
        assert (await extend(5, [])).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        fewer = await extend(2, None)
        assert fewer.error_code == ErrorCode.INVALID_PARTITIONS
        assert fewer.error_message


# -- DescribeTopicPartitions ------------------------------------------------------------------------------------------


async def test_partitions_are_described_page_by_page(data_cluster: ThreadedCluster) -> None:
    """Each partition is described once, whatever the size of a page."""
    names = sorted(new_name() for _ in range(3))
    for number, name in enumerate(names):
        data_cluster.create_topic(name, partitions=number + 2, replication_factor=1)
    asked = {"topics": [{"name": name} for name in [*names, "nothing"]], "response_partition_limit": 2}
    found, cursor, pages = [], None, 0
    async with at(data_cluster) as wire:
        while pages == 0 or cursor is not None:
            page = await wire.call(DESCRIBE, 0, {**asked, "cursor": cursor and vars(cursor)})
            found += [(topic.name, p.partition_index) for topic in page.topics for p in topic.partitions]
            missing = [topic.error_code for topic in page.topics if topic.name == "nothing"]
            cursor, pages = page.next_cursor, pages + 1
    assert found == [(name, index) for number, name in enumerate(names) for index in range(number + 2)]
    assert missing == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert pages == 5


async def test_cursor_stands_at_a_topic_that_is_asked_for(data_cluster: ThreadedCluster) -> None:
    """Topics before it are left out. A name that no topic can have gets its own error."""
    names = sorted(new_name() for _ in range(2))
    for name in names:
        data_cluster.create_topic(name, replication_factor=1)

    async def ask(wire: KafkaWire, cursor: str, partition: int = 0) -> Fields:
        topics = [{"name": name} for name in [*names, "z/z"]]
        place = {"topic_name": cursor, "partition_index": partition}
        return await wire.call(DESCRIBE, 0, {"topics": topics, "response_partition_limit": 9, "cursor": place})

    async with at(data_cluster) as wire:
        codes = {topic.name: topic.error_code for topic in (await ask(wire, names[1])).topics}
        elsewhere = await ask(wire, "elsewhere")
        negative = await ask(wire, names[0], -1)
    assert codes == {names[1]: 0, "z/z": ErrorCode.INVALID_TOPIC_EXCEPTION}
    for refused in (elsewhere, negative):
        assert {topic.error_code for topic in refused.topics} == {ErrorCode.INVALID_REQUEST}
