"""The assignors of aiokafka 0.14. The coordinator assigns the partitions, so each class stands for one of its assignors."""

from __future__ import annotations


class AbstractPartitionAssignor:
    """Base class. `name` selects the assignor of the coordinator."""

    name: str


class RoundRobinPartitionAssignor(AbstractPartitionAssignor):
    """Spreads partitions evenly: the coordinator's `uniform`, which also moves as few of them as possible."""

    name = "roundrobin"


class RangePartitionAssignor(AbstractPartitionAssignor):
    """Assigns the partitions of several topics with the same number to one member: the coordinator's `range`."""

    name = "range"


class StickyPartitionAssignor(AbstractPartitionAssignor):
    """Moves as few partitions as possible: the coordinator's `uniform`."""

    name = "sticky"


__all__ = ["AbstractPartitionAssignor", "RangePartitionAssignor", "RoundRobinPartitionAssignor", "StickyPartitionAssignor"]
