"""A member of the classic protocol for stories, which call each of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.client.admin.classic_assignment import decode_assignment
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages import groups as messages
from strandline.testing.simulation.cluster.groups.classic_member import encode_assignment, encode_subscription
from strandline.testing.simulation.scenarios.group_stage import TOPIC, Group, Member

PROTOCOL_TYPE, PROTOCOL = "consumer", "eager"


class ClassicMember(Member):
    """Sends one request for each verb, and keeps the id, the generation and the assignment of the answer."""

    def __init__(
        self,
        group: Group,
        name: str,
        *,
        instance_id: str | None = None,
        session_timeout_ms: int = 5000,
        rebalance_timeout_ms: int = 5000,
    ) -> None:
        super().__init__(group, name, instance_id=instance_id, rebalance_timeout_ms=rebalance_timeout_ms)
        self.session_timeout_ms = session_timeout_ms
        self.generation = -1
        self.forget()

    def forget(self) -> None:
        """Join as a new member the next time."""
        self.member_id = ""

    async def join(self) -> messages.JoinGroupResponse:
        """Join, with the id that the coordinator assigns, and wait for the end of the rebalance."""
        protocol = messages.JoinGroupProtocol(PROTOCOL, encode_subscription(self.topics))
        while True:
            request = messages.JoinGroupRequest(
                self.group.name,
                self.session_timeout_ms,
                self.rebalance_timeout_ms,
                self.member_id,
                self.instance_id,
                PROTOCOL_TYPE,
                [protocol],
            )
            response: messages.JoinGroupResponse = await self.ask(apis.JOIN_GROUP, request)
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self.member_id = response.member_id
        _check(response.error_code)
        self.member_id, self.generation = response.member_id, response.generation_id
        return response

    async def rejoined(self, other: ClassicMember) -> None:
        """The other member joins, and then this one, which ends the rebalance."""
        joins = [other.start(other.join())]
        await self.group.stage.until(lambda: len(self.group.joining) == 1, what=f"{other.member_id} waits")
        joins.append(self.start(self.join()))
        for join in joins:
            await join

    async def sync(self, assigned: Mapping[ClassicMember, Sequence[int]]) -> None:
        """Send SyncGroup, and keep the assignment of the answer. The leader passes the assignments of all members."""
        assignments = [
            messages.SyncGroupAssignment(member.member_id, encode_assignment({TOPIC: numbers}))
            for member, numbers in assigned.items()
        ]
        request = messages.SyncGroupRequest(
            self.group.name, self.generation, self.member_id, self.instance_id, PROTOCOL_TYPE, PROTOCOL, assignments
        )
        response = await self.ask(apis.SYNC_GROUP, request)
        _check(response.error_code)
        self.assigned = [tp.partition for tp in decode_assignment(response.assignment)]

    async def commit(  # type: ignore[override]
        self, offsets: Mapping[int, int], *, generation: int | None = None
    ) -> dict[int, ErrorCode]:
        """Commit in this generation, by default in the member's. Raises the error of the first partition that has one."""
        codes = await super().commit(offsets, epoch=self.generation if generation is None else generation)
        for code in codes.values():
            _check(code)
        return codes


def _check(error_code: int) -> None:
    if error_code:
        raise BrokerError(to_code(error_code), "the coordinator refuses")
