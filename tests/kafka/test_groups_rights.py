"""A Kafka client without rights must not find out anything about groups, nor which topics with committed offsets exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from groups_world import DESCRIBE, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.context import KafkaContext
from strandline.controller.metadata.security.access import Rights
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import groups
from strandline.protocol.messages import security as s
from strandline.protocol.security.principal import ANONYMOUS

OPEN, HIDDEN = b"o" * 16, b"h" * 16
IMAGE: Any = SimpleNamespace(
    offset=-1,
    topics_by_name={"open": OPEN, "hidden": HIDDEN},
    topics_by_id={i: SimpleNamespace(topic_id=i, partitions={0: None}) for i in (OPEN, HIDDEN)},
)
"""An image without the topic `missing`."""
IDS = {"open": OPEN, "hidden": HIDDEN, "missing": b"m" * 16}


class Authorizer:
    """Everyone may do everything with the topic `open`, and describe and delete the group `g`."""

    def authorize(self, principal: Any, host: str, operation: int, resource_type: int, name: str) -> bool:
        if resource_type == s.GROUP_RESOURCE:
            return name == "g" and operation in (s.DESCRIBE, s.DELETE)
        return name == "open"


def call_of(api_key: int, version: int, **fields: Any) -> KafkaCall:
    rights = Rights(Authorizer(), lambda: IMAGE)  # type: ignore[arg-type]
    context = KafkaContext(image=lambda: IMAGE, rights=rights)
    connection: Any = SimpleNamespace(principal=ANONYMOUS, host="h", client_id="c", last_received_at=0.0)
    call = KafkaCall(KAFKA_APIS[api_key], version, 0, 0, connection, context)
    call.fields = Fields(**fields)
    return call


def topics(**more: Any) -> list[Fields]:
    return [Fields(name=name, **more) for name in ("open", "hidden", "missing")]


def codes(answer: dict[str, Any]) -> dict[str, int]:
    return {topic["name"]: topic["partitions"][0]["error_code"] for topic in answer["topics"]}


DENIED = {"open": 0, "hidden": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "missing": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


@pytest.mark.parametrize("version", [1, 7])
def test_offsets_of_a_hidden_topic_and_of_a_missing_one_look_alike(version: int) -> None:
    call = call_of(OFFSET_FETCH, version, group_id="g", topics=topics(partition_indexes=[0]))
    ours: Any = call.api.to_ours(call)
    assert [topic.topic_id for topic in ours.groups[0].topics] == [OPEN, HIDDEN]
    rows = [groups.OffsetFetchPartition(OPEN, 0, 5)]
    rows.append(groups.OffsetFetchPartition(HIDDEN, 0, error_code=ErrorCode.UNKNOWN_TOPIC_ID))
    answer = groups.OffsetFetchResponse([groups.OffsetFetchGroupResponse("g", partitions=rows)])
    assert codes(call.api.to_kafka(call, answer)) == DENIED


def test_commit_to_a_hidden_topic_and_to_a_missing_one_look_alike() -> None:
    part = Fields(partition_index=0, committed_offset=1, committed_metadata=None)
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    call = call_of(OFFSET_COMMIT, 5, **fields, topics=topics(partitions=[part]))
    ours: Any = call.api.to_ours(call)
    assert [row.topic_id for row in ours.partitions] == [OPEN, HIDDEN]
    rows = [groups.OffsetCommitPartitionResponse(OPEN, 0)]
    rows.append(groups.OffsetCommitPartitionResponse(HIDDEN, 0, ErrorCode.UNKNOWN_TOPIC_ID))
    assert codes(call.api.to_kafka(call, groups.OffsetCommitResponse(rows))) == DENIED


@pytest.mark.parametrize("version", [6, 10])
def test_right_on_the_group_comes_before_a_commit_that_is_no_request_of_ours(version: int) -> None:
    """A leader epoch below -1 is refused before the handler looks at the rights."""
    part = Fields(partition_index=0, committed_offset=1, committed_metadata=None, committed_leader_epoch=-9)
    named = [Fields(name=topic.name, topic_id=IDS[topic.name], partitions=[part]) for topic in topics()]
    call = call_of(OFFSET_COMMIT, version, group_id="other", topics=named)
    answer = call.api.refused(call, ErrorCode.INVALID_REQUEST, None)
    found = [topic["partitions"][0]["error_code"] for topic in answer["topics"]]
    assert found == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 3


def test_deletion_of_offsets_of_a_hidden_topic_and_of_a_missing_one_look_alike() -> None:
    """The rows of our response are in another order: the refused ones are last."""
    call = call_of(OFFSET_DELETE, 0, group_id="g", topics=topics(partitions=[Fields(partition_index=0)])[::-1])
    call.api.to_ours(call)
    rows = [groups.OffsetDeletePartition(OPEN, 0), groups.OffsetDeletePartition(HIDDEN, 0, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert codes(call.api.to_kafka(call, groups.OffsetDeleteResponse(partitions=rows))) == DENIED


def test_authorized_operations_are_those_of_the_client() -> None:
    call = call_of(DESCRIBE, 4, groups=["g", "other"], include_authorized_operations=True)
    refused = groups.DescribedGroup("other", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    answer = call.api.to_kafka(call, groups.DescribeGroupsResponse([groups.DescribedGroup("g"), refused]))
    assert [group["authorized_operations"] for group in answer["groups"]] == [1 << s.DESCRIBE | 1 << s.DELETE, -(2**31)]
