"""The groups of the newer protocol among all groups of the shard."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.state import GroupTable
from strandline.protocol.errors import BrokerError, ErrorCode


class ConsumerGroups:
    """A view of the table that both protocols share. An id in it belongs to one group, of either type."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table

    def __iter__(self) -> Iterator[ConsumerGroup]:
        """Iterate over a copy of the present groups, because the table may change during the iteration."""
        return iter([group for group in self._table if isinstance(group, ConsumerGroup)])

    def get(self, group_id: str) -> ConsumerGroup | None:
        group = self._table.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def existing(self, group_id: str) -> ConsumerGroup:
        """The group with this id. Raises GROUP_ID_NOT_FOUND."""
        group = self.get(group_id)
        if group is None:
            raise not_found(group_id)
        return group

    def member(self, group_id: str, member_id: str) -> Member | None:
        group = self.get(group_id)
        return None if group is None else group.members.get(member_id)

    def get_or_add(self, group_id: str) -> ConsumerGroup:
        """The group of a record that is replayed; created if there is none. A classic group with this id is replaced, because the
        record is newer."""
        group = self.get(group_id)
        if group is None:
            group = ConsumerGroup(group_id)
            self._table.put(group)
        return group

    def remove(self, group_id: str) -> None:
        self._table.remove(group_id)


def not_found(group_id: str) -> BrokerError:
    return BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id} of the newer protocol")
