"""Members of groups and transactions belong to the principal that began them.

Several principals may have the right READ on one group, or WRITE on one transactional id. None of them may continue a membership
or a transaction that another one has begun, although DescribeGroups shows the member ids, and producer ids can be guessed:

    a member id         belongs to the principal that joined with it. Another one gets UNKNOWN_MEMBER_ID, as if the group had no
                        such member. An operator that removes members of other principals needs DELETE on the group
    an instance id      belongs to the principal of its static member, while the group has this member. Another one would join in
                        the member's place; it gets FENCED_INSTANCE_ID, or UNRELEASED_INSTANCE_ID in the newer protocol
    a transactional id  belongs to the principal of the last InitProducerId, which fences the previous producer. Another one that
                        continues with the same producer id gets INVALID_PRODUCER_ID_MAPPING

These guards run after the guards of the rights. Only the coordinator that handled the first request knows the owner.

**Where this is weak**: a new coordinator, after a failover, does not know the owner: the first principal whose request succeeds
becomes the owner. An attacker that has the right and knows the ids can be that principal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.broker.security.owners import Owners
from strandline.controller.metadata.security.access import Access
from strandline.controller.metadata.security.guards.common import Guard, Handler, items, pass_filtered
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupResponse,
)
from strandline.protocol.messages.security import DELETE, GROUP_RESOURCE
from strandline.protocol.messages.transactions import AddPartitionsToTxnResult, AddPartitionsToTxnTransaction

MEMBERS_MAX = 20_000
TRANSACTIONAL_IDS_MAX = 20_000

FindStaticMember = Callable[[str, str], str | None]

_JOINED = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)


class SessionOwners:
    """The owners of the members and transactions that a broker coordinates, and the guards that check them."""

    def __init__(self, static_member: FindStaticMember = lambda group_id, instance_id: None) -> None:
        """`static_member`: returns the id of the member of this group that has this instance id; None if there is none."""
        self._static_member = static_member
        self.members: Owners[tuple[str, str]] = Owners(MEMBERS_MAX)
        """(group id, member id) -> its owner."""
        self.transactions: Owners[str] = Owners(TRANSACTIONAL_IDS_MAX)
        """Transactional id -> its owner."""
        self._additions = items("transactions", "results", self._refuse_addition)

    def guards(self) -> dict[int, Guard]:
        """Api key -> guard."""
        return {
            apis.CONSUMER_GROUP_HEARTBEAT: self.consumer_group_heartbeat,
            apis.JOIN_GROUP: self.join_group,
            apis.SYNC_GROUP: self.of_classic_member,
            apis.HEARTBEAT: self.of_classic_member,
            apis.OFFSET_COMMIT: self.of_member,
            apis.TXN_OFFSET_COMMIT: self.of_member,
            apis.LEAVE_GROUP: self.leave_group,
            apis.INIT_PRODUCER_ID: self.init_producer_id,
            apis.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            apis.ADD_OFFSETS_TO_TXN: self.of_transaction,
            apis.END_TXN: self.of_transaction,
        }

    # -- members ------------------------------------------------------------------------------------------------------

    def consumer_group_heartbeat(self, access: Access, request: Any, handler: Handler) -> Any:
        body: ConsumerGroupHeartbeatRequest = request.body
        key = self._check_member(access, body.group_id, body.member_id)
        if body.member_epoch == 0:
            self._check_instance(access, body, body.instance_id, ErrorCode.UNRELEASED_INSTANCE_ID)
        if key in self.members and body.member_epoch >= 0:
            return handler(request)

        def complete(response: ConsumerGroupHeartbeatResponse) -> None:
            if response.error_code:
                return
            if body.member_epoch >= 0:
                self.members.claim(key, access.principal)
            else:
                self.members.release(key)

        return pass_filtered(request, handler, complete)

    def join_group(self, access: Access, request: Any, handler: Handler) -> Any:
        """Claims the member id of the response, because the request of a new member has none."""
        body: JoinGroupRequest = request.body
        self._check_member(access, body.group_id, body.member_id)
        self._check_instance(access, body, body.group_instance_id, ErrorCode.FENCED_INSTANCE_ID)

        def complete(response: JoinGroupResponse) -> None:
            if response.error_code in _JOINED and response.member_id:
                self.members.claim((body.group_id, response.member_id), access.principal)

        return pass_filtered(request, handler, complete)

    def of_classic_member(self, access: Access, request: Any, handler: Handler) -> Any:
        key = self._check_member(access, request.body.group_id, request.body.member_id)
        if key in self.members:
            return handler(request)

        def complete(response: SyncGroupResponse | HeartbeatResponse) -> None:
            if not response.error_code:
                self.members.claim(key, access.principal)

        return pass_filtered(request, handler, complete)

    def of_member(self, access: Access, request: Any, handler: Handler) -> Any:
        self._check_member(access, request.body.group_id, request.body.member_id)
        return handler(request)

    def _check_member(self, access: Access, group_id: str, member_id: str) -> tuple[str, str]:
        key = (group_id, member_id)
        if self.members.is_of_another(key, access.principal):
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"the group {group_id} has no member {member_id} of {access.principal}"
            )
        return key

    def _check_instance(
        self, access: Access, body: ConsumerGroupHeartbeatRequest | JoinGroupRequest, instance_id: str | None, code: ErrorCode
    ) -> None:
        member_id = None if instance_id is None else self._static_member(body.group_id, instance_id)
        if member_id is not None and self.members.is_of_another((body.group_id, member_id), access.principal):
            raise BrokerError(code, f"a member of another principal has the instance id {instance_id}")

    def leave_group(self, access: Access, request: Any, handler: Handler) -> Any:
        """Checks each member of the request. To remove a member by its instance id alone, an operator needs DELETE."""
        body: LeaveGroupRequest = request.body
        may_remove = access.sees(DELETE, GROUP_RESOURCE, body.group_id)

        def refuse(access: Access, member: LeavingMember) -> LeftMember | None:
            key = (body.group_id, member.member_id)
            if may_remove or (member.member_id and not self.members.is_of_another(key, access.principal)):
                return None
            return LeftMember(member.member_id, member.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID)

        def pass_on(request: Any) -> Any:
            return pass_filtered(request, handler, lambda response: self._on_left(body.group_id, response))

        return items("members", "members", refuse)(access, request, pass_on)

    def _on_left(self, group_id: str, response: LeaveGroupResponse) -> None:
        for member in response.members:
            if not member.error_code:
                self.members.release((group_id, member.member_id))

    # -- transactions -------------------------------------------------------------------------------------------------

    def init_producer_id(self, access: Access, request: Any, handler: Handler) -> Any:
        """Any principal with WRITE on the transactional id may begin a new producer. A request with a producer id continues an
        existing producer, so only the owner may send it."""
        body: InitProducerIdRequest = request.body
        transactional_id = body.transactional_id
        if transactional_id is None:
            return handler(request)
        if body.producer_id >= 0:
            self._check_transaction(access, transactional_id)

        def complete(response: InitProducerIdResponse) -> None:
            if not response.error_code:
                self.transactions.claim(transactional_id, access.principal)

        return pass_filtered(request, handler, complete)

    def of_transaction(self, access: Access, request: Any, handler: Handler) -> Any:
        transactional_id = request.body.transactional_id
        self._check_transaction(access, transactional_id)
        if transactional_id in self.transactions:
            return handler(request)

        def complete(response: Any) -> None:
            if not response.error_code:
                self.transactions.claim(transactional_id, access.principal)

        return pass_filtered(request, handler, complete)

    def add_partitions(self, access: Access, request: Any, handler: Handler) -> Any:
        """A request of a leader (CLUSTER_ACTION) is not checked: the leader has checked the principals of its producers."""
        return handler(request) if access.is_node else self._additions(access, request, handler)

    def _refuse_addition(self, access: Access, asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult | None:
        if not self.transactions.is_of_another(asked.transactional_id, access.principal):
            return None
        text = _text(asked.transactional_id)
        return AddPartitionsToTxnResult(asked.transactional_id, ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)

    def _check_transaction(self, access: Access, transactional_id: str) -> None:
        if self.transactions.is_of_another(transactional_id, access.principal):
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, _text(transactional_id))


def _text(transactional_id: str) -> str:
    return f"another principal has begun the producer of the transactional id {transactional_id!r}"
