"""Plans the placement of replicas on brokers, with as few moves as possible. Pure.

A plan gives each partition the wanted number of replicas on the allowed brokers, in this order:

1. *Needed moves*: replicas on brokers that are not allowed are replaced, and missing ones are added, on the broker that hosts the
   fewest replicas in a rack that the partition does not have yet. If there are too many replicas, those in a rack that the
   partition has twice are removed first, then those on the fullest brokers.
2. *Racks*: a partition with two replicas in one rack, while another rack has none, moves one of the two.
3. *Even spread*: replicas move from the fullest broker to the emptiest one until no two differ by more than one, but never if the
   partition would lose a rack. Replicas of a topic that crowds a broker most move first.
4. *Leaders*: the order of the replicas changes until the brokers are preferred leaders equally often. That copies nothing.

The third step prefers to move replicas that the plan has added anyway. Without racks, if no move is needed for the first step, it
copies as little as any plan could: each move takes a replica from a broker that has too many to one that has too few. With racks
it may stop earlier, if every further move would put two replicas into one rack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import UsageError

Replicas = tuple[int, ...]
Assignments = dict[TopicPartition, Replicas]


class Placement:
    """The replicas of all partitions, and their number on each broker. The steps below change it into a plan."""

    def __init__(
        self,
        assignments: Mapping[TopicPartition, Replicas],
        racks: Mapping[int, str | None],
        fixed: Mapping[TopicPartition, Replicas] | None = None,
        targets: Collection[int] | None = None,
    ) -> None:
        """`racks`: the allowed brokers, each with its rack. `fixed`: partitions that stay as they are; they count as load.
        `targets`: the allowed brokers that may get replicas; None: all."""
        self.assignments: dict[TopicPartition, list[int]] = {tp: list(replicas) for tp, replicas in sorted(assignments.items())}
        self._before = {tp: frozenset(replicas) for tp, replicas in assignments.items()}
        self._racks = {broker_id: rack or "" for broker_id, rack in sorted(racks.items())}
        self._targets = dict.fromkeys(self._racks if targets is None else sorted(targets))
        self._fixed = dict(fixed or {})
        self.count = dict.fromkeys(self._racks, 0)
        """Allowed broker -> replicas on it."""
        self._of_topic: dict[tuple[str, int], int] = {}
        """(topic, broker) -> replicas of the topic on it."""
        self._on: dict[int, dict[TopicPartition, None]] = {broker_id: {} for broker_id in self._racks}
        """Allowed broker -> partitions that may move away from it."""
        for replicas in self._fixed.values():
            for broker_id in replicas:
                if broker_id in self.count:
                    self.count[broker_id] += 1
        for tp, members in self.assignments.items():
            for broker_id in members:
                self._enter(tp, broker_id)

    def _enter(self, tp: TopicPartition, broker_id: int) -> None:
        if broker_id in self.count:
            self.count[broker_id] += 1
            self._on[broker_id][tp] = None
            self._of_topic[tp.topic, broker_id] = self._of_topic.get((tp.topic, broker_id), 0) + 1

    def _leave(self, tp: TopicPartition, broker_id: int) -> None:
        if broker_id in self.count:
            self.count[broker_id] -= 1
            del self._on[broker_id][tp]
            self._of_topic[tp.topic, broker_id] -= 1

    def _replace(self, tp: TopicPartition, old: int, new: int) -> None:
        members = self.assignments[tp]
        members[members.index(old)] = new
        self._leave(tp, old)
        self._enter(tp, new)

    def _load(self, tp: TopicPartition, broker_id: int) -> tuple[int, int, int]:
        return self.count[broker_id], self._of_topic.get((tp.topic, broker_id), 0), broker_id

    def _racks_of(self, members: Iterable[int]) -> set[str]:
        return {self._racks[broker_id] for broker_id in members if broker_id in self._racks}

    # -- the steps ----------------------------------------------------------------------------------------------------

    def fill(self, tp: TopicPartition, factor: int) -> None:
        """Give the partition this many replicas, all on allowed brokers. Replicas that stay come first, so that one of them is
        the preferred leader."""
        members = self.assignments[tp]
        strangers = [broker_id for broker_id in members if broker_id not in self.count]
        for broker_id in strangers:
            members.remove(broker_id)
        while len(members) > factor:
            leaving = max(members, key=lambda b: self._dispensability(members, b))
            members.remove(leaving)
            self._leave(tp, leaving)
        while len(members) < factor:
            new = self._best_for(tp, members)
            members.append(new)
            self._enter(tp, new)

    def _dispensability(self, members: Sequence[int], broker_id: int) -> tuple[bool, bool, int, int]:
        """The sort key by which a replica is removed, the largest first. A broker that may not get replicas is fenced or drained,
        so its replica is removed first."""
        is_outside = broker_id not in self._targets
        return is_outside, self._shares_rack(members, broker_id), self.count[broker_id], members.index(broker_id)

    def _shares_rack(self, members: Sequence[int], broker_id: int) -> bool:
        return sum(self._racks[other] == self._racks[broker_id] for other in members) > 1

    def _best_for(self, tp: TopicPartition, members: Collection[int]) -> int:
        used = self._racks_of(members)
        free = [broker_id for broker_id in self._targets if broker_id not in members]
        return min(free, key=lambda b: (self._racks[b] in used, *self._load(tp, b)))

    def spread_over_racks(self, tp: TopicPartition) -> None:
        """Move replicas to racks that the partition does not have, while two of its replicas share one."""
        members = self.assignments[tp]
        while True:
            used = self._racks_of(members)
            crowded = [broker_id for broker_id in members if self._shares_rack(members, broker_id)]
            free = [b for b in self._targets if self._racks[b] not in used]
            if not crowded or not free:
                return
            old = max(crowded, key=lambda b: (self.count[b], members.index(b)))
            self._replace(tp, old, min(free, key=lambda b: self._load(tp, b)))

    def even_out(self, *, only_new: bool = False) -> None:
        """Move replicas from full brokers to empty ones, until no move makes the load more even. `only_new`: move only replicas
        that the plan has added anyway."""
        while self._even_out_once(only_new):
            pass

    def _even_out_once(self, only_new: bool) -> bool:
        by_load = sorted(self.count, key=lambda b: (self.count[b], b))
        for full in reversed(by_load):
            for empty in (broker_id for broker_id in by_load if broker_id in self._targets):
                if self.count[full] - self.count[empty] < 2:
                    break
                movable = [tp for tp in self._on[full] if self._may_move(tp, full, empty)]
                best = max(movable, key=lambda tp: self._gain(tp, full, empty), default=None)
                if (best is None or not self._is_new(best, full)) and self._shift_new(full, empty):
                    return True
                if best is not None and (self._is_new(best, full) or not only_new):
                    self._replace(best, full, empty)
                    return True
        return False

    def _is_new(self, tp: TopicPartition, broker_id: int) -> bool:
        """Whether the plan has added this replica of the partition."""
        return broker_id not in self._before[tp]

    def _new_on(self, broker_id: int) -> list[TopicPartition]:
        return [tp for tp in self._on[broker_id] if self._is_new(tp, broker_id)]

    def _shift_new(self, full: int, empty: int) -> bool:
        """Move a new replica from the full broker to a third one, and another new replica from there to the empty one. That
        causes no further copy."""
        for tp in self._new_on(full):
            for third in self._targets:
                if third not in (full, empty) and self._may_move(tp, full, third):
                    for other in self._new_on(third):
                        if other != tp and self._may_move(other, third, empty):
                            self._replace(tp, full, third)
                            self._replace(other, third, empty)
                            return True
        return False

    def _may_move(self, tp: TopicPartition, full: int, empty: int) -> bool:
        members = self.assignments[tp]
        if empty in members:
            return False
        others = [broker_id for broker_id in members if broker_id != full]
        return len(self._racks_of([*others, empty])) >= len(self._racks_of(members))

    def _gain(self, tp: TopicPartition, full: int, empty: int) -> tuple[int, int, bool]:
        """The sort key of a move, the largest first: the fewest additional copies; then the most help to spread the topic; then a
        follower rather than a preferred leader."""
        copies = (not self._is_new(tp, empty)) + self._is_new(tp, full)
        crowding = self._of_topic[tp.topic, full] - self._of_topic.get((tp.topic, empty), 0)
        return copies, crowding, self.assignments[tp][0] != full

    def even_out_leaders(self) -> None:
        """Change the order of replicas, until no broker is the preferred leader of two more partitions than another broker to
        which it could give one, directly or through other brokers."""
        led = dict.fromkeys(self.count, 0)
        for replicas in (*self._fixed.values(), *self.assignments.values()):
            if replicas[0] in led:
                led[replicas[0]] += 1
        for full in sorted(led, key=lambda b: (-led[b], b)):
            while path := self._path_to_fewer(full, led):
                for tp, new in path:
                    members = self.assignments[tp]
                    members.remove(new)
                    members.insert(0, new)
                led[full] -= 1
                led[path[-1][1]] += 1

    def _path_to_fewer(self, full: int, led: Mapping[int, int]) -> list[tuple[TopicPartition, int]]:
        """The changes of leaders that take one partition from `full`, and give one to the broker that leads fewest, among those
        that can be reached. Empty if that broker does not lead at least two fewer."""
        led_by: dict[int, list[TopicPartition]] = {}
        for tp, members in self.assignments.items():
            led_by.setdefault(members[0], []).append(tp)
        came: dict[int, tuple[TopicPartition, int]] = {}
        """Broker -> the partition that it gets to lead, and the broker that gives it away."""
        queue = deque([full])
        while queue:
            giver = queue.popleft()
            for tp in led_by.get(giver, ()):
                for taker in self.assignments[tp][1:]:
                    if taker != full and taker not in came and taker in led:
                        came[taker] = tp, giver
                        queue.append(taker)
        last = min(came, key=lambda b: (led[b], b), default=full)
        if led[full] - led[last] < 2:
            return []
        path: list[tuple[TopicPartition, int]] = []
        while last != full:
            tp, giver = came[last]
            path.append((tp, last))
            last = giver
        return path[::-1]

    def result(self) -> Assignments:
        return {tp: tuple(members) for tp, members in self.assignments.items()}


def check_counts(racks: Mapping[int, str | None], factors: Mapping[TopicPartition, int]) -> None:
    """UsageError if a partition is to have more replicas than there are brokers for it."""
    for tp, factor in factors.items():
        if factor > len(racks):
            there = "there is 1 broker" if len(racks) == 1 else f"there are {len(racks)} brokers"
            raise UsageError(f"{tp.topic}-{tp.partition} needs {factor} brokers for {factor} replicas, and {there}")


def plan_even(
    current: Mapping[TopicPartition, Replicas],
    racks: Mapping[int, str | None],
    *,
    chosen: Collection[TopicPartition] | None = None,
    replication_factor: int | None = None,
    targets: Collection[int] | None = None,
) -> Assignments:
    """Spread partitions evenly over these brokers (each with its rack). Returns the new replicas of the partitions that change.

    `chosen`: the partitions that may move; all others only count as load. `replication_factor`: the number of replicas of each of
    them; None: as many as it has. `targets`: the brokers that may get replicas, while all others only keep theirs; None: all."""
    movable = {tp: replicas for tp, replicas in current.items() if chosen is None or tp in chosen}
    factors = {tp: replication_factor or len(replicas) for tp, replicas in movable.items()}
    free = set(racks if targets is None else targets)
    for tp, factor in factors.items():
        check_counts({b: rack for b, rack in racks.items() if b in free or b in movable[tp]}, {tp: factor})
    placement = Placement(movable, racks, {tp: replicas for tp, replicas in current.items() if tp not in movable}, free)
    for tp, factor in factors.items():
        placement.fill(tp, factor)
    for tp in factors:
        placement.spread_over_racks(tp)
    placement.even_out()
    placement.even_out_leaders()
    return changes(current, placement.result())


def plan_factor(
    current: Mapping[TopicPartition, Replicas],
    racks: Mapping[int, str | None],
    chosen: Collection[TopicPartition],
    replication_factor: int,
) -> Assignments:
    """Give the chosen partitions more or fewer replicas, and move no other replica. Returns the new replicas of the partitions
    that change. `racks`: the brokers that may get replicas, each with its rack."""
    hosts = {**{b: None for tp in chosen for b in current[tp]}, **racks}
    others = {tp: replicas for tp, replicas in current.items() if tp not in chosen}
    placement = Placement({tp: current[tp] for tp in chosen}, hosts, others, racks)
    for tp in placement.assignments:
        check_counts({**dict.fromkeys(current[tp]), **racks}, {tp: replication_factor})
        placement.fill(tp, replication_factor)
    placement.even_out(only_new=True)
    return changes(current, placement.result())


def plan_drain(current: Mapping[TopicPartition, Replicas], racks: Mapping[int, str | None], broker_id: int) -> Assignments:
    """Replace the replicas on one broker by replicas on the brokers of `racks`, and move nothing else. Returns the new replicas
    of the partitions that change. If the partition keeps a replica, the first one, which is to lead, is a replica that it
    keeps."""
    movable = {tp: replicas for tp, replicas in current.items() if broker_id in replicas}
    hosts = {**{b: None for replicas in movable.values() for b in replicas if b != broker_id}, **racks}
    placement = Placement(movable, hosts, {tp: replicas for tp, replicas in current.items() if tp not in movable})
    for tp, replicas in movable.items():
        if not set(racks) - set(replicas):
            raise UsageError(
                f"{tp.topic}-{tp.partition} cannot leave broker {broker_id}: every other broker that may get replicas has one "
                "already"
            )
        staying = [b for b in replicas if b != broker_id]
        new = min(
            (b for b in racks if b not in replicas),
            key=lambda b: (placement._racks[b] in placement._racks_of(staying), *placement._load(tp, b)),
        )
        placement._replace(tp, broker_id, new)
        placement.assignments[tp] = [*staying, new]
    return changes(current, placement.result())


def changes(before: Mapping[TopicPartition, Replicas], after: Mapping[TopicPartition, Replicas]) -> Assignments:
    return {tp: replicas for tp, replicas in after.items() if replicas != before[tp]}
