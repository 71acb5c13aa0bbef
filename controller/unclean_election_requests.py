"""Unclean elections on request: ElectLeaders with election type 1 (KIP-460), whatever the strategy of the topic is.

The replicas are asked first (`unclean_recoverer.py`). The request may name the replica to elect; otherwise it is the one with the
newest and longest log. A partition that has a leader keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, UncleanElectionRecord
from strandline.controller.unclean_recovery import OPERATOR, Answers, Question, add_election, best_of, valid_answers
from strandline.protocol.errors import ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import ElectLeadersRequest, ElectLeadersResponse, ElectLeadersResult
from strandline.protocol.messages.common import Message
from strandline.protocol.partitions import TopicIdPartition

AnswersOf = Mapping[TopicIdPartition, Answers]
Refusal = tuple[ErrorCode, str]


class UncleanRequest(Protocol):
    """The part of ServerRequest (`protocol/rpc/server.py`) that an election on request uses."""

    @property
    def body(self) -> Any: ...

    def reply(self, body: Message) -> None: ...


def requested_places(image: MetadataImage, request: ElectLeadersRequest) -> dict[tuple[str, int], int]:
    """(Topic, partition) -> the replica to elect, or -1 for the best one. A request for all partitions means those that have no
    leader."""
    if request.partitions is not None:
        return {(p.topic, p.partition): p.leader for p in request.partitions}
    topics = sorted(image.topics_by_id.values(), key=lambda topic: topic.name)
    return {
        (topic.name, index): -1
        for topic in topics
        for index, partition in sorted(topic.partitions.items())
        if partition.leader == NO_LEADER
    }


def questions_of(image: MetadataImage, places: Iterable[tuple[str, int]]) -> list[Question]:
    """The questions for those of these partitions that exist and have no leader."""
    found = (_find(image, *place) for place in places)
    return [Question(key, partition.partition_epoch) for key, partition in filter(None, found) if partition.leader == NO_LEADER]


def elect_as_requested(
    image: MetadataImage,
    places: Mapping[tuple[str, int], int],
    questions: Iterable[Question],
    answers: AnswersOf,
    *,
    now_ms: int,
) -> Decision[ElectLeadersResponse]:
    """Elect the requested replicas. The reply has an error per partition: UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION at
    level 0 of the metadata, ELECTION_NOT_NEEDED if it has a leader, INVALID_REQUEST for a broker that is not a replica, and
    ELIGIBLE_LEADERS_NOT_AVAILABLE if no replica that could be elected has answered."""
    elections: Decision[list[UncleanElectionRecord]] = Decision([])
    response = ElectLeadersResponse(0, [])
    epochs = dict(questions)
    for (name, index), wanted in places.items():
        found = _find(image, name, index)
        refusal = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        if found is not None:
            key, partition = found
            is_same = epochs.get(key) == partition.partition_epoch
            valid = valid_answers(image, partition, answers.get(key, {})) if is_same else {}
            refusal_of_partition = _refusal(image, partition, wanted, valid)
            leader = best_of(valid) if wanted < 0 else wanted
            if refusal_of_partition is None and leader is not None:
                add_election(elections, image, key, leader, valid, OPERATOR, now_ms)
            refusal = refusal_of_partition or (ErrorCode.NONE, "")
        response.results.append(ElectLeadersResult(name, index, refusal[0], refusal[1] or None))
    return Decision(response, elections.records, cause="unclean_election")


def _find(image: MetadataImage, name: str, index: int) -> tuple[TopicIdPartition, PartitionRegistration] | None:
    topic = image.topic(name)
    partition = topic.partitions.get(index) if topic is not None else None
    return None if topic is None or partition is None else ((topic.topic_id, index), partition)


def _refusal(image: MetadataImage, partition: PartitionRegistration, wanted: int, valid: Answers) -> Refusal | None:
    if not image.feature_level:
        return ErrorCode.UNSUPPORTED_VERSION, f"unclean leader election needs level 1 of {METADATA_VERSION}"
    if partition.leader != NO_LEADER:
        return ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads already"
    if wanted >= 0 and wanted not in partition.replicas:
        return ErrorCode.INVALID_REQUEST, f"broker {wanted} is not one of the replicas {list(partition.replicas)}"
    if wanted >= 0 and (wanted not in valid or valid[wanted].log_end_offset < 0):
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"broker {wanted} is not alive, did not answer, or its log is damaged"
    if best_of(valid) is None:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica that could lead is alive and has answered"
    return None
