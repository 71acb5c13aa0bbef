"""Groups of the newer protocol: the decisions about heartbeats and deadlines, and the replay of their records.

A member uses heartbeats for everything: to join, to report what it owns and what it subscribes to, to receive its assignment, and
to leave. A heartbeat takes three steps, each only if it is needed:

    subscription      the member is new, or its metadata has changed. If its subscription has changed, the group's epoch rises
    target            the target assignment is older than the group's epoch: compute it (`assignment_schedule.py`)
    reconciliation    the member has not reached its target: take its next step (`reconciliation.py`)

The coordinator sets the interval of heartbeats. It is short for a member that waits (`WAITING_INTERVAL_MS`).

A member is removed when it leaves, when its session ends, and when it does not revoke partitions within its rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.assignment_schedule import AssignmentSchedule
from strandline.broker.groups.consumer.description import describe_group
from strandline.broker.groups.consumer.draft import Draft
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.groups import ConsumerGroups, not_found
from strandline.broker.groups.consumer.member_timers import MemberTimers
from strandline.broker.groups.consumer.membership import (
    find_leaving,
    find_member,
    left_for_a_moment,
    may_not_know_its_assignment,
    updated_metadata,
)
from strandline.broker.groups.consumer.parked_heartbeats import ParkedHeartbeats
from strandline.broker.groups.consumer.reconciliation import Owned, Target, reconcile
from strandline.broker.groups.consumer.requests import JOIN, LEAVE, check_heartbeat, is_full, says_nothing
from strandline.broker.groups.consumer.target import TargetAssignment
from strandline.broker.groups.consumer.topic_changes import TopicChanges
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    MemberState,
    PartitionEpochs,
    RegularExpressionRecord,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
)
from strandline.broker.groups.result import Removed, RequestContext, Result
from strandline.broker.groups.state import Group, GroupTable
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    GroupTopicPartitions,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
)

WAITING_INTERVAL_MS = 500
"""The heartbeat interval of a member that waits: for the topics of an expression, for the next target assignment, or for
partitions that other members still own."""


class Conversions(Protocol):
    """Online migration (`broker/groups/migration/`)."""

    def upgrade(self, group: Group, now: float) -> Draft:
        """Convert a classic group with members. Returns a draft of the new group. Raises GROUP_ID_NOT_FOUND if it stays
        classic."""

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[Member], now: float, now_ms: int, replies: Replies
    ) -> Result | None:
        """If all members except `leaving` speak the classic protocol, returns the decision that removes `leaving` and converts
        the group to a classic one. None if the group is not converted."""


class ConsumerProtocol:
    """The groups of the newer protocol in one shard. The table of groups is shared with the classic protocol."""

    def __init__(
        self,
        config: GroupConfig,
        groups: GroupTable,
        deadlines: Deadlines,
        image: MetadataImage,
        settings: GroupConfigManager | None = None,
    ) -> None:
        """`settings`: the configuration of each group; by default that of `config`."""
        self._settings = settings or GroupConfigManager(config)
        self.conversions: Conversions | None = None
        """Set by `ClassicMembers`. If it is None, a group with members keeps its type."""
        self._config = config
        self._table = groups
        self._groups = ConsumerGroups(groups)
        self._parked = ParkedHeartbeats(self._groups, deadlines)
        self._timers = MemberTimers(config, self._settings, deadlines, self.remove_expired, self._is_revoking)
        self._schedule = AssignmentSchedule(self._settings, deadlines, self._on_assignment_due)
        self._topics = TopicChanges(config, self._groups, deadlines, self._schedule, image)

    @property
    def image(self) -> MetadataImage:
        """The newest metadata."""
        return self._topics.image

    @image.setter
    def image(self, image: MetadataImage) -> None:
        self._topics.image = image

    # -- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(self, body: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Result:
        """Handle one heartbeat. Raises `BrokerError`."""
        check_heartbeat(body, self._config.group_consumer_assignors)
        if body.member_epoch < JOIN:
            return self._leave(body, context)
        draft = self._draft_for(body, context.now)
        before = find_member(body, draft, self._config.group_consumer_max_size)
        metadata = updated_metadata(before.metadata, body, context)
        current, target = self.advance(draft, before, metadata, body.topic_partitions, context)
        returns_at_once = body.returns_at_once and metadata.instance_id is None
        self._begin_session(body, context.now, returns_at_once=returns_at_once)
        response = ConsumerGroupHeartbeatResponse(
            member_id=body.member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval_ms=self._interval_ms(draft, target, current),
            assignment=_assignment(current.assigned) if may_not_know_its_assignment(body, before.current, current) else None,
            next_at_once=body.max_wait_ms > 0,
            session_timeout_ms=self._settings.of(body.group_id).session_timeout_ms,
            connection_loss_grace_ms=self._config.group_consumer_connection_loss_grace_ms if returns_at_once else 0,
        )
        earlier = self._parked.take(body.group_id, body.member_id)
        if body.max_wait_ms and says_nothing(body) and not draft.records and response.assignment is None:
            self._park(body, draft.group, before, response, context)
            return self.result(draft, earlier)
        return self.result(draft, [*earlier, (context.asker, response)])

    def _begin_session(self, body: ConsumerGroupHeartbeatRequest, now: float, *, returns_at_once: bool) -> None:
        group_id, member_id = body.group_id, body.member_id
        if body.member_epoch == JOIN:
            self._timers.start_session(group_id, member_id, now)
        else:
            self._timers.extend_session(group_id, member_id, now, knows_last_answer=not is_full(body))
        self._timers.on_heartbeat(group_id, member_id, returns_at_once=returns_at_once)

    def _park(
        self,
        body: ConsumerGroupHeartbeatRequest,
        group: ConsumerGroup,
        member: Member,
        response: ConsumerGroupHeartbeatResponse,
        context: RequestContext,
    ) -> None:
        """Delay the response to a heartbeat that changed nothing, until the group changes or the wait ends."""
        interval_ms = self._settings.of(body.group_id).heartbeat_interval_ms
        response.heartbeat_interval_ms = interval_ms
        self._parked.park(group, member, context.asker, response, context.now + min(body.max_wait_ms, interval_ms) / 1000)

    def take_woken(self) -> Replies:
        """The responses to heartbeats that waited for the records that were replayed last."""
        return self._parked.take_woken()

    def take_waiting(self) -> list[Asker]:
        """Remove and return the heartbeats that wait."""
        return self._parked.take_all()

    def remove_members(self, body: LeaveGroupRequest, context: RequestContext) -> Result:
        """Remove members for an operator, static ones by their instance ids. The response has an error code for each member."""
        group = self._groups.existing(body.group_id)
        found: dict[str, Member] = {}
        answers = []
        for leaving in body.members:
            code = ErrorCode.NONE
            try:
                member = find_leaving(group, leaving)
                found[member.member_id] = member
            except BrokerError as e:
                code = e.code
            answers.append(LeftMember(leaving.member_id, leaving.group_instance_id, code))
        replies: Replies = [(context.asker, LeaveGroupResponse(members=answers))]
        if not found:
            return Result([], replies)
        result = self._remove(group, list(found.values()), context.now, context.now_ms, replies)
        result.removed += [Removed(group.group_id, member_id, "an operator has removed it") for member_id in found]
        return result

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a group. Raises GROUP_ID_NOT_FOUND."""
        return describe_group(self._groups.existing(group_id), self._config.group_consumer_assignors, self.image)

    def on_connection_lost(self, group_id: str, member_id: str, now: float) -> None:
        """Shorten the session of a member that closed the connection of its last heartbeat. A member that promised to return at
        once (`returns_at_once`) has a short grace to do so before its session ends. The session of a static member does not
        change, because its process may be restarting."""
        self._timers.on_connection_lost(group_id, member_id, now)

    # -- the steps of a heartbeat -------------------------------------------------------------------------------------

    def _draft_for(self, body: ConsumerGroupHeartbeatRequest, now: float) -> Draft:
        """A draft of the group. A member that joins creates the group if there is none. A classic group is replaced if it is
        empty, and is converted if it has members and can be converted. Raises GROUP_ID_NOT_FOUND."""
        known = self._table.get(body.group_id)
        if isinstance(known, ConsumerGroup):
            return Draft(known, self.image)
        if body.member_epoch != JOIN:
            raise not_found(body.group_id)
        if known is None or known.is_empty:
            return Draft(ConsumerGroup(body.group_id), self.image, [] if known is None else known.tombstones())
        if self.conversions is None:
            raise not_found(body.group_id)
        return self.conversions.upgrade(known, now)

    def advance(
        self, draft: Draft, before: Member, metadata: MemberMetadataValue, owned: Owned, context: RequestContext
    ) -> tuple[CurrentAssignmentValue, TargetAssignment]:
        """Take the three steps of a heartbeat. Returns the member's assignment after them, and the target assignment.

        `before`: the member before the heartbeat, or a new one. `metadata`: its metadata after the request, the same object if
        nothing has changed. `owned`: the partitions that it reports as its own."""
        subscription_changed = self._update_subscription(draft, before, metadata, context)
        target = self._current_target(draft, before.member_id, context)
        member = replace(before, metadata=metadata)
        current = self._next_assignment(draft, member, target, owned, subscription_changed)
        if current is not before.current:
            draft.put_current(member.member_id, current)
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                timeout_ms = metadata.rebalance_timeout_ms
                self._timers.start_rebalance(
                    draft.group.group_id, member.member_id, current.member_epoch, timeout_ms, context.now
                )
        return current, target

    def _update_subscription(self, draft: Draft, member: Member, metadata: MemberMetadataValue, context: RequestContext) -> bool:
        """Add the member's new metadata to the draft, and raise the group's epoch if the target assignment must change. Returns
        whether the member has changed its subscription."""
        group, known = draft.group, member.metadata
        regex = metadata.subscribed_topic_regex
        names_changed = metadata.subscribed_topic_names != known.subscribed_topic_names
        regex_changed = regex != (known.subscribed_topic_regex or None)
        if metadata is not known:
            draft.put_metadata(member, metadata)
        if regex_changed:
            draft.drop_unused_regexes()
        looked_up = regex is not None and regex not in group.resolved and self._topics.look_up(draft, regex, context)
        self._topics.repeat_failed_look_up(group, context.now)
        # If the topics of a new expression are not known yet, the epoch rises when they are.
        is_known = looked_up or regex is None or regex in group.resolved
        if group.epoch == 0 or names_changed or looked_up or (regex_changed and is_known) or draft.is_metadata_changed():
            draft.bump_epoch()
        return names_changed or regex_changed

    def _current_target(self, draft: Draft, member_id: str, context: RequestContext) -> TargetAssignment:
        """The target assignment, recomputed if it is out of date and the schedule permits it now."""
        if draft.epoch > draft.group.assignment_epoch and self._schedule.may_assign(draft.group, context.now):
            return self._assign(draft, context.now, context.now_ms)
        return draft.target(member_id)

    def _next_assignment(
        self,
        draft: Draft,
        member: Member,
        target: TargetAssignment,
        owned: Owned,
        subscription_changed: bool,
    ) -> CurrentAssignmentValue:
        if member.is_reconciled_to(target.epoch) and not subscription_changed:
            return member.current
        wanted = Target(
            target.epoch,
            target.of(member.member_id),
            draft.subscriptions().topics_of(member.metadata),
            partial(draft.is_free_for, member.member_id),
        )
        return reconcile(member.current, wanted, owned, subscription_changed=subscription_changed)

    def _interval_ms(self, draft: Draft, target: TargetAssignment, current: CurrentAssignmentValue) -> int:
        interval_ms = self._settings.of(draft.group.group_id).heartbeat_interval_ms
        is_waiting = (
            draft.epoch > target.epoch
            or current.state is MemberState.UNRELEASED_PARTITIONS
            or self._topics.is_looking_up(draft.group.group_id)
        )
        return min(interval_ms, WAITING_INTERVAL_MS) if is_waiting else interval_ms

    # -- members that leave -------------------------------------------------------------------------------------------

    def _leave(self, body: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Result:
        group = self._groups.existing(body.group_id)
        member = find_leaving(group, LeavingMember(body.member_id, body.instance_id))
        response = ConsumerGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)
        replies: Replies = [(context.asker, response)]
        if body.member_epoch == LEAVE:
            left = self._remove(group, [member], context.now, context.now_ms, replies)
            left.removed.append(Removed(group.group_id, member.member_id, "it has left"))
            return left
        self._timers.start_session(group.group_id, member.member_id, context.now)
        self._timers.on_heartbeat(group.group_id, member.member_id, returns_at_once=False)
        current = left_for_a_moment(member.current)
        return Result([CurrentAssignmentRecord(group.group_id, member.member_id, current)], replies)

    def _remove(self, group: ConsumerGroup, members: Sequence[Member], now: float, now_ms: int, replies: Replies) -> Result:
        converted = None if self.conversions is None else self.conversions.downgrade(group, members, now, now_ms, replies)
        if converted is not None:
            return converted
        draft = Draft(group, self.image)
        for member in members:
            draft.remove(member)
        draft.drop_unused_regexes()
        draft.bump_epoch()
        if draft.is_empty:
            # No later heartbeat would compute the target, and the assignment epoch would stay behind the group's (KAFKA-20442).
            draft.assign(self._config.group_consumer_assignors, now_ms)
        else:
            self._schedule.request(group.group_id, now)
        return self.result(draft, replies)

    def remove_expired(self, group_id: str, member_id: str, now: float, now_ms: int) -> Result | None:
        """Remove a member whose session or rebalance timeout has ended. None if there is no such member."""
        member = self._groups.member(group_id, member_id)
        return None if member is None else self._remove(self._groups.existing(group_id), [member], now, now_ms, [])

    def _is_revoking(self, group_id: str, member_id: str, epoch: int) -> bool:
        member = self._groups.member(group_id, member_id)
        return member is not None and member.epoch == epoch and member.current.state is MemberState.UNREVOKED_PARTITIONS

    # -- target assignments and topics --------------------------------------------------------------------------------

    def _assign(self, draft: Draft, now: float, now_ms: int) -> TargetAssignment:
        self._schedule.hold(draft.group.group_id, now)
        return draft.assign(self._config.group_consumer_assignors, now_ms)

    def _on_assignment_due(self, group_id: str, now: float, now_ms: int) -> Result | None:
        group = self._groups.get(group_id)
        if group is None or group.is_empty or group.epoch <= group.assignment_epoch:
            return None
        draft = Draft(group, self.image)
        self._assign(draft, now, now_ms)
        return Result(draft.records)

    def on_image(self, image: MetadataImage, changed_topics: Iterable[str], now: float, now_ms: int) -> Iterator[Result]:
        """The metadata changed. `changed_topics`: the names of the topics that were created, deleted or changed in any way."""
        return self._topics.on_image(image, changed_topics, now, now_ms)

    # -- load and replay ----------------------------------------------------------------------------------------------

    def on_loaded(self, now: float, now_ms: int) -> Iterator[Result]:
        """Restart the sessions and rebalance timeouts of all members after a load, because the log does not contain when they
        started; and compare the topics, which may have changed since the last coordinator compared them."""
        for group in self._groups:
            for member in group.members.values():
                self._restart_timers(group.group_id, member, now)
            if group.members and group.epoch > group.assignment_epoch:
                self._schedule.request(group.group_id, now)
            result = self._topics.on_loaded(group, now)
            if result is not None:
                yield result
        self._topics.look_up_all(now, now_ms)

    def keep_alive(self, group_id: str, member: Member, now: float) -> None:
        """Restart the session of the member."""
        self._timers.start_session(group_id, member.member_id, now, member.session_timeout_ms)

    def _restart_timers(self, group_id: str, member: Member, now: float) -> None:
        if member.is_classic:
            self.keep_alive(group_id, member, now)
        else:
            self._timers.resume_session(group_id, member.member_id, now)
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            timeout_ms = member.metadata.rebalance_timeout_ms
            self._timers.start_rebalance(group_id, member.member_id, member.epoch, timeout_ms, now)

    def replay(self, record: GroupRecord) -> None:
        """Apply one record of this protocol. A tombstone of something that does not exist is ignored (KAFKA-17306)."""
        if record.value is not None or self._groups.get(record.group_id) is not None:
            self._apply(self._groups.get_or_add(record.group_id), record)
            self._parked.on_record(record.group_id)

    def _apply(self, group: ConsumerGroup, record: GroupRecord) -> None:
        match record:
            case ConsumerGroupMetadataRecord():
                if record.value is None:
                    self._groups.remove(group.group_id)
                else:
                    group.put_epoch(record.value)
            case MemberMetadataRecord():
                group.put_member(record.member_id, record.value)
                if record.value is None:
                    self._timers.cancel(group.group_id, record.member_id)
            case TargetAssignmentMetadataRecord():
                group.put_assignment_epoch(record.value)
            case TargetAssignmentMemberRecord():
                group.put_target(record.member_id, record.value)
            case CurrentAssignmentRecord():
                group.put_current(record.member_id, record.value)
            case RegularExpressionRecord():
                group.put_regex(record.regex, record.value)
            case _:
                raise InternalError(f"a record of another protocol: {record}")

    def result(self, draft: Draft, replies: Replies) -> Result:
        """The decision of a draft that has compared the metadata of its group."""
        return self._topics.decision(draft, replies)


def _assignment(assigned: PartitionEpochs) -> list[GroupTopicPartitions]:
    return [GroupTopicPartitions(topic_id, sorted(assigned[topic_id])) for topic_id in sorted(assigned)]
