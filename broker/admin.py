"""Serving a client's requests about the cluster: Metadata, DescribeCluster, DescribeConfigs, InitProducerId and admin changes.

The broker answers questions from its own metadata image, and forwards changes, and questions about the quorum or running
reassignments, to the active controller (as KIP-590 does). Before it responds to a change, it waits up to `OWN_IMAGE_WAIT_S` until
its own image shows the change. So a client that creates a topic and then produces through the same broker does not race with the
metadata log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from strandline.broker.config import BrokerConfig
from strandline.broker.process.controller_channel import Channel
from strandline.broker.process.forwarding import Forwarder
from strandline.broker.produce.producer_ids import ProducerIds
from strandline.broker.security import describe as security
from strandline.broker.unclean_election_reports import describe_unclean_elections
from strandline.controller.metadata.cluster_describe import describe_brokers
from strandline.controller.metadata.config_describe import describe_broker, describe_group, describe_resources, describe_topic
from strandline.controller.metadata.config_keys import TOPIC_CONFIGS, list_items
from strandline.controller.metadata.group_configs import GROUP_CONFIGS, check_group_name
from strandline.controller.metadata.image import NO_LEADER, BrokerRegistration, MetadataImage, PartitionRegistration, TopicImage
from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS
from strandline.controller.metadata.node_keys import DYNAMIC_BROKER_CONFIGS
from strandline.controller.metadata.voters import Voter
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_APPEND,
    CONFIG_DELETE,
    CONFIG_SET,
    PREFERRED_ELECTION,
    RESOURCE_BROKER,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribeUncleanElectionsRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from strandline.protocol.messages.common import ZERO_UUID, Message
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse
from strandline.protocol.rpc.server import Handler, ServerRequest

FORWARD_TIMEOUT_MS = 30_000
FORWARD_TIMEOUT_MS_MAX = 60_000
"""The longest timeout of a forwarded request, even if the client asks for more, so that a broker without a controller responds in
the end."""
MUTED_S_MAX = 1.0
"""The longest time for which a client's connection is muted after the controller has refused its request because of a quota. Such
a quota may need hours, and the connection serves other requests, too."""
OWN_IMAGE_WAIT_S = 5.0
"""How long a response waits until the broker's own image has the change. Then it is sent anyway, because the change is
committed."""

_FORWARDED = (
    apis.CREATE_TOPICS,
    apis.DELETE_TOPICS,
    apis.CREATE_PARTITIONS,
    apis.INCREMENTAL_ALTER_CONFIGS,
    apis.ELECT_LEADERS,
    apis.ALTER_PARTITION_REASSIGNMENTS,
    apis.LIST_PARTITION_REASSIGNMENTS,
    apis.UNREGISTER_BROKER,
    apis.UPDATE_FEATURES,
    apis.DESCRIBE_QUORUM,
    *security.FORWARDED,
)


class Metadata(Protocol):
    """The broker's view of the cluster (`broker/process/metadata_loader.py`)."""

    image: MetadataImage

    @property
    def controller(self) -> tuple[Voter, int] | None: ...

    async def wait_for(self, condition: Callable[[MetadataImage], bool], timeout_s: float) -> bool: ...


class AdminHandlers:
    """Answers the admin requests of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        channel: Channel,
        producer_ids: ProducerIds,
        *,
        init_transactional: Callable[[ServerRequest], Awaitable[None] | None],
        check_name: Callable[[str], Awaitable[None]],
    ) -> None:
        """`init_transactional`: answers InitProducerId with a transactional id. `check_name`: raises a `BrokerError` if the name
        of a producer is a transactional id."""
        self._config = config
        self._metadata = metadata
        has_authorizer = bool(config.values.get("authorizer.class.name"))
        self._forwarder = Forwarder(channel, lambda: metadata.image, has_authorizer=has_authorizer)
        self._producer_ids = producer_ids
        self._init_transactional = init_transactional
        self._check_name = check_name

    def handlers(self) -> dict[int, Handler]:
        """Api key -> handler."""
        own: dict[int, Handler] = {
            apis.METADATA: self.handle_metadata,
            apis.DESCRIBE_CLUSTER: self.handle_describe_cluster,
            apis.DESCRIBE_CONFIGS: self.handle_describe_configs,
            apis.INIT_PRODUCER_ID: self.handle_init_producer_id,
            apis.DESCRIBE_UNCLEAN_ELECTIONS: self.handle_describe_unclean_elections,
        }
        has_authorizer = bool(self._config.values.get("authorizer.class.name"))
        own |= security.describe_handlers(self._image, has_authorizer=has_authorizer)
        return own | dict.fromkeys(_FORWARDED, self.handle_forwarded)

    def _image(self) -> MetadataImage:
        """The published image. Raises BROKER_NOT_AVAILABLE before the broker has caught up after its start."""
        image = self._metadata.image
        if image.offset < 0:
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE, "the broker is starting: it has not read the cluster's metadata yet; retry"
            )
        return image

    def _controller_id(self) -> int:
        controller = self._metadata.controller
        return -1 if controller is None else controller[0].id

    # -- Metadata, DescribeCluster ------------------------------------------------------------------------------------

    def handle_metadata(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, MetadataRequest)
        image, listener = self._image(), request.connection.listener_name
        brokers = [
            MetadataBroker(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in image.brokers.values()
            if not broker.fenced and (endpoint := broker.endpoint(listener)) is not None
        ]
        alive = {broker.node_id for broker in brokers}
        if body.topics is None:
            topics = [_topic(topic, alive, image.brokers) for topic in image.topics_by_id.values()]
        else:
            topics = [_asked_topic(image, asked.name, asked.topic_id, alive) for asked in body.topics]
        request.reply(MetadataResponse(brokers, self._config.cluster_id, self._controller_id(), topics))

    def handle_describe_unclean_elections(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeUncleanElectionsRequest)
        request.reply(describe_unclean_elections(self._image(), body))

    def handle_describe_cluster(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeClusterRequest)
        image, listener = self._image(), request.connection.listener_name
        brokers = describe_brokers(image, image.brokers.values(), listener, include_fenced=body.include_fenced_brokers)
        request.reply(DescribeClusterResponse(0, None, self._config.cluster_id, self._controller_id(), brokers))

    # -- configs ------------------------------------------------------------------------------------------------------

    def handle_describe_configs(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeConfigsRequest)
        image = self._image()
        request.reply(describe_resources(body, lambda kind, name: self._describe(image, kind, name)))

    def _describe(self, image: MetadataImage, kind: int, name: str) -> list[DescribedConfig]:
        config = self._config
        if kind == RESOURCE_TOPIC:
            return describe_topic(image, name, broker_id=config.node_id, static=config.given_values)
        if kind == RESOURCE_GROUP:
            check_group_name(name)
            return describe_group(image, name, broker_id=config.node_id, static=config.given_values)
        if kind != RESOURCE_BROKER:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"resource type {kind} has no configuration")
        if name not in ("", str(config.node_id)):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"ask broker {name} itself: this is broker {config.node_id}")
        return describe_broker(image, name, static=config.given_values)

    # -- producer ids -------------------------------------------------------------------------------------------------

    async def handle_init_producer_id(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, InitProducerIdRequest)
        if body.transactional_id is not None:
            rest = self._init_transactional(request)
            if rest is not None:
                await rest
        elif body.name is None:
            request.reply(InitProducerIdResponse(0, await self._producer_ids.next_id(), 0))
        else:
            if body.producer_epoch < 0:
                await self._check_name(body.name)
            request.reply(await self._producer_ids.of_name(body.name, body))

    # -- the controller's decisions -----------------------------------------------------------------------------------

    async def handle_forwarded(self, request: ServerRequest) -> None:
        """Forward a request to the active controller, and its response, with any errors, to the client."""
        body = request.body
        timeout_ms = min(max(getattr(body, "timeout_ms", FORWARD_TIMEOUT_MS), 1), FORWARD_TIMEOUT_MS_MAX)
        response = await self._forwarder.forward(request, timeout_ms)
        condition = _visible(body, response)
        if condition is not None:
            await self._metadata.wait_for(condition, OWN_IMAGE_WAIT_S)
        request.reply(response)
        request.connection.mute(min(getattr(response, "throttle_time_ms", 0) / 1000, MUTED_S_MAX))


def _asked_topic(image: MetadataImage, name: str | None, topic_id: bytes, alive: set[int]) -> MetadataTopic:
    topic = image.topics_by_id.get(topic_id) if name is None else image.topic(name)
    if topic is not None:
        return _topic(topic, alive, image.brokers)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataTopic(unknown, name, topic_id if name is None else ZERO_UUID, [])


def _topic(topic: TopicImage, alive: set[int], brokers: Mapping[int, BrokerRegistration]) -> MetadataTopic:
    partitions = [_partition(index, partition, alive, brokers) for index, partition in sorted(topic.partitions.items())]
    return MetadataTopic(0, topic.name, topic.topic_id, partitions, topic.name in INTERNAL_TOPICS)


def _partition(
    index: int, partition: PartitionRegistration, alive: set[int], brokers: Mapping[int, BrokerRegistration]
) -> MetadataPartition:
    led = partition.leader in alive
    offline = [r for r in partition.replicas if r not in alive or not brokers[r].has_online(partition)]
    return MetadataPartition(
        0 if led else ErrorCode.LEADER_NOT_AVAILABLE,
        index,
        partition.leader if led else NO_LEADER,
        partition.leader_epoch,
        partition.partition_epoch,
        list(partition.replicas),
        list(partition.isr),
        offline,
        list(partition.elr),
        list(partition.last_known_elr),
        list(partition.adding_replicas),
    )


# -- when is a decision visible in an image? --------------------------------------------------------------------------

Condition = Callable[[MetadataImage], bool]


def _visible(body: Message, response: Message) -> Condition | None:
    """The condition that an image fulfils once it has the controller's decision; None if there is nothing to wait for."""
    if getattr(body, "validate_only", False):
        return None
    if isinstance(body, CreateTopicsRequest) and isinstance(response, CreateTopicsResponse):
        ids = [topic.topic_id for topic in response.topics if not topic.error_code]
        return lambda image: all(topic_id in image.topics_by_id for topic_id in ids)
    if isinstance(body, DeleteTopicsRequest) and isinstance(response, DeleteTopicsResponse):
        gone = [topic.topic_id for topic in response.topics if not topic.error_code]
        return lambda image: not any(topic_id in image.topics_by_id for topic_id in gone)
    if isinstance(body, CreatePartitionsRequest) and isinstance(response, CreatePartitionsResponse):
        failed = {result.name for result in response.results if result.error_code}
        counts = {topic.name: topic.count for topic in body.topics if topic.name not in failed}
        return lambda image: all(_has_partitions(image, name, count) for name, count in counts.items())
    if isinstance(body, IncrementalAlterConfigsRequest) and isinstance(response, IncrementalAlterConfigsResponse):
        return _configs_visible(body, response)
    if isinstance(body, UnregisterBrokerRequest) and isinstance(response, UnregisterBrokerResponse):
        return lambda image: response.error_code != 0 or body.broker_id not in image.brokers
    if isinstance(body, ElectLeadersRequest) and isinstance(response, ElectLeadersResponse):
        elected = [(result.topic, result.partition) for result in response.results if not result.error_code]
        preferred = body.election_type == PREFERRED_ELECTION
        return lambda image: all(_has_leader(image, *where, preferred=preferred) for where in elected)
    if isinstance(body, AlterPartitionReassignmentsRequest) and isinstance(response, AlterPartitionReassignmentsResponse):
        return _reassignments_visible(body, response)
    if isinstance(body, UpdateFeaturesRequest) and isinstance(response, UpdateFeaturesResponse):
        failed = {result.feature for result in response.results if result.error_code}
        level = max((u.max_version_level for u in body.feature_updates if u.feature not in failed), default=0)
        return lambda image: image.feature_level >= level
    return security.visible(body, response)


def _has_partitions(image: MetadataImage, name: str, count: int) -> bool:
    topic = image.topic(name)
    return topic is not None and len(topic.partitions) >= count


def _has_leader(image: MetadataImage, name: str, index: int, *, preferred: bool) -> bool:
    """Whether the partition has a leader, with `preferred` the first of its replicas; true if the partition was deleted."""
    topic = image.topic(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if partition is None:
        return True
    return bool(partition.leader == partition.replicas[0] if preferred else partition.leader != NO_LEADER)


def _reassignments_visible(body: AlterPartitionReassignmentsRequest, response: AlterPartitionReassignmentsResponse) -> Condition:
    failed = {(t.name, p.partition_index) for t in response.responses for p in t.partitions if p.error_code}
    targets = {
        (topic.name, p.partition_index): p.replicas
        for topic in body.topics
        for p in topic.partitions
        if (topic.name, p.partition_index) not in failed
    }
    return lambda image: all(_has_target(image, *where, target) for where, target in targets.items())


def _has_target(image: MetadataImage, name: str, index: int, target: list[int] | None) -> bool:
    topic = image.topic(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if partition is None:
        return True
    return not partition.is_reassigning if target is None else list(partition.replicas[: len(target)]) == target


def _configs_visible(body: IncrementalAlterConfigsRequest, response: IncrementalAlterConfigsResponse) -> Condition:
    failed = {(result.resource_type, result.resource_name) for result in response.responses if result.error_code}
    conditions = [
        _config_visible(resource.resource_type, resource.resource_name, config)
        for resource in body.resources
        if (resource.resource_type, resource.resource_name) not in failed
        for config in resource.configs
    ]
    return lambda image: all(condition(image) for condition in conditions)


_KEYS = {RESOURCE_TOPIC: TOPIC_CONFIGS, RESOURCE_BROKER: DYNAMIC_BROKER_CONFIGS, RESOURCE_GROUP: GROUP_CONFIGS}
"""The keys of each type of resource."""


def _config_visible(kind: int, name: str, config: AlterableConfig) -> Condition:
    def value(image: MetadataImage) -> str | None:
        return image.config(kind, name).get(config.name)

    if config.config_operation == CONFIG_DELETE:
        return lambda image: value(image) is None
    key = _KEYS[kind][config.name]
    if config.config_operation == CONFIG_SET:
        # A value is stored in its normal form, which may differ from the form in the request.
        text = key.text(key.parse(config.value))
        return lambda image: value(image) == text
    has_items = config.config_operation == CONFIG_APPEND
    items = set(list_items(config.value or ""))

    def is_changed(image: MetadataImage) -> bool:
        present = set(list_items(value(image) or ""))
        return items <= present if has_items else not items & present

    return is_changed
