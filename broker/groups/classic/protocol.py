"""The requests of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup; and the records of its groups.

The content of a group's GroupMetadata record changes by replay only (`group.py`). Joins, syncs, sessions and pending
members are in no record: they change at once, and are lost when the leadership ends. `rebalance.py` describes a rebalance.

A dynamic member joins twice (KIP-394): the response to its first JoinGroup, without an id, is MEMBER_ID_REQUIRED with an
id; the second JoinGroup has this id. So a process whose first response was lost leaves no member behind. A static member
(KIP-345) has an instance id. If it joins without a member id, its process has restarted: it replaces the earlier member,
which is fenced. In a Stable group whose protocol does not change, this causes no rebalance: the coordinator writes the new
id to the log, and the response makes a leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.classic.group import ClassicGroup, State
from strandline.broker.groups.classic.member import ClassicMember
from strandline.broker.groups.classic.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Moment, Rebalances, joined, synced
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.records.types import ClassicGroupValue, GroupMetadataRecord
from strandline.broker.groups.result import Removed, RequestContext, Result
from strandline.broker.groups.state import Group, GroupTable
from strandline.protocol.doors import new_uuid
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
)


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request, and the features of its version."""

    body: JoinGroupRequest
    context: RequestContext
    protocols: dict[str, bytes]
    """Name -> metadata; the preferred protocol first."""
    requires_known_member_id: bool
    """The sender understands MEMBER_ID_REQUIRED."""
    supports_skip_assignment: bool
    """The sender understands `skip_assignment`. If not, the response to a leader that returns names its earlier id as the
    leader, so that it does not assign."""

    @property
    def at(self) -> Moment:
        return Moment(self.context.now, self.context.now_ms)

    def member(self, member_id: str, assignment: bytes = b"") -> ClassicMember:
        """The sender as a member."""
        body, context = self.body, self.context
        return ClassicMember(
            member_id,
            body.group_instance_id,
            context.client_id,
            context.client_host,
            rebalance_timeout_ms(body),
            body.session_timeout_ms,
            self.protocols,
            assignment,
        )


class ClassicProtocol:
    """The classic groups of a shard. A method that answers a request returns its `Result`, or raises the `BrokerError`."""

    def __init__(self, config: GroupConfig, groups: GroupTable, deadlines: Deadlines, random: Random) -> None:
        self._config = config
        self._groups = groups
        self._random = random
        self.rebalances = Rebalances(config, deadlines, self._find)
        """The sessions and rebalances of all groups. Migration uses it, too."""

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _member_of(self, group_id: str, member_id: str) -> ClassicGroup:
        """The group of a member's request. Raises UNKNOWN_MEMBER_ID if it does not exist."""
        group = self._find(group_id)
        if group is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id} with a member {member_id!r}")
        return group

    # -- JoinGroup ----------------------------------------------------------------------------------------------------

    def join(
        self,
        body: JoinGroupRequest,
        context: RequestContext,
        *,
        requires_known_member_id: bool = True,
        supports_skip_assignment: bool = True,
    ) -> Result:
        """Join, or join again. The response waits for the end of the rebalance. If the join causes no rebalance, the response
        is sent at once. The keywords are False for old versions of the request."""
        check_session_timeout(body, self._config)
        join = Join(body, context, protocols_of(body), requires_known_member_id, supports_skip_assignment)
        group = self._groups.get(body.group_id)
        if not isinstance(group, ClassicGroup):
            return self._create(group, join)
        out = Result()
        self._join(group, join, out)
        return out

    def _create(self, known: Group | None, join: Join) -> Result:
        """Write a record of the empty group, and then let the member join. So a coordinator that cannot write rejects the
        member at once instead of after a rebalance. `known`: a group of the newer protocol, which is deleted if it is empty."""
        group_id = join.body.group_id
        if known is not None and not known.is_empty:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group {group_id} has members of the newer protocol")
        if join.body.member_id:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id} with a member {join.body.member_id!r}")
        _check_protocols(self._new_group(group_id), join)
        value = ClassicGroupValue("", 0, None, None, join.at.now_ms, ())
        tombstones = [] if known is None else known.tombstones()
        return Result([*tombstones, GroupMetadataRecord(group_id, value)], on_append=partial(self._on_created, join))

    def _on_created(self, join: Join, error: BrokerError | None) -> Replies:
        if error is not None:
            return [(join.context.asker, error)]
        group, out = self._find(join.body.group_id), Result()
        assert group is not None
        self._join(group, join, out)
        assert not out.records, "the first rebalance ends after its delay"
        return out.replies

    def _join(self, group: ClassicGroup, join: Join, out: Result) -> None:
        body = join.body
        earlier_id = None
        if body.group_instance_id is not None and not body.member_id:
            earlier_id = group.static_members.get(body.group_instance_id)
        if not group.accepts(earlier_id or body.member_id, self._config.group_max_size):
            self._leave_out(group, join, out)
            return
        _check_protocols(group, join)
        if body.member_id:
            self._join_again(group, join, out)
        elif earlier_id is not None:
            self._return(group, earlier_id, join, out)
        elif join.requires_known_member_id and body.group_instance_id is None:
            self._give_id(group, join, out)
        else:
            self._add(group, self._new_member_id(join), join, out)

    def _leave_out(self, group: ClassicGroup, join: Join, out: Result) -> None:
        """Reject the sender, because the group is full. If it is a member, it is removed, and the rebalance does not wait
        for it."""
        error = BrokerError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has as many members as group.max.size={self._config.group_max_size}"
        )
        out.replies.append((join.context.asker, error))
        self.rebalances.remove(group, join.body.member_id, out)
        if group.state is State.PREPARING:
            self.rebalances.maybe_complete_join(group, join.at, out)

    def _new_member_id(self, join: Join) -> str:
        return new_member_id(join.body, join.context, self._random)

    def _give_id(self, group: ClassicGroup, join: Join, out: Result) -> None:
        """Return an id for the next JoinGroup of the sender. The rebalance waits for that until a session has passed."""
        member_id = self._new_member_id(join)
        group.pending[member_id] = None
        self.rebalances.begin_session(group, member_id, join.body.session_timeout_ms, join.at.now)
        out.replies.append((join.context.asker, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)))

    def _add(self, group: ClassicGroup, member_id: str, join: Join, out: Result) -> None:
        member = join.member(member_id)
        member.is_new = True
        group.add(member, join.body.protocol_type)
        if group.initial is not None:
            group.initial.has_newcomer = True
        self.rebalances.begin_session(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, join.at.now)
        self.rebalances.join(group, member, join.context.asker, join.at, out)

    def _join_again(self, group: ClassicGroup, join: Join, out: Result) -> None:
        """Handle the JoinGroup of a pending member, or of a member that joins again."""
        body = join.body
        if body.member_id in group.pending and body.group_instance_id is None:
            self._add(group, body.member_id, join, out)
            return
        member = group.check_member(body.member_id, body.group_instance_id)
        if self._has_news(group, member, join):
            group.update(member, join.protocols, rebalance_timeout_ms(body), body.session_timeout_ms)
            self.rebalances.join(group, member, join.context.asker, join.at, out)
        else:
            out.replies.append((join.context.asker, joined(group, member)))

    def _has_news(self, group: ClassicGroup, member: ClassicMember, join: Join) -> bool:
        """Whether the join causes a rebalance, or belongs to one. If not, the response to the member's last JoinGroup was
        lost. The leader of a Stable group joins when it notices a change that is in no subscription, for example new
        partitions."""
        if group.state is State.PREPARING or (group.state is State.STABLE and member.member_id == group.leader):
            return True
        return list(member.protocols.items()) != list(join.protocols.items())

    # -- static members that return -----------------------------------------------------------------------------------

    def _return(self, group: ClassicGroup, earlier_id: str, join: Join, out: Result) -> None:
        """Handle a static member that joins without its id, because its process has restarted."""
        member = join.member(self._new_member_id(join), group.members[earlier_id].assignment)
        if group.state is State.STABLE and group.select_protocol((earlier_id, join.protocols)) == group.protocol:
            self._return_quietly(group, earlier_id, member, join, out)
            return
        self.rebalances.replace(group, earlier_id, member, out)
        self.rebalances.join(group, member, join.context.asker, join.at, out)

    def _return_quietly(self, group: ClassicGroup, earlier_id: str, member: ClassicMember, join: Join, out: Result) -> None:
        """Replace the member's id without a rebalance. The response waits for the record, because another coordinator
        without the record would fence the new id."""
        value = group.value({other.member_id: other.assignment for other in group.members.values()}, group.state_since_ms)
        assert group.protocol is not None
        members = tuple(
            member.to_value(group.protocol, member.assignment) if other.member_id == earlier_id else other
            for other in value.members
        )
        leader = member.member_id if value.leader == earlier_id else value.leader
        out.records.append(GroupMetadataRecord(group.group_id, replace(value, leader=leader, members=members)))
        out.on_append = partial(self._on_returned, group, earlier_id, member, join, earlier_id in group.unsynced, group.leader)

    def _on_returned(
        self,
        group: ClassicGroup,
        earlier_id: str,
        member: ClassicMember,
        join: Join,
        is_unsynced: bool,
        leader: str | None,
        error: BrokerError | None,
    ) -> Replies:
        """`leader`: the leader before the append."""
        if error is not None:
            return [(join.context.asker, error)]
        known = group.members[member.member_id]
        group.update(known, join.protocols, known.rebalance_timeout_ms, known.session_timeout_ms)
        if is_unsynced:
            group.unsynced[member.member_id] = None
        self.rebalances.end_session(group, earlier_id)
        self.rebalances.keep_alive(group, known, join.at.now)
        response = joined(group, known)
        if join.supports_skip_assignment:
            response.skip_assignment = known.member_id == group.leader
        else:
            response.leader, response.members = leader or "", []
        return [(join.context.asker, response)]

    # -- SyncGroup ----------------------------------------------------------------------------------------------------

    def sync(self, body: SyncGroupRequest, context: RequestContext) -> Result:
        """Return the member's assignment. The request of the leader contains the assignments of all members. The other
        requests wait for it, and all responses wait for the record."""
        group = self._member_of(body.group_id, body.member_id)
        member = group.check_member(body.member_id, body.group_instance_id)
        group.check_generation(body.generation_id)
        _check_protocol(body, group)
        if group.state is State.PREPARING:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        out, at = Result(), Moment(context.now, context.now_ms)
        self.rebalances.note_sync(group, member.member_id)
        if group.state is State.STABLE:
            out.replies.append((context.asker, synced(group, member)))
            return out
        self.rebalances.sync(group, member.member_id, context.asker, out)
        if member.member_id == group.leader:
            self.rebalances.assign(group, {item.member_id: item.assignment for item in body.assignments}, at, out)
        return out

    # -- Heartbeat and LeaveGroup -------------------------------------------------------------------------------------

    def heartbeat(self, body: HeartbeatRequest, context: RequestContext) -> Result:
        """Restart the member's session. Raises REBALANCE_IN_PROGRESS if the member must join again; the session is restarted
        in this case, too."""
        group = self._member_of(body.group_id, body.member_id)
        member = group.check_member(body.member_id, body.group_instance_id)
        group.check_generation(body.generation_id)
        self.rebalances.keep_alive(group, member, context.now)
        if group.state is State.PREPARING:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        return Result(replies=[(context.asker, HeartbeatResponse())])

    def leave(self, body: LeaveGroupRequest, context: RequestContext) -> Result:
        """Remove members. The response has an error code for each. A static member may be named by its instance id alone."""
        group, out = self._find(body.group_id), Result()
        if group is None:
            left = [LeftMember(m.member_id, m.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for m in body.members]
            return Result(replies=[(context.asker, LeaveGroupResponse(members=left))])
        count = len(group.members)
        left = [self._leave(group, leaving, out) for leaving in body.members]
        if any(member.error_code == ErrorCode.NONE for member in left):
            at = Moment(context.now, context.now_ms)
            self.rebalances.after_removal(group, at, out, is_rebalance_needed=len(group.members) < count)
        out.replies.append((context.asker, LeaveGroupResponse(members=left)))
        return out

    def _leave(self, group: ClassicGroup, leaving: LeavingMember, out: Result) -> LeftMember:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        try:
            if member_id not in group.pending:
                named = member_id or (group.static_members.get(instance_id, "") if instance_id is not None else "")
                member_id = group.check_member(named, instance_id).member_id
            self.rebalances.remove(group, member_id, out)
        except BrokerError as e:
            return LeftMember(leaving.member_id, instance_id, e.code)
        out.removed.append(Removed(group.group_id, member_id, leaving.reason or "it has left"))
        return LeftMember(leaving.member_id, instance_id)

    # -- operators ----------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        """The description has metadata and the protocol only if the group is Stable: otherwise they may belong to another
        generation than the assignments."""
        group = self._find(group_id)
        if group is None:
            message = f"there is no group {group_id} of the classic protocol"
            return DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message, State.DEAD)
        protocol = group.protocol if group.state is State.STABLE else None
        members = [member.describe(protocol) for member in group.members.values()]
        return DescribedGroup(
            group_id, 0, None, group.state_name, group.protocol_type, protocol_data=protocol or "", members=members
        )

    # -- records and leadership ---------------------------------------------------------------------------------------

    def _new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.rebalances.keep_alive)

    def replay(self, record: GroupMetadataRecord) -> None:
        """Apply a group's record. A tombstone of a group that does not exist, or has the newer protocol now, is ignored."""
        group = self._find(record.group_id)
        if record.value is None:
            if group is not None:
                self.rebalances.forget(group)
                self._groups.remove(record.group_id)
            return
        if group is None:
            group = self._new_group(record.group_id)
            self._groups.put(group)
        group.adopt(record.value)

    def on_loaded(self, now: float, now_ms: int) -> Iterator[Result]:
        """Start the sessions of all members. A group rebalances if it is larger than allowed now, which removes the last
        members to join, or if its record says so."""
        for group in list(self._groups):
            if isinstance(group, ClassicGroup):
                out = Result()
                for member in group.members.values():
                    self.rebalances.keep_alive(group, member, now)
                if group.must_rebalance or len(group.members) > self._config.group_max_size:
                    self.rebalances.prepare(group, Moment(now, now_ms), out)
                yield out

    def take_waiting(self) -> list[Asker]:
        """Remove and return all JoinGroup and SyncGroup requests that wait. The caller answers them when the leadership ends."""
        waiting: list[Asker] = []
        for group in self._groups:
            if isinstance(group, ClassicGroup):
                waiting += [*group.joining.values(), *group.syncing.values()]
                group.joining.clear()
                group.syncing.clear()
        return waiting


def new_member_id(body: JoinGroupRequest, context: RequestContext, random: Random) -> str:
    """The instance id or the client id, followed by a random UUID."""
    digits = new_uuid(random).hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{body.group_instance_id or context.client_id}-{uuid}"


def check_session_timeout(body: JoinGroupRequest, config: GroupConfig) -> None:
    """Raise INVALID_SESSION_TIMEOUT if the request's session timeout is outside the configured bounds."""
    smallest, largest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not smallest <= body.session_timeout_ms <= largest:
        raise BrokerError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"the session timeout of {body.session_timeout_ms} ms is not between group.min.session.timeout.ms={smallest} "
            f"and group.max.session.timeout.ms={largest}",
        )


def rebalance_timeout_ms(body: JoinGroupRequest) -> int:
    """The request's rebalance timeout. In the oldest version, which does not have the field, it is the session timeout."""
    return body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms


def protocols_of(body: JoinGroupRequest) -> dict[str, bytes]:
    """Name -> metadata, in the order of the request. If a name occurs twice, the first metadata counts."""
    protocols: dict[str, bytes] = {}
    for protocol in body.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return protocols


def _check_protocols(group: ClassicGroup, join: Join) -> None:
    """Raises INCONSISTENT_GROUP_PROTOCOL if no protocol is supported by the sender and all members."""
    if not group.supports(join.body.protocol_type, join.protocols):
        raise BrokerError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the group {group.group_id} has no protocol of type {join.body.protocol_type!r} in common with the member",
        )


def _check_protocol(body: SyncGroupRequest, group: ClassicGroup) -> None:
    """Raises INCONSISTENT_GROUP_PROTOCOL if the request names another protocol. Old versions name none."""
    named = (body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol)
    if any(asked is not None and actual is not None and asked != actual for asked, actual in named):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group's protocol is {group.protocol}")
