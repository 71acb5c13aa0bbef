"""Serves FindCoordinator: finds the broker that coordinates a group or a transactional id.

If the internal topic does not exist, the broker asks the controller to create it with the settings of its own configuration.
Until the topic has leaders, the answer is COORDINATOR_NOT_AVAILABLE. Its message says why, if the controller refused: for example
because there are fewer brokers than `offsets.topic.replication.factor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandline.broker.coordination.partitioning import partition_of
from strandline.broker.coordination.topics import InternalTopic
from strandline.broker.process.controller_channel import Channel
from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.protocol.apis import CREATE_TOPICS
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import CreateTopicsRequest, CreateTopicsResponse
from strandline.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from strandline.protocol.rpc.server import ServerRequest

logger = get_logger(__name__)

CREATE_TIMEOUT_MS = 5000


class FindCoordinatorHandler:
    """Answers FindCoordinator requests of a broker."""

    def __init__(
        self,
        topics: Mapping[int, InternalTopic],
        image: Callable[[], MetadataImage],
        channel: Channel,
        now: Callable[[], float],
    ) -> None:
        """`topics`: the internal topic for each key type of the request. `image`: returns the newest applied metadata. `now`: the
        loop's clock."""
        self._image = image
        self._finders = {key_type: _Finder(topic, image, channel, now) for key_type, topic in topics.items()}

    async def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, FindCoordinatorRequest)
        finder = self._finders.get(body.key_type)
        if finder is None:
            reason = f"key type {body.key_type} is not known: 0 is a group, 1 a transactional id"
            raise BrokerError(ErrorCode.INVALID_REQUEST, reason)
        await finder.create_topic_if_absent()
        listener = request.connection.listener_name
        request.reply(FindCoordinatorResponse([finder.find(key, listener) for key in body.keys]))


class _Finder:
    """Finds the coordinators of one key type: the leaders of one internal topic."""

    def __init__(
        self, topic: InternalTopic, image: Callable[[], MetadataImage], channel: Channel, now: Callable[[], float]
    ) -> None:
        self._topic = topic
        self._image = image
        self._channel = channel
        self._now = now
        self._limits = LineLimits()
        self._is_creating = False
        self._refusal: str | None = None
        """Why the last attempt to create the topic failed."""

    def find(self, key: str, listener: str) -> Coordinator:
        image, name = self._image(), self._topic.name
        topic = image.topic(name)
        if topic is None:
            return _unavailable(key, self._refusal or f"the topic {name} is being created")
        number = partition_of(key, len(topic.partitions))
        leader_id = topic.partitions[number].leader
        broker = image.brokers.get(leader_id) if leader_id != NO_LEADER else None
        endpoint = None if broker is None or broker.fenced else broker.endpoint(listener)
        if endpoint is None:
            return _unavailable(key, f"{name}-{number} has no leader")
        return Coordinator(key, leader_id, endpoint.host, endpoint.port)

    async def create_topic_if_absent(self) -> None:
        if self._image().topic(self._topic.name) is not None or self._is_creating:
            return
        self._is_creating = True
        try:
            request = CreateTopicsRequest([self._topic.creatable()], CREATE_TIMEOUT_MS)
            response = await self._channel.request(CREATE_TOPICS, request, CREATE_TIMEOUT_MS)
        except BrokerError as e:
            self._on_failed(str(e))
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
            self._on_failed(f"{reason} (see {self._topic.replication_key})")

    def _on_failed(self, reason: str) -> None:
        """Keep the reason for the answers, and log it: each reason at most once a minute, because each request tries to create
        the topic."""
        self._refusal = f"the topic {self._topic.name} could not be created: {reason}"
        suppressed = self._limits.admit(reason, self._now())
        if suppressed is not None:
            logger.warning("coordinator.topic_creation_failed", topic=self._topic.name, reason=reason, **suppressed.fields)


def _unavailable(key: str, reason: str) -> Coordinator:
    return Coordinator(key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=reason)
