"""The groups of one shard by their id, and what offsets and operators need to know of a group of either type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from strandline.broker.groups.records.types import GroupRecord

CONSUMER, CLASSIC = "consumer", "classic"
"""The types of groups, as Kafka spells them."""


class Group(Protocol):
    """A group of the newer or of the classic protocol."""

    group_id: str
    static_members: dict[str, str]
    """Instance id -> member id."""

    @property
    def group_type(self) -> str:
        """`CONSUMER` or `CLASSIC`."""

    @property
    def protocol_type(self) -> str:
        """`consumer`; of a classic group what its members say, empty without members."""

    @property
    def state_name(self) -> str:
        """As Kafka spells it: `Empty`, `Stable`, `Assigning`, `Reconciling`, `PreparingRebalance`, `CompletingRebalance`."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    @property
    def member_count(self) -> int: ...

    @property
    def empty_since_ms(self) -> int:
        """Since when the group has no members, in ms since 1970; -1: unknown, or it has members."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may read this topic. True if that is not known."""

    def may_expire_offset(self, topic: str) -> bool:
        """Whether the age of an offset of this topic counts: never while a member is subscribed to it, nor while a classic group
        rebalances, because its subscriptions are not known then (KAFKA-13636)."""

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: list[tuple[bytes, int]],
        now: float,
        *,
        is_transactional: bool = False,
    ) -> list[int]:
        """Check who commits. Raises the `BrokerError` for the whole request; returns an error code for each partition. A commit
        of a member of the classic protocol keeps its session alive. `is_transactional`: it may come during a rebalance."""

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check who asks for offsets; a request without a member is always allowed. Raises `BrokerError`."""

    def tombstones(self) -> list[GroupRecord]:
        """The records that delete the group, which has no members. Its offsets have tombstones of their own."""


class GroupTable:
    """Group id -> group."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def put(self, group: Group) -> None:
        self._groups[group.group_id] = group

    def remove(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
