"""The part of a producer that only named producers use: reads from the log how many rows earlier attempts have written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import ProducerFenced, UsageError
from strandline.client.producer.accumulator import Accumulator
from strandline.client.producer.producer_states import ProducerQuestions, committed_rows
from strandline.client.producer.sender import Sender

NEEDS_PARTITION = "a named producer needs the partition (or the key) of each record: another attempt must choose the same one"


async def resume_after_written_rows(
    partitions: Sequence[TopicPartition],
    cluster: Cluster,
    accumulator: Accumulator,
    sender: Sender,
    learn_topic: Callable[[str], Awaitable[object]],
    *,
    alone: bool,
    timeout_ms: float,
) -> dict[TopicPartition, int]:
    """Read how many rows of the work epoch each partition has, and number the next records after them.

    `Producer.written` explains `alone` and the errors. `learn_topic` adds a topic's partitions to the accumulator."""
    _check_idle(accumulator, partitions)
    identity = sender.identity
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    if alone:
        await identity.fence_older_epochs(timeout_ms)
    own = identity.producer_id, identity.producer_epoch
    questions = ProducerQuestions(cluster, identity.producer_epoch if alone else -1)
    try:
        rows = await committed_rows(questions, partitions, *own, deadline)
    except ProducerFenced as e:
        sender.failures.reject_all(e)
        raise
    for topic in dict.fromkeys(partition.topic for partition in partitions):
        await learn_topic(topic)
    _check_idle(accumulator, partitions)
    for partition, count in rows.items():
        accumulator.queue(accumulator.topics[partition.topic], partition.partition).resume(*own, count)
    return rows


def _check_idle(accumulator: Accumulator, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        if not accumulator.is_idle(partition.topic, partition.partition):
            raise UsageError(f"records for {partition} still wait: `await producer.flush()` first")
