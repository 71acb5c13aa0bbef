"""Logs the decisions of the active controller: brokers, topics, and each partition whose leader or ISR has changed.

One batch may change very many partitions of a broker. A thousand lines would take 50 ms in which no leader is elected. So above
`PARTITION_LINES_MAX` the partitions of a topic share one line, with a short row for each. The partitions of a new topic are
logged in the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from strandline.controller.metadata.image import MetadataDelta, PartitionRegistration
from strandline.controller.metadata.records import UncleanElectionRecord
from strandline.controller.reassignment import assignment_of
from strandline.controller.security.change_log_lines import log_security_changes
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

PARTITION_LINES_MAX = 100
"""If a batch changes more partitions than this, they share lines."""
ROWS_MAX = 1000
"""Rows of one shared line; a row takes about 2 us and 50 bytes."""


def log_changes(delta: MetadataDelta, cause: str = "") -> None:
    """Log one batch. `cause` is why the decision was made, as one word of docs/logs.md."""
    level, previous = delta.image.feature_level, delta.before.feature_level
    if level != previous:
        logger.info(
            "metadata.level_raised", feature_level=level, previous_feature_level=previous, metadata_offset=delta.image.offset
        )
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
        elif broker_id in delta.before.brokers:
            before = delta.before.brokers[broker_id]
            logger.info(
                "broker.unregistered",
                broker_id=broker_id,
                broker_epoch=before.broker_epoch,
                metadata_offset=delta.image.offset,
            )
    for topic in delta.removed_topics:
        logger.info("topic.removed", topic=topic.name, topic_id=topic.topic_id.hex(), partitions=len(topic.partitions))
    for topic_id in delta.created_topics:
        created = delta.image.topics_by_id[topic_id]
        logger.info("topic.created", topic=created.name, topic_id=topic_id.hex(), partitions=len(created.partitions))
    _log_partitions(delta, cause)
    for report in delta.new_unclean_elections():
        _log_unclean_election(delta, report)
    _log_reassignments(delta)
    if delta.changed_acls or delta.changed_scram_credentials or delta.changed_client_quotas:
        log_security_changes(delta)


def _log_partitions(delta: MetadataDelta, cause: str) -> None:
    changed = [key for key in delta.changed_partitions if delta.before.partition(key) is not None]
    created = [key for key in delta.changed_partitions if delta.before.partition(key) is None]
    if len(changed) > PARTITION_LINES_MAX:
        created, changed = [*created, *changed], []
    for key in changed:
        before, after = delta.before.partition(key), delta.image.partition(key)
        if before is not None and after is not None:
            _log_partition(delta, key, before, after, cause)
    for topic_id, keys in groupby(sorted(created), key=lambda key: key[0]):
        _log_shared(delta, topic_id, [index for _, index in keys], cause)


def _log_reassignments(delta: MetadataDelta) -> None:
    """Log a line for each reassignment that has begun, was replaced or has ended, up to PARTITION_LINES_MAX per batch. If there
    are more, one more line has their number."""
    found = []
    for key in delta.changed_partitions:
        before, after = delta.before.partition(key), delta.image.partition(key)
        if before is not None and after is not None and assignment_of(before) != assignment_of(after):
            found.append((key, before, after))
    for key, before, after in found[:PARTITION_LINES_MAX]:
        _log_reassignment(delta.image.topics_by_id[key[0]].name, key[1], before, after)
    if len(found) > PARTITION_LINES_MAX:
        logger.info("reassignments.changed", partitions=len(found), metadata_offset=delta.image.offset)


def _log_reassignment(topic: str, index: int, before: PartitionRegistration, after: PartitionRegistration) -> None:
    epoch, replicas = after.leader_epoch, list(after.replicas)
    if after.is_reassigning:
        logger.info(
            "reassignment.started",
            topic=topic,
            partition=index,
            leader_epoch=epoch,
            replicas=replicas,
            adding_replicas=list(after.adding_replicas),
            removing_replicas=list(after.removing_replicas),
            throttle_rate=after.throttle_rate,
        )
    elif before.is_reassigning and after.replicas == before.original_replicas:
        logger.info("reassignment.cancelled", topic=topic, partition=index, leader_epoch=epoch, replicas=replicas)
    else:
        isr = list(after.isr)
        logger.info("reassignment.completed", topic=topic, partition=index, leader_epoch=epoch, replicas=replicas, isr=isr)


def _log_partition(
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
        elr=list(after.elr),
        previous_elr=list(before.elr),
        replicas=list(after.replicas),
        metadata_offset=delta.image.offset,
        cause=cause,
    )


def _log_unclean_election(delta: MetadataDelta, report: UncleanElectionRecord) -> None:
    """Log the whole report in a line of its own, however many reports the batch has."""
    replicas = [[r.broker_id, r.last_epoch, r.log_end_offset, r.high_watermark, r.may_lack_records] for r in report.replicas]
    logger.warning(
        "partition.elected_uncleanly",
        topic=delta.image.topics_by_id[report.topic_id].name,
        partition=report.partition,
        leader_id=report.leader,
        leader_epoch=report.leader_epoch,
        strategy=report.strategy,
        last_known_leader_id=report.last_known_leader,
        last_known_leader_epoch=report.last_known_leader_epoch,
        high_watermark=report.high_watermark,
        lost_from=report.lost_from,
        lost_to=report.lost_to,
        asked=replicas,
        metadata_offset=delta.image.offset,
    )


def _log_shared(delta: MetadataDelta, topic_id: bytes, indexes: Sequence[int], cause: str) -> None:
    """Log partitions of one topic, up to `ROWS_MAX` per line."""
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
    """One row of a shared line: partition, leader epoch, partition epoch, leader, ISR, replicas."""
    p = partition
    return [index, p.leader_epoch, p.partition_epoch, p.leader, list(p.isr), list(p.replicas)]
