"""Serving DescribeLogDirs: the size of each replica on this broker, and how far it is behind (KIP-113).

A broker answers for its own replicas only, those that it leads and those that it follows, by log directory. A replica that moves
to another directory is in both: its copy there is marked, with the number of records that it lacks. The sizes are counted as the
logs grow: no file is read for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandline.broker.moves.mover import LogMover
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.partition import Partition
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
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.log.log import Log


class DescribeLogDirsHandler:
    """Answers DescribeLogDirs requests."""

    def __init__(self, directory: PartitionDirectory, log_dirs: LogDirs, moves: LogMover) -> None:
        self._directory = directory
        self._log_dirs = log_dirs
        self._moves = moves

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeLogDirsRequest)
        by_dir: dict[str, list[_Sized]] = {log_dir.path: [] for log_dir in self._log_dirs.online}
        for partition in self._asked(body.topics):
            log_dir, log = self._log_dirs.of(partition.log), partition.log
            if log_dir.offline is None:
                by_dir[log_dir.path].append(_Sized(partition, log, max(log.high_watermark - log.log_end_offset, 0)))
            future = self._moves.future_of(partition.key)
            if future is not None:
                target, copy, lag = future
                by_dir[target.path].append(_Sized(partition, copy, lag, is_future=True))
        cordoned = {each.path for each in self._log_dirs.online if self._log_dirs.is_cordoned(each)}
        results = [self._result(path, found, path in cordoned) for path, found in by_dir.items()]
        results += [DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, path, []) for path in self._log_dirs.offline]
        request.reply(DescribeLogDirsResponse(results))

    def _result(self, path: str, found: list[_Sized], is_cordoned: bool) -> DescribeLogDirsResult:
        files = self._log_dirs.files
        total, free = files.total_space(path), files.free_space(path)
        return DescribeLogDirsResult(
            0, path, list(_topics(found)), is_cordoned, -1 if total is None else total, -1 if free is None else free
        )

    def _asked(self, asked: list[DescribableLogDirTopic] | None) -> Iterator[Partition]:
        """This broker's replicas of the requested topics and partitions; all of its replicas if `asked` is None."""
        image, partitions = self._directory.image, self._directory.partitions
        if asked is None:
            topics = image.topics_by_id.values()
            wanted = [(topic.topic_id, index) for topic in topics for index in topic.partitions]
        else:
            wanted = []
            for item in asked:
                topic = image.topic(item.topic)
                if topic is not None:
                    indexes = topic.partitions if item.partitions is None else item.partitions
                    wanted += [(topic.topic_id, index) for index in indexes]
        return (partitions[key] for key in dict.fromkeys(wanted) if key in partitions)


class _Sized(NamedTuple):
    """A replica, or its copy in another directory."""

    partition: Partition
    log: Log
    lag: int
    is_future: bool = False


def _topics(replicas: Iterable[_Sized]) -> Iterator[DescribeLogDirsTopic]:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition, log, lag, is_future in replicas:
        found = DescribeLogDirsPartition(partition.key[1], log.size_bytes, lag, is_future)
        by_topic.setdefault(partition.topic, []).append(found)
    return (DescribeLogDirsTopic(name, found) for name, found in by_topic.items())
