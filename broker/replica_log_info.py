"""Serving GetReplicaLogInfo: where the logs of replicas on this broker end (KIP-966).

The controller asks before an unclean election, and `strandline recover` asks for an operator. The answer may be used only for a
partition without a leader, whose log does not change meanwhile. For a replica whose log is offline or damaged, the answer is
KAFKA_STORAGE_ERROR: such a replica must not be elected.
"""

from __future__ import annotations

from strandline.broker.partition.directory import PartitionDirectory
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopicResponse,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.server import ServerRequest


class ReplicaLogInfoHandler:
    """Answers GetReplicaLogInfo requests."""

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, GetReplicaLogInfoRequest)
        if body.broker_id != self._directory.broker_id:
            request.refuse(ErrorCode.INVALID_REQUEST, f"this is broker {self._directory.broker_id}, not {body.broker_id}")
            return
        topics = [
            ReplicaLogInfoTopicResponse(topic.topic_id, [self._info((topic.topic_id, index)) for index in topic.partitions])
            for topic in body.topics
        ]
        request.reply(GetReplicaLogInfoResponse(self._directory.broker_epoch, topics))

    def _info(self, key: TopicIdPartition) -> ReplicaLogInfo:
        directory = self._directory
        partition = directory.partitions.get(key)
        if key in directory.offline or directory.disk_error is not None:
            return ReplicaLogInfo(key[1], error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        if partition is None:
            return ReplicaLogInfo(key[1], error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        log = partition.log
        if log.corrupt_at is not None:
            text = f"the log is damaged at offset {log.corrupt_at}"
            return ReplicaLogInfo(key[1], error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=text)
        return ReplicaLogInfo(
            key[1],
            last_written_leader_epoch=log.latest_epoch,
            current_leader_epoch=partition.leader_epoch,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            may_lack_records=log.possible_data_loss,
        )
