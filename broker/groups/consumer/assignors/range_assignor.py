"""The assignor `range`: each member gets a contiguous range of every topic that it subscribes to.

All topics use the same order of members: the first subscriber of a topic gets its first range. With p partitions and n
subscribers, each range has p // n partitions, and the first p % n ranges have one more. So topics with equally many partitions
and the same subscribers are co-partitioned: a member gets the same numbers of each of them, and can join their records.

    members A, B    topics t, u with 3 partitions    A: t0 t1 u0 u1    B: t2 u2

Static members are first, in the order of their instance ids, which do not change when a process restarts. The others follow in
the order of their member ids. The previous assignment does not count.
"""

from __future__ import annotations

from strandline.broker.groups.consumer.assignors.spec import GroupSpec
from strandline.broker.groups.records.types import Partitions


def assign_ranges(spec: GroupSpec) -> dict[str, Partitions]:
    shares: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in _in_order(spec)}
    subscribers: dict[bytes, list[str]] = {}
    for member_id in shares:
        for topic_id in spec.members[member_id].subscribed:
            subscribers.setdefault(topic_id, []).append(member_id)
    for topic_id in sorted(subscribers):
        size, larger = divmod(spec.partition_counts[topic_id], len(subscribers[topic_id]))
        start = 0
        for index, member_id in enumerate(subscribers[topic_id]):
            end = start + size + (index < larger)
            if end > start:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return {member_id: _unless_same(spec.present.get(member_id), share) for member_id, share in shares.items()}


def _in_order(spec: GroupSpec) -> list[str]:
    def position(member_id: str) -> tuple[bool, str]:
        instance_id = spec.members[member_id].instance_id
        return (instance_id is None, member_id if instance_id is None else instance_id)

    return sorted(spec.members, key=position)


def _unless_same(present: Partitions | None, share: Partitions) -> Partitions:
    return present if present is not None and present == share else share
