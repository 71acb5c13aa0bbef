"""Metadata, cluster and config requests are answered from the broker's own image; changes are forwarded to the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from handled_request import HandledConnection, HandledRequest

from strandline.broker.admin import AdminHandlers
from strandline.broker.config import BrokerConfig
from strandline.broker.produce.producer_ids import ProducerIds
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.controller.metadata.records import (
    AnyRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from strandline.controller.metadata.voters import Voter
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_SET,
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_DYNAMIC_TOPIC,
    CONFIG_SOURCE_STATIC_BROKER,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    UNCLEAN_ELECTION,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribedConfig,
    ElectLeadersPartition,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    MetadataTopicRequest,
)
from strandline.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitNamedProducerRequest,
    InitNamedProducerResponse,
)
from strandline.protocol.messages.common import Listener, Message
from strandline.protocol.messages.data import InitProducerIdRequest
from strandline.protocol.producer_names import named_producer_id

TOPIC = b"t" * 16
NAMED = named_producer_id(3, 5)


def asked(api_key: int, body: Message, listener: str = "INSIDE") -> HandledRequest:
    return HandledRequest(body, api_key=api_key, connection=HandledConnection(listener_name=listener))


class Metadata:
    controller = (Voter(101, "h", 1), 3)

    def __init__(self, *records: AnyRecord) -> None:
        self.image = MetadataImage.EMPTY.apply(records, len(records), 1).image if records else MetadataImage.EMPTY
        self.conditions: list[Callable[[MetadataImage], bool]] = []

    async def wait_for(self, condition: Callable[[MetadataImage], bool], timeout_s: float) -> bool:
        self.conditions.append(condition)
        return condition(self.image)


class Channel:
    def __init__(self, *answers: Message | BrokerError) -> None:
        self.answers = list(answers)
        self.asked: list[Message] = []
        self.timeout_ms = 0

    async def request(self, api_key: int, body: Message, timeout_ms: int) -> Message:
        self.asked.append(body)
        self.timeout_ms = timeout_ms
        answer = self.answers.pop(0)
        if isinstance(answer, BrokerError):
            raise answer
        return answer


class Registration:
    broker_epoch = 7


def broker(broker_id: int, *, fenced: bool = False) -> RegisterBrokerRecord:
    listeners = (Listener("INSIDE", "in", 9000 + broker_id), Listener("OUTSIDE", "out", 9100 + broker_id))
    return RegisterBrokerRecord(broker_id, 10 + broker_id, bytes(16), listeners, rack="r", fenced=fenced)


def topic(leader: int = 1) -> list[AnyRecord]:
    isr = (1, 2, 3) if leader == 3 else (1, 2)
    return [TopicRecord("orders", TOPIC), PartitionRecord(TOPIC, 0, (1, 2, 3), isr, leader, 4, 6)]


def handlers(metadata: Metadata, channel: Channel | None = None, **settings: Any) -> AdminHandlers:
    config = BrokerConfig.from_mapping(
        {"node.id": 1, "cluster.id": "c1", "log.dirs": "/d", "controller.quorum.voters": "101@h:1", **settings}
    )
    channel = channel or Channel()
    return AdminHandlers(
        config,
        metadata,
        channel,
        ProducerIds(1, channel, Registration()),
        init_transactional=lambda request: None,
        check_name=any_name,
    )


async def any_name(name: str) -> None:
    """Accept any name: no transactional id equals it."""


def metadata_of(admin: AdminHandlers, topics: list[MetadataTopicRequest] | None, listener: str = "INSIDE") -> Any:
    request = asked(apis.METADATA, MetadataRequest(topics), listener)
    admin.handle_metadata(request)  # type: ignore[arg-type]
    return request.answer


def test_metadata_lists_unfenced_brokers_by_the_clients_listener() -> None:
    admin = handlers(Metadata(broker(1), broker(2), broker(3, fenced=True), *topic()))
    inside = metadata_of(admin, None)
    assert [(b.node_id, b.host, b.port) for b in inside.brokers] == [(1, "in", 9001), (2, "in", 9002)]
    outside = metadata_of(admin, [], "OUTSIDE")
    assert [(b.host, b.port) for b in outside.brokers] == [("out", 9101), ("out", 9102)]
    assert outside.topics == []
    partition = inside.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, partition.partition_epoch) == (1, 4, 6)
    assert partition.replica_nodes == [1, 2, 3]
    assert partition.isr_nodes == [1, 2]
    assert partition.offline_replicas == [3]
    assert inside.controller_id == 101


def test_topics_are_found_by_name_and_by_id() -> None:
    admin = handlers(Metadata(broker(1), *topic()))
    asked = [
        MetadataTopicRequest("orders"),
        MetadataTopicRequest(None, TOPIC),
        MetadataTopicRequest("x"),
        MetadataTopicRequest(None, b"x" * 16),
    ]
    answer = metadata_of(admin, asked)
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("orders", 0),
        ("orders", 0),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("leader", [-1, 3])
def test_a_partition_without_a_live_leader_is_leader_not_available(leader: int) -> None:
    admin = handlers(Metadata(broker(1), broker(3, fenced=True), *topic(leader)))
    partition = metadata_of(admin, None).topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_a_broker_that_has_not_caught_up_since_its_start_answers_nothing_wrong() -> None:
    """An empty image would say that no topic exists."""
    with pytest.raises(BrokerError) as e:
        metadata_of(handlers(Metadata()), None)
    assert e.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    assert e.value.retriable


def test_describe_cluster_shows_fenced_brokers_only_if_asked() -> None:
    admin = handlers(Metadata(broker(1), broker(2, fenced=True)))
    for wanted, ids in ((True, [1, 2]), (False, [1])):
        request = asked(apis.DESCRIBE_CLUSTER, DescribeClusterRequest(wanted))
        admin.handle_describe_cluster(request)  # type: ignore[arg-type]
        assert [b.broker_id for b in request.answer.brokers] == ids
        assert request.answer.cluster_id == "c1"


def described(admin: AdminHandlers, kind: int, name: str, *keys: str) -> dict[str, DescribedConfig]:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    request = asked(apis.DESCRIBE_CONFIGS, DescribeConfigsRequest([resource], include_documentation=True))
    admin.handle_describe_configs(request)  # type: ignore[arg-type]
    result = request.answer.results[0]
    if result.error_code:
        raise BrokerError(result.error_code, result.error_message)
    return {config.name: config for config in result.configs}


def test_a_topics_configs_name_the_source_of_each_value() -> None:
    metadata = Metadata(
        broker(1),
        *topic(),
        ConfigRecord(RESOURCE_TOPIC, "orders", "min.insync.replicas", "2"),
        ConfigRecord(RESOURCE_BROKER, "1", "log.retention.ms", "77"),
        ConfigRecord(RESOURCE_BROKER, "", "log.segment.bytes", "88"),
    )
    configs = described(handlers(metadata, **{"message.max.bytes": 99}), RESOURCE_TOPIC, "orders")
    sources = {name: (config.value, config.config_source) for name, config in configs.items()}
    assert sources["min.insync.replicas"] == ("2", CONFIG_SOURCE_DYNAMIC_TOPIC)
    assert sources["retention.ms"] == ("77", CONFIG_SOURCE_DYNAMIC_BROKER)
    assert sources["segment.bytes"] == ("88", CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER)
    assert sources["max.message.bytes"] == ("99", CONFIG_SOURCE_STATIC_BROKER)
    assert sources["cleanup.policy"] == ("delete", CONFIG_SOURCE_DEFAULT)
    assert all(config.documentation for config in configs.values())


def test_a_brokers_configs_are_its_own_and_only_topic_defaults_can_be_changed() -> None:
    admin = handlers(Metadata(broker(1)))
    configs = described(admin, RESOURCE_BROKER, "1")
    assert set(configs) == {key.name for key in BROKER_KEYS}
    assert configs["node.id"].read_only
    assert not configs["log.segment.bytes"].read_only
    assert list(described(admin, RESOURCE_BROKER, "1", "node.id")) == ["node.id"]
    for kind, name, code in (
        (RESOURCE_BROKER, "2", ErrorCode.INVALID_REQUEST),
        (RESOURCE_TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(BrokerError) as e:
            described(admin, kind, name)
        assert e.value.code == code


def test_a_brokers_hours_are_described_and_read_only() -> None:
    admin = handlers(Metadata(broker(1)), **{"log.retention.hours": 5})
    configs = described(admin, RESOURCE_BROKER, "1")
    shown = {name: (configs[name].value, configs[name].config_source, configs[name].read_only) for name in configs}
    assert shown["log.retention.hours"] == ("5", CONFIG_SOURCE_STATIC_BROKER, True)
    assert shown["log.retention.ms"] == (None, CONFIG_SOURCE_DEFAULT, False)
    assert shown["log.roll.hours"] == ("168", CONFIG_SOURCE_DEFAULT, True)


async def test_a_created_topic_is_answered_when_the_brokers_own_image_has_it() -> None:
    """A client that creates and then produces through the same broker must not race with the metadata log."""
    metadata = Metadata(broker(1), *topic())
    new = b"n" * 16
    response = CreateTopicsResponse(
        [CreatableTopicResult("orders", TOPIC), CreatableTopicResult("new", new), CreatableTopicResult("bad", error_code=17)]
    )
    admin = handlers(metadata, Channel(response))
    request = asked(apis.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic("new")]))
    await admin.handle_forwarded(request)  # type: ignore[arg-type]
    assert request.answer is response
    condition = metadata.conditions[0]
    assert not condition(metadata.image)
    assert condition(metadata.image.apply([TopicRecord("new", new)], 9, 1).image)


async def test_a_changed_config_is_answered_when_the_image_has_it() -> None:
    metadata = Metadata(broker(1), *topic())
    changes = [AlterableConfig("min.insync.replicas", CONFIG_SET, " 2")]
    body = IncrementalAlterConfigsRequest([AlterConfigsResource(RESOURCE_TOPIC, "orders", changes)])
    answer = IncrementalAlterConfigsResponse([AlterConfigsResourceResponse(0, None, RESOURCE_TOPIC, "orders")])
    await handlers(metadata, Channel(answer)).handle_forwarded(asked(apis.INCREMENTAL_ALTER_CONFIGS, body))  # type: ignore[arg-type]
    changed = metadata.image.apply([ConfigRecord(RESOURCE_TOPIC, "orders", "min.insync.replicas", "2")], 9, 1).image
    assert [condition(image) for condition in metadata.conditions for image in (metadata.image, changed)] == [False, True]


async def test_an_unclean_election_is_answered_when_any_leader_is_seen() -> None:
    """An unclean election seldom elects the preferred replica. A broker that waited for that one would answer seconds late."""
    leaderless = [TopicRecord("orders", TOPIC), PartitionRecord(TOPIC, 0, (1, 2, 3), (2,), -1, 4, 6)]
    metadata = Metadata(broker(1), *leaderless)
    answer = ElectLeadersResponse(0, [ElectLeadersResult("orders", 0)])
    admin = handlers(metadata, Channel(answer))
    body = ElectLeadersRequest(UNCLEAN_ELECTION, [ElectLeadersPartition("orders", 0)])
    await admin.handle_forwarded(asked(apis.ELECT_LEADERS, body))  # type: ignore[arg-type]
    elected = metadata.image.apply([PartitionChangeRecord(TOPIC, 0, isr=(3,), leader=3)], 9, 1).image
    assert [condition(image) for condition in metadata.conditions for image in (metadata.image, elected)] == [False, True]


async def test_the_controllers_refusal_is_the_clients_to_see() -> None:
    admin = handlers(Metadata(broker(1)), Channel(BrokerError(ErrorCode.REQUEST_TIMED_OUT, "no controller")))
    with pytest.raises(BrokerError) as e:
        await admin.handle_forwarded(asked(apis.DELETE_TOPICS, CreateTopicsRequest([])))  # type: ignore[arg-type]
    assert e.value.code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(("asked_ms", "waited_ms"), [(0, 1), (20_000, 20_000), (2**31 - 1, 60_000)])
async def test_a_client_can_not_make_the_broker_wait_for_days(asked_ms: int, waited_ms: int) -> None:
    channel = Channel(CreateTopicsResponse([]))
    request = asked(apis.CREATE_TOPICS, CreateTopicsRequest([], timeout_ms=asked_ms))
    await handlers(Metadata(broker(1)), channel).handle_forwarded(request)  # type: ignore[arg-type]
    assert channel.timeout_ms == waited_ms


async def test_producer_ids_come_from_blocks_and_no_id_is_given_twice() -> None:
    channel = Channel(AllocateProducerIdsResponse(0, 1000, 2), AllocateProducerIdsResponse(0, 5000, 2))
    admin = handlers(Metadata(broker(1)), channel)
    ids = []
    for _ in range(3):
        request = asked(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
        await admin.handle_init_producer_id(request)  # type: ignore[arg-type]
        ids.append(request.answer.producer_id)
    assert ids == [1000, 1001, 5000]
    assert channel.asked == [AllocateProducerIdsRequest(1, 7)] * 2


async def test_without_a_controller_a_producer_id_is_a_retriable_refusal() -> None:
    for trouble in (BrokerError(ErrorCode.REQUEST_TIMED_OUT), AllocateProducerIdsResponse(ErrorCode.STALE_BROKER_EPOCH)):
        admin = handlers(Metadata(broker(1)), Channel(trouble))
        with pytest.raises(BrokerError) as e:
            await admin.handle_init_producer_id(asked(apis.INIT_PRODUCER_ID, InitProducerIdRequest()))  # type: ignore[arg-type]
        assert e.value.retriable


# -- named producers --------------------------------------------------------------------------------------------------


async def init_producer_id(channel: Channel, **fields: Any) -> Any:
    request = asked(apis.INIT_PRODUCER_ID, InitProducerIdRequest(**fields))
    await handlers(Metadata(broker(1)), channel).handle_init_producer_id(request)  # type: ignore[arg-type]
    return request.answer


async def test_a_name_is_the_controllers_to_decide_every_time() -> None:
    channel = Channel(InitNamedProducerResponse(0, NAMED, 4))
    answer = await init_producer_id(channel, name="sink", work_epoch=5)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, NAMED, 4)
    assert channel.asked == [InitNamedProducerRequest(1, 7, "sink", 5)]


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION])
async def test_a_decision_against_a_name_is_an_answer_with_its_reason(code: ErrorCode) -> None:
    """The response has the error. If the request failed instead, the client would ask the next broker, and each would ask
    again."""
    answer = await init_producer_id(Channel(BrokerError(code, "why")), name="sink", work_epoch=5)
    assert (answer.error_code, answer.error_message, answer.producer_id) == (code, "why", -1)


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.STALE_BROKER_EPOCH])
async def test_without_a_decision_a_named_producer_is_to_ask_again(code: ErrorCode) -> None:
    with pytest.raises(BrokerError) as e:
        await init_producer_id(Channel(BrokerError(code)), name="sink")
    assert e.value.retriable
