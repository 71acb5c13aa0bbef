"""The argument and the result of an assignor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strandline.broker.groups.records.types import Partitions

TopicIds = Mapping[bytes, None]
"""A set of topic ids. Its order is that of the ids, and does not depend on hashes."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    instance_id: str | None
    """None for a dynamic member."""
    subscribed: TopicIds
    """The existing topics to which the member subscribes."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]
    """Topic id -> number of partitions, for each topic to which a member subscribes."""
    present: Mapping[str, Partitions]
    """The previous target assignment. Some of its members, topics and partitions may no longer exist."""

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics."""
        first, *others = (member.subscribed for member in self.members.values())
        return all(topics is first or topics == first for topics in others)


Assignor = Callable[[GroupSpec], dict[str, Partitions]]
"""Returns the partitions of each member. Every partition of a subscribed topic is assigned to exactly one member that subscribes
to it. If the partitions of a member do not change, the same object is returned for it."""
