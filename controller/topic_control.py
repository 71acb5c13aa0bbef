"""Topics: create, delete, add partitions. Each topic of a request succeeds or fails by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from strandline.controller.cluster_control import usable_brokers
from strandline.controller.config_control import check_config, check_topic_configs, topic_key
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage, TopicImage
from strandline.controller.metadata.internal_topics import refuse_internal
from strandline.controller.metadata.records import (
    AnyRecord,
    BrokerIds,
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.controller.metadata.topic_names import name_problem
from strandline.controller.min_isr_warnings import warnings_of_topic
from strandline.controller.partition_index import PartitionIndex, fold_name
from strandline.controller.reassignment import assignment_of
from strandline.controller.replica_placer import ReplicaPlacer
from strandline.controller.replication_control import may_lead
from strandline.controller.request_limits import check_amount
from strandline.controller.security.mutation_quota import FREE, Charge
from strandline.protocol.doors import new_uuid
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    RESOURCE_TOPIC,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.protocol.messages.common import ZERO_UUID


@dataclass(frozen=True)
class TopicDefaults:
    """The values for requests that do not give them (-1)."""

    num_partitions: int = 1
    replication_factor: int = 1


class TopicControl:
    """Decides about new topics and partitions: names, configurations, and the brokers that get the replicas."""

    def __init__(self, random: Random, defaults: TopicDefaults) -> None:
        self._random = random
        self._defaults = defaults

    # -- create --

    def create_topics(
        self, image: MetadataImage, index: PartitionIndex, request: CreateTopicsRequest, charge: Charge = FREE
    ) -> Decision[CreateTopicsResponse]:
        """Create topics (CreateTopics). Replicas are placed on racks in turn unless the request assigns them; the ISR of a new
        partition is all its active replicas.

        The reply has an error per topic: INVALID_TOPIC_EXCEPTION (also if the name differs from another only in '.' and '_'),
        TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG,
        INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED. With `validate_only` nothing is written, nor charged. Raises BrokerError
        POLICY_VIOLATION if the request would create too many partitions, or sets too many configurations."""
        check_amount(sum(max(t.num_partitions, len(t.assignments), 1) for t in request.topics), "create", "partitions")
        check_amount(sum(len(t.configs) for t in request.topics), "set", "configurations")
        decision: Decision[CreateTopicsResponse] = Decision(CreateTopicsResponse([]), cause="topic_created")
        times = Counter(topic.name for topic in request.topics)
        new_names: dict[str, str] = {}
        """Folded name -> name, of the topics that this request creates."""
        for topic in request.topics:
            try:
                if times[topic.name] > 1:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice in the request")
                _check_name(image, index, topic.name, new_names)
                records, result = self._create_topic(image, topic)
                if not request.validate_only:
                    charge(result.num_partitions)
            except BrokerError as e:
                decision.reply.topics.append(CreatableTopicResult(topic.name, ZERO_UUID, e.code, e.message))
                continue
            new_names[fold_name(topic.name)] = topic.name
            decision.records += records
            decision.reply.topics.append(result)
        if request.validate_only:
            decision.records = []
            for result in decision.reply.topics:
                result.topic_id = ZERO_UUID
        return decision

    def _create_topic(self, image: MetadataImage, topic: CreatableTopic) -> tuple[list[AnyRecord], CreatableTopicResult]:
        assignments = _explicit_assignments(topic) if topic.assignments else None
        if assignments is None:
            partitions, factor = self._counts(topic)
            assignments = ReplicaPlacer(usable_brokers(image), self._random).place(partitions, factor)
        else:
            _check_assignments(image, assignments, len(assignments[0]))
        configs = _topic_configs(topic)
        check_topic_configs(image, configs)
        topic_id = self._new_topic_id(image)
        records: list[AnyRecord] = [TopicRecord(topic.name, topic_id)]
        placed = _new_partitions(image, topic_id, assignments, first_index=0)
        records += placed
        records += [ConfigRecord(RESOURCE_TOPIC, topic.name, name, value) for name, value in configs.items()]
        min_isr = configs.get("min.insync.replicas")
        warnings = [] if min_isr is None else warnings_of_topic(topic.name, int(min_isr), placed)
        return records, CreatableTopicResult(topic.name, topic_id, 0, None, len(assignments), len(assignments[0]), warnings)

    def _counts(self, topic: CreatableTopic) -> tuple[int, int]:
        if topic.num_partitions == 0 or topic.num_partitions < -1:
            raise BrokerError(ErrorCode.INVALID_PARTITIONS, "the number of partitions must be at least 1, or -1 for the default")
        if topic.replication_factor == 0 or topic.replication_factor < -1:
            raise BrokerError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1, or -1 for the default"
            )
        defaults = self._defaults
        return (
            defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions,
            defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor,
        )

    def _new_topic_id(self, image: MetadataImage) -> bytes:
        while True:
            topic_id = new_uuid(self._random)
            if topic_id not in image.topics_by_id:
                return topic_id

    # -- add partitions --

    def create_partitions(
        self, image: MetadataImage, request: CreatePartitionsRequest, charge: Charge = FREE
    ) -> Decision[CreatePartitionsResponse]:
        """Add partitions to topics (CreatePartitions, KIP-195), with the replication factor that the topic has, or will have
        after its reassignment.

        The reply has an error per topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS if the topic has as many or more already,
        INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR, INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED. With `validate_only`
        nothing is written, nor charged. Raises BrokerError POLICY_VIOLATION for too many topics or new partitions."""
        check_amount(len(request.topics), "name", "topics")
        check_amount(sum(_added(image, topic) for topic in request.topics), "create", "partitions")
        decision: Decision[CreatePartitionsResponse] = Decision(CreatePartitionsResponse([]), cause="partitions_added")
        times = Counter(topic.name for topic in request.topics)
        for topic in request.topics:
            result = CreatePartitionsTopicResult(topic.name)
            decision.reply.results.append(result)
            try:
                if times[topic.name] > 1:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice in the request")
                added = self._add_partitions(image, topic)
                if not request.validate_only:
                    charge(len(added))
                decision.records += added
            except BrokerError as e:
                result.error_code, result.error_message = e.code, e.message
        if request.validate_only:
            decision.records = []
        return decision

    def _add_partitions(self, image: MetadataImage, request: CreatePartitionsTopic) -> list[AnyRecord]:
        topic = image.topic(request.name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {request.name!r}")
        refuse_internal(request.name, "no partitions can be added, because their number decides which of them holds a key")
        present = len(topic.partitions)
        if request.count <= present:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {request.name} has {present} partitions; the new number must be higher, not {request.count}",
            )
        assignments = self._assignments_of_added(image, topic, request, request.count - present)
        return list(_new_partitions(image, topic.topic_id, assignments, first_index=present))

    def _assignments_of_added(
        self, image: MetadataImage, topic: TopicImage, request: CreatePartitionsTopic, added: int
    ) -> Sequence[BrokerIds]:
        existing = [assignment_of(topic.partitions[i]).without_removed().replicas for i in range(len(topic.partitions))]
        factor = len(existing[0])
        if request.assignments is None:
            return ReplicaPlacer(usable_brokers(image), self._random, existing).place(added, factor)
        if len(request.assignments) != added:
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are added, but {len(request.assignments)} assignments are given",
            )
        assignments = [tuple(replicas) for replicas in request.assignments]
        _check_assignments(image, assignments, factor, first_index=len(existing))
        return assignments


def _added(image: MetadataImage, request: CreatePartitionsTopic) -> int:
    topic = image.topic(request.name)
    return max(request.count - len(topic.partitions), len(request.assignments or ()), 0) if topic else 0


def _check_name(image: MetadataImage, index: PartitionIndex, name: str, new_names: dict[str, str]) -> None:
    problem = name_problem(name)
    if problem:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in image.topics_by_name:
        raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
    other = index.colliding_name(name) or new_names.get(fold_name(name))
    if other is not None:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} collides with {other!r}: '.' and '_' are the same character in metric names",
        )


def _explicit_assignments(topic: CreatableTopic) -> list[BrokerIds]:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "with an explicit assignment, partitions and replication factor must both be -1"
        )
    by_index = {a.partition: tuple(a.broker_ids) for a in topic.assignments}
    if len(by_index) != len(topic.assignments):
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    if sorted(by_index) != list(range(len(by_index))):
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assigned partitions must be 0, 1, 2, ... without a gap")
    return [by_index[i] for i in range(len(by_index))]


def _check_assignments(image: MetadataImage, assignments: Sequence[BrokerIds], factor: int, first_index: int = 0) -> None:
    for index, replicas in enumerate(assignments, first_index):
        problem = _assignment_problem(image, replicas, factor)
        if problem:
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the assignment of partition {index} {problem}")


def _assignment_problem(image: MetadataImage, replicas: BrokerIds, factor: int) -> str | None:
    if not replicas:
        return "is empty"
    if len(set(replicas)) != len(replicas):
        return f"names a broker twice: {list(replicas)}"
    unknown = [broker_id for broker_id in replicas if broker_id not in image.brokers]
    if unknown:
        return f"names broker {unknown[0]}, which is not registered"
    cordoned = [broker_id for broker_id in replicas if image.brokers[broker_id].is_cordoned]
    if cordoned:
        return f"names broker {cordoned[0]}, whose log directories are all cordoned"
    if len(replicas) != factor:
        return f"has {len(replicas)} replicas, the others have {factor}"
    return None


def _new_partitions(
    image: MetadataImage, topic_id: bytes, assignments: Sequence[BrokerIds], *, first_index: int
) -> list[PartitionRecord]:
    """The records of new partitions. The ISR of each is all its active replicas, of which the first leads. Raises BrokerError
    INVALID_REPLICA_ASSIGNMENT if a partition has none."""
    is_active = may_lead(image)
    records: list[PartitionRecord] = []
    for index, replicas in enumerate(assignments, first_index):
        isr = tuple(broker_id for broker_id in replicas if is_active(broker_id))
        if not isr:
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"all brokers of the assignment of partition {index} are fenced or shutting down: {list(replicas)}",
            )
        records.append(PartitionRecord(topic_id, index, replicas, isr, isr[0]))
    return records


def _topic_configs(topic: CreatableTopic) -> dict[str, str]:
    """The configurations of a new topic, checked. A value of None means that the key is not set."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.name in configs:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"config {config.name} is given twice")
        if config.value is not None:
            configs[config.name] = check_config(topic_key(config.name), config.value)
    return configs


# -- delete -----------------------------------------------------------------------------------------------------------


def delete_topics(image: MetadataImage, request: DeleteTopicsRequest, charge: Charge = FREE) -> Decision[DeleteTopicsResponse]:
    """Delete topics by name or by id (DeleteTopics, KIP-516). Brokers delete the logs when they apply the record.

    The reply has an error per topic: UNKNOWN_TOPIC_OR_PARTITION for a name, UNKNOWN_TOPIC_ID for an id, INVALID_REQUEST for a
    topic that is named twice, by both, or by neither; THROTTLING_QUOTA_EXCEEDED. Raises BrokerError POLICY_VIOLATION for too many
    topics."""
    check_amount(len(request.topics), "delete", "topics")
    decision: Decision[DeleteTopicsResponse] = Decision(DeleteTopicsResponse([]))
    found = [_find_topic(image, state) for state in request.topics]
    times = Counter(topic.topic_id for topic in found if isinstance(topic, TopicImage))
    for state, topic in zip(request.topics, found, strict=True):
        result = DeletableTopicResult(state.name, state.topic_id)
        decision.reply.topics.append(result)
        if isinstance(topic, BrokerError):
            result.error_code, result.error_message = topic.code, topic.message
            continue
        result.name, result.topic_id = topic.name, topic.topic_id
        if times[topic.topic_id] > 1:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = f"topic {topic.name!r} is named twice in the request"
            continue
        try:
            charge(len(topic.partitions))
        except BrokerError as e:
            result.error_code, result.error_message = e.code, e.message
            continue
        decision.records.append(RemoveTopicRecord(topic.topic_id))
    return decision


def _find_topic(image: MetadataImage, state: DeleteTopicState) -> TopicImage | BrokerError:
    if (state.topic_id != ZERO_UUID) == (state.name is not None):
        return BrokerError(ErrorCode.INVALID_REQUEST, "a topic is deleted either by name or by id")
    if state.name is None:
        topic = image.topics_by_id.get(state.topic_id)
        return topic or BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {state.topic_id.hex()}")
    return image.topic(state.name) or BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {state.name!r}")


__all__ = ["TopicControl", "TopicDefaults", "delete_topics"]
