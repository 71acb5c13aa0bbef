"""Raw requests about groups to a `WireCluster`."""

from __future__ import annotations

from typing import Any

from wire_cluster import WireCluster, retried

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
)

GROUP = "readers"
SETTINGS = {"offsets_topic_num_partitions": 3, "group_initial_rebalance_delay_ms": 0}


class Groups:
    """Requests about groups to whichever broker coordinates them."""

    def __init__(self, cluster: WireCluster) -> None:
        self.cluster = cluster

    async def coordinator(self, group: str = GROUP) -> int:
        async def once() -> int:
            response = await self.cluster.ask(self.cluster.running[0], apis.FIND_COORDINATOR, FindCoordinatorRequest([group]))
            found = response.coordinators[0]
            if found.error_code:
                raise BrokerError(found.error_code, found.error_message)
            if found.node_id not in self.cluster.running:
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it does not run")
            return int(found.node_id)

        return await retried(once)

    async def ask(self, api_key: int, body: Message, group: str = GROUP) -> Any:
        async def once() -> Any:
            return await self.cluster.ask(await self.coordinator(group), api_key, body)

        return await retried(once)

    async def heartbeat(self, member: str, epoch: int, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(GROUP, member, epoch, **changes)
        response = await self.ask(apis.CONSUMER_GROUP_HEARTBEAT, request)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    async def join(self, member: str, *topics: str) -> ConsumerGroupHeartbeatResponse:
        return await self.heartbeat(
            member, 0, rebalance_timeout_ms=30_000, subscribed_topic_names=list(topics), topic_partitions=[]
        )

    async def commit(self, member: str, epoch: int, topic_id: bytes, offsets: dict[int, int], group: str = GROUP) -> list[int]:
        items = [OffsetCommitPartition(topic_id, index, offset) for index, offset in offsets.items()]
        response = await self.ask(apis.OFFSET_COMMIT, OffsetCommitRequest(group, epoch, member, None, items), group)
        return [partition.error_code for partition in response.partitions]

    async def committed(self, group: str = GROUP) -> dict[int, int]:
        async def once() -> dict[int, int]:
            body = OffsetFetchRequest([OffsetFetchGroup(group)])
            found = (await self.ask(apis.OFFSET_FETCH, body, group)).groups[0]
            if found.error_code:
                raise BrokerError(found.error_code, found.error_message)
            return {partition.partition: partition.committed_offset for partition in found.partitions}

        return await retried(once)
