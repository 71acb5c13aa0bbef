"""Serving AlterReplicaLogDirs: moves replicas of this broker to other log directories (KIP-113).

The directory is checked before the partition, as in Kafka. A result without an error means that the move has begun. It continues
in the background (`moves/mover.py`), even after a restart.
"""

from __future__ import annotations

from strandline.broker.moves.mover import LogMover
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError

_NO_REPLICA = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class AlterReplicaLogDirsHandler:
    """Answers AlterReplicaLogDirs requests."""

    def __init__(self, directory: PartitionDirectory, failures: LogFailures, log_dirs: LogDirs, moves: LogMover) -> None:
        self._directory = directory
        self._failures = failures
        self._log_dirs = log_dirs
        self._moves = moves

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, AlterReplicaLogDirsRequest)
        results = [
            AlterReplicaLogDirTopicResult(topic.name, [self._result(each.path, topic.name, index) for index in topic.partitions])
            for each in body.dirs
            for topic in each.topics
        ]
        request.reply(AlterReplicaLogDirsResponse(results))

    def _result(self, path: str, topic: str, index: int) -> AlterReplicaLogDirPartitionResult:
        try:
            log_dir, partition = self._log_dir(path), self._partition(topic, index)
            self._check_not_cordoned(partition, log_dir)
            self._moves.begin(partition, log_dir)
        except BrokerError as e:
            code = ErrorCode.REPLICA_NOT_AVAILABLE if e.code in _NO_REPLICA else e.code
            return AlterReplicaLogDirPartitionResult(index, code, e.message)
        except DiskError as e:
            self._failures.on_disk_error(e)
            return AlterReplicaLogDirPartitionResult(index, ErrorCode.KAFKA_STORAGE_ERROR, str(e))
        return AlterReplicaLogDirPartitionResult(index, ErrorCode.NONE)

    def _partition(self, topic: str, index: int) -> Partition:
        known, broker_id = self._directory.image.topic(topic), self._directory.broker_id
        if known is None:
            raise BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, f"broker {broker_id} has no replica of {topic}-{index}")
        return self._directory.partition((known.topic_id, index))

    def _check_not_cordoned(self, partition: Partition, log_dir: LogDir) -> None:
        if self._log_dirs.is_cordoned(log_dir) and self._log_dirs.of(partition.log) is not log_dir:
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the log directory {log_dir.path} is cordoned (cordoned.log.dirs)"
            )

    def _log_dir(self, path: str) -> LogDir:
        log_dirs, normal = self._log_dirs, path.rstrip("/")
        found = log_dirs.at(normal)
        if found is not None and found.offline is None:
            return found
        if found is not None or normal in {each.rstrip("/") for each in log_dirs.offline}:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory {path} is offline")
        known = ", ".join(each.path for each in log_dirs.dirs)
        raise BrokerError(
            ErrorCode.LOG_DIR_NOT_FOUND, f"broker {self._directory.broker_id} has no log directory {path}, only {known}"
        )
