"""The steps by which a member reaches its target assignment, so that no partition ever has two owners.

    STABLE                   the member owns all partitions that it may own in its epoch
    UNREVOKED_PARTITIONS     it still owns partitions that it has to revoke. It stays in its epoch, and gets no partition, until a
                             heartbeat reports the partitions that it owns, without these
    UNRELEASED_PARTITIONS    it has reached the epoch of the target assignment, and waits for partitions that other members own

    STABLE ----------------> UNREVOKED      it owns partitions that are not in its target
    STABLE, UNREVOKED -----> UNRELEASED     it has nothing to revoke, and a partition of its target is not free
    UNRELEASED ------------> UNREVOKED      it owns partitions that are not in a newer target
    all three -------------> STABLE         it has nothing to revoke, and all partitions of its target are free

So a member that loses some partitions and gets others revokes the former in its old epoch, and gets the latter in the new one. A
partition is free if no other member owns it. The target may be older than the subscription of the member: topics to which the
member no longer subscribes do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from strandline.broker.groups.records.types import CurrentAssignmentValue, MemberState, PartitionEpochs, Partitions
from strandline.protocol.messages.groups import GroupTopicPartitions

Owned = Iterable[GroupTopicPartitions] | None
"""The partitions that the member reports as its own; None if the heartbeat does not report them."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target assignment of one member."""

    epoch: int
    partitions: Partitions
    topics: Container[bytes]
    """The topics to which the member subscribes."""
    is_free: Callable[[bytes, int], bool]
    """Whether no other member owns this partition."""


def reconcile(
    current: CurrentAssignmentValue, target: Target, owned: Owned, *, subscription_changed: bool
) -> CurrentAssignmentValue:
    """The member's next assignment; `current` itself if it cannot take a step. `subscription_changed`: whether this heartbeat has
    changed the subscription."""
    if current.state is MemberState.STABLE and current.member_epoch == target.epoch:
        return _drop_unsubscribed(current, target, owned) if subscription_changed else current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, current.pending_revocation):
        return _drop_unsubscribed(current, target, owned) if subscription_changed else current
    advanced = _advance(current, target, owned)
    is_same = replace(advanced, previous_member_epoch=current.previous_member_epoch) == current
    return current if is_same else advanced


def _advance(current: CurrentAssignmentValue, target: Target, owned: Owned) -> CurrentAssignmentValue:
    wanted = {topic_id: numbers for topic_id, numbers in target.partitions.items() if topic_id in target.topics}
    kept, revoked = _split(current.assigned, wanted)
    if revoked and _owns_any(owned, revoked):
        return CurrentAssignmentValue(current.member_epoch, current.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    assigned, has_all = _add_free(kept, wanted, target)
    state = MemberState.STABLE if has_all else MemberState.UNRELEASED_PARTITIONS
    return CurrentAssignmentValue(target.epoch, current.member_epoch, state, assigned, {})


def _drop_unsubscribed(current: CurrentAssignmentValue, target: Target, owned: Owned) -> CurrentAssignmentValue:
    """Revoke the topics to which the member no longer subscribes, without waiting for the next target."""
    dropped = {topic_id: numbers for topic_id, numbers in current.assigned.items() if topic_id not in target.topics}
    if not dropped:
        return current
    kept = {topic_id: numbers for topic_id, numbers in current.assigned.items() if topic_id not in dropped}
    pending = _union(current.pending_revocation, dropped)
    if _owns_any(owned, pending):
        return replace(
            current,
            previous_member_epoch=current.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=pending,
        )
    return replace(current, previous_member_epoch=current.member_epoch, assigned=kept)


def _owns_any(owned: Owned, partitions: PartitionEpochs) -> bool:
    """Whether the member may still own one of these partitions. If it does not report what it owns, it may own all of them."""
    if owned is None:
        return True
    return any(not partitions.get(topic.topic_id, {}).keys().isdisjoint(topic.partitions) for topic in owned)


def _split(assigned: PartitionEpochs, wanted: Partitions) -> tuple[PartitionEpochs, PartitionEpochs]:
    """The partitions that the member keeps, and those that it has to revoke."""
    kept: dict[bytes, Mapping[int, int]] = {}
    revoked: dict[bytes, Mapping[int, int]] = {}
    for topic_id, epochs in assigned.items():
        numbers = wanted.get(topic_id, frozenset())
        if epochs.keys() <= numbers:
            kept[topic_id] = epochs
            continue
        if staying := {number: epoch for number, epoch in epochs.items() if number in numbers}:
            kept[topic_id] = staying
        revoked[topic_id] = {number: epoch for number, epoch in epochs.items() if number not in numbers}
    return kept, revoked


def _add_free(kept: PartitionEpochs, wanted: Partitions, target: Target) -> tuple[PartitionEpochs, bool]:
    """The partitions of the member with the free ones of its target, and whether all of its target was free."""
    assigned, has_all = dict(kept), True
    for topic_id, numbers in wanted.items():
        known = kept.get(topic_id, {})
        missing = numbers - known.keys()
        free = [number for number in sorted(missing) if target.is_free(topic_id, number)]
        if free:
            assigned[topic_id] = {**known, **dict.fromkeys(free, target.epoch)}
        has_all = has_all and len(free) == len(missing)
    return assigned, has_all


def _union(left: PartitionEpochs, right: PartitionEpochs) -> PartitionEpochs:
    topics = {**left, **right}
    return {topic_id: {**left.get(topic_id, {}), **right.get(topic_id, {})} for topic_id in topics}
