"""Equal shares for members that all subscribe to the same topics.

With n members, every share has total // n partitions, and total % n of the shares have one more. A member keeps its partitions,
up to its share. The larger shares go to members that have more than a smaller share, so that fewer partitions move; the rest of
them go to the first members, in the order of their ids. The partitions that no member keeps fill up the shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from strandline.broker.groups.consumer.assignors.spec import GroupSpec
from strandline.broker.groups.records.types import Partitions
from strandline.protocol.partitions import TopicIdPartition

NOTHING: Partitions = {}


def assign_equal_shares(spec: GroupSpec) -> dict[str, Partitions]:
    members = sorted(spec.members)
    topics = sorted(spec.members[members[0]].subscribed)
    free = {topic_id: set(range(spec.partition_counts[topic_id])) for topic_id in topics}
    share, larger_shares = divmod(sum(map(len, free.values())), len(members))

    shares: dict[str, Partitions] = {}
    full: set[str] = set()
    """Members that got a larger share because they already had more partitions than a smaller share."""
    for member_id in members:
        kept = _take(spec.present.get(member_id, NOTHING), free)
        allowed = share
        if _count(kept) > share and larger_shares:
            allowed += 1
            larger_shares -= 1
            full.add(member_id)
        shares[member_id] = _give_up(kept, allowed, free)

    rest = ((topic_id, number) for topic_id in topics for number in sorted(free[topic_id]))
    for member_id in members:
        allowed = share + (member_id in full)
        if larger_shares and member_id not in full:
            allowed += 1
            larger_shares -= 1
        shares[member_id] = _fill_up(shares[member_id], allowed, rest)
    return shares


def _count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def _take(present: Partitions, free: dict[bytes, set[int]]) -> Partitions:
    """Remove from `free` the partitions of `present` that it contains, and return these."""
    kept = {}
    for topic_id, numbers in present.items():
        unclaimed = free.get(topic_id)
        if unclaimed and (still := numbers & unclaimed):
            unclaimed -= still
            kept[topic_id] = still
    return present if kept == present else kept


def _give_up(kept: Partitions, allowed: int, free: dict[bytes, set[int]]) -> Partitions:
    """Return the first `allowed` partitions of `kept`, and add the others to `free`."""
    excess = _count(kept) - allowed
    if excess <= 0:
        return kept
    remaining = dict(kept)
    for topic_id in sorted(kept, reverse=True):
        given_up = sorted(kept[topic_id])[-excess:]
        free[topic_id].update(given_up)
        remaining[topic_id] = kept[topic_id].difference(given_up)
        if not remaining[topic_id]:
            del remaining[topic_id]
        excess -= len(given_up)
        if not excess:
            break
    return remaining


def _fill_up(kept: Partitions, allowed: int, rest: Iterator[TopicIdPartition]) -> Partitions:
    """Add partitions of `rest`, up to `allowed` in all."""
    missing = allowed - _count(kept)
    if missing <= 0:
        return kept
    filled = {topic_id: set(numbers) for topic_id, numbers in kept.items()}
    for topic_id, number in islice(rest, missing):
        filled.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(filled[topic_id]) for topic_id in sorted(filled)}
