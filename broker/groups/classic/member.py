"""One member of a group of the classic protocol."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.groups.records.types import ClassicMemberValue
from strandline.protocol.messages.groups import DescribedMember, JoinGroupMember


@dataclass(slots=True, eq=False)
class ClassicMember:
    """What a member said when it joined, and what the leader of the group assigned to it."""

    member_id: str
    instance_id: str | None
    """Not None for a static member (KIP-345): a process that may restart, and then is the same member under another id."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """How long the member may take to join again for a rebalance."""
    session_timeout_ms: int
    """How long the member may be silent."""
    protocols: dict[str, bytes]
    """The protocols that the member knows, the preferred one first, with its metadata for each. After a load, only the protocol
    of the generation is known, until the member joins again."""
    assignment: bytes = b""
    """From the leader, in the newest generation whose assignments are in the log. Empty before the first one."""
    is_new: bool = False
    """The member has not had a response to its first join, so it cannot send heartbeats, and its session is that request."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said for this protocol, which it knows."""
        return b"" if protocol is None else self.protocols[protocol]

    def for_leader(self, protocol: str | None) -> JoinGroupMember:
        return JoinGroupMember(self.member_id, self.instance_id, self.metadata(protocol))

    def describe(self, protocol: str | None) -> DescribedMember:
        """`protocol`: None while there is no chosen one."""
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
    """The member that a record describes. A rebalance timeout of -1 (old records of Kafka) means: as the session timeout."""
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
