"""Heartbeats that wait for a change, so that a member gets it at once instead of with its next regular heartbeat.

In KIP-848 the members send heartbeats at an interval. With an interval of seconds, each step of a rebalance takes seconds: with
one heartbeat a member receives its new target, with a later one it reports that it has revoked a partition, and only then does
another member get the partition with its own next heartbeat. Strandline's client therefore sends heartbeats that may wait
(`max_wait_ms`): if nothing has changed, the coordinator delays the response until something changes or the wait is over. Then the
member sends the next heartbeat at once. A group at rest sends one request per interval, as without the wait. Heartbeats of
Kafka's clients do not wait.

A heartbeat is answered early when

- the group has another target assignment than it had when the heartbeat began to wait,
- a partition that the member waits for is free,
- the group was converted to the classic protocol or deleted, or the member was removed,
- the member sends another heartbeat.

An early response has no new state: it only makes the member send its next heartbeat. So `protocol.py` alone decides about
members.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.groups import ConsumerGroups
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.records.types import MemberState
from strandline.broker.groups.result import Result
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatResponse
from strandline.protocol.partitions import TopicIdPartition

PARKED = "parked heartbeat"


@dataclass(frozen=True, slots=True)
class ParkedHeartbeat:
    """A heartbeat that waits, and the response that it gets at the end of the wait."""

    asker: Asker
    response: ConsumerGroupHeartbeatResponse
    assignment_epoch: int
    """The assignment epoch of the group when the heartbeat began to wait. All heartbeats that wait in a group have the same one,
    because a new assignment epoch ends the wait of all."""


class ParkedHeartbeats:
    """The heartbeats of one shard that wait, at most one per member."""

    def __init__(self, groups: ConsumerGroups, deadlines: Deadlines) -> None:
        self._groups = groups
        self._deadlines = deadlines
        self._parked: dict[str, dict[str, ParkedHeartbeat]] = {}
        """Group -> member -> its heartbeat that waits. No group is empty."""
        self._missing: dict[str, dict[str, tuple[TopicIdPartition, ...]]] = {}
        """Group -> member -> the partitions of its target that other members owned when its heartbeat began to wait. Members that
        miss none are left out, so that a record does not cost a check of each member of a large group. No group is empty."""
        self._changed: dict[str, None] = {}
        """The groups with parked heartbeats of which a record was replayed since the last `take_woken`."""

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def park(
        self, group: ConsumerGroup, member: Member, asker: Asker, response: ConsumerGroupHeartbeatResponse, due: float
    ) -> None:
        """Delay the response until something changes for the member, or until `due`."""
        missing = _missing(group, member) if member.current.state is MemberState.UNRELEASED_PARTITIONS else ()
        if missing:
            self._missing.setdefault(group.group_id, {})[member.member_id] = missing
        parked = ParkedHeartbeat(asker, response, group.assignment_epoch)
        self._parked.setdefault(group.group_id, {})[member.member_id] = parked
        key = (PARKED, group.group_id, member.member_id)
        self._deadlines.set(key, due, partial(self._on_due, group.group_id, member.member_id))

    def take(self, group_id: str, member_id: str) -> Replies:
        """Remove and return the response of the member's last heartbeat, if that waits."""
        members = self._parked.get(group_id)
        parked = None if members is None else members.pop(member_id, None)
        if members is None or parked is None:
            return []
        if not members:
            del self._parked[group_id]
        missing = self._missing.get(group_id)
        if missing is not None and missing.pop(member_id, None) is not None and not missing:
            del self._missing[group_id]
        self._deadlines.cancel((PARKED, group_id, member_id))
        return [(parked.asker, parked.response)]

    def on_record(self, group_id: str) -> None:
        """Note that a record of the group was replayed. The next `take_woken` checks the group."""
        if group_id in self._parked:
            self._changed[group_id] = None

    def take_woken(self) -> Replies:
        """Remove and return the responses whose wait has ended because of the records that were replayed."""
        changed, self._changed = self._changed, {}
        return [reply for group_id in changed for reply in self._woken_of(group_id)]

    def take_all(self) -> list[Asker]:
        """Remove and return all requests that wait. The caller answers them when the leadership ends."""
        askers = [parked.asker for members in self._parked.values() for parked in members.values()]
        self._parked.clear()
        self._missing.clear()
        return askers

    def _woken_of(self, group_id: str) -> Replies:
        group, members = self._groups.get(group_id), self._parked.get(group_id)
        if members is None:
            return []
        if group is None or group.assignment_epoch != next(iter(members.values())).assignment_epoch:
            woken = list(members)
        else:
            gone = [] if members.keys() <= group.members.keys() else [name for name in members if name not in group.members]
            free = [name for name, missing in self._missing.get(group_id, {}).items() if _is_one_free(group, missing)]
            woken = list(dict.fromkeys((*gone, *free)))
        return [reply for member_id in woken for reply in self.take(group_id, member_id)]

    def _on_due(self, group_id: str, member_id: str, now: float, now_ms: int) -> Result:
        return Result([], self.take(group_id, member_id))


def _is_one_free(group: ConsumerGroup, missing: tuple[TopicIdPartition, ...]) -> bool:
    return any(group.owner_of(topic_id, number) is None for topic_id, number in missing)


def _missing(group: ConsumerGroup, member: Member) -> tuple[TopicIdPartition, ...]:
    target = group.targets.get(member.member_id, {})
    assigned = member.current.assigned
    return tuple(
        (topic_id, number)
        for topic_id in sorted(target)
        for number in sorted(target[topic_id] - assigned.get(topic_id, {}).keys())
    )
