"""The newest connection of each member: requests that arrive on an older one are late copies, and are refused.

A member whose response does not arrive in time closes the connection, and repeats the request on a new one. If the old connection
was slow and not dead, its last request arrives later than the repetition, with outdated content:

    OffsetCommit               an older offset than the one that is stored by now. The group would read records again that it has
                               committed, and an acknowledged commit would be lost
    ConsumerGroupHeartbeat     the partitions that the member owned then. A partition that it has got since would seem revoked,
                               and another member would get it, while this one reads it

The member epoch does not show this, because it may be the same. (Apache Kafka accepts both.)

Heartbeats and commits are tracked separately, because a member may have a connection for each. A connection counts for the member
that its requests name, whether they are accepted or not.

**Weakness**: a late copy is accepted by a broker that has not seen the newer connection, if it coordinates the group again by
then.
"""

from __future__ import annotations

from typing import Protocol

from strandline.protocol.errors import BrokerError, ErrorCode

MEMBERS_MAX = 20_000
"""The maximum number of members that are remembered. Beyond it, the member that was seen first is dropped."""


class Numbered(Protocol):
    """A connection: its number, counted per listener in the order in which connections are accepted."""

    id: int
    listener_name: str


class MemberConnections:
    """The newest connection of each member, for one kind of request."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str, str], int] = {}
        """(listener name, group, member) -> number of the connection."""

    def check(self, connection: Numbered, group_id: str, member_id: str) -> None:
        """Raise NOT_COORDINATOR if the member has used a newer connection; otherwise remember this one."""
        key = (connection.listener_name, group_id, member_id)
        newest = self._newest.get(key, -1)
        if connection.id == newest:
            return
        if connection.id < newest:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, f"the member {member_id} has sent requests on a newer connection since")
        if newest < 0 and len(self._newest) >= MEMBERS_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[key] = connection.id
