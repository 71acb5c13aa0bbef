"""Group coordinators for the scripted cluster: model groups behind real sockets, and switches for what goes wrong.

cluster = ScriptedCluster()
groups = ScriptedGroups(cluster)
async with cluster: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import groups as messages
from strandline.protocol.messages.common import Message
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.server import ServerRequest

from .model_group import Keys, ModelGroup, ModelMember, spread
from .scripted import ScriptedBroker, ScriptedCluster

C = ErrorCode


@dataclass(frozen=True)
class Stored:
    """A committed offset, and the member that stored it."""

    offset: int
    epoch: int = -1
    metadata: str | None = ""
    member_id: str = ""
    member_epoch: int = -1


class ScriptedGroups:
    def __init__(self, cluster: ScriptedCluster, interval_ms: int = 100) -> None:
        self.cluster = cluster
        cluster.more_handlers = self._handlers
        self.interval_ms = interval_ms
        self.coordinator = 1
        """The broker that coordinates all groups; -1: none does."""
        self.groups: dict[str, ModelGroup] = {}
        self.committed: dict[str, dict[TopicIdPartition, Stored]] = {}
        self.heartbeats: list[messages.ConsumerGroupHeartbeatRequest] = []
        self.finds = 0
        self.commits: list[messages.OffsetCommitRequest] = []
        self.fetches: list[messages.OffsetFetchRequest] = []
        self.fate: Callable[[Message], str] = lambda request: "ok"
        """ "ok", "response lost" (it is carried out, and the connection cut), "request lost" (cut), "late" (it is carried out,
        and answered by `answer_late`), "silence", or an error code's name."""
        self.late: list[tuple[ServerRequest, Message]] = []
        self.commit_codes: dict[TopicIdPartition, ErrorCode] = {}
        """The errors of commits, by partition."""
        self.connections: list[int] = []
        """Ids of the connections on which heartbeats arrived, one for each heartbeat."""

    # -- what a test looks at ------------------------------------------------------------------------------------------

    def group(self, group_id: str = "g") -> ModelGroup:
        return self.groups.setdefault(group_id, ModelGroup([], self.interval_ms, assign=self._assign))

    def member(self, group_id: str = "g") -> ModelMember:
        """The member of a group that has only one."""
        (member,) = self.group(group_id).members.values()
        return member

    def keys(self, topic: str, *indexes: int) -> Keys:
        return frozenset((self.cluster.topics[topic], index) for index in indexes)

    def owned(self, topic: str = "orders", group_id: str = "g") -> list[list[int]]:
        """The partitions of a topic that each member holds, in the order of their joining."""
        topic_id = self.cluster.topics[topic]
        return [sorted(i for owner, i in m.held if owner == topic_id) for m in self.group(group_id).members.values()]

    def offset(self, topic: str, index: int = 0, group_id: str = "g") -> int | None:
        stored = self.committed.get(group_id, {}).get((self.cluster.topics[topic], index))
        return None if stored is None else stored.offset

    def store(self, topic: str, index: int, offset: int, group_id: str = "g", epoch: int = -1) -> None:
        self.committed.setdefault(group_id, {})[self.cluster.topics[topic], index] = Stored(offset, epoch)

    def rebalance(self, *targets: Keys, group_id: str = "g") -> None:
        """Assign by hand, in the order in which the members have joined."""
        group = self.group(group_id)
        group.set_targets(dict(zip(group.members, targets, strict=True)))

    def _assign(self, members: list[ModelMember], _: list[TopicIdPartition]) -> dict[str, Keys]:
        """Assign each topic to the members that are subscribed to it."""
        targets: dict[str, Keys] = {member.member_id: frozenset() for member in members}
        for name, topic_id in self.cluster.topics.items():
            readers = [m for m in members if name in m.names or (m.pattern and re.fullmatch(m.pattern, name))]
            partitions = sorted(key for key in self.cluster.partitions if key[0] == topic_id)
            for member_id, keys in spread(readers, partitions).items():
                targets[member_id] |= keys
        return targets

    # -- what brokers answer -------------------------------------------------------------------------------------------

    def _handlers(self, broker: ScriptedBroker) -> dict[int, Callable[[ServerRequest], None]]:
        served: dict[int, Callable[[ServerRequest], Message]] = {
            apis.CONSUMER_GROUP_HEARTBEAT: self._heartbeat,
            apis.OFFSET_COMMIT: self._commit,
            apis.OFFSET_FETCH: self._fetch,
        }
        handlers = {key: self._as_coordinator(broker, serve) for key, serve in served.items()}
        return {**handlers, apis.FIND_COORDINATOR: lambda request: request.reply(self._find(request))}

    def _as_coordinator(
        self, broker: ScriptedBroker, serve: Callable[[ServerRequest], Message]
    ) -> Callable[[ServerRequest], None]:
        def handle(request: ServerRequest) -> None:
            fate = self.fate(request.body)
            if broker.broker_id != self.coordinator:
                request.refuse(C.NOT_COORDINATOR)
            elif fate == "silence":
                broker.held.append(request)
            elif fate == "request lost":
                request.connection.close()
            elif fate == "late":
                self.late.append((request, serve(request)))
            elif fate == "response lost":
                serve(request)
                request.connection.close()
            elif fate != "ok":
                request.refuse(C[fate])
            else:
                request.reply(serve(request))

        return handle

    def answer_late(self) -> None:
        """Send the responses that were held back."""
        late, self.late = self.late, []
        for request, response in late:
            request.reply(response)

    def _find(self, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.FindCoordinatorRequest)
        self.finds += 1
        broker = self.cluster.brokers.get(self.coordinator)
        if broker is None:
            return messages.FindCoordinatorResponse(
                [
                    messages.Coordinator(key, error_code=C.COORDINATOR_NOT_AVAILABLE, error_message="there is none")
                    for key in body.keys
                ]
            )
        found = [messages.Coordinator(key, broker.broker_id, "127.0.0.1", broker.port) for key in body.keys]
        return messages.FindCoordinatorResponse(found)

    def _heartbeat(self, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.ConsumerGroupHeartbeatRequest)
        self.heartbeats.append(body)
        self.connections.append(request.connection.id)
        return self.group(body.group_id).heartbeat(body)

    def _commit(self, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.OffsetCommitRequest)
        self.commits.append(body)
        stored = self.committed.setdefault(body.group_id, {})
        answers = []
        for p in body.partitions:
            key = (p.topic_id, p.partition)
            code = self.commit_codes.get(key) or self._commit_code(body, key)
            if code == C.NONE:
                epoch = body.generation_id_or_member_epoch
                stored[key] = Stored(p.committed_offset, p.committed_leader_epoch, p.committed_metadata, body.member_id, epoch)
            answers.append(messages.OffsetCommitPartitionResponse(*key, code))
        return messages.OffsetCommitResponse(answers)

    def _commit_code(self, body: messages.OffsetCommitRequest, key: TopicIdPartition) -> ErrorCode:
        group = self.group(body.group_id)
        if not body.member_id:
            return C.UNKNOWN_MEMBER_ID if group.members else C.NONE
        member = group.members.get(body.member_id)
        if member is None:
            return C.UNKNOWN_MEMBER_ID
        if body.generation_id_or_member_epoch != member.epoch or key not in member.held:
            return C.STALE_MEMBER_EPOCH
        return C.NONE

    def _fetch(self, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.OffsetFetchRequest)
        self.fetches.append(body)
        return messages.OffsetFetchResponse([self._fetch_one(asked) for asked in body.groups])

    def _fetch_one(self, asked: messages.OffsetFetchGroup) -> messages.OffsetFetchGroupResponse:
        if asked.member_id is not None:
            member = self.group(asked.group_id).members.get(asked.member_id)
            if member is None:
                return messages.OffsetFetchGroupResponse(asked.group_id, C.UNKNOWN_MEMBER_ID)
            if member.epoch != asked.member_epoch:
                return messages.OffsetFetchGroupResponse(asked.group_id, C.STALE_MEMBER_EPOCH)
        stored = self.committed.get(asked.group_id, {})
        keys = list(stored) if asked.topics is None else [(t.topic_id, index) for t in asked.topics for index in t.partitions]
        answers = []
        for key in keys:
            known = stored.get(key)
            if known is None:
                answers.append(messages.OffsetFetchPartition(*key))
            else:
                answers.append(messages.OffsetFetchPartition(*key, known.offset, known.epoch, known.metadata))
        return messages.OffsetFetchGroupResponse(asked.group_id, partitions=answers)
