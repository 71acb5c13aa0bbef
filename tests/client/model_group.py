"""A model of a group of the newer protocol as its coordinator keeps it: epochs, targets, revocations, lost responses (KIP-848).

It is not the broker's code, because client and broker could share a misreading of the protocol. The rules:

- A member moves to a newer target in two steps: first the partitions that it has to give up are taken out of its assignment; when
  it has reported that it no longer owns them, it gets the new epoch and the free partitions.
- A partition has one holder: from the response that assigns it until the member has reported its revocation, or was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)
from strandline.protocol.partitions import TopicIdPartition

Keys = frozenset[TopicIdPartition]
NONE: Keys = frozenset()


@dataclass
class ModelMember:
    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Keys = NONE
    revoking: Keys = NONE
    target: Keys = NONE
    names: tuple[str, ...] = ()
    pattern: str = ""
    last_seen: float = 0.0
    is_away: bool = False
    """A static member that has left and is expected to return."""

    @property
    def held(self) -> Keys:
        return self.assigned | self.revoking


def spread(members: list[ModelMember], partitions: list[TopicIdPartition]) -> dict[str, Keys]:
    """Assign partitions to members in turn. A member keeps its partitions, up to its share."""
    if not members:
        return {}
    share = -(-len(partitions) // len(members))
    targets: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    left = []
    for key in partitions:
        owner = next((m for m in members if key in m.target and len(targets[m.member_id]) < share), None)
        targets[owner.member_id].add(key) if owner is not None else left.append(key)
    for key in left:
        targets[min(targets, key=lambda member_id: (len(targets[member_id]), member_id))].add(key)
    return {member_id: frozenset(keys) for member_id, keys in targets.items()}


@dataclass
class ModelGroup:
    partitions: list[TopicIdPartition]
    """The partitions to assign."""
    interval_ms: int = 3000
    session_s: float = 9.0
    members: dict[str, ModelMember] = field(default_factory=dict)
    epoch: int = 0
    assign: Callable[[list[ModelMember], list[TopicIdPartition]], dict[str, Keys]] = spread

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, now: float = 0.0) -> ConsumerGroupHeartbeatResponse:
        try:
            return self._heartbeat(request, now)
        except BrokerError as e:
            return ConsumerGroupHeartbeatResponse(e.code, e.message)

    def _heartbeat(self, request: ConsumerGroupHeartbeatRequest, now: float) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch < 0:
            return self._leave(request)
        if request.member_epoch == 0:
            self._check_join(request)
        member = self._member(request)
        owned = None
        if request.topic_partitions is not None:
            owned = frozenset((topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions)
        self._check_epoch(member, request.member_epoch, owned)
        member.last_seen, member.is_away = now, False
        before = member.assigned
        if request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None:
            self._subscribe(member, request)
        self._reconcile(member, owned)
        is_full = request.rebalance_timeout_ms != -1 and request.topic_partitions is not None
        assignment = _by_topic(member.assigned) if is_full or member.assigned != before else None
        return ConsumerGroupHeartbeatResponse(0, None, member.member_id, member.epoch, self.interval_ms, assignment)

    @staticmethod
    def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
        is_subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        if not is_subscribed or request.topic_partitions != [] or request.rebalance_timeout_ms < 1 or not request.member_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the request that joins does not set every field")

    def _member(self, request: ConsumerGroupHeartbeatRequest) -> ModelMember:
        static = next((m for m in self.members.values() if m.instance_id == request.instance_id is not None), None)
        if static is not None and static.member_id != request.member_id:
            if request.member_epoch > 0:
                raise BrokerError(ErrorCode.FENCED_INSTANCE_ID, "another member has the instance id")
            if not static.is_away:
                raise BrokerError(ErrorCode.UNRELEASED_INSTANCE_ID, "the instance id is in use")
            del self.members[static.member_id]
            static.member_id, static.epoch, static.previous_epoch = request.member_id, 0, -1
            self.members[request.member_id] = static
        if request.member_id not in self.members:
            if request.member_epoch > 0:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "there is no such member")
            self.members[request.member_id] = ModelMember(request.member_id, request.instance_id)
            self._compute()
        return self.members[request.member_id]

    @staticmethod
    def _check_epoch(member: ModelMember, epoch: int, owned: Keys | None) -> None:
        is_lost_response = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
        if epoch not in (0, member.epoch) and not is_lost_response:
            raise BrokerError(ErrorCode.FENCED_MEMBER_EPOCH, f"the epoch {epoch} is not {member.epoch}")

    def _subscribe(self, member: ModelMember, request: ConsumerGroupHeartbeatRequest) -> None:
        names = member.names if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names)
        pattern = member.pattern if request.subscribed_topic_regex is None else request.subscribed_topic_regex
        if (names, pattern) != (member.names, member.pattern):
            member.names, member.pattern = names, pattern
            self._compute()

    def _reconcile(self, member: ModelMember, owned: Keys | None) -> None:
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            member.revoking = NONE
        elif member.epoch == self.epoch and member.assigned == member.target:
            return
        lost = member.assigned - member.target
        member.assigned -= lost
        if lost and (owned is None or owned & lost):
            member.revoking = lost
            return
        others = frozenset().union(*(m.held for m in self.members.values() if m is not member))
        member.assigned |= member.target - others
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        member = self.members.get(request.member_id)
        if member is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "there is no such member")
        if request.member_epoch == -2:
            member.is_away = True
        else:
            self.remove([member.member_id])
        return ConsumerGroupHeartbeatResponse(0, None, request.member_id, request.member_epoch)

    # -- what happens to the group -------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Remove the members that sent nothing for a session."""
        self.remove([m.member_id for m in self.members.values() if now - m.last_seen >= self.session_s])

    def fail_over(self, now: float) -> None:
        """Another broker takes over the group. It gives every member a whole session."""
        for member in self.members.values():
            member.last_seen = now

    def remove(self, member_ids: Iterable[str]) -> None:
        gone = [self.members.pop(member_id) for member_id in member_ids if member_id in self.members]
        if gone:
            self._compute()

    def set_targets(self, targets: dict[str, Keys]) -> None:
        """Set the targets for one group epoch; the next computed assignment replaces them."""
        self.epoch += 1
        for member_id, target in targets.items():
            self.members[member_id].target = target

    def _compute(self) -> None:
        self.epoch += 1
        members = list(self.members.values())
        for member_id, target in self.assign(members, self.partitions).items():
            self.members[member_id].target = target


def _by_topic(keys: Keys) -> list[GroupTopicPartitions]:
    ids = sorted({topic_id for topic_id, _ in keys})
    return [GroupTopicPartitions(topic_id, sorted(index for owner, index in keys if owner == topic_id)) for topic_id in ids]
