"""Asks the leaders of partitions for offsets, for an overview of the cluster.

A partition whose leader does not answer by the deadline is left out of the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from strandline.client.admin_types import TopicDescription
from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.leader_fan_out import ANSWER_TIMEOUT_MS, ask_leaders
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition
from strandline.protocol.apis import LIST_OFFSETS
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.data import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse

RETRY_S = 0.05

Answers = dict[TopicPartition, OffsetAndTimestamp | None]
Describe = Callable[[Sequence[str], float], Awaitable[list[TopicDescription]]]
"""Describes the topics of these names as the cluster knows them now, until a deadline (on the loop's clock)."""


class OffsetQuestions:
    """Asks the leaders of partitions for offsets, until each has answered."""

    def __init__(self, cluster: Cluster, describe: Describe, *, committed: bool = False) -> None:
        """`committed`: the end is the last stable offset, after the last record that read_committed consumers may read."""
        self._isolation = int(committed)
        self._cluster = cluster
        self._describe = describe

    async def ask(self, wanted: Mapping[TopicPartition, int], deadline: float) -> Answers:
        """Ask the leader of each partition for the offset of its timestamp. Leaders that do not answer are asked again until the
        deadline (on the loop's clock); partitions without an answer are not in the result. A result of None: the log has no
        record with that timestamp or a later one."""
        loop = asyncio.get_running_loop()
        found: Answers = {}
        limit_ms: float = min(ANSWER_TIMEOUT_MS, self._cluster.options.request_timeout_ms)
        while True:
            missing = {tp: timestamp for tp, timestamp in wanted.items() if tp not in found}
            by_leader = self._by_leader(await self._describe(sorted({p.topic for p in missing}), deadline), missing)
            timeout_ms = max(1.0, min((deadline - loop.time()) * 1000, limit_ms))
            for answers in (await ask_leaders(by_leader, partial(self._ask, timeout_ms=timeout_ms))).values():
                found |= {} if isinstance(answers, StrandlineError) else answers
            if all(tp in found for tps in by_leader.values() for tp in tps) or loop.time() + RETRY_S >= deadline:
                return found
            # A leader that hangs is left soon; one that has to decode a batch of each partition needs more time.
            limit_ms = min(2 * limit_ms, self._cluster.options.request_timeout_ms)
            await asyncio.sleep(RETRY_S)

    @staticmethod
    def _by_leader(
        topics: Sequence[TopicDescription], wanted: Mapping[TopicPartition, int]
    ) -> dict[int, dict[TopicPartition, ListOffsetsPartition]]:
        """The partitions about which to ask each leader. Partitions without a leader are left out."""
        by_leader: dict[int, dict[TopicPartition, ListOffsetsPartition]] = {}
        for topic in topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition)
                if tp in wanted and p.leader_id >= 0:
                    item = ListOffsetsPartition(topic.topic_id, p.partition, -1, wanted[tp])
                    by_leader.setdefault(p.leader_id, {})[tp] = item
        return by_leader

    async def _ask(self, leader_id: int, asked: Mapping[TopicPartition, ListOffsetsPartition], timeout_ms: float) -> Answers:
        """The leader's answers, without those that are errors."""
        request = ListOffsetsRequest(-1, self._isolation, list(asked.values()))
        response = await self._cluster.connections.request(leader_id, LIST_OFFSETS, request, timeout_ms)
        assert isinstance(response, ListOffsetsResponse)
        good = {(a.topic_id, a.partition): a for a in response.partitions if not a.error_code}
        answers: Answers = {}
        for tp, item in asked.items():
            a = good.get((item.topic_id, item.partition))
            if a is not None:
                answers[tp] = OffsetAndTimestamp(a.offset, a.timestamp, a.leader_epoch) if a.offset >= 0 else None
        return answers
