"""Serving FindCoordinator: which broker coordinates a group. The first question has the internal topic created.

The broker asks the controller to create `__consumer_offsets` with the settings of its own configuration. Until the topic has
leaders, the answer is COORDINATOR_NOT_AVAILABLE, and says why if the controller refused: for example because there are fewer
brokers than `offsets.topic.replication.factor`.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.partitioning import partition_of
from strandline.broker.process.controller_channel import Channel
from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol.apis import CREATE_TOPICS
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse, TopicConfig
from strandline.protocol.messages.groups import KEY_TYPE_GROUP, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from strandline.protocol.rpc.server import ServerRequest

logger = get_logger(__name__)

CREATE_TIMEOUT_MS = 5000


def creatable_offsets_topic(config: GroupConfig) -> CreatableTopic:
    """The internal topic, as the controller is asked to create it. It is compacted, and its segments are small, because a new
    coordinator reads a whole partition."""
    return CreatableTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        [],
        [
            TopicConfig("cleanup.policy", "compact"),
            TopicConfig("segment.bytes", str(config.offsets_topic_segment_bytes)),
            TopicConfig("compression.type", "producer"),
        ],
    )


class FindCoordinatorHandler:
    """Answers FindCoordinator requests of a broker."""

    def __init__(self, config: GroupConfig, image: Callable[[], MetadataImage], channel: Channel) -> None:
        """`image`: returns the newest metadata that the broker has applied."""
        self._config = config
        self._image = image
        self._channel = channel
        self._is_creating = False
        self._refusal: str | None = None
        """Why the controller did not create the topic, the last time it was asked."""

    async def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, FindCoordinatorRequest)
        if body.key_type != KEY_TYPE_GROUP:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"key type {body.key_type} is not known: 0 is a group")
        if self._image().topic(OFFSETS_TOPIC) is None and not self._is_creating:
            await self._create_topic()
        listener = request.connection.listener_name
        request.reply(FindCoordinatorResponse([self._coordinator(key, listener) for key in body.keys]))

    def _coordinator(self, group_id: str, listener: str) -> Coordinator:
        image = self._image()
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            reason = self._refusal or f"the topic {OFFSETS_TOPIC} is being created"
            return Coordinator(group_id, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=reason)
        number = partition_of(group_id, len(topic.partitions))
        leader_id = topic.partitions[number].leader
        broker = image.brokers.get(leader_id) if leader_id != NO_LEADER else None
        endpoint = None if broker is None or broker.fenced else broker.endpoint(listener)
        if endpoint is None:
            reason = f"{OFFSETS_TOPIC}-{number} has no leader"
            return Coordinator(group_id, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=reason)
        return Coordinator(group_id, leader_id, endpoint.host, endpoint.port)

    async def _create_topic(self) -> None:
        self._is_creating = True
        try:
            request = CreateTopicsRequest([creatable_offsets_topic(self._config)], CREATE_TIMEOUT_MS)
            response = await self._channel.request(CREATE_TOPICS, request, CREATE_TIMEOUT_MS)
        except BrokerError as e:
            self._refusal = f"the topic {OFFSETS_TOPIC} could not be created: {e}"
        else:
            assert isinstance(response, CreateTopicsResponse)
            self._on_created(response)
        finally:
            self._is_creating = False

    def _on_created(self, response: CreateTopicsResponse) -> None:
        result = response.topics[0]
        self._refusal = None
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            reason = result.error_message or to_code(result.error_code).name
            self._refusal = f"the topic {OFFSETS_TOPIC} could not be created: {reason} (see offsets.topic.replication.factor)"
            logger.warning("groups.topic_creation_refused", topic=OFFSETS_TOPIC, reason=reason)
