"""Offsets of partitions, asked of their leaders: all partitions of one leader in one request, all leaders at the same time.

For a look at the cluster: a partition whose leader does not answer is left out, and holds up none of the others beyond the
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from strandline.client.admin_types import TopicDescription
from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition
from strandline.protocol.apis import LIST_OFFSETS
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.data import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse

RETRY_S = 0.05

Answers = dict[TopicPartition, OffsetAndTimestamp | None]
Describe = Callable[[Sequence[str], float], Awaitable[list[TopicDescription]]]
"""The topics of these names as the cluster knows them now, by a deadline."""


class OffsetQuestions:
    def __init__(self, cluster: Cluster, describe: Describe) -> None:
        self._cluster = cluster
        self._describe = describe

    async def ask(self, wanted: Mapping[TopicPartition, int], deadline: float) -> Answers:
        """By partition, what its leader answered for this timestamp until the deadline (on the loop's clock)."""
        loop = asyncio.get_running_loop()
        found: Answers = {}
        while True:
            missing = {place: timestamp for place, timestamp in wanted.items() if place not in found}
            by_leader = self._by_leader(await self._describe(sorted({p.topic for p in missing}), deadline), missing)
            timeout_ms = max(1.0, (deadline - loop.time()) * 1000)
            for answers in await asyncio.gather(*(self._ask(i, asked, timeout_ms) for i, asked in by_leader.items())):
                found |= answers
            if all(place in found for places in by_leader.values() for place in places) or loop.time() + RETRY_S >= deadline:
                return found
            await asyncio.sleep(RETRY_S)

    @staticmethod
    def _by_leader(
        topics: Sequence[TopicDescription], wanted: Mapping[TopicPartition, int]
    ) -> dict[int, dict[TopicPartition, ListOffsetsPartition]]:
        """What to ask of each leader. A partition that has none is asked of no broker."""
        by_leader: dict[int, dict[TopicPartition, ListOffsetsPartition]] = {}
        for topic in topics:
            for p in topic.partitions:
                place = TopicPartition(topic.name, p.partition)
                if place in wanted and p.leader_id >= 0:
                    item = ListOffsetsPartition(topic.topic_id, p.partition, -1, wanted[place])
                    by_leader.setdefault(p.leader_id, {})[place] = item
        return by_leader

    async def _ask(self, leader_id: int, asked: Mapping[TopicPartition, ListOffsetsPartition], timeout_ms: float) -> Answers:
        """What this leader answered without an error."""
        try:
            response = await self._cluster.request(
                leader_id, LIST_OFFSETS, ListOffsetsRequest(-1, 0, list(asked.values())), timeout_ms
            )
        except StrandlineError:
            return {}
        assert isinstance(response, ListOffsetsResponse)
        good = {(a.topic_id, a.partition): a for a in response.partitions if not a.error_code}
        answers: Answers = {}
        for place, item in asked.items():
            a = good.get((item.topic_id, item.partition))
            if a is not None:
                answers[place] = OffsetAndTimestamp(a.offset, a.timestamp, a.leader_epoch) if a.offset >= 0 else None
        return answers
