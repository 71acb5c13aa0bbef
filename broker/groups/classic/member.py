"""One member of a group of the classic protocol."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.groups.records.types import ClassicMemberValue
from strandline.protocol.messages.groups import DescribedMember, JoinGroupMember


@dataclass(slots=True, eq=False)
class ClassicMember:
    """The fields of a member's JoinGroup, and its assignment by the leader."""

    member_id: str
    instance_id: str | None
    """Not None for a static member (KIP-345). If its process restarts, it is the same member with another member id."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """The time in which the member must join for a rebalance."""
    session_timeout_ms: int
    """The time after which the member is removed if it sends nothing."""
    protocols: dict[str, bytes]
    """Name -> metadata of the protocols that the member supports; the preferred one first. After a load, it contains only
    the protocol of the generation, until the member joins again."""
    assignment: bytes = b""
    """The assignment by the leader in the newest generation whose assignments are in the log; empty before the first one."""
    is_new: bool = False
    """The member has had no response to its first JoinGroup, so it cannot send heartbeats."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The metadata for a protocol that the member supports."""
        return b"" if protocol is None else self.protocols[protocol]

    def for_leader(self, protocol: str | None) -> JoinGroupMember:
        return JoinGroupMember(self.member_id, self.instance_id, self.metadata(protocol))

    def describe(self, protocol: str | None) -> DescribedMember:
        """`protocol`: None if the description has no metadata."""
        metadata = self.metadata(protocol)
        return DescribedMember(self.member_id, self.instance_id, self.client_id, self.client_host, metadata, self.assignment)

    def to_value(self, protocol: str, assignment: bytes) -> ClassicMemberValue:
        return ClassicMemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols[protocol],
            assignment,
        )


def member_of(value: ClassicMemberValue, protocol: str | None) -> ClassicMember:
    """The member of a record. A rebalance timeout of -1, in old records of Kafka, means the session timeout."""
    return ClassicMember(
        value.member_id,
        value.group_instance_id,
        value.client_id,
        value.client_host,
        value.session_timeout_ms if value.rebalance_timeout_ms < 0 else value.rebalance_timeout_ms,
        value.session_timeout_ms,
        {protocol or "": value.subscription},
        value.assignment,
    )
