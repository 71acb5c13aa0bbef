"""Requests of Kafka's protocol about one group, to the broker that coordinates it."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

METADATA = 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
VERSIONS = {
    OFFSET_COMMIT: range(2, 11),
    OFFSET_FETCH: range(1, 11),
    FIND_COORDINATOR: range(7),
    JOIN: range(10),
    HEARTBEAT: range(5),
    LEAVE: range(6),
    SYNC: range(6),
    DESCRIBE: range(7),
    LIST: range(6),
    DELETE: range(3),
    CONSUMER_HEARTBEAT: range(2),
    CONSUMER_DESCRIBE: range(2),
}
"""The versions that Kafka 4.3 has."""


class GroupWire(KafkaWire):
    """A connection to the coordinator of a group."""

    def __init__(self, host: str, port: int, group: str) -> None:
        super().__init__(host, port)
        self.group = group

    @classmethod
    async def to(cls, cluster: ThreadedCluster, group: str) -> Self:
        """Find the coordinator, and connect to it. The first request creates the internal topic."""
        async with KafkaWire.at(cluster.kafka_bootstrap) as any_broker:
            for _ in range(100):
                found = (await any_broker.call(FIND_COORDINATOR, 4, {"coordinator_keys": [group]})).coordinators[0]
                if not found.error_code:
                    return cls(found.host, found.port, group)
                await asyncio.sleep(0.05)
        raise AssertionError(ErrorCode(found.error_code).name)

    async def ask(self, api_key: int, version: int, **fields: Any) -> Fields:
        """Send a request about the group, again while the coordinator loads it."""
        values = {"group_id": self.group, "include_authorized_operations": False, **fields}
        for _ in range(100):
            answer = await self.call(api_key, version, values)
            if answer.get("error_code") not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                return answer
            await asyncio.sleep(0.05)
        return answer

    # -- the classic protocol -----------------------------------------------------------------------------------------

    async def join(self, version: int, member_id: str = "", instance_id: str | None = None, **fields: Any) -> Fields:
        """Send one JoinGroup."""
        values = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": member_id,
            "group_instance_id": instance_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("orders")}],
            "reason": "a test",
        }
        return await self.ask(JOIN, version, **{**values, **fields})

    async def become_member(self, version: int = 9, **fields: Any) -> Fields:
        """Join, if necessary again with the id of MEMBER_ID_REQUIRED, and assign all partitions to the member."""
        joined = await self.join(version, **fields)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await self.join(version, joined.member_id, **fields)
        assert joined.error_code == ErrorCode.NONE
        synced = await self.sync(5, joined, assignments=[{"member_id": joined.member_id, "assignment": b"all"}])
        assert synced.error_code == ErrorCode.NONE
        return joined

    async def sync(self, version: int, joined: Fields, **fields: Any) -> Fields:
        values = {
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        }
        return await self.ask(SYNC, version, **{**values, **fields})

    async def leave(self, member_id: str, version: int = 5) -> Fields:
        return await self.ask(LEAVE, version, member_id=member_id, members=[{"member_id": member_id}])

    # -- the newer protocol -------------------------------------------------------------------------------------------

    async def beat(self, version: int = 1, member_id: str = "", member_epoch: int = 0, **fields: Any) -> Fields:
        """Send a ConsumerGroupHeartbeat, with all fields if it joins."""
        joining = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
        given = {**(joining if member_epoch == 0 else {}), **fields}
        for name in ("subscribed_topic_names", "topic_partitions"):
            given.setdefault(name, None)
        return await self.ask(CONSUMER_HEARTBEAT, version, member_id=member_id, member_epoch=member_epoch, **given)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(self, version: int, topic: dict[str, Any], offsets: dict[int, int], **fields: Any) -> dict[int, int]:
        """Commit without a membership. `topic`: its name, its id, or both. Returns the error codes by partition."""
        partitions = [
            {"partition_index": n, "committed_offset": offset, "committed_leader_epoch": 3, "committed_metadata": f"at {offset}"}
            for n, offset in offsets.items()
        ]
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": [{**topic, "partitions": partitions}]}
        answer = await self.ask(OFFSET_COMMIT, version, **{**values, **fields})
        return {row.partition_index: row.error_code for part in answer.topics for row in part.partitions}

    async def fetch(self, version: int, topics: list[dict[str, Any]] | None, **fields: Any) -> Fields:
        """Fetch offsets; returns the answer for the group in the form of this version."""
        if version < 8:
            return await self.ask(OFFSET_FETCH, version, topics=topics, **fields)
        group = {"group_id": self.group, "topics": topics, **fields}
        return (await self.ask(OFFSET_FETCH, version, groups=[group])).groups[0]


def subscription(*topics: str) -> bytes:
    """A subscription of the embedded protocol `consumer`, version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"
