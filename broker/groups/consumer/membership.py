"""Finds the member that sent a heartbeat, checks its epoch, and merges the heartbeat into its metadata.

The epoch of a heartbeat:

    0                     the member joins. If the group has the member already, the response to its join was lost, or it was
                          fenced and has lost all partitions. It keeps its epoch and assignment (KAFKA-19233)
    the present epoch     the usual case
    the previous epoch    the response with the present epoch was lost. Accepted if the member owns nothing that it may not own
    any other             FENCED_MEMBER_EPOCH: the member loses its partitions and joins again

A static member has an instance id, which only one member of the group may have. If that member has left for a moment or speaks
the classic protocol, a new process takes over its partitions; otherwise the new process gets UNRELEASED_INSTANCE_ID.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from strandline.broker.groups.consumer.draft import Draft
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.requests import JOIN, LEAVE_FOR_A_MOMENT, is_full
from strandline.broker.groups.records.types import CurrentAssignmentValue, MemberMetadataValue, PartitionEpochs
from strandline.broker.groups.result import RequestContext
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest, LeavingMember


def find_member(body: ConsumerGroupHeartbeatRequest, draft: Draft, size_max: int) -> Member:
    """The member before the heartbeat, or a new one. If a static member returns under a new id, the draft replaces the old
    one."""
    group = draft.group
    if body.instance_id is not None:
        return _find_static(body, body.instance_id, draft, size_max)
    member = group.members.get(body.member_id)
    if member is None:
        return _new_member(body, group, size_max)
    check_epoch(member, body)
    return member


def _find_static(body: ConsumerGroupHeartbeatRequest, instance_id: str, draft: Draft, size_max: int) -> Member:
    if body.member_epoch != JOIN:
        member = static_member(draft.group, instance_id, body.member_id)
        check_epoch(member, body)
        return member
    holder = draft.group.static_member(instance_id)
    if holder is None:
        return draft.group.members.get(body.member_id) or _new_member(body, draft.group, size_max)
    if holder.member_id == body.member_id:
        # It is the same process: the response to its join was lost, it was fenced, or it has left for a moment. In the first two
        # cases, Kafka answers with UNRELEASED_INSTANCE_ID.
        return holder
    if holder.epoch != LEAVE_FOR_A_MOMENT and not holder.is_classic:
        raise BrokerError(ErrorCode.UNRELEASED_INSTANCE_ID, f"the member {holder.member_id} has the instance id {instance_id}")
    return draft.replace(holder, body.member_id)


def _new_member(body: ConsumerGroupHeartbeatRequest, group: ConsumerGroup, size_max: int) -> Member:
    if body.member_epoch != JOIN:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"the group {group.group_id} has no member {body.member_id}")
    if len(group.members) >= size_max:
        raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group {group.group_id} has {size_max} members")
    return Member(body.member_id)


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    """The member with this instance id, which must be `member_id`. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    member = group.static_member(instance_id)
    if member is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"the group {group.group_id} has no member with the instance id {instance_id}"
        )
    if member.member_id != member_id:
        raise BrokerError(ErrorCode.FENCED_INSTANCE_ID, f"the member {member.member_id} has the instance id {instance_id} now")
    return member


def find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> Member:
    """The member that leaves, or that an operator removes. An operator may name a static member by its instance id alone. Raises
    UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if leaving.group_instance_id is None:
        return group.member(leaving.member_id)
    member_id = leaving.member_id or group.static_members.get(leaving.group_instance_id, "")
    return static_member(group, leaving.group_instance_id, member_id)


def check_epoch(member: Member, body: ConsumerGroupHeartbeatRequest) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the epoch of the heartbeat is one that the top of this file permits."""
    epoch, current = body.member_epoch, member.current
    if epoch in (current.member_epoch, JOIN):
        return
    if epoch == current.previous_member_epoch < current.member_epoch and _owns_at_most(body, current):
        return
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member epoch {epoch} is not the present one, {current.member_epoch}: drop all partitions and join again",
    )


def _owns_at_most(body: ConsumerGroupHeartbeatRequest, current: CurrentAssignmentValue) -> bool:
    if body.topic_partitions is None:
        return False
    return all(current.assigned.get(topic.topic_id, {}).keys() >= set(topic.partitions) for topic in body.topic_partitions)


def updated_metadata(
    known: MemberMetadataValue, body: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> MemberMetadataValue:
    """The metadata after a heartbeat; `known` itself if it has not changed. A field that the heartbeat does not set has not
    changed."""
    if _sets_nothing(known, body, context):
        return known
    names = body.subscribed_topic_names
    regex = body.subscribed_topic_regex
    updated = MemberMetadataValue(
        instance_id=known.instance_id if body.instance_id is None else body.instance_id,
        rack_id=known.rack_id if body.rack_id is None else body.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=(known.subscribed_topic_regex if regex is None else regex) or None,
        rebalance_timeout_ms=known.rebalance_timeout_ms if body.rebalance_timeout_ms == -1 else body.rebalance_timeout_ms,
        server_assignor=known.server_assignor if body.server_assignor is None else body.server_assignor,
        classic_member_metadata=None,
    )
    return known if updated == known else updated


def _sets_nothing(known: MemberMetadataValue, body: ConsumerGroupHeartbeatRequest, context: RequestContext) -> bool:
    """Whether the heartbeat sets no field of the metadata. Most do not, and this check keeps them cheap."""
    return (
        body.subscribed_topic_names is None
        and body.subscribed_topic_regex is None
        and body.rebalance_timeout_ms == -1
        and body.server_assignor is None
        and body.rack_id is None
        and body.instance_id in (None, known.instance_id)
        and context.client_id == known.client_id
        and context.client_host == known.client_host
        and known.classic_member_metadata is None
    )


def may_not_know_its_assignment(
    body: ConsumerGroupHeartbeatRequest, before: CurrentAssignmentValue, after: CurrentAssignmentValue
) -> bool:
    """Whether the response must name the assignment: the member joins, has lost a response, sends all fields (it does so after an
    error), or gets another assignment with this heartbeat."""
    if body.member_epoch != before.member_epoch or is_full(body):
        return True
    return before.assigned is not after.assigned and _numbers(before.assigned) != _numbers(after.assigned)


def _numbers(assigned: PartitionEpochs) -> dict[bytes, Set[int]]:
    return {topic_id: numbers.keys() for topic_id, numbers in assigned.items()}


def left_for_a_moment(current: CurrentAssignmentValue) -> CurrentAssignmentValue:
    """The assignment of a static member that is away. The partitions that it had to revoke are free. Its other partitions get
    the assignment epoch 0, so that the process that returns may commit for them in any epoch of its own."""
    assigned = {topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in current.assigned.items()}
    return replace(current, member_epoch=LEAVE_FOR_A_MOMENT, assigned=assigned, pending_revocation={})
