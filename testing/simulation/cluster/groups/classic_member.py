"""A member of the classic protocol: a model client, because the production consumer speaks the newer protocol only.

It rebalances eagerly: it gives up everything before it joins again. It reads with a production consumer to which it assigns its
partitions, and sends its own JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetFetch. If it leads the group, it
assigns each topic's partitions in turn to the members that subscribe to the topic.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.broker.groups.classic.subscription import parse_topics
from strandline.client import TopicPartition
from strandline.client.admin.classic_assignment import decode_assignment
from strandline.client.consumer.group.membership import by_topic_id
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError, to_code
from strandline.protocol.messages import groups as messages
from strandline.testing.simulation.cluster.groups.coordinator_link import CoordinatorLink
from strandline.testing.simulation.cluster.groups.ledger import Stay
from strandline.testing.simulation.cluster.groups.program import RETRY_S, Program
from strandline.testing.simulation.group_plans import LEAVE

PROTOCOL_TYPE, PROTOCOL = "consumer", "eager"
HEARTBEATS_PER_SESSION = 4
PATIENCE_MS = 1500
OPTIONS_OF_CONSUMER = (
    "request_timeout_ms",
    "connect_timeout_ms",
    "max_block_ms",
    "retry_backoff_ms",
    "metadata_max_age_ms",
    "max_poll_records",
    "fetch_max_wait_ms",
)
Shape = dict[str, tuple[bytes, int]]
"""Topic -> its id and its number of partitions."""
ABSENT = (b"", 0)
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND)
"""Errors that mean that the coordinator does not have the member: it joins again as a new one."""


class ClassicMember(Program):
    async def stay(self) -> bool:
        options = {name: self.plan.options[name] for name in OPTIONS_OF_CONSUMER}
        consumer = await self.around.started(lambda: self.client.consumer(**options, auto_offset_reset="earliest"))
        if consumer is None:
            return False
        self._link = CoordinatorLink(self.client, self.plan.group, self.name, self.draw)
        self._member_id = ""
        self._shape: Shape = {}
        """If the member leads: the topics of the group when it assigned their partitions."""
        stay = self.around.ledger.begin(self.name, self.plan, consumer)
        try:
            return await self._take_part(stay)
        finally:
            self._link.close()
            await consumer.stop()
            self.around.ledger.end(stay)

    async def _take_part(self, stay: Stay) -> bool:
        """Take part in one generation after another. Returns whether the program leaves the group on purpose."""
        is_leaving = False
        while self.going and not is_leaving:
            try:
                generation = await self._join()
                partitions = await self._sync(generation)
                await self._begin(stay, generation, partitions)
                is_leaving = await self._read(stay, generation)
            except (StrandlineError, TimeoutError) as e:
                self._on_error(e)
                await asyncio.sleep(self.draw.uniform(0.5, 1.5) * RETRY_S)
            finally:
                stay.on_gone(list(stay.owned))
        await self._leave()
        return is_leaving

    def _on_error(self, error: Exception) -> None:
        self.around.gave_up(self.client, "a generation", error)
        if getattr(error, "code", None) in LOST:
            self._member_id = ""

    # -- the classic protocol -----------------------------------------------------------------------------------------

    @property
    def _instance_id(self) -> str | None:
        return self.plan.instance_id or None

    async def _join(self) -> messages.JoinGroupResponse:
        """Join, and return the response of the next generation. If the coordinator assigns a member id, join again with it at
        once."""
        options, subscription = self.plan.options, encode_subscription(self.plan.topics)
        while True:
            request = messages.JoinGroupRequest(
                self.plan.group,
                options["session_timeout_ms"],
                options["rebalance_timeout_ms"],
                self._member_id,
                self._instance_id,
                PROTOCOL_TYPE,
                [messages.JoinGroupProtocol(PROTOCOL, subscription)],
            )
            response: messages.JoinGroupResponse = await self._link.ask(
                apis.JOIN_GROUP, request, options["rebalance_timeout_ms"] + PATIENCE_MS
            )
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = response.member_id
                continue
            _check(response.error_code)
            self._member_id = response.member_id
            return response

    async def _sync(self, joined: messages.JoinGroupResponse) -> list[TopicPartition]:
        # A static leader that returns must not assign (KIP-814), and does not know which topics its previous process assigned.
        assignments, self._shape = [], {}
        if joined.skip_assignment:
            self._shape = dict.fromkeys(self.plan.topics, ABSENT)
        elif joined.members:
            assignments = self._assign(joined.members)
        request = messages.SyncGroupRequest(
            self.plan.group,
            joined.generation_id,
            self._member_id,
            self._instance_id,
            joined.protocol_type,
            joined.protocol_name,
            assignments,
        )
        response = await self._link.ask(apis.SYNC_GROUP, request, self.plan.options["rebalance_timeout_ms"] + PATIENCE_MS)
        _check(response.error_code)
        return decode_assignment(response.assignment)

    def _assign(self, members: Sequence[messages.JoinGroupMember]) -> list[messages.SyncGroupAssignment]:
        """As the leader, assign each topic's partitions in turn to the members that subscribe to it."""
        now = self._topics_now()
        subscribers: dict[str, list[str]] = {}
        for member in members:
            for topic in parse_topics(member.metadata):
                subscribers.setdefault(topic, []).append(member.member_id)
        self._shape = {topic: now.get(topic, ABSENT) for topic in subscribers}
        assigned: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
        for topic, member_ids in sorted(subscribers.items()):
            for place, number in enumerate(range(self._shape[topic][1])):
                assigned[member_ids[place % len(member_ids)]].setdefault(topic, []).append(number)
        return [messages.SyncGroupAssignment(member_id, encode_assignment(topics)) for member_id, topics in assigned.items()]

    def _topics_now(self) -> Shape:
        """Id and number of partitions of each topic, in the newest metadata. With older metadata a leader would assign fewer
        partitions, and cause one more rebalance after the next update."""
        image = self.around.cluster.image()
        return {topic.name: (bytes(topic_id), len(topic.partitions)) for topic_id, topic in image.topics_by_id.items()}

    def _check_topics(self) -> None:
        """Start a rebalance if a topic of the group has changed. The leader does this, because the coordinator of a classic group
        does not watch topics."""
        now = self._topics_now()
        if any(now.get(topic, ABSENT) != shape for topic, shape in self._shape.items()):
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, "a topic has changed")

    async def _heartbeat(self, joined: messages.JoinGroupResponse) -> None:
        request = messages.HeartbeatRequest(self.plan.group, joined.generation_id, self._member_id, self._instance_id)
        response = await self._link.ask(apis.HEARTBEAT, request, PATIENCE_MS)
        _check(response.error_code)

    async def _leave(self) -> None:
        """A dynamic member sends LeaveGroup. A static one sends nothing: the coordinator removes it when its session ends."""
        if not self._member_id or self.plan.instance_id:
            return
        request = messages.LeaveGroupRequest(self.plan.group, [messages.LeavingMember(self._member_id)])
        try:
            await self._link.ask(apis.LEAVE_GROUP, request, PATIENCE_MS)
        except (StrandlineError, TimeoutError) as e:
            self.around.gave_up(self.client, "leaving", e)

    # -- records ------------------------------------------------------------------------------------------------------

    async def _begin(self, stay: Stay, joined: messages.JoinGroupResponse, partitions: list[TopicPartition]) -> None:
        """Read these partitions from their committed offsets."""
        consumer = stay.consumer
        await consumer.assign([])  # else a partition that it had before would keep its position
        await consumer.assign(partitions)
        keys = {(consumer.topic_id(tp), tp.partition): tp for tp in partitions}
        committed = await self._committed(keys) if keys else {}
        for key, tp in keys.items():
            if committed.get(key, -1) >= 0:
                consumer.seek(tp, committed[key])
        stay.on_assigned(partitions, self._member_id, joined.generation_id)

    async def _committed(self, keys: Mapping[Any, TopicPartition]) -> dict[Any, int]:
        request = messages.OffsetFetchRequest([messages.OffsetFetchGroup(self.plan.group, topics=by_topic_id(keys))])
        response = await self._link.ask(apis.OFFSET_FETCH, request, PATIENCE_MS)
        group = response.groups[0]
        code = to_code(group.error_code)
        self._link.on_error(code)
        _check(code)
        return {(p.topic_id, p.partition): p.committed_offset for p in group.partitions if not p.error_code}

    async def _read(self, stay: Stay, joined: messages.JoinGroupResponse) -> bool:
        """Read in this generation. Returns whether the program leaves the group on purpose; raises the error that ends the
        generation."""
        loop = asyncio.get_running_loop()
        interval_s = self.plan.options["session_timeout_ms"] / HEARTBEATS_PER_SESSION / 1000
        due, uncommitted = loop.time() + interval_s, dict[tuple[bytes, int], int]()
        while self.going:
            if self.happens(LEAVE):
                return True
            if loop.time() >= due:
                due = loop.time() + interval_s
                self._check_topics()
                await self._heartbeat(joined)
            polled = await stay.consumer.getmany(timeout_ms=self.plan.poll_ms)
            self._check_ids(stay)
            stay.given(polled)
            offsets = stay.keys_of(polled)
            if polled:
                await self.work()
            stay.finish(offsets)
            uncommitted.update({key: numbers[-1] + 1 for key, numbers in offsets.items()})
            if uncommitted:
                await self._commit(uncommitted, joined)
                uncommitted.clear()
        return False

    def _check_ids(self, stay: Stay) -> None:
        """Start a rebalance if an assigned topic was recreated. A consumer without a group would continue to read it, but the
        records of the new topic count only after the next assignment."""
        if any(stay.consumer.topic_id(tp) != key[0] for tp, key in stay.owned.items()):
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, "a topic was recreated")

    async def _commit(self, offsets: Mapping[tuple[bytes, int], int], joined: messages.JoinGroupResponse) -> None:
        partitions = [messages.OffsetCommitPartition(*key, offset) for key, offset in sorted(offsets.items())]
        request = messages.OffsetCommitRequest(
            self.plan.group, joined.generation_id, self._member_id, self._instance_id, partitions
        )
        response = await self._link.ask(apis.OFFSET_COMMIT, request, PATIENCE_MS)
        for partition in response.partitions:
            if partition.error_code != ErrorCode.UNKNOWN_TOPIC_ID:  # the topic was deleted
                _check(partition.error_code)


def _check(error_code: int) -> None:
    if error_code:
        raise BrokerError(to_code(error_code), "the coordinator refuses")


def encode_subscription(topics: Sequence[str]) -> bytes:
    """Version 1 of a consumer's subscription, without user data and owned partitions."""
    data = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        data += struct.pack(">h", len(topic)) + topic.encode()
    return data + struct.pack(">ii", -1, 0)


def encode_assignment(topics: Mapping[str, Sequence[int]]) -> bytes:
    """Version 1 of a consumer's assignment, without user data."""
    data = struct.pack(">hi", 1, len(topics))
    for topic, numbers in sorted(topics.items()):
        data += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return data + struct.pack(">i", -1)
