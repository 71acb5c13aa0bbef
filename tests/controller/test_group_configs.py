"""The configuration of a consumer group is checked by the bounds of the controller's file, and described with its sources."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.broker.config import BrokerConfig
from strandline.controller.config import ControllerConfig
from strandline.controller.config_control import incremental_alter_configs
from strandline.controller.metadata.config_describe import describe_group
from strandline.controller.metadata.group_configs import BOUNDS, GROUP_CONFIGS, NODE_DEFAULTS
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.node_keys import BROKER_KEYS, CONTROLLER_KEYS
from strandline.controller.metadata.records import ConfigRecord, encode_record
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    CONFIG_APPEND,
    CONFIG_DELETE,
    CONFIG_SET,
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_GROUP,
    CONFIG_SOURCE_STATIC_BROKER,
    RESOURCE_GROUP,
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)

SESSION, HEARTBEAT, ASSIGNMENT = GROUP_CONFIGS


@pytest.fixture
def world() -> ControllerWorld:
    return ControllerWorld(brokers=1)


def group(*configs: tuple[str, int, str | None], name: str = "g") -> AlterConfigsResource:
    return AlterConfigsResource(RESOURCE_GROUP, name, [AlterableConfig(*c) for c in configs])


def alter(world: ControllerWorld, *resources: AlterConfigsResource) -> list[tuple[int, str | None]]:
    answer = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(list(resources)))
    return [(r.error_code, r.error_message) for r in answer.responses]


def test_every_key_has_a_default_and_bounds_on_brokers_and_controllers() -> None:
    """The controller checks a value, and the broker acts on it."""
    names = {f"group.{name}" for name in GROUP_CONFIGS} | {key for bounds in BOUNDS.values() for key in bounds}
    assert names == set(NODE_DEFAULTS)
    for keys in (BROKER_KEYS, CONTROLLER_KEYS):
        assert names <= {key.name for key in keys}


def test_values_of_a_group_that_does_not_exist_are_set_and_removed(world: ControllerWorld) -> None:
    """As in Kafka: a group can be configured before its first member joins."""
    assert alter(world, group((SESSION, CONFIG_SET, "50000"), (HEARTBEAT, CONFIG_SET, "10000"))) == [(0, None)]
    assert world.image.config(RESOURCE_GROUP, "g") == {SESSION: "50000", HEARTBEAT: "10000"}
    assert alter(world, group((SESSION, CONFIG_DELETE, None), (HEARTBEAT, CONFIG_DELETE, None))) == [(0, None)]
    assert (RESOURCE_GROUP, "g") not in world.image.configs


REFUSALS: list[tuple[AlterConfigsResource, ErrorCode, str]] = [
    (
        group((SESSION, CONFIG_SET, "5999")),
        ErrorCode.INVALID_CONFIG,
        "at least group.consumer.min.session.timeout.ms, which is 6000",
    ),
    (group((SESSION, CONFIG_SET, "60001")), ErrorCode.INVALID_CONFIG, "at most group.consumer.max.session.timeout.ms"),
    (group((HEARTBEAT, CONFIG_SET, "999")), ErrorCode.INVALID_CONFIG, "group.consumer.min.heartbeat.interval.ms"),
    (group((HEARTBEAT, CONFIG_SET, "15001")), ErrorCode.INVALID_CONFIG, "group.consumer.max.heartbeat.interval.ms"),
    (group((ASSIGNMENT, CONFIG_SET, "15001")), ErrorCode.INVALID_CONFIG, "group.consumer.max.assignment.interval.ms"),
    (group((ASSIGNMENT, CONFIG_SET, "-1")), ErrorCode.INVALID_CONFIG, "at least 0"),
    (group((SESSION, CONFIG_SET, "soon")), ErrorCode.INVALID_CONFIG, "whole number"),
    (group((SESSION, CONFIG_SET, None)), ErrorCode.INVALID_CONFIG, "needs a value"),
    (group((SESSION, CONFIG_APPEND, "1")), ErrorCode.INVALID_CONFIG, "is not a list"),
    (group(("consumer.sesion.timeout.ms", CONFIG_SET, "1")), ErrorCode.INVALID_CONFIG, f"did you mean '{SESSION}'"),
    (group(("share.isolation.level", CONFIG_SET, "read_committed")), ErrorCode.INVALID_CONFIG, "no share groups"),
    (group(("streams.num.standby.replicas", CONFIG_SET, "1")), ErrorCode.INVALID_CONFIG, "no Streams groups"),
    (group((SESSION, CONFIG_SET, "50000"), name=""), ErrorCode.INVALID_REQUEST, "name of the group is missing"),
    # Not below the default session, which is 9000.
    (group((HEARTBEAT, CONFIG_SET, "9000")), ErrorCode.INVALID_CONFIG, "the default group.consumer.session.timeout.ms"),
    (group((SESSION, CONFIG_SET, "12000"), (HEARTBEAT, CONFIG_SET, "12000")), ErrorCode.INVALID_CONFIG, "must be larger than"),
]


@pytest.mark.parametrize(("resource", "code", "words"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_rejected_change_names_its_reason_and_stores_nothing(
    world: ControllerWorld, resource: AlterConfigsResource, code: ErrorCode, words: str
) -> None:
    ((found, message),) = alter(world, resource)
    assert found == code
    assert words in (message or "")
    assert not world.image.configs


def test_the_session_cannot_be_removed_below_the_heartbeat_interval(world: ControllerWorld) -> None:
    """The values that remain are checked together."""
    alter(world, group((SESSION, CONFIG_SET, "50000"), (HEARTBEAT, CONFIG_SET, "10000")))
    ((code, _),) = alter(world, group((SESSION, CONFIG_DELETE, None)))
    assert code == ErrorCode.INVALID_CONFIG
    assert alter(world, group((HEARTBEAT, CONFIG_DELETE, None)))[0][0] == 0


def test_a_stored_value_outside_of_new_bounds_does_not_block_other_changes(world: ControllerWorld) -> None:
    """The bounds may have changed since it was set, and an unknown key is that of a newer version."""
    records = [ConfigRecord(RESOURCE_GROUP, "g", SESSION, "2000000"), ConfigRecord(RESOURCE_GROUP, "g", "new.key", "x")]
    image = world.image.apply(records, world.image.offset + 2, 1).image
    change = group((ASSIGNMENT, CONFIG_SET, "100"), ("new.key", CONFIG_DELETE, None))
    decision = incremental_alter_configs(image, IncrementalAlterConfigsRequest([change]))
    assert [row.error_code for row in decision.reply.responses] == [0]
    assert len(decision.records) == 2


def test_the_controllers_file_has_the_bounds() -> None:
    node = {**NODE_DEFAULTS, "group.consumer.max.session.timeout.ms": 100_000}
    request = IncrementalAlterConfigsRequest([group((SESSION, CONFIG_SET, "90000"))])
    assert incremental_alter_configs(MetadataImage.empty(), request, node).reply.responses[0].error_code == 0
    assert incremental_alter_configs(MetadataImage.empty(), request).reply.responses[0].error_code == ErrorCode.INVALID_CONFIG


CONTROLLER = {"node.id": 101, "log.dirs": "d", "controller.quorum.voters": "101@localhost:9093"}
BROKER = {"node.id": 1, "log.dirs": "d", "controller.quorum.voters": "101@localhost:9093", "listeners": "PLAINTEXT://localhost:1"}


@pytest.mark.parametrize(("parse", "base"), [(ControllerConfig.from_mapping, CONTROLLER), (BrokerConfig.from_mapping, BROKER)])
def test_a_node_whose_bounds_contradict_each_other_does_not_start(parse: Any, base: dict[str, Any]) -> None:
    parse({**base, "group.consumer.session.timeout.ms": 4000, "group.consumer.heartbeat.interval.ms": 100})
    for wrong in (
        {"group.consumer.min.session.timeout.ms": 7000, "group.consumer.max.session.timeout.ms": 6999},
        {"group.consumer.min.session.timeout.ms": 10000},
        {"group.consumer.max.heartbeat.interval.ms": 2999},
    ):
        with pytest.raises(UsageError, match=r"group\.consumer"):
            parse({**base, **wrong})


def test_a_group_is_described_with_all_keys_and_the_sources_of_their_values(world: ControllerWorld) -> None:
    alter(world, group((SESSION, CONFIG_SET, "050000")))
    static = {"group.consumer.session.timeout.ms": 12000, "group.consumer.heartbeat.interval.ms": 4000}
    session, heartbeat, assignment = describe_group(world.image, "g", broker_id=1, static=static)
    assert (session.name, session.value, session.config_source, session.read_only) == (
        SESSION,
        "50000",
        CONFIG_SOURCE_DYNAMIC_GROUP,
        False,
    )
    assert [(s.name, s.value, s.source) for s in session.synonyms] == [
        (SESSION, "50000", CONFIG_SOURCE_DYNAMIC_GROUP),
        ("group.consumer.session.timeout.ms", "12000", CONFIG_SOURCE_STATIC_BROKER),
        ("group.consumer.session.timeout.ms", "9000", CONFIG_SOURCE_DEFAULT),
    ]
    assert (heartbeat.value, heartbeat.config_source) == ("4000", CONFIG_SOURCE_STATIC_BROKER)
    assert (assignment.value, assignment.config_source, assignment.update) == ("500", CONFIG_SOURCE_DEFAULT, "group")


def test_a_controller_describes_groups_too(world: ControllerWorld) -> None:
    request = DescribeConfigsRequest([DescribeConfigsResource(RESOURCE_GROUP, name) for name in ("g", "")])
    known, nameless = world.call(apis.DESCRIBE_CONFIGS, request).results
    assert [config.name for config in known.configs] == [SESSION, HEARTBEAT, ASSIGNMENT]
    assert nameless.error_code == ErrorCode.INVALID_REQUEST


def test_a_cluster_at_level_0_takes_the_records() -> None:
    """Their format is that of any configuration, so an older node reads them; it does not act on them."""
    record = ConfigRecord(RESOURCE_GROUP, "g", SESSION, "50000")
    assert encode_record(record, level=0) == encode_record(record)


def test_values_of_groups_are_in_a_snapshot(world: ControllerWorld) -> None:
    alter(world, group((SESSION, CONFIG_SET, "50000")))
    image = world.image
    assert MetadataImage.from_records(image.to_records(), image.offset, image.epoch).config(RESOURCE_GROUP, "g") == {
        SESSION: "50000"
    }
