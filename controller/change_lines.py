"""What the active controller decided, as log lines: brokers, topics, and each partition that has another leader or ISR.

A broker with very many partitions makes very many changes in one batch. Then only their number is told: a thousand lines
would be 50 ms in which nobody is elected.
"""

from __future__ import annotations

from strandline.controller.metadata.image import MetadataDelta, PartitionKey, PartitionRegistration
from strandline.protocol.loggers import get_logger

log = get_logger(__name__)

PARTITION_LINES_MAX = 100
"""Of one batch."""


def tell_changes(delta: MetadataDelta) -> None:
    for broker_id in delta.changed_brokers:
        broker = delta.image.brokers.get(broker_id)
        if broker is not None:
            log.info(
                "broker.changed",
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                fenced=broker.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown,
                metadata_offset=delta.image.offset,
                partitions=len(delta.changed_partitions),
            )
    for topic in delta.removed_topics:
        log.info("topic.removed", topic=topic.name, topic_id=topic.topic_id.hex(), partitions=len(topic.partitions))
    for topic_id in delta.created_topics:
        created = delta.image.topics_by_id[topic_id]
        log.info("topic.created", topic=created.name, topic_id=topic_id.hex(), partitions=len(created.partitions))
    _tell_partitions(delta)


def _tell_partitions(delta: MetadataDelta) -> None:
    """Those that were there before; a new topic has its own line."""
    changed = [key for key in delta.changed_partitions if delta.before.partition(key) is not None]
    for key in changed if len(changed) <= PARTITION_LINES_MAX else ():
        before, after = delta.before.partition(key), delta.image.partition(key)
        if before is not None and after is not None:
            _tell_partition(delta, key, before, after)


def _tell_partition(delta: MetadataDelta, key: PartitionKey, before: PartitionRegistration, after: PartitionRegistration) -> None:
    topic = delta.image.topics_by_id[key[0]].name
    log.info(
        "partition.changed",
        topic=topic,
        partition=key[1],
        leader_epoch=after.leader_epoch,
        partition_epoch=after.partition_epoch,
        leader_id=after.leader,
        previous_leader_id=before.leader,
        isr=list(after.isr),
        previous_isr=list(before.isr),
        metadata_offset=delta.image.offset,
    )
