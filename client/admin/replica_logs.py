"""The ends of replicas' logs, as their brokers describe them, and the reports of unclean elections (KIP-966)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from strandline.client.admin_types import ReplicaLog, TopicDescription, UncleanElection
from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.records import TopicPartition
from strandline.protocol import apis
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.admin import UncleanElectionReport
from strandline.protocol.messages.cluster import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfoTopic,
)

_Found = dict[tuple[bytes, int], ReplicaLog]


async def replica_logs(
    cluster: Cluster, topics: Iterable[TopicDescription], places: Iterable[TopicPartition], timeout_ms: float
) -> dict[TopicPartition, list[ReplicaLog]]:
    """Ask all brokers that have replicas of these partitions for the ends of their logs, all at once."""
    by_name = {topic.name: topic for topic in topics}
    replicas = {(name, p.partition): p.replicas for name, topic in by_name.items() for p in topic.partitions}
    known = [tp for tp in places if tp in replicas]
    wanted: dict[int, dict[bytes, list[int]]] = {}
    for tp in known:
        for broker_id in replicas[tp]:
            wanted.setdefault(broker_id, {}).setdefault(by_name[tp.topic].topic_id, []).append(tp.partition)
    answers = await asyncio.gather(*(_ask(cluster, broker_id, asked, timeout_ms) for broker_id, asked in wanted.items()))
    found = dict(zip(wanted, answers, strict=True))
    return {
        tp: [
            log
            for broker_id in replicas[tp]
            if (log := found[broker_id].get((by_name[tp.topic].topic_id, tp.partition))) is not None
        ]
        for tp in known
    }


async def _ask(cluster: Cluster, broker_id: int, asked: dict[bytes, list[int]], timeout_ms: float) -> _Found:
    topics = [ReplicaLogInfoTopic(topic_id, indexes) for topic_id, indexes in asked.items()]
    request = GetReplicaLogInfoRequest(broker_id, topics)
    try:
        response = await cluster.connections.request(broker_id, apis.GET_REPLICA_LOG_INFO, request, timeout_ms)
    except StrandlineError:
        return {}
    assert isinstance(response, GetReplicaLogInfoResponse)
    return {
        (topic.topic_id, info.partition): ReplicaLog(
            broker_id, info.last_written_leader_epoch, info.log_end_offset, info.high_watermark, info.may_lack_records
        )
        for topic in response.topics
        for info in topic.partitions
        if not info.error_code
    }


def unclean_election(report: UncleanElectionReport) -> UncleanElection:
    """The report in the form that the admin client returns."""
    return UncleanElection(
        TopicPartition(report.topic, report.partition),
        report.leader,
        report.leader_epoch,
        report.last_known_leader,
        report.last_known_leader_epoch,
        report.high_watermark,
        report.lost_from,
        None if report.lost_to < 0 else report.lost_to,
        report.strategy,
        report.elected_at_ms,
        tuple(
            ReplicaLog(r.broker_id, r.last_epoch, r.log_end_offset, r.high_watermark, r.may_lack_records)
            for r in report.replicas
            if r.log_end_offset >= 0
        ),
    )
