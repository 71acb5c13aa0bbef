"""The configuration of topics, brokers and groups, in each version of Kafka's requests."""

from __future__ import annotations

from typing import Any

import pytest
from data_world import new_topic
from groups_world import GroupWire
from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

DESCRIBE, ALTER, ALTER_INCREMENTALLY, DESCRIBE_QUOTAS, LIST = 32, 33, 44, 48, 74
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, UNSET, APPEND, SUBTRACT = range(4)


def at(cluster: ThreadedCluster) -> KafkaWire:
    return KafkaWire.at(cluster.kafka_bootstrap)


async def describe(wire: KafkaWire, version: int, kind: int, name: str, keys: Any = None, **changes: Any) -> Fields:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
    fields = {"resources": resources, "include_synonyms": True, "include_documentation": False}
    result: Fields = (await wire.call(DESCRIBE, version, {**fields, **changes})).results[0]
    return result


async def alter(wire: KafkaWire, version: int, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Fields:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    answer = await wire.call(ALTER_INCREMENTALLY, version, {"resources": resources, "validate_only": False})
    row: Fields = answer.responses[0]
    return row


async def replace(wire: KafkaWire, version: int, name: str, kind: int = TOPIC, **values: str | None) -> Fields:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in values.items()]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    answer = await wire.call(ALTER, version, {"resources": resources, "validate_only": False})
    row: Fields = answer.responses[0]
    return row


async def set_on(wire: KafkaWire, name: str, kind: int = TOPIC) -> dict[str, str]:
    """The keys that are set on a topic or group itself."""
    found = await describe(wire, 4, kind, name)
    return {config.name: config.value for config in found.configs if config.config_source == {TOPIC: 1, GROUP: 8}[kind]}


@pytest.mark.parametrize("version", range(1, 5))
async def test_keys_come_with_value_source_and_synonyms(data_cluster: ThreadedCluster, version: int) -> None:
    """Null and an empty list ask for all keys, another list for its own."""
    name = new_topic(data_cluster)
    async with at(data_cluster) as wire:
        assert (await alter(wire, 1, TOPIC, name, ("retention.ms", SET, "1234"))).error_code == 0
        everything = {config.name: config for config in (await describe(wire, version, TOPIC, name)).configs}
        (one,) = (await describe(wire, version, TOPIC, name, ["retention.ms"])).configs
        assert [c.name for c in (await describe(wire, version, TOPIC, name, [])).configs] == list(everything)
    assert (one.value, one.config_source, one.read_only, one.is_sensitive) == ("1234", 1, False, False)
    assert [(s.name, s.source) for s in one.synonyms] == [("retention.ms", 1), ("log.retention.ms", 5)]
    assert everything["cleanup.policy"].config_source == 5
    assert len(everything) > 20
    if version >= 3:
        assert (one.config_type, everything["cleanup.policy"].config_type) == (5, 7)


async def test_documentation_comes_if_it_is_wanted(data_cluster: ThreadedCluster) -> None:
    name = new_topic(data_cluster)
    async with at(data_cluster) as wire:
        (config,) = (await describe(wire, 4, TOPIC, name, ["retention.ms"], include_documentation=True)).configs
        (silent,) = (await describe(wire, 4, TOPIC, name, ["retention.ms"])).configs
    assert config.documentation
    assert silent.documentation is None


async def test_resources_that_do_not_exist_have_no_configuration(data_cluster: ThreadedCluster) -> None:
    async with at(data_cluster) as wire:
        found = [
            await describe(wire, 4, kind, name) for kind, name in [(TOPIC, "no"), (BROKER, "1"), (METRICS, "m"), (LOGGER, "1")]
        ]
        nameless = await describe(wire, 4, GROUP, "")
    assert [row.error_code for row in found] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0, ErrorCode.INVALID_REQUEST]
    assert [bool(row.configs) for row in [*found, nameless]] == [False, True, False, False, False]
    assert nameless.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2))
async def test_keys_are_set_appended_and_unset(data_cluster: ThreadedCluster, version: int) -> None:
    name = new_topic(data_cluster)
    async with at(data_cluster) as wire:
        await alter(wire, version, TOPIC, name, ("cleanup.policy", APPEND, "compact"), ("retention.ms", SET, "5"))
        assert await set_on(wire, name) == {"cleanup.policy": "delete,compact", "retention.ms": "5"}
        await alter(wire, version, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", UNSET, None))
        assert await set_on(wire, name) == {"cleanup.policy": "compact"}
        wrong = await alter(wire, version, TOPIC, name, ("retention.ms", SET, "soon"))
        unknown = await alter(wire, version, TOPIC, name, ("colour", SET, "red"))
        missing = await alter(wire, version, TOPIC, "nothing", ("retention.ms", SET, "5"))
        metrics = await alter(wire, version, METRICS, "m", ("interval.ms", SET, "5"))
    assert wrong.error_code == unknown.error_code == ErrorCode.INVALID_CONFIG
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metrics.error_code == ErrorCode.INVALID_REQUEST
    assert wrong.error_message


@pytest.mark.parametrize("version", range(3))
async def test_older_request_replaces_all_that_was_set(data_cluster: ThreadedCluster, version: int) -> None:
    """A key that the request does not name returns to its default."""
    name = new_topic(data_cluster)
    async with at(data_cluster) as wire:
        assert (await replace(wire, version, name, retention_ms="5", segment_ms="60000")).error_code == 0
        assert (await replace(wire, version, name, retention_ms="6")).error_code == 0
        assert await set_on(wire, name) == {"retention.ms": "6"}
        assert (await replace(wire, version, name)).error_code == 0
        assert await set_on(wire, name) == {}
        assert (await replace(wire, version, name, retention_ms="soon")).error_code == ErrorCode.INVALID_CONFIG
        assert (await replace(wire, version, name, retention_ms=None)).error_code == ErrorCode.INVALID_REQUEST


async def test_resources_are_listed_by_type(data_cluster: ThreadedCluster) -> None:
    name = new_topic(data_cluster)
    async with at(data_cluster) as wire:
        metrics = await wire.call(LIST, 0)
        topics = await wire.call(LIST, 1, {"resource_types": [TOPIC]})
        everything = await wire.call(LIST, 1, {"resource_types": []})
        wrong = await wire.call(LIST, 1, {"resource_types": [99]})
    assert metrics.config_resources == []
    assert (TOPIC, name) in {(row.resource_type, row.resource_name) for row in topics.config_resources}
    assert {row.resource_type for row in topics.config_resources} == {TOPIC}
    assert (BROKER, "1") in {(row.resource_type, row.resource_name) for row in everything.config_resources}
    assert wrong.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_keys_without_a_value_or_twice_are_refused_alone(data_cluster: ThreadedCluster) -> None:
    """The other resources of the request are changed."""
    first, second = new_topic(data_cluster), new_topic(data_cluster)
    twice = [("retention.ms", SET, "5"), ("retention.ms", UNSET, None)]
    change = {"name": "retention.ms", "config_operation": SET}
    async with at(data_cluster) as wire:
        assert (await alter(wire, 1, TOPIC, first, *twice)).error_code == ErrorCode.INVALID_REQUEST
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configs": [config]}
            for name, config in [(first, {**change, "value": None}), (second, {**change, "value": "7"})]
        ]
        answer = await wire.call(ALTER_INCREMENTALLY, 1, {"resources": resources, "validate_only": False})
        assert [(row.resource_name, row.error_code) for row in answer.responses] == [
            (first, ErrorCode.INVALID_REQUEST),
            (second, 0),
        ]
        assert (await set_on(wire, first), await set_on(wire, second)) == ({}, {"retention.ms": "7"})


async def test_deletion_of_what_is_not_set_changes_nothing(data_cluster: ThreadedCluster) -> None:
    """This includes keys that only Kafka has."""
    name, keys = new_topic(data_cluster), [("remote.storage.enable", UNSET, None), ("retention.ms", UNSET, None)]
    async with at(data_cluster) as wire:
        assert (await alter(wire, 1, TOPIC, name, *keys)).error_code == 0
        missing = await alter(wire, 1, TOPIC, "nothing", *keys)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_synonyms_have_values(data_cluster: ThreadedCluster) -> None:
    """In Kafka, a key without a default has no synonym for it."""
    async with at(data_cluster) as wire:
        found = await describe(wire, 4, BROKER, "1")
    assert all(synonym.value is not None for config in found.configs if not config.is_sensitive for synonym in config.synonyms)


async def test_a_resource_that_is_named_many_times_is_described_once(data_cluster: ThreadedCluster) -> None:
    """A request with 20,000 times the name of a broker (140 KB) used to keep it busy for 48 seconds and take 2.8 GB of its
    memory."""
    broker = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    topic = {"resource_type": TOPIC, "resource_name": new_topic(data_cluster), "configuration_keys": ["retention.ms"]}
    fields = {"resources": [broker, topic] * 5_000, "include_synonyms": True, "include_documentation": True}
    async with at(data_cluster) as wire:
        found = (await wire.call(DESCRIBE, 4, fields)).results
    assert [row.resource_name for row in found] == ["1", topic["resource_name"]]
    assert [config.name for config in found[1].configs] == ["retention.ms"]


# -- groups -----------------------------------------------------------------------------------------------------------

SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_group_is_described_with_kafkas_sources(data_cluster: ThreadedCluster, version: int) -> None:
    """The group need not exist. 8 is DYNAMIC_GROUP_CONFIG, 5 is DEFAULT_CONFIG; the synonyms are the brokers' keys."""
    group = f"described-{version}"
    async with at(data_cluster) as wire:
        assert (await alter(wire, 1, GROUP, group, (SESSION, SET, "50000"))).error_code == 0
        found = {config.name: config for config in (await describe(wire, version, GROUP, group)).configs}
        (one,) = (await describe(wire, version, GROUP, group, [HEARTBEAT])).configs
    assert list(found) == [SESSION, HEARTBEAT, ASSIGNMENT]
    own = found[SESSION]
    assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("50000", 8, False, False)
    assert [(s.name, s.value, s.source) for s in own.synonyms] == [(SESSION, "50000", 8), (f"group.{SESSION}", "9000", 5)]
    assert (one.name, one.value, one.config_source) == (HEARTBEAT, "3000", 5)
    if version >= 3:
        assert own.config_type == 3


@pytest.mark.parametrize("version", range(2))
async def test_keys_of_a_group_are_set_and_unset(data_cluster: ThreadedCluster, version: int) -> None:
    group = f"altered-{version}"
    async with at(data_cluster) as wire:
        assert (await alter(wire, version, GROUP, group, (SESSION, SET, "50000"), (HEARTBEAT, SET, "5000"))).error_code == 0
        assert await set_on(wire, group, GROUP) == {SESSION: "50000", HEARTBEAT: "5000"}
        assert (await alter(wire, version, GROUP, group, (SESSION, UNSET, None))).error_code == 0
        assert await set_on(wire, group, GROUP) == {HEARTBEAT: "5000"}
        refused = [
            await alter(wire, version, GROUP, group, change)
            for change in [(SESSION, SET, "1"), (HEARTBEAT, SET, "soon"), (SESSION, APPEND, "1"), ("colour", SET, "red")]
        ]
        share = await alter(wire, version, GROUP, group, ("share.session.timeout.ms", SET, "50000"))
        nameless = await alter(wire, version, GROUP, "", (SESSION, SET, "50000"))
        unset = await alter(wire, version, GROUP, group, ("share.session.timeout.ms", UNSET, None))
    assert {row.error_code for row in refused} == {ErrorCode.INVALID_CONFIG}
    assert (share.error_code, "no share groups" in share.error_message) == (ErrorCode.INVALID_CONFIG, True)
    assert (nameless.error_code, unset.error_code) == (ErrorCode.INVALID_REQUEST, 0)


@pytest.mark.parametrize("version", range(3))
async def test_older_request_replaces_all_that_was_set_on_a_group(data_cluster: ThreadedCluster, version: int) -> None:
    group = f"replaced-{version}"
    async with at(data_cluster) as wire:
        changes = {"consumer_session_timeout_ms": "50000", "consumer_heartbeat_interval_ms": "5000"}
        assert (await replace(wire, version, group, GROUP, **changes)).error_code == 0
        assert (await replace(wire, version, group, GROUP, consumer_session_timeout_ms="40000")).error_code == 0
        assert await set_on(wire, group, GROUP) == {SESSION: "40000"}
        assert (await replace(wire, version, group, GROUP)).error_code == 0
        assert await set_on(wire, group, GROUP) == {}


async def test_groups_with_values_of_their_own_are_listed(data_cluster: ThreadedCluster) -> None:
    """A group is listed as long as it has a value, whether it exists or not."""
    async with at(data_cluster) as wire:
        await alter(wire, 1, GROUP, "listed", (SESSION, SET, "50000"))
        groups = (await wire.call(LIST, 1, {"resource_types": [GROUP]})).config_resources
        everything = (await wire.call(LIST, 1, {"resource_types": []})).config_resources
        await alter(wire, 1, GROUP, "listed", (SESSION, UNSET, None))
        after = (await wire.call(LIST, 1, {"resource_types": [GROUP]})).config_resources
    assert {row.resource_type for row in groups} == {GROUP}
    assert "listed" in [row.resource_name for row in groups]
    assert (GROUP, "listed") in {(row.resource_type, row.resource_name) for row in everything}
    assert "listed" not in [row.resource_name for row in after]


async def test_the_next_heartbeat_has_the_groups_interval(data_cluster: ThreadedCluster) -> None:
    """Kafka's consumers take the interval from each answer. A change is answered after this broker has applied it."""
    topic = new_topic(data_cluster)
    async with await GroupWire.to(data_cluster, "live") as wire:
        joined = await wire.beat(member_id="m", subscribed_topic_names=[topic])
        assert (await alter(wire, 1, GROUP, "live", (SESSION, SET, "50000"), (HEARTBEAT, SET, "7000"))).error_code == 0
        changed = await wire.beat(member_id="m", member_epoch=joined.member_epoch)
        assert (await alter(wire, 1, GROUP, "live", (SESSION, UNSET, None), (HEARTBEAT, UNSET, None))).error_code == 0
        after = await wire.beat(member_id="m", member_epoch=changed.member_epoch)
        await wire.beat(member_id="m", member_epoch=-1)
    assert [answer.heartbeat_interval_ms for answer in (changed, after)] == [7000, 3000]


@pytest.mark.parametrize("name", ["leader.replication.throttled.replicas", "follower.replication.throttled.rate"])
async def test_throttle_of_replication_is_refused_with_its_place(data_cluster: ThreadedCluster, name: str) -> None:
    """Kafka's tool for reassignments sets these keys. The error message names the option that limits a reassignment here."""
    kind, resource = (TOPIC, new_topic(data_cluster)) if name.endswith("replicas") else (BROKER, "1")
    async with at(data_cluster) as wire:
        row = await alter(wire, 1, kind, resource, (name, SET, "1"))
    assert row.error_code == ErrorCode.INVALID_CONFIG
    assert "strandline reassign --throttle" in row.error_message


async def test_name_that_no_topic_can_have_is_refused(data_cluster: ThreadedCluster) -> None:
    async with at(data_cluster) as wire:
        codes = [(await describe(wire, 4, TOPIC, name)).error_code for name in ("a/b", "", "x" * 250, "nothing")]
    assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 3 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(("kind", "code"), [("", ErrorCode.INVALID_REQUEST), ("group", ErrorCode.UNSUPPORTED_VERSION)])
async def test_quota_entity_that_there_is_not_is_refused(data_cluster: ThreadedCluster, kind: str, code: ErrorCode) -> None:
    """Kafka has one code for an empty type, and another one for an unknown type."""
    async with at(data_cluster) as wire:
        component = {"entity_type": kind, "match_type": 0, "match": "name"}
        answer = await wire.call(DESCRIBE_QUOTAS, 1, {"components": [component], "strict": False})
    assert (answer.error_code, answer.entries) == (code, None)
