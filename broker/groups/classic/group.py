"""One group of the classic protocol: its members, their votes, and their requests that wait.

    Empty ------------------> PreparingRebalance        a member joins
    PreparingRebalance -----> CompletingRebalance       the members have joined, or their time is over: a new generation begins
    PreparingRebalance -----> Empty                     no member is left: a new generation without members
    CompletingRebalance ----> Stable                    the leader's assignment is in the log
    CompletingRebalance ----> PreparingRebalance        a member joins, leaves, or is removed; or the append failed
    Stable -----------------> PreparingRebalance        the same, or the leader joins again

The coordinator writes a GroupMetadata record when a group becomes Stable or Empty, and when a static member returns under
a new id. `adopt` applies the record, in the coordinator that wrote it and in a coordinator that loads it. So a group is
Stable or Empty after a load: a rebalance in progress ends with its coordinator, and the members start another one.

The leader is the first member that joined. A member that does not join for a rebalance is removed at its end, unless it is
static. If the leader has not joined for the rebalance, the first of the members that have joined for it becomes the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from strandline.broker.coordination.replies import Asker
from strandline.broker.groups.classic.embedded import CONSUMER_PROTOCOL_TYPE, MalformedMetadata
from strandline.broker.groups.classic.member import ClassicMember, member_of
from strandline.broker.groups.classic.subscription import parse_topics
from strandline.broker.groups.records.types import ClassicGroupValue, GroupMetadataRecord, GroupRecord
from strandline.broker.groups.state import CLASSIC
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError

GENERATION_MAX = 2**31 - 1


class State(StrEnum):
    """The states, as Kafka spells them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """The state in the description of a group that does not exist."""


_NEXT_STATES = {
    State.EMPTY: {State.PREPARING},
    State.PREPARING: {State.COMPLETING, State.EMPTY},
    State.COMPLETING: {State.STABLE, State.PREPARING},
    State.STABLE: {State.PREPARING, State.STABLE},
}


@dataclass(slots=True)
class InitialRebalance:
    """The first rebalance of an empty group. It waits for more members, because a member that joins later causes another
    one."""

    latest: float
    """The end of its last extension, on the loop's clock: the join of the first member plus its rebalance timeout."""
    has_newcomer: bool = False
    """Whether a member has joined since the deadline was last set. If so, the deadline is extended."""


class ClassicGroup:
    """One group of the classic protocol. Only `adopt` changes the fields that are in the group's record. The other fields exist
    in this coordinator alone, and are lost with it."""

    def __init__(self, group_id: str, keep_alive: Callable[[ClassicGroup, ClassicMember, float], None]) -> None:
        """`keep_alive`: restarts the session of a member. Its last argument is the loop's time."""
        self.group_id = group_id
        self._keep_alive = keep_alive
        self.state = State.EMPTY
        self.state_since_ms = -1
        """Time of the last change of the state, in ms since 1970; -1: unknown."""
        self.generation = 0
        """Rises at the end of each rebalance. Requests of other generations are rejected."""
        self.must_rebalance = False
        """Whether the record has members and no leader. It was written for a group that must rebalance, and the
        coordinator that loads it starts the rebalance (`migration/downgrade.py`)."""
        self.protocol_type = ""
        """The type that all members name, for example `consumer` or `connect`. An empty group keeps it; "" before the first
        member."""
        self.protocol: str | None = None
        """The protocol of the generation, which all its members support; None without members."""
        self.leader: str | None = None
        """The member id of the leader; None only if the group has no members."""
        self.members: dict[str, ClassicMember] = {}
        """Member id -> member, in the order in which they joined."""
        self.static_members: dict[str, str] = {}
        """Instance id -> member id, of all static members. No two have the same instance id."""
        self.pending: dict[str, None] = {}
        """Pending members: ids that were returned with MEMBER_ID_REQUIRED, and with which no process has joined yet."""
        self.joining: dict[str, Asker] = {}
        """Members whose JoinGroup waits for the end of the rebalance. Empty except in PreparingRebalance."""
        self.syncing: dict[str, Asker] = {}
        """Members whose SyncGroup waits for the leader's assignment. Empty except in CompletingRebalance."""
        self.unsynced: dict[str, None] = {}
        """Members that have not sent SyncGroup in this generation. Empty except in CompletingRebalance and Stable."""
        self.initial: InitialRebalance | None = None
        """Set in PreparingRebalance if the group was empty before; otherwise None."""
        self._supporters: dict[str, int] = {}
        """Protocol -> the number of members that support it. No count is 0."""
        self._topics: frozenset[str] | None = None
        """The result of `_read_topics`, if `_are_topics_fresh`."""
        self._are_topics_fresh = False

    # -- questions of offset requests and operators -------------------------------------------------------------------

    @property
    def group_type(self) -> str:
        return CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def empty_since_ms(self) -> int:
        """As in `Group`; -1 also for a group that never had members. The offsets of such a group expire by their own age."""
        return self.state_since_ms if self.is_empty and self.protocol_type else -1

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics to which the members of the newest generation are subscribed; None if they are unknown, because the
        protocol type is not `consumer` or the metadata cannot be read."""
        if not self._are_topics_fresh:
            self._topics, self._are_topics_fresh = self._read_topics(), True
        return self._topics

    def _read_topics(self) -> frozenset[str] | None:
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None:
            return None
        try:
            return frozenset(topic for member in self.members.values() for topic in parse_topics(member.protocols[self.protocol]))
        except (MalformedMetadata, KeyError):
            return None

    def is_subscribed_to(self, topic: str) -> bool:
        topics = self.subscribed_topics
        return topics is None or topic in topics

    def may_expire_offset(self, topic: str) -> bool:
        return self.is_empty or (self.state is State.STABLE and not self.is_subscribed_to(topic))

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
        """A member must commit in its generation. A generation without assignments accepts no commits: its members own
        nothing yet, and a late commit for a partition of the last generation could overwrite the commit of its next owner. It
        accepts commits in transactions, because producers treat the refusal as fatal (as in Kafka)."""
        if not (epoch < 0 and self.is_empty):
            self._check_committer(member_id, instance_id, epoch, now, is_transactional)
        return [ErrorCode.NONE] * len(partitions)

    def _check_committer(self, member_id: str, instance_id: str | None, epoch: int, now: float, is_transactional: bool) -> None:
        member = self.check_member(member_id, instance_id)
        self.check_generation(epoch)
        if self.state is State.COMPLETING and not is_transactional:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._keep_alive(self, member, now)

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Nothing is checked: requests of classic members have no member id."""

    def tombstones(self) -> list[GroupRecord]:
        return [GroupMetadataRecord(self.group_id, None)]

    # -- checks -------------------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member with this id. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another process has joined with the
        instance id."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is not None and current != member_id:
                raise BrokerError(
                    ErrorCode.FENCED_INSTANCE_ID, f"the instance {instance_id} has joined the group as member {current}"
                )
            if current is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member of the group has the instance id {instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member {member_id!r}")
        return member

    def check_generation(self, generation: int) -> None:
        """Raise ILLEGAL_GENERATION if the request is of another generation."""
        if generation != self.generation:
            raise BrokerError(
                ErrorCode.ILLEGAL_GENERATION, f"the group is in generation {self.generation}, the request in {generation}"
            )

    def supports(self, protocol_type: str, protocols: Mapping[str, bytes]) -> bool:
        """Whether a member with these protocols may join: all members must support one of them."""
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self._supporters.get(name, 0) == count for name in protocols)

    def accepts(self, member_id: str, size_max: int) -> bool:
        """Whether the group has room for a member. During a rebalance, only the members that have joined count. So if the
        group is too large, for example because the limit was lowered, the last members to join are rejected."""
        if self.is_empty:
            return True
        if self.state is State.PREPARING:
            return member_id in self.joining or len(self.joining) < size_max
        return member_id in self.members or len(self.members) < size_max

    @property
    def have_all_joined(self) -> bool:
        return len(self.joining) == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout of the slowest member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_session_paused(self, member: ClassicMember) -> bool:
        """Whether the member waits for an answer of the coordinator, and so need not send heartbeats."""
        return not member.is_new and (member.member_id in self.joining or member.member_id in self.syncing)

    # -- members ------------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member that the group `supports`."""
        if not self.members:
            self.protocol_type = protocol_type
        self._put(member)
        self.pending.pop(member.member_id, None)
        if self.leader is None:
            self.leader = member.member_id

    def _put(self, member: ClassicMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count(member.protocols, 1)

    def remove(self, member_id: str) -> Asker | None:
        """Remove a member or a pending member. Returns its request that waits; the caller must answer it."""
        self.pending.pop(member_id, None)
        self.unsynced.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return self.take_waiting(member_id)

    def replace(self, old_id: str, member: ClassicMember) -> Asker | None:
        """Replace a static member by `member`, which has the same instance id. It leads if the replaced member led.
        Returns the request of the replaced member that waits; the caller must answer it."""
        waiting = self.take_waiting(old_id)
        self._count(self.members[old_id].protocols, -1)
        self._count(member.protocols, 1)
        self.members = {
            member.member_id if known == old_id else known: member if known == old_id else other
            for known, other in self.members.items()
        }
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader == old_id:
            self.leader = member.member_id
        if old_id in self.unsynced:
            del self.unsynced[old_id]
            self.unsynced[member.member_id] = None
        return waiting

    def update(
        self, member: ClassicMember, protocols: dict[str, bytes], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Set the protocols and timeouts of a member that has joined again."""
        self._count(member.protocols, -1)
        self._count(protocols, 1)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def take_waiting(self, member_id: str) -> Asker | None:
        """Remove and return the JoinGroup or SyncGroup of the member that waits. A member has at most one."""
        asker = self.joining.pop(member_id, None)
        return self.syncing.pop(member_id, None) if asker is None else asker

    def _count(self, protocols: Iterable[str], change: int) -> None:
        for name in protocols:
            self._supporters[name] = self._supporters.get(name, 0) + change
            if not self._supporters[name]:
                del self._supporters[name]

    # -- generations --------------------------------------------------------------------------------------------------

    def become(self, state: State, now_ms: int) -> None:
        if state not in _NEXT_STATES[self.state]:
            raise InternalError(f"the group {self.group_id} cannot become {state} in the state {self.state}")
        self.state = state
        self.state_since_ms = now_ms

    @property
    def next_generation(self) -> int:
        """The largest generation is followed by 1, because a negative number means "no generation" in requests."""
        return self.generation + 1 if self.generation < GENERATION_MAX else 1

    def begin_generation(self, now_ms: int) -> None:
        """The first phase of the rebalance has ended, with at least one member: wait for the leader's assignment."""
        self.become(State.COMPLETING, now_ms)
        self.generation = self.next_generation
        self.protocol = self.select_protocol()
        self.unsynced = dict.fromkeys(self.members)
        self.initial = None
        self._are_topics_fresh = False

    def ensure_leader(self) -> bool:
        """If the leader has not joined for the rebalance, let the first of the members that have joined lead. False if no
        member has joined."""
        if self.leader in self.joining:
            return True
        joined = next((member_id for member_id in self.members if member_id in self.joining), None)
        self.leader = joined or self.leader
        return joined is not None

    def select_protocol(self, returning: tuple[str, Mapping[str, bytes]] | None = None) -> str:
        """The protocol with the most votes among those that all members support; at a tie, the one that got the first vote.
        `returning`: a member id, and the protocols to assume for it."""
        known = {member_id: member.protocols for member_id, member in self.members.items()}
        if returning is not None:
            known[returning[0]] = dict(returning[1])
        candidates = set.intersection(*(set(protocols) for protocols in known.values()))
        votes: dict[str, int] = {}
        for protocols in known.values():
            vote = next(name for name in protocols if name in candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    # -- the record ---------------------------------------------------------------------------------------------------

    def value(self, assignments: Mapping[str, bytes], now_ms: int) -> ClassicGroupValue:
        """The record of this generation. A member that is missing in `assignments` gets an empty assignment."""
        assert self.protocol is not None
        protocol = self.protocol
        members = (member.to_value(protocol, assignments.get(member_id, b"")) for member_id, member in self.members.items())
        return ClassicGroupValue(self.protocol_type, self.generation, protocol, self.leader, now_ms, tuple(members))

    def emptied_value(self, now_ms: int) -> ClassicGroupValue:
        """The record of the next generation, without members."""
        return ClassicGroupValue(self.protocol_type, self.next_generation, None, None, now_ms, ())

    def adopt(self, value: ClassicGroupValue) -> None:
        """Apply the group's record. The members keep the protocols that are not in the record, and pending members stay."""
        known, self.members, self.static_members, self._supporters = self.members, {}, {}, {}
        self.protocol_type, self.generation, self.protocol = value.protocol_type, value.generation_id, value.protocol
        for member_value in value.members:
            member = member_of(member_value, value.protocol)
            earlier = known.get(member.member_id)
            if earlier is not None and member.protocols.items() <= earlier.protocols.items():
                member.protocols = earlier.protocols
            self._put(member)
        self.leader = value.leader if value.leader in self.members else next(iter(self.members), None)
        self.unsynced = {member_id: None for member_id in self.unsynced if member_id in self.members}
        self.state = State.STABLE if self.members else State.EMPTY
        self.state_since_ms = value.current_state_timestamp
        self.must_rebalance = bool(self.members) and value.leader is None
        self.initial = None
        self._are_topics_fresh = False
