"""A Kafka client without rights must not find out from transaction requests which topics exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.context import KafkaContext
from strandline.controller.metadata.security.access import Rights
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import security as s
from strandline.protocol.security.principal import ANONYMOUS

ADD_PARTITIONS, COMMIT = 24, 28
IDS = {"open": b"o" * 16, "hidden": b"h" * 16}
IMAGE: Any = SimpleNamespace(
    offset=-1, topics_by_name=IDS, topic=lambda name: SimpleNamespace(partitions=[0]) if name in IDS else None
)
"""An image without the topic `missing`."""
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Authorizer:
    """Everyone may use the topic `open`, the transactional id `t`, and the group `g`."""

    def authorize(self, principal: Any, host: str, operation: int, resource_type: int, name: str) -> bool:
        return name == {s.TOPIC_RESOURCE: "open", s.TRANSACTIONAL_ID_RESOURCE: "t", s.GROUP_RESOURCE: "g"}[resource_type]


def serve(api_key: int, version: int, **fields: Any) -> list[Any]:
    """Serve a request that must be answered without the coordinator, because one of its topics does not exist; returns the
    answer's topics."""
    context = KafkaContext(image=lambda: IMAGE, rights=Rights(Authorizer(), lambda: IMAGE))  # type: ignore[arg-type]
    connection: Any = SimpleNamespace(principal=ANONYMOUS, host="h", client_id="c", last_received_at=0.0)
    call = KafkaCall(KAFKA_APIS[api_key], version, 0, 0, connection, context)
    call.fields = Fields(**fields)
    answers: list[Any] = []
    assert call.api.serve is not None
    call.api.serve(SimpleNamespace(body=None, reply=answers.append), call, pytest.fail)  # type: ignore[arg-type]
    answer = call.api.to_kafka(call, answers[0])
    return list(answer.get("topics") or answer["results_by_topic_v3_and_below"])


def add(version: int, transactional_id: str, *names: str) -> dict[str, int]:
    own = {"transactional_id": transactional_id, "producer_id": 1, "producer_epoch": 0}
    topics = [Fields(name=name, partitions=[0]) for name in names]
    fields = {f"v3_and_below_{name}": value for name, value in {**own, "topics": topics}.items()}
    return {
        topic["name"]: topic["results_by_partition"][0]["partition_error_code"]
        for topic in serve(ADD_PARTITIONS, version, **fields)
    }


def commit(version: int, transactional_id: str, group_id: str, *names: str) -> dict[str, int]:
    partition = Fields(partition_index=0, committed_offset=1, committed_metadata="")
    own = {"transactional_id": transactional_id, "group_id": group_id, "producer_id": 1, "producer_epoch": 0}
    topics = serve(COMMIT, version, **own, topics=[Fields(name=name, partitions=[partition]) for name in names])
    return {topic["name"]: topic["partitions"][0]["error_code"] for topic in topics}


@pytest.mark.parametrize("version", range(4))
def test_hidden_topics_and_missing_ones_look_alike_when_partitions_are_added(version: int) -> None:
    expected = {"open": ErrorCode.OPERATION_NOT_ATTEMPTED, "hidden": DENIED, "missing": DENIED}
    assert add(version, "t", *expected) == expected


def test_right_on_the_transactional_id_comes_before_the_topics() -> None:
    """A client without it gets the same error for topics that exist."""
    for attempt in (lambda: add(3, "other", "missing"), lambda: commit(3, "other", "g", "missing")):
        with pytest.raises(BrokerError) as refused:
            attempt()
        assert refused.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_right_on_the_group_comes_before_the_topics() -> None:
    with pytest.raises(BrokerError) as refused:
        commit(3, "t", "other", "missing")
    assert refused.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_offsets_of_a_missing_topic_are_denied_as_those_of_a_hidden_one() -> None:
    assert commit(3, "t", "g", "missing") == {"missing": DENIED}


@pytest.mark.parametrize(
    ("transactional_id", "group_id", "code"),
    [
        ("other", "g", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("t", "other", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ("t", "g", None),
    ],
)
def test_rights_come_before_a_commit_that_is_no_request_of_ours(
    transactional_id: str, group_id: str, code: ErrorCode | None
) -> None:
    """A leader epoch below -1 is refused before the handler looks at the rights."""
    context = KafkaContext(image=lambda: IMAGE, rights=Rights(Authorizer(), lambda: IMAGE))  # type: ignore[arg-type]
    connection: Any = SimpleNamespace(principal=ANONYMOUS, host="h", client_id="c", last_received_at=0.0)
    call = KafkaCall(KAFKA_APIS[COMMIT], 3, 0, 0, connection, context)
    topics = [Fields(name=name, partitions=[Fields(partition_index=0)]) for name in ("open", "hidden", "missing")]
    call.fields = Fields(transactional_id=transactional_id, group_id=group_id, topics=topics)
    answer = call.api.refused(call, ErrorCode.INVALID_REQUEST, None)
    found = [topic["partitions"][0]["error_code"] for topic in answer["topics"]]
    assert found == ([ErrorCode.INVALID_REQUEST, DENIED, DENIED] if code is None else [code] * 3)
