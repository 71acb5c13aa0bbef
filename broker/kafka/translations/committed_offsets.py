"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups.

Topics have names in Kafka's versions below 10, and ids from then on. OffsetFetch of a topic that does not exist is answered with
"no offset" under a name, as in Kafka, and with UNKNOWN_TOPIC_ID under an id.

    OffsetFetch 1         an error of the group is repeated in each partition
    OffsetFetch 2 to 7    an error of the group is at the top; `topics` null: all offsets of the group
    OffsetFetch 8         many groups

A member that commits to a group which does not exist gets UNKNOWN_MEMBER_ID, and joins again. Kafka answers GROUP_ID_NOT_FOUND
from version 9 on, which is a fatal error to Java's consumers. They rarely see it, because a group whose last member was paused
and removed exists until the next clean-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.topics_by_name import (
    access_of,
    answered,
    ask,
    by_topic,
    code_by_name,
    existing,
    judged_first,
    resolve,
)
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import (
    GroupTopicPartitions,
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from strandline.protocol.messages.security import DESCRIBE, GROUP_RESOURCE, READ

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_HAS_IDS = 10

# -- OffsetCommit -----------------------------------------------------------------------------------------------------


def _commit(call: KafkaCall) -> OffsetCommitRequest:
    fields = call.fields
    if call.version >= _HAS_IDS:
        pairs = ((topic.topic_id, item) for topic in fields.topics for item in topic.partitions)
        partitions = [_committed(topic_id, item) for topic_id, item in pairs if item.partition_index >= 0]
    else:
        partitions = [_committed(asked.topic_id, asked.item) for asked in ask(call, fields.topics)]
    return OffsetCommitRequest(
        group_id=fields.group_id,
        generation_id_or_member_epoch=fields.generation_id_or_member_epoch,
        member_id=fields.member_id,
        group_instance_id=fields.get("group_instance_id"),
        partitions=partitions,
        retention_time_ms=fields.get("retention_time_ms", -1),
    )


def _committed(topic_id: Any, item: Any) -> OffsetCommitPartition:
    epoch = item.get("committed_leader_epoch", -1)
    return OffsetCommitPartition(topic_id, item.partition_index, item.committed_offset, epoch, item.committed_metadata)


def _commit_answered(call: KafkaCall, body: OffsetCommitResponse) -> dict[str, Any]:
    if call.version >= _HAS_IDS:
        topics = by_topic(_committed_by_id(call, body.partitions), "topic_id")
    else:
        topics = by_topic(_committed_by_name(call, body.partitions))
    return {"throttle_time_ms": body.throttle_time_ms, "topics": topics}


def _committed_by_id(call: KafkaCall, rows: Iterable[OffsetCommitPartitionResponse]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The rows under the ids of their topics. Partitions below zero did not reach the handler, so they get their error here."""
    left = iter(rows)
    for topic in call.fields.topics:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if call.context.topic_name(topic.topic_id) is None else _UNKNOWN
        for item in topic.partitions:
            code = unknown if item.partition_index < 0 else next(left).error_code
            yield topic.topic_id, _code_row(item.partition_index, code)


def _committed_by_name(call: KafkaCall, rows: Iterable[OffsetCommitPartitionResponse]) -> Iterator[tuple[str, dict[str, Any]]]:
    for asked, row in answered(call, rows):
        code = code_by_name(call, asked.name, _UNKNOWN if row is None else row.error_code, READ)
        yield asked.name, _code_row(asked.item.partition_index, code)


def _code_row(partition: int, code: int) -> dict[str, Any]:
    return {"partition_index": partition, "error_code": code}


def _commit_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    if code == ErrorCode.INVALID_REQUEST and not _may_commit(call):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    topics = [
        {
            "name": topic.get("name"),
            "topic_id": topic.get("topic_id"),
            "partitions": [_code_row(item.partition_index, _refused_code(call, topic, item, code)) for item in topic.partitions],
        }
        for topic in call.fields.topics
    ]
    return {"throttle_time_ms": 0, "topics": topics}


def _may_commit(call: KafkaCall) -> bool:
    """Whether the client has the right that the handler requires. The handler did not see the request, because it breaks the
    limits of Strandline's protocol."""
    access = access_of(call)
    return access is None or access.may(READ, GROUP_RESOURCE, call.fields.group_id)


def _refused_code(call: KafkaCall, topic: Any, item: Any, code: ErrorCode) -> int:
    """The error of a partition in a request that is refused with `code`."""
    if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return code
    name = call.context.topic_name(topic.topic_id) if call.version >= _HAS_IDS else topic.name
    return ErrorCode.UNKNOWN_TOPIC_ID if name is None else judged_first(call, name, item.partition_index, READ) or code


# -- OffsetFetch ------------------------------------------------------------------------------------------------------

_HAS_TOP_ERROR = 2
_MANY_GROUPS = 8

_AS_FETCH_ERROR = {ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_COORDINATOR}
"""Consumers before 3.9 do not expect COORDINATOR_NOT_AVAILABLE in this response, and would not retry. Kafka replaces it, too."""


def _asked_groups(call: KafkaCall) -> list[Any]:
    groups: list[Any] = [call.fields] if call.version < _MANY_GROUPS else call.fields.groups
    return groups


def _fetch(call: KafkaCall) -> OffsetFetchRequest:
    groups = [_fetch_group(call, group) for group in _asked_groups(call)]
    return OffsetFetchRequest(groups, call.fields.get("require_stable", False))


def _fetch_group(call: KafkaCall, group: Any) -> OffsetFetchGroup:
    topics = None
    if group.topics is not None:
        named = ((_id_of(call, topic), topic.partition_indexes) for topic in group.topics)
        topics = [GroupTopicPartitions(topic_id, existing(numbers)) for topic_id, numbers in named if topic_id is not None]
    return OffsetFetchGroup(group.group_id, group.get("member_id"), group.get("member_epoch", -1), topics)


def _id_of(call: KafkaCall, topic: Any) -> bytes | None:
    """The id of a topic of the request; None if no topic has the requested name."""
    topic_id: bytes | None = topic.topic_id if call.version >= _HAS_IDS else call.context.topic_id(topic.name)
    return topic_id


def _fetched(call: KafkaCall, body: OffsetFetchResponse) -> dict[str, Any]:
    throttle = {"throttle_time_ms": body.throttle_time_ms}
    pairs = zip(_asked_groups(call), body.groups, strict=True)
    groups = [(asked.group_id, _fetched_group(call, asked, answer)) for asked, answer in pairs]
    if call.version < _MANY_GROUPS:
        return {**throttle, **groups[0][1]}
    return {**throttle, "groups": [{"group_id": group_id, **group} for group_id, group in groups]}


def _fetched_group(call: KafkaCall, asked: Any, answer: OffsetFetchGroupResponse) -> dict[str, Any]:
    if answer.error_code:
        return _failed_group(call, asked, answer.error_code)
    rows = _all_rows(call, answer) if asked.topics is None else _asked_rows(call, asked, answer)
    topics = by_topic(rows, "topic_id" if call.version >= _HAS_IDS else "name")
    return {"topics": topics, "error_code": ErrorCode.NONE}


def _failed_group(call: KafkaCall, asked: Any, code: int) -> dict[str, Any]:
    code = _AS_FETCH_ERROR.get(ErrorCode(code), code)
    topics: list[Any] = []
    if call.version < _HAS_TOP_ERROR:
        rows = ((topic.name, _offset_row(number, code)) for topic in asked.topics for number in topic.partition_indexes)
        topics = by_topic(rows)
    return {"topics": topics, "error_code": code}


def _all_rows(call: KafkaCall, answer: OffsetFetchGroupResponse) -> Iterator[tuple[Any, dict[str, Any]]]:
    """All offsets of a group, except those of topics that this broker no longer knows."""
    for part in answer.partitions:
        topic = part.topic_id if call.version >= _HAS_IDS else call.context.topic_name(part.topic_id)
        if topic is not None:
            yield topic, _part_row(part, part.error_code)


def _asked_rows(call: KafkaCall, asked: Any, answer: OffsetFetchGroupResponse) -> Iterator[tuple[Any, dict[str, Any]]]:
    found: dict[tuple[Any, int], Any] = {(part.topic_id, part.partition): part for part in answer.partitions}
    ids = resolve(call, (topic.name for topic in asked.topics)) if call.version < _HAS_IDS else {}
    for topic in asked.topics:
        topic_id = topic.topic_id if call.version >= _HAS_IDS else ids.get(topic.name)
        for number in topic.partition_indexes:
            part = found.get((topic_id, number))
            if call.version >= _HAS_IDS:
                yield topic_id, _row_by_id(call, topic_id, number, part)
            else:
                yield topic.name, _row_by_name(call, topic.name, number, part)


def _row_by_id(call: KafkaCall, topic_id: Any, number: int, part: OffsetFetchPartition | None) -> dict[str, Any]:
    if part is not None:
        return _part_row(part, part.error_code)
    is_known = number < 0 and call.context.topic_name(topic_id) is not None
    return _offset_row(number, ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_ID)


def _row_by_name(call: KafkaCall, name: str, number: int, part: OffsetFetchPartition | None) -> dict[str, Any]:
    """A topic that does not exist has no offsets, and that is no error (as in Kafka)."""
    code = code_by_name(call, name, _UNKNOWN if part is None else part.error_code, DESCRIBE)
    if code == _UNKNOWN:
        code = ErrorCode.NONE
    return _offset_row(number, code) if part is None else _part_row(part, code)


def _part_row(part: OffsetFetchPartition, code: int) -> dict[str, Any]:
    return _offset_row(part.partition, code, part.committed_offset, part.committed_leader_epoch, part.metadata or "")


def _offset_row(partition: int, code: int, offset: int = -1, epoch: int = -1, metadata: str = "") -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "metadata": metadata,
        "error_code": code,
    }


def _fetch_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _fetched(call, OffsetFetchResponse([OffsetFetchGroupResponse(g.group_id, code) for g in _asked_groups(call)]))


# -- OffsetDelete -----------------------------------------------------------------------------------------------------


def _delete(call: KafkaCall) -> OffsetDeleteRequest:
    """Partitions that do not exist are left out of the request; `_deleted` gives them UNKNOWN_TOPIC_OR_PARTITION."""
    topics_by_id = call.context.image().topics_by_id
    topics: dict[bytes, list[int]] = {}
    for asked in ask(call, call.fields.topics):
        topic, number = topics_by_id.get(asked.topic_id), asked.item.partition_index
        if topic is not None and number in topic.partitions:
            topics.setdefault(topic.topic_id, []).append(number)
    return OffsetDeleteRequest(call.fields.group_id, [GroupTopicPartitions(*item) for item in topics.items()])


def _deleted(call: KafkaCall, body: OffsetDeleteResponse) -> dict[str, Any]:
    codes = {(row.topic_id, row.partition): row.error_code for row in body.partitions}
    rows = []
    for asked in [] if body.error_code else call.notes:
        number = asked.item.partition_index
        code = codes.get((asked.topic_id, number), _UNKNOWN)
        rows.append((asked.name, _code_row(number, code_by_name(call, asked.name, code, READ))))
    return {"error_code": body.error_code, "throttle_time_ms": body.throttle_time_ms, "topics": by_topic(rows)}


APIS = (
    KafkaApi(8, "OffsetCommit", apis.OFFSET_COMMIT, 2, 10, _commit, _commit_answered, _commit_refused),
    KafkaApi(9, "OffsetFetch", apis.OFFSET_FETCH, 1, 10, _fetch, _fetched, _fetch_refused),
    KafkaApi(47, "OffsetDelete", apis.OFFSET_DELETE, 0, 0, _delete, _deleted, refused_at_top),
)
