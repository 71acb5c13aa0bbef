"""What the active controller decided, as log lines: brokers, topics, and each partition that has another leader or ISR.

A broker with very many partitions makes very many changes in one batch. A line for each of a thousand would be 50 ms in
which no leader is elected, so that they share lines: a line for each topic, with a short row for each partition. The
partitions of a new topic are logged in the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from strandline.controller.metadata.image import MetadataDelta, PartitionRegistration
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

PARTITION_LINES_MAX = 100
"""Of one batch: with more changes, they share lines."""
ROWS_MAX = 1000
"""Of one line that several partitions share; a row takes about 2 us and 50 bytes."""


def tell_changes(delta: MetadataDelta, cause: str = "") -> None:
    """`cause`: that of the decision, one word of docs/logs.md."""
    for broker_id in delta.changed_brokers:
        broker = delta.image.brokers.get(broker_id)
        if broker is not None:
            logger.info(
                "broker.changed",
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                fenced=broker.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown,
                metadata_offset=delta.image.offset,
                partitions=len(delta.changed_partitions),
            )
    for topic in delta.removed_topics:
        logger.info("topic.removed", topic=topic.name, topic_id=topic.topic_id.hex(), partitions=len(topic.partitions))
    for topic_id in delta.created_topics:
        created = delta.image.topics_by_id[topic_id]
        logger.info("topic.created", topic=created.name, topic_id=topic_id.hex(), partitions=len(created.partitions))
    _tell_partitions(delta, cause)


def _tell_partitions(delta: MetadataDelta, cause: str) -> None:
    changed = [key for key in delta.changed_partitions if delta.before.partition(key) is not None]
    created = [key for key in delta.changed_partitions if delta.before.partition(key) is None]
    if len(changed) > PARTITION_LINES_MAX:
        created, changed = [*created, *changed], []
    for key in changed:
        before, after = delta.before.partition(key), delta.image.partition(key)
        if before is not None and after is not None:
            _tell_partition(delta, key, before, after, cause)
    for topic_id, keys in groupby(sorted(created), key=lambda key: key[0]):
        _tell_together(delta, topic_id, [index for _, index in keys], cause)


def _tell_partition(
    delta: MetadataDelta, key: TopicIdPartition, before: PartitionRegistration, after: PartitionRegistration, cause: str
) -> None:
    topic = delta.image.topics_by_id[key[0]].name
    logger.info(
        "partition.changed",
        topic=topic,
        partition=key[1],
        leader_epoch=after.leader_epoch,
        partition_epoch=after.partition_epoch,
        leader_id=after.leader,
        previous_leader_id=before.leader,
        isr=list(after.isr),
        previous_isr=list(before.isr),
        replicas=list(after.replicas),
        metadata_offset=delta.image.offset,
        cause=cause,
    )


def _tell_together(delta: MetadataDelta, topic_id: bytes, indexes: Sequence[int], cause: str) -> None:
    """Partitions of one topic, at most `ROWS_MAX` a line."""
    topic = delta.image.topics_by_id[topic_id]
    for start in range(0, len(indexes), ROWS_MAX):
        rows = [_row(index, topic.partitions[index]) for index in indexes[start : start + ROWS_MAX]]
        logger.info(
            "partitions.changed",
            topic=topic.name,
            topic_id=topic_id.hex(),
            partitions=len(rows),
            changes=rows,
            metadata_offset=delta.image.offset,
            cause=cause,
        )


def _row(index: int, partition: PartitionRegistration) -> list[Any]:
    """Partition, leader epoch, partition epoch, leader, ISR, replicas."""
    p = partition
    return [index, p.leader_epoch, p.partition_epoch, p.leader, list(p.isr), list(p.replicas)]
