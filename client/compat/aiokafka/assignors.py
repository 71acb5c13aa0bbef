"""The assignors of aiokafka 0.14, by name: the coordinator assigns the partitions, so a class stands for one of its assignors."""

from __future__ import annotations


class AbstractPartitionAssignor:
    """Base class. `name` says which assignor of the coordinator is meant."""

    name: str


class RoundRobinPartitionAssignor(AbstractPartitionAssignor):
    """Spreads partitions evenly: the coordinator's `uniform`, which also moves as few of them as possible."""

    name = "roundrobin"


class RangePartitionAssignor(AbstractPartitionAssignor):
    """The partitions with one number of several topics go to one member: the coordinator's `range`."""

    name = "range"


class StickyPartitionAssignor(AbstractPartitionAssignor):
    """Moves as few partitions as possible: the coordinator's `uniform`."""

    name = "sticky"


__all__ = ["AbstractPartitionAssignor", "RangePartitionAssignor", "RoundRobinPartitionAssignor", "StickyPartitionAssignor"]
