"""Answers DescribeUncleanElections from a metadata image: the reports of unclean elections, as the metadata log holds them."""

from __future__ import annotations

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import UncleanElectionRecord
from strandline.protocol.messages.admin import (
    AskedReplicaState,
    DescribeUncleanElectionsRequest,
    DescribeUncleanElectionsResponse,
    UncleanElectionReport,
)


def describe_unclean_elections(
    image: MetadataImage, request: DescribeUncleanElectionsRequest
) -> DescribeUncleanElectionsResponse:
    """The reports of the requested topics. A topic that does not exist has none."""
    wanted = None if request.topics is None else frozenset(request.topics)
    reports = [
        _report(image.topics_by_id[key[0]].name, record)
        for key, records in sorted(image.unclean_elections.items())
        for record in records
        if wanted is None or image.topics_by_id[key[0]].name in wanted
    ]
    reports.sort(key=lambda report: (report.topic, report.partition))
    return DescribeUncleanElectionsResponse(0, reports)


def _report(topic: str, record: UncleanElectionRecord) -> UncleanElectionReport:
    return UncleanElectionReport(
        topic,
        record.partition,
        record.leader,
        record.leader_epoch,
        record.last_known_leader,
        record.last_known_leader_epoch,
        record.high_watermark,
        record.lost_from,
        record.lost_to,
        record.strategy,
        record.elected_at_ms,
        [
            AskedReplicaState(r.broker_id, r.last_epoch, r.log_end_offset, r.high_watermark, r.may_lack_records)
            for r in record.replicas
        ],
    )
