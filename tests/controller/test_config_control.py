"""Configurations are checked before they are stored, and described with the source of each value."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.controller.decision import Decision
from strandline.controller.metadata.config_describe import describe_broker, describe_topic
from strandline.controller.metadata.config_keys import (
    REQUIRED,
    TOPIC_CONFIGS,
    ConfigKey,
    nearest,
    parse,
)
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.controller.metadata.records import ConfigRecord
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    CONFIG_APPEND,
    CONFIG_DELETE,
    CONFIG_SET,
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_DYNAMIC_TOPIC,
    CONFIG_SOURCE_STATIC_BROKER,
    CONFIG_SUBTRACT,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    TopicConfig,
)


@pytest.fixture
def world() -> ControllerWorld:
    world = ControllerWorld(brokers=3)
    world.create("t")
    return world


def alter(world: ControllerWorld, *resources: AlterConfigsResource, validate_only: bool = False) -> list[tuple[int, str | None]]:
    answer = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(list(resources), validate_only))
    return [(r.error_code, r.error_message) for r in answer.responses]


def topic(*configs: tuple[str, int, str | None], name: str = "t") -> AlterConfigsResource:
    return AlterConfigsResource(RESOURCE_TOPIC, name, [AlterableConfig(*c) for c in configs])


def broker(name: str, *configs: tuple[str, int, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(RESOURCE_BROKER, name, [AlterableConfig(*c) for c in configs])


def test_keys_are_set_and_deleted_one_by_one(world: ControllerWorld) -> None:
    alter(world, topic(("retention.ms", CONFIG_SET, "1000"), ("segment.bytes", CONFIG_SET, "4096")))
    assert alter(world, topic(("retention.ms", CONFIG_DELETE, None))) == [(0, None)]
    assert world.image.config(RESOURCE_TOPIC, "t") == {"segment.bytes": "4096"}
    alter(world, topic(("segment.bytes", CONFIG_DELETE, None)))
    assert (RESOURCE_TOPIC, "t") not in world.image.configs


def test_a_change_that_changes_nothing_is_not_written(world: ControllerWorld) -> None:
    alter(world, topic(("retention.ms", CONFIG_SET, "1000")))
    end = world.quorum.log_end_offset
    assert alter(world, topic(("retention.ms", CONFIG_SET, "1000"), ("flush.ms", CONFIG_DELETE, None))) == [(0, None)]
    assert alter(world, topic(("flush.ms", CONFIG_SET, "5")), validate_only=True) == [(0, None)]
    assert world.quorum.log_end_offset == end


REFUSALS: list[tuple[AlterConfigsResource, ErrorCode, str]] = [
    (topic(("retentoin.ms", CONFIG_SET, "1")), ErrorCode.INVALID_CONFIG, "did you mean 'retention.ms'"),
    (topic(("retentoin.ms", CONFIG_DELETE, None)), ErrorCode.INVALID_CONFIG, "did you mean 'retention.ms'"),
    (topic(("zzz", CONFIG_SET, "1")), ErrorCode.INVALID_CONFIG, "unknown config key 'zzz'"),
    (topic(("retention.ms", CONFIG_SET, "soon")), ErrorCode.INVALID_CONFIG, "must be a whole number"),
    (topic(("retention.ms", CONFIG_SET, "-2")), ErrorCode.INVALID_CONFIG, "at least -1"),
    (topic(("min.insync.replicas", CONFIG_SET, "0")), ErrorCode.INVALID_CONFIG, "at least 1"),
    (topic(("segment.bytes", CONFIG_SET, str(2**31))), ErrorCode.INVALID_CONFIG, "does not fit"),
    (topic(("retention.ms", CONFIG_SET, None)), ErrorCode.INVALID_CONFIG, "needs a value"),
    (topic(("cleanup.policy", CONFIG_SET, "compat")), ErrorCode.INVALID_CONFIG, "one of delete, compact"),
    (topic(("cleanup.policy", CONFIG_SET, "delete,delete")), ErrorCode.INVALID_CONFIG, "has an item twice"),
    (topic(("min.cleanable.dirty.ratio", CONFIG_SET, "1.1")), ErrorCode.INVALID_CONFIG, "at most 1"),
    (topic(("max.compaction.lag.ms", CONFIG_SET, "0")), ErrorCode.INVALID_CONFIG, "at least 1"),
    (
        topic(("min.compaction.lag.ms", CONFIG_SET, "11"), ("max.compaction.lag.ms", CONFIG_SET, "10")),
        ErrorCode.INVALID_CONFIG,
        "min.compaction.lag.ms (11) must not be larger than max.compaction.lag.ms (10)",
    ),
    (
        broker(
            "1", ("log.cleaner.min.compaction.lag.ms", CONFIG_SET, "11"), ("log.cleaner.max.compaction.lag.ms", CONFIG_SET, "10")
        ),
        ErrorCode.INVALID_CONFIG,
        "must not be larger",
    ),
    (topic(("message.timestamp.type", CONFIG_SET, "Never")), ErrorCode.INVALID_CONFIG, "CreateTime, LogAppendTime"),
    (topic(("unclean.recovery.strategy", CONFIG_SET, "proactive")), ErrorCode.INVALID_CONFIG, "must be one of none, balanced"),
    (topic(("flush.ms", CONFIG_SET, "1"), ("flush.ms", CONFIG_SET, "2")), ErrorCode.INVALID_CONFIG, "given twice"),
    (topic(("flush.ms", 9, "1")), ErrorCode.INVALID_REQUEST, "none of 0 (set), 1 (delete)"),
    (topic(name="nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'nowhere'"),
    (broker("one"), ErrorCode.INVALID_REQUEST, "by its id"),
    (broker("٣"), ErrorCode.INVALID_REQUEST, "by its id"),
    (broker("01"), ErrorCode.BROKER_ID_NOT_REGISTERED, "not registered"),
    (broker("9"), ErrorCode.BROKER_ID_NOT_REGISTERED, "not registered"),
    (broker("1", ("segment.bytes", CONFIG_SET, "9999")), ErrorCode.INVALID_CONFIG, "log.segment.bytes"),
    (broker("2", ("log.cleaner.enable", CONFIG_SET, "false")), ErrorCode.INVALID_CONFIG, "while the brokers run"),
    (broker("1", ("broker.connection.loss.grace.ms", CONFIG_SET, "1")), ErrorCode.INVALID_CONFIG, "while the controllers run"),
    (broker("1", ("listeners", CONFIG_SET, "P://h:1")), ErrorCode.INVALID_CONFIG, "while the nodes run"),
    (broker("1", ("min.insync.replicas", CONFIG_SET, "2")), ErrorCode.INVALID_CONFIG, "one value for the whole cluster"),
    (broker("1", ("auto.leader.rebalance.enable", CONFIG_SET, "true")), ErrorCode.INVALID_CONFIG, "one value for the whole"),
    (broker("2", ("log.cleaner.thread", CONFIG_SET, "2")), ErrorCode.INVALID_CONFIG, "did you mean 'log.cleaner.threads'"),
    (broker("2", ("log.cleaner.threads", CONFIG_SET, "65")), ErrorCode.INVALID_CONFIG, "at most 64"),
    (topic(("flush.ms", CONFIG_APPEND, "1")), ErrorCode.INVALID_CONFIG, "is not a list"),
    (topic(("cleanup.policy", CONFIG_SUBTRACT, None)), ErrorCode.INVALID_CONFIG, "the subtract operation needs a value"),
    (topic(("cleanup.policy", CONFIG_APPEND, "compat")), ErrorCode.INVALID_CONFIG, "one of delete, compact"),
    (
        topic(("retentoin.ms", CONFIG_SET, "1"), ("flush.ms", CONFIG_SET, "-1")),
        ErrorCode.INVALID_CONFIG,
        "did you mean 'retention.ms'?; config flush.ms: '-1' is not allowed: must be at least 0",
    ),
    (AlterConfigsResource(3, "t", []), ErrorCode.INVALID_REQUEST, "is not a topic (2), broker (4) or group (32)"),
]


@pytest.mark.parametrize(("resource", "code", "words"), REFUSALS, ids=[f"{c.name}: {w}" for _, c, w in REFUSALS])
def test_a_rejected_change_names_its_reason_and_stores_nothing(
    world: ControllerWorld, resource: AlterConfigsResource, code: ErrorCode, words: str
) -> None:
    """The valid keys of the same resource are not stored either (F11); those of another resource of the request are."""
    before = world.image
    resource.configs.insert(0, AlterableConfig("max.message.bytes", CONFIG_SET, "77"))
    if resource.resource_type == RESOURCE_BROKER:
        resource.configs[0].name = "message.max.bytes"
    ((found, message),) = alter(world, resource)
    assert found == code
    assert words in (message or "")
    assert world.image is before
    assert alter(world, resource, broker("", ("log.roll.ms", CONFIG_SET, "5")))[1] == (0, None)
    assert world.image.config(RESOURCE_BROKER, "") == {"log.roll.ms": "5"}


def test_a_resource_named_twice_is_refused(world: ControllerWorld) -> None:
    codes = [code for code, _ in alter(world, topic(("flush.ms", CONFIG_SET, "1")), topic())]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2


def test_a_topics_value_overrides_the_brokers_the_clusters_and_the_files(world: ControllerWorld) -> None:
    def value(**more: Any) -> Any:
        return world.image.topic_config("t", **more)["segment.bytes"]

    static = {"log.segment.bytes": 100}
    assert value() == 1 << 30
    assert value(static=static) == 100
    alter(world, broker("", ("log.segment.bytes", CONFIG_SET, "200")))
    assert value(static=static) == 200
    alter(world, broker("1", ("log.segment.bytes", CONFIG_SET, "300")))
    assert value(static=static, broker_id=1) == 300
    assert value(static=static, broker_id=2) == 200
    alter(world, topic(("segment.bytes", CONFIG_SET, "400")))
    assert value(static=static, broker_id=1) == 400


def test_describing_names_the_place_that_each_value_comes_from(world: ControllerWorld) -> None:
    alter(world, topic(("segment.bytes", CONFIG_SET, "400")), broker("", ("log.roll.ms", CONFIG_SET, "5")))
    alter(world, broker("1", ("message.max.bytes", CONFIG_SET, "6000")))
    described = describe_topic(world.image, "t", broker_id=1, static={"log.retention.ms": 7})
    by_name = {d.name: (d.value, d.config_source) for d in described}
    assert set(by_name) == set(TOPIC_CONFIGS)
    assert by_name["segment.bytes"] == ("400", CONFIG_SOURCE_DYNAMIC_TOPIC)
    assert by_name["max.message.bytes"] == ("6000", CONFIG_SOURCE_DYNAMIC_BROKER)
    assert by_name["segment.ms"] == ("5", CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER)
    assert by_name["retention.ms"] == ("7", CONFIG_SOURCE_STATIC_BROKER)
    assert by_name["cleanup.policy"] == ("delete", CONFIG_SOURCE_DEFAULT)
    assert by_name["unclean.leader.election.enable"] == ("false", CONFIG_SOURCE_DEFAULT)
    assert all(d.documentation for d in described)
    assert [d.name for d in describe_broker(world.image, "")] == ["log.roll.ms"]
    brokers = {d.name: d for d in describe_broker(world.image, "1", static={"node.id": 1})}
    assert (brokers["node.id"].value, brokers["node.id"].read_only) == ("1", True)
    assert (brokers["message.max.bytes"].value, brokers["message.max.bytes"].read_only) == ("6000", False)


COARSE = [
    ({}, 604_800_000, CONFIG_SOURCE_DEFAULT),
    ({"log.retention.hours": 24}, 86_400_000, CONFIG_SOURCE_STATIC_BROKER),
    ({"log.retention.hours": 24, "log.retention.minutes": 5}, 300_000, CONFIG_SOURCE_STATIC_BROKER),
    ({"log.retention.minutes": 5, "log.retention.hours": 24}, 300_000, CONFIG_SOURCE_STATIC_BROKER),
    ({"log.retention.ms": 7, "log.retention.hours": 24, "log.retention.minutes": 5}, 7, CONFIG_SOURCE_STATIC_BROKER),
    ({"log.retention.hours": -1}, -1, CONFIG_SOURCE_STATIC_BROKER),
]


@pytest.mark.parametrize(("static", "value", "source"), COARSE, ids=str)
def test_of_several_names_for_the_retention_the_finest_counts(
    world: ControllerWorld, static: dict[str, Any], value: int, source: int
) -> None:
    """DescribeConfigs shows the values that the logs use."""
    described = {d.name: d for d in describe_topic(world.image, "t", broker_id=1, static=static)}
    assert (described["retention.ms"].value, described["retention.ms"].config_source) == (str(value), source)
    assert world.image.topic_config("t", broker_id=1, static=static)["retention.ms"] == value


def test_a_changed_retention_overrides_the_hours_in_the_file(world: ControllerWorld) -> None:
    static = {"log.retention.hours": 1, "log.roll.hours": 2, "log.roll.jitter.hours": 3}
    values = world.image.topic_config("t", broker_id=1, static=static)
    assert (values["retention.ms"], values["segment.ms"], values["segment.jitter.ms"]) == (3_600_000, 7_200_000, 10_800_000)
    alter(world, broker("", ("log.retention.ms", CONFIG_SET, "5")), topic(("segment.ms", CONFIG_SET, "6")))
    described = {d.name: d for d in describe_topic(world.image, "t", broker_id=1, static=static)}
    shown = {name: (described[name].value, described[name].config_source) for name in ("retention.ms", "segment.ms")}
    assert shown == {
        "retention.ms": ("5", CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER),
        "segment.ms": ("6", CONFIG_SOURCE_DYNAMIC_TOPIC),
    }
    alter(world, topic(("retention.ms", CONFIG_SET, "9")))
    assert world.image.topic_config("t", broker_id=1, static=static)["retention.ms"] == 9


def test_hours_and_minutes_cannot_be_changed_while_the_broker_runs(world: ControllerWorld) -> None:
    """As in Kafka, these keys exist only in the file."""
    ((code, message),) = alter(world, broker("1", ("log.retention.hours", CONFIG_SET, "1")))
    assert (code, "log.retention.hours" in (message or "")) == (ErrorCode.INVALID_CONFIG, True)


def test_the_controller_describes_what_it_is_asked_for(world: ControllerWorld) -> None:
    asked = [
        DescribeConfigsResource(RESOURCE_TOPIC, "t", ["segment.bytes", "nothing"]),
        DescribeConfigsResource(RESOURCE_TOPIC, "nowhere"),
        DescribeConfigsResource(RESOURCE_BROKER, "2"),
    ]
    found, missing, of_broker = world.call(apis.DESCRIBE_CONFIGS, DescribeConfigsRequest(asked)).results
    assert [c.name for c in found.configs] == ["segment.bytes"]
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {c.name for c in of_broker.configs} == {key.name for key in BROKER_KEYS}


def test_items_are_appended_to_lists_and_subtracted(world: ControllerWorld) -> None:
    def policy(operation: int, value: str) -> str | None:
        assert alter(world, topic(("cleanup.policy", operation, value))) == [(0, None)]
        return world.image.config(RESOURCE_TOPIC, "t").get("cleanup.policy")

    assert policy(CONFIG_APPEND, "compact") == "delete,compact", "to the default"
    assert policy(CONFIG_APPEND, "compact,delete") == "delete,compact"
    assert policy(CONFIG_SUBTRACT, "delete") == "compact"
    assert policy(CONFIG_SUBTRACT, "delete") == "compact"
    assert policy(CONFIG_SUBTRACT, " compact ,") == ""
    assert world.image.topic_config("t")["cleanup.policy"] == []


@pytest.mark.parametrize("own", [None, "compact"])
def test_an_item_that_is_not_there_is_subtracted_without_a_change(world: ControllerWorld, own: str | None) -> None:
    """Kafka stores the default value as the topic's own, although no one asked for it."""
    if own is not None:
        alter(world, topic(("cleanup.policy", CONFIG_SET, own)))
    end = world.quorum.log_end_offset
    absent = "delete" if own else "compact"
    resource = topic(("cleanup.policy", CONFIG_SUBTRACT, absent), ("segment.bytes", CONFIG_DELETE, None))
    (response,) = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource])).responses
    assert (response.error_code, response.warnings) == (
        0,
        [f"cleanup.policy does not contain {absent}, so nothing was subtracted from it"],
    )
    assert world.image.config(RESOURCE_TOPIC, "t").get("cleanup.policy") == own
    assert world.quorum.log_end_offset == end


def test_items_are_appended_to_what_the_cluster_has(world: ControllerWorld) -> None:
    """Kafka appends to the built-in default instead."""
    alter(world, broker("", ("log.cleanup.policy", CONFIG_SET, "compact")))
    alter(
        world, topic(("cleanup.policy", CONFIG_APPEND, "delete")), broker("1", ("log.cleanup.policy", CONFIG_SUBTRACT, "compact"))
    )
    assert world.image.config(RESOURCE_TOPIC, "t") == {"cleanup.policy": "compact,delete"}
    assert world.image.config(RESOURCE_BROKER, "1") == {"log.cleanup.policy": ""}


def stored(world: ControllerWorld, record: ConfigRecord) -> None:
    """Write a record that this version would refuse to write."""
    world.controller.submit(lambda _: Decision(None, [record]), lambda _: None)
    world.commit()


def test_value_of_one_broker_from_an_earlier_version_is_ignored_and_can_be_removed(world: ControllerWorld) -> None:
    """Leaders, followers and controllers must agree on min.insync.replicas."""
    stored(world, ConfigRecord(RESOURCE_BROKER, "1", "min.insync.replicas", "3"))
    assert world.image.topic_config("t", broker_id=1)["min.insync.replicas"] == 1
    described = {d.name: d.value for d in describe_broker(world.image, "1")}
    assert described["min.insync.replicas"] == "1"
    assert alter(world, broker("1", ("min.insync.replicas", CONFIG_DELETE, None))) == [(0, None)]
    assert world.image.config(RESOURCE_BROKER, "1") == {}


def test_what_an_unregistered_broker_has_left_can_be_removed_and_not_changed(world: ControllerWorld) -> None:
    stored(world, ConfigRecord(RESOURCE_BROKER, "9", "log.roll.ms", "5"))
    ((code, _),) = alter(world, broker("9", ("log.roll.ms", CONFIG_SET, "6")))
    assert code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert alter(world, broker("9", ("log.roll.ms", CONFIG_DELETE, None))) == [(0, None)]
    assert (RESOURCE_BROKER, "9") not in world.image.configs


def test_synonyms_name_every_place_with_a_value_the_one_that_counts_first(world: ControllerWorld) -> None:
    alter(world, topic(("retention.ms", CONFIG_SET, "1")), broker("", ("log.retention.ms", CONFIG_SET, "2")))
    alter(world, broker("1", ("log.retention.ms", CONFIG_SET, "3")))
    described = {d.name: d for d in describe_topic(world.image, "t", broker_id=1, static={"log.retention.hours": 4})}
    assert [(s.name, s.value, s.source) for s in described["retention.ms"].synonyms] == [
        ("retention.ms", "1", CONFIG_SOURCE_DYNAMIC_TOPIC),
        ("log.retention.ms", "3", CONFIG_SOURCE_DYNAMIC_BROKER),
        ("log.retention.ms", "2", CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "4", CONFIG_SOURCE_STATIC_BROKER),
        ("log.retention.ms", "604800000", CONFIG_SOURCE_DEFAULT),
    ]
    keys = {d.name: d for d in describe_broker(world.image, "1", static={"log.cleaner.threads": 2})}
    assert [(s.value, s.source) for s in keys["log.cleaner.threads"].synonyms] == [
        ("2", CONFIG_SOURCE_STATIC_BROKER),
        ("1", CONFIG_SOURCE_DEFAULT),
    ]
    assert (keys["log.cleaner.threads"].update, keys["log.cleaner.threads"].read_only) == ("cluster, broker", False)
    assert (keys["log.cleaner.enable"].update, keys["log.cleaner.enable"].read_only) == ("restart", True)


def test_synonyms_and_documentation_come_on_request(world: ControllerWorld) -> None:
    asked = [DescribeConfigsResource(RESOURCE_TOPIC, "t", ["segment.bytes"])]
    for wanted in (False, True):
        (result,) = world.call(apis.DESCRIBE_CONFIGS, DescribeConfigsRequest(asked, wanted, wanted)).results
        (config,) = result.configs
        assert (bool(config.documentation), bool(config.synonyms)) == (wanted, wanted)


# -- min.insync.replicas that does not mean what it says ------------------------------------------------------------------


def warnings(world: ControllerWorld, resource: AlterConfigsResource) -> list[str]:
    answer = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource]))
    assert [r.error_code for r in answer.responses] == [0]
    return list(answer.responses[0].warnings)


def test_min_isr_above_the_replication_factor_is_accepted_with_a_warning() -> None:
    world = ControllerWorld(brokers=3)
    world.create("pair", [[1, 2], [2, 3]])
    assert warnings(world, topic(("min.insync.replicas", CONFIG_SET, "2"), name="pair")) == []
    (warning,) = warnings(world, topic(("min.insync.replicas", CONFIG_SET, "3"), name="pair"))
    assert "acts as 2 on topic pair" in warning
    assert world.image.config(RESOURCE_TOPIC, "pair") == {"min.insync.replicas": "3"}


def test_min_isr_above_the_isr_warns_that_writes_are_rejected() -> None:
    world = ControllerWorld(brokers=3)
    world.create("trio", [[1, 2, 3], [2, 3, 1]])
    world.create("own", [[3, 1, 2]], configs=[TopicConfig("min.insync.replicas", "1")])
    world.kill_broker(3)
    (warning,) = warnings(world, topic(("min.insync.replicas", CONFIG_SET, "3"), name="trio"))
    assert "2 of 2 partitions of topic trio reject writes" in warning
    assert warnings(world, topic(("min.insync.replicas", CONFIG_DELETE, None), name="trio")) == []
    capped, rejecting = warnings(world, broker("", ("min.insync.replicas", CONFIG_SET, "4")))
    assert "acts as the replication factor on topic trio" in capped
    assert "partitions of topic trio reject" in rejecting


# -- the keys themselves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", TOPIC_CONFIGS.values(), ids=lambda key: key.name)
def test_every_default_is_a_value_that_would_be_accepted(key: ConfigKey) -> None:
    """Its text form gives the same value."""
    assert key.parse(key.default) == key.default
    assert key.parse(key.text(key.default)) == key.default


KEYS = (
    ConfigKey("a.number", "int", 3, "", "a number"),
    ConfigKey("a.ratio", "double", 0.5, "", "a ratio"),
    ConfigKey("a.list", "list", [], "", "a list"),
    ConfigKey("a.name", "string", None, "", "a name"),
    ConfigKey("needed", "boolean", REQUIRED, "", "whether"),
)


def test_parse_fills_in_defaults_and_types() -> None:
    given = {"needed": "TRUE", "a.list": " x , y,", "a.ratio": "1e-3"}
    expected = {"a.number": 3, "a.ratio": 0.001, "a.list": ["x", "y"], "a.name": None, "needed": True}
    assert parse(KEYS, given) == expected
    assert parse(KEYS, {"needed": False, "a.list": ["x"], "a.number": 4})["a.number"] == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "config needed is required: whether"),
        ({"needed": "yes"}, "must be true or false"),
        ({"needed": 1}, "must be true or false"),
        ({"needed": True, "a.numbr": 1}, "did you mean 'a.number'"),
        ({"needed": True, "a.number": "1_0"}, "whole number"),
        ({"needed": True, "a.number": "1.5"}, "whole number"),
        ({"needed": True, "a.number": 1.5}, "whole number"),
        ({"needed": True, "a.number": True}, "whole number"),
        ({"needed": True, "a.number": "٣"}, "whole number"),
        ({"needed": True, "a.number": None}, "whole number"),
        ({"needed": True, "a.number": 2**31}, "does not fit an int"),
        ({"needed": True, "a.ratio": "nan"}, "must be a number"),
        ({"needed": True, "a.ratio": "inf"}, "must be a number"),
        ({"needed": True, "a.ratio": True}, "must be a number"),
        ({"needed": True, "a.list": 5}, "must be a list"),
        ({"needed": True, "a.name": ["x"]}, "must be text"),
    ],
    ids=str,
)
def test_parse_refuses_with_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(KEYS, given)


def test_no_key_is_suggested_when_none_is_similar() -> None:
    assert nearest("zzzzzz", TOPIC_CONFIGS) is None


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete", ""])
def test_every_cleanup_policy_is_stored(world: ControllerWorld, policy: str) -> None:
    """An empty policy keeps everything (KIP-1161)."""
    assert alter(world, topic(("cleanup.policy", CONFIG_SET, policy))) == [(0, None)]
    assert world.image.topic_config("t")["cleanup.policy"] == [each for each in policy.split(",") if each]


def test_lag_is_checked_against_what_the_topic_and_the_cluster_have(world: ControllerWorld) -> None:
    assert alter(world, broker("", ("log.cleaner.max.compaction.lag.ms", CONFIG_SET, "100"))) == [(0, None)]
    assert alter(world, topic(("min.compaction.lag.ms", CONFIG_SET, "101")))[0][0] == ErrorCode.INVALID_CONFIG
    assert alter(world, topic(("min.compaction.lag.ms", CONFIG_SET, "100"))) == [(0, None)]
    assert alter(world, topic(("max.compaction.lag.ms", CONFIG_SET, "99")))[0][0] == ErrorCode.INVALID_CONFIG
