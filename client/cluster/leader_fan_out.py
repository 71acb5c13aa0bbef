"""Requests about many partitions: one request for all partitions of a leader, to all leaders at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from strandline.client.cluster.metadata import MetadataCache
from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import StrandlineError
from strandline.protocol.partitions import TopicIdPartition

ANSWER_TIMEOUT_MS = 2_000
"""A leader answers such a request at once. If it has not answered by then, it hangs or is gone, and another broker may lead."""

Asked = TypeVar("Asked")
Answers = TypeVar("Answers")


def by_leader(cache: MetadataCache, partitions: Iterable[TopicPartition]) -> dict[int, dict[TopicIdPartition, TopicPartition]]:
    """The partitions of each leader. Partitions without a known leader are left out."""
    leaders: dict[int, dict[TopicIdPartition, TopicPartition]] = {}
    for partition in partitions:
        topic = cache.topics.get(partition.topic)
        leader_id = cache.leader(*partition)
        if topic is not None and leader_id >= 0:
            leaders.setdefault(leader_id, {})[topic.topic_id, partition.partition] = partition
    return leaders


async def ask_leaders(
    asked: Mapping[int, Asked], ask: Callable[[int, Asked], Coroutine[Any, Any, Answers]]
) -> dict[int, Answers | StrandlineError]:
    """The answers of each leader, or the error if there are none. `ask(leader_id, asked[leader_id])` sends one request. A leader
    that does not answer does not delay the requests to other leaders."""
    answered = await asyncio.gather(*(ask(leader_id, what) for leader_id, what in asked.items()), return_exceptions=True)
    results: dict[int, Answers | StrandlineError] = {}
    for leader_id, answers in zip(asked, answered, strict=True):
        if isinstance(answers, BaseException) and not isinstance(answers, StrandlineError):
            raise answers
        results[leader_id] = answers
    return results
