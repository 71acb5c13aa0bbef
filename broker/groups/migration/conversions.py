"""Decides whether a group is converted to the other protocol, and updates the state that is in no record.

A conversion is one append: the tombstones of the old group, followed by the records of the new group. If the append fails,
the old group stays. After an upgrade, JoinGroup and SyncGroup requests that wait are answered with REBALANCE_IN_PROGRESS,
so that their members join again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.classic.embedded import CONSUMER_PROTOCOL_TYPE
from strandline.broker.groups.classic.group import ClassicGroup
from strandline.broker.groups.classic.protocol import ClassicProtocol
from strandline.broker.groups.classic.rebalance import Moment, joined
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.draft import Draft
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.groups import ConsumerGroups
from strandline.broker.groups.consumer.protocol import ConsumerProtocol
from strandline.broker.groups.migration.downgrade import downgraded, value_of
from strandline.broker.groups.migration.timers import ClassicMemberTimers
from strandline.broker.groups.migration.upgrade import CannotUpgrade, records_of, upgraded
from strandline.broker.groups.records.types import GroupMetadataRecord, GroupRecord
from strandline.broker.groups.result import Result
from strandline.broker.groups.state import Group, GroupTable
from strandline.protocol.errors import BrokerError, ErrorCode


class Conversions:
    """Implements `consumer.protocol.Conversions`."""

    def __init__(
        self,
        config: GroupConfig,
        table: GroupTable,
        consumer: ConsumerProtocol,
        classic: ClassicProtocol,
        timers: ClassicMemberTimers,
    ) -> None:
        self._config = config
        self._table = table
        self._groups = ConsumerGroups(table)
        self._consumer = consumer
        self._classic = classic
        self._timers = timers

    # -- to the newer protocol ----------------------------------------------------------------------------------------

    def upgrade(self, group: Group, now: float) -> Draft:
        assert isinstance(group, ClassicGroup)
        self._check_upgrade(group)
        try:
            result = upgraded(group, self._consumer.image)
        except CannotUpgrade as e:
            raise _cannot(group, str(e)) from None
        draft = Draft(result, self._consumer.image, [*group.tombstones(), *records_of(result)])
        draft.on_append = partial(self._on_upgraded, group, now)
        return draft

    def _check_upgrade(self, group: ClassicGroup) -> None:
        if self._config.group_consumer_migration_policy not in ("upgrade", "bidirectional"):
            raise _cannot(group, "group.consumer.migration.policy does not allow it")
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _cannot(group, f"its members have the protocol type {group.protocol_type!r}, not 'consumer'")
        if len(group.members) > self._config.group_consumer_max_size:
            raise _cannot(group, "it has more members than group.consumer.max.size")

    def _on_upgraded(self, classic: ClassicGroup, now: float, error: BrokerError | None) -> Replies:
        if error is not None:
            return []
        group = self._groups.existing(classic.group_id)
        for member in group.members.values():
            if member.is_classic:
                self._consumer.keep_alive(group.group_id, member, now)
        waiting = [*classic.joining.values(), *classic.syncing.values()]
        classic.joining.clear()
        classic.syncing.clear()
        return [(asker, BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)) for asker in waiting]

    # -- to the classic protocol --------------------------------------------------------------------------------------

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[Member], now: float, now_ms: int, replies: Replies
    ) -> Result | None:
        gone = {member.member_id for member in leaving}
        staying = [member for member_id, member in group.members.items() if member_id not in gone]
        converted = self._downgraded(group, staying)
        if converted is None:
            return None
        at = Moment(now, now_ms)
        records = _records(group, converted, at, is_rebalance_needed=True)
        return Result(records, replies, partial(self._on_downgraded, converted, at))

    def _downgraded(self, group: ConsumerGroup, members: list[Member]) -> ClassicGroup | None:
        """The group as a classic group with these members; None if that is not allowed."""
        if not members or not all(member.is_classic for member in members):
            return None
        is_allowed = self._config.group_consumer_migration_policy in ("downgrade", "bidirectional")
        if not is_allowed or len(members) > self._config.group_max_size:
            return None
        return downgraded(group, members, self._consumer.image)

    def _on_downgraded(self, converted: ClassicGroup, at: Moment, error: BrokerError | None) -> Replies:
        if error is not None:
            return []
        group, out = self._begin(converted, at), Result()
        self._classic.rebalances.prepare(group, at, out)
        return out.replies

    def _begin(self, converted: ClassicGroup, at: Moment) -> ClassicGroup:
        """Complete a classic group after the replay of its record: protocols and sessions."""
        group = self._table.get(converted.group_id)
        assert isinstance(group, ClassicGroup)
        for member in group.members.values():
            protocols = converted.members[member.member_id].protocols
            group.update(member, protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
            self._classic.rebalances.keep_alive(group, member, at.now)
        self._timers.forget(group.group_id, group.members)
        return group

    def downgrade_by_return(
        self,
        group: ConsumerGroup,
        earlier: Member,
        returning: Member,
        asker: Asker,
        at: Moment,
        *,
        supports_skip_assignment: bool = True,
    ) -> Result | None:
        """Convert the group if a static member that returns with the classic protocol was its last member of the newer protocol.
        Returns the decision, which has `returning` instead of `earlier`; None if the group is not converted.
        `supports_skip_assignment`: False for old clients, whose response does not name them as the leader, so that they do not
        assign."""
        returning = replace(returning, current=earlier.current)
        members = [returning if member is earlier else member for member in group.members.values()]
        converted = self._downgraded(group, members)
        if converted is None:
            return None
        is_rebalance_needed = not _is_settled(group, earlier, returning)
        records = _records(group, converted, at, is_rebalance_needed=is_rebalance_needed)
        on_append = partial(
            self._on_returned, converted, returning.member_id, asker, at, is_rebalance_needed, supports_skip_assignment
        )
        return Result(records, on_append=on_append)

    def _on_returned(
        self,
        converted: ClassicGroup,
        member_id: str,
        asker: Asker,
        at: Moment,
        is_rebalance_needed: bool,
        supports_skip_assignment: bool,
        error: BrokerError | None,
    ) -> Replies:
        if error is not None:
            return [(asker, error)]
        group, out = self._begin(converted, at), Result()
        member = group.members[member_id]
        if is_rebalance_needed:
            self._classic.rebalances.join(group, member, asker, at, out)
            return out.replies
        response = joined(group, member)
        if member_id == group.leader and not supports_skip_assignment:
            response.leader, response.members = "", []
        else:
            response.skip_assignment = member_id == group.leader
        return [(asker, response)]


def _records(group: ConsumerGroup, converted: ClassicGroup, at: Moment, *, is_rebalance_needed: bool) -> list[GroupRecord]:
    value = value_of(converted, at.now_ms, is_rebalance_needed=is_rebalance_needed)
    return [*group.tombstones(), GroupMetadataRecord(group.group_id, value)]


def _is_settled(group: ConsumerGroup, earlier: Member, returning: Member) -> bool:
    """Whether every member owns its target, and the subscription of the returning member has not changed. The epoch of
    `earlier` is not compared, because it may have left for a moment."""
    if returning.metadata.subscribed_topic_names != earlier.metadata.subscribed_topic_names or group.regex_counts:
        return False
    others = (member for member in group.members.values() if member is not earlier)
    owned = {topic_id: frozenset(numbers) for topic_id, numbers in earlier.current.assigned.items()}
    return (
        group.epoch == group.assignment_epoch
        and all(member.is_reconciled_to(group.epoch) for member in others)
        and owned == group.targets.get(earlier.member_id, {})
    )


def _cannot(group: ClassicGroup, reason: str) -> BrokerError:
    return BrokerError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"the group {group.group_id} is of the classic protocol, and cannot change: {reason}"
    )
