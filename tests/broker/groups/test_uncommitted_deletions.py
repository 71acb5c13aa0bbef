"""Deletions by an operator that only the coordinator has: no response shows them before they are committed.

A later coordinator may not have them. A client that repeats its request takes GROUP_ID_NOT_FOUND for the success of the first.
"""

from __future__ import annotations

from typing import Any

import pytest
from handled_request import HandledRequest
from txn_commit_world import KEY, ORDERS, TxnCommitWorld

from strandline.broker.groups.config import GroupConfig
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    GroupTopicPartitions,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)

DELETE_GROUP = (apis.DELETE_GROUPS, DeleteGroupsRequest(["g"]))
DELETE_OFFSET = (apis.OFFSET_DELETE, OffsetDeleteRequest("g", [GroupTopicPartitions(ORDERS, [0])]))
TIMEOUT_S = GroupConfig().offsets_commit_timeout_ms / 1000
deletions = pytest.mark.parametrize("deletion", [DELETE_GROUP, DELETE_OFFSET], ids=["group", "offset"])


@pytest.fixture
def world() -> TxnCommitWorld:
    """Two brokers have the offset of a group without members."""
    world = TxnCommitWorld(brokers=2)
    replicate(world)
    stored = world.ask(apis.OFFSET_COMMIT, OffsetCommitRequest("g", -1, "", None, [OffsetCommitPartition(ORDERS, 0, 100)]))
    replicate(world)
    assert stored.answer.partitions[0].error_code == 0
    return world


def replicate(world: TxnCommitWorld) -> None:
    """Broker 2 fetches all records, and reports that it has them."""
    for _ in range(2):
        world.brokers.replicate(2, 1, key=KEY)


def code(request: HandledRequest) -> ErrorCode:
    """The error of a deletion, wherever its response has it."""
    answer: Any = request.answer
    if isinstance(answer, BrokerError):
        return answer.code
    results = getattr(answer, "results", None) or getattr(answer, "groups", None)
    return ErrorCode(results[0].error_code if results else answer.error_code)


@deletions
def test_repeated_deletion_is_answered_after_the_first_is_committed(world: TxnCommitWorld, deletion: tuple[int, Any]) -> None:
    first, second = world.ask(*deletion), world.ask(*deletion)
    assert not first.is_answered
    assert not second.is_answered
    assert world.fetched()[0] == (100, 0)
    replicate(world)
    assert code(first) == ErrorCode.NONE
    assert code(second) == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.fetched()[0] == (-1, 0)


@deletions
def test_repeated_deletion_fails_while_the_first_cannot_be_committed(world: TxnCommitWorld, deletion: tuple[int, Any]) -> None:
    """The first request has timed out, so the client repeats it. It must go on after the second response, too."""
    for _ in range(2):
        request = world.ask(*deletion)
        world.brokers.loop.advance(TIMEOUT_S + 0.1)
        assert code(request) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.fetched()[0] == (100, 0)


@deletions
def test_unknown_group_is_refused_at_once_if_all_is_committed(world: TxnCommitWorld, deletion: tuple[int, Any]) -> None:
    world.ask(*deletion)
    replicate(world)
    assert code(world.ask(*deletion)) == ErrorCode.GROUP_ID_NOT_FOUND


def test_response_that_there_is_no_group_waits_for_the_deletion_of_the_group(world: TxnCommitWorld) -> None:
    """The description of a group waits for its last change, too."""
    for epoch in (0, -1):
        beat = ConsumerGroupHeartbeatRequest("n", "m", epoch, rebalance_timeout_ms=1000, subscribed_topic_names=["orders"])
        beat.topic_partitions = [] if epoch == 0 else None
        world.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat)
    replicate(world)
    assert code(world.ask(apis.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(["n"]))) == ErrorCode.NONE
    world.ask(apis.DELETE_GROUPS, DeleteGroupsRequest(["n"]))
    described = world.ask(apis.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(["n"]))
    assert not described.is_answered
    replicate(world)
    assert code(described) == ErrorCode.GROUP_ID_NOT_FOUND
