"""The checks of a heartbeat that do not depend on the group, and the special member epochs."""

from __future__ import annotations

from collections.abc import Container, Iterable

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest

JOIN = 0
LEAVE = -1
LEAVE_FOR_A_MOMENT = -2
"""A static member leaves and is going to return. No other member gets its partitions before its session ends."""


def check_heartbeat(body: ConsumerGroupHeartbeatRequest, assignors: Container[str]) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for a request that Kafka's rules reject
    (`throwIfConsumerGroupHeartbeatRequestIsInvalid`)."""
    for name, value in _names(body):
        if value is not None and not value.strip():
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name} must not be empty")
    if body.member_epoch == JOIN:
        _check_join(body)
    elif body.member_epoch == LEAVE_FOR_A_MOMENT and body.instance_id is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "only a static member can leave for a moment: instance_id must be set")
    elif body.member_epoch < LEAVE_FOR_A_MOMENT:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no member_epoch {body.member_epoch}")
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise BrokerError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"the broker has no assignor {body.server_assignor}")


def _names(body: ConsumerGroupHeartbeatRequest) -> Iterable[tuple[str, str | None]]:
    return (
        ("member_id", body.member_id),
        ("group_id", body.group_id),
        ("instance_id", body.instance_id),
        ("rack_id", body.rack_id),
    )


def _check_join(body: ConsumerGroupHeartbeatRequest) -> None:
    """Check the fields that a join must set. The subscription may be empty, but not missing."""
    if body.rebalance_timeout_ms == -1:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a member that joins must set rebalance_timeout_ms")
    if body.topic_partitions is None or body.topic_partitions:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a member that joins owns nothing: topic_partitions must be empty")
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "a member that joins must set subscribed_topic_names or subscribed_topic_regex"
        )


def says_nothing(body: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the heartbeat sets no field: it only keeps the member's session alive."""
    said = (body.subscribed_topic_names, body.subscribed_topic_regex, body.server_assignor, body.rack_id, body.topic_partitions)
    return body.rebalance_timeout_ms == -1 and all(field is None for field in said)


def is_full(body: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the heartbeat sets every field that is not optional. A member does so when it joins, and after an error."""
    has_subscription = body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None
    return body.rebalance_timeout_ms != -1 and has_subscription and body.topic_partitions is not None
