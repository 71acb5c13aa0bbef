"""The handlers of group requests: they pass each request to the shards of its groups, and build the response.

The shard of a group decides a request about that group. The response to a request about many groups has a part for each: a group
whose coordinator is another broker, or which does not exist, has its error there. The broker sends such a response when each
shard that contributes a part has committed all records that the part depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.coordination.gathered import Gathered, answer_for_each
from strandline.broker.coordination.replies import Asker, send
from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.member_connections import MemberConnections
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.shard import GroupShard
from strandline.broker.groups.txn_offset_commits import TxnOffsetCommits
from strandline.broker.transactions.admission import Adder
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from strandline.protocol.rpc.server import Handler, ServerConnection, ServerRequest


class GroupHandlers:
    """Answers the group requests of a broker, except FindCoordinator."""

    def __init__(self, coordinator: GroupCoordinator, is_trusted: Callable[[float], bool], adder: Adder | None = None) -> None:
        """`is_trusted`: false if this process was paused for so long that other brokers may have taken over its groups
        (`PauseDetector`). `adder`: adds partitions to transactions; None: there are no transactions."""
        self._coordinator = coordinator
        self._is_trusted = is_trusted
        self._in_transactions = TxnOffsetCommits(coordinator, adder, self._context, is_trusted)
        self._connections: dict[tuple[str, str], ServerConnection] = {}
        """(group, member) -> the connection of the last heartbeat that was accepted, for members that return at once. The tag of
        a connection contains the members for which it is in this dict."""
        self._of_heartbeats = MemberConnections()
        self._of_commits = MemberConnections()

    def handlers(self) -> dict[int, Handler]:
        """Api key -> handler."""
        handlers: dict[int, Callable[[ServerRequest], None]] = {
            apis.CONSUMER_GROUP_HEARTBEAT: self.consumer_group_heartbeat,
            apis.JOIN_GROUP: self.join_group,
            apis.SYNC_GROUP: self.sync_group,
            apis.HEARTBEAT: self.heartbeat,
            apis.LEAVE_GROUP: self.leave_group,
            apis.OFFSET_COMMIT: self.offset_commit,
            apis.OFFSET_FETCH: self.offset_fetch,
            apis.TXN_OFFSET_COMMIT: self._in_transactions.handle,
            apis.OFFSET_DELETE: self.offset_delete,
            apis.LIST_GROUPS: self.list_groups,
            apis.DESCRIBE_GROUPS: self.describe_groups,
            apis.CONSUMER_GROUP_DESCRIBE: self.consumer_group_describe,
            apis.DELETE_GROUPS: self.delete_groups,
        }
        return {key: self._while_trusted(handle) for key, handle in handlers.items()}

    def _while_trusted(self, handle: Callable[[ServerRequest], None]) -> Callable[[ServerRequest], None]:
        def guarded(request: ServerRequest) -> None:
            if not self._is_trusted(request.received_at):
                raise BrokerError(
                    ErrorCode.NOT_COORDINATOR, "the broker was paused and does not know the present coordinator yet"
                )
            handle(request)

        return guarded

    def _context(self, request: ServerRequest, asker: Asker | None = None) -> RequestContext:
        host = request.connection.peer.rpartition(":")[0]
        return self._coordinator.context(asker or request, request.client_id or "", host)

    def _decide(self, request: ServerRequest, group_id: str, decide: Callable[[GroupShard, RequestContext], Result]) -> None:
        _check_group_id(group_id)
        context = self._context(request)
        self._coordinator.decide(group_id, lambda shard: decide(shard, context))

    # -- members ------------------------------------------------------------------------------------------------------

    def consumer_group_heartbeat(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ConsumerGroupHeartbeatRequest)
        self._of_heartbeats.check(request.connection, body.group_id, body.member_id)
        self._decide(request, body.group_id, lambda shard, context: shard.consumer.heartbeat(body, context))
        # Noted after the decision, which refuses heartbeats of groups that do not exist: those would fill the memory.
        if body.returns_at_once:
            self._note_connection(body, request.connection)

    def join_group(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, JoinGroupRequest)
        self._decide(request, body.group_id, lambda shard, context: shard.join(body, context))

    def sync_group(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, SyncGroupRequest)
        self._decide(request, body.group_id, lambda shard, context: shard.sync(body, context))

    def heartbeat(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, HeartbeatRequest)
        self._decide(request, body.group_id, lambda shard, context: shard.heartbeat(body, context))

    def leave_group(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, LeaveGroupRequest)
        self._decide(request, body.group_id, lambda shard, context: shard.leave(body, context))

    def _note_connection(self, body: ConsumerGroupHeartbeatRequest, connection: ServerConnection) -> None:
        member = (body.group_id, body.member_id)
        known = self._connections.get(member)
        if known is connection and body.member_epoch >= 0:
            return
        if known is not None:
            del self._connections[member]
            _members_of(known).pop(member, None)
        if body.member_epoch >= 0:
            self._connections[member] = connection
            _members_of(connection)[member] = None

    def on_connection_lost(self, connection: ServerConnection) -> None:
        """Forget a connection that is closed. If its peer closed it, the processes of the members that sent their last heartbeats
        on it may have ended, and the coordinator shortens their sessions."""
        if connection.tag is None:
            return
        members, connection.tag = _members_of(connection), None
        for group_id, member_id in members:
            del self._connections[group_id, member_id]
            if connection.closed_by_peer:
                self._coordinator.on_member_connection_lost(group_id, member_id)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def offset_commit(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, OffsetCommitRequest)
        if body.member_id:
            self._of_commits.check(request.connection, body.group_id, body.member_id)
        self._decide(request, body.group_id, lambda shard, context: shard.commit_offsets(body, context))

    def offset_delete(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, OffsetDeleteRequest)
        _check_group_id(body.group_id)
        context = self._context(request)
        self._coordinator.decide_deletion(body.group_id, request, lambda shard: shard.delete_offsets(body, context))

    def offset_fetch(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, OffsetFetchRequest)
        gathered = Gathered(request, len(body.groups), lambda parts: OffsetFetchResponse(parts))  # type: ignore[arg-type]
        for index, asked in enumerate(body.groups):
            asker = gathered.part(index, partial(_failed_fetch, asked.group_id))
            self._fetch_offsets(asked, asker, require_stable=body.require_stable)

    def _fetch_offsets(self, asked: OffsetFetchGroup, asker: Asker, *, require_stable: bool) -> None:
        try:
            active = self._coordinator.shard_of(asked.group_id)
            active.shard.check_offset_fetch(asked)
        except BrokerError as e:
            send([(asker, e)])
            return
        if require_stable:
            self._coordinator.when_committed(active, [(asker, active.shard.fetch_stable_offsets(asked))])
        else:
            self._coordinator.read_committed(active, asker, partial(active.shard.fetch_offsets, asked))

    # -- requests of operators ----------------------------------------------------------------------------------------

    def list_groups(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ListGroupsRequest)
        states, types = {state.lower() for state in body.states}, {kind.lower() for kind in body.types}
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._coordinator.is_loading else ErrorCode.NONE
        shards = list(self._coordinator.loaded_shards())

        def finish(parts: list[Message]) -> Message:
            return ListGroupsResponse(code, [g for part in parts if isinstance(part, ListGroupsResponse) for g in part.groups])

        gathered = Gathered(request, len(shards), finish)
        for index, active in enumerate(shards):
            groups = [g for g in active.shard.list_groups() if _is_wanted(g, states, types)]
            asker = gathered.part(index, lambda error: ListGroupsResponse(error.code))
            self._coordinator.when_committed(active, [(asker, ListGroupsResponse(0, groups))])

    def describe_groups(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeGroupsRequest)
        answer_for_each(
            self._coordinator,
            request,
            body.groups,
            lambda shard, group_id: shard.describe_classic(group_id),
            lambda group_id, error: DescribedGroup(group_id, error.code, error.message),
            DescribeGroupsResponse,
        )

    def consumer_group_describe(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ConsumerGroupDescribeRequest)
        answer_for_each(
            self._coordinator,
            request,
            body.group_ids,
            lambda shard, group_id: shard.consumer.describe(group_id),
            lambda group_id, error: DescribedConsumerGroup(group_id, error.code, error.message),
            ConsumerGroupDescribeResponse,
        )

    def delete_groups(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DeleteGroupsRequest)
        groups = list(dict.fromkeys(body.groups))
        gathered = Gathered(request, len(groups), lambda parts: DeleteGroupsResponse(parts))  # type: ignore[arg-type]
        for index, group_id in enumerate(groups):
            asker = gathered.part(index, partial(_failed_deletion, group_id))
            try:
                self._coordinator.decide_deletion(
                    group_id, asker, partial(GroupShard.delete_group, group_id=group_id, asker=asker)
                )
            except BrokerError as e:
                send([(asker, e)])


def _members_of(connection: ServerConnection) -> dict[tuple[str, str], None]:
    """The members that sent their last heartbeats on this connection, as (group, member). The connection's tag keeps them."""
    if not isinstance(connection.tag, dict):
        connection.tag = {}
    return connection.tag


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise BrokerError(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")


def _failed_deletion(group_id: str, error: BrokerError) -> DeletedGroup:
    return DeletedGroup(group_id, error.code, error.message)


def _failed_fetch(group_id: str, error: BrokerError) -> OffsetFetchGroupResponse:
    return OffsetFetchGroupResponse(group_id, error.code, error.message)


def _is_wanted(group: ListedGroup, states: set[str], types: set[str]) -> bool:
    return (not states or group.group_state.lower() in states) and (not types or group.group_type.lower() in types)
