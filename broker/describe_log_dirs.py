"""Serving DescribeLogDirs: the size of each replica on this broker, and how far it is behind (KIP-113).

A broker answers for its own replicas only, those that it leads and those that it follows. The sizes are counted as the logs grow:
no file is read for an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.broker.partition.directory import PartitionDirectory
from strandline.controller.metadata.image import TopicImage
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from strandline.protocol.rpc.server import ServerRequest


class DescribeLogDirsHandler:
    """Answers DescribeLogDirs requests. `path`: the log directory."""

    def __init__(self, directory: PartitionDirectory, path: str) -> None:
        self._directory = directory
        self._path = path

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeLogDirsRequest)
        code = ErrorCode.NONE if self._directory.disk_error is None else ErrorCode.KAFKA_STORAGE_ERROR
        topics = [] if code else list(self._topics(body.topics))
        request.reply(DescribeLogDirsResponse([DescribeLogDirsResult(code, self._path, topics)]))

    def _topics(self, asked: list[DescribableLogDirTopic] | None) -> Iterator[DescribeLogDirsTopic]:
        """The requested topics that have a replica here; with None, all topics that have one."""
        image = self._directory.image
        wanted: Mapping[str, list[int] | None]
        if asked is None:
            wanted = {topic.name: None for topic in image.topics_by_id.values()}
        else:
            wanted = {item.topic: item.partitions for item in asked}
        for name, indexes in wanted.items():
            topic = image.topic(name)
            found = [] if topic is None else list(self._partitions(topic, indexes))
            if found:
                yield DescribeLogDirsTopic(name, found)

    def _partitions(self, topic: TopicImage, indexes: list[int] | None) -> Iterator[DescribeLogDirsPartition]:
        for index in topic.partitions if indexes is None else dict.fromkeys(indexes):
            partition = self._directory.partitions.get((topic.topic_id, index))
            if partition is not None:
                log = partition.log
                yield DescribeLogDirsPartition(index, log.size_bytes, max(log.high_watermark - log.log_end_offset, 0))
