"""JoinGroup, SyncGroup and Heartbeat of classic members in a group of the newer protocol.

The coordinator assigns the partitions, so the members need no leader and do not wait for each other:

    JoinGroup    is handled as a heartbeat with all fields. The owned partitions are in the embedded subscription. The response
                 is sent at once; its generation is the member epoch
    SyncGroup    returns the partitions that the member owns, in the embedded protocol
    Heartbeat    returns REBALANCE_IN_PROGRESS if a JoinGroup would change the assignment: the target has changed, the member has
                 to revoke partitions, or the partitions that it waits for are free

A member with an eager assignor revokes all partitions before it joins. Its subscription names no owned partitions, so it
reaches its target at once. A cooperative member names the partitions that it keeps. If it has to revoke some, it does so
after SyncGroup, and joins again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

from strandline.broker.coordination.replies import Replies
from strandline.broker.groups.classic.embedded import CONSUMER_PROTOCOL_TYPE, MalformedMetadata, MetadataReader
from strandline.broker.groups.classic.protocol import (
    ClassicProtocol,
    check_session_timeout,
    new_member_id,
    protocols_of,
    rebalance_timeout_ms,
)
from strandline.broker.groups.classic.rebalance import Moment
from strandline.broker.groups.classic.subscription import Subscription, parse_subscription
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.draft import Draft
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.groups import ConsumerGroups
from strandline.broker.groups.consumer.membership import static_member
from strandline.broker.groups.consumer.protocol import ConsumerProtocol
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.migration.assignment import by_id, by_name, encode_assignment
from strandline.broker.groups.migration.conversions import Conversions
from strandline.broker.groups.migration.timers import ClassicMemberTimers
from strandline.broker.groups.migration.upgrade import classic_metadata
from strandline.broker.groups.records.types import ClassicProtocol as KnownProtocol
from strandline.broker.groups.records.types import MemberMetadataValue, MemberState
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.state import GroupTable
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    GroupTopicPartitions,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ClassicMembers:
    """Answers requests of the classic protocol for groups of the newer protocol that have members. A method returns the
    `Result`, or raises the `BrokerError`."""

    def __init__(
        self,
        config: GroupConfig,
        table: GroupTable,
        deadlines: Deadlines,
        random: Random,
        consumer: ConsumerProtocol,
        classic: ClassicProtocol,
    ) -> None:
        """Also sets `consumer.conversions`, with which requests of the newer protocol convert groups."""
        self._config = config
        self._groups = ConsumerGroups(table)
        self._random = random
        self._consumer = consumer
        self._timers = ClassicMemberTimers(deadlines, self._groups, consumer.remove_expired)
        self._conversions = Conversions(config, table, consumer, classic, self._timers)
        consumer.conversions = self._conversions

    # -- JoinGroup ----------------------------------------------------------------------------------------------------

    def join(
        self,
        body: JoinGroupRequest,
        context: RequestContext,
        *,
        requires_known_member_id: bool = True,
        supports_skip_assignment: bool = True,
    ) -> Result:
        """Join, or join again. The keywords are False for old versions of the request."""
        group = self._groups.existing(body.group_id)
        check_session_timeout(body, self._config)
        self._check_may_join(group, body)
        if not body.member_id and body.group_instance_id is None and requires_known_member_id:
            # The id is not stored, because the group accepts any id, as it does from members of the newer protocol.
            member_id = new_member_id(body, context, self._random)
            return Result(replies=[(context.asker, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))])
        subscription = _subscription(body)
        draft = Draft(group, self._consumer.image)
        member_id = body.member_id or new_member_id(body, context, self._random)
        earlier = None if body.group_instance_id is None else group.static_member(body.group_instance_id)
        if earlier is not None and not body.member_id:
            returning = Member(member_id, _metadata(earlier.metadata, body, subscription, context))
            at = Moment(context.now, context.now_ms)
            converted = self._conversions.downgrade_by_return(
                group, earlier, returning, context.asker, at, supports_skip_assignment=supports_skip_assignment
            )
            if converted is not None:
                return converted
        before = _before(draft, body, member_id, earlier)
        return self._advance(draft, before, body, subscription, context)

    def _check_may_join(self, group: ConsumerGroup, body: JoinGroupRequest) -> None:
        """Raises INCONSISTENT_GROUP_PROTOCOL or GROUP_MAX_SIZE_REACHED."""
        if self._config.group_consumer_migration_policy == "disabled":
            raise _inconsistent(f"the group {group.group_id} is of the newer protocol (group.consumer.migration.policy=disabled)")
        is_member = body.member_id in group.members or body.group_instance_id in group.static_members
        if not is_member and len(group.members) >= self._config.group_consumer_max_size:
            raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group {group.group_id} is full")
        if body.protocol_type != CONSUMER_PROTOCOL_TYPE or not _shares_protocol(group, protocols_of(body)):
            raise _inconsistent(f"the group {group.group_id} has no protocol in common with the member")

    def _advance(
        self, draft: Draft, before: Member, body: JoinGroupRequest, subscription: Subscription, context: RequestContext
    ) -> Result:
        metadata = _metadata(before.metadata, body, subscription, context)
        owned = _owned(subscription, self._consumer.image)
        current, _ = self._consumer.advance(draft, before, metadata, owned, context)
        member = Member(before.member_id, metadata, current)
        response = JoinGroupResponse(
            generation_id=current.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=_first_protocol(member).name,
            member_id=member.member_id,
        )
        draft.on_append = partial(self._on_joined, draft.group.group_id, member, context.now)
        return self._consumer.result(draft, [(context.asker, response)])

    def _on_joined(self, group_id: str, member: Member, now: float, error: BrokerError | None) -> Replies:
        if error is None:
            self._consumer.keep_alive(group_id, member, now)
            self._timers.on_joined(group_id, member.member_id, member.metadata.rebalance_timeout_ms, now)
        return []

    # -- SyncGroup and Heartbeat --------------------------------------------------------------------------------------

    def sync(self, body: SyncGroupRequest, context: RequestContext) -> Result:
        """Return the partitions that the member owns in its epoch."""
        group = self._groups.existing(body.group_id)
        member = _classic_member(group, body.member_id, body.group_instance_id, body.generation_id)
        protocol = _first_protocol(member)
        if body.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or body.protocol_name not in (None, protocol.name):
            raise _inconsistent(f"the member has joined with the protocol {protocol.name}")
        if group.assignment_epoch > member.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            raise self._rebalance_in_progress(group, member, context.now)
        self._timers.on_synced(group.group_id, member.member_id)
        self._consumer.keep_alive(group.group_id, member, context.now)
        assigned = {topic_id: sorted(numbers) for topic_id, numbers in member.current.assigned.items()}
        assignment = encode_assignment(_version(protocol), by_name(assigned, self._consumer.image))
        response = SyncGroupResponse(0, CONSUMER_PROTOCOL_TYPE, protocol.name, assignment)
        return Result(replies=[(context.asker, response)])

    def heartbeat(self, body: HeartbeatRequest, context: RequestContext) -> Result:
        """Restart the session. Raises REBALANCE_IN_PROGRESS if the member should join again."""
        group = self._groups.existing(body.group_id)
        member = _classic_member(group, body.member_id, body.group_instance_id, body.generation_id)
        self._consumer.keep_alive(group.group_id, member, context.now)
        if _can_advance(group, member):
            raise self._rebalance_in_progress(group, member, context.now)
        return Result(replies=[(context.asker, HeartbeatResponse())])

    def _rebalance_in_progress(self, group: ConsumerGroup, member: Member, now: float) -> BrokerError:
        self._timers.expect_join(group.group_id, member.member_id, member.metadata.rebalance_timeout_ms, now)
        return BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)


def _before(draft: Draft, body: JoinGroupRequest, member_id: str, earlier: Member | None) -> Member:
    """The member before the join, or a new one. `earlier`: the member with this instance id. A static member that joins
    without an id replaces it, whether `earlier` has left or not. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if body.group_instance_id is None:
        return draft.group.members.get(member_id) or Member(member_id)
    if body.member_id:
        return static_member(draft.group, body.group_instance_id, member_id)
    return Member(member_id) if earlier is None else draft.replace(earlier, member_id)


def _metadata(
    known: MemberMetadataValue, body: JoinGroupRequest, subscription: Subscription, context: RequestContext
) -> MemberMetadataValue:
    """The member's metadata after the join; `known` itself if nothing has changed."""
    metadata = replace(
        known,
        instance_id=known.instance_id if body.group_instance_id is None else body.group_instance_id,
        rack_id=known.rack_id if subscription.rack is None else subscription.rack,
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=rebalance_timeout_ms(body),
        classic_member_metadata=classic_metadata(body.session_timeout_ms, protocols_of(body)),
    )
    return known if metadata == known else metadata


def _subscription(body: JoinGroupRequest) -> Subscription:
    """The member's subscription, which all of its protocols contain. Raises INCONSISTENT_GROUP_PROTOCOL if it cannot be read."""
    try:
        return parse_subscription(body.protocols[0].metadata)
    except MalformedMetadata as e:
        raise _inconsistent(f"the subscription cannot be read: {e}") from None


def _owned(subscription: Subscription, image: MetadataImage) -> list[GroupTopicPartitions]:
    owned = by_id(subscription.owned_partitions, image)
    return [GroupTopicPartitions(topic_id, sorted(numbers)) for topic_id, numbers in owned.items()]


def _shares_protocol(group: ConsumerGroup, protocols: dict[str, bytes]) -> bool:
    """Whether all classic members support one of the protocols. If the group becomes a classic one, they need a common
    protocol."""
    supporters: Counter[str] = Counter()
    count = 0
    for member in group.members.values():
        if member.metadata.classic_member_metadata is not None:
            count += 1
            supporters.update(protocol.name for protocol in member.metadata.classic_member_metadata.supported_protocols)
    return any(supporters[name] == count for name in protocols)


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """The member of a request. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION."""
    member = group.member(member_id) if instance_id is None else static_member(group, instance_id, member_id)
    if not member.is_classic:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"the member {member_id} is one of the newer protocol")
    if generation != member.epoch:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION, f"the member is in epoch {member.epoch}, the request in {generation}")
    return member


def _first_protocol(member: Member) -> KnownProtocol:
    """The protocol that responses name. Any would do, because the coordinator assigns the partitions."""
    classic = member.metadata.classic_member_metadata
    assert classic is not None
    return classic.supported_protocols[0]


def _version(protocol: KnownProtocol) -> int:
    """The version of the protocol's metadata. Raises INCONSISTENT_GROUP_PROTOCOL if it cannot be read: a member of a group that
    was upgraded may have metadata that was never read."""
    try:
        return MetadataReader(protocol.metadata).version()
    except MalformedMetadata as e:
        raise _inconsistent(f"the subscription cannot be read: {e}") from None


def _can_advance(group: ConsumerGroup, member: Member) -> bool:
    """Whether a JoinGroup would change the member's assignment or epoch."""
    state = member.current.state
    if member.epoch < group.assignment_epoch or state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    """Whether another member still owns a partition of the member's target."""
    target = group.targets.get(member.member_id, {})
    return any(
        group.owner_of(topic_id, number) not in (None, member.member_id)
        for topic_id, numbers in target.items()
        for number in sorted(numbers - member.current.assigned.get(topic_id, {}).keys())
    )


def _inconsistent(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
