"""The groups of one shard by id, and the interface that groups of both types have for offset requests and operators."""

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
        """`consumer`, or the type that the members of a classic group name; "" before the first member."""

    @property
    def state_name(self) -> str:
        """The state, as Kafka spells it: `Empty`, `Stable`, `Assigning`, `Reconciling`, `PreparingRebalance` or
        `CompletingRebalance`."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    @property
    def member_count(self) -> int: ...

    @property
    def empty_since_ms(self) -> int:
        """The time since which the group has no members, in ms since 1970; -1: unknown, or it has members."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member is subscribed to this topic. True if the subscriptions are not known."""

    def may_expire_offset(self, topic: str) -> bool:
        """Whether an offset of this topic may expire: not while a member is subscribed to the topic, and not while a classic
        group rebalances, because its subscriptions are not known then (KAFKA-13636)."""

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
        """Check the member that commits. Returns an error code for each partition; raises a `BrokerError` for the whole request.
        A commit of a member of the classic protocol keeps its session alive. `is_transactional`: the commit is permitted during a
        rebalance."""

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check the member that fetches offsets; a request without a member is always allowed. Raises `BrokerError`."""

    def tombstones(self) -> list[GroupRecord]:
        """The records that delete the group, which has no members. Its offsets have tombstones of their own."""


class GroupTable:
    """The groups of one shard, by id."""

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
